//! Faults of the server: it is restarted, its disk is full, an older copy is restored, its history
//! changes, its tables are gone.

use crate::bank;
use crate::server::{Database, End, Server};
use common::{LONG, until};
use postgres::Transaction;
use std::time::Duration;
use waterline::{Blocked, Consumer, Error as Ended, Job, MemoryJobs};
use waterline_postgres::{Error, PgOptions, PgStore};

const TTL: Duration = Duration::from_secs(2);

fn database(server: &Server) -> (Database, PgStore) {
    let database = server.database();
    bank::open(&database);
    let store = database.store(PgOptions::new().ttl(TTL));
    (database, store)
}

/// Starts a consumer that writes a row for each job, with these bytes beside it.
fn start(store: &PgStore, jobs: &MemoryJobs<usize>) -> Result<Consumer, Ended> {
    let consumer = Consumer::builder(jobs.clone(), store.progress("p")).max_processing(4).standby();
    consumer.max_unwritten(8).start_writing(
        |job: Job<usize>| Ok((job.fence, job.payload)),
        |tx: &mut Transaction<'_>, results| {
            let rows: Vec<_> = results.iter().map(|(index, (fence, _))| (*index, *fence)).collect();
            for (_, (_, bytes)) in results.iter().filter(|(_, (_, bytes))| *bytes > 0) {
                // Random letters: the server cannot compress them.
                let letters =
                    "INSERT INTO ballast SELECT string_agg(md5(random()::text), '') FROM generate_series(1, $1)";
                tx.execute(letters, &[&i32::try_from(bytes / 32)?])?;
            }
            bank::write(tx, &rows)
        },
    )
}

fn push(jobs: &MemoryJobs<usize>, count: usize, bytes: usize) -> u64 {
    (0..count).map(|_| jobs.push(bytes)).max().unwrap()
}

#[test]
fn restarts_and_crashes_leave_one_row_per_job() {
    let server = Server::start(&[]);
    let (database, store) = database(&server);
    let jobs = MemoryJobs::new();
    let consumer = start(&store, &jobs).unwrap();
    let handle = consumer.handle();
    let mut last = push(&jobs, 500, 0);
    for end in [End::Immediate, End::Fast, End::Immediate] {
        until(&handle, "some jobs", |status| status.last_processed > last.checked_sub(400));
        server.stop(end);
        until(&handle, "the loss", |status| matches!(status.blocked, Blocked::Progress { .. } | Blocked::Held { .. }));
        server.start_again();
        last = push(&jobs, 500, 0);
    }
    assert!(handle.wait_for(last, LONG), "{}", handle.status());
    consumer.stop().unwrap();
    bank::assert_exact(&database, last + 1);
}

#[test]
fn a_full_disk_fails_no_job_and_is_waited_out() {
    let server = Server::start(&[]);
    let (database, store) = database(&server);
    database.client().batch_execute("CREATE TABLE ballast (letters text)").unwrap();
    server.stop(End::Fast);
    // No file may be larger than 8 MiB; the ballast of all jobs is more than three times as large.
    server.bound_files(Some(16 * 1024));
    server.start_again();
    let jobs = MemoryJobs::new();
    let consumer = start(&store, &jobs).unwrap();
    let handle = consumer.handle();
    let last = push(&jobs, 1_000, 32 * 1024);
    let status = until(
        &handle,
        "the full disk",
        |status| matches!(&status.blocked, Blocked::Progress { error } if error.contains("could not extend file")),
    );
    println!("{}", status.blocked);
    assert!(status.last_processed < Some(last) && status.failed == 0, "{status}");
    server.stop(End::Fast);
    server.bound_files(None);
    server.start_again();
    assert!(handle.wait_for(last, LONG), "{}", handle.status());
    consumer.stop().unwrap();
    bank::assert_exact(&database, last + 1);
}

#[test]
fn an_older_copy_halts_the_consumer_and_not_the_next() {
    let server = Server::start(&[]);
    let (database, store) = database(&server);
    let jobs = MemoryJobs::new();
    let consumer = start(&store, &jobs).unwrap();
    let handle = consumer.handle();
    assert!(handle.wait_for(push(&jobs, 100, 0), LONG));
    server.stop(End::Fast);
    let older = server.copy();
    server.start_again();
    assert!(handle.wait_for(push(&jobs, 100, 0), LONG));
    server.stop(End::Fast);
    server.restore(&older);
    server.start_again();
    let last = push(&jobs, 100, 0);
    match consumer.join() {
        Err(Ended::Fenced { name, holder }) => assert!(name == "p" && holder.contains("saves"), "{holder}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(bank::count(&database), 100);
    // Its lease is in the copy too.
    let consumer = start(&store, &jobs).unwrap();
    assert!(consumer.handle().wait_for(last, LONG), "{}", consumer.handle().status());
    consumer.stop().unwrap();
    bank::assert_exact(&database, last + 1);
}

#[test]
fn another_timeline_halts_the_consumer_and_not_the_next() {
    let server = Server::start(&[("restore_command", "false")]);
    let (database, store) = database(&server);
    let jobs = MemoryJobs::new();
    let consumer = start(&store, &jobs).unwrap();
    assert!(consumer.handle().wait_for(push(&jobs, 100, 0), LONG));
    server.stop(End::Fast);
    // It recovers as from a backup, and is then promoted.
    server.write_file("recovery.signal", "");
    server.start_again();
    // The life has nothing to save: the renewal finds out.
    match consumer.join() {
        Err(Ended::Fenced { holder, .. }) => assert!(holder.contains("another history (timeline 2"), "{holder}"),
        other => panic!("{other:?}"),
    }
    let consumer = start(&store, &jobs).unwrap();
    let last = push(&jobs, 100, 0);
    assert!(consumer.handle().wait_for(last, LONG), "{}", consumer.handle().status());
    consumer.stop().unwrap();
    bank::assert_exact(&database, last + 1);
}

#[test]
fn missing_changed_or_newer_tables_are_typed_errors() {
    type Is = fn(&Error) -> bool;
    let schema: Is = |error| matches!(error, Error::Schema { .. });
    let newer: Is = |error| matches!(error, Error::NewerSchema { found: 99, .. });
    let changes: [(&str, bool, Is); 4] = [
        ("DROP TABLE waterline.progress", true, schema),
        ("ALTER TABLE waterline.progress RENAME COLUMN saves TO savings", true, schema),
        ("DROP SCHEMA waterline CASCADE", true, schema),
        // A program of another version may run on while a newer one migrates.
        ("INSERT INTO waterline.version (version) VALUES (99)", false, newer),
    ];
    for (change, halts, is_typed) in changes {
        let (database, store) = database(Server::shared());
        let jobs = MemoryJobs::new();
        let consumer = start(&store, &jobs).unwrap();
        assert!(consumer.handle().wait_for(push(&jobs, 9, 0), LONG));
        database.client().batch_execute(change).unwrap();
        let last = push(&jobs, 9, 0);
        if halts {
            match consumer.join() {
                Err(Ended::Fenced { holder, .. }) => assert!(holder.contains("do not fit"), "{change}: {holder}"),
                other => panic!("{change}: {other:?}"),
            }
        } else {
            assert!(consumer.handle().wait_for(last, LONG));
            consumer.stop().unwrap();
        }
        match Consumer::builder(jobs.clone(), store.progress("p")).start(|_| Ok(())) {
            Err(Ended::Progress { source }) => {
                let typed = source.downcast_ref::<Error>();
                assert!(typed.is_some_and(is_typed), "{change}: {source:?}");
            }
            other => panic!("{change}: {other:?}"),
        }
    }
}

#[test]
fn a_deleted_row_halts_the_consumer() {
    let (database, store) = database(Server::shared());
    let jobs = MemoryJobs::new();
    let consumer = start(&store, &jobs).unwrap();
    assert!(consumer.handle().wait_for(push(&jobs, 9, 0), LONG));
    database.client().batch_execute("DELETE FROM waterline.progress").unwrap();
    push(&jobs, 9, 0);
    assert!(matches!(consumer.join(), Err(Ended::Fenced { holder, .. }) if holder.contains("its row is gone")));
    bank::assert_exact(&database, 9);
}
