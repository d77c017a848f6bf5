//! Connections that are lost, and servers that die.

use crate::server::proxy::{Fate, Proxy};
use crate::server::{FUNCTIONS, Server};
use std::time::{Duration, Instant};
use waterline_redis::redis::Value;
use waterline_redis::{Error, RedisOptions, RedisStore};

#[test]
fn a_call_whose_answer_is_lost_is_unsure_and_a_read_is_made_again() {
    let server = Server::start(&[]);
    server.ask(&["FUNCTION", "LOAD", FUNCTIONS]);
    let proxy = Proxy::start(server.port());
    let store = RedisStore::connect(proxy.url(), RedisOptions::new()).unwrap();
    store.migrate().unwrap();
    let add = || store.fcall("mail", "t_add", &[], false);
    let count = || store.fcall("mail", "t_count", &[], true).unwrap();
    add().unwrap();
    for (fate, counts) in [(Fate::Cut, 1), (Fate::CutAnswer, 2)] {
        proxy.next("t_add", fate);
        let error = add().unwrap_err();
        assert!(error.is_unsure() && !error.may_pass(), "{error:?}");
        assert!(error.to_string().contains("(queue \"mail\")"), "{error}");
        assert_eq!(count(), Value::Int(counts), "the next call has a connection of its own");
    }
    for fate in [Fate::Cut, Fate::CutAnswer] {
        proxy.next("t_count", fate);
        assert_eq!(count(), Value::Int(2));
        assert!(proxy.is_done());
    }
    // What comes before the call itself may be made again, whatever the call does.
    for (calls, word) in (3..).zip(["INFO", "wl_version", "wl_greet"]) {
        server.ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        assert_eq!(count(), Value::Int(calls - 1));
        server.ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        common::eventually("the idle connection is not trusted", || {
            proxy.next(word, Fate::CutAnswer);
            let added = add();
            proxy.is_done() && added.is_ok() || added.is_ok_and(|added| added != Value::Int(calls))
        });
    }
}

#[test]
fn a_dead_server_is_an_error_in_time_and_the_same_store_goes_on_after_it() {
    let (server, store) = Server::with_store(RedisOptions::new());
    let add = || store.fcall("mail", "t_add", &[], false);
    for round in 1..=3 {
        assert_eq!(add().unwrap(), Value::Int(round));
        std::thread::scope(|scope| {
            let reads = || (0..50).for_each(|_| _ = store.fcall("mail", "t_count", &[], true).unwrap());
            (0..4).for_each(|_| _ = scope.spawn(reads));
        });
        server.kill();
        // The idle connections may look alive, so the first call may have come through. It is the
        // last one.
        let error = add().unwrap_err();
        assert!(error.is_unsure() || matches!(error, Error::Lost { .. }), "{error:?}");
        let error = add().unwrap_err();
        assert!(matches!(error, Error::Lost { .. }) && error.may_pass(), "{error:?}");
        assert!(error.to_string().contains("(queue \"mail\")"), "{error}");
        server.start_again();
    }
    assert_eq!(add().unwrap(), Value::Int(4), "an append-only file keeps what was acknowledged");
    // A connection that has idled for a second is asked first.
    let idles = Instant::now();
    server.kill();
    server.start_again();
    common::eventually("a second has passed", || idles.elapsed() > Duration::from_secs(1));
    assert_eq!(add().unwrap(), Value::Int(5));
}

#[test]
fn a_server_that_stands_still_is_given_up_in_time() {
    let options = RedisOptions::new().answer_timeout(Duration::from_millis(200));
    let (server, store) = Server::with_store(options.connect_timeout(Duration::from_millis(200)));
    store.fcall("q", "t_add", &[], false).unwrap();
    server.signal("STOP");
    let errors = [false, false].map(|repeats| store.fcall("q", "t_add", &[], repeats).unwrap_err());
    // On a slow machine the connection has idled for so long that it was asked first.
    let was_sent = errors[0].is_unsure();
    assert!(was_sent || matches!(errors[0], Error::Lost { .. }), "{errors:?}");
    assert!(matches!(errors[1], Error::Lost { .. }), "nothing was sent: {errors:?}");
    server.signal("CONT");
    // A late answer belongs to no other call.
    common::eventually("the server goes on", || store.fcall("q", "t_echo", &[b"x"], true).is_ok());
    let counted = store.fcall("q", "t_count", &[], true).unwrap();
    assert_eq!(counted, Value::Int(1 + i64::from(was_sent)));
}

#[test]
fn many_threads_share_the_connections_of_a_store() {
    let (server, store) = Server::with_store(RedisOptions::new());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..50).for_each(|_| _ = store.fcall("q", "t_add", &[], false).unwrap()));
        }
    });
    assert_eq!(store.fcall("q", "t_count", &[], true).unwrap(), Value::Int(400));
    let clients = server.text(&["CLIENT", "LIST", "TYPE", "normal"]).lines().count();
    assert!(clients <= 10, "{clients} connections for 8 threads");
}
