//! What a job costs, as a ratio to a floor that is measured in the same run: `make bench` prints one table.
//!
//! Machines are noisy, so nothing is compared across runs. Each ratio is that of the medians of seven rounds, in which floor and
//! subject take turns within one process. The job is a no-op whose payload is its index.
//!
//! * **hop**: one message through a bounded crossbeam channel (1024), one producer and one consumer. The least that anything
//!   which hands jobs from one thread to another can cost.
//! * **straggler**: the pure core with the first job stuck, so that everything finishes above the watermark. The cost of a
//!   completion must not depend on how wide the window is.
//! * **store**: progress in RocksDB instead of in memory.
//!
//! On two virtual cores: a job costs 4.5 to 7.7 hops (99 to 172 ns beside a hop of 22 ns). What is left is a lock, a reading of
//! the clock, and handing runs of at most 64 jobs from the reader to the worker. Before threads stayed awake for a moment
//! instead of being woken it was 5 to 24 hops. A completion costs 4 ns in the core at any width; RocksDB costs nothing that
//! can be told from noise.

use std::hint::black_box;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};
use waterline::window::{Action, Limits, Window};
use waterline::{BoxError, Consumer, Index, Jobs, MemoryProgress, Progress};

const ROUNDS: usize = 7;
const JOBS: u64 = 500_000;
const COMPLETIONS: u64 = 1_000_000;

/// 0, 1, 2, …: a source that costs nothing.
struct Numbers(u64);

impl Jobs for Numbers {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(self.0 - 1))
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        Ok(Some(index))
    }

    fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<Index>) -> Result<(), BoxError> {
        into.extend(run);
        Ok(())
    }
}

/// The floor: a message from one thread to another.
fn hop() -> Duration {
    let begun = Instant::now();
    let (sender, receiver) = crossbeam_channel::bounded::<Index>(1024);
    std::thread::scope(|scope| {
        scope.spawn(move || (0..JOBS).try_for_each(|index| sender.send(index)));
        assert_eq!(receiver.iter().map(black_box).count() as u64, JOBS);
    });
    begun.elapsed()
}

/// A consumer from start to end.
fn consume(progress: impl Progress, max_processing: usize) -> Duration {
    let begun = Instant::now();
    let consumer = Consumer::builder(Numbers(JOBS), progress)
        .max_processing(max_processing)
        .max_search_ahead(100_000)
        .stop_at(JOBS - 1)
        .start(|job| {
            black_box(job.payload);
            Ok(())
        });
    consumer.and_then(Consumer::join).expect("jobs that do nothing do not fail");
    begun.elapsed()
}

/// A million completions in the pure core, in as many windows as that takes, with the first job of each stuck.
fn straggle(width: u64) -> Duration {
    let limits = Limits { max_processing: 64, max_search_ahead: width };
    let begun = Instant::now();
    for _ in 0..COMPLETIONS / width {
        let mut window = Window::begin(0, limits);
        window.handle_head(Some(Index::MAX - 1));
        let mut completed = 0;
        while completed < width - 1 {
            while let Some(action) = window.poll() {
                if let Action::Fetch(run) = action {
                    window.handle_fetched(run.end() - run.start() + 1);
                }
            }
            while let Some(run) = window.poll_run() {
                if run.index > 0 {
                    black_box(window.handle_done(run.index));
                    completed += 1;
                }
            }
        }
        assert_eq!((window.done_ahead(), window.lowest_undone()), (width - 1, 0));
    }
    begun.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// The medians of a floor and a subject that take turns.
fn in_turn(floor: impl Fn() -> Duration, subject: impl Fn() -> Duration) -> (Duration, Duration) {
    let (floors, subjects) = (0..ROUNDS).map(|_| (floor(), subject())).unzip();
    (median(floors), median(subjects))
}

fn each(time: Duration, count: u64) -> f64 {
    time.as_nanos() as f64 / count as f64
}

fn line(what: &str, floor: (&str, f64), subject: f64) {
    println!(
        "| {what:<42} | {:>22} | {subject:>7.0} ns | {:>5.2} |",
        format!("{} {:.0} ns", floor.0, floor.1),
        subject / floor.1
    );
}

fn main() {
    println!("| {:<42} | {:>22} | {:>10} | {:>5} |", "per job", "floor", "ours", "ratio");
    println!("|{:-<44}|{:->24}|{:->12}|{:->7}|", "", ":", ":", ":");
    for max_processing in [1, 2, 8, 64, 1024] {
        let (floor, ours) = in_turn(hop, || consume(MemoryProgress::new(), max_processing));
        line(&format!("no-op, max_processing {max_processing}"), ("hop", each(floor, JOBS)), each(ours, JOBS));
    }
    for width in [10_000, 100_000, 1_000_000] {
        let (floor, ours) = in_turn(|| straggle(1_000), || straggle(width));
        let floor = ("window 1000", each(floor, COMPLETIONS));
        line(&format!("first job stuck, window {width}"), floor, each(ours, COMPLETIONS));
    }
    #[cfg(feature = "rocksdb")]
    on_rocksdb();
}

#[cfg(feature = "rocksdb")]
fn on_rocksdb() {
    use waterline::{Durability, Store};
    for durability in [Durability::Buffered, Durability::Synced] {
        let dir = tempfile::tempdir().expect("a directory for the database");
        let store = Store::options().durability(durability).open(dir.path()).expect("the database opens");
        let round = std::cell::Cell::new(0);
        let (floor, ours) = in_turn(
            || consume(MemoryProgress::new(), 2),
            || {
                round.set(round.get() + 1);
                consume(store.progress(format!("round {}", round.get())), 2)
            },
        );
        line(&format!("progress in RocksDB, {durability:?}"), ("memory", each(floor, JOBS)), each(ours, JOBS));
    }
}
