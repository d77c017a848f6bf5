//! A bound on the jobs that wait: refused pushes, and pushes that wait for capacity.

use crate::bench::*;
use std::time::Duration;
use waterline::Retry;
use waterline_queue::{
    Accept, Clash, ConfigError, JobState, NewJob, PushOutcome, QueueError, QueueOptions, Retention, Unique,
};

fn options(most: u64) -> QueueOptions {
    let options = QueueOptions::default().max_waiting(most).retry(Retry::fixed(SECOND).max_attempts(2));
    options.retention(Retention::Keep)
}

/// Asserts that a full queue refused this call.
fn assert_full<T: std::fmt::Debug>(answer: Result<T, QueueError>, most: u64) {
    let error = answer.unwrap_err();
    assert!(
        matches!(&error, QueueError::Full { queue, max_waiting } if queue == "q" && *max_waiting == most),
        "{error:?}"
    );
}

pub(super) fn a_push_above_max_waiting_leaves_nothing(on: &Benches<'_>) {
    let bench = on.bench_with(options(3));
    bench.push(job("a"));
    bench.push(job("b").delay(SECOND));
    assert_full(bench.queue.push_all([job("c"), job("d")]), 3);
    assert_eq!(bench.queue.state("c").unwrap(), None, "all of them or none");
    bench.push(job("c"));
    assert_full(bench.queue.push(job("d")), 3);
    assert_full(bench.queue.push(NewJob::new("k", &1).unwrap()), 3);
    let mut lazy = bench.queue.lazy();
    lazy.push(job("d")).unwrap();
    assert_full(lazy.flush(), 3);
    assert_eq!((lazy.len(), bench.waiting()), (1, 3));
    let mut lease = bench.claim();
    assert_eq!(lazy.flush().unwrap().len(), 1, "a claim makes room, and the buffer still has its job");
    lease.finish(None).unwrap();
    assert_full(bench.queue.push(job("a")), 3);
    assert_eq!(bench.queue.state("a").unwrap(), Some(JobState::Finished), "to run again is to wait");
}

pub(super) fn pushes_that_add_no_job_and_reruns_are_never_refused(on: &Benches<'_>) {
    let bench = on.bench_with(options(2));
    let unique = |id: &str| job(id).unique(Unique::until_done().on_clash(Clash::Replace));
    bench.push(job("a"));
    bench.push(unique("u").delay(SECOND));
    assert_eq!(bench.push(job("a")), PushOutcome::Duplicate("a".into()));
    assert_eq!(bench.push(job("a").delay(SECOND)), PushOutcome::Rescheduled);
    assert_eq!(bench.push(unique("v").delay(2 * SECOND)), PushOutcome::Rescheduled, "in the place of its twin");
    bench.clock.advance(SECOND);
    let mut first = bench.claim();
    bench.push(job("b"));
    assert_eq!(bench.push(job("a")), PushOutcome::Resubmit);
    assert_eq!(first.finish(None).unwrap(), Some(JobState::Ready), "one more run");
    assert_eq!(bench.waiting(), 3);
    assert_full(bench.queue.push(job("c")), 2);
    let mut second = bench.claim();
    bench.queue.push(job("c")).unwrap_err();
    assert_eq!(second.retry("it fails").unwrap(), Some(JobState::Scheduled));
    bench.claim().bury("no way").unwrap();
    assert_full(bench.queue.push(job("c")), 2);
    assert_eq!(bench.queue.requeue_dead().unwrap(), 1);
    assert_eq!(bench.waiting(), 3);
}

pub(super) fn an_expired_job_makes_room_for_a_push(on: &Benches<'_>) {
    let bench = on.bench_with(options(1));
    bench.push(job("a").delay(MINUTE).expires(SECOND));
    assert_full(bench.queue.push(job("b")), 1);
    bench.clock.advance(SECOND);
    assert_eq!(bench.push(job("b").expires(SECOND)), PushOutcome::Added);
    assert_eq!(bench.queue.state("a").unwrap(), Some(JobState::Dead));
    let waits = std::thread::spawn({
        let queue = bench.queue.clone();
        move || queue.push_within(job("c"), 3600 * SECOND)
    });
    while !waits.is_finished() {
        bench.clock.advance(SECOND);
        rest();
    }
    assert_eq!(waits.join().unwrap().unwrap().outcome, PushOutcome::Added);
    assert_eq!(bench.queue.state("b").unwrap(), Some(JobState::Dead));
}

pub(super) fn a_waiting_push_wakes_on_capacity_and_at_its_deadline(on: &Benches<'_>) {
    let bench = on.bench_with(options(1));
    bench.push(job("a"));
    let waits = |id: &'static str, timeout| {
        let queue = bench.queue.clone();
        std::thread::spawn(move || queue.push_within(job(id), timeout))
    };
    let pushed = waits("b", Duration::MAX);
    let mut lease = bench.claim();
    assert_eq!(pushed.join().unwrap().unwrap().id, "b");
    lease.finish(None).unwrap();
    let pushed = waits("c", MINUTE);
    bench.queue.remove("b").unwrap();
    assert_eq!(pushed.join().unwrap().unwrap().id, "c");
    assert_full(bench.queue.push_within(job("d"), Duration::ZERO), 1);
    let late = waits("d", MINUTE);
    while !late.is_finished() {
        bench.clock.advance(MINUTE);
        rest();
    }
    assert_full(late.join().unwrap(), 1);
    assert_eq!(bench.queue.state("d").unwrap(), None);
    let error = bench.queue.push_within(job("~"), MINUTE).unwrap_err();
    assert!(matches!(error, QueueError::Config(ConfigError::JobIdReserved { .. })));
}

pub(super) fn waiting_pushes_all_succeed_within_the_bound(on: &Benches<'_>) {
    let bench = on.bench_with(options(2));
    const THREADS: usize = 6;
    const EACH: usize = 20;
    // Its lease expires first, so the leases of other claims wake no thread.
    bench.push(job("held"));
    let held = bench.claim();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let queue = bench.queue.clone();
            scope.spawn(move || {
                for n in 0..EACH {
                    queue.push_within(job(&format!("{thread}/{n}")), Duration::MAX).unwrap();
                }
            });
        }
        for _ in 0..THREADS * EACH {
            let accept = Accept::new().timeout(Duration::MAX);
            let mut lease = bench.queue.accept(accept).unwrap().expect("a job comes");
            assert!(bench.waiting() <= 2);
            lease.finish(None).unwrap();
        }
    });
    assert_eq!(bench.queue.counts().finished, (THREADS * EACH) as u64);
    drop(held);
}
