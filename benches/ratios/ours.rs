//! Our consumers, as several benchmarks measure them.

use crate::cost::{Cost, Stopwatch};
#[cfg(any(feature = "rocksdb", feature = "sqlite"))]
use crate::counted;
use crate::sources::{Numbers, Slow};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use waterline::{Builder, Consumer, Event, Index, Jobs, MemoryProgress, Progress};

/// The jobs of a round.
pub const JOBS: u64 = 500_000;
/// Jobs that take a fifth of a second if they are read one by one.
pub const SLOW_JOBS: u64 = 192;

/// Runs a consumer from start to end.
pub fn consume(progress: impl Progress, max_processing: usize) -> Cost {
    consume_from(Numbers(JOBS), progress, max_processing)
}

pub fn consume_from(jobs: impl Jobs<Job = Index>, progress: impl Progress, max_processing: usize) -> Cost {
    run(Consumer::builder(jobs, progress).max_processing(max_processing))
}

/// Runs a consumer with an observer that only counts.
pub fn consume_observed(max_processing: usize) -> Cost {
    let heard = AtomicU64::new(0);
    let count = move |_: &Event<'_>| _ = heard.fetch_add(1, Ordering::Relaxed);
    run(Consumer::builder(Numbers(JOBS), MemoryProgress::new()).max_processing(max_processing).observe(count))
}

pub fn run(builder: Builder<impl Jobs<Job = Index>, impl Progress>) -> Cost {
    let begun = Stopwatch::now();
    let consumer = builder.max_search_ahead(100_000).stop_at(JOBS - 1).start(|job| {
        black_box(job.payload);
        Ok(())
    });
    consumer.and_then(Consumer::join).expect("jobs that do nothing do not fail");
    begun.elapsed()
}

/// Runs a consumer of a source that takes a millisecond for each call.
pub fn consume_slowly(in_runs: bool) -> Cost {
    let begun = Stopwatch::now();
    let consumer = Consumer::builder(Slow { jobs: SLOW_JOBS, in_runs }, MemoryProgress::new())
        .max_processing(8)
        .stop_at(SLOW_JOBS - 1)
        .start(|_| Ok(()));
    consumer.and_then(Consumer::join).expect("jobs that do nothing do not fail");
    begun.elapsed()
}

/// Consumes this many items of a log, with the progress of this round.
#[cfg(any(feature = "rocksdb", feature = "sqlite"))]
pub fn consumed<T: Send + 'static, C: waterline::Codec<T>>(
    store: &waterline::Store,
    log: &waterline::JobLog<T, C>,
    items: u64,
    round: u64,
) -> Cost {
    let begun = Stopwatch::now();
    let consumer = Consumer::builder(log.clone(), store.progress(format!("{round}")))
        .max_processing(2)
        .max_search_ahead(100_000)
        .stop_at(items)
        .start(|job| {
            black_box(job.payload);
            Ok(())
        });
    consumer.and_then(Consumer::join).expect("jobs that do nothing do not fail");
    begun.elapsed()
}

/// The jobs that put a row and add to a counter.
#[cfg(any(feature = "rocksdb", feature = "sqlite"))]
pub const COUNTED: u64 = 200_000;

#[cfg(any(feature = "rocksdb", feature = "sqlite"))]
pub fn counted_by_hand<D: counted::Database>() -> Cost {
    let dir = tempfile::tempdir().expect("a directory for the database");
    let mut database = D::create(dir.path());
    let begun = Stopwatch::now();
    counted::by_hand(&mut database, COUNTED, 256, |_| ());
    begun.elapsed()
}

#[cfg(any(feature = "rocksdb", feature = "sqlite"))]
pub fn counted_by_jobs(open: impl Fn(&std::path::Path) -> waterline::Store, max_processing: usize) -> Cost {
    let dir = tempfile::tempdir().expect("a directory for the database");
    let store = open(dir.path());
    let begun = Stopwatch::now();
    counted::by_jobs(&store, COUNTED, max_processing, |_| ());
    begun.elapsed()
}
