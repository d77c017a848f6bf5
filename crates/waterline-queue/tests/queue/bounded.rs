//! Refused pushes: a bound on waiting jobs, and a hook that checks each job.

use common::eventually;
use common::queues::{Bench, MINUTE, SECOND, job, noon, on_store_with, open_anew};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use waterline::testing::FaultyStore;
use waterline::{Consumer, Effects, Error, MemoryJobs, Retry};
use waterline_queue::{
    Accept, Clock, ConfigError, DrainLimits, JobState, Lease, NewJob, Outcome, PushOutcome, Queue, QueueError,
    QueueOptions, Retention, Runner, Unique,
};

fn on_store(most: u64, test: impl Fn(Bench)) {
    let options = QueueOptions::default().max_waiting(most).retry(Retry::fixed(SECOND).max_attempts(2));
    on_store_with(options.retention(Retention::Keep), test);
}

/// Asserts that a full queue refused this call.
fn assert_full<T: std::fmt::Debug>(answer: Result<T, QueueError>, most: u64) {
    let error = answer.unwrap_err();
    assert!(
        matches!(&error, QueueError::Full { queue, max_waiting } if queue == "q" && *max_waiting == most),
        "{error:?}"
    );
}

#[test]
fn a_stream_waits_for_capacity_and_pushes_each_job_once() {
    on_store(2, |bench| {
        let orders: MemoryJobs<u64> = (0..12).collect();
        let queue = bench.queue.clone();
        let consumer = Consumer::builder(orders, bench.store().progress("orders"))
            .max_search_ahead(4)
            .stop_at(11)
            .start_transactional(move |order, effects| {
                // Each order pushes more jobs than may wait.
                for part in 0..3 {
                    queue.push_with(effects, NewJob::new("part", &(order.payload, part))?)?;
                }
                Ok(())
            })
            .unwrap();
        let handle = consumer.handle();
        eventually("the stream says that it waits", || handle.status().to_string().contains("is full"));
        assert!(bench.waiting() >= 2 && bench.queue.counts().finished == 0);
        let runner = Runner::builder(&bench.queue).on("part", |_, _: (u64, u32)| Ok(Outcome::Done)).start().unwrap();
        consumer.join().unwrap();
        eventually("all have run", || bench.waiting() + bench.queue.counts().running == 0);
        runner.stop().unwrap();
        let mut parts = BTreeMap::new();
        for job in bench.queue.list(JobState::Finished, None, 99).unwrap() {
            *parts.entry(job.payload::<(u64, u32)>().unwrap()).or_insert(0) += 1;
        }
        let want: BTreeMap<_, _> = (0..12).flat_map(|order| (0..3).map(move |part| ((order, part), 1))).collect();
        assert_eq!(parts, want);
    });
}

#[test]
fn a_job_that_pushes_into_its_full_queue_is_snoozed() {
    on_store(2, |bench| {
        bench.queue.push_all([NewJob::new("parent", &0).unwrap(), NewJob::new("parent", &1).unwrap()]).unwrap();
        let (next, attempts) = (bench.queue.clone(), bench.store().table("attempts").unwrap());
        let counted = attempts.clone();
        let run = || {
            let (next, counted) = (next.clone(), counted.clone());
            let runner = Runner::builder(&bench.queue)
                .max_processing(1)
                .on_transactional("parent", move |job, n: u32, effects| {
                    assert_eq!(job.attempt(), 1, "an attempt that was snoozed does not count");
                    for child in 0..2 {
                        next.push_with(effects, NewJob::new("child", &(n, child))?)?;
                    }
                    effects.add(&counted, "parents", 1)?;
                    Ok(Outcome::Done)
                })
                .on("child", |_, _: (u32, u32)| Ok(Outcome::Done));
            runner.drain(DrainLimits::default()).unwrap()
        };
        let mut snoozed = 0;
        while bench.waiting() > 0 {
            snoozed += run().snoozed;
            bench.clock.advance(SECOND);
        }
        let counts = bench.queue.counts();
        assert_eq!((counts.finished, counts.dead, attempts.counter("parents").unwrap()), (6, 0, 2));
        assert!(snoozed > 0, "there was room from the beginning");
    });
}

#[test]
fn writes_into_a_full_queue_fail_and_can_be_retried() {
    on_store(1, |bench| {
        bench.push(job("a"));
        let mut lease = bench.claim();
        bench.push(job("b"));
        let done = bench.store().table("done").unwrap();
        let end = |lease: &mut Lease| {
            lease.finish_with(|effects| {
                effects.add(&done, "a", 1)?;
                bench.queue.push_with(effects, job("c")).map(drop)
            })
        };
        assert_full(end(&mut lease), 1);
        let stops = |effects: &mut Effects| effects.add(&done, "a", 1).and(Err(Error::Stopped));
        assert!(lease.finish_with(stops).is_err() && bench.state("a") == Some(JobState::Running));
        let write = bench.store().write(|effects| bench.queue.push_with(effects, job("c")).map(drop));
        let error = write.unwrap_err();
        assert!(matches!(&error, Error::Refused { .. }), "the store is well: {error:?}");
        let cause = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref());
        assert!(matches!(cause, Some(QueueError::Full { .. })), "{error:?}");
        assert_full(Err::<(), QueueError>(error.into()), 1);
        assert_eq!((done.counter("a").unwrap(), bench.queue.state("c").unwrap()), (0, None));
        bench.queue.remove("b").unwrap();
        assert_eq!(end(&mut lease).unwrap(), Some(JobState::Finished));
        assert_eq!((done.counter("a").unwrap(), bench.queue.state("c").unwrap()), (1, Some(JobState::Ready)));
    });
}

// The hook before a push.

/// A queue whose hook refuses negative payloads, panics at 13, and counts its calls.
fn hooked(disk: &FaultyStore) -> (Queue, QueueOptions, Clock, Arc<AtomicU64>) {
    let (asked, clock) = (Arc::new(AtomicU64::new(0)), Clock::manual(noon()));
    let calls = asked.clone();
    let options = QueueOptions::default().clock(clock.clone()).retry(Retry::fixed(SECOND).max_attempts(2));
    let options = options.before_push(move |job| {
        calls.fetch_add(1, Ordering::Relaxed);
        match job.payload::<i64>()? {
            13 => panic!("thirteen"),
            payload if payload < 0 => Err(format!("{} {:?}: {payload}", job.kind, job.id).into()),
            _ => Ok(()),
        }
    });
    (open_anew(&disk.store(), &options), options, clock, asked)
}

fn with(payload: i64) -> NewJob {
    NewJob::new("k", &payload).unwrap()
}

/// Asserts that the hook refused this call, and returns its report.
fn refused<T: std::fmt::Debug>(answer: Result<T, QueueError>) -> String {
    let error = answer.unwrap_err();
    assert!(matches!(&error, QueueError::Refused { kind, .. } if kind == "k"), "{error:?}");
    error.report()
}

#[test]
fn a_job_the_hook_refuses_writes_nothing() {
    let disk = FaultyStore::new().unwrap();
    let (queue, _, _, asked) = hooked(&disk);
    let writes = disk.writes();
    assert!(refused(queue.push(with(-1))).contains("k None: -1"));
    assert!(refused(queue.push(with(-1).id("a"))).contains("k Some(\"a\"): -1"));
    assert!(refused(queue.push(with(13))).contains("panicked: thirteen"));
    refused(queue.push_all([with(1), with(-1)]));
    refused(queue.push_within(with(-1), MINUTE));
    let mut lazy = queue.lazy();
    refused(lazy.push(with(-1)));
    assert!(matches!(queue.push(NewJob::new("k", "no number").unwrap()), Err(QueueError::Refused { .. })));
    assert_eq!((disk.writes(), queue.counts()), (writes, Default::default()));
    lazy.push(with(2)).unwrap();
    let calls = asked.load(Ordering::Relaxed);
    assert_eq!(lazy.flush().unwrap()[0].id, "~0", "no number of an id was used up");
    assert_eq!(asked.load(Ordering::Relaxed), calls, "a buffer asks once for each job");
    // An invalid job is refused before the hook sees it.
    assert!(matches!(queue.push(with(1).id("")), Err(QueueError::Config(ConfigError::Length { what: "job id", .. }))));
    assert_eq!(asked.load(Ordering::Relaxed), calls);
}

#[test]
fn a_job_the_hook_refuses_leaves_no_mark() {
    let disk = FaultyStore::new().unwrap();
    let (queue, _, _, _) = hooked(&disk);
    // Opened without the hook, the queue takes the job.
    let one = |n: i64| with(n).unique(Unique::within(3600 * SECOND));
    refused(queue.push(one(-1)));
    drop(queue);
    let queue = open_anew(&disk.store(), &QueueOptions::default());
    assert_eq!(queue.push(one(-1)).unwrap().outcome, PushOutcome::Added);
    drop(queue);
    let (queue, _, _, _) = hooked(&disk);
    // The older root stays the newest one, since the newer one was refused.
    let root = |payload: i64, at| with(payload).root("tree", at);
    let old = queue.push(root(2, noon())).unwrap().id;
    refused(queue.push(root(-1, noon() + SECOND)));
    queue.accept(Accept::new()).unwrap().unwrap().finish(None).unwrap();
    assert_eq!(queue.accept(Accept::new()).unwrap().unwrap().id(), old, "it is not superseded");
}

#[test]
fn the_hook_sees_pushes_but_not_attempts() {
    let disk = FaultyStore::new().unwrap();
    let (queue, options, clock, asked) = hooked(&disk);
    queue.push(with(1).id("a")).unwrap();
    let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
    lease.resubmit(None).unwrap();
    lease.retry("it fails").unwrap();
    clock.advance(SECOND);
    queue.accept(Accept::new()).unwrap().unwrap().bury("no way").unwrap();
    assert!(queue.requeue("a").unwrap());
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    let again = Queue::open(&disk.store(), "q", options.clone()).unwrap();
    again.push(with(1).id("a")).unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 2, "a clone of the options has the same hook");
    let other = Queue::open(&disk.store(), "q", options.before_push(|_| Ok(())));
    assert!(matches!(other.unwrap_err(), QueueError::Config(ConfigError::QueueOptions { .. })));
}

#[test]
fn a_stream_may_skip_jobs_the_hook_refuses() {
    let disk = FaultyStore::new().unwrap();
    let (queue, store) = (hooked(&disk).0, disk.store());
    let stream = |name: &str, is_strict: bool| {
        let numbers: MemoryJobs<i64> = [1, -1, 2].into_iter().collect();
        let queue = queue.clone();
        Consumer::builder(numbers, store.progress(name)).stop_at(2).start_transactional(move |job, effects| match queue
            .push_with(effects, NewJob::new("k", &job.payload)?)
        {
            Err(Error::Refused { .. }) if !is_strict => Ok(()),
            pushed => Ok(pushed.map(drop)?),
        })
    };
    stream("lenient", false).unwrap().join().unwrap();
    assert_eq!(queue.counts().ready, 2);
    let error = stream("strict", true).unwrap().join().unwrap_err();
    assert!(matches!(&error, Error::Job { index: 1, .. }) && error.report().contains("refused a job"), "{error:?}");
    // Any other refusal fails the write, even if the closure ignores it.
    let write = store.write(|effects| queue.push_with(effects, with(1).id("")).map(drop).or(Ok(())));
    assert!(matches!(
        QueueError::from(write.unwrap_err()),
        QueueError::Config(ConfigError::Length { what: "job id", .. })
    ));
}
