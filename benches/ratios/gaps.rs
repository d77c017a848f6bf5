//! Sources whose indices have gaps. The floor is the same number of jobs without gaps, from a
//! source that has `read` alone: it pays for nothing of this, and its jobs come from the tray.
//!
//! * **every second a gap**, **a marker after ten**: gaps between the jobs, as in a table with
//!   deleted rows, or in a log with a marker after each transaction.
//! * **no gap, read_sparse**: the cost of the call itself.

use crate::cost::{Cost, Stopwatch};
use crate::ours::JOBS;
use crate::sources::Numbers;
use crate::table::{Row, Table};
use std::hint::black_box;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use waterline::window::{Action, Limits, Window};
use waterline::{BoxError, Consumer, Index, Jobs, MemoryProgress, Sparse};

/// The first `jobs` of each `of` indices have jobs, and the others are a gap.
#[derive(Clone)]
struct Blocks {
    jobs: u64,
    of: u64,
    head: Index,
    reads: Arc<AtomicU64>,
}

impl Blocks {
    /// A source with this many jobs.
    fn new(jobs: u64, of: u64, all: u64) -> Self {
        Self { jobs, of, head: all / jobs * of - 1, reads: Arc::default() }
    }
}

impl Jobs for Blocks {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(self.head))
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        Ok((index % self.of < self.jobs).then_some(index))
    }

    fn read_sparse(&self, run: RangeInclusive<Index>, most: usize, into: &mut Sparse<Index>) -> Result<(), BoxError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let (mut index, mut left) = (*run.start(), most);
        let mut at = index % self.of;
        while left > 0 && index <= *run.end() {
            if at >= self.jobs {
                (index, at) = (index + self.of - at, 0);
                continue;
            }
            into.job(index, index);
            (index, at, left) = (index + 1, at + 1, left - 1);
        }
        if at >= self.jobs {
            index += self.of - at;
        }
        if index > into.next() {
            into.none_through(index - 1);
        }
        Ok(())
    }
}

fn consume(jobs: impl Jobs<Job = Index>, threads: usize, last: Index) -> Cost {
    let begun = Stopwatch::now();
    let builder = Consumer::builder(jobs, MemoryProgress::new()).max_processing(threads);
    let consumer = builder.max_search_ahead(200_000).stop_at(last).start(|job| {
        black_box(job.payload);
        Ok(())
    });
    consumer.and_then(Consumer::join).expect("jobs that do nothing do not fail");
    begun.elapsed()
}

pub(crate) fn rows(table: &Table) {
    for (name, jobs, of, most) in
        [("no gap, read_sparse", 1, 1, 1.3), ("every second a gap", 1, 2, 8.0), ("a marker after ten", 10, 11, 5.0)]
    {
        for threads in [1, 2] {
            let name = format!("gaps: {name}, max_processing {threads}");
            let row = Row { name: &name, floor: "read", times: JOBS, most };
            table.row(
                row,
                || consume(Numbers(JOBS), threads, JOBS - 1),
                || {
                    let source = Blocks::new(jobs, of, JOBS);
                    let head = source.head;
                    consume(source, threads, head)
                },
            );
        }
    }
}

/// Returns the reads per job if one in a thousand indices has one.
pub(crate) fn reads_a_job() -> f64 {
    let jobs = 10_000;
    let source = Blocks::new(1, 1_000, jobs);
    let builder = Consumer::builder(source.clone(), MemoryProgress::new()).max_search_ahead(1_000_000);
    let consumer = builder.stop_at(source.head).start(|_| Ok(())).expect("it starts");
    consumer.join().expect("jobs that do nothing do not fail");
    source.reads.load(Ordering::Relaxed) as f64 / jobs as f64
}

/// Returns the milliseconds that the core takes for a save with a stuck job and 100,000 jobs done
/// above it, at every second index.
pub(crate) fn save_ms() -> f64 {
    let done = 100_000;
    let mut window = Window::begin(0, Limits { max_processing: 64, max_search_ahead: 4 * done });
    window.keep_done_ahead();
    window.handle_head(Some(2 * done + 1));
    let mut completed = 0;
    while completed < done {
        while let Some(action) = window.poll() {
            if let Action::Fetch(run) = action {
                let most = (run.end() - run.start() + 1).div_ceil(2);
                for index in (*run.start()..).step_by(2).take(most as usize) {
                    window.handle_part(index..=index);
                    window.handle_gap(index + 1..=index + 1, Index::MAX);
                }
                window.handle_fetched(0);
            }
        }
        while let Some(run) = window.poll_run() {
            if run.index > 0 {
                window.handle_done(run.index);
                completed += 1;
            }
        }
    }
    let begun = Instant::now();
    let save = window.handle_saving().expect("jobs have finished");
    let (listed, words) = (save.ahead.new.map(<[Index]>::to_vec), save.ahead.words().1.collect::<Vec<_>>());
    black_box((listed, words));
    begun.elapsed().as_secs_f64() * 1000.0
}
