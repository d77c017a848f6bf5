//! The *raw loop* beside a queue on RocksDB: one thread that makes the same reads and writes the
//! same records by hand.

use crate::cost::{Cost, Stopwatch};
use rocksdb::{ColumnFamily, DB, Options, WriteBatch, WriteOptions};

/// The lengths of the records: a row, and the counters and cursors.
const ROW: [u8; 48] = [7; 48];
const HEAD: [u8; 181] = [3; 181];

pub(crate) struct Raw {
    db: DB,
    synced: bool,
    _dir: tempfile::TempDir,
}

impl Raw {
    pub(crate) fn new(synced: bool) -> Self {
        let dir = tempfile::tempdir().expect("a directory for the database");
        let mut options = Options::default();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        let db = DB::open_cf(&options, dir.path(), ["rows", "entries"]).expect("the database opens");
        Self { db, synced, _dir: dir }
    }

    fn family(&self, name: &str) -> &ColumnFamily {
        self.db.cf_handle(name).expect("it was opened with it")
    }

    fn write(&self, batch: WriteBatch, synced: bool) {
        let mut options = WriteOptions::default();
        options.set_sync(synced);
        self.db.write_opt(batch, &options).expect("the disk takes it");
    }

    /// Pushes this many jobs, in writes of a block each.
    pub(crate) fn push(&self, jobs: u64, block: u64) -> Cost {
        let (rows, entries) = (self.family("rows"), self.family("entries"));
        let payload = serde_json::to_vec(&"x".repeat(98)).expect("it is text");
        let begun = Stopwatch::now();
        for first in (0..jobs).step_by(block as usize) {
            let mut batch = WriteBatch::default();
            for job in first..jobs.min(first + block) {
                batch.put_cf(rows, key(b'p', job), &payload);
                batch.put_cf(entries, key(2, job), format!("~{job}"));
                batch.put_cf(rows, key(b'j', job), ROW);
            }
            batch.put_cf(rows, key(b'h', 0), HEAD);
            self.write(batch, false);
        }
        begun.elapsed()
    }

    /// Runs this many jobs, and drops them at their ends if asked to.
    pub(crate) fn run(&self, jobs: u64, drop: bool) -> Cost {
        let (rows, entries) = (self.family("rows"), self.family("entries"));
        let get = |family, key: Vec<u8>| self.db.get_cf(family, key).expect("it is read").expect("it is there");
        let begun = Stopwatch::now();
        for job in 0..jobs {
            let mut batch = WriteBatch::default();
            if let Some(before) = job.checked_sub(1) {
                batch.delete_cf(rows, key(b'r', before));
                if drop {
                    batch.delete_cf(rows, key(b'j', before));
                    batch.delete_cf(rows, key(b'p', before));
                } else {
                    batch.put_cf(entries, key(b'f', before), []);
                    batch.put_cf(rows, key(b'j', before), ROW);
                }
            }
            let id = get(entries, key(2, job));
            let (row, payload) = (get(rows, key(b'j', job)), get(rows, key(b'p', job)));
            std::hint::black_box((row, payload));
            batch.put_cf(rows, key(b'r', job), id);
            batch.put_cf(rows, key(b'j', job), ROW);
            batch.put_cf(rows, key(b'h', 0), HEAD);
            self.write(batch, self.synced);
        }
        begun.elapsed()
    }
}

fn key(part: u8, number: u64) -> Vec<u8> {
    [&[0, 0, 0, 0, part][..], &number.to_be_bytes()].concat()
}
