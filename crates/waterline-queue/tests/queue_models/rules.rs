//! Rules of queues that random tests meet too seldom, or never.

use common::queues::leak;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};
use waterline::fuzzing::Disk;
use waterline::testing::FaultyStore;
use waterline::{Error, Retry, Store};
use waterline_queue::{
    Accept, Clock, DrainLimits, JobState, Lease, NewJob, Outcome, Priority, PushOutcome, Queue, QueueError,
    QueueOptions, Retention, Runner,
};

/// Opens a queue on this clock, whose failed jobs wait for a second.
fn queue_on(clock: &Clock) -> Queue {
    let retry = Retry::fixed(Duration::from_secs(1));
    Queue::open(&Store::in_memory(), "q", QueueOptions::default().clock(clock.clone()).retry(retry)).unwrap()
}

fn accept(queue: &Queue) -> Lease {
    queue.accept(Accept::new()).unwrap().expect("a job is ready")
}

fn job(payload: u64) -> NewJob {
    NewJob::new("k", &payload).unwrap()
}

/// Ready log entries are deleted in ranges of 10,000.
#[test]
fn the_job_at_the_end_of_a_deleted_range_is_claimed() {
    let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default()).unwrap();
    for _ in 0..2 {
        queue.push_all((0..9_999).map(job)).unwrap();
        assert_eq!(queue.purge().unwrap(), 9_999);
        queue.push_all([job(9_999), job(10_000)]).unwrap();
        for payload in [9_999, 10_000] {
            let mut lease = accept(&queue);
            assert_eq!(lease.payload::<u64>().unwrap(), payload);
            lease.finish(None).unwrap();
        }
        assert_eq!(queue.counts().ready, 0);
    }
}

#[test]
fn a_zero_retention_of_queue_or_job_keeps_nothing() {
    let nothing = Retention::For(Duration::ZERO);
    for (of_queue, of_job) in [(nothing, None), (Retention::Keep, Some(nothing))] {
        let options = QueueOptions::default().retention(of_queue);
        let queue = Queue::open(&Store::in_memory(), "q", options).unwrap();
        queue.push(of_job.into_iter().fold(job(1), NewJob::retention)).unwrap();
        let mut lease = accept(&queue);
        assert_eq!(lease.finish(None).unwrap(), None);
    }
}

#[test]
fn a_push_during_a_failed_run_still_runs_later() {
    let clock = Clock::manual(SystemTime::now());
    let queue = queue_on(&clock);
    queue.push(job(1).id("a")).unwrap();
    let mut lease = accept(&queue);
    let pushed = queue.push(job(2).id("a").delay(Duration::from_secs(60))).unwrap();
    assert_eq!(pushed.outcome, PushOutcome::Resubmit);
    assert_eq!(lease.retry("it fails").unwrap(), Some(JobState::Scheduled));
    clock.advance(Duration::from_secs(1));
    let mut lease = accept(&queue);
    assert!(lease.is_resubmitted());
    assert_eq!(lease.finish(None).unwrap(), Some(JobState::Scheduled), "the run of the push is still to come");
    clock.advance(Duration::from_secs(59));
    assert_eq!(accept(&queue).finish(None).unwrap(), Some(JobState::Finished));
}

#[test]
fn an_attempt_that_begins_after_a_push_counts_for_it() {
    let clock = Clock::manual(SystemTime::now());
    let queue = queue_on(&clock);
    queue.push(job(1).id("a")).unwrap();
    let mut lease = accept(&queue);
    queue.push(job(2).id("a")).unwrap();
    lease.retry("it fails").unwrap();
    clock.advance(Duration::from_secs(1));
    assert_eq!(accept(&queue).finish(None).unwrap(), Some(JobState::Finished));
}

#[test]
fn a_success_clears_crashes_even_before_another_run() {
    let disk = FaultyStore::new().unwrap();
    let queue = Queue::open(&disk.store(), "q", QueueOptions::default()).unwrap();
    queue.push(job(1).id("a")).unwrap();
    leak(accept(&queue));
    let disk = disk.after_crash().unwrap();
    let queue = Queue::open(&disk.store(), "q", QueueOptions::default()).unwrap();
    let mut lease = accept(&queue);
    assert_eq!(lease.crashes(), 1);
    lease.resubmit(None).unwrap();
    assert_eq!(lease.finish(None).unwrap(), Some(JobState::Ready));
    assert_eq!(accept(&queue).crashes(), 0);
}

/// Some programs always ask for jobs that are due by now, while the clock moves on.
#[test]
fn claims_by_a_past_due_time_reach_every_job() {
    let clock = Clock::manual(SystemTime::now());
    let queue = queue_on(&clock);
    let past = SystemTime::now() - Duration::from_secs(60);
    let was_due = || Accept::new().max_run_at(past);
    queue.push_all((0..600).map(job)).unwrap();
    queue.purge().unwrap();
    let later = job(1000).run_at(past + Duration::from_secs(1));
    queue.push_all([later].into_iter().chain((0..600).map(job))).unwrap();
    for payload in 0..600 {
        let mut lease = queue.accept(was_due()).unwrap().expect("a job is ready");
        assert_eq!(lease.payload::<u64>().unwrap(), payload);
        lease.finish(None).unwrap();
    }
    assert!(queue.accept(was_due()).unwrap().is_none(), "the job that is left was due later");
    assert_eq!(accept(&queue).payload::<u64>().unwrap(), 1000);
}

#[test]
fn claims_by_a_past_due_time_starve_no_priority() {
    let clock = Clock::manual(SystemTime::now());
    let queue = queue_on(&clock);
    queue.push(job(1000).priority(Priority::Low)).unwrap();
    queue.push_all((0..20).map(job)).unwrap();
    let past = SystemTime::now() - Duration::from_secs(60);
    let mut payloads = Vec::new();
    for _ in 0..10 {
        let mut lease = queue.accept(Accept::new().max_run_at(past)).unwrap().expect("a job is ready");
        payloads.push(lease.payload::<u64>().unwrap());
        lease.finish(None).unwrap();
    }
    assert_eq!(payloads, [0, 1, 2, 3, 4, 5, 6, 1000, 7, 8]);
}

/// A runner writes the end of a job without a read, so only the token in the row protects the next
/// run.
#[test]
fn a_runner_that_lost_its_job_cannot_end_its_next_run() {
    let queue = queue_on(&Clock::manual(SystemTime::now()));
    queue.push(job(1).id("a")).unwrap();
    let taken: Arc<Mutex<Option<Lease>>> = Arc::default();
    let (inner, lease) = (queue.clone(), taken.clone());
    let builder = Runner::builder(&queue).max_processing(1).on("k", move |job, _: u64| {
        inner.remove(job.id())?;
        inner.push(self::job(2).id("a"))?;
        *lease.lock() = inner.accept(Accept::new())?;
        Ok(Outcome::Done)
    });
    let summary = builder.drain(DrainLimits::default()).unwrap();
    assert_eq!((summary.finished, summary.lost), (0, 1));
    assert_eq!(queue.state("a").unwrap(), Some(JobState::Running));
    let mut lease = taken.lock().take().expect("the job was ready");
    assert_eq!(lease.finish(None).unwrap(), Some(JobState::Finished));
}

#[test]
fn a_job_that_is_gone_leaves_no_record() {
    let disk = Disk::default();
    let options = QueueOptions::default().ids_for(Duration::ZERO);
    let queue = Queue::open(&disk.open(&Store::options()).unwrap(), "q", options).unwrap();
    let written = || {
        let records = disk.records().into_iter();
        let rows = records.filter(|(family, ..)| family == "waterline.queue" || family == "waterline.ready");
        // Ready log entries stay for a while: their byte after the queue's number is the priority.
        rows.filter(|(_, key, _)| key[4] > 3).map(|(_, key, _)| key).collect::<Vec<_>>()
    };
    // The head and the name of the queue.
    let before = written();
    assert_eq!(before.len(), 2);
    for way in 0..4 {
        queue.push(job(1).id("a").retention(if way == 0 { Retention::Drop } else { Retention::Keep })).unwrap();
        let mut lease = accept(&queue);
        lease.update(Some(way.into())).unwrap();
        match way {
            0 => drop(lease.finish(None).unwrap()),
            1 => queue.remove("a").unwrap(),
            2 => {
                lease.bury("no way").unwrap();
                queue.push(job(2).id("a").delay(Duration::from_secs(1))).unwrap();
                queue.push(job(3).id("a").delay(Duration::from_secs(2))).unwrap();
                assert_eq!(queue.purge().unwrap(), 1);
            }
            _ => {
                lease.finish(None).unwrap();
                queue.remove("a").unwrap();
            }
        }
        assert_eq!(written(), before, "way {way}");
    }
}

/// Makes random calls on a few ids, and counts the runs that succeeded.
fn disturb(queue: &Queue, clock: &Clock, store: &Store, mut random: fastrand::Rng, ended: &[AtomicI64]) {
    let runs = store.table("runs").unwrap();
    let mut leases: Vec<Lease> = Vec::new();
    for _ in 0..300 {
        let id = random.usize(..ended.len());
        let name = id.to_string();
        clock.advance(Duration::from_micros(random.u64(..500)));
        match random.u8(..12) {
            0..4 => drop(queue.push(job(1).id(&name).delay(Duration::from_millis(random.u64(..3))))),
            4..7 => leases.extend(queue.accept(Accept::new()).ok().flatten()),
            7 => drop(queue.remove(&name)),
            8 => drop(queue.requeue_dead()),
            9 => drop(leases.pop()),
            _ => {
                let Some(lease) = leases.last_mut() else { continue };
                let id: usize = lease.id().parse().unwrap();
                match lease.finish_with(|effects| effects.add(&runs, id.to_string(), 1)) {
                    Ok(_) => drop(ended[id].fetch_add(1, Ordering::SeqCst)),
                    Err(QueueError::Halt { .. }) => {}
                    // Nothing was written, and the lease still holds.
                    Err(QueueError::Store(Error::Store { .. })) => continue,
                    Err(other) => panic!("{other:?}"),
                }
                leases.pop();
            }
        }
    }
}

#[test]
fn threads_amid_failing_writes_make_each_effect_once() {
    for seed in 0..8 {
        let disk = FaultyStore::new().unwrap();
        let store = disk.store();
        let retry = Retry::fixed(Duration::ZERO).max_attempts(3);
        let clock = Clock::manual(SystemTime::now());
        let options = QueueOptions::default().retry(retry).clock(clock.clone());
        let queue = Queue::open(&store, "q", options.clone()).unwrap();
        let ended: Vec<AtomicI64> = (0..12).map(|_| AtomicI64::new(0)).collect();
        disk.fail(40 + seed..50 + 3 * seed);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (queue, clock, store, ended) = (&queue, &clock, &store, &ended);
                scope.spawn(move || disturb(queue, clock, store, fastrand::Rng::with_seed(4 * seed + thread), ended));
            }
        });
        disk.heal();
        // A lease that was dropped while writes failed has left its job running.
        for job in queue.list(JobState::Running, None, usize::MAX).unwrap() {
            queue.remove(job.id).unwrap();
        }
        let runs = store.table("runs").unwrap();
        for (id, ended) in ended.iter().enumerate() {
            assert_eq!(runs.counter(id.to_string()).unwrap(), ended.load(Ordering::SeqCst), "seed {seed}");
        }
        // A process that opens the queue now sees the same jobs.
        let after = disk.after_crash().unwrap();
        let again = Queue::open(&after.store(), "q", options).unwrap();
        let mut seen = BTreeSet::new();
        for state in [JobState::Scheduled, JobState::Ready, JobState::Running, JobState::Finished, JobState::Dead] {
            let jobs = again.list(state, None, usize::MAX).unwrap();
            assert_eq!(again.counts().of_state(state), jobs.len() as u64, "seed {seed}");
            assert_eq!(queue.list(state, None, usize::MAX).unwrap().len(), queue.counts().of_state(state) as usize);
            assert!(jobs.into_iter().all(|job| seen.insert(job.id)), "seed {seed}: a job is in two places");
        }
        assert_eq!(queue.counts(), again.counts(), "seed {seed}");
    }
}
