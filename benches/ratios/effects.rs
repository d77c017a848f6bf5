//! Jobs whose effects are written with their completion, beside writes to RocksDB by hand.

use crate::cost::{Cost, Stopwatch};
use crate::ours::{COUNTED, counted_by_hand, counted_by_jobs};
use crate::sources::Numbers;
use crate::table::{Row, Table};
use rocksdb::{DB, DBCompressionType, Options, WriteBatch, WriteOptions};
use std::path::Path;
use waterline::{Consumer, Durability, Store};

const JOBS: u64 = 200_000;
/// Few enough jobs to flush one by one in a moment.
const SYNCED_JOBS: u64 = 1_000;
const VALUE: [u8; 100] = [7; 100];

pub(crate) fn rows(table: &Table) {
    let row = Row { name: "put per job, max_processing 2", floor: "batches of 256", times: JOBS, most: 2.0 };
    table.row(row, || by_hand(JOBS, 256, false), || transactional(JOBS, 2, Durability::Buffered));
    let row = Row { name: "put per job, max_processing 64", floor: "batches of 256", times: JOBS, most: 2.0 };
    table.row(row, || by_hand(JOBS, 256, false), || transactional(JOBS, 64, Durability::Buffered));
    let row =
        Row { name: "put per job, max_processing 64, synced", floor: "one by one", times: SYNCED_JOBS, most: 0.05 };
    table.row(row, || by_hand(SYNCED_JOBS, 1, true), || transactional(SYNCED_JOBS, 64, Durability::Synced));
    for max_processing in [2, 64] {
        let name = format!("put + add per job, max_processing {max_processing}");
        let row = Row { name: &name, floor: "batches of 256", times: COUNTED, most: 2.5 };
        let open = |path: &Path| Store::open(path).expect("the database opens");
        table.row(row, counted_by_hand::<DB>, || counted_by_jobs(open, max_processing));
    }
}

/// What a user would write by hand: all jobs in order, on one thread, without progress.
fn by_hand(jobs: u64, batch: u64, synced: bool) -> Cost {
    let dir = tempfile::tempdir().expect("a directory for the database");
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_compression_type(DBCompressionType::Lz4);
    let db = DB::open(&options, dir.path()).expect("the database opens");
    let mut write = WriteOptions::default();
    write.set_sync(synced);
    let begun = Stopwatch::now();
    for first in (0..jobs).step_by(batch as usize) {
        let mut puts = WriteBatch::default();
        (first..jobs.min(first + batch)).for_each(|index| puts.put(index.to_be_bytes(), VALUE));
        db.write_opt(puts, &write).expect("the disk takes it");
    }
    begun.elapsed()
}

fn transactional(jobs: u64, max_processing: usize, durability: Durability) -> Cost {
    let dir = tempfile::tempdir().expect("a directory for the database");
    let store = Store::options().durability(durability).open(dir.path()).expect("the database opens");
    let rows = store.table("r").expect("a name");
    let begun = Stopwatch::now();
    let consumer = Consumer::builder(Numbers(jobs), store.progress("effects"))
        .max_processing(max_processing)
        .max_search_ahead(100_000)
        .stop_at(jobs - 1)
        .start_transactional(move |job, effects| Ok(effects.put(&rows, job.payload.to_be_bytes(), VALUE)?));
    consumer.and_then(Consumer::join).expect("the disk takes it");
    begun.elapsed()
}
