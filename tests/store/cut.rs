//! The write-ahead log, torn off at any byte or with a byte flipped: the database has exactly what
//! was written before that byte. It never has a watermark, or a job that is done above it, without
//! its rows, and never part of a write.

use common::{a_directory, engine, numbers, on_engine, open_in, seed, size};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use waterline::{BoxError, Builder, Consumer, Engine, Error, Index, Job, MemoryJobs, Retry, Store, StoreProgress};

/// Enough for two blocks of the log.
const COUNT: u64 = 300;
const SEED: u64 = 20_261_121;

/// RocksDB's log consists of blocks, and a block of records: a checksum of four bytes, a length of
/// two, a kind, and the content. No record crosses the end of a block: a batch is one record of the
/// kind `FULL`, or several, the last of the kind `LAST`.
const BLOCK: usize = 32 * 1024;
const HEADER: usize = 7;
const FULL: u8 = 1;
const LAST: u8 = 4;
/// The kinds of records in recycled logs.
const RECYCLED: [u8; 6] = [5, 6, 7, 8, 11, 131];

/// SQLite's log is a header and frames. A frame is a page behind a header: the page number, the
/// length of the database if the frame ends a transaction, the two salts of the log, and a checksum
/// of everything so far.
const LOG_HEADER: usize = 32;
const FRAME_HEADER: usize = 24;

/// The length of a batch's header, behind which its changes begin. `FAMILY_PUT` is the tag of a put
/// in a numbered family.
const BATCH_HEADER: usize = 12;
const FAMILY_PUT: u64 = 5;

#[derive(Clone, Copy, PartialEq)]
enum Work {
    /// Each job puts a row, and is done later.
    Rows,
    /// Each job puts two rows and adds to a counter, in one write with its completion.
    Effects,
}

impl Work {
    /// Runs jobs that finish out of order, and returns those that started. The narrow window makes
    /// a save for every few of them. Failing jobs have jobs saved as done above them.
    fn finish(self, store: &Store, failing: bool) -> BTreeSet<Index> {
        let started = Arc::<Mutex<BTreeSet<Index>>>::default();
        let record = started.clone();
        let [rows, twins, sums] = ["rows", "twin", "sums"].map(|name| store.table(name).unwrap());
        let run = move |job: &Job<u64>| {
            record.lock().insert(job.index);
            (0..fastrand::u8(..4)).for_each(|_| std::thread::yield_now());
            let fails = failing && job.index.is_multiple_of(7) && job.attempt == 1;
            if fails { Err::<(), BoxError>("the first attempt fails".into()) } else { Ok(()) }
        };
        let consumer = match self {
            Work::Rows => builder(store).start(move |job| {
                run(&job)?;
                Ok(rows.put(job.index.to_be_bytes(), [0x55; 100])?)
            }),
            Work::Effects => builder(store).start_transactional(move |job, effects| {
                run(&job)?;
                effects.put(&rows, job.index.to_be_bytes(), [0x55; 100])?;
                effects.add(&sums, "jobs", 1)?;
                Ok(effects.put(&twins, job.index.to_be_bytes(), "twin")?)
            }),
        };
        let consumer = consumer.unwrap();
        let handle = consumer.handle();
        assert!(handle.wait_for(COUNT - 1, common::LONG), "{:#?}", handle.status());
        consumer.join().unwrap();
        std::mem::take(&mut *started.lock())
    }
}

fn builder(store: &Store) -> Builder<MemoryJobs<u64>, StoreProgress> {
    Consumer::builder(numbers(COUNT), store.progress("cut"))
        .max_processing(4)
        .max_search_ahead(6)
        // In real time, as the store: meanwhile other jobs are saved, in further writes.
        .retry(Retry::fixed(Duration::from_millis(1)))
        .stop_at(COUNT - 1)
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Content {
    watermark: Option<Index>,
    rows: BTreeSet<Index>,
    twins: BTreeSet<Index>,
    counted: i64,
}

impl Content {
    fn of(store: &Store) -> Self {
        let watermark = store.progress("cut").last_processed().unwrap();
        let rows = |name| {
            let Ok(table) = store.table(name) else { return BTreeSet::new() };
            table.iter().map(|row| Index::from_be_bytes(row.unwrap().0.try_into().unwrap())).collect()
        };
        let counted = store.table("sums").map_or(0, |sums| sums.counter("jobs").unwrap());
        Self { watermark, rows: rows("rows"), twins: rows("twin"), counted }
    }

    fn skips_nothing(&self) -> bool {
        (0..self.watermark.map_or(0, |last| last + 1)).all(|index| self.rows.contains(&index))
    }

    fn is_of_whole_jobs(&self) -> bool {
        self.rows == self.twins && self.counted == self.rows.len() as i64
    }

    /// Applies this batch. `page` is the lowest undone index of the last page of the progress.
    fn put_all(&mut self, mut batch: &[u8], page: &mut Index) {
        batch = &batch[BATCH_HEADER..];
        while !batch.is_empty() {
            assert_eq!(varint(&mut batch), FAMILY_PUT, "nothing else is written");
            varint(&mut batch);
            let [key, value] = [(); 2].map(|()| text(&mut batch));
            match key {
                // A page of the progress: the format, two numbers of four bytes, a flag, the lowest
                // undone index.
                b"pcut" => *page = self.is_done_below(index(&value[10..18])),
                // A delta: the generation, and how far the lowest undone index is above the page's.
                [b'd', ..] if key.len() == 8 => {
                    let mut value = value;
                    varint(&mut value);
                    self.is_done_below(*page + varint(&mut value));
                }
                // A row of a table: the length of the table's name, and the name.
                _ if key.starts_with(b"\x04rows") => _ = self.rows.insert(index(&key[5..])),
                _ if key.starts_with(b"\x04twin") => _ = self.twins.insert(index(&key[5..])),
                b"\x04sumsjobs" => self.counted = i64::from_be_bytes(value.try_into().unwrap()),
                _ => {}
            }
        }
    }

    fn is_done_below(&mut self, next: Index) -> Index {
        self.watermark = next.checked_sub(1);
        next
    }
}

/// A database whose content is all in its log, as on the disk while it is open.
struct Logged {
    work: Work,
    directory: tempfile::TempDir,
    log: Vec<u8>,
    name: PathBuf,
    /// The offsets at which records begin.
    edges: Vec<usize>,
    /// The offsets at which batches end, each with the content of the database from there on.
    batches: Vec<(usize, Content)>,
}

struct Opened {
    store: Store,
    _scratch: tempfile::TempDir,
}

impl Deref for Opened {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

impl Logged {
    fn new(work: Work) -> Option<Self> {
        let (directory, live) = (a_directory()?, tempfile::tempdir().unwrap());
        let store = open_in(live.path()).unwrap();
        // An open read transaction keeps the log from being checkpointed.
        #[cfg(feature = "sqlite")]
        let _past = (engine() == Some(Engine::Sqlite)).then(|| {
            let past = rusqlite::Connection::open(live.path().join("waterline.sqlite")).unwrap();
            past.execute_batch("BEGIN; SELECT count(*) FROM sqlite_master").unwrap();
            past
        });
        work.finish(&store, true);
        // The store is still open, so the copy is what a killed process leaves.
        copy(live.path(), directory.path());
        let is_log = |file: &PathBuf| file.extension().is_some_and(|e| e == "log" || e == "sqlite-wal");
        let logs: Vec<_> = files(directory.path()).filter(is_log).collect();
        let [name] = logs.as_slice() else { panic!("one log: {logs:?}") };
        let mut this = Self {
            work,
            log: fs::read(name).unwrap(),
            name: name.file_name().unwrap().into(),
            directory,
            edges: Vec::new(),
            batches: Vec::new(),
        };
        match engine() {
            Some(Engine::Sqlite) => this.parse_frames(),
            _ => this.parse(),
        }
        assert!(this.log.len() > BLOCK && this.saves().len() > 40, "the log is too short to prove anything");
        assert_eq!(this.before(this.log.len()), Content::of(&store), "the log is read as the engine reads it");
        Some(this)
    }

    /// Reads the log of SQLite. The content after each transaction is what SQLite itself shows.
    fn parse_frames(&mut self) {
        let number = |at: usize| u32::from_be_bytes(self.log[at..at + 4].try_into().unwrap());
        let length = FRAME_HEADER + number(8) as usize;
        self.edges = (LOG_HEADER..self.log.len()).step_by(length).collect();
        let ends = self.edges.iter().filter(|at| number(**at + 4) > 0).map(|at| at + length);
        self.batches = ends.map(|end| (end, self.seen(&self.log[..end]))).collect();
    }

    /// Reads a copy with this log by a look, which is fast since it flushes nothing.
    fn seen(&self, log: &[u8]) -> Content {
        let scratch = tempfile::tempdir().unwrap();
        copy(self.directory.path(), scratch.path());
        fs::write(scratch.path().join(&self.name), log).unwrap();
        match on_engine().read_only().open(scratch.path()) {
            Err(Error::NotFound { .. }) => Content::default(),
            store => Content::of(&store.unwrap()),
        }
    }

    /// Opens a copy with this log.
    fn opened(&self, log: &[u8], what: &str) -> Opened {
        let scratch = tempfile::tempdir().unwrap();
        copy(self.directory.path(), scratch.path());
        fs::write(scratch.path().join(&self.name), log).unwrap();
        let store = open_in(scratch.path()).unwrap_or_else(|e| panic!("{what}: {}", e.report()));
        Opened { store, _scratch: scratch }
    }

    fn parse(&mut self) {
        let (mut at, mut batch, mut content, mut page) = (0, Vec::new(), Content::default(), 0);
        while at + HEADER <= self.log.len() {
            let left = BLOCK - at % BLOCK;
            if left < HEADER {
                at += left;
                continue;
            }
            self.edges.push(at);
            let header = &self.log[at..at + HEADER];
            let end = at + HEADER + usize::from(u16::from_le_bytes([header[4], header[5]]));
            batch.extend_from_slice(&self.log[at + HEADER..end]);
            if [FULL, LAST].contains(&header[6]) {
                content.put_all(&batch, &mut page);
                self.batches.push((end, content.clone()));
                batch.clear();
            }
            at = end;
        }
    }

    fn saves(&self) -> BTreeSet<Index> {
        self.batches.iter().filter_map(|(_, content)| content.watermark).collect()
    }

    /// Returns the content that the bytes below this offset give.
    fn before(&self, at: usize) -> Content {
        let whole = self.batches.iter().take_while(|(end, _)| *end <= at);
        whole.last().map(|(_, content)| content.clone()).unwrap_or_default()
    }

    /// Opens a copy with this log, and compares it with the wanted content. Returns the number of
    /// jobs done above the watermark.
    fn check(&self, log: &[u8], want: &Content, to_the_end: bool, what: &str) -> usize {
        let store = self.opened(log, what);
        let got = Content::of(&store);
        assert!(got.skips_nothing(), "promise 1: {what}, {got:?}");
        assert!(self.work == Work::Rows || got.is_of_whole_jobs(), "promise 9: {what}, {got:?}");
        assert_eq!(got, *want, "{what}");
        if !to_the_end {
            return 0;
        }
        let started = self.work.finish(&store, false);
        let next = got.watermark.map_or(0, |last| last + 1);
        let done: BTreeSet<Index> = (next..COUNT).filter(|index| !started.contains(index)).collect();
        assert!(done.is_subset(&got.rows), "promise 10: {what}, done by what is saved: {done:?}, of {got:?}");
        let all = Content::of(&store);
        assert_eq!((all.watermark, &all.rows), (Some(COUNT - 1), &(0..COUNT).collect()), "{what}, after another life");
        if self.work == Work::Effects {
            assert!(all.is_of_whole_jobs(), "promise 9: {what}, after another life: {all:?}");
            let left: BTreeSet<Index> = (0..COUNT).filter(|index| !got.rows.contains(index)).collect();
            assert_eq!(started, left, "{what}: what is done is not done again, and the rest is");
        }
        done.len()
    }
}

fn index(bytes: &[u8]) -> Index {
    Index::from_be_bytes(bytes.try_into().unwrap())
}

/// Reads a number of seven bits a byte, lowest first. The highest bit says that more follow.
fn varint(bytes: &mut &[u8]) -> u64 {
    let length = bytes.iter().position(|byte| *byte < 0x80).unwrap() + 1;
    let (number, rest) = bytes.split_at(length);
    *bytes = rest;
    number.iter().rev().fold(0, |number, byte| number << 7 | u64::from(byte & 0x7f))
}

fn text<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let length = usize::try_from(varint(bytes)).unwrap();
    let (text, rest) = bytes.split_at(length);
    *bytes = rest;
    text
}

fn files(directory: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path())
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        if file.extension().is_none_or(|e| e != "sqlite-shm") {
            fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
        }
    }
}

/// Tears the log off at every offset that matters, and at random ones.
fn torn_off(work: Work) {
    let Some(logged) = Logged::new(work) else { return };
    let mut random = fastrand::Rng::with_seed(SEED + seed());
    let length = logged.log.len();
    let edges = random.choose_multiple(logged.edges.iter().copied(), size(12, 60));
    let near = edges.into_iter().flat_map(|edge| [edge.saturating_sub(1), edge, edge + 1, edge + HEADER]);
    let ends = [0, 1, HEADER, BLOCK - 1, BLOCK, BLOCK + 1, length - 1, length];
    let offsets: BTreeSet<usize> =
        near.chain(ends).chain((0..size(30, 3_000)).map(|_| random.usize(..length))).collect();
    // Opening a database is slow, so half of the offsets must do for the second kind.
    let offsets = offsets.iter().step_by(if work == Work::Effects { 2 } else { 1 });
    let mut done_ahead = 0;
    for (number, &offset) in offsets.enumerate() {
        let what = format!("torn off at {offset} of {length}");
        done_ahead += logged.check(&logged.log[..offset.min(length)], &logged.before(offset), number % 4 == 0, &what);
    }
    assert!(done_ahead > 3, "hardly any was done above the watermark: {done_ahead}");
}

#[test]
fn promise_01_and_promise_10_a_torn_log_is_an_earlier_state() {
    torn_off(Work::Rows);
}

#[test]
fn promise_09_a_torn_log_has_each_job_whole_or_not() {
    torn_off(Work::Effects);
}

#[test]
fn promise_08_a_log_with_a_flipped_byte_is_an_earlier_state() {
    let Some(logged) = Logged::new(Work::Rows) else { return };
    let mut random = fastrand::Rng::with_seed(SEED + seed());
    let edges = random.choose_multiple(logged.edges.iter().copied(), size(6, 20));
    let headers = edges.into_iter().flat_map(|edge| [edge, edge + 3, edge + 6]).collect::<Vec<_>>();
    let anywhere = (0..size(24, 1_000)).map(|_| random.usize(..logged.log.len())).collect::<Vec<_>>();
    // RocksDB does not read the rest of a block behind its last record. At a wrong length, or a
    // kind with a longer header, it may spin for ever instead of opening (facebook/rocksdb#13333,
    // see the design page).
    let of_rocksdb = engine() == Some(Engine::RocksDb);
    let read = |at: &usize| !of_rocksdb || BLOCK - at % BLOCK >= HEADER;
    let length = |at: &usize| of_rocksdb && logged.edges.iter().any(|edge| [edge + 4, edge + 5].contains(at));
    for (number, at) in headers.into_iter().chain(anywhere).filter(|at| read(at) && !length(at)).enumerate() {
        let mut log = logged.log.clone();
        log[at] ^= random.u8(1..);
        if of_rocksdb && logged.edges.iter().any(|edge| edge + 6 == at) && RECYCLED.contains(&log[at]) {
            continue;
        }
        let what = format!("byte {at} of {} is {} instead of {}", log.len(), log[at], logged.log[at]);
        logged.check(&log, &logged.before(at), number % 8 == 0, &what);
    }
}
