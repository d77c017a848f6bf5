//! Jobs in batches of 256, compared with the same jobs one by one.

use crate::cost::{Cost, Stopwatch};
use crate::ours::{JOBS, consume};
use crate::sources::Numbers;
use crate::table::{Row, Table};
use std::hint::black_box;
use std::time::Duration;
use waterline::{Consumer, MemoryProgress};

/// The most jobs in a batch.
const MOST: usize = 256;

/// How long a batch waits for more jobs: longer than any wait for a source in memory.
const LINGER: Duration = Duration::from_millis(1);

pub(crate) fn rows(table: &Table) {
    for max_processing in [256, 1024] {
        let name = format!("no-op in batches of {MOST}, max {max_processing}");
        let row = Row { name: &name, floor: "one by one", times: JOBS, most: 1.0 };
        table.row(row, || consume(MemoryProgress::new(), max_processing), || in_batches(max_processing));
    }
}

fn in_batches(max_processing: usize) -> Cost {
    let begun = Stopwatch::now();
    let consumer = Consumer::builder(Numbers(JOBS), MemoryProgress::new())
        .max_processing(max_processing)
        .max_search_ahead(100_000)
        .stop_at(JOBS - 1)
        .start_batched(MOST, LINGER, |jobs| {
            black_box(jobs.iter().map(|job| job.payload).sum::<u64>());
            Ok(())
        });
    consumer.and_then(Consumer::join).expect("jobs that do nothing do not fail");
    begun.elapsed()
}
