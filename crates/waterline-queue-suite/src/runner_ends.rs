//! Timeouts of attempts, and stops of runners. A job that runs during a stop loses no attempt.

use crate::bench::*;
use crate::runner::of;
use crate::runner_drains::full_runner;
use crossbeam_channel::{Sender, bounded, unbounded};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use waterline::{BoxError, Error, Failure, Retry};
use waterline_queue::{
    Accept, AttemptEnd, ConfigError, DrainLimits, Finisher, JobState, Outcome, Queue, QueueError, QueueOptions, Runner,
    Running,
};

pub(super) fn a_slow_function_is_told_to_stop_and_its_answer_counts(on: &Benches<'_>) {
    let bench = on.bench();
    let (queue, clock) = bench.handles();
    let (begun, has_begun) = bounded(1);
    let runner = Runner::builder(&queue)
        .on("k", move |job, ()| {
            begun.send(job.is_stopping()).unwrap();
            eventually("the flag of the job", || job.is_stopping());
            Ok(Outcome::Done)
        })
        .attempt_timeout(SECOND)
        .start()
        .unwrap();
    queue.push(of("k").id("a")).unwrap();
    assert!(!has_begun.recv_timeout(LONG).unwrap());
    clock.advance(SECOND);
    until(&queue, "a", JobState::Finished);
    runner.stop().unwrap();
}

pub(super) fn a_slow_deferred_job_fails_and_its_late_report_is_ignored(on: &Benches<'_>) {
    let bench = on.bench();
    let (queue, clock) = bench.handles();
    let (begun, finishers) = unbounded::<Finisher>();
    let runner = Runner::builder(&queue)
        .on_deferred("k", move |_, (), done| begun.send(done).unwrap())
        .attempt_timeout(SECOND)
        .start()
        .unwrap();
    queue.push(of("k").id("a")).unwrap();
    let done = finishers.recv_timeout(LONG).unwrap();
    clock.advance(SECOND - Duration::from_millis(1));
    assert_eq!(bench.state("a"), Some(JobState::Running));
    clock.advance(Duration::from_millis(1));
    until(&queue, "a", JobState::Scheduled);
    done.complete();
    let info = bench.info("a");
    assert_eq!((info.state, info.failures), (JobState::Scheduled, 1));
    assert_eq!(info.error.as_deref(), Some("the attempt took longer than 1s"));
    runner.stop().unwrap();
}

pub(super) fn a_deferred_job_that_times_out_in_a_hook_never_begins(on: &Benches<'_>) {
    let bench = on.bench();
    let (queue, clock) = bench.handles();
    for hook_fails in [false, true] {
        let (waits, is_waiting) = unbounded();
        let (release, is_released) = bounded::<()>(0);
        let (said, says) = unbounded();
        let begun = said.clone();
        let runner = Runner::builder(&queue)
            .on_deferred("k", move |_, (), done| {
                begun.send("begun".to_owned()).unwrap();
                done.complete();
            })
            .before(move |_| {
                waits.send(()).unwrap();
                let _ = is_released.recv();
                if hook_fails { Err("the hook failed".into()) } else { Ok(()) }
            })
            .teardown(move |_, end| said.send(format!("{end:?}")).unwrap())
            .max_processing(2)
            .attempt_timeout(SECOND)
            .start()
            .unwrap();
        queue.push(of("k").id("a")).unwrap();
        is_waiting.recv_timeout(LONG).unwrap();
        clock.advance(SECOND);
        until(&queue, "a", JobState::Scheduled);
        drop(release);
        runner.stop().unwrap();
        let said: Vec<_> = says.try_iter().collect();
        assert_eq!(said, [r#"Retried { error: "the attempt took longer than 1s" }"#]);
        queue.remove("a").unwrap();
    }
}

pub(super) fn stop_waits_for_running_jobs_and_claims_no_more(on: &Benches<'_>) {
    let bench = on.bench();
    let queue = bench.queue.clone();
    let (release, is_released) = bounded::<()>(0);
    let (saw, sees) = unbounded();
    let runner = Runner::builder(&queue)
        .on("k", move |job, ()| {
            is_released.recv().ok();
            eventually("the flag of the job", || job.is_stopping());
            saw.send(job.id().to_owned()).unwrap();
            Ok(Outcome::Done)
        })
        .max_processing(1)
        .start()
        .unwrap();
    queue.push_all([of("k").id("a"), of("k").id("b")]).unwrap();
    until(&queue, "a", JobState::Running);
    eventually("the job to be in flight", || runner.processing() == 1);
    assert_eq!(queue.counts().running, 1, "no job is claimed that nobody runs");
    let stopping = std::thread::spawn(move || runner.stop());
    drop(release);
    stopping.join().unwrap().unwrap();
    assert_eq!(sees.try_iter().collect::<Vec<_>>(), ["a"]);
    let (a, b) = (bench.info("a"), bench.info("b"));
    assert_eq!((a.state, b.state), (JobState::Finished, JobState::Ready));
    assert_eq!((b.failures, b.crashes), (0, 0), "it has lost no attempt");
}

pub(super) fn a_second_runner_is_refused_until_the_first_one_ends(on: &Benches<'_>) {
    let bench = on.bench();
    let queue = bench.queue.clone();
    let builder = || Runner::builder(&queue).on("k", |_, ()| Ok(Outcome::Done));
    let first = builder().start().unwrap();
    let error = builder().start().unwrap_err();
    assert!(matches!(&error, QueueError::Store(Error::InUse { name }) if name == "q"), "{error}");
    assert!(error.to_string().contains("queue \"q\" is in use by another"), "{error}");
    assert!(builder().drain(DrainLimits::default()).is_err());
    first.stop().unwrap();
    drop(builder().start().unwrap());
    builder().drain(DrainLimits::default()).unwrap();
    builder().start().unwrap().stop_within(LONG).unwrap();
}

pub(super) fn a_job_that_outlives_stop_within_is_put_back(on: &Benches<'_>) {
    let bench = on.bench();
    let (queue, clock) = bench.handles();
    let (runner, finishers) = full_runner(&queue, 1);
    let stopped = runner.stop_within(Duration::ZERO);
    assert!(matches!(&stopped, Err(QueueError::StopTimeout { running }) if *running == ["0"]), "{stopped:?}");
    finishers.recv().unwrap().complete();
    assert_eq!(bench.state("0"), Some(JobState::Running));
    clock.advance(Duration::from_secs(60) - Duration::from_millis(1));
    assert!(queue.accept(Accept::new()).unwrap().is_none());
    assert_eq!(bench.state("0"), Some(JobState::Running), "the lease is not over");
    clock.advance(Duration::from_millis(1));
    // A thread of the queue may still be expiring leases by the earlier time.
    until(&queue, "0", JobState::Ready);
    let info = bench.info("0");
    assert_eq!((info.failures, info.error), (0, None));
    let builder = || Runner::builder(&queue).on("k", |_, ()| Ok(Outcome::Done));
    eventually("the name to be free", || builder().drain(DrainLimits::default()).is_ok());
    assert_eq!(bench.state("0"), Some(JobState::Finished));
}

/// The handlers block their threads, that of the future too, so none ends by itself.
pub(super) fn a_job_that_outlives_a_stop_is_put_back_for_every_handler(on: &Benches<'_>) {
    let bench = strict(on);
    for_each_sort(|kind| {
        bench.push(of(kind).id("a"));
        let ((begun, begins), (release, is_released)) = (unbounded(), bounded::<()>(0));
        let runner = handlers(&bench, move |_| {
            begun.send(())?;
            let _ = is_released.recv();
            Err("it noticed nothing of the stop".into())
        });
        let runner = runner.start().unwrap();
        begins.recv_timeout(LONG).unwrap();
        assert!(matches!(runner.stop_within(Duration::ZERO), Err(QueueError::StopTimeout { .. })), "{kind}");
        assert_eq!(bench.state("a"), Some(JobState::Running), "{kind}");
        bench.clock.advance(MINUTE);
        // A thread of the queue may still be expiring leases by the earlier time.
        until(&bench.queue, "a", JobState::Ready);
        is_put_back(&bench, kind);
        // The late answers change nothing. The pause keeps the next runner from the job.
        bench.queue.pause(None).unwrap();
        drop(release);
        let builder = || Runner::builder(&bench.queue).on("k", |_, ()| Ok(Outcome::Done));
        eventually("the name to be free", || builder().start().is_ok());
        is_put_back(&bench, kind);
        bench.queue.resume().unwrap();
        bench.queue.remove("a").unwrap();
    });
}

pub(super) fn a_function_that_outlives_stop_within_still_counts(on: &Benches<'_>) {
    let bench = on.bench();
    let queue = bench.queue.clone();
    let (release, is_released) = bounded::<()>(0);
    let (ended, ends) = unbounded();
    let builder = || Runner::builder(&queue).on("k", |_, ()| Ok(Outcome::Done));
    let runner = Runner::builder(&queue)
        .on("k", move |_, ()| Ok(is_released.recv().map_or(Outcome::Done, |()| Outcome::Done)))
        .teardown(move |_, end| ended.send(end.clone()).unwrap())
        .start()
        .unwrap();
    queue.push(of("k").id("a")).unwrap();
    until(&queue, "a", JobState::Running);
    eventually("the job to be in flight", || runner.processing() == 1);
    assert!(matches!(runner.stop_within(Duration::ZERO), Err(QueueError::StopTimeout { .. })));
    assert!(matches!(builder().start(), Err(QueueError::Store(Error::InUse { .. }))));
    drop(release);
    assert_eq!(ends.recv_timeout(LONG).unwrap(), AttemptEnd::Finished);
    assert_eq!(bench.state("a"), Some(JobState::Finished));
    eventually("the name to be free", || builder().start().is_ok());
}

pub(super) fn a_job_claimed_as_stop_within_gives_up_is_taken_back(on: &Benches<'_>) {
    let bench = on.bench();
    let (queue, clock) = bench.handles();
    let (torn, tears_down) = unbounded();
    let (release, is_released) = bounded::<()>(0);
    let (finish, is_finished) = bounded::<()>(0);
    let runner = Runner::builder(&queue)
        .on("first", |_, ()| Ok(Outcome::Done))
        .on("second", move |_, ()| Ok(is_finished.recv().map_or(Outcome::Done, |()| Outcome::Done)))
        .teardown(move |_, _| {
            torn.send(()).unwrap();
            let _ = is_released.recv();
        })
        .max_processing(1)
        .start()
        .unwrap();
    queue.push_all([of("first"), of("second").id("b")]).unwrap();
    tears_down.recv_timeout(LONG).unwrap();
    let error = runner.stop_within(Duration::ZERO).unwrap_err();
    assert!(error.to_string().starts_with("a hook of the runner"), "{error}");
    drop(release);
    eventually("the job to be given a lease", || {
        clock.advance(HOUR);
        queue.accept(Accept::new()).unwrap();
        bench.state("b") != Some(JobState::Running)
    });
    drop(finish);
}

/// A runner that its own handlers and hooks can stop.
type Shared = Arc<Mutex<Option<Runner>>>;

fn stop_here(shared: &Shared, said: &Sender<Option<QueueError>>) {
    let runner = shared.lock().take();
    if let Some(runner) = runner {
        said.send(runner.stop().err()).unwrap();
    }
}

pub(super) fn stop_on_the_thread_of_a_job_returns_at_once(on: &Benches<'_>) {
    type Case = (&'static str, fn(&Queue, Shared, Sender<Option<QueueError>>) -> Runner);
    let cases: [Case; 3] = [
        ("handler", |queue, shared, said| {
            let handler = move |_: &Running, ()| {
                stop_here(&shared, &said);
                Ok(Outcome::Done)
            };
            Runner::builder(queue).on("k", handler).start().unwrap()
        }),
        ("hook", |queue, shared, said| {
            let builder = Runner::builder(queue).on("k", |_, ()| Ok(Outcome::Done));
            builder.teardown(move |_, _| stop_here(&shared, &said)).start().unwrap()
        }),
        ("finisher", |queue, shared, said| {
            let builder = Runner::builder(queue).on_deferred("k", |_, (), done: Finisher| {
                std::thread::spawn(move || done.complete());
            });
            builder.after_each(move |_, _| stop_here(&shared, &said)).start().unwrap()
        }),
    ];
    let bench = on.bench();
    let queue = &bench.queue;
    for (name, start) in cases {
        let shared = Shared::default();
        let (said, says) = unbounded();
        let mut held = shared.lock();
        *held = Some(start(queue, shared.clone(), said));
        drop(held);
        queue.push(of("k").id("a")).unwrap();
        let error = says.recv_timeout(LONG).unwrap_or_else(|_| panic!("the {name} waits for itself"));
        assert!(matches!(error, Some(QueueError::Config(ConfigError::OwnThread))), "{name}: {error:?}");
        until(queue, "a", JobState::Finished);
        let builder = || Runner::builder(queue).on("k", |_, ()| Ok(Outcome::Done));
        eventually("the name to be free", || builder().start().is_ok());
        queue.remove("a").unwrap();
    }
}

/// A bench whose jobs die of their first failure or crash.
fn strict(on: &Benches<'_>) -> Bench {
    on.bench_with(QueueOptions::default().retry(Retry::none()).max_crashes(1))
}

/// Asserts that the job `a` is ready, with only what its last attempt left.
#[track_caller]
fn is_put_back(bench: &Bench, kind: &str) {
    let info = bench.info("a");
    assert_eq!((info.state, info.failures, info.crashes, info.error), (JobState::Ready, 0, 0, None), "{kind}");
    assert_eq!((info.data, info.progress.map(|it| it.fraction)), (Some(7.into()), Some(0.5)), "{kind}");
}

pub(super) fn a_failure_during_a_stop_costs_no_attempt(on: &Benches<'_>) {
    let bench = strict(on);
    for_each_sort(|kind| {
        bench.push(of(kind).id("a"));
        for panics in [false, true, false] {
            let ((begun, begins), (told, tells)) = (unbounded(), unbounded());
            let runner = handlers(&bench, move |job| {
                begun.send(())?;
                eventually("the stop", || job.is_stopping());
                assert!(!panics, "cut short");
                Err("cut short".into())
            });
            let runner = runner.teardown(move |_, ended| told.send(ended.clone()).unwrap()).start().unwrap();
            begins.recv_timeout(LONG).unwrap();
            runner.stop().unwrap();
            let ended = tells.recv_timeout(LONG).unwrap();
            let error = |error: &str| error.contains(if panics { "panic" } else { "cut short" });
            // A finisher dropped by a panic reports only that it was dropped.
            assert!(
                matches!(&ended, AttemptEnd::PutBack { error: text } if kind == "deferred" || error(text)),
                "{ended:?}"
            );
            is_put_back(&bench, kind);
        }
        let drained = handlers(&bench, |_| Ok(Outcome::Done)).drain(DrainLimits::default()).unwrap();
        assert_eq!(drained.finished, 1, "{kind}");
        bench.queue.remove("a").unwrap();
    });
}

pub(super) fn an_outcome_other_than_failure_counts_during_a_stop(on: &Benches<'_>) {
    type Answer = fn() -> Result<Outcome, BoxError>;
    let answers: [(Answer, JobState); 4] = [
        (|| Ok(Outcome::Done), JobState::Finished),
        (|| Ok(Outcome::Dead("no way".to_owned())), JobState::Dead),
        (|| Err(Failure::permanent("no way").into()), JobState::Dead),
        (|| Ok(Outcome::Snooze(noon() + Duration::from_secs(1))), JobState::Scheduled),
    ];
    let bench = strict(on);
    for_each_sort(|kind| {
        for (answer, state) in answers {
            bench.push(of(kind).id("a"));
            let (begun, begins) = unbounded();
            let runner = handlers(&bench, move |job| {
                begun.send(())?;
                eventually("the stop", || job.is_stopping());
                answer()
            });
            let runner = runner.start().unwrap();
            begins.recv_timeout(LONG).unwrap();
            runner.stop().unwrap();
            assert_eq!(bench.state("a"), Some(state), "{kind}");
            bench.queue.remove("a").unwrap();
        }
    });
}

/// A thread of the runner writes the end of a deferred job, and the handler blocks one.
pub(super) fn a_deferred_handler_may_wait_for_its_own_end(on: &Benches<'_>) {
    let bench = strict(on);
    let (queue, (said, says)) = (bench.queue.clone(), bounded(1));
    let runner = Runner::builder(&bench.queue).max_processing(1).on_deferred("k", move |job, (), done: Finisher| {
        let mut subscription = queue.subscribe(job.id()).unwrap();
        done.complete();
        said.send(subscription.wait_for(JobState::Finished, LONG).unwrap().is_some()).unwrap();
    });
    let runner = runner.start().unwrap();
    bench.push(of("k").id("a"));
    assert!(says.recv_timeout(LONG).unwrap(), "the handler waits for its own end");
    ends("the runner", move || runner.stop().unwrap());
    assert!(bench.queue.accept(Accept::new()).unwrap().is_none());
}
