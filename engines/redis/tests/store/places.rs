//! Where a queue is: behind Sentinels, and in a cluster.

use crate::server::cluster::Cluster;
use crate::server::sentinel::{NAME, Watched, follow};
use crate::server::{FUNCTIONS, Server};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use waterline_redis::redis::Value;
use waterline_redis::{Error, Persistence, RedisOptions, RedisStore};

#[test]
fn after_a_failover_the_sentinels_are_asked_again() {
    let watched = Watched::start();
    let options = RedisOptions::new().replicas(1, Duration::from_secs(5));
    let refused = RedisStore::sentinel(watched.urls(), "unknown", RedisOptions::new()).map(drop).unwrap_err();
    assert!(matches!(refused, Error::Config { .. }) && refused.to_string().contains("knows no master"), "{refused}");
    let confirmed = RedisStore::sentinel(watched.urls(), NAME, options).unwrap();
    confirmed.migrate().unwrap();
    confirmed.fcall("q", "t_add", &[], false).unwrap();
    // Nobody follows the new master.
    let store = RedisStore::sentinel(watched.urls(), NAME, RedisOptions::new()).unwrap();
    assert_eq!(store.fcall("q", "t_count", &[], true).unwrap(), Value::Int(1));
    watched.servers[0].kill();
    let mut last = Vec::new();
    common::eventually("the replica takes over", || {
        let answer = store.fcall("q", "t_add", &[], false);
        last.push(format!("{answer:?}"));
        answer.is_ok()
    });
    assert_eq!(store.node_of("q").unwrap(), format!("127.0.0.1:{}", watched.servers[1].port()));
    assert_eq!(store.fcall("q", "t_count", &[], true).unwrap(), Value::Int(2), "{last:?}");
    // The old master comes back, and takes itself for one.
    watched.servers[0].start_again();
    assert_eq!(store.fcall("q", "t_add", &[], false).unwrap(), Value::Int(3));
    for sentinel in &watched.sentinels[..2] {
        sentinel.kill();
    }
    RedisStore::sentinel(watched.urls(), NAME, RedisOptions::new()).unwrap();
}

#[test]
fn a_master_that_becomes_a_replica_is_left_for_the_other() {
    let servers = [(); 2].map(|()| Server::start(&[]));
    servers[0].ask(&["FUNCTION", "LOAD", FUNCTIONS]);
    let store = RedisStore::connect(servers[0].url(), RedisOptions::new()).unwrap();
    store.migrate().unwrap();
    follow(&servers[1], &servers[0]);
    let options = RedisOptions::new().replicas(1, Duration::from_secs(30));
    let store = RedisStore::connect([servers[0].url(), servers[1].url()], options).unwrap();
    for (count, master) in (1..).zip([0, 1, 0, 1]) {
        assert_eq!(store.fcall("q", "t_add", &[], false).unwrap(), Value::Int(count));
        assert_eq!(store.node_of("q").unwrap(), format!("127.0.0.1:{}", servers[master].port()));
        servers[1 - master].ask(&["REPLICAOF", "NO", "ONE"]);
        follow(&servers[master], &servers[1 - master]);
    }
}

#[test]
fn queues_of_a_cluster_are_on_their_nodes_and_with_a_tag_on_one() {
    let (cluster, store) = Cluster::with_store(RedisOptions::new());
    let names: Vec<_> = (0..12).map(|number| format!("queue {number:02}")).collect();
    let add = |store: &RedisStore, name: &str| store.fcall(name, "t_add", &[], false).unwrap();
    names.iter().for_each(|name| assert_eq!(add(&store, name), Value::Int(1)));
    assert_eq!(store.queue_names().unwrap(), names);
    let mut nodes: Vec<_> = names.iter().map(|name| store.node_of(name).unwrap()).collect();
    nodes.sort();
    nodes.dedup();
    assert_eq!(nodes.len(), 3);
    let refused = store.fcall_across(&["a", "b"], "t_keys").unwrap_err();
    assert!(
        matches!(refused, Error::Config { .. }) && refused.to_string().contains("`RedisOptions::tag`"),
        "{refused}"
    );
    let tagged = RedisStore::cluster(cluster.urls(), RedisOptions::new().tag("shop")).unwrap();
    assert_eq!(tagged.fcall_across(&["a", "b"], "t_keys").unwrap(), Value::Int(52));
    assert_eq!(tagged.queue_names().unwrap(), ["a", "b"]);
    cluster.nodes[1].ask(&["CONFIG", "SET", "appendfsync", "no"]);
    assert_eq!(store.persistence().unwrap(), Persistence::Log, "that of the worst");
}

#[test]
fn a_queue_whose_slot_moves_under_load_loses_no_call() {
    // (On a loaded machine a slot may stand between two nodes for seconds.)
    let (mut cluster, store) =
        Cluster::with_store(RedisOptions::new().tag("t").answer_timeout(Duration::from_secs(30)));
    cluster.join();
    // All keys but one, so that some are always missing on both sides.
    store.fcall_across(&["mail", "more"], "t_keys").unwrap();
    let (head, slot) = store.place_of("mail");
    cluster.at(&store.node_of("mail").unwrap()).ask(&["DEL", &head]);
    let ends = AtomicBool::new(false);
    let add = |_: &u32| _ = store.fcall("mail", "t_add", &[], false).unwrap();
    let works = || (0..).take_while(|_| !ends.load(Ordering::Relaxed)).inspect(add).count();
    let counted: usize = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3).map(|_| scope.spawn(works)).collect();
        for _ in 0..2 {
            for to in &cluster.nodes[..3] {
                let from = cluster.at(&store.node_of("mail").unwrap());
                if from.port() != to.port() {
                    cluster.move_slot(slot, from, to, || {
                        common::eventually("a call is told to try again", || from.says("errorstats", "TRYAGAIN"));
                    });
                    from.ask(&["CONFIG", "RESETSTAT"]);
                    common::eventually("calls follow", || {
                        store.node_of("mail").unwrap().ends_with(&to.port().to_string())
                    });
                }
            }
        }
        ends.store(true, Ordering::Relaxed);
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    assert!(counted > 10, "{counted} calls in all");
    assert_eq!(store.fcall("mail", "t_count", &[], true).unwrap(), Value::Int(counted as i64));
    // A node that joined without functions is an error with a cure, which does what it says.
    let (from, to) = (cluster.at(&store.node_of("mail").unwrap()), &cluster.nodes[3]);
    cluster.move_slot(slot, from, to, || ());
    let error = store.fcall("mail", "t_count", &[], true).unwrap_err();
    assert!(matches!(error, Error::Functions { .. }), "{error:?}");
    store.migrate().unwrap();
    to.ask(&["FUNCTION", "LOAD", FUNCTIONS]);
    assert_eq!(store.fcall("mail", "t_count", &[], true).unwrap(), Value::Int(counted as i64));
}

#[test]
fn a_slot_that_stands_between_two_nodes_is_awaited_in_vain_for_a_time() {
    let (cluster, store) = Cluster::with_store(RedisOptions::new().answer_timeout(Duration::from_millis(300)));
    store.fcall("mail", "t_add", &[], false).unwrap();
    let from = cluster.at(&store.node_of("mail").unwrap());
    let to = cluster.nodes.iter().find(|node| node.port() != from.port()).unwrap();
    // A second key of the slot, so that one is here and one is there.
    let (head, slot) = store.place_of("mail");
    from.ask(&["SET", &head.replace(":head", ":job"), "1"]);
    cluster.move_slot(slot, from, to, || {
        let error = store.fcall("mail", "t_add", &[], false).unwrap_err();
        assert!(matches!(&error, Error::Refused { code, .. } if code == "TRYAGAIN") && error.may_pass(), "{error:?}");
    });
    assert_eq!(store.fcall("mail", "t_add", &[], false).unwrap(), Value::Int(2));
    cluster.at(&store.node_of("mail").unwrap()).kill();
    common::eventually("the cluster is down", || {
        matches!(
            store.fcall("mail", "t_add", &[], false),
            Err(Error::Lost { .. } | Error::Refused { .. } | Error::Shared { .. })
        )
    });
}
