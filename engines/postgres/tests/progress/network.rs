//! The connection breaks, at any moment.

use crate::bank;
use crate::proxy::Proxy;
use crate::server::Server;
use common::{numbers, seed, size};
use postgres::{Config, NoTls, Transaction};
use std::time::{Duration, Instant};
use waterline::{Consumer, Error, Retry};
use waterline_postgres::{PgOptions, PgStore};

/// Enough that the last cuts are made while there is still something to do.
const JOBS: u64 = 20_000;

#[test]
fn disconnects_even_in_a_commit_leave_one_row_per_job() {
    let (server, cuts) = (Server::shared(), size(100, 300));
    let database = server.database();
    bank::open(&database);
    database.store(PgOptions::new());
    let proxy = Proxy::start(server.port(), cuts, seed());
    let mut config = Config::new();
    config.host("127.0.0.1").port(proxy.port()).user("postgres").dbname(&database.name);
    let (begun, mut lives) = (Instant::now(), 0);
    while proxy.left() > 0 || bank::count(&database) < 500 {
        lives += 1;
        let options = PgOptions::new().ttl(Duration::from_secs(2)).holder(format!("life {lives}"));
        let Ok(store) = PgStore::connect(config.clone(), NoTls, options) else { continue };
        let consumer = Consumer::builder(numbers(JOBS), store.progress("p")).max_processing(4).stop_at(JOBS - 1);
        // Small transactions, so that there are many moments to cut.
        let consumer = consumer
            .max_unwritten(8)
            .retry(Retry::none())
            .standby()
            .start_writing(|job| Ok(job.fence), |tx: &mut Transaction<'_>, results| bank::write(tx, results));
        let Ok(consumer) = consumer else { continue };
        let handle = consumer.handle();
        common::eventually("all cuts, or the end", || proxy.left() == 0 || handle.wait_end(Duration::ZERO).is_some());
        match consumer.stop() {
            Ok(()) | Err(Error::Progress { .. }) => {}
            Err(other) => panic!("no job fails for a cut: {other:?}"),
        }
    }
    let [before, after] = proxy.commits();
    println!(
        "{cuts} cuts, {before} and {after} of them before and after a COMMIT came through, in {:?}",
        begun.elapsed()
    );
    assert!(before > 0 && after > 0);
    let store = database.store(PgOptions::new());
    let done = bank::count(&database).unsigned_abs();
    let consumer = Consumer::builder(numbers(JOBS), store.progress("p")).stop_at(JOBS - 1).standby();
    let write = |tx: &mut Transaction<'_>, results: &[(u64, u64)]| bank::write(tx, results);
    consumer.start_writing(|job| Ok(job.fence), write).unwrap().join().unwrap();
    assert!(done > 0);
    bank::assert_exact(&database, JOBS);
}
