//! Results written into SQLite in one transaction with the progress, beside the same statements by
//! hand. Each job has a row of 100 bytes and adds to one of a hundred counters.
//!
//! By hand means one thread with the rows at hand: no source, no threads, no progress. It makes a
//! transaction of 1,024 jobs, or one for each job, which is the loop that most people begin with.

use crate::adapter::{SqliteProgress, TABLES};
use crate::cost::{Cost, Stopwatch};
use crate::table::{Row, Table};
use rusqlite::{Connection, Transaction};
use std::path::Path;
use waterline::{BoxError, Consumer, Index, MemoryJobs};

const JOBS: u64 = 200_000;
/// Few enough transactions to make in a moment.
const ALONE: u64 = 20_000;
const COUNTERS: u64 = 100;
const ROW: [u8; 100] = [7; 100];

pub(crate) fn rows(table: &Table) {
    let row = Row { name: "sqlite: start_writing", floor: "1,024 a commit", times: JOBS, most: 1.67 };
    table.row(row, || by_hand(JOBS, 1_024), || written(JOBS));
    let row = Row { name: "sqlite: start_writing", floor: "a commit a job", times: ALONE, most: 0.2 };
    table.row(row, || by_hand(ALONE, 1), || written(ALONE));
}

fn open(directory: &Path) -> Connection {
    let connection = Connection::open(directory.join("rows.db")).expect("the directory can be written");
    connection
        .execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;")
        .and_then(|()| connection.execute_batch(TABLES))
        .and_then(|()| connection.execute_batch("CREATE TABLE rows (id INTEGER PRIMARY KEY, value BLOB)"))
        .and_then(|()| connection.execute_batch("CREATE TABLE counters (id INTEGER PRIMARY KEY, value INTEGER)"))
        .expect("the file is new");
    connection
}

fn write(transaction: &mut Transaction<'_>, jobs: impl Iterator<Item = Index>) -> Result<(), BoxError> {
    let mut insert = transaction.prepare_cached("INSERT INTO rows VALUES (?1, ?2)")?;
    let add = "INSERT INTO counters VALUES (?1, 1) ON CONFLICT (id) DO UPDATE SET value = value + 1";
    let mut add = transaction.prepare_cached(add)?;
    for index in jobs {
        insert.execute((index.cast_signed(), ROW))?;
        add.execute([(index % COUNTERS).cast_signed()])?;
    }
    Ok(())
}

fn by_hand(jobs: u64, batch: u64) -> Cost {
    let dir = tempfile::tempdir().expect("a directory for the database");
    let mut connection = open(dir.path());
    let begun = Stopwatch::now();
    for first in (0..jobs).step_by(batch as usize) {
        let mut transaction = connection.transaction().expect("nobody else writes");
        write(&mut transaction, first..jobs.min(first + batch)).expect("the disk takes it");
        transaction.commit().expect("the disk takes it");
    }
    begun.elapsed()
}

fn written(jobs: u64) -> Cost {
    let dir = tempfile::tempdir().expect("a directory for the database");
    let source: MemoryJobs<u64> = (0..jobs).collect();
    let progress = SqliteProgress::new(open(dir.path()), "rows");
    let begun = Stopwatch::now();
    Consumer::builder(source, progress)
        .max_processing(2)
        .stop_at(jobs - 1)
        .start_writing(|_| Ok(()), |transaction, jobs| write(transaction, jobs.iter().map(|(index, ())| *index)))
        .and_then(Consumer::join)
        .expect("every job is written");
    begun.elapsed()
}
