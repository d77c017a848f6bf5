//! Leases: their calls, their expiry, and retries.

use crate::bench::*;
use serde_json::{Value, json};
use std::collections::HashMap;
use waterline::Retry;
use waterline_queue::{
    Accept, ConfigError, DrainLimits, JobState, LeaseWrites, NewJob, Outcome, QueueError, QueueOptions, Runner,
};

#[track_caller]
fn assert_halt<R: std::fmt::Debug>(answer: Result<R, QueueError>) {
    assert!(matches!(answer, Err(QueueError::Halt { .. })), "{answer:?}");
}

pub(super) fn c13_update_renews_the_lease_and_replaces_the_data(on: &Benches<'_>) {
    let bench = on.bench();
    let mut lease = bench.running("a");
    for n in 0..3 {
        bench.clock.advance(MINUTE - MILLI);
        lease.update(Some(n.into())).unwrap();
        assert_eq!(lease.data(), Some(n.into()));
    }
    bench.clock.advance(MINUTE - MILLI);
    lease.update(None).unwrap();
    assert_eq!(bench.info("a").data, Some(2.into()), "an update without data leaves it");
    bench.push(job("a"));
    assert!(!lease.is_resubmitted(), "no call has shown it yet");
    lease.update(None).unwrap();
    assert!(lease.is_resubmitted());
    assert_eq!(lease.finish(None).unwrap(), Some(JobState::Ready));
    assert_eq!(bench.claim().data(), Some(2.into()), "the next run sees it");
}

pub(super) fn c15_c16_resubmit_runs_a_job_once_more(on: &Benches<'_>) {
    let bench = on.bench();
    let mut lease = bench.running("a");
    lease.resubmit(Some(noon() + MINUTE)).unwrap();
    assert!(lease.is_resubmitted());
    lease.resubmit(Some(noon() + HOUR)).unwrap();
    assert_eq!(lease.finish(None).unwrap(), Some(JobState::Scheduled), "C18: it is scheduled anew in one write");
    assert_eq!(bench.info("a").run_at, Some(noon() + HOUR));
    bench.clock.advance(HOUR);
    let mut lease = bench.claim();
    lease.resubmit(None).unwrap();
    assert_eq!(lease.finish(None).unwrap(), Some(JobState::Ready));
}

pub(super) fn c20_a_silent_worker_loses_its_job_at_the_deadline(on: &Benches<'_>) {
    let bench = on.bench_with(QueueOptions::default().retry(Retry::fixed(MILLI).max_attempts(2)));
    let mut lease = bench.running("a");
    lease.update(Some("half".into())).unwrap();
    let mut subscription = bench.queue.subscribe("a").unwrap();
    bench.clock.advance(MINUTE - MILLI);
    assert!(bench.accept().is_none());
    assert_eq!(bench.state("a"), Some(JobState::Running));
    bench.clock.advance(MILLI);
    assert!(bench.accept().is_none(), "its back-off begins now");
    let info = bench.info("a");
    assert_eq!((info.state, info.failures, info.data), (JobState::Scheduled, 1, Some("half".into())));
    assert_eq!(info.error.as_deref(), Some("its worker was silent for 60s"));
    let seen = subscription.wait(LONG).unwrap().expect("who watches the job sees it");
    assert_eq!(seen.state, Some(JobState::Scheduled));
    assert_halt(lease.update(None));
    bench.clock.advance(MILLI);
    let mut second = bench.claim();
    assert_eq!((second.id(), second.attempt()), ("a", 2));
    assert_halt(lease.finish(None));
    bench.clock.advance(MINUTE);
    assert_halt(second.finish(None));
    assert_eq!(bench.state("a"), Some(JobState::Dead), "that was its last attempt");
}

pub(super) fn c19_only_a_closed_queue_opens_with_other_options(on: &Benches<'_>) {
    let bench = on.bench();
    bench.push(job("a"));
    let longer = bench.options.clone().lease(HOUR);
    let error = bench.database.open("q", longer.clone()).unwrap_err();
    assert!(matches!(&error, QueueError::Config(ConfigError::QueueOptions { name }) if name == "q"), "{error}");
    let same = bench.database.open("q", bench.options.clone()).unwrap();
    let Bench { queue, clock, database, .. } = &bench;
    drop((same, queue.clone()));
    drop(database.open("other", longer.clone()).unwrap());
    let mut other = None;
    // The writer may hold it a moment longer.
    eventually("the queue to be closed", || {
        other = database.open("other", longer.clone().lease(SECOND)).ok();
        other.is_some()
    });
    let other = other.unwrap();
    other.push(job("x")).unwrap();
    let mut lease = other.accept(Accept::new()).unwrap().unwrap();
    clock.advance(SECOND);
    assert_halt(lease.finish(None));
}

pub(super) fn c29_a_job_retries_by_its_own_backoff_and_attempts(on: &Benches<'_>) {
    let bench = on.bench_with(QueueOptions::default().retry(Retry::fixed(SECOND).max_attempts(2)));
    bench.push(job("queues"));
    bench.push(job("own").retry(Retry::fixed(MINUTE).max_attempts(3)));
    let fail = |bench: &Bench| bench.claim().retry("no").unwrap();
    assert_eq!(fail(&bench), Some(JobState::Scheduled));
    assert_eq!(fail(&bench), Some(JobState::Scheduled));
    assert_eq!(bench.info("queues").run_at, Some(noon() + SECOND));
    assert_eq!(bench.info("own").run_at, Some(noon() + MINUTE));
    bench.clock.advance(MINUTE);
    let mut lease = bench.claim();
    assert_eq!((lease.id(), lease.attempt()), ("queues", 2));
    assert_eq!(lease.retry("no").unwrap(), Some(JobState::Dead));
    assert_eq!(bench.claim().retry("no").unwrap(), Some(JobState::Scheduled));
    bench.clock.advance(MINUTE);
    assert_eq!(bench.claim().retry("at last").unwrap(), Some(JobState::Dead));
    let info = bench.info("own");
    assert_eq!((info.failures, info.error.as_deref()), (3, Some("at last")));
}

pub(super) fn c29_retry_at_costs_an_attempt_and_snooze_does_not(on: &Benches<'_>) {
    let bench = on.bench_with(QueueOptions::default().retry(Retry::fixed(SECOND).max_attempts(2)));
    let mut lease = bench.running("a");
    assert_eq!(lease.retry_at(noon() + HOUR, "later").unwrap(), Some(JobState::Scheduled));
    assert_eq!((bench.info("a").run_at, bench.info("a").failures), (Some(noon() + HOUR), 1));
    bench.clock.advance(HOUR);
    for _ in 0..5 {
        let mut lease = bench.claim();
        assert_eq!(lease.attempt(), 2);
        assert_eq!(lease.snooze(noon()).unwrap(), Some(JobState::Ready), "a time that has passed");
    }
    assert_eq!(bench.claim().retry_at(noon() + HOUR * 3, "x").unwrap(), Some(JobState::Dead), "attempts are bounded");
}

/// Fails the job this many times, each time right after its claim, and moves the clock to its next
/// attempt.
fn fail_at_once(bench: &Bench, times: u32) {
    for _ in 0..times {
        bench.claim().retry("no").unwrap();
        bench.clock.advance(SECOND);
    }
}

pub(super) fn c29_only_a_run_of_heal_after_resets_the_failures(on: &Benches<'_>) {
    let options = QueueOptions::default().retry(Retry::fixed(SECOND).max_attempts(4));
    let bench = on.bench_with(options.heal_after(MINUTE).lease(HOUR));
    bench.push(job("a"));
    fail_at_once(&bench, 2);
    let mut lease = bench.claim();
    bench.clock.advance(MINUTE - MILLI);
    assert_eq!((lease.retry("no").unwrap(), bench.info("a").failures), (Some(JobState::Scheduled), 3));
    bench.clock.advance(SECOND);
    let mut lease = bench.claim();
    assert_eq!(lease.attempt(), 4);
    bench.clock.advance(MINUTE);
    assert_eq!((lease.retry("no").unwrap(), bench.info("a").failures), (Some(JobState::Scheduled), 1));
    bench.clock.advance(SECOND);
    fail_at_once(&bench, 2);
    assert_eq!(bench.claim().retry("no").unwrap(), Some(JobState::Dead), "short runs count up to the last attempt");
    assert_eq!(bench.info("a").failures, 4);
}

pub(super) fn c29_snoozing_heals_after_a_long_run_but_not_a_clock_jump(on: &Benches<'_>) {
    let options = QueueOptions::default().retry(Retry::fixed(SECOND).max_attempts(4));
    let bench = on.bench_with(options.heal_after(MINUTE).lease(HOUR));
    bench.push(job("a"));
    fail_at_once(&bench, 2);
    let mut lease = bench.claim();
    if bench.can().steady_clock {
        bench.clock.set_wall(noon() + HOUR);
    }
    lease.snooze(noon()).unwrap();
    assert_eq!(bench.info("a").failures, 2);
    let mut lease = bench.claim();
    bench.clock.advance(MINUTE);
    lease.snooze(noon()).unwrap();
    assert_eq!(bench.info("a").failures, 0);
}

pub(super) fn c29_the_silence_of_a_hung_worker_heals_nothing(on: &Benches<'_>) {
    let options = QueueOptions::default().retry(Retry::fixed(SECOND).max_attempts(3));
    let bench = on.bench_with(options.heal_after(MINUTE).lease(HOUR));
    bench.push(job("a"));
    for attempt in 1..=3 {
        let lease = bench.claim();
        assert_eq!(lease.attempt(), attempt);
        bench.clock.advance(HOUR);
        assert!(bench.queue.accept(Accept::new()).unwrap().is_none(), "the job is taken back, and waits");
        bench.clock.advance(SECOND);
        drop(lease);
    }
    assert_eq!(bench.info("a").state, JobState::Dead);
}

/// A call with writes beside it, and the state of the job after it.
type Write = (fn(LeaseWrites<'_>) -> Result<Option<JobState>, QueueError>, JobState);

const WRITES: [Write; 7] = [
    (|writes| writes.update(Some("new".into())).map(|()| Some(JobState::Running)), JobState::Running),
    (|writes| writes.resubmit(None).map(|()| Some(JobState::Running)), JobState::Running),
    (|writes| writes.finish(Some("new".into())), JobState::Finished),
    (|writes| writes.retry("no"), JobState::Scheduled),
    (|writes| writes.retry_at(noon() + HOUR, "no"), JobState::Scheduled),
    (|writes| writes.snooze(noon() + HOUR), JobState::Scheduled),
    (|writes| writes.bury("no"), JobState::Dead),
];

pub(super) fn writes_beside_a_lease_call_commit_with_it_or_not_at_all(on: &Benches<'_>) {
    for (call, state) in WRITES {
        let bench = on.bench();
        let queue = bench.queue.clone();
        let mut lease = bench.running("a");
        lease.update(Some("old".into())).unwrap();
        if !bench.can().writes_beside {
            let refused = lease.with(|effects| queue.push_with(effects, job("next")).map(drop));
            assert!(
                matches!(
                    &refused,
                    Err(QueueError::Config(ConfigError::Setting(waterline::ConfigError::Foreign { .. })))
                ),
                "{refused:?}"
            );
            drop(refused);
            assert_eq!(call(lease.with(|_| Ok(())).unwrap()).unwrap(), Some(state));
            continue;
        }
        let before = bench.info("a");
        let writes = lease.with(|effects| {
            queue.push_with(effects, job("next"))?;
            queue.push_with(effects, job("other").after(["never"])).map(drop)
        });
        let refused = call(writes.unwrap());
        assert!(matches!(&refused, Err(QueueError::NotFound { .. })), "{refused:?}");
        assert_eq!((bench.info("a"), bench.state("next")), (before, None), "neither");
        assert_eq!(
            call(lease.with(|effects| queue.push_with(effects, job("next")).map(drop)).unwrap()).unwrap(),
            Some(state)
        );
        assert_eq!(bench.states(["a", "next"]), [Some(state), Some(JobState::Ready)], "both");
        bench.queue.remove("a").unwrap();
        let writes = lease.with(|effects| queue.push_with(effects, job("late")).map(drop)).unwrap();
        assert_halt(call(writes));
        assert_eq!(bench.states(["a", "late"]), [None, None], "the lease is over");
    }
}

pub(super) fn a_write_that_pushes_its_own_job_shows_in_the_result(on: &Benches<'_>) {
    let bench = on.bench();
    if !bench.can().writes_beside {
        return;
    }
    let queue = bench.queue.clone();
    let mut lease = bench.running("a");
    // The end is written first, so the push meets a job that has ended.
    let states: [Write; 3] = [
        (|writes| writes.finish(None), JobState::Ready),
        (|writes| writes.bury("no"), JobState::Ready),
        (|writes| writes.snooze(noon() + HOUR), JobState::Ready),
    ];
    for (call, state) in states {
        let writes = lease.with(|effects| queue.push_with(effects, job("a")).map(drop)).unwrap();
        assert_eq!(call(writes).unwrap(), Some(state));
        lease = bench.claim();
    }
    let writes = lease.with(|effects| queue.push_with(effects, job("a").delay(HOUR)).map(drop)).unwrap();
    assert_eq!(writes.finish(None).unwrap(), Some(JobState::Scheduled));
    bench.clock.advance(HOUR);
    lease = bench.claim();
    lease.write(|effects| queue.push_with(effects, job("a")).map(drop)).unwrap();
    assert!(lease.is_resubmitted(), "the call that pushes it shows that");
    assert_eq!(lease.finish(None).unwrap(), Some(JobState::Ready));
}

pub(super) fn data_may_be_any_json_and_none_keeps_the_old(on: &Benches<'_>) {
    let bench = on.bench();
    let no_json = HashMap::from([((1, 2), 3)]);
    let mut lease = bench.running("a");
    let refused = |answer: Result<(), QueueError>| {
        assert!(matches!(&answer, Err(QueueError::Payload { id, .. }) if id == "a"), "{answer:?}");
    };
    let mut row = vec![1, 2];
    lease.update(&row).unwrap();
    refused(lease.update(&no_json));
    refused(lease.finish(&no_json).map(drop));
    assert_eq!(lease.data(), Some(json!([1, 2])), "the lease holds, and the job keeps its data");
    lease.update(&mut row).unwrap();
    lease.update("text").unwrap();
    lease.update(None).unwrap();
    assert_eq!(lease.data(), Some(json!("text")));
    lease.update(json!({ "row": 3 })).unwrap();
    lease.finish(Some(Value::Null)).unwrap();
    assert_eq!(bench.info("a").data, Some(Value::Null), "that is a value too");

    for id in ["data", "none", "misfit"] {
        bench.push(NewJob::new(id, &1).unwrap().id(id).retry(Retry::none()));
    }
    let summary = Runner::builder(&bench.queue)
        .on("data", |job, n: u32| {
            job.update(&n)?;
            job.update(None)?;
            assert_eq!(job.data(), Some(json!(1)));
            job.update("text")?;
            Ok(Outcome::done_with(&[n])?)
        })
        .on("none", |job, n: u32| {
            job.update(&n)?;
            Ok(Outcome::done_with(None)?)
        })
        .on("misfit", move |_job, _n: u32| Ok(Outcome::done_with(&no_json)?))
        .drain(DrainLimits::default())
        .unwrap();
    assert_eq!((summary.finished, summary.dead), (2, 1));
    assert_eq!((bench.info("data").data, bench.info("none").data), (Some(json!([1])), Some(json!(1))));
    let error = bench.info("misfit").error.unwrap();
    assert!(error.starts_with("the data that the job is to leave cannot be JSON"), "{error}");
}
