//! The bells of queues.

use crate::server::Server;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use waterline_redis::{RedisOptions, RedisStore};

/// A counter, and the ring that counts.
fn counter() -> (Arc<AtomicU32>, Arc<dyn Fn() + Send + Sync>) {
    let rung = Arc::new(AtomicU32::new(0));
    let counts = Arc::clone(&rung);
    (rung, Arc::new(move || _ = counts.fetch_add(1, Ordering::Relaxed)))
}

fn wait_for(what: &str, rung: &AtomicU32, more_than: u32) -> u32 {
    common::eventually(what, || rung.load(Ordering::Relaxed) > more_than);
    rung.load(Ordering::Relaxed)
}

fn subscribers(server: &Server) -> usize {
    server.text(&["CLIENT", "LIST"]).lines().filter(|line| line.contains("ssub=") && !line.contains("ssub=0")).count()
}

#[test]
fn a_bell_rings_those_who_listen_and_all_after_a_loss() {
    let (server, store) = Server::with_store(RedisOptions::new());
    let ring = |queue: &str| store.fcall(queue, "t_ring", &[], false).unwrap();
    let ((mail, ring_mail), (other, ring_other)) = (counter(), counter());
    let listens = store.listen("mail", ring_mail).unwrap();
    let listens_too = store.listen("other", ring_other).unwrap();
    let heard = wait_for("a ring at the begin", &mail, 0);
    let heard_by_other = wait_for("a ring at the begin", &other, 0);
    assert_eq!((heard, heard_by_other), (1, 1));
    ring("mail");
    assert_eq!(wait_for("the bell", &mail, 1), 2);
    assert_eq!((other.load(Ordering::Relaxed), subscribers(&server)), (1, 1), "one connection hears both");
    server.kill();
    server.start_again();
    let both = (wait_for("a ring after the loss", &mail, 2), wait_for("a ring after the loss", &other, 1));
    assert_eq!(both, (3, 2));
    drop(listens);
    drop(listens_too);
    common::eventually("the thread ends", || subscribers(&server) == 0);
    let (again, ring_again) = counter();
    let _listens = store.listen("mail", ring_again).unwrap();
    wait_for("a new thread", &again, 0);
    drop(store);
    common::eventually("the thread ends with its store", || subscribers(&server) == 0);
    assert_eq!(mail.load(Ordering::Relaxed), 3);
}

#[test]
fn whoever_listens_before_the_server_is_there_hears_it_later() {
    let (server, store) = Server::with_store(RedisOptions::new());
    server.kill();
    let (rung, ring) = counter();
    let _listens = store.listen("mail", ring).unwrap();
    server.start_again();
    wait_for("the begin", &rung, 0);
}

#[test]
fn the_bell_of_a_slot_that_moves_is_heard_at_its_new_place() {
    let (cluster, store) = crate::server::cluster::Cluster::with_store(RedisOptions::new());
    let (rung, ring) = counter();
    store.fcall("mail", "t_add", &[], false).unwrap();
    let _listens = store.listen("mail", ring).unwrap();
    let heard = wait_for("the begin", &rung, 0);
    let from = cluster.at(&store.node_of("mail").unwrap());
    let to = cluster.nodes.iter().find(|node| node.port() != from.port()).unwrap();
    cluster.move_slot(store.place_of("mail").1, from, to, || ());
    let heard = wait_for("the new place", &rung, heard);
    let other = RedisStore::cluster(cluster.urls(), RedisOptions::new()).unwrap();
    other.fcall("mail", "t_ring", &[], false).unwrap();
    wait_for("the bell", &rung, heard);
    assert_eq!((subscribers(from), subscribers(to)), (0, 1));
}
