//! Job logs, beside a log that a user would write with RocksDB by hand.
//!
//! Consuming a million items takes 1.4 to 1.7 times as long as a plain iteration. (It was 1.6 to
//! 1.9 before ordered reads left the block cache alone.) One thread reads and runs. What comes on
//! top of the iteration is a no-op job and the allocation of its item.
//!
//! The rows with `Bytes` are beside the same items as JSON: 100 bytes each, of all values. JSON has
//! no bytes, so a user has the choice between a text of 200 hexadecimal digits and a `Vec<u8>`,
//! which becomes a list of numbers. The text is cheaper, so it is the floor, without the cost of
//! converting the bytes to digits and back.

use crate::cost::{Cost, Stopwatch};
use crate::ours::consumed;
use crate::table::{Row, Table};
use rocksdb::{DB, DBCompressionType, IteratorMode, Options, WriteBatch, WriteOptions};
use std::hint::black_box;
use std::path::Path;
use waterline::{Bytes, Codec, Durability, Index, JobLog, Jobs, Json, Store};

const PUSHES: u64 = 200_000;
const BLOCK: u64 = 256;
/// Few enough items to flush one by one in a moment.
const SYNCED: u64 = 1_024;
const ITEMS: u64 = 1_000_000;
/// The items that are pushed and trimmed, in blocks, before the front is read again.
const TURNOVER: u64 = 10_000_000;
/// The blocks that are not trimmed.
const KEPT: u64 = 20;
/// 100 bytes of JSON, with its quotes.
const ITEM: [u8; 98] = [b'x'; 98];

pub(crate) fn rows(table: &Table) {
    let item = text();
    let block = vec![item.clone(); BLOCK as usize];
    let row = Row { name: "log: push_all of 256", floor: "batch, encoded", times: PUSHES, most: 2.0 };
    let blocks = PUSHES / BLOCK;
    let buffered = Durability::Buffered;
    table.row(row, || by_hand(&item, PUSHES, BLOCK, false), || pushed(Json, blocks, 1, &block, buffered));
    let (bytes, digits) = (vec![binary(); BLOCK as usize], vec![hex(&binary()); BLOCK as usize]);
    let row = Row { name: "log: push_all of 256, Bytes", floor: "as JSON", times: PUSHES, most: 0.8 };
    table.row(row, || pushed(Json, blocks, 1, &digits, buffered), || pushed(Bytes, blocks, 1, &bytes, buffered));
    for (threads, most) in [(8, 0.4), (64, 0.2)] {
        let name = format!("log: synced push, {threads} threads");
        let row = Row { name: &name, floor: "one by one", times: SYNCED, most };
        let one = std::slice::from_ref(&item);
        table.row(row, || by_hand(&item, SYNCED, 1, true), || pushed(Json, SYNCED, threads, one, Durability::Synced));
    }
    let row = Row { name: "log: synced push_all of 256", floor: "one by one", times: SYNCED, most: 0.02 };
    table.row(row, || by_hand(&item, SYNCED, 1, true), || pushed(Json, SYNCED / BLOCK, 1, &block, Durability::Synced));
    consuming(table, &block);
    consuming_bytes(table, &digits, &bytes);
    front(table, &block);
}

/// Returns the megabytes on disk after many items were pushed and most of them trimmed.
pub(crate) fn megabytes_left() -> u64 {
    let (dir, ..) = turned_over(&vec![text(); BLOCK as usize]);
    let files = std::fs::read_dir(dir.path()).expect("it is there").map(|file| file.and_then(|f| f.metadata()));
    files.map(|file| file.map_or(0, |file| file.len())).sum::<u64>() >> 20
}

fn text() -> String {
    String::from_utf8(ITEM.into()).expect("it is text")
}

fn open(directory: &Path) -> DB {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_compression_type(DBCompressionType::Lz4);
    DB::open(&options, directory).expect("the database opens")
}

/// What a user would write by hand: a counter for keys, and items in JSON.
fn by_hand(item: &String, pushes: u64, batch: u64, synced: bool) -> Cost {
    let dir = tempfile::tempdir().expect("a directory for the database");
    let db = open(dir.path());
    let mut write = WriteOptions::default();
    write.set_sync(synced);
    let begun = Stopwatch::now();
    for first in (0..pushes).step_by(batch as usize) {
        let mut puts = WriteBatch::default();
        for index in first..pushes.min(first + batch) {
            puts.put(index.to_be_bytes(), serde_json::to_vec(item).expect("it is text"));
        }
        db.write_opt(puts, &write).expect("the disk takes it");
    }
    begun.elapsed()
}

/// Returns an item of 100 bytes that are not text.
fn binary() -> Vec<u8> {
    (0..100).map(|at: u8| at.wrapping_mul(167)).collect()
}

/// Returns the hexadecimal digits of these bytes.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Pushes this many blocks from several threads.
fn pushed<T, C>(codec: C, blocks: u64, threads: u64, block: &[T], durability: Durability) -> Cost
where
    T: Send + Sync + 'static,
    C: Codec<T>,
{
    let dir = tempfile::tempdir().expect("a directory for the database");
    let store = Store::options().durability(durability).open(dir.path()).expect("the database opens");
    let log = store.log_with("l", codec).expect("it opens");
    let begun = Stopwatch::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let log = log.clone();
            let share = blocks * (thread + 1) / threads - blocks * thread / threads;
            scope.spawn(move || (0..share).for_each(|_| push(&log, block)));
        }
    });
    begun.elapsed()
}

fn push<T, C: Codec<T>>(log: &JobLog<T, C>, block: &[T]) {
    log.push_all(block).expect("the disk takes it");
}

fn consuming(table: &Table, block: &[String]) {
    let name = "log: a million items, consumed";
    if !table.wants(name) {
        return;
    }
    let [ours, theirs] = [(); 2].map(|()| tempfile::tempdir().expect("a directory for the database"));
    let store = Store::open(ours.path()).expect("the database opens");
    let log = store.log::<String>("l").expect("it opens");
    let db = open(theirs.path());
    for first in (0..ITEMS).step_by(block.len()) {
        let mut puts = WriteBatch::default();
        for (index, item) in (first..ITEMS).zip(block) {
            puts.put(index.to_be_bytes(), serde_json::to_vec(item).expect("it is text"));
        }
        db.write(puts).expect("the disk takes it");
        log.push_all(&block[..block.len().min((ITEMS - first) as usize)]).expect("the disk takes it");
    }
    let iterate = || {
        let begun = Stopwatch::now();
        for pair in db.iterator(IteratorMode::Start) {
            black_box(serde_json::from_slice::<String>(&pair.expect("it is read").1).expect("it is text"));
        }
        begun.elapsed()
    };
    let round = std::cell::Cell::new(0);
    let consume = || {
        round.set(round.get() + 1);
        consumed(&store, &log, ITEMS, round.get())
    };
    table.row(Row { name, floor: "iterate, decode", times: ITEMS, most: 2.0 }, iterate, consume);
}

fn consuming_bytes(table: &Table, digits: &[String], bytes: &[Vec<u8>]) {
    let name = "log: consumed, Bytes";
    if !table.wants(name) {
        return;
    }
    let (_digits, as_json) = filled(Json, digits);
    let (_bytes, as_bytes) = filled(Bytes, bytes);
    let round = std::cell::Cell::new(0);
    table.row(
        Row { name, floor: "as JSON", times: ITEMS, most: 0.8 },
        || {
            round.set(round.get() + 1);
            consumed(&as_json.0, &as_json.1, ITEMS, round.get())
        },
        || consumed(&as_bytes.0, &as_bytes.1, ITEMS, round.get()),
    );
}

/// Returns a log of a million items, with its store and its directory.
fn filled<T: Send + 'static, C: Codec<T>>(codec: C, block: &[T]) -> (tempfile::TempDir, (Store, JobLog<T, C>)) {
    let dir = tempfile::tempdir().expect("a directory for the database");
    let store = Store::open(dir.path()).expect("the database opens");
    let log = store.log_with("l", codec).expect("it opens");
    for first in (0..ITEMS).step_by(block.len()) {
        push(&log, &block[..block.len().min((ITEMS - first) as usize)]);
    }
    (dir, (store, log))
}

/// Measures whether reads at the front stay fast.
fn front(table: &Table, block: &[String]) {
    let name = "log: read in front, after 10 million";
    if !table.wants(name) {
        return;
    }
    const READS: Index = 2_000;
    let fresh_dir = tempfile::tempdir().expect("a directory for the database");
    let fresh = Store::open(fresh_dir.path()).expect("the database opens").log("l").expect("it opens");
    (0..KEPT).for_each(|_| push(&fresh, block));
    let (_dir, log) = turned_over(block);
    table.row(
        Row { name, floor: "at the start", times: READS, most: 2.0 },
        || reads(&fresh, READS),
        || reads(&log, READS),
    );
}

/// Returns a log of ten million items, all but a few blocks of which are trimmed.
fn turned_over(block: &[String]) -> (tempfile::TempDir, JobLog<String>) {
    let dir = tempfile::tempdir().expect("a directory for the database");
    let log = Store::open(dir.path()).expect("the database opens").log("l").expect("it opens");
    for _ in 0..TURNOVER / BLOCK {
        push(&log, block);
        let head = log.head().expect("it is known").unwrap_or(0);
        log.trim(..=head.saturating_sub(KEPT * BLOCK)).expect("the disk takes it");
    }
    (dir, log)
}

fn reads(log: &JobLog<String>, reads: Index) -> Cost {
    let first = log.first().expect("it is known");
    let begun = Stopwatch::now();
    for by in 0..reads {
        black_box(log.at_index(first + by).expect("it is read").expect("it is there"));
    }
    begun.elapsed()
}
