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

use crate::cost::{Cost, Stopwatch};
use crate::ours::{COUNTED, JOBS, consume, consumed, counted_by_hand, counted_by_jobs};
use crate::raw_sqlite::{BYTES, Raw, RawQueue, UPSERT};
use crate::sources::Numbers;
use crate::table::{Row, Table, median};
use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};
use waterline::{Consumer, Durability, Engine, JobLog, Jobs as _, MemoryProgress, Store};
use waterline_queue::{DrainLimits, NewJob, Outcome, Queue, QueueOptions, Retention, Runner};

/// The rows of a round: a whole number of blocks.
const ROWS: u64 = 800 * BLOCK;
const BLOCK: u64 = 256;
/// The jobs of a queue in a round.
const QUEUED: u64 = 100 * BLOCK;
/// Few enough items to flush one by one in a moment.
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
    let row =
        Row { name: "SQLite: put + add per job, max_processing 64", floor: "256 a commit", times: COUNTED, most: 2.5 };
    let buffered = |path: &Path| open(path, Durability::Buffered);
    table.row(row, counted_by_hand::<rusqlite::Connection>, || counted_by_jobs(buffered, 64));
    let item = "x".repeat(98);
    let block = vec![item.clone(); BLOCK as usize];
    let row = Row { name: "SQLite: log: push_all of 256", floor: "256 a commit", times: ROWS, most: 1.3 };
    table.row(row, || Raw::new(BYTES).push(&item, ROWS, BLOCK), || pushed(&block, ROWS, Durability::Buffered));
    consuming(table, &block);
    let row = Row { name: "SQLite: log: synced push", floor: "a commit an item", times: SYNCED, most: 1.2 };
    let one = std::slice::from_ref(&item);
    table.row(row, || Raw::synced(BYTES).push(&item, SYNCED, 1), || pushed(one, SYNCED, Durability::Synced));
    let row = Row { name: "SQLite: queue: pushed, 256 in a write", floor: "raw rows", times: QUEUED, most: 2.0 };
    table.row(row, || RawQueue::new().push(QUEUED, BLOCK), || Ours::new().push(QUEUED));
    let row = Row { name: "SQLite: queue: run, eight at a time", floor: "raw loop", times: QUEUED, most: 2.0 };
    let raw = || {
        let raw = RawQueue::new();
        raw.push(QUEUED, BLOCK);
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

fn put_by_jobs(jobs: u64) -> Cost {
    let (_dir, store) = opened(Durability::Buffered);
    let rows = store.table("r").expect("a name");
    let begun = Stopwatch::now();
    let consumer = Consumer::builder(Numbers(jobs), store.progress("effects"))
        .max_processing(64)
        .max_search_ahead(100_000)
        .stop_at(jobs - 1)
        .start_transactional(move |job, effects| Ok(effects.put(&rows, job.payload.to_be_bytes(), VALUE)?));
    consumer.and_then(Consumer::join).expect("the disk takes it");
    begun.elapsed()
}

/// The same rows in a table of the user's, by a statement of each job.
fn executed_by_jobs(jobs: u64) -> Cost {
    let dir = tempfile::tempdir().expect("a directory for the database");
    let store = Store::attach_sqlite(dir.path().join("app.db")).expect("it opens");
    let create = format!("CREATE TABLE rows ({BYTES}");
    store.write(|effects| effects.execute(create, ())).expect("the file is new");
    let begun = Stopwatch::now();
    let consumer = Consumer::builder(Numbers(jobs), store.progress("statements"))
        .max_processing(64)
        .max_search_ahead(100_000)
        .stop_at(jobs - 1)
        .start_transactional(|job, effects| Ok(effects.execute(UPSERT, (job.payload.to_be_bytes(), VALUE))?));
    consumer.and_then(Consumer::join).expect("the disk takes it");
    begun.elapsed()
}

/// Pushes this many items, in blocks.
fn pushed(block: &[String], items: u64, durability: Durability) -> Cost {
    let (_dir, store) = opened(durability);
    let log = store.log::<String>("l").expect("it opens");
    let begun = Stopwatch::now();
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

    fn push(&self, jobs: u64) -> Cost {
        let payload = "x".repeat(98);
        let begun = Stopwatch::now();
        for _ in 0..jobs / BLOCK {
            let block = (0..BLOCK).map(|_| NewJob::new("k", &payload).expect("it is text"));
            self.queue.push_all(block).expect("the disk takes it");
        }
        begun.elapsed()
    }

    fn run(&self, jobs: u64) -> Cost {
        let runner = Runner::builder(&self.queue).max_processing(8);
        let begun = Stopwatch::now();
        let summary = runner.on("k", |_, _: String| Ok(Outcome::Done)).drain(DrainLimits::default());
        let elapsed = begun.elapsed();
        assert_eq!(summary.expect("the disk takes it").finished, jobs);
        elapsed
    }
}

/// Returns the megabytes on disk after a million items were pushed and most of them trimmed.
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

/// Returns the longest and the median time of a save, in milliseconds, while a million trimmed
/// items of a log are deleted, a part of them with each save.
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
