//! What a step costs after a great many of them, and beside a great many others.
//!
//! `make bench ARGS=growth` prints one row for each, beside the same step in a small place, in one
//! run. At most 1.2 times as much is flat. It takes some minutes: a log gets 100 million items, a
//! store a million names of consumers, and another one 100,000 queues.

use std::alloc::System;
use std::hint::black_box;
use std::time::{Duration, Instant};
use waterline::{Bytes, Checkpoint, Consumer, Index, JobLog, Jobs, MemoryProgress, Progress, Store};
use waterline_queue::{Accept, JobState, NewJob, Queue, QueueOptions, Retention};

#[path = "raw/cost.rs"]
#[allow(dead_code)]
mod cost;
#[path = "ratios/sources.rs"]
#[allow(dead_code)]
mod sources;

use cap::Cap;
use cost::Stopwatch;
use sources::Numbers;

/// It counts the allocations of the program.
#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

const ROUNDS: usize = 9;
const JOBS: u64 = 500_000;
const LONG: Duration = Duration::from_secs(60);

fn consume(jobs: impl Jobs, progress: impl Progress, first: Index, count: u64) -> Duration {
    let begun = Instant::now();
    let builder = Consumer::builder(jobs, progress).max_processing(2).max_search_ahead(100_000);
    let consumer = builder.start_at(first).stop_at(first + count - 1).start(|job| {
        black_box(job.index);
        Ok(())
    });
    consumer.and_then(Consumer::join).expect("jobs that do nothing do not fail");
    begun.elapsed()
}

/// The table, and the rows that are not flat.
#[derive(Default)]
struct Table(Vec<String>);

impl Table {
    /// Measures both in turn, and prints the medians in nanoseconds a step.
    fn row(
        &mut self,
        name: &str,
        steps: u64,
        mut small: impl FnMut() -> Duration,
        mut large: impl FnMut() -> Duration,
    ) {
        // The first run of each fills the caches.
        small();
        large();
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            times[0].push(small());
            times[1].push(large());
        }
        let [small, large] = times.map(|mut times| {
            times.sort_unstable();
            times[ROUNDS / 2].as_secs_f64() * 1e9 / steps as f64
        });
        println!("| {name} | {small:.0} ns | {large:.0} ns | {:.2} | 1.2 |", large / small);
        if large / small > 1.2 {
            self.0.push(name.to_owned());
        }
    }

    fn figure(&mut self, name: &str, ours: f64, most: f64) {
        println!("| {name} | | {ours:.2} | | {most} |");
        if ours > most {
            self.0.push(name.to_owned());
        }
    }
}

fn opened() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().expect("a directory for the database");
    let store = Store::open(dir.path()).expect("the database opens");
    (dir, store)
}

fn streams(table: &mut Table) {
    let (_dir, store) = opened();
    let mut round = 0;
    for first in [1_000_000_000, 1_000_000_000_000_000] {
        let run = |first: Index| consume(Numbers(first + JOBS + 1), MemoryProgress::new(), first, JOBS);
        table.row(&format!("a job behind {first:e} others, in memory"), JOBS, || run(1_000), || run(first));
        let mut run = |first: Index| {
            round += 1;
            consume(Numbers(first + JOBS + 1), store.progress(format!("{round}")), first, JOBS)
        };
        let times: Vec<_> = (0..=ROUNDS).flat_map(|_| [run(1_000), run(first)]).collect();
        let (mut small, mut large) = (times.iter().copied().step_by(2), times.iter().copied().skip(1).step_by(2));
        let name = format!("the same with its progress in RocksDB, {first:e}");
        table.row(&name, JOBS, || small.next().expect("it was measured"), || large.next().expect("it was measured"));
    }
}

const BLOCK: u64 = 256;
/// The items that a log keeps.
const KEPT: u64 = 5_120;

/// Pushes so many items into a log that keeps few, and reads them.
fn turn_over(log: &JobLog<Vec<u8>, Bytes>, items: u64) -> (Duration, Duration) {
    let block = vec![vec![b'x'; 32]; BLOCK as usize];
    let (mut pushes, mut reads) = (Duration::ZERO, Duration::ZERO);
    let mut read = Vec::new();
    for _ in 0..items / BLOCK {
        let begun = Instant::now();
        log.push_all(&block).expect("the disk takes it");
        let head = log.head().expect("it is known").unwrap_or(0);
        log.trim(..=head.saturating_sub(KEPT)).expect("the disk takes it");
        let pushed = Instant::now();
        read.clear();
        log.read(head + 1 - BLOCK..=head, &mut read).expect("it is read");
        pushes += pushed - begun;
        reads += pushed.elapsed();
    }
    (pushes, reads)
}

fn logs(table: &mut Table) {
    const MANY: u64 = 100_000_000;
    const SAMPLE: u64 = 100_000;
    let [(_few, few), (_many, many)] = [SAMPLE, MANY].map(|items| {
        let (dir, store) = opened();
        let log = store.log_with("l", Bytes).expect("it opens");
        turn_over(&log, items);
        (dir, log)
    });
    let turn = |log: &JobLog<Vec<u8>, Bytes>| turn_over(log, SAMPLE);
    table.row("an item pushed into a log behind 1e8 others", SAMPLE, || turn(&few).0, || turn(&many).0);
    table.row("the same, read", SAMPLE, || turn(&few).1, || turn(&many).1);
}

fn names(table: &mut Table) {
    const NAMES: u64 = 1_000_000;
    let stores = [100, NAMES].map(|names| {
        let (dir, store) = opened();
        for name in 0..names {
            let mut progress = store.progress(format!("consumer {name}"));
            progress.acquire().expect("the name is free");
            progress.save(&Checkpoint::new(1)).expect("the disk takes it");
        }
        (dir, store)
    });
    let [few, many] = stores.each_ref().map(|(_, store)| store);
    let start = |store: &Store| {
        let mut time = Duration::ZERO;
        for name in 0..100 {
            let name = format!("consumer {name}");
            time += consume(Numbers(3), store.progress(name.as_str()), 0, 3);
            // So that it has a job again.
            store.progress(name.as_str()).remove().expect("it has ended");
            let mut progress = store.progress(name);
            progress.acquire().expect("the name is free");
            progress.save(&Checkpoint::new(1)).expect("the disk takes it");
        }
        time
    };
    table.row("a consumer that starts, works and ends, beside 1e6 names", 100, || start(few), || start(many));
    let begun = Instant::now();
    assert_eq!(many.consumers().expect("they are read").len() as u64, NAMES);
    table.figure("us for a name in a list of all 1e6", begun.elapsed().as_secs_f64() * 1e6 / NAMES as f64, 25.0);
}

/// The threads and the resident kilobytes of this process.
fn process() -> (f64, f64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let number = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned));
        line.and_then(|line| line.split_whitespace().next().and_then(|word| word.parse().ok())).unwrap_or(0.0)
    };
    (number("Threads:"), number("VmRSS:"))
}

fn consumers(table: &mut Table) {
    const CONSUMERS: u64 = 1_000;
    let (_dir, store) = opened();
    // The threads of the store.
    consume(Numbers(3), store.progress("first"), 0, 3);
    let (before, allocated) = (process(), ALLOCATOR.allocated());
    let all: Vec<_> = (0..CONSUMERS)
        .map(|name| {
            // (With several jobs in flight the stacks of ended threads stay, for new ones.)
            let builder = Consumer::builder(Numbers(100), store.progress(format!("consumer {name}")));
            let consumer = builder.max_processing(1).start(|_| Ok(())).expect("it starts");
            assert!(consumer.handle().wait_for(99, LONG), "a hundred jobs are soon done");
            consumer
        })
        .collect();
    // A thread without a job ends after ten seconds.
    assert!(!all[0].handle().wait_for(100, Duration::from_secs(12)), "there is no such job");
    let after = process();
    let each = |value: f64| value / CONSUMERS as f64;
    table.figure("threads of a consumer that has caught up", each(after.0 - before.0), 2.0);
    table.figure("its resident memory, kB", each(after.1 - before.1), 40.0);
    table.figure("what it has allocated, kB", each((ALLOCATOR.allocated() - allocated) as f64 / 1024.0), 40.0);
    let begun = Stopwatch::now();
    assert!(!all[0].handle().wait_for(100, Duration::from_secs(10)), "there is no such job");
    table.figure("its CPU in 10 s, ms", each(begun.elapsed().cpu.as_secs_f64() * 1e3), 10.0);
    all.into_iter().for_each(|consumer| consumer.stop().expect("nothing fails"));
}

fn queues(table: &mut Table) {
    const QUEUES: u64 = 100_000;
    let options = || QueueOptions::default().retention(Retention::Drop);
    let stores = [10, QUEUES].map(|queues| {
        let (dir, store) = opened();
        for queue in 0..queues {
            let queue = Queue::open(&store, format!("queue {queue}"), options()).expect("it opens");
            queue.push(NewJob::new("k", "first").expect("it is JSON")).expect("the disk takes it");
        }
        (dir, store)
    });
    let [few, many] = stores.each_ref().map(|(_, store)| store);
    let step = |store: &Store, step: &dyn Fn(&Queue)| {
        let queues: Vec<_> =
            (0..10).map(|name| Queue::open(store, format!("queue {name}"), options()).expect("it opens")).collect();
        let begun = Instant::now();
        (0..50).for_each(|_| queues.iter().for_each(step));
        begun.elapsed()
    };
    let open = |store: &Store| {
        let begun = Instant::now();
        for name in 0..500 {
            drop(Queue::open(store, format!("queue {}", name % 10), options()).expect("it opens"));
        }
        begun.elapsed()
    };
    table.row("a queue is opened, beside 1e5 others", 500, || open(few), || open(many));
    let claim = |queue: &Queue| {
        queue.push(NewJob::new("k", "next").expect("it is JSON")).expect("the disk takes it");
        let mut lease = queue.accept(Accept::new()).expect("it is read").expect("there is a job");
        lease.finish(None).expect("the disk takes it");
    };
    table.row("a push, a claim and an end in it", 500, || step(few, &claim), || step(many, &claim));
    let page = |queue: &Queue| _ = queue.page(JobState::Ready, None, 100).expect("it is read");
    table.row("a page of its jobs", 500, || step(few, &page), || step(many, &page));
}

fn main() {
    println!("| a step | in a small place | behind or beside many | ratio | at most |");
    println!("|---|---:|---:|---:|---:|");
    let mut table = Table::default();
    // Cargo adds its own `--bench`.
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    type Part = (&'static str, fn(&mut Table));
    let parts: [Part; 5] =
        [("streams", streams), ("consumers", consumers), ("queues", queues), ("names", names), ("logs", logs)];
    for (name, part) in parts {
        if wanted.as_deref().is_none_or(|wanted| wanted == name) {
            part(&mut table);
        }
    }
    println!();
    match table.0.is_empty() {
        true => println!("Each row is within its limit."),
        false => println!("Above their limits: {}.", table.0.join("; ")),
    }
}
