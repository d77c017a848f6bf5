//! The number of connections that a process has at the server.

use crate::bench::{Bench, bench};
use crate::server::Server;
use postgres::NoTls;
use std::sync::{Arc, Barrier};
use std::time::Duration;
use waterline_postgres::{PgOptions, PgStore};
use waterline_queue::{NewJob, Outcome, QueueOptions, Runner, Running};

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
