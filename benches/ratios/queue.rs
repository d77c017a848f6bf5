//! The cost of a job of a queue, compared with a *raw loop* on RocksDB.
//!
//! The raw loop is one thread that writes the same records with the same reads, one batch for 256
//! pushes, and one for each end of a job together with the next claim. Payloads have 100 bytes, and
//! handlers do nothing. On two virtual cores a job costs 2.4 µs to push and 13.7 µs to run: 1.5 and
//! 1.8 times the raw loop. When eight threads each claimed for themselves, it was 2 to 2.5 times:
//! they woke each other for each job.
//!
//! * **synced**: compared with a flush for each end and each claim.
//! * **pickup**: the time from a push to the handler of an idle runner, compared with that of an
//!   idle consumer of a `JobLog`.

use crate::cost::{Cost, Stopwatch};
use crate::raw_rocksdb::Raw;
use crate::table::{Row, Table};
use std::time::Duration;
use waterline::{Consumer, Durability, Store};
use waterline_queue::{DrainLimits, NewJob, Outcome, Queue, QueueOptions, Retention, Runner};

/// How many jobs a round has: a whole number of blocks.
const JOBS: u64 = 200 * BLOCK;
const BLOCK: u64 = 256;

/// The jobs of a round in which each write is flushed. The raw loop runs a part of them.
const SYNCED: u64 = 16 * BLOCK;
const PART: u64 = 16;

/// The jobs that are pushed one by one to an idle worker.
const PICKUPS: u64 = 2_000;

pub(crate) fn rows(table: &Table) {
    let name = "queue: pushed, 256 in a write";
    let row = Row { name, floor: "raw batches", times: JOBS, most: 2.0 };
    table.row(
        row,
        || Raw::new(false).push(JOBS, BLOCK),
        || Ours::new(Durability::Buffered, Retention::Keep).push(JOBS),
    );
    for (name, retention) in
        [("queue: run", Retention::For(Duration::from_secs(60))), ("queue: run, Retention::Drop", Retention::Drop)]
    {
        let row = Row { name, floor: "raw loop", times: JOBS, most: 2.0 };
        let raw = || {
            let raw = Raw::new(false);
            raw.push(JOBS, BLOCK);
            raw.run(JOBS, retention == Retention::Drop)
        };
        let ours = || {
            let ours = Ours::new(Durability::Buffered, retention);
            ours.push(JOBS);
            ours.run(JOBS, 8)
        };
        table.row(row, raw, ours);
    }
    let row = Row { name: "queue: run, synced, 64 workers", floor: "flushes", times: SYNCED, most: 0.2 };
    let raw = || {
        let raw = Raw::new(true);
        raw.push(SYNCED, BLOCK);
        raw.run(SYNCED / PART, true) * PART as u32
    };
    let ours = || {
        let ours = Ours::new(Durability::Synced, Retention::Drop);
        ours.push(SYNCED);
        ours.run(SYNCED, 64)
    };
    table.row(row, raw, ours);
    let row = Row { name: "queue: pickup by an idle runner", floor: "by a consumer", times: PICKUPS, most: 3.0 };
    table.row(row, picked_up_by_a_consumer, picked_up_by_a_runner);
}

fn text() -> String {
    "x".repeat(98)
}

/// A queue in a database of its own.
struct Ours {
    queue: Queue,
    _dir: tempfile::TempDir,
}

impl Ours {
    fn new(durability: Durability, retention: Retention) -> Self {
        let dir = tempfile::tempdir().expect("a directory for the database");
        let store = Store::options().durability(durability).open(dir.path()).expect("the database opens");
        let options = QueueOptions::default().retention(retention);
        Self { queue: Queue::open(&store, "q", options).expect("it opens"), _dir: dir }
    }

    fn push(&self, jobs: u64) -> Cost {
        let payload = text();
        let begun = Stopwatch::now();
        for _ in 0..jobs / BLOCK {
            let block = (0..BLOCK).map(|_| NewJob::new("k", &payload).expect("it is text"));
            self.queue.push_all(block).expect("the disk takes it");
        }
        begun.elapsed()
    }

    fn run(&self, jobs: u64, max_processing: usize) -> Cost {
        let runner = Runner::builder(&self.queue).max_processing(max_processing);
        let begun = Stopwatch::now();
        let summary = runner.on("k", |_, _: String| Ok(Outcome::Done)).drain(DrainLimits::default());
        let elapsed = begun.elapsed();
        assert_eq!(summary.expect("the disk takes it").finished, jobs);
        elapsed
    }
}

/// Pushes jobs one by one, and waits for each.
fn picked_up(push: impl Fn(u64), said: &crossbeam_channel::Receiver<u64>) -> Cost {
    let begun = Stopwatch::now();
    for job in 0..PICKUPS {
        push(job);
        assert_eq!(said.recv().expect("it runs"), job);
    }
    begun.elapsed()
}

fn picked_up_by_a_runner() -> Cost {
    let ours = Ours::new(Durability::Buffered, Retention::Drop);
    let (say, said) = crossbeam_channel::unbounded();
    let runner = Runner::builder(&ours.queue).max_processing(2).on("k", move |_, job: u64| {
        say.send(job)?;
        Ok(Outcome::Done)
    });
    let runner = runner.start().expect("it starts");
    let push = |job| _ = ours.queue.push(NewJob::new("k", &job).expect("it is a number")).expect("the disk takes it");
    let elapsed = picked_up(push, &said);
    runner.stop().expect("nothing fails");
    elapsed
}

fn picked_up_by_a_consumer() -> Cost {
    let dir = tempfile::tempdir().expect("a directory for the database");
    let store = Store::open(dir.path()).expect("the database opens");
    let log = store.log::<u64>("l").expect("it opens");
    let (say, said) = crossbeam_channel::unbounded();
    let consumer = Consumer::builder(log.clone(), store.progress("p")).max_processing(2).start(move |job| {
        say.send(job.payload)?;
        Ok(())
    });
    let consumer = consumer.expect("it starts");
    let elapsed = picked_up(|job| _ = log.push(&job).expect("the disk takes it"), &said);
    consumer.stop().expect("nothing fails");
    elapsed
}
