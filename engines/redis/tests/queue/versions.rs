//! Programs and functions of two versions at once, as in a rolling deployment.

use crate::bench::{job, keeping, options};
use crate::server::Server;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use waterline::seam::describe;
use waterline_queue::{Outcome, Runner};
use waterline_redis::redis::{Value, from_redis_value};
use waterline_redis::{Error, RedisStore};

/// The functions as a program of another language joins them.
fn text() -> String {
    let built = Command::new("sh").arg(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/build.sh")).output().unwrap();
    String::from_utf8(built.stdout).unwrap()
}

/// Those of another version, which serves programs from the second one on.
fn of_version(version: u32, serves: u32) -> String {
    let own = "local VERSION, SERVES = 1, 1";
    let text = text();
    assert!(text.contains(own));
    let more = "\nredis.register_function('wl_more', function() return 'more' end)\n";
    text.replace(own, &format!("local VERSION, SERVES = {version}, {serves}")) + more
}

fn load(server: &Server, version: u32, serves: u32) {
    server.ask(&["FUNCTION", "LOAD", "REPLACE", &of_version(version, serves)]);
}

fn version(server: &Server) -> [u32; 2] {
    from_redis_value(server.ask(&["FCALL", "wl_version", "0", ""])).unwrap()
}

#[test]
fn both_builds_of_the_functions_are_one_text() {
    let (server, _store) = Server::with_store(options());
    let list = server.ask(&["FUNCTION", "LIST", "LIBRARYNAME", "waterline", "WITHCODE"]);
    let libraries: Vec<std::collections::HashMap<String, Value>> = from_redis_value(list).unwrap();
    assert!(libraries[0]["library_code"] == Value::BulkString(text().into_bytes()));
}

#[test]
fn an_older_and_a_newer_program_work_side_by_side() {
    let (server, store) = Server::with_store(options());
    let queue = store.queue("q", keeping()).unwrap();
    let runs = Arc::new(AtomicU64::new(0));
    let counts = Arc::clone(&runs);
    let runner = Runner::builder(&queue).max_processing(2).on("k", move |_, _: String| {
        counts.fetch_add(1, Ordering::Relaxed);
        Ok(Outcome::Done)
    });
    let runner = runner.start().unwrap();
    let mut pushed = 0;
    let mut push_some = || {
        for _ in 0..50 {
            queue.push(job(format!("j{pushed}"))).unwrap();
            pushed += 1;
        }
    };
    push_some();
    // A newer program loads its functions while this one works, and both call them.
    load(&server, 2, 1);
    push_some();
    assert_eq!(server.text(&["FCALL", "wl_more", "0", ""]), "more");
    // This one does not go back to its own, however often it starts.
    for _ in 0..2 {
        let again = RedisStore::connect(server.url(), options()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| again.migrate().unwrap());
            store.migrate().unwrap();
        });
        again.queue("q", keeping()).unwrap().push(job(format!("again {}", fastrand::u64(..)))).unwrap();
        assert_eq!(version(&server), [2, 1]);
    }
    push_some();
    common::eventually("all jobs to end", || queue.counts().finished == pushed + 2);
    assert_eq!(runs.load(Ordering::Relaxed), pushed + 2);
    // Functions that no longer serve it: it says so at its next start, and changes nothing.
    load(&server, 3, 2);
    let refused = RedisStore::connect(server.url(), options()).map(drop).unwrap_err();
    assert!(matches!(refused, Error::NewerFunctions { found: 3, known: 1, .. }), "{refused:?}");
    server.ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let says = "install a newer version";
    common::eventually(says, || queue.push(job("late")).is_err_and(|error| describe(&error).contains(says)));
    assert!(store.migrate().is_err() && version(&server) == [3, 2]);
    // Those of an older version do not do for it, until it has loaded its own.
    load(&server, 0, 0);
    let says = "they have version 0, and this program needs 1; call `RedisStore::migrate`";
    common::eventually(says, || queue.push(job("late")).is_err_and(|error| describe(&error).contains(says)));
    store.migrate().unwrap();
    queue.push(job("late")).unwrap();
    common::eventually("the runner goes on", || queue.counts().finished == pushed + 3);
    runner.stop().unwrap();
}
