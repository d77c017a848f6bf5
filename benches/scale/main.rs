//! What many processors would see: how long each job holds what only one can hold, and what follows
//! from that for 4, 16 and 64 of them.
//!
//! `make bench ARGS=scale` measures consumers of one and of two workers, whose jobs take 0, 1, 10
//! and 100 µs of a processor, with their progress in memory and on RocksDB. A sample of all locks
//! is timed; the hidden feature `_counted` is for this alone. From what one worker needs, the model
//! computes the jobs a second of more workers. For two that is compared with the measured rate,
//! and on a machine with more processors, for all of them.
//!
//! The model is one of queues, so it knows nothing of caches that are too small, of a memory that
//! is too slow, or of processors that share their units.

mod model;
#[path = "../ratios/sources.rs"]
#[allow(dead_code)]
mod sources;

use self::model::{Job, LINES, MOVE};
use self::sources::Numbers;
use std::hint::{black_box, spin_loop};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use waterline::{BoxError, Consumer, Counted, Index, Jobs, LockTimes, MemoryProgress, Progress, Store, take_counted};

const ROUNDS: usize = 5;
/// How long a run takes, about.
const RUN: Duration = Duration::from_millis(400);
const LONG: Duration = Duration::from_secs(60);

/// A source, and how long it is read.
struct Timed(Numbers, Arc<AtomicU64>);

impl Jobs for Timed {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        self.0.head()
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        self.0.at_index(index)
    }

    fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<Index>) -> Result<(), BoxError> {
        let begun = Instant::now();
        let read = self.0.read(run, into);
        self.1.fetch_add(nanos(begun.elapsed()) as u64, Ordering::Relaxed);
        read
    }
}

/// What was measured of a run, in nanoseconds a job.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    wall: f64,
    locks: [LockTimes; 3],
    jobs: f64,
    source: f64,
    wakeups: f64,
}

impl Measured {
    fn of(&self, lock: Counted) -> &LockTimes {
        &self.locks[lock as usize]
    }

    fn visits(&self, lock: Counted) -> f64 {
        self.of(lock).taken as f64 / self.jobs
    }

    /// How long a visit holds the lock, and how long it waits for it.
    fn times(&self, lock: Counted, clock: f64) -> (f64, f64) {
        let LockTimes { measured, waited, held, .. } = *self.of(lock);
        let mean = |sum: u64| (sum as f64 / (measured.max(1)) as f64 - clock).max(0.0);
        if measured == 0 { (0.0, 0.0) } else { (mean(held), mean(waited)) }
    }
}

fn nanos(time: Duration) -> f64 {
    time.as_secs_f64() * 1e9
}

/// Uses a processor for so long.
fn spin(time: Duration) {
    if time.is_zero() {
        return;
    }
    let until = Instant::now() + time;
    while Instant::now() < until {
        spin_loop();
    }
}

/// The sleeps of all threads of the process but this one, which threads that run have had so far.
fn sleeps() -> u64 {
    let own = std::process::id().to_string();
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let others = tasks.filter(|task| *task.file_name() != *own);
    let of = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:").map(str::to_owned));
        line.and_then(|count| count.trim().parse().ok()).unwrap_or(0_u64)
    };
    others.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok()).map(of).sum()
}

fn run(progress: impl Progress, workers: usize, time: Duration, jobs: u64) -> Measured {
    let read = Arc::new(AtomicU64::new(0));
    let before = sleeps();
    let begun = Instant::now();
    let consumer = Consumer::builder(Timed(Numbers(jobs), read.clone()), progress)
        .max_processing(workers)
        .max_search_ahead(100_000)
        .stop_at(jobs - 1)
        .start(move |job| {
            black_box(job.payload);
            spin(time);
            Ok(())
        })
        .expect("it starts");
    assert!(consumer.handle().wait_for(jobs - 1, LONG), "it hangs");
    let (wall, wakeups) = (begun.elapsed(), sleeps().saturating_sub(before));
    consumer.join().expect("jobs that only take time do not fail");
    let number = jobs as f64;
    Measured {
        wall: nanos(wall) / number,
        jobs: number,
        source: read.load(Ordering::Relaxed) as f64 / number,
        wakeups: wakeups as f64 / number,
        ..Measured::default()
    }
}

/// Returns the run of the median time, and what its threads have counted.
fn median(mut run: impl FnMut() -> Measured) -> Measured {
    _ = take_counted();
    let mut counted = || {
        let run = run();
        Measured { locks: take_counted(), ..run }
    };
    let mut runs: Vec<_> = (0..ROUNDS).map(|_| counted()).collect();
    runs.sort_by(|a, b| a.wall.total_cmp(&b.wall));
    runs[ROUNDS / 2]
}

/// How long a job takes in a loop, without a library.
fn floor(time: Duration) -> f64 {
    let jobs = (RUN / 4).as_nanos().checked_div(time.as_nanos()).unwrap_or(1);
    let begun = Instant::now();
    (0..jobs).for_each(|_| spin(time));
    nanos(begun.elapsed()) / jobs as f64
}

/// How long a reading of the clock takes.
fn clock() -> f64 {
    const READINGS: u32 = 1_000_000;
    let begun = Instant::now();
    (0..READINGS).for_each(|_| _ = black_box(Instant::now()));
    nanos(begun.elapsed()) / f64::from(READINGS)
}

/// The runs of jobs that take so long, on one, two and all processors.
struct Row {
    name: String,
    micros: u64,
    /// The time of a job in a loop, in nanoseconds.
    floor: f64,
    runs: Vec<(u32, Measured)>,
    /// What one worker needs.
    job: Job,
}

impl Row {
    fn measured(on_disk: bool, micros: u64, processors: u32, clock: f64) -> Self {
        let time = Duration::from_micros(micros);
        let jobs = (RUN.as_nanos() / time.max(Duration::from_nanos(100)).as_nanos()) as u64;
        let measure = |workers: u32| {
            let jobs = jobs * u64::from(if time.is_zero() { 1 } else { workers });
            median(|| {
                if !on_disk {
                    return run(MemoryProgress::new(), workers as usize, time, jobs);
                }
                let folder = tempfile::tempdir().expect("there is room");
                let store = Store::open(folder.path()).expect("it opens");
                run(store.progress("scale"), workers as usize, time, jobs)
            })
        };
        let floor = floor(time);
        let mut counts = vec![1, 2, processors];
        counts.dedup();
        let runs: Vec<_> = counts.into_iter().map(|workers| (workers, measure(workers))).collect();
        let one = runs[0].1;
        let [core, tray] = [Counted::Core, Counted::Tray].map(|lock| (one.visits(lock), one.times(lock, clock).0));
        let job = Job {
            alone: one.wall - core.0 * core.1 - tray.0.min(1.0) * tray.1 - one.source,
            core,
            tray: tray.1,
            source: one.source,
        };
        let name = format!("{micros} µs, {}", if on_disk { "RocksDB" } else { "memory" });
        Self { name, micros, floor, runs, job }
    }

    /// The percentage of its time for which each processor runs jobs.
    fn busy(&self, workers: u32, rate: f64) -> f64 {
        rate * self.floor / f64::from(workers) / 1e7
    }

    fn print_locks(&self, clock: f64) {
        for (workers, run) in &self.runs {
            let shown = |lock| {
                let (held, waited) = run.times(lock, clock);
                format!("{:.5}, {held:.0}, {waited:.0} ns", run.visits(lock))
            };
            let [core, tray, writer] = [Counted::Core, Counted::Tray, Counted::Writer].map(shown);
            println!(
                "| {}, {workers} | {core} | {tray} | {writer} | {:.1} ns | {:.4} | {:.0} ns |",
                self.name, run.source, run.wakeups, run.wall
            );
        }
    }

    /// Prints the rates, and returns what is outside of its limit.
    fn print_rates(&self, line: f64) -> Vec<String> {
        let mut missed = Vec::new();
        let shown = |workers: u32, rate: f64| match self.micros {
            0 => format!("{:.2}", rate / 1e6),
            _ => format!("{:.3} ({:.0} %)", rate / 1e6, self.busy(workers, rate)),
        };
        let mut cells = vec![format!("{:.0} ns", self.floor)];
        for (workers, run) in &self.runs {
            let (is, said) = (1e9 / run.wall, self.job.rate(*workers, if *workers == 2 { line } else { MOVE }));
            let off = (said / is - 1.0) * 100.0;
            cells.push(shown(*workers, is));
            if *workers > 1 {
                cells.push(format!("{:.3} ({off:+.0} %)", said / 1e6));
            }
            if off.abs() > 15.0 {
                missed.push(format!("{}: the model is off by {off:.0} % for {workers} workers", self.name));
            }
        }
        for (workers, of, least) in [(4, 0, 0.0), (16, 1, 80.0), (64, 10, 95.0)] {
            let rate = self.job.rate(workers, MOVE);
            cells.push(shown(workers, rate));
            let busy = self.busy(workers, rate);
            if of == self.micros && busy < least {
                missed.push(format!("{}: {workers} processors are {busy:.0} % busy, not {least}", self.name));
            }
        }
        println!("| {} | {} |", self.name, cells.join(" | "));
        missed
    }
}

fn main() {
    let clock = clock();
    let processors = std::thread::available_parallelism().map_or(2, |n| n.get().max(2) as u32);
    println!(
        "| jobs, progress, workers | core: visits a job, held, waited | tray | writer | source | wake-ups a job | a job |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|");
    let mut rows = Vec::new();
    for on_disk in [false, true] {
        for micros in [0, 1, 10, 100] {
            let row = Row::measured(on_disk, micros, processors, clock);
            row.print_locks(clock);
            rows.push(row);
        }
    }
    let short = rows.iter().find(|row| row.micros == 1).expect("it was measured");
    let line = short.job.line_at(1e9 / short.runs[1].1.wall);
    println!();
    println!("A visit to the core moves {} cache lines, one to the tray {}.", LINES.core, LINES.tray);
    println!("With {line:.0} ns for each, the model has the rate of two workers in the row {}.", short.name);
    println!("With that, it says those of the other rows, and with {MOVE} ns, those of more processors.");
    println!();
    let more = if processors > 2 { format!(" {processors} | by the model |") } else { String::new() };
    println!("| million jobs a second (busy) | in a loop | 1 | 2 | by the model |{more} 4 | 16 | 64 |");
    println!("|---|---:|---:|---:|---:|{}---:|---:|---:|", if processors > 2 { "---:|---:|" } else { "" });
    let missed: Vec<_> = rows.iter().flat_map(|row| row.print_rates(line)).collect();
    println!();
    match missed.is_empty() {
        true => println!("Each row is within its limit."),
        false => println!("Outside of their limits: {}.", missed.join("; ")),
    }
}
