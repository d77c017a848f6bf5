//! The connections of a process, and which calls it makes on them.

use crate::bench::{Bench, bench};
use crate::server::Server;
use postgres::NoTls;
use std::sync::{Arc, Barrier};
use std::time::Duration;
use waterline_postgres::{PgOptions, PgStore};
use waterline_queue::{Accept, ConfigError, NewJob, Outcome, Priority, QueueError, QueueOptions, Runner, Running};

#[test]
fn idle_connections_of_a_burst_are_closed() {
    let database = Server::shared().database();
    let mut config = database.config.clone();
    config.application_name("burst");
    let options = PgOptions::new().ttl(Duration::from_secs(60)).close_idle_after(Duration::from_millis(1));
    let store = PgStore::connect(config, NoTls, options).unwrap();
    store.migrate().unwrap();
    drop(store.queue("q", QueueOptions::default()).unwrap());
    let mut client = database.client();
    let mut open = database.client();
    let mut locked = open.transaction().unwrap();
    locked.batch_execute("LOCK TABLE waterline.queue").unwrap();
    let mut count = |state: &str| -> i64 {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'burst' AND state LIKE $1 \
            AND datname = current_database()";
        client.query_one(sql, &[&state]).unwrap().get(0)
    };
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..20).map(|_| scope.spawn(|| store.queue_names().unwrap())).collect();
        common::eventually("20 calls at once", || count("active") >= 20);
        locked.rollback().unwrap();
        calls.into_iter().for_each(|call| assert_eq!(call.join().unwrap(), ["q"]));
    });
    // Each call closes the connections that are too old. Three stay: one for calls, the operator's,
    // and the one that listens.
    common::eventually("an end of the others", || {
        store.queue_names().unwrap();
        count("%") <= 3
    });
}

#[test]
fn a_runner_of_many_jobs_needs_few_connections() {
    let Bench { store, config, .. } = bench();
    let queue = store.queue("q", QueueOptions::default()).unwrap();
    queue.push_all((0..500).map(|_| NewJob::new("k", &()).unwrap())).unwrap();
    let at_once = Arc::new(Barrier::new(50));
    let meets = move |_: &Running, ()| {
        at_once.wait();
        Ok(Outcome::Done)
    };
    let runner = Runner::builder(&queue).max_processing(50).on("k", meets).start().unwrap();
    common::eventually("the ends of all jobs", || queue.counts().finished == 500);
    let of_it = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    let connections: i64 = config.connect(NoTls).unwrap().query_one(of_it, &[]).unwrap().get(0);
    runner.stop().unwrap();
    // Two of turns, those that listen, read and renew leases, and those of the test.
    assert!(connections <= 10, "{connections} connections");
}

/// A call whose answer may be too long commits before it answers. Others are spared that.
#[test]
fn only_calls_with_long_answers_commit_before_they_answer() {
    let Bench { store, config } = bench();
    let queue = store.queue("q", QueueOptions::default()).unwrap();
    let mut client = config.connect(NoTls).unwrap();
    let mut was_called = |function: &str| {
        let last = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%.' || $1 || '(%'";
        let called: i64 = client.query_one(last, &[&function]).unwrap().get(0);
        assert!(called > 0, "{function}");
    };
    let push = |count: i32, priority| {
        let jobs = (0..count).map(|number| NewJob::new("k", &number).unwrap().priority(priority));
        queue.push_all(jobs).unwrap();
    };
    for (count, priority, function) in [
        (640, Priority::Normal, "push_plain"),
        (641, Priority::Normal, "push_plain_and_commit"),
        (8, Priority::High, "push_jobs"),
        (9, Priority::High, "push_and_commit"),
    ] {
        push(count, priority);
        was_called(function);
    }
    for (length, function) in [(900, "turn"), (1_000, "turn_and_commit")] {
        let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
        lease.finish(&"x".repeat(length)).unwrap();
        was_called(function);
    }
}

/// The server knows a bound that this process does not, so it refuses one of the pushes of a call.
#[test]
fn a_refused_push_fails_no_other_one_of_its_call() {
    let Bench { store, config } = bench();
    let queue = store.queue("q", QueueOptions::default()).unwrap();
    let mut client = config.connect(NoTls).unwrap();
    client.execute("SELECT waterline.set_options('q', '{\"max_payload\": 100}')", &[]).unwrap();
    let rounds = 50;
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let queue = &queue;
            scope.spawn(move || {
                let payload = "x".repeat(if thread == 0 { 200 } else { 10 });
                for _ in 0..rounds {
                    let pushed = queue.push(NewJob::new("k", &payload).unwrap());
                    match pushed {
                        Err(QueueError::Config(ConfigError::Length { .. })) if thread == 0 => {}
                        pushed => assert!(thread != 0 && pushed.unwrap().is_new()),
                    }
                }
            });
        }
    });
    assert_eq!(queue.counts().ready, 7 * rounds);
}
