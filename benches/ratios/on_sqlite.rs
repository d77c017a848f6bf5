//! A store on SQLite, beside the statements of a user who has no store: prepared ones, in
//! transactions of a connection of its own, with a write-ahead log.
//!
//! * **progress**: beside progress in memory.
//! * **put per job**: a job that puts 100 bytes as an effect, beside the same upserts in the same
//!   order, 256 in a transaction, on one thread, without any progress.
//! * **execute**: the same rows, by a statement of each job in a table of the user's own.
//! * **log**: beside the same items under the same keys, as JSON.
//! * **queue**: beside a loop of the same rows, read and written by one thread. See [`RawQueue`].
//! * **synced push**: beside a transaction that is flushed, for each item.

use crate::sources::Numbers;
use crate::{JOBS, Row, Table, consume, consumed, median};
use rusqlite::{CachedStatement, Connection};
use std::cell::Cell;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};
use waterline::queue::{DrainLimits, NewJob, Outcome, Queue, QueueOptions, Retention, Runner};
use waterline::{Consumer, Durability, Engine, JobLog, Jobs as _, MemoryProgress, Store};

/// The rows of a round: a whole number of blocks.
const ROWS: u64 = 800 * BLOCK;
const BLOCK: u64 = 256;
/// The jobs of a queue in a round.
const QUEUED: u64 = 100 * BLOCK;
/// A number of items that can be flushed one by one in a moment.
const SYNCED: u64 = 512;
const ITEMS: u64 = 1_000_000;
/// The blocks that are not trimmed.
const KEPT: u64 = 20;
const VALUE: [u8; 100] = [7; 100];

pub(crate) fn rows(table: &Table) {
    let (_dir, store) = opened(Durability::Buffered);
    let round = Cell::new(0);
    let row = Row { name: "SQLite: progress, Buffered", floor: "memory", times: JOBS, most: 1.2 };
    table.row(
        row,
        || consume(MemoryProgress::new(), 2),
        || {
            round.set(round.get() + 1);
            consume(store.progress(format!("round {}", round.get())), 2)
        },
    );
    let row = Row { name: "SQLite: put per job, max_processing 64", floor: "256 a commit", times: ROWS, most: 1.3 };
    table.row(row, || Raw::new(BYTES).put(ROWS), || put_by_jobs(ROWS));
    let row =
        Row { name: "SQLite: execute, one upsert a job, 64 in flight", floor: "256 a commit", times: ROWS, most: 1.5 };
    table.row(row, || Raw::new(BYTES).put(ROWS), || executed_by_jobs(ROWS));
    let item = "x".repeat(98);
    let block = vec![item.clone(); BLOCK as usize];
    let row = Row { name: "SQLite: log: push_all of 256", floor: "256 a commit", times: ROWS, most: 1.3 };
    table.row(row, || Raw::new(BYTES).push(&item, ROWS, BLOCK), || pushed(&block, ROWS, Durability::Buffered));
    consuming(table, &block);
    let row = Row { name: "SQLite: log: synced push", floor: "a commit an item", times: SYNCED, most: 1.2 };
    let one = std::slice::from_ref(&item);
    table.row(row, || Raw::synced(BYTES).push(&item, SYNCED, 1), || pushed(one, SYNCED, Durability::Synced));
    let row = Row { name: "SQLite: queue: pushed, 256 in a write", floor: "raw rows", times: QUEUED, most: 2.0 };
    table.row(row, || RawQueue::new().push(QUEUED), || Ours::new().push(QUEUED));
    let row = Row { name: "SQLite: queue: run, eight at a time", floor: "raw loop", times: QUEUED, most: 2.0 };
    let raw = || {
        let raw = RawQueue::new();
        raw.push(QUEUED);
        raw.run(QUEUED)
    };
    let ours = || {
        let ours = Ours::new();
        ours.push(QUEUED);
        ours.run(QUEUED)
    };
    table.row(row, raw, ours);
}

/// Opens the store in this directory.
pub(crate) fn open(directory: &Path, durability: Durability) -> Store {
    let options = Store::options().engine(Engine::Sqlite).durability(durability);
    options.open(directory).expect("the database opens")
}

fn opened(durability: Durability) -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().expect("a directory for the database");
    let store = open(dir.path(), durability);
    (dir, store)
}

/// The columns of a table.
const BYTES: &str = "k BLOB PRIMARY KEY, v BLOB NOT NULL) WITHOUT ROWID";

/// A table of a user.
struct Raw {
    connection: Connection,
    _dir: tempfile::TempDir,
}

impl Raw {
    fn new(columns: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory for the database");
        let connection = Connection::open(dir.path().join("raw.db")).expect("the directory can be written");
        connection
            .execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;")
            .and_then(|()| connection.execute_batch(&format!("CREATE TABLE rows ({columns}")))
            .expect("the file is new");
        Self { connection, _dir: dir }
    }

    fn synced(columns: &str) -> Self {
        let raw = Self::new(columns);
        raw.connection.execute_batch("PRAGMA synchronous = FULL").expect("it is one of its values");
        raw
    }

    fn sql(&self, sql: &str) -> CachedStatement<'_> {
        self.connection.prepare_cached(sql).expect("the tables are there")
    }

    /// Writes the rows in transactions of so many.
    fn in_transactions(&self, rows: u64, batch: u64, write: impl Fn(&mut CachedStatement<'_>, u64)) -> Duration {
        let begun = Instant::now();
        for first in (0..rows).step_by(batch as usize) {
            self.sql("BEGIN IMMEDIATE").execute([]).expect("nobody else writes");
            let mut upsert = self.sql(UPSERT);
            (first..rows.min(first + batch)).for_each(|row| write(&mut upsert, row));
            self.sql("COMMIT").execute([]).expect("the disk takes it");
        }
        begun.elapsed()
    }

    fn put(&self, rows: u64) -> Duration {
        self.in_transactions(rows, BLOCK, |upsert, row| {
            upsert.execute((row.to_be_bytes(), VALUE)).expect("the disk takes it");
        })
    }

    fn push(&self, item: &String, rows: u64, batch: u64) -> Duration {
        self.in_transactions(rows, batch, |upsert, row| {
            let item = serde_json::to_vec(item).expect("it is text");
            upsert.execute((key(1, row), item)).expect("the disk takes it");
        })
    }

    fn iterate(&self) -> Duration {
        let begun = Instant::now();
        let mut all = self.sql("SELECT v FROM rows ORDER BY k");
        let mut all = all.query([]).expect("it is read");
        while let Some(row) = all.next().expect("it is read") {
            let item = row.get_ref(0).and_then(|item| Ok(item.as_blob()?)).expect("it is bytes");
            black_box(serde_json::from_slice::<String>(item).expect("it is text"));
        }
        begun.elapsed()
    }
}

const UPSERT: &str = "INSERT INTO rows (k, v) VALUES (?1, ?2) ON CONFLICT (k) DO UPDATE SET v = excluded.v";

fn put_by_jobs(jobs: u64) -> Duration {
    let (_dir, store) = opened(Durability::Buffered);
    let rows = store.table("r").expect("a name");
    let begun = Instant::now();
    let consumer = Consumer::builder(Numbers(jobs), store.progress("effects"))
        .max_processing(64)
        .max_search_ahead(100_000)
        .stop_at(jobs - 1)
        .start_transactional(move |job, effects| Ok(effects.put(&rows, job.payload.to_be_bytes(), VALUE)?));
    consumer.and_then(Consumer::join).expect("the disk takes it");
    begun.elapsed()
}

/// The same rows in a table of the user's own, by a statement of each job.
fn executed_by_jobs(jobs: u64) -> Duration {
    let dir = tempfile::tempdir().expect("a directory for the database");
    let store = Store::attach_sqlite(dir.path().join("app.db")).expect("it opens");
    let create = format!("CREATE TABLE rows ({BYTES}");
    store.write(|effects| effects.execute(create, ())).expect("the file is new");
    let begun = Instant::now();
    let consumer = Consumer::builder(Numbers(jobs), store.progress("statements"))
        .max_processing(64)
        .max_search_ahead(100_000)
        .stop_at(jobs - 1)
        .start_transactional(|job, effects| Ok(effects.execute(UPSERT, (job.payload.to_be_bytes(), VALUE))?));
    consumer.and_then(Consumer::join).expect("the disk takes it");
    begun.elapsed()
}

/// Pushes so many items, in blocks.
fn pushed(block: &[String], items: u64, durability: Durability) -> Duration {
    let (_dir, store) = opened(durability);
    let log = store.log::<String>("l").expect("it opens");
    let begun = Instant::now();
    push(&log, block, items);
    begun.elapsed()
}

fn push(log: &JobLog<String>, block: &[String], items: u64) {
    for first in (0..items).step_by(block.len()) {
        log.push_all(&block[..block.len().min((items - first) as usize)]).expect("the disk takes it");
    }
}

fn consuming(table: &Table, block: &[String]) {
    let name = "SQLite: log: a million items, consumed";
    if !table.wants(name) {
        return;
    }
    let raw = Raw::new(BYTES);
    raw.push(&block[0], ITEMS, BLOCK);
    let (_dir, store) = opened(Durability::Buffered);
    let log = store.log::<String>("l").expect("it opens");
    push(&log, block, ITEMS);
    let round = Cell::new(0);
    let ours = || {
        round.set(round.get() + 1);
        consumed(&store, &log, ITEMS, round.get())
    };
    table.row(Row { name, floor: "iterate, decode", times: ITEMS, most: 2.0 }, || raw.iterate(), ours);
}

/// A queue in a database of its own.
struct Ours {
    queue: Queue,
    _dir: tempfile::TempDir,
}

impl Ours {
    fn new() -> Self {
        let (dir, store) = opened(Durability::Buffered);
        let options = QueueOptions::default().retention(Retention::For(Duration::from_secs(60)));
        Self { queue: Queue::open(&store, "q", options).expect("it opens"), _dir: dir }
    }

    fn push(&self, jobs: u64) -> Duration {
        let payload = "x".repeat(98);
        let begun = Instant::now();
        for _ in 0..jobs / BLOCK {
            let block = (0..BLOCK).map(|_| NewJob::new("k", &payload).expect("it is text"));
            self.queue.push_all(block).expect("the disk takes it");
        }
        begun.elapsed()
    }

    fn run(&self, jobs: u64) -> Duration {
        let runner = Runner::builder(&self.queue).max_processing(8);
        let begun = Instant::now();
        let summary = runner.on("k", |_, _: String| Ok(Outcome::Done)).drain(DrainLimits::default());
        let elapsed = begun.elapsed();
        assert_eq!(summary.expect("the disk takes it").finished, jobs);
        elapsed
    }
}

/// The rows of a queue, in two tables: one thread that reads and writes what a queue reads and
/// writes for a job. For each job it reads four rows, puts five, and deletes one, in a transaction
/// for the end of a job and the claim of the next one: a queue whose jobs do nothing makes nine for
/// ten jobs.
struct RawQueue(Raw);

/// The lengths of the records: a row, and the counters and cursors.
const ROW: [u8; 48] = [7; 48];
const HEAD: [u8; 181] = [3; 181];

impl RawQueue {
    fn new() -> Self {
        let raw = Raw::new(BYTES);
        raw.connection.execute_batch(&format!("CREATE TABLE entries ({BYTES}")).expect("the file is new");
        Self(raw)
    }

    fn push(&self, jobs: u64) -> Duration {
        let payload = serde_json::to_vec(&"x".repeat(98)).expect("it is text");
        let begun = Instant::now();
        for block in 0..jobs / BLOCK {
            self.transaction(|row, entry, _| {
                for job in block * BLOCK..(block + 1) * BLOCK {
                    put(row, b'p', job, &payload);
                    put(entry, 2, job, format!("~{job}").as_bytes());
                    put(row, b'j', job, &ROW);
                }
                put(row, b'h', 0, &HEAD);
            });
        }
        begun.elapsed()
    }

    fn run(&self, jobs: u64) -> Duration {
        let begun = Instant::now();
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

/// Returns the megabytes on the disk after a million items were pushed and most of them trimmed.
pub(crate) fn megabytes_left() -> u64 {
    let (dir, store) = opened(Durability::Buffered);
    let log = store.log("l").expect("it opens");
    let block = vec!["x".repeat(98); BLOCK as usize];
    for _ in 0..ITEMS / BLOCK {
        push(&log, &block, BLOCK);
        let head = log.head().expect("it is known").unwrap_or(0);
        log.trim(..=head.saturating_sub(KEPT * BLOCK)).expect("the disk takes it");
    }
    let files = std::fs::read_dir(dir.path()).expect("it is there").map(|file| file.and_then(|f| f.metadata()));
    files.map(|file| file.map_or(0, |file| file.len())).sum::<u64>() >> 20
}

/// Returns the longest and the median time of a save, in milliseconds, while a million items of a
/// log are deleted that were trimmed at once: a piece of them goes with each save.
pub(crate) fn trim_ms() -> (f64, f64) {
    let (_dir, store) = opened(Durability::Buffered);
    let log = store.log("l").expect("it opens");
    let block = vec!["x".repeat(98); BLOCK as usize];
    push(&log, &block, ITEMS);
    let mut trims = Vec::new();
    for last in ITEMS.. {
        let begun = Instant::now();
        log.trim(..=last).expect("the disk takes it");
        trims.push(begun.elapsed());
        if trims.len() as u64 > ITEMS / 1_000 {
            break;
        }
        log.push(&block[0]).expect("the disk takes it");
    }
    let longest = trims.iter().copied().max().unwrap_or_default();
    (longest.as_secs_f64() * 1000.0, median(trims).as_secs_f64() * 1000.0)
}
