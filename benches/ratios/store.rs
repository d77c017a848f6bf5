//! Tables and writes of a user, beside the RocksDB calls that they would make by hand.
//!
//! RocksDB walks backwards more slowly than forwards: 10 rows from the end take 1.4 times as long
//! as 10 rows from the beginning if the rows are in files, and twice as long while they are in
//! memory. Neither depends on the number of rows. Reading many keys at once pays off if the rows
//! are in files.

use crate::cost::{Cost, Stopwatch};
use crate::table::{Row, Table};
use rocksdb::{DB, DBCompressionType, Options, WriteBatch, WriteOptions};
use std::cell::Cell;
use std::hint::black_box;
use std::path::Path;
use waterline::{Durability, Store};

const WRITES: u64 = 100_000;
const BLOCK: u64 = 256;
/// Few enough writes to flush one by one in a moment.
const SYNCED: u64 = 1_024;
const ROWS: u64 = 500_000;
const LOOKS: u64 = 2_000;
/// The rows that a short look reads at one end of a table.
const SHORT: usize = 10;
const VALUE: [u8; 100] = [7; 100];

pub(crate) fn rows(table: &Table) {
    let row = Row { name: "store.write of a row", floor: "put by hand", times: WRITES, most: 3.0 };
    table.row(row, || by_hand(WRITES, 1, false), || written(WRITES, 1, 1, Durability::Buffered));
    let row = Row { name: "store.write of 256 rows", floor: "batch", times: WRITES, most: 2.0 };
    table.row(row, || by_hand(WRITES, BLOCK, false), || written(WRITES, BLOCK, 1, Durability::Buffered));
    let row = Row { name: "synced store.write, 8 threads", floor: "one by one", times: SYNCED, most: 0.4 };
    table.row(row, || by_hand(SYNCED, 1, true), || written(SYNCED, 1, 8, Durability::Synced));
    looks(table);
    let row = Row { name: "clear of 100 thousand rows", floor: "row by row", times: WRITES, most: 0.01 };
    table.row(row, || emptied(false), || emptied(true));
}

fn open(directory: &Path) -> DB {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_compression_type(DBCompressionType::Lz4);
    DB::open(&options, directory).expect("the database opens")
}

fn by_hand(writes: u64, batch: u64, synced: bool) -> Cost {
    let dir = tempfile::tempdir().expect("a directory for the database");
    let db = open(dir.path());
    let mut write = WriteOptions::default();
    write.set_sync(synced);
    let begun = Stopwatch::now();
    for first in (0..writes).step_by(batch as usize) {
        let mut puts = WriteBatch::default();
        (first..writes.min(first + batch)).for_each(|index| puts.put(index.to_be_bytes(), VALUE));
        db.write_opt(puts, &write).expect("the disk takes it");
    }
    begun.elapsed()
}

/// Writes this many rows from several threads, in batches.
fn written(writes: u64, batch: u64, threads: u64, durability: Durability) -> Cost {
    let dir = tempfile::tempdir().expect("a directory for the database");
    let store = Store::options().durability(durability).open(dir.path()).expect("the database opens");
    let rows = store.table("r").expect("a name");
    let begun = Stopwatch::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (store, rows) = (&store, &rows);
            let share = writes * thread / threads..writes * (thread + 1) / threads;
            scope.spawn(move || {
                for first in share.clone().step_by(batch as usize) {
                    let written = store.write(|effects| {
                        let mut rest = first..share.end.min(first + batch);
                        rest.try_for_each(|index| effects.put(rows, index.to_be_bytes(), VALUE))
                    });
                    written.expect("the disk takes it");
                }
            });
        }
    });
    begun.elapsed()
}

/// Returns a store with a table of this many rows.
fn filled(directory: &Path, rows: u64) -> (Store, waterline::Table) {
    let store = Store::open(directory).expect("the database opens");
    let table = store.table("r").expect("a name");
    for first in (0..rows).step_by(BLOCK as usize) {
        let written = store.write(|effects| {
            (first..rows.min(first + BLOCK)).try_for_each(|index| effects.put(&table, index.to_be_bytes(), VALUE))
        });
        written.expect("the disk takes it");
    }
    (store, table)
}

/// Rows from the end beside as many from the beginning, and many keys in one call beside as many
/// calls.
fn looks(table: &Table) {
    let names = ["10 rows from the end", "multi_get of 256 rows"];
    if !names.iter().any(|name| table.wants(name)) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory for the database");
    drop(filled(dir.path(), ROWS));
    // Opened again, the store has its rows in files, as most stores do.
    let store = Store::open(dir.path()).expect("the database opens");
    let rows = store.table("r").expect("a name");
    // Each look begins elsewhere.
    let number = Cell::new(1u64);
    let next = || {
        number.set(number.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
        (number.get() >> 33) % ROWS
    };
    let walk = |from_end: bool| {
        let begun = Stopwatch::now();
        for _ in 0..LOOKS {
            let at = next().to_be_bytes();
            let walk = if from_end { rows.range_rev(..at) } else { rows.range(at..) };
            walk.take(SHORT).for_each(|row| drop(black_box(row.expect("it is read"))));
        }
        begun.elapsed()
    };
    let row = Row { name: names[0], floor: "from the beginning", times: LOOKS, most: 1.5 };
    table.row(row, || walk(false), || walk(true));
    let keys = || (0..BLOCK).map(|_| next().to_be_bytes()).collect::<Vec<_>>();
    let one_by_one = || {
        let looked_up = (0..LOOKS / 10).map(|_| {
            let keys = keys();
            let begun = Stopwatch::now();
            keys.iter().for_each(|key| drop(black_box(rows.get(key).expect("it is read"))));
            begun.elapsed()
        });
        looked_up.sum::<Cost>()
    };
    let at_once = || {
        let looked_up = (0..LOOKS / 10).map(|_| {
            let keys = keys();
            let begun = Stopwatch::now();
            black_box(rows.multi_get(&keys).expect("it is read"));
            begun.elapsed()
        });
        looked_up.sum::<Cost>()
    };
    let row = Row { name: names[1], floor: "256 gets", times: LOOKS / 10 * BLOCK, most: 1.0 };
    table.row(row, one_by_one, at_once);
}

/// Empties a table of many rows: as one range, or row by row in batches.
fn emptied(at_once: bool) -> Cost {
    let dir = tempfile::tempdir().expect("a directory for the database");
    let (store, table) = filled(dir.path(), WRITES);
    let begun = Stopwatch::now();
    if at_once {
        store.write(|effects| effects.clear(&table)).expect("the disk takes it");
        return begun.elapsed();
    }
    for first in (0..WRITES).step_by(BLOCK as usize) {
        let written = store.write(|effects| {
            (first..WRITES.min(first + BLOCK)).try_for_each(|index| effects.delete(&table, index.to_be_bytes()))
        });
        written.expect("the disk takes it");
    }
    begun.elapsed()
}
