//! The example `sqlite` under kills and stops, and its adapter: a progress in the user's own
//! transactions on a real database.

#[path = "../../examples/sqlite/adapter.rs"]
mod adapter;

use adapter::{RowsById, SqliteProgress, TABLES};
use common::*;
use rusqlite::Connection;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;
use waterline::{Blocked, BoxError, Builder, Consumer, Error, Index, OnExhausted, Retry, State};

#[test]
fn kills_and_stops_keep_balances_exact() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bank.db");
    let output = example(&file, &["--transfers", "20000"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:#?}");
    assert!(text.ends_with("19980 transfers were made once each, 20 are parked\n"), "{text}");
    assert!(text.lines().filter(|line| line.starts_with("life ") && line.contains("SIGKILL")).count() > 0, "{text}");

    let bank = Connection::open(&file).unwrap();
    // Two processes run at a time. One that took the name from a healthy one would be a life more.
    let lives = text.lines().filter(|line| line.starts_with("life ")).count();
    assert_eq!(count(&bank, "SELECT fence FROM progress WHERE name = 'bank'"), lives as i64, "{text}");
    bank.execute("UPDATE accounts SET balance = balance + 1 WHERE id = 7", []).unwrap();
    drop(bank);
    let output = example(&file, &["--verify"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("account 7 has"), "{output:?}");
}

#[test]
fn a_lease_refuses_others_until_released_or_expired() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("numbers.db");
    let database = numbers(&file, 8);
    let leased = |holder: &str| SqliteProgress::new(open(&file), "copies").leased(open(&file), holder, HOUR);
    let start = |progress| copier_of(&file, progress).start_writing(|job| Ok(job.payload), copy);
    let holder = start(leased("a")).unwrap();
    let refused = start(leased("b")).map(drop);
    let is_refusal =
        matches!(&refused, Err(Error::Leased { holder, expires_in, .. }) if holder == "a" && *expires_in <= HOUR);
    assert!(is_refusal, "{refused:?}");
    holder.stop().unwrap();
    start(leased("b")).unwrap().stop().unwrap();
    // A dead process has released nothing.
    for (expires_at, is_refused) in [(i64::MAX, true), (1, false)] {
        database.execute("UPDATE progress SET expires_at = ?1, holder = 'dead'", [expires_at]).unwrap();
        let started = start(leased("c"));
        assert_eq!(matches!(&started, Err(Error::Leased { holder, .. }) if holder == "dead"), is_refused);
        drop(started);
    }

    let brief = SqliteProgress::new(open(&file), "copies").leased(open(&file), "e", Duration::from_millis(200));
    let held = start(brief).unwrap();
    database.execute("UPDATE progress SET fence = fence + 1", []).unwrap();
    let ended = ends("the renewal of a lease that is lost", move || held.join());
    assert!(matches!(&ended, Err(Error::Fenced { holder, .. }) if holder.contains("another life")), "{ended:?}");
}

/// Makes a database with numbers as a stream, where every fourth id is a gap, and an empty copy.
fn numbers(file: &Path, count: i64) -> Connection {
    let connection = open(file);
    connection.execute_batch(TABLES).unwrap();
    connection
        .execute_batch(
            "CREATE TABLE numbers (id INTEGER PRIMARY KEY); CREATE TABLE copies (id INTEGER PRIMARY KEY, value BLOB);",
        )
        .unwrap();
    let insert = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?1)
        INSERT INTO numbers SELECT i + i / 3 FROM n";
    connection.execute(insert, [count]).unwrap();
    connection
}

fn open(file: &Path) -> Connection {
    let connection = Connection::open(file).unwrap();
    connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;").unwrap();
    connection
}

/// Returns the last id of this many numbers.
fn last(count: i64) -> Index {
    ((count - 1) + (count - 1) / 3).cast_unsigned()
}

fn copier(file: &Path, connection: Connection) -> Builder<RowsById<i64>, SqliteProgress> {
    copier_of(file, SqliteProgress::new(connection, "copier"))
}

fn copier_of(file: &Path, progress: SqliteProgress) -> Builder<RowsById<i64>, SqliteProgress> {
    let source = RowsById::new(open(file), "numbers", |row| row.get("id"));
    Consumer::builder(source, progress).max_processing(2)
}

fn copy(transaction: &mut rusqlite::Transaction<'_>, numbers: &[(Index, i64)]) -> Result<(), BoxError> {
    let mut insert = transaction.prepare_cached("INSERT INTO copies VALUES (?1, zeroblob(500))")?;
    for (_, number) in numbers {
        insert.execute([number])?;
    }
    Ok(())
}

fn count(connection: &Connection, sql: &str) -> i64 {
    connection.query_one(sql, [], |row| row.get(0)).unwrap()
}

#[test]
fn promise_09_a_full_disk_stops_and_the_rest_is_written_once() {
    const COUNT: i64 = 3_000;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("numbers.db");
    let database = numbers(&file, COUNT);
    let full = open(&file);
    let pages = count(&full, "PRAGMA page_count");
    full.pragma_update(None, "max_page_count", pages + 150).unwrap();
    let consumer = copier(&file, full).stop_at(last(COUNT)).start_writing(|job| Ok(job.payload), copy).unwrap();
    // A row that does not fit fails its job. A save of the progress is retried.
    until(&consumer.handle(), "the disk to be full", |status| {
        // A slow transaction is named in the same way.
        let is_full = matches!(&status.blocked, Blocked::Progress { error } if error.contains("full"));
        status.state == State::Halted || is_full
    });
    let ended = consumer.stop();
    assert!(ended.is_err_and(|error| error.report().contains("full")));
    let before = count(&database, "SELECT count(*) FROM copies");
    assert!((1..COUNT).contains(&before), "{before} rows fit");

    let consumer = copier(&file, open(&file)).stop_at(last(COUNT)).start_writing(|job| Ok(job.payload), copy);
    consumer.unwrap().join().unwrap();
    // The primary key refuses a row that is written twice.
    assert_eq!(count(&database, "SELECT count(*) FROM copies"), COUNT);
    assert_eq!(count(&database, "SELECT count(*) FROM numbers JOIN copies USING (id)"), COUNT);
}

#[test]
fn promise_07_a_takeover_writes_no_row_twice() {
    const COUNT: i64 = 5_000;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("numbers.db");
    let database = numbers(&file, COUNT);
    let start = || copier(&file, open(&file)).start_writing(|job| Ok(job.payload), copy).unwrap();
    let first = start();
    assert!(first.handle().wait_for(10, LONG), "{:#?}", first.handle().status());
    let second = start();
    let handle = second.handle();
    assert!(handle.wait_for(last(COUNT), LONG), "{:#?}", handle.status());
    // The first one notices at its next save. If it has nothing left to save, it just stops.
    let ended = first.stop();
    assert!(matches!(ended, Ok(()) | Err(Error::Fenced { .. })), "{ended:?}");
    second.stop().unwrap();
    assert_eq!(count(&database, "SELECT count(*) FROM copies"), COUNT);
}

#[test]
fn deleted_rows_are_passed_and_parked_jobs_kept() {
    const COUNT: i64 = 30;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("numbers.db");
    let database = numbers(&file, COUNT);
    // Number 4 fails until it is deleted, and number 8 fails for good.
    let run = |job: waterline::Job<i64>| match job.payload {
        4 => Err("a poison row".into()),
        8 => Err(waterline::Failure::permanent("no such account").into()),
        number => Ok(number),
    };
    let start = |retry: Retry| {
        let builder = copier(&file, open(&file)).retry(retry).on_exhausted(OnExhausted::Park { budget: 5 });
        builder.stop_at(last(COUNT)).start_writing(run, copy).unwrap()
    };
    let consumer = start(Retry::fixed(Duration::from_millis(1)));
    let handle = consumer.handle();
    assert!(handle.wait_for(2, LONG), "{:#?}", handle.status());
    until(&handle, "the parked job", |status| status.parked == 1);
    database.execute("DELETE FROM numbers WHERE id = 4", []).unwrap();
    consumer.join().unwrap();
    assert_eq!(handle.status().last_processed, Some(last(COUNT)));
    assert_eq!(count(&database, "SELECT count(*) FROM copies"), COUNT - 2);

    // The next life knows the parked job, and redrives it.
    let builder = copier(&file, open(&file)).on_exhausted(OnExhausted::Park { budget: 5 });
    let consumer = builder.start_writing(|job| Ok(job.payload), copy).unwrap();
    let handle = consumer.handle();
    assert_eq!((handle.status().parked, handle.redrive_all().unwrap()), (1, 1));
    until(&handle, "the end of the redrive", |status| status.parked == 0 && status.unsaved == 0);
    consumer.stop().unwrap();
    assert_eq!(count(&database, "SELECT count(*) FROM copies WHERE id = 8"), 1);
}

fn example(file: &Path, more: &[&str]) -> Output {
    Command::new(crate::example("sqlite")).arg(file).args(more).output().unwrap()
}
