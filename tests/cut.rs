//! The write-ahead log torn off at any byte, or with a byte of it flipped: what is left is what was written before that byte,
//! never less, and never a watermark without its rows.
#![cfg(feature = "rocksdb")]

mod common;

use common::numbers;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use waterline::{Consumer, Index, Store};

/// Enough for two blocks of the log.
const COUNT: u64 = 300;
const SEED: u64 = 20_261_121;

/// RocksDB's log is made of blocks, and they of records: a checksum of four bytes, a length of two, a kind, and so many bytes.
/// No record crosses the end of a block: a batch is in one of the kind `FULL`, or in several of which the last is `LAST`.
const BLOCK: usize = 32 * 1024;
const HEADER: usize = 7;
const FULL: u8 = 1;
const LAST: u8 = 4;

/// Jobs that each put a row, and finish out of order; the window is narrow, so that there is a save for every few rows.
fn consume(store: &Store) -> Consumer {
    let table = store.table("rows").unwrap();
    Consumer::builder(numbers(COUNT), store.progress("cut"))
        .max_processing(4)
        .max_search_ahead(6)
        .stop_at(COUNT - 1)
        .start(move |job| {
            (0..fastrand::u8(..4)).for_each(|_| std::thread::yield_now());
            Ok(table.put(job.index.to_be_bytes(), [0x55; 100])?)
        })
        .unwrap()
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
        consume(&store).join().unwrap();
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
                // A progress: its key, the length of its value, its version.
                content.watermark = indices(&batch, b"pcut\x0d\x01").max().or(content.watermark);
                // A row: the length of the table's name, the name.
                content.rows.extend(indices(&batch, b"\x04rows"));
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

    /// Opens a copy whose log is this one, and holds it against what is wanted.
    fn check(&self, log: &[u8], want: &Content, to_the_end: bool, what: &str) {
        let scratch = tempfile::tempdir().unwrap();
        copy(self.directory.path(), scratch.path());
        fs::write(scratch.path().join(&self.name), log).unwrap();
        let store = Store::open(scratch.path()).unwrap_or_else(|e| panic!("{what}: {}", e.report()));
        let got = Content::of(&store);
        assert!(got.skips_nothing(), "promise 1: {what}, {got:?}");
        assert_eq!(got, *want, "{what}");
        if to_the_end {
            consume(&store).join().unwrap();
            let all = Content { watermark: Some(COUNT - 1), rows: (0..COUNT).collect() };
            assert_eq!(Content::of(&store), all, "{what}, after another life");
        }
    }
}

/// The number behind each of these keys.
fn indices<'a>(batch: &'a [u8], key: &'a [u8]) -> impl Iterator<Item = Index> + 'a {
    let found = batch.windows(key.len() + 8).filter_map(move |bytes| bytes.strip_prefix(key));
    found.map(|index| Index::from_be_bytes(index.try_into().unwrap()))
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
fn promise_1_wherever_the_log_is_torn_off_what_is_left_is_what_was_written_before() {
    let logged = Logged::new();
    let mut random = fastrand::Rng::with_seed(SEED);
    let length = logged.log.len();
    let edges = random.choose_multiple(logged.edges.iter().copied(), 60);
    let near = edges.into_iter().flat_map(|edge| [edge.saturating_sub(1), edge, edge + 1, edge + HEADER]);
    let ends = [0, 1, HEADER, BLOCK - 1, BLOCK, BLOCK + 1, length - 1, length];
    let offsets: BTreeSet<usize> = near.chain(ends).chain((0..150).map(|_| random.usize(..length))).collect();
    for (number, &offset) in offsets.iter().enumerate() {
        let what = format!("torn off at {offset} of {length}");
        logged.check(&logged.log[..offset.min(length)], &logged.before(offset), number % 8 == 0, &what);
    }
}

#[test]
fn promise_8_wherever_a_byte_of_the_log_is_flipped_what_is_left_is_what_was_written_before() {
    let logged = Logged::new();
    let mut random = fastrand::Rng::with_seed(SEED);
    let edges = random.choose_multiple(logged.edges.iter().copied(), 20);
    let headers = edges.into_iter().flat_map(|edge| [edge, edge + 3, edge + 6]).collect::<Vec<_>>();
    let anywhere = (0..120).map(|_| random.usize(..logged.log.len())).collect::<Vec<_>>();
    // What is left of a block behind its last record is not read. And on a wrong length RocksDB may spin for ever instead of
    // opening, which is facebook/rocksdb#13333, and told in the manual.
    let read = |at: &usize| BLOCK - at % BLOCK >= HEADER;
    let length = |at: &usize| logged.edges.iter().any(|edge| [edge + 4, edge + 5].contains(at));
    for (number, at) in headers.into_iter().chain(anywhere).filter(|at| read(at) && !length(at)).enumerate() {
        let mut log = logged.log.clone();
        log[at] ^= random.u8(1..);
        let what = format!("byte {at} of {} is {} instead of {}", log.len(), log[at], logged.log[at]);
        logged.check(&log, &logged.before(at), number % 8 == 0, &what);
    }
}
