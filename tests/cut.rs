//! The write-ahead log torn off at any byte, or with a byte of it flipped: what is left is what was written before that byte,
//! never less, and never a watermark, or a job that is done above it, without its rows.
#![cfg(feature = "rocksdb")]

mod common;

use common::numbers;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use waterline::{Consumer, Index, Retry, Store};

/// Enough for two blocks of the log.
const COUNT: u64 = 300;
const SEED: u64 = 20_261_121;

/// RocksDB's log is made of blocks, and they of records: a checksum of four bytes, a length of two, a kind, and so many bytes.
/// No record crosses the end of a block: a batch is in one of the kind `FULL`, or in several of which the last is `LAST`.
const BLOCK: usize = 32 * 1024;
const HEADER: usize = 7;
const FULL: u8 = 1;
const LAST: u8 = 4;

/// Jobs that each put a row, and finish out of order; the window is narrow, so that there is a save for every few rows, and
/// some may fail first, so that what is done above them is saved. Which were started.
fn consume(store: &Store, failing: bool) -> BTreeSet<Index> {
    let table = store.table("rows").unwrap();
    let started = Arc::<Mutex<BTreeSet<Index>>>::default();
    let record = started.clone();
    let consumer = Consumer::builder(numbers(COUNT), store.progress("cut"))
        .max_processing(4)
        .max_search_ahead(6)
        .retry(Retry::fixed(Duration::from_millis(1)))
        .stop_at(COUNT - 1)
        .start(move |job| {
            record.lock().insert(job.index);
            (0..fastrand::u8(..4)).for_each(|_| std::thread::yield_now());
            if failing && job.index % 7 == 0 && job.attempt == 1 {
                return Err("the first attempt fails".into());
            }
            Ok(table.put(job.index.to_be_bytes(), [0x55; 100])?)
        });
    consumer.and_then(Consumer::join).unwrap();
    std::mem::take(&mut *started.lock())
}

/// What a database holds.
#[derive(Clone, Debug, Default, PartialEq)]
struct Content {
    watermark: Option<Index>,
    rows: BTreeSet<Index>,
}

impl Content {
    fn of(store: &Store) -> Self {
        let watermark = store.progress("cut").last_processed().unwrap();
        let table = store.table("rows").unwrap();
        let rows = table.iter().map(|row| Index::from_be_bytes(row.unwrap().0.try_into().unwrap()));
        Self { watermark, rows: rows.collect() }
    }

    fn skips_nothing(&self) -> bool {
        (0..self.watermark.map_or(0, |last| last + 1)).all(|index| self.rows.contains(&index))
    }
}

/// A database whose log is still all there is of it, as it is on the disk while it is open.
struct Logged {
    directory: tempfile::TempDir,
    log: Vec<u8>,
    name: PathBuf,
    /// Where a record begins.
    edges: Vec<usize>,
    /// Where a batch ends, and what the database holds from there on.
    batches: Vec<(usize, Content)>,
}

impl Logged {
    fn new() -> Self {
        let [directory, live] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let store = Store::open(live.path()).unwrap();
        consume(&store, true);
        // The store lives, so nothing is tidied up: a process that was killed leaves the same.
        copy(live.path(), directory.path());
        let logs: Vec<_> =
            files(directory.path()).filter(|file| file.extension().is_some_and(|e| e == "log")).collect();
        let [name] = logs.as_slice() else { panic!("one log: {logs:?}") };
        let mut this = Self {
            log: fs::read(name).unwrap(),
            name: name.file_name().unwrap().into(),
            directory,
            edges: Vec::new(),
            batches: Vec::new(),
        };
        this.parse();
        assert!(this.log.len() > BLOCK && this.saves().len() > 40, "the log is too short to prove anything");
        assert_eq!(this.before(this.log.len()), Content::of(&store), "the log is read as RocksDB reads it");
        this
    }

    fn parse(&mut self) {
        let (mut at, mut batch, mut content) = (0, Vec::new(), Content::default());
        // The lowest index that is not done, as the page has it.
        let mut next = 0;
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
                // A page: its key, the length of its value, its version and 9 bytes more.
                if let Some(page) = behind(&batch, b"pcut").find(|page| page[1] == 2) {
                    next = number(&page[11..]);
                    content.watermark = next.checked_sub(1);
                }
                // A delta: its key, which ends with a slot of three bytes, the length of its value, the generation, and by how
                // much its index is higher than that of the page: one byte or two.
                for delta in behind(&batch, b"\x08d\0\0\0\0") {
                    let more = if delta[5] < 0x80 { 0 } else { u64::from(delta[6]) << 7 };
                    content.watermark = (next + u64::from(delta[5] & 0x7f) + more).checked_sub(1);
                }
                // A row: the length of the table's name, the name.
                content.rows.extend(behind(&batch, b"\x04rows").map(number));
                self.batches.push((end, content.clone()));
                batch.clear();
            }
            at = end;
        }
    }

    fn saves(&self) -> BTreeSet<Index> {
        self.batches.iter().filter_map(|(_, content)| content.watermark).collect()
    }

    /// What the bytes below this one say.
    fn before(&self, at: usize) -> Content {
        let whole = self.batches.iter().take_while(|(end, _)| *end <= at);
        whole.last().map(|(_, content)| content.clone()).unwrap_or_default()
    }

    /// Opens a copy whose log is this one, and holds it against what is wanted; how many were done above the watermark.
    fn check(&self, log: &[u8], want: &Content, what: &str) -> usize {
        let scratch = tempfile::tempdir().unwrap();
        copy(self.directory.path(), scratch.path());
        fs::write(scratch.path().join(&self.name), log).unwrap();
        let store = Store::open(scratch.path()).unwrap_or_else(|e| panic!("{what}: {}", e.report()));
        let got = Content::of(&store);
        assert!(got.skips_nothing(), "promise 1: {what}, {got:?}");
        assert_eq!(got, *want, "{what}");
        let started = consume(&store, false);
        let next = got.watermark.map_or(0, |last| last + 1);
        let done: BTreeSet<Index> = (next..COUNT).filter(|index| !started.contains(index)).collect();
        assert!(done.is_subset(&got.rows), "promise 10: {what}, done by what is saved: {done:?}, of {got:?}");
        let all = Content { watermark: Some(COUNT - 1), rows: (0..COUNT).collect() };
        assert_eq!(Content::of(&store), all, "{what}, after another life");
        done.len()
    }
}

/// What stands behind each of these keys.
fn behind<'a>(batch: &'a [u8], key: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    (0..batch.len()).filter_map(move |at| batch[at..].strip_prefix(key))
}

fn number(bytes: &[u8]) -> Index {
    Index::from_be_bytes(bytes[..8].try_into().unwrap())
}

fn files(directory: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path())
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
    }
}

#[test]
fn promise_1_and_10_wherever_the_log_is_torn_off_what_is_left_is_what_was_written_before() {
    let logged = Logged::new();
    let mut random = fastrand::Rng::with_seed(SEED);
    let length = logged.log.len();
    let edges = random.choose_multiple(logged.edges.iter().copied(), 40);
    let near = edges.into_iter().flat_map(|edge| [edge.saturating_sub(1), edge, edge + 1, edge + HEADER]);
    let ends = [0, 1, HEADER, BLOCK - 1, BLOCK, BLOCK + 1, length - 1, length];
    let offsets: BTreeSet<usize> = near.chain(ends).chain((0..100).map(|_| random.usize(..length))).collect();
    let mut done_ahead = 0;
    for &offset in &offsets {
        let what = format!("torn off at {offset} of {length}");
        done_ahead += logged.check(&logged.log[..offset.min(length)], &logged.before(offset), &what);
    }
    assert!(done_ahead > offsets.len() / 2, "hardly any was done above the watermark: {done_ahead}");
}

#[test]
fn promise_8_wherever_a_byte_of_the_log_is_flipped_what_is_left_is_what_was_written_before() {
    let logged = Logged::new();
    let mut random = fastrand::Rng::with_seed(SEED);
    let edges = random.choose_multiple(logged.edges.iter().copied(), 20);
    let headers = edges.into_iter().flat_map(|edge| [edge, edge + 3]).collect::<Vec<_>>();
    let anywhere = (0..120).map(|_| random.usize(..logged.log.len())).collect::<Vec<_>>();
    // What is left of a block behind its last record is not read. And on a wrong length, or a kind whose header is longer,
    // RocksDB may spin for ever instead of opening, which is facebook/rocksdb#13333, and told in the manual.
    let read = |at: &usize| BLOCK - at % BLOCK >= HEADER;
    let length = |at: &usize| logged.edges.iter().any(|edge| (edge + 4..edge + HEADER).contains(at));
    for at in headers.into_iter().chain(anywhere).filter(|at| read(at) && !length(at)) {
        let mut log = logged.log.clone();
        log[at] ^= random.u8(1..);
        let what = format!("byte {at} of {} is {} instead of {}", log.len(), log[at], logged.log[at]);
        logged.check(&log, &logged.before(at), &what);
    }
}
