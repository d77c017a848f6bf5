//! The statements of a user without a store: prepared, in transactions of one connection, with a
//! write-ahead log.

use crate::cost::{Cost, Stopwatch};
use rusqlite::{CachedStatement, Connection};
use std::hint::black_box;

/// The rows of one transaction.
const BLOCK: u64 = 256;
const VALUE: [u8; 100] = [7; 100];

/// The columns of a table.
pub(crate) const BYTES: &str = "k BLOB PRIMARY KEY, v BLOB NOT NULL) WITHOUT ROWID";

/// A table of a user.
pub(crate) struct Raw {
    connection: Connection,
    _dir: tempfile::TempDir,
}

impl Raw {
    pub(crate) fn new(columns: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory for the database");
        let connection = Connection::open(dir.path().join("raw.db")).expect("the directory can be written");
        connection
            .execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;")
            .and_then(|()| connection.execute_batch(&format!("CREATE TABLE rows ({columns}")))
            .expect("the file is new");
        Self { connection, _dir: dir }
    }

    pub(crate) fn synced(columns: &str) -> Self {
        let raw = Self::new(columns);
        raw.connection.execute_batch("PRAGMA synchronous = FULL").expect("it is one of its values");
        raw
    }

    fn sql(&self, sql: &str) -> CachedStatement<'_> {
        self.connection.prepare_cached(sql).expect("the tables are there")
    }

    /// Writes the rows in transactions of this many.
    fn in_transactions(&self, rows: u64, batch: u64, write: impl Fn(&mut CachedStatement<'_>, u64)) -> Cost {
        let begun = Stopwatch::now();
        for first in (0..rows).step_by(batch as usize) {
            self.sql("BEGIN IMMEDIATE").execute([]).expect("nobody else writes");
            let mut upsert = self.sql(UPSERT);
            (first..rows.min(first + batch)).for_each(|row| write(&mut upsert, row));
            self.sql("COMMIT").execute([]).expect("the disk takes it");
        }
        begun.elapsed()
    }

    pub(crate) fn put(&self, rows: u64) -> Cost {
        self.in_transactions(rows, BLOCK, |upsert, row| {
            upsert.execute((row.to_be_bytes(), VALUE)).expect("the disk takes it");
        })
    }

    pub(crate) fn push(&self, item: &String, rows: u64, batch: u64) -> Cost {
        self.in_transactions(rows, batch, |upsert, row| {
            let item = serde_json::to_vec(item).expect("it is text");
            upsert.execute((key(1, row), item)).expect("the disk takes it");
        })
    }

    pub(crate) fn iterate(&self) -> Cost {
        let begun = Stopwatch::now();
        let mut all = self.sql("SELECT v FROM rows ORDER BY k");
        let mut all = all.query([]).expect("it is read");
        while let Some(row) = all.next().expect("it is read") {
            let item = row.get_ref(0).and_then(|item| Ok(item.as_blob()?)).expect("it is bytes");
            black_box(serde_json::from_slice::<String>(item).expect("it is text"));
        }
        begun.elapsed()
    }
}

pub(crate) const UPSERT: &str = "INSERT INTO rows (k, v) VALUES (?1, ?2) ON CONFLICT (k) DO UPDATE SET v = excluded.v";

/// The rows of a queue, in two tables: one thread that reads and writes what a queue does.
///
/// For each job it reads four rows, puts five and deletes one, in one transaction for the end of a
/// job and the claim of the next. (A queue whose jobs do nothing makes nine for ten jobs.)
pub(crate) struct RawQueue(Raw);

/// The lengths of the records: a row, and the counters and cursors.
const ROW: [u8; 48] = [7; 48];
const HEAD: [u8; 181] = [3; 181];

impl RawQueue {
    pub(crate) fn new() -> Self {
        let raw = Raw::new(BYTES);
        raw.connection.execute_batch(&format!("CREATE TABLE entries ({BYTES}")).expect("the file is new");
        Self(raw)
    }

    /// Pushes this many jobs, in transactions of a block each.
    pub(crate) fn push(&self, jobs: u64, block: u64) -> Cost {
        let payload = serde_json::to_vec(&"x".repeat(98)).expect("it is text");
        let begun = Stopwatch::now();
        for first in (0..jobs).step_by(block as usize) {
            self.transaction(|row, entry, _| {
                for job in first..jobs.min(first + block) {
                    put(row, b'p', job, &payload);
                    put(entry, 2, job, format!("~{job}").as_bytes());
                    put(row, b'j', job, &ROW);
                }
                put(row, b'h', 0, &HEAD);
            });
        }
        begun.elapsed()
    }

    pub(crate) fn run(&self, jobs: u64) -> Cost {
        let begun = Stopwatch::now();
        for job in 0..jobs {
            self.transaction(|row, entry, gone| {
                if let Some(before) = job.checked_sub(1) {
                    black_box(self.get("SELECT v FROM rows WHERE k = ?1", b'j', before));
                    gone.execute([key(b'r', before)]).expect("the disk takes it");
                    put(entry, b'f', before, &[]);
                    put(row, b'j', before, &ROW);
                }
                let id = self.get("SELECT v FROM entries WHERE k = ?1", 2, job);
                let [stored, payload] = [b'j', b'p'].map(|part| self.get("SELECT v FROM rows WHERE k = ?1", part, job));
                black_box((stored, payload));
                put(row, b'r', job, &id);
                put(row, b'j', job, &ROW);
                put(row, b'h', 0, &HEAD);
            });
        }
        begun.elapsed()
    }

    /// Runs this with the statements that put a row and an entry, and delete a row.
    fn transaction(
        &self,
        write: impl FnOnce(&mut CachedStatement<'_>, &mut CachedStatement<'_>, &mut CachedStatement<'_>),
    ) {
        let raw = &self.0;
        raw.sql("BEGIN IMMEDIATE").execute([]).expect("nobody else writes");
        let mut entry = raw.sql(&UPSERT.replace("rows", "entries"));
        write(&mut raw.sql(UPSERT), &mut entry, &mut raw.sql("DELETE FROM rows WHERE k = ?1"));
        raw.sql("COMMIT").execute([]).expect("the disk takes it");
    }

    fn get(&self, sql: &str, part: u8, number: u64) -> Vec<u8> {
        self.0.sql(sql).query_row([key(part, number)], |row| row.get(0)).expect("it is there")
    }
}

fn key(part: u8, number: u64) -> Vec<u8> {
    [&[0, 0, 0, 0, part][..], &number.to_be_bytes()].concat()
}

fn put(upsert: &mut CachedStatement<'_>, part: u8, number: u64, value: &[u8]) {
    upsert.execute((key(part, number), value)).expect("the disk takes it");
}
