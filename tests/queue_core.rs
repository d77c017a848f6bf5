//! Single rules of queues that a random test meets too seldom, or not at all.

use std::time::{Duration, SystemTime};
use waterline::queue::{Accept, Clock, JobState, Lease, NewJob, Priority, PushOutcome, Queue, QueueOptions, Retention};
use waterline::testing::FaultyStore;
use waterline::{Retry, Store};

/// Opens a queue on a clock that stands still. A job that fails waits for a second.
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

/// Entries of a ready log are deleted by the range, 10,000 at a time.
#[test]
fn the_job_at_the_end_of_a_range_that_is_deleted_is_claimed() {
    let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default()).unwrap();
    for _ in 0..2 {
        queue.push_all((0..9_999).map(job)).unwrap();
        assert_eq!(queue.purge().unwrap(), 9_999);
        queue.push_all([job(9_999), job(10_000)]).unwrap();
        for payload in [9_999, 10_000] {
            let mut lease = accept(&queue);
            assert_eq!(lease.payload::<u64>().unwrap(), payload);
            lease.finish(None::<&()>).unwrap();
        }
        assert_eq!(queue.counts().ready, 0);
    }
}

#[test]
fn a_retention_of_no_time_keeps_nothing_be_it_of_the_queue_or_of_the_job() {
    let nothing = Retention::For(Duration::ZERO);
    for (of_queue, of_job) in [(nothing, None), (Retention::Keep, Some(nothing))] {
        let options = QueueOptions::default().retention(of_queue);
        let queue = Queue::open(&Store::in_memory(), "q", options).unwrap();
        queue.push(of_job.into_iter().fold(job(1), NewJob::retention)).unwrap();
        let mut lease = accept(&queue);
        assert_eq!(lease.finish(None::<&()>).unwrap(), None);
    }
}

#[test]
fn a_push_for_later_is_not_lost_when_the_run_that_it_met_fails() {
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
    assert_eq!(lease.finish(None::<&()>).unwrap(), Some(JobState::Scheduled), "the run of the push is still to come");
    clock.advance(Duration::from_secs(59));
    assert_eq!(accept(&queue).finish(None::<&()>).unwrap(), Some(JobState::Finished));
}

#[test]
fn an_attempt_that_begins_after_a_push_is_the_run_of_that_push() {
    let clock = Clock::manual(SystemTime::now());
    let queue = queue_on(&clock);
    queue.push(job(1).id("a")).unwrap();
    let mut lease = accept(&queue);
    queue.push(job(2).id("a")).unwrap();
    lease.retry("it fails").unwrap();
    clock.advance(Duration::from_secs(1));
    assert_eq!(accept(&queue).finish(None::<&()>).unwrap(), Some(JobState::Finished));
}

#[test]
fn a_run_that_succeeds_clears_the_crashes_also_if_the_job_is_to_run_once_more() {
    let disk = FaultyStore::new().unwrap();
    let queue = Queue::open(&disk.store(), "q", QueueOptions::default()).unwrap();
    queue.push(job(1).id("a")).unwrap();
    std::mem::forget(accept(&queue));
    let disk = disk.after_crash().unwrap();
    let queue = Queue::open(&disk.store(), "q", QueueOptions::default()).unwrap();
    let mut lease = accept(&queue);
    assert_eq!(lease.crashes(), 1);
    lease.resubmit(None).unwrap();
    assert_eq!(lease.finish(None::<&()>).unwrap(), Some(JobState::Ready));
    assert_eq!(accept(&queue).crashes(), 0);
}

/// Some programs always ask for jobs that are due by now, and the clock goes on meanwhile.
#[test]
fn a_queue_that_is_asked_only_for_jobs_that_were_due_by_a_past_time_hands_out_all_of_them() {
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
        lease.finish(None::<&()>).unwrap();
    }
    assert!(queue.accept(was_due()).unwrap().is_none(), "the job that is left was due later");
    assert_eq!(accept(&queue).payload::<u64>().unwrap(), 1000);
}

#[test]
fn a_claim_of_a_job_that_was_due_by_a_past_time_lets_no_priority_starve() {
    let clock = Clock::manual(SystemTime::now());
    let queue = queue_on(&clock);
    queue.push(job(1000).priority(Priority::Low)).unwrap();
    queue.push_all((0..20).map(job)).unwrap();
    let past = SystemTime::now() - Duration::from_secs(60);
    let mut payloads = Vec::new();
    for _ in 0..10 {
        let mut lease = queue.accept(Accept::new().max_run_at(past)).unwrap().expect("a job is ready");
        payloads.push(lease.payload::<u64>().unwrap());
        lease.finish(None::<&()>).unwrap();
    }
    assert_eq!(payloads, [0, 1, 2, 3, 4, 5, 6, 1000, 7, 8]);
}
