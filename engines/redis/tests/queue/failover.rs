//! A replica takes over: what it had not received is gone, and nothing else; no number comes again,
//! and no old token counts.

use crate::bench::{Run, bench, claim, finish, job, keeping, options, registers};
use crate::server::Server;
use crate::server::proxy::Proxy;
use crate::server::sentinel::{NAME, Watched, follow, follow_at};
use std::collections::BTreeSet;
use std::time::Duration;
use waterline_queue::{JobState, NewJob, Outcome, Queue, QueueError, Runner};
use waterline_redis::RedisStore;
use waterline_redis::redis::{self, from_redis_value};

/// Sets the last number of the queue this many seconds ahead, as a server does whose clock is
/// ahead.
fn put_ahead(server: &Server, store: &RedisStore, seconds: f64) {
    let mut all = registers(server, store, "q");
    all[0] = now(server) as f64 + seconds * 1e6;
    let raw: Vec<u8> = all.into_iter().flat_map(f64::to_le_bytes).collect();
    let mut set = redis::cmd("HSET");
    set.arg(&store.place_of("q").0).arg("registers").arg(raw);
    set.exec(&mut redis::Client::open(server.url()).unwrap().get_connection().unwrap()).unwrap();
}

/// The microseconds of this server.
fn now(server: &Server) -> i64 {
    let time: Vec<i64> = from_redis_value(server.ask(&["TIME"])).unwrap();
    time[0] * 1_000_000 + time[1]
}

/// Pushes a job without an id, and returns its number.
fn push_plain(queue: &Queue) -> i64 {
    let id = queue.push(NewJob::new("k", "plain").unwrap()).unwrap().id;
    id.strip_prefix('~').unwrap().parse().unwrap()
}

fn wait_until_equal(master: &Server, replica: &Server) {
    common::eventually("the replica has all", || {
        let offset = |server: &Server, name: &str| {
            let info = server.text(&["INFO", "replication"]);
            info.lines().find_map(|line| line.strip_prefix(name)).map(|text| text.trim_end().to_owned())
        };
        offset(master, "master_repl_offset:") == offset(replica, "slave_repl_offset:")
    });
}

#[test]
fn a_replica_that_was_cut_off_lacks_what_came_since_and_repeats_no_number() {
    let (old, new) = (Server::start(&[]), Server::start(&[]));
    let connect = |server: &Server| RedisStore::connect(server.url(), options()).unwrap();
    let store = connect(&old);
    store.migrate().unwrap();
    let queue = store.queue("q", keeping()).unwrap();
    let line = Proxy::start(old.port());
    follow_at(&new, &old, line.port());
    for id in ["ended", "ends late", "runs", "waits"] {
        queue.push(job(id)).unwrap();
    }
    let before: Vec<Run> = claim(&store, "q", 2);
    assert!(finish(&store, "q", before[0]));
    wait_until_equal(&old, &new);
    drop(line);
    old.ask(&["CLIENT", "KILL", "TYPE", "replica"]);
    // The old master goes on. Its clock is 40 s ahead of the other one.
    put_ahead(&old, &store, 40.0);
    let lost: Vec<_> = (0..20).map(|number| format!("lost {number}")).collect();
    lost.iter().for_each(|id| _ = queue.push(job(id)).unwrap());
    let mut numbers: BTreeSet<i64> = (0..20).map(|_| push_plain(&queue)).collect();
    assert!(finish(&store, "q", before[1]));
    let since = claim(&store, "q", 2);
    assert!(finish(&store, "q", since[1]));
    numbers.extend(before.iter().chain(&since).flat_map(|run| [run.0, run.1]));
    let last = *numbers.last().unwrap();
    assert!(last > now(&old) + 30_000_000, "its numbers are those of its clock");

    new.ask(&["REPLICAOF", "NO", "ONE"]);
    let store = connect(&new);
    let queue = store.queue("q", keeping()).unwrap();
    let state = |id: &str| queue.get(id).unwrap().map(|job| job.state);
    let known = ["ended", "ends late", "runs", "waits"].map(|id| state(id).unwrap());
    assert_eq!(known, [JobState::Finished, JobState::Running, JobState::Ready, JobState::Ready]);
    assert!(lost.iter().all(|id| state(id).is_none()), "exactly what it lacked is gone");
    assert_eq!(queue.counts().ready, 2);
    let anew = claim(&store, "q", 9);
    assert_eq!(anew.iter().map(|run| run.0).collect::<Vec<_>>(), since.iter().map(|run| run.0).collect::<Vec<_>>());
    let pushed: Vec<_> = (0..20).map(|_| push_plain(&queue)).collect();
    let given: Vec<_> = anew.iter().map(|run| run.1).chain(pushed).collect();
    assert!(given.iter().all(|number| *number > last), "{given:?} are not all behind {last}");
    // Tokens of the old master count no more, but for a lease that both know.
    assert_eq!([since[0], since[1]].map(|run| finish(&store, "q", run)), [false, false]);
    assert_eq!([anew[0], anew[1], before[1], before[1]].map(|run| finish(&store, "q", run)), [true, true, true, false]);
}

#[test]
fn numbers_follow_the_clock_of_a_server_that_nobody_has_greeted() {
    let (server, options) = bench();
    let store = RedisStore::connect(server.url(), options).unwrap();
    let keys = store.keys_of("q");
    let ask = |function: &str, args: &[&str]| {
        let keys = keys.iter().map(String::as_str);
        let call: Vec<_> =
            ["FCALL", function, "26"].into_iter().chain(keys).chain([""]).chain(args.iter().copied()).collect();
        server.ask(&call)
    };
    let mut last = now(server);
    for _ in 0..2 {
        ask("wl_open", &["q", "", ""]);
        let pushed: [i64; 1] = from_redis_value(ask("wl_push_plain", &["1", "k", "1"])).unwrap();
        assert!(last < pushed[0] && pushed[0] <= now(server), "{pushed:?}");
        last = pushed[0];
        // Somebody has flushed: the next queue knows nothing of the numbers before.
        keys.iter().for_each(|key| _ = server.ask(&["DEL", key]));
    }
}

#[test]
fn what_a_replica_has_confirmed_outlives_the_master() {
    let (old, new) = (Server::start(&[]), Server::start(&[]));
    let confirmed = options().replicas(1, Duration::from_millis(200));
    follow(&new, &old);
    let store = RedisStore::connect([old.url(), new.url()], confirmed).unwrap();
    store.migrate().unwrap();
    let queue = store.queue("q", keeping()).unwrap();
    let ids: Vec<_> = (0..20).map(|number| format!("j{number}")).collect();
    common::eventually("the replica confirms", || queue.push(job("first")).is_ok());
    ids.iter().for_each(|id| _ = queue.push(job(id)).unwrap());
    let run = claim(&store, "q", 1)[0];
    assert!(finish(&store, "q", run));
    new.signal("STOP");
    let unsure = queue.push(job("unsure")).unwrap_err();
    assert!(matches!(&unsure, QueueError::Unsure { queue, .. } if queue == "q"), "{unsure:?}");
    old.kill();
    new.signal("CONT");
    new.ask(&["REPLICAOF", "NO", "ONE"]);
    // The same store, once its first server is gone. No replica is left to confirm anything.
    common::eventually("it finds the other server", || queue.get("j0").is_ok());
    assert!(ids.iter().all(|id| queue.get(id).unwrap().is_some()), "none is gone");
    let ended = queue.get("first").unwrap().unwrap().state;
    assert_eq!(ended, JobState::Finished);
    let store = RedisStore::connect(new.url(), options()).unwrap();
    let queue = store.queue("q", keeping()).unwrap();
    queue.push(job("unsure")).unwrap();
    assert_eq!(queue.counts().ready, 21, "both pushes make one job");
}

#[test]
fn runners_go_on_with_the_master_that_three_sentinels_choose() {
    let watched = Watched::start();
    let connect = |options| RedisStore::sentinel(watched.urls(), NAME, options).unwrap();
    let store = connect(options().replicas(1, Duration::from_secs(20)));
    store.migrate().unwrap();
    let queue = store.queue("q", keeping()).unwrap();
    let runs_on = connect(options()).queue("q", keeping()).unwrap();
    for number in 0..20 {
        queue.push(job(format!("j{number}"))).unwrap();
    }
    watched.servers[0].kill();
    let runner = Runner::builder(&runs_on).on("k", |_, _: String| Ok(Outcome::Done)).start().unwrap();
    common::eventually("the runner goes on", || runs_on.counts().finished == 20);
    common::eventually("pushes go on", || runs_on.push(job("last")).is_ok());
    common::eventually("it runs", || runs_on.counts().finished == 21);
    runner.stop().unwrap();
}
