//! A life with every kind of transition, on a disk that stops or fails at each write in turn.
//! Afterwards each job is in one place, none is lost, and the writes with its end are there exactly
//! once.

use common::every_write::DiskFault::Fail;
use common::every_write::{DEATHS, Trial, every_write};
use common::queues::{SECOND, again, awaiting, in_a_runtime};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use waterline::testing::FaultyStore;
use waterline::{Consumer, MemoryJobs, Retry, Store};
use waterline_queue::{
    Accept, Clock, DrainLimits, JobState, Lease, NewJob, Outcome, Queue, QueueOptions, Retention, Runner,
};

const STATES: [JobState; 5] =
    [JobState::Scheduled, JobState::Ready, JobState::Running, JobState::Finished, JobState::Dead];

/// One life of the process.
struct Life {
    disk: Arc<FaultyStore>,
    /// The number of writes before this life.
    first: u64,
    clock: Clock,
    queue: Queue,
    /// The leases of silent workers, which are never used again.
    silent: Vec<Lease>,
    /// The pushed and the removed jobs, and the number of the write that made them so.
    pushed: BTreeMap<String, u64>,
    removed: BTreeMap<String, u64>,
    failed: u64,
}

fn options(clock: &Clock) -> QueueOptions {
    QueueOptions::default()
        .clock(clock.clone())
        .lease(60 * SECOND)
        .retry(Retry::fixed(SECOND).max_attempts(2))
        .retention(Retention::For(5 * SECOND))
        .dead_for(3600 * SECOND)
        .max_crashes(2)
}

fn new(id: &str, kind: &str) -> NewJob {
    NewJob::new(kind, id).unwrap().id(id)
}

fn runner(queue: &Queue, store: &Store) -> waterline_queue::RunnerBuilder {
    let done = store.table("done").unwrap();
    let (flaky, awaited) = (done.clone(), done.clone());
    let builder = Runner::builder(queue)
        .max_processing(1)
        .on_transactional("count", move |_, id: String, effects| {
            effects.add(&done, id, 1)?;
            Ok(Outcome::Done)
        })
        .on_transactional("flaky", move |job, id: String, effects| {
            // A write of the job's own, which may fail like any other.
            job.update(&job.attempt()).or_else(|_| job.update(&job.attempt()))?;
            effects.add(&flaky, id, 1)?;
            if job.attempt() == 1 { Err("the first attempt fails".into()) } else { Ok(Outcome::Done) }
        })
        .on("bad", |_, _: String| Ok(Outcome::Dead("it is bad".into())));
    awaiting(builder, "awaiting", move |_, id: String, effects| {
        effects.add(&awaited, id, 1)?;
        Ok(Outcome::Done)
    })
}

impl Life {
    fn begin(disk: &Arc<FaultyStore>) -> Self {
        let (first, disk, clock, mut failed) = (disk.writes(), disk.clone(), clock(), 0);
        let queue = again(&mut failed, || Queue::open(&disk.store(), "q", options(&clock)));
        Self {
            disk,
            first,
            clock,
            queue,
            silent: Vec::new(),
            pushed: BTreeMap::new(),
            removed: BTreeMap::new(),
            failed,
        }
    }

    fn writes(&self) -> u64 {
        self.disk.writes() - self.first
    }

    fn push(&mut self, job: NewJob, id: &str) {
        again(&mut self.failed, || self.queue.push(job.clone()));
        let writes = self.writes();
        self.pushed.entry(id.to_owned()).or_insert(writes);
    }

    fn accept(&mut self) -> Lease {
        again(&mut self.failed, || self.queue.accept(Accept::new())).expect("a job is ready")
    }

    /// Pushes a job for each order of a stream.
    fn enqueue_orders(&mut self) {
        let store = self.disk.store();
        loop {
            let orders: MemoryJobs<u64> = (0..3u64).collect();
            let queue = self.queue.clone();
            let consumer = Consumer::builder(orders, store.progress("orders")).stop_at(2).start_transactional(
                move |order, effects| {
                    let id = format!("order{}", order.payload);
                    queue.push_with(effects, new(&id, ["count", "awaiting"][order.payload as usize % 2]))?;
                    Ok(())
                },
            );
            match consumer.and_then(Consumer::join) {
                Ok(_) => break,
                Err(error) if self.failed == 0 => drop((self.failed = 1, error)),
                Err(error) => panic!("{error:?}"),
            }
        }
        for order in 0..3 {
            self.pushed.insert(format!("order{order}"), self.writes());
        }
    }

    fn drain(&self) {
        in_a_runtime(|| runner(&self.queue, &self.disk.store()).drain(DrainLimits::default())).unwrap();
    }

    /// Runs jobs that succeed, fail, die, come due and are swept.
    fn run_jobs(&mut self) {
        for (id, kind) in [("a", "count"), ("b", "flaky"), ("c", "bad"), ("d", "awaiting")] {
            self.push(new(id, kind), id);
        }
        self.push(new("later", "awaiting").delay(10 * SECOND), "later");
        self.push(new("later", "awaiting").delay(20 * SECOND), "later");
        self.enqueue_orders();
        let all = || [("e", "awaiting"), ("f", "count")].map(|(id, kind)| new(id, kind));
        again(&mut self.failed, || self.queue.push_all(all()));
        for id in ["e", "f"] {
            self.pushed.insert(id.to_owned(), self.writes());
        }
        self.drain();
        self.clock.advance(SECOND);
        self.drain();
        self.clock.advance(20 * SECOND);
        self.drain();
    }

    /// Uses leases: data, further runs, ends with writes.
    fn use_leases(&mut self) {
        let done = self.disk.store().table("done").unwrap();
        self.push(new("twice", "count"), "twice");
        let mut lease = self.accept();
        again(&mut self.failed, || lease.update(Some(1.into())));
        again(&mut self.failed, || lease.resubmit(None));
        assert_eq!(again(&mut self.failed, || lease.finish(Some(2.into()))), Some(JobState::Ready));
        let mut lease = self.accept();
        again(&mut self.failed, || lease.finish_with(|effects| effects.add(&done, "twice", 1)));
        self.push(new("slow", "count"), "slow");
        let mut lease = self.accept();
        again(&mut self.failed, || lease.snooze(UNIX_EPOCH));
        let mut lease = self.accept();
        again(&mut self.failed, || lease.retry("it fails"));
        self.clock.advance(SECOND);
        let mut lease = self.accept();
        again(&mut self.failed, || lease.bury("no way"));
        assert!(again(&mut self.failed, || self.queue.requeue("slow")));
        // A silent job is taken back, and has one more attempt.
        let silent = self.accept();
        self.silent.push(silent);
        self.clock.advance(61 * SECOND);
        assert!(again(&mut self.failed, || self.queue.accept(Accept::new())).is_none());
    }

    /// Removes, pauses, purges and requeues jobs.
    fn steer(&mut self) {
        self.push(new("gone", "count"), "gone");
        self.removed.insert("gone".to_owned(), self.writes());
        again(&mut self.failed, || self.queue.remove("gone"));
        again(&mut self.failed, || self.queue.pause(None));
        again(&mut self.failed, || self.queue.resume());
        self.push(new("held", "count"), "held");
        self.push(new("purged", "count").delay(30 * SECOND), "purged");
        // The purge removes running jobs too. Those that must run later are pushed anew.
        for id in ["slow", "held", "purged"] {
            self.removed.insert(id.to_owned(), self.writes());
        }
        again(&mut self.failed, || self.queue.purge());
        assert_eq!(again(&mut self.failed, || self.queue.requeue_dead()), 1, "the job c is dead");
        self.push(new("last", "awaiting"), "last");
        let held = [self.accept(), self.accept()];
        self.silent.extend(held);
    }

    fn live(disk: &Arc<FaultyStore>) -> Self {
        let mut life = Self::begin(disk);
        life.run_jobs();
        life.use_leases();
        life.steer();
        life
    }
}

fn clock() -> Clock {
    Clock::manual(UNIX_EPOCH + Duration::from_secs(1_800_000_000))
}

/// Returns the jobs by id, and asserts that each is in one list and that the counts match.
fn jobs(queue: &Queue) -> BTreeMap<String, (JobState, u32, u32)> {
    let mut jobs = BTreeMap::new();
    for state in STATES {
        let listed = queue.list(state, None, usize::MAX).unwrap();
        assert_eq!(queue.counts().of_state(state), listed.len() as u64, "{state:?}");
        for job in listed {
            assert_eq!(queue.get(&job.id).unwrap().as_ref(), Some(&job));
            let before = jobs.insert(job.id.clone(), (job.state, job.failures, job.crashes));
            assert_eq!(before, None, "{} is in two places", job.id);
        }
    }
    jobs
}

/// Runs all jobs to their end: each is done once, or dead.
fn run_out(queue: &Queue, store: &Store, clock: &Clock) {
    queue.resume().unwrap();
    for _ in 0..100 {
        in_a_runtime(|| runner(queue, store).drain(DrainLimits::default())).unwrap();
        let counts = queue.counts();
        if counts.scheduled + counts.ready + counts.running == 0 {
            return;
        }
        jobs(queue);
        clock.advance(SECOND);
    }
    panic!("{:?} jobs never end", queue.counts());
}

/// Asserts that the crash has lost no job and repeated no effect.
fn check_crash(next: &Trial, life: &Life) {
    let (store, clock, writes) = (next.store(), &life.clock, next.write);
    let queue = Queue::open(&store, "q", options(clock)).unwrap();
    let done = store.table("done").unwrap();
    let there = jobs(&queue);
    let is_before = |number: Option<&u64>| number.is_some_and(|number| *number <= writes);
    let durable: BTreeSet<&String> =
        life.pushed.iter().filter(|(_, at)| is_before(Some(*at))).map(|job| job.0).collect();
    for id in &durable {
        let times = done.counter(id).unwrap();
        assert!(times <= 1, "{id} is done {times} times");
        let is_removed = life.removed.get(*id).is_some_and(|at| *at < writes);
        assert!(there.contains_key(*id) || times == 1 || is_removed, "{id} is lost");
        let (state, ..) = there.get(*id).copied().unwrap_or((JobState::Finished, 0, 0));
        assert!(state != JobState::Finished || times == 1 || is_removed, "{id} has no effects");
        assert_ne!(state, JobState::Running, "nobody has {id}");
    }
    assert!(there.values().all(|(_, failures, crashes)| *failures <= 2 && *crashes <= 1), "{there:?}");
    run_out(&queue, &store, clock);
    for id in &durable {
        let times = done.counter(id).unwrap();
        let is_removed = life.removed.get(*id).is_some_and(|at| *at < writes);
        let may_be_dead = matches!(queue.state(id).unwrap(), Some(JobState::Dead));
        if *id == "c" {
            assert_eq!((times, queue.state(id).unwrap()), (0, Some(JobState::Dead)));
        } else if *id == "slow" && may_be_dead {
            assert_eq!(times, 0, "a job is done and dead");
        } else {
            assert!(times == 1 || is_removed && times == 0, "{id} is done {times} times");
        }
    }
}

#[test]
fn a_crash_at_any_write_loses_no_job_and_repeats_no_effect() {
    let live = |trial: &Trial| Life::live(&trial.disk);
    let lives = every_write(&DEATHS, live, |next, life| check_crash(next, &life));
    assert!(lives > 50, "only {lives} lives");
}

#[test]
fn a_failed_write_changes_no_job_outcome() {
    let sound = Life::live(&Arc::new(FaultyStore::new().unwrap()));
    let want = jobs(&sound.queue);
    let live = |trial: &Trial| Life::live(&trial.disk);
    every_write(&[Fail(1)], live, |_, life| {
        assert_eq!(jobs(&life.queue), want);
        let done = life.disk.store().table("done").unwrap();
        let sound = sound.disk.store().table("done").unwrap();
        for id in life.pushed.keys() {
            assert_eq!(done.counter(id).unwrap(), sound.counter(id).unwrap(), "{id}");
        }
    });
}
