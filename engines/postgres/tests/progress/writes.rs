//! The user's part of a transaction: it fails, panics, deadlocks, or ignores an error.

use crate::bank;
use crate::server::{Database, Server};
use common::{HOUR, LONG, numbers, until};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use waterline::{
    Builder, CommitError, Consumer, Error, Index, MemoryJobs, OnExhausted, Progress, Retry, Saved, Transactional,
};
use waterline_postgres::postgres::Transaction;
use waterline_postgres::postgres::error::SqlState;
use waterline_postgres::{PgOptions, PgProgress, PgStore};

const NOW: Retry = Retry::fixed(Duration::ZERO);
const JOBS: u64 = 300;

fn database() -> (Database, PgStore) {
    let database = Server::shared().database();
    bank::open(&database);
    let store = database.store(PgOptions::new());
    (database, store)
}

fn consumer(store: &PgStore) -> Builder<MemoryJobs<u64>, PgProgress> {
    Consumer::builder(numbers(JOBS), store.progress("p")).max_processing(8).stop_at(JOBS - 1)
}

#[test]
fn a_write_that_fails_for_two_jobs_parks_only_those() {
    let (database, store) = database();
    let consumer = consumer(&store).retry(NOW.max_attempts(2)).on_exhausted(OnExhausted::Park { budget: 9 });
    consumer
        .start_writing(
            |job| Ok(job.fence),
            |tx: &mut Transaction<'_>, results| {
                bank::write(tx, results)?;
                if results.iter().any(|(index, _)| *index == 77) {
                    tx.execute("SELECT 1 / 0", &[])?;
                }
                if results.iter().any(|(index, _)| *index == 78) {
                    // An error of the driver itself: the server has not sent one.
                    tx.query_one("SELECT 1 WHERE false", &[])?;
                }
                Ok(())
            },
        )
        .unwrap()
        .join()
        .unwrap();
    bank::assert_these(&database, (0..JOBS).filter(|job| ![77, 78].contains(job)));
    let parked = store.parked("p").unwrap();
    let attempts: Vec<_> = parked.iter().map(|parked| (parked.index, parked.attempts)).collect();
    assert_eq!(attempts, [(77, 2), (78, 2)]);
    assert!(parked[0].error.contains("division by zero"), "{parked:?}");
}

#[test]
fn a_write_that_panics_or_swallows_an_error_is_retried() {
    let (database, store) = database();
    let tries = AtomicU32::new(0);
    consumer(&store)
        .retry(NOW)
        .start_writing(
            |job| Ok(job.fence),
            move |tx: &mut Transaction<'_>, results| {
                bank::write(tx, results)?;
                let index_7 = results.iter().any(|(index, _)| *index == 7);
                match tries.fetch_add(u32::from(index_7), Ordering::Relaxed) {
                    0 if index_7 => panic!("the write panics"),
                    1 if index_7 => _ = tx.execute("SELECT no_such_column", &[]),
                    2 if index_7 => return Err("the write fails".into()),
                    _ => {}
                }
                Ok(())
            },
        )
        .unwrap()
        .join()
        .unwrap();
    bank::assert_exact(&database, JOBS);
}

#[test]
fn a_deferred_constraint_fails_the_job_not_the_connection() {
    let (database, store) = database();
    database
        .client()
        .batch_execute(
            "CREATE TABLE once (job bigint UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO once VALUES (5)",
        )
        .unwrap();
    let consumer = consumer(&store).on_exhausted(OnExhausted::Park { budget: 9 }).retry(Retry::none());
    consumer
        .start_writing(
            |job| Ok(job.fence),
            |tx: &mut Transaction<'_>, results| {
                let jobs: Vec<i64> = results.iter().map(|(index, _)| index.cast_signed()).collect();
                tx.execute("INSERT INTO once SELECT unnest($1::bigint[])", &[&jobs])?;
                bank::write(tx, results)
            },
        )
        .unwrap()
        .join()
        .unwrap();
    bank::assert_these(&database, (0..JOBS).filter(|job| *job != 5));
    assert_eq!(store.parked("p").unwrap()[0].index, 5);
}

#[test]
fn a_deadlock_is_retried_and_fails_no_job() {
    let (database, store) = database();
    database
        .client()
        .batch_execute("CREATE TABLE pair (id int PRIMARY KEY, n int); INSERT INTO pair VALUES (1, 0), (2, 0)")
        .unwrap();
    // Another transaction has row 2, and wants row 1 once ours has it and wants row 2.
    let mut other = database.client();
    other.batch_execute("SET deadlock_timeout = '1h'; BEGIN; UPDATE pair SET n = n + 1 WHERE id = 2").unwrap();
    let process: i32 = other.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    let (say, said) = crossbeam_channel::bounded::<()>(1);
    let other = std::thread::spawn(move || {
        said.recv().unwrap();
        other.batch_execute("UPDATE pair SET n = n + 1 WHERE id = 1; COMMIT").unwrap();
    });
    let deadlocks = Arc::new(AtomicU32::new(0));
    let (counts, say) = (Arc::clone(&deadlocks), Mutex::new(Some(say)));
    // One job in each transaction, and no second attempt: no other worker makes it again.
    let consumer = consumer(&store).retry(Retry::none()).max_unwritten(1);
    consumer
        .start_writing(
            |job| Ok(job.fence),
            move |tx: &mut Transaction<'_>, results| {
                bank::write(tx, results)?;
                if results.iter().any(|(index, _)| *index == 7) {
                    tx.batch_execute("SET LOCAL deadlock_timeout = '1ms'; UPDATE pair SET n = n + 1 WHERE id = 1")?;
                    if let Some(say) = say.lock().take() {
                        say.send(())?;
                        let waits = "SELECT 1 FROM pg_locks WHERE NOT granted AND pid = $1";
                        while tx.query_opt(waits, &[&process])?.is_none() {
                            common::rest();
                        }
                    }
                    tx.execute("UPDATE pair SET n = n + 1 WHERE id = 2", &[]).inspect_err(|error| {
                        let deadlock = error.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED);
                        counts.fetch_add(u32::from(deadlock), Ordering::Relaxed);
                    })?;
                }
                Ok(())
            },
        )
        .unwrap()
        .join()
        .unwrap();
    other.join().unwrap();
    bank::assert_exact(&database, JOBS);
    assert!(deadlocks.load(Ordering::Relaxed) >= 1);
    let pair = database.client().query_one("SELECT sum(n) FROM pair", &[]).unwrap();
    assert_eq!(pair.get::<_, i64>(0), 4);
}

#[test]
fn a_stalled_write_gives_up_its_locks_before_its_name() {
    let database = Server::shared().database();
    bank::open(&database);
    let store = database.store(PgOptions::new().ttl(Duration::from_millis(800)));
    let (paused, mut other) = (AtomicBool::new(false), Some(database.client()));
    let consumer = Consumer::builder(numbers(9), store.progress("p")).stop_at(8).retry(Retry::none());
    consumer
        .start_writing(
            |job| Ok(job.fence),
            move |tx: &mut Transaction<'_>, results| {
                bank::write(tx, results)?;
                if !paused.swap(true, Ordering::Relaxed) {
                    // It has the row of the counter, which the next life needs too. A frozen
                    // process would keep it for ever.
                    let mut other = other.take().ok_or("it pauses once")?;
                    other.execute("UPDATE counter SET jobs = jobs", &[])?;
                }
                Ok(())
            },
        )
        .unwrap()
        .join()
        .unwrap();
    bank::assert_exact(&database, 9);
}

#[test]
fn a_save_with_a_million_done_ahead_writes_at_most_16_kib() {
    // Nothing else writes to the log of this server.
    let server = Server::start(&[("autovacuum", "off"), ("bgwriter_lru_maxpages", "0")]);
    let database = server.database();
    let store = database.store(PgOptions::new().ttl(HOUR));
    let mut progress = store.progress("wide");
    progress.acquire_all().unwrap();
    let mut client = database.client();
    let mut position = || -> i64 {
        // The first change of a row after each checkpoint logs its whole page.
        let row = client.query_one("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint", &[]).unwrap();
        row.get(0)
    };
    let full = |highest: u64| Saved::new(None, 0, vec![1..=highest]);
    let scattered = |count: u64| Saved::new(None, 0, (0..count).map(|at| 2 * at + 1..=2 * at + 1).collect());
    // No compression makes these shorter.
    let random = |count: u64| {
        let mut chance = fastrand::Rng::with_seed(1);
        let done: Vec<u64> = (1..2 * count).filter(|_| chance.bool()).collect();
        let runs = done.chunk_by(|one, other| one + 1 == *other).map(|run| run[0]..=run[run.len() - 1]);
        Saved::new(None, 0, runs.collect())
    };
    let kinds: [&dyn Fn(u64) -> Saved; 3] = [&full, &random, &scattered];
    for kind in kinds {
        let (saved, more) = (kind(1_000_000), kind(1_001_024));
        progress.save_all(&saved).unwrap();
        progress.save_all(&saved).unwrap();
        let before = position();
        progress.save_all(&more).unwrap();
        let written = position() - before;
        println!("a save with a million done ahead wrote {written} bytes of the server's log");
        assert!(written <= 16 * 1024, "{written}");
    }
    drop(progress);
    let saved = store.progress("wide").acquire_all().unwrap().unwrap();
    assert_eq!(saved, scattered(1_001_024));
}

#[test]
fn a_consumer_starts_and_stops_within_a_runtime() {
    let (database, store) = database();
    let runtime = common_runtime();
    runtime.block_on(async {
        let start = |last: Index| {
            let consumer = Consumer::builder(numbers(JOBS), store.progress("p")).stop_at(last);
            consumer.start_writing(|job| Ok(job.fence), |tx: &mut Transaction<'_>, results| bank::write(tx, results))
        };
        start(99).unwrap().join().unwrap();
        let consumer = start(Index::MAX - 1).unwrap();
        until(&consumer.handle(), "the rows", |status| status.last_processed == Some(199.max(JOBS - 1)));
        consumer.stop().unwrap();
        drop(start(Index::MAX - 1).unwrap());
        assert!(matches!(store.redrive("p", 0), Err(waterline_postgres::Error::Refused(Error::NotParked { .. }))));
        store.migrate().unwrap();
        drop(store);
    });
    bank::assert_exact(&database, JOBS);
}

fn common_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[test]
fn each_progress_has_one_connection_and_the_store_two() {
    let (database, store) = database();
    let mut client = database.client();
    let mut connections = move || -> i64 {
        let count = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND application_name = 'waterline'";
        client.query_one(count, &[]).unwrap().get(0)
    };
    assert_eq!(connections(), 1, "that of the operator's calls");
    let jobs = MemoryJobs::new();
    let start = |name: &str| {
        let consumer = Consumer::builder(jobs.clone(), store.progress(name)).standby();
        let write = |tx: &mut Transaction<'_>, results: &[(Index, u64)]| bank::write(tx, results);
        consumer.start_writing(|job| Ok(job.fence), write).unwrap()
    };
    let consumers = ["a", "b", "c"].map(start);
    let standby = start("a");
    let last = jobs.push(0);
    consumers.iter().for_each(|consumer| assert!(consumer.handle().wait_for(last, LONG)));
    // Each consumer, the one that waits, and the thread that renews all their leases.
    common::eventually("all connections", || connections() == 1 + 4 + 1);
    drop(standby);
    drop(consumers);
    common::eventually("the end of them", || connections() == 1);
    drop(store);
    common::eventually("the end of the last one", || connections() == 0);
}

#[test]
fn a_write_that_hides_a_lost_connection_is_retried() {
    let (database, store) = database();
    let mut progress = store.progress("p");
    progress.acquire_all().unwrap();
    let saved = Saved::new(Some(0), 1, Vec::new());
    let mut other = database.client();
    let cut = progress.commit(&saved, &mut |tx| {
        let process: i32 = tx.query_one("SELECT pg_backend_pid()", &[])?.get(0);
        other.execute("SELECT pg_terminate_backend($1)", &[&process])?;
        // Until the server has cut it.
        loop {
            tx.batch_execute("SELECT 1").map_err(|error| error.to_string())?;
        }
    });
    assert!(matches!(cut, Err(CommitError::Retry(_))), "{cut:?}");
    let wrong = progress.commit(&saved, &mut |_| Err("it is refused".into()));
    assert!(matches!(wrong, Err(CommitError::Write(_))), "{wrong:?}");
    progress.commit(&saved, &mut |tx| bank::write(tx, &[(0, 1)])).unwrap();
    bank::assert_exact(&database, 1);
}

#[test]
fn a_connection_ended_by_the_server_is_reopened() {
    let (database, store) = database();
    let others = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'waterline'";
    database.client().query_one(others, &[]).unwrap();
    common::eventually("the end of the connection", || store.consumers().is_err());
    store.consumers().unwrap();
}

#[test]
fn a_write_that_ends_its_transaction_halts_the_consumer() {
    for text in ["COMMIT", "ROLLBACK", "COMMIT; BEGIN", "ROLLBACK AND CHAIN"] {
        let (_, store) = database();
        let consumer = consumer(&store).start_writing(
            |job| Ok(job.fence),
            move |tx: &mut Transaction<'_>, results| {
                bank::write(tx, results)?;
                Ok(tx.batch_execute(text)?)
            },
        );
        let ended = consumer.unwrap().join();
        let text = format!("{ended:?}");
        assert!(matches!(ended, Err(Error::Fenced { .. })) && text.contains("ended its transaction"), "{text}");
        assert_eq!(store.consumers().unwrap().len(), 0, "nothing is saved");
    }
}

#[test]
fn settings_of_a_write_do_not_outlive_its_transaction() {
    let (database, store) = database();
    let mut progress = store.progress("p");
    progress.acquire_all().unwrap();
    let settings = [
        "SET LOCAL synchronous_commit = off",
        "SET statement_timeout = 0; SET synchronous_commit = off; SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
        "SAVEPOINT a; SELECT 1; ROLLBACK TO a",
        "SET search_path = nowhere; SET TimeZone = 'Asia/Kathmandu'; SET IntervalStyle = iso_8601",
    ];
    for (at, setting) in (0..).zip(settings) {
        // With a row of more than a megabyte, too.
        let large = "x".repeat(3 << 20);
        progress
            .commit(&Saved::new(Some(at), at + 1, Vec::new()), &mut |tx| {
                let ours =
                    "SELECT current_setting('statement_timeout') || current_setting('synchronous_commit'), $1::text";
                assert_eq!(tx.query_one(ours, &[&large])?.get::<_, String>(0), "10son");
                tx.execute("INSERT INTO public.effects (job, fence) VALUES ($1, 1)", &[&at.cast_signed()])?;
                tx.execute("UPDATE public.counter SET jobs = jobs + 1", &[])?;
                Ok(tx.batch_execute(setting)?)
            })
            .unwrap();
    }
    drop(progress);
    bank::assert_exact(&database, 4);
    assert_eq!(store.progress("p").acquire_all().unwrap(), Some(Saved::new(Some(3), 4, Vec::new())));
}
