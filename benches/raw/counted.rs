//! Jobs that put a row of 100 bytes and add to one of a hundred counters, in one write with the
//! progress.
//!
//! They do so as effects of transactional jobs, and by hand, many jobs in a write. By hand the
//! counters are in memory, so a write has the last value of each.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use waterline::{Consumer, MemoryJobs, Store};

const COUNTERS: u64 = 100;
const ROW: [u8; 100] = [7; 100];

/// Runs this many jobs through a consumer.
pub(crate) fn by_jobs(store: &Store, jobs: u64, in_flight: usize, run: impl Fn(u64) + Send + Sync + 'static) {
    let [rows, counters] = ["rows", "counters"].map(|name| store.table(name).expect("a good name"));
    Consumer::builder((0..jobs).collect::<MemoryJobs<u64>>(), store.progress("effects"))
        .max_processing(in_flight)
        .stop_at(jobs - 1)
        .start_transactional(move |job, effects| {
            run(job.payload);
            effects.put(&rows, job.payload.to_be_bytes(), ROW)?;
            Ok(effects.add(&counters, (job.payload % COUNTERS).to_be_bytes(), 1)?)
        })
        .and_then(Consumer::join)
        .expect("the disk takes it");
}

/// Runs this many jobs in batches, with one write for each.
pub(crate) fn by_hand(database: &mut impl Database, jobs: u64, batch: u64, run: impl Fn(Range<u64>)) {
    let mut counters = BTreeMap::<u64, i64>::new();
    for first in (0..jobs).step_by(batch as usize) {
        let batch = first..jobs.min(first + batch);
        run(batch.clone());
        let mut changed = BTreeMap::new();
        for index in batch.clone() {
            let counter = counters.entry(index % COUNTERS).or_default();
            *counter += 1;
            changed.insert(index % COUNTERS, *counter);
        }
        database.write(batch, &changed);
    }
}

/// The database of a user.
pub(crate) trait Database {
    /// Creates a database in this directory.
    fn create(directory: &Path) -> Self;

    /// Writes the rows of these jobs, the counters and the progress at once.
    fn write(&mut self, jobs: Range<u64>, counters: &BTreeMap<u64, i64>);
}

#[cfg(feature = "rocksdb")]
impl Database for rocksdb::DB {
    fn create(directory: &Path) -> Self {
        let mut options = rocksdb::Options::default();
        options.create_if_missing(true);
        options.set_compression_type(rocksdb::DBCompressionType::Lz4);
        Self::open(&options, directory.join("raw")).expect("the directory can be written")
    }

    fn write(&mut self, jobs: Range<u64>, counters: &BTreeMap<u64, i64>) {
        let mut batch = rocksdb::WriteBatch::default();
        let key = |part: u8, number: u64| [&[part][..], &number.to_be_bytes()].concat();
        batch.put(b"progress", jobs.end.to_be_bytes());
        jobs.for_each(|index| batch.put(key(b'r', index), ROW));
        counters.iter().for_each(|(counter, value)| batch.put(key(b'c', *counter), value.to_be_bytes()));
        Self::write(self, batch).expect("the disk takes it");
    }
}

#[cfg(feature = "sqlite")]
impl Database for rusqlite::Connection {
    fn create(directory: &Path) -> Self {
        let connection = Self::open(directory.join("raw.db")).expect("the directory can be written");
        let tables = "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;
            CREATE TABLE rows (id INTEGER PRIMARY KEY, value BLOB NOT NULL);
            CREATE TABLE counters (id INTEGER PRIMARY KEY, value INTEGER NOT NULL);
            CREATE TABLE progress (id INTEGER PRIMARY KEY, value INTEGER NOT NULL);";
        connection.execute_batch(tables).expect("the file is new");
        connection
    }

    fn write(&mut self, mut jobs: Range<u64>, counters: &BTreeMap<u64, i64>) {
        let transaction = self.transaction().expect("nobody else writes");
        {
            let prepare = |sql: &str| transaction.prepare_cached(sql).expect("the tables are there");
            let mut row = prepare("INSERT INTO rows VALUES (?1, ?2)");
            let mut counter = prepare("INSERT OR REPLACE INTO counters VALUES (?1, ?2)");
            let mut progress = prepare("INSERT OR REPLACE INTO progress VALUES (0, ?1)");
            let written = progress.execute([jobs.end.cast_signed()]).and_then(|_| {
                jobs.try_for_each(|index| row.execute((index.cast_signed(), ROW)).map(drop))?;
                counters.iter().try_for_each(|(id, value)| counter.execute((id.cast_signed(), value)).map(drop))
            });
            written.expect("the disk takes it");
        }
        transaction.commit().expect("the disk takes it");
    }
}
