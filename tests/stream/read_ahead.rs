//! The memory of jobs that are read and not yet handed out.

use common::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use waterline::{BoxError, Index, Jobs, MemoryProgress, Retry, Store};

const MIB: usize = 1 << 20;

/// A source that weighs its jobs, and notes the most that ever waited.
#[derive(Clone)]
struct Heavy(Arc<State>);

struct State {
    jobs: u64,
    /// The weight of a job by its index.
    weight: fn(Index) -> usize,
    read: AtomicU64,
    started: AtomicU64,
    most: AtomicU64,
}

impl Heavy {
    fn new(jobs: u64, weight: fn(Index) -> usize) -> Self {
        let [read, started, most] = [(); 3].map(|()| AtomicU64::new(0));
        Self(Arc::new(State { jobs, weight, read, started, most }))
    }

    fn started(&self) {
        self.0.started.fetch_add(1, Ordering::SeqCst);
    }

    fn most(&self) -> u64 {
        self.0.most.load(Ordering::SeqCst)
    }
}

impl Jobs for Heavy {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(self.0.jobs - 1))
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        let read = self.0.read.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.most.fetch_max(read - self.0.started.load(Ordering::SeqCst), Ordering::SeqCst);
        Ok((index < self.0.jobs).then_some(index))
    }

    fn weight(&self, job: &Index) -> usize {
        (self.0.weight)(*job)
    }
}

/// Runs all of these jobs, one at a time.
fn run(source: &Heavy, max_read_ahead: usize) {
    let seen = source.clone();
    let consumer = builder(source.clone(), &MemoryProgress::new())
        .max_processing(1)
        .max_read_ahead(max_read_ahead)
        .retry(Retry::fixed(std::time::Duration::ZERO))
        .stop_at(source.0.jobs - 1)
        .start(move |job| {
            seen.started();
            // Each tenth job fails once, and is read again.
            if job.index % 10 == 9 && job.attempt == 1 { Err("once".into()) } else { Ok(()) }
        })
        .unwrap();
    consumer.join().unwrap();
}

#[test]
fn large_jobs_are_read_ahead_by_weight() {
    let source = Heavy::new(500, |_| MIB);
    run(&source, 4 * MIB);
    // The first run is read before any weight is known; later runs fit. One more is in flight, and
    // one may be read for its retry.
    assert!(source.most() <= 8 + 2, "{} jobs of 1 MiB waited", source.most());
}

#[test]
fn jobs_heavier_than_the_bound_are_read_singly() {
    let source = Heavy::new(200, |index| if index < 8 { 1 } else { 64 * MIB });
    run(&source, MIB);
    // The light jobs of the first run let one run of 64 heavy jobs through.
    assert!(source.most() <= 64 + 2, "{} jobs waited", source.most());
    let source = Heavy::new(200, |_| 64 * MIB);
    run(&source, MIB);
    assert!(source.most() <= 8 + 2, "{} jobs of 64 MiB waited", source.most());
}

#[test]
fn light_jobs_are_read_as_far_ahead_as_ever() {
    let source = Heavy::new(500, |_| 8);
    let (worker, started) = manual_worker();
    let consumer = builder(source.clone(), &MemoryProgress::new()).max_processing(1).start_worker(worker).unwrap();
    let first = started.job(0);
    eventually("a full read-ahead buffer", || source.0.read.load(Ordering::SeqCst) >= 60);
    consumer.handle().request_stop();
    first.succeed();
    consumer.join().unwrap();
}

#[test]
fn a_panicking_weight_is_an_error_of_the_source() {
    let source = Heavy::new(3, |index| if index == 1 { panic!("no weight") } else { 1 });
    let consumer = builder(source, &MemoryProgress::new()).stop_at(2).start(|_| Ok(())).unwrap();
    consumer.join().unwrap();
}

#[test]
fn a_log_weighs_by_the_mean_length_last_read() {
    let log = Store::in_memory().log::<String>("texts").unwrap();
    log.push_all(&["x".repeat(1_000), "x".repeat(3_000)]).unwrap();
    let mut items = Vec::new();
    log.read(1..=2, &mut items).unwrap();
    // JSON adds two quotes.
    assert_eq!(items.iter().map(|item| log.weight(item)).collect::<Vec<_>>(), [2_002, 2_002]);
}
