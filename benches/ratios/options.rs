//! The cost of each option of a job, as a ratio to jobs without any option, in the same run.
//!
//! * **push**: 256 jobs in a write, with the option and without.
//! * **run**: the same jobs, run by eight slots whose handlers do nothing.
//!
//! Measured on two virtual cores, a plain job costs 2.5 µs to push and 13.2 µs to run. Each option
//! costs this many times as much:
//!
//! | option | push | run |
//! |---|---:|---:|
//! | an id of yours | 1.6 | 1.1 |
//! | a priority, a retry or a retention of its own | 1.0 | 1.0 |
//! | expires | 1.4 | 1.1 |
//! | unique until claimed | 3.2 | 1.2 |
//! | unique until done | 3.3 | 1.3 |
//! | unique in a window | 3.7 | 1.0 |
//! | skipped if a twin was executed | 1.5 | 1.4 |
//! | a root | 2.6 | 1.1 |
//! | metadata | 1.7 | 1.0 |
//! | a key with a limit | 1.2 | 1.4 |
//! | a kind with a limit or a rate | 1.0 | 1.3 |
//! | after the job before it | 2.9 | 3.6 |
//!
//! Jobs that each wait for the previous one run one at a time, so they share no writes.
//!
//! An option that a job does not use costs nothing: its row and its queue have no extra byte, and a
//! claim reads and writes no more. The rows *queue* next to the raw loop show that.

use crate::cost::{Cost, Stopwatch};
use crate::table::{Row, Table};
use serde_json::json;
use std::time::{Duration, SystemTime};
use waterline::Retry;
use waterline::Store;
use waterline_queue::{
    DrainLimits, Limit, NewJob, Outcome, Priority, Queue, QueueOptions, Rate, Retention, Runner, Unique,
};

/// How many jobs a round has: a whole number of blocks.
const JOBS: u64 = 60 * BLOCK;
const BLOCK: u64 = 256;

/// An option: its name, its settings, and the most that it may cost a push and a run.
struct Choice {
    name: &'static str,
    options: fn(QueueOptions) -> QueueOptions,
    job: fn(NewJob, u64) -> NewJob,
    most: [f64; 2],
}

impl Choice {
    const fn of_job(name: &'static str, job: fn(NewJob, u64) -> NewJob, most: [f64; 2]) -> Self {
        Self { name, options: |options| options, job, most }
    }
}

const PLAIN: Choice = Choice::of_job("plain", |job, _| job, [1.0, 1.0]);

const CHOICES: [Choice; 15] = [
    Choice::of_job("id of yours", |job, number| job.id(format!("user:{number}")), [2.5, 1.5]),
    Choice::of_job("priority", |job, _| job.priority(Priority::Low), [1.2, 1.2]),
    Choice::of_job("retry of its own", |job, _| job.retry(Retry::none()), [1.3, 1.2]),
    Choice::of_job("retention of its own", |job, _| job.retention(Retention::Drop), [1.3, 1.2]),
    Choice::of_job("expires", |job, _| job.expires(Duration::from_secs(3600)), [2.0, 1.5]),
    Choice::of_job("unique until claimed", |job, _| job.unique(Unique::until_claimed()), [5.0, 1.6]),
    Choice::of_job("unique until done", |job, _| job.unique(Unique::until_done()), [5.0, 1.6]),
    Choice::of_job("unique in a window", |job, _| job.unique(Unique::within(Duration::from_secs(60))), [5.0, 1.3]),
    Choice::of_job("skip if executed", |job, _| job.skip_if_executed(), [3.0, 2.0]),
    Choice::of_job("root", |job, number| job.root(format!("tree:{number}"), SystemTime::now()), [3.5, 1.5]),
    Choice::of_job("metadata", |job, _| job.meta("by", "ann").expect("it is JSON"), [2.0, 1.3]),
    Choice::of_job("after the one before", after_the_one_before, [6.0, 5.0]),
    Choice {
        name: "key with a limit",
        options: |options| options.limit(Limit::each_key().at_once(8)),
        job: |job, number| job.key(format!("tenant:{}", number % 100)),
        most: [1.5, 2.0],
    },
    Choice {
        name: "kind with a limit",
        options: |options| options.limit(Limit::kind("k").at_once(8)),
        job: |job, _| job,
        most: [1.2, 2.0],
    },
    Choice {
        name: "kind with a rate",
        options: |options| options.limit(Limit::kind("k").rate(Rate::new(1_000_000, Duration::from_secs(1)))),
        job: |job, _| job,
        most: [1.2, 2.0],
    },
];

fn after_the_one_before(job: NewJob, number: u64) -> NewJob {
    if number == 0 { job } else { job.after([format!("~{}", number - 1)]) }
}

pub(crate) fn rows(table: &Table) {
    for choice in &CHOICES {
        let name = format!("queue: push, {}", choice.name);
        let row = Row { name: &name, floor: "without", times: JOBS, most: choice.most[0] };
        table.row(row, || Bench::new(&PLAIN).push(&PLAIN), || Bench::new(choice).push(choice));
        let name = format!("queue: run, {}", choice.name);
        let row = Row { name: &name, floor: "without", times: JOBS, most: choice.most[1] };
        let run = |choice: &Choice| {
            let bench = Bench::new(choice);
            bench.push(choice);
            bench.run()
        };
        table.row(row, || run(&PLAIN), || run(choice));
    }
}

/// A queue in a database of its own.
struct Bench {
    queue: Queue,
    _dir: tempfile::TempDir,
}

impl Bench {
    fn new(choice: &Choice) -> Self {
        let dir = tempfile::tempdir().expect("a directory for the database");
        let store = Store::open(dir.path()).expect("the database opens");
        let options = (choice.options)(QueueOptions::default());
        Self { queue: Queue::open(&store, "q", options).expect("it opens"), _dir: dir }
    }

    fn push(&self, choice: &Choice) -> Cost {
        let begun = Stopwatch::now();
        for block in 0..JOBS / BLOCK {
            let jobs = (block * BLOCK..(block + 1) * BLOCK).map(|number| {
                let payload = json!({ "number": number, "text": "x".repeat(80) });
                (choice.job)(NewJob::new("k", &payload).expect("it is JSON"), number)
            });
            self.queue.push_all(jobs).expect("the disk takes it");
        }
        begun.elapsed()
    }

    fn run(&self) -> Cost {
        let runner = Runner::builder(&self.queue).max_processing(8);
        let begun = Stopwatch::now();
        let summary = runner.on("k", |_, _: serde_json::Value| Ok(Outcome::Done)).drain(DrainLimits::default());
        let elapsed = begun.elapsed();
        assert_eq!(summary.expect("the disk takes it").finished, JOBS);
        elapsed
    }
}
