//! Runners: handlers and their outcomes, unknown kinds, and the hooks of attempts.

use crate::bench::*;
use crossbeam_channel::{bounded, unbounded};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use waterline::{BoxError, Failure, Retry};
use waterline_queue::{
    AttemptEnd, DrainLimits, JobState, NewJob, Outcome, QueueEvent, QueueOptions, Reached, Runner, RunnerBuilder,
    Summary, Unknown,
};

/// A job of this kind with a generated id.
pub(super) fn of(kind: &str) -> NewJob {
    NewJob::new(kind, &()).unwrap()
}

pub(super) fn each_outcome_leads_to_its_state(on: &Benches<'_>) {
    let bench = on.bench();
    let queue = bench.queue.clone();
    let later = noon() + HOUR;
    let ids = ["done", "data", "retry", "snooze", "dead", "error", "panic", "permanent", "wrapped", "defer"];
    queue.push_all(ids.map(|id| of("k").id(id))).unwrap();
    let drained = Runner::builder(&queue)
        .on("k", move |job, ()| match job.id() {
            "done" => Ok(Outcome::Done),
            "data" => Ok(Outcome::DoneWith("data".into())),
            "retry" => Ok(Outcome::RetryAt(later)),
            "snooze" => Ok(Outcome::Snooze(later)),
            "dead" => Ok(Outcome::Dead("beyond repair".to_owned())),
            "error" => Err("no".into()),
            "panic" => panic!("out of order"),
            "permanent" => Err(Failure::permanent("never").into()),
            "wrapped" => Err(std::io::Error::other(Failure::permanent("within")).into()),
            _ => Err(Failure::defer(MINUTE).into()),
        })
        .drain(DrainLimits::default())
        .unwrap();
    assert_eq!((drained.finished, drained.retried, drained.snoozed, drained.dead, drained.lost), (2, 3, 2, 3, 0));
    let seen = |id| {
        let info = bench.info(id);
        (info.state, info.failures, info.run_at, info.error.unwrap_or_default())
    };
    let text = str::to_owned;
    assert_eq!(bench.info("data").data, Some("data".into()));
    assert_eq!(seen("done"), (JobState::Finished, 0, None, text("")));
    assert_eq!(seen("retry"), (JobState::Scheduled, 1, Some(later), text("it asked for another time")));
    assert_eq!(seen("snooze"), (JobState::Scheduled, 0, Some(later), text("")));
    assert_eq!(seen("dead"), (JobState::Dead, 1, None, text("beyond repair")));
    let back_off = Some(noon() + SECOND);
    assert_eq!(seen("error"), (JobState::Scheduled, 1, back_off, text("no")));
    assert_eq!(seen("panic"), (JobState::Scheduled, 1, back_off, text("panicked: out of order")));
    assert_eq!(seen("permanent"), (JobState::Dead, 1, None, text("never")));
    assert_eq!((seen("wrapped").0, seen("wrapped").1), (JobState::Dead, 1));
    assert_eq!(seen("defer"), (JobState::Scheduled, 0, Some(noon() + MINUTE), text("")));
}

pub(super) fn misfit_payloads_and_unknown_kinds_are_buried(on: &Benches<'_>) {
    let bench = on.bench();
    let queue = bench.queue.clone();
    let kinds = ["direct", "deferred", "unknown", "transactional", "future"];
    queue.push_all(kinds.iter().map(|kind| NewJob::new(*kind, &"text").unwrap().id(*kind))).unwrap();
    let runner = Runner::builder(&queue)
        .on("direct", |_, _: u32| Ok(Outcome::Done))
        .on_deferred("deferred", |_, _: u32, done| done.complete())
        .on_transactional("transactional", |_, _: u32, _| Ok(Outcome::Done));
    let runner = awaiting(runner, "future", |_, _: u32, _| Ok(Outcome::Done)).unknown(Unknown::Dead);
    let drained = in_a_runtime(|| runner.drain(DrainLimits::default())).unwrap();
    assert_eq!(drained.dead, kinds.len() as u64, "{drained}");
    for kind in kinds.iter().filter(|kind| **kind != "unknown") {
        let error = bench.info(kind).error.unwrap();
        assert!(error.contains("does not fit its type") && error.contains(kind), "{error}");
    }
    assert_eq!(bench.info("unknown").error.as_deref(), Some("no handler has the kind \"unknown\""));
}

pub(super) fn a_repush_for_later_shows_in_the_next_attempt_too(on: &Benches<'_>) {
    let bench = on.bench_with(QueueOptions::default().retry(Retry::fixed(SECOND)));
    let (queue, clock) = bench.handles();
    queue.push(of("k").id("a")).unwrap();
    let flag = |answer: Result<Outcome, &'static str>| {
        let (pushes, (sender, flags)) = (queue.clone(), bounded(1));
        let runner = Runner::builder(&queue).on("k", move |job, ()| {
            sender.send(job.is_resubmitted()).unwrap();
            pushes.push(of("k").id("a").delay(HOUR))?;
            Ok(answer.clone()?)
        });
        runner.drain(DrainLimits::default()).unwrap();
        clock.advance(SECOND);
        flags.recv().unwrap()
    };
    assert!(!flag(Err("once more")));
    assert!(flag(Ok(Outcome::Done)), "the push to the first attempt counts as long as the job has not run");
}

pub(super) fn an_unknown_kind_can_wait_for_a_later_program(on: &Benches<'_>) {
    let bench = on.bench();
    let (queue, clock) = bench.handles();
    queue.push(of("new").id("a")).unwrap();
    let old = || Runner::builder(&queue).on("old", |_, ()| Ok(Outcome::Done)).unknown(Unknown::Snooze(MINUTE));
    for _ in 0..5 {
        assert_eq!(old().drain(DrainLimits::default()).unwrap().snoozed, 1);
        clock.advance(MINUTE);
    }
    assert_eq!(bench.info("a").failures, 0);
    let new = Runner::builder(&queue).on("new", |_, ()| Ok(Outcome::Done));
    assert_eq!(new.drain(DrainLimits::default()).unwrap().finished, 1);
    queue.push(of("new").id("far")).unwrap();
    let far = Runner::builder(&queue).on("old", |_, ()| Ok(Outcome::Done)).unknown(Unknown::Snooze(Duration::MAX));
    assert_eq!(far.drain(DrainLimits::default()).unwrap().snoozed, 1, "as late as a calendar goes");
}

pub(super) fn a_deferred_job_ends_by_its_finisher_on_any_thread(on: &Benches<'_>) {
    let bench = on.bench();
    let queue = bench.queue.clone();
    let ids = ["complete", "end", "fail", "drop", "panic", "leak"];
    queue.push_all(ids.map(|id| of("k").id(id))).unwrap();
    let drained = Runner::builder(&queue)
        .on_deferred("k", |job, (), done| {
            let thread = std::thread::spawn(move || match job.id() {
                "complete" => done.complete(),
                "end" => done.end(Ok(Outcome::DoneWith(7.into()))),
                "fail" => done.fail("no"),
                "panic" => panic!("with the finisher"),
                _ => drop(done),
            });
            assert_ne!(thread.join().is_err(), std::thread::panicking(), "the handler panics too");
        })
        .drain(DrainLimits::default())
        .unwrap();
    assert_eq!((drained.finished, drained.retried), (2, 4), "{drained}");
    assert_eq!(bench.info("end").data, Some(7.into()));
    assert_eq!(bench.info("fail").error.as_deref(), Some("no"));
    assert_eq!(bench.info("drop").error.as_deref(), Some("its finisher was dropped"));
}

/// An error that panics where it can.
struct Hostile(&'static str);

impl fmt::Debug for Hostile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hostile")
    }
}

impl fmt::Display for Hostile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        assert_ne!(self.0, "text", "in its text");
        f.write_str("hostile")
    }
}

impl std::error::Error for Hostile {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        assert_ne!(self.0, "source", "in its source");
        None
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        assert_ne!(self.0, "drop", "in its destructor");
    }
}

pub(super) fn an_error_that_panics_fails_only_its_attempt(on: &Benches<'_>) {
    let bench = on.bench();
    let queue = &bench.queue;
    for (place, text) in [("drop", "hostile"), ("text", "whose text panics"), ("source", "panics")] {
        let builder = Runner::builder(queue).on("k", move |_, ()| Err(Hostile(place).into()));
        let runner = builder.on("good", |_, ()| Ok(Outcome::Done)).max_processing(1).start().unwrap();
        queue.push_all([of("k").id("bad"), of("good").id("good")]).unwrap();
        until(queue, "good", JobState::Finished);
        until(queue, "bad", JobState::Scheduled);
        let error = bench.info("bad").error.unwrap_or_default();
        assert!(error.contains(text), "{place}: {error}");
        ends("the runner", move || runner.stop()).unwrap();
        ["bad", "good"].iter().for_each(|id| queue.remove(*id).unwrap());
    }
    // The panic of a hook replaces the error, whose destructor panics too.
    queue.push(of("k").id("a")).unwrap();
    let builder =
        Runner::builder(queue).on("k", |_, ()| Err(Hostile("drop").into())).after_each(|_, _| panic!("in a hook"));
    let drained = builder.drain(DrainLimits::default()).unwrap();
    assert_eq!(drained.retried, 1, "{drained}");
    assert_eq!(bench.info("a").error.as_deref(), Some("panicked: in a hook"));
}

pub(super) fn a_handler_may_push_and_wait_for_another_job(on: &Benches<'_>) {
    let bench = on.bench();
    let queue = bench.queue.clone();
    queue.push(of("parent").id("parent")).unwrap();
    let inner = queue.clone();
    let drained = Runner::builder(&queue)
        .on("parent", move |_, ()| {
            let child = inner.push(of("child"))?.id;
            let seen = inner.subscribe(&child)?.wait_for(JobState::Finished, HOUR)?;
            Ok(seen.map_or(Outcome::Dead("it waited in vain".to_owned()), |_| Outcome::Done))
        })
        .on("child", |_, ()| Ok(Outcome::Done))
        .max_processing(2);
    let drained = ends("the drain", move || drained.drain(DrainLimits::default())).unwrap();
    assert_eq!(drained.finished, 2, "{drained}");
}

pub(super) fn hooks_run_in_order_and_teardown_after_the_end_is_written(on: &Benches<'_>) {
    let bench = on.bench();
    let queue = bench.queue.clone();
    queue.push(of("k").id("a")).unwrap();
    let (said, says) = unbounded::<String>();
    let say = |text: &'static str| {
        let said = said.clone();
        move || said.send(text.to_owned()).unwrap()
    };
    let (b1, b2, h, a1, a2, t1, t2) = (
        say("before 1"),
        say("before 2"),
        say("handler"),
        say("after 1"),
        say("after 2"),
        say("teardown 1"),
        say("teardown 2"),
    );
    let looks = queue.clone();
    Runner::builder(&queue)
        .on("k", move |_, ()| {
            h();
            Ok(Outcome::Done)
        })
        .before(move |_| {
            b1();
            Ok(())
        })
        .before(move |_| {
            b2();
            Ok(())
        })
        .after_each(move |_, outcome| {
            assert!(matches!(outcome, Ok(Outcome::Done)));
            a1();
        })
        .after_each(move |_, _| a2())
        .teardown(move |job, end| {
            assert_eq!((looks.state(job.id()).unwrap(), end), (Some(JobState::Finished), &AttemptEnd::Finished));
            t1();
        })
        .teardown(move |_, _| t2())
        .drain(DrainLimits::default())
        .unwrap();
    let said: Vec<_> = says.try_iter().collect();
    assert_eq!(said, ["before 1", "before 2", "handler", "after 1", "after 2", "teardown 1", "teardown 2"]);
}

pub(super) fn a_failing_or_panicking_hook_fails_the_attempt(on: &Benches<'_>) {
    let bench = on.bench();
    let queue = bench.queue.clone();
    let ids = ["before fails", "before panics", "after panics", "teardown panics"];
    queue.push_all(ids.map(|id| of("k").id(id))).unwrap();
    let (ran, runs) = unbounded();
    let (after, afters) = unbounded();
    let drained = Runner::builder(&queue)
        .on("k", move |job, ()| {
            ran.send(job.id().to_owned()).unwrap();
            Ok(Outcome::Done)
        })
        .before(|job| match job.id() {
            "before fails" => Err(Failure::permanent("not today").into()),
            "before panics" => panic!("in before"),
            _ => Ok(()),
        })
        .after_each(|job, _| assert_ne!(job.id(), "after panics", "in after"))
        .after_each(move |job, outcome| after.send((job.id().to_owned(), outcome.is_ok())).unwrap())
        .teardown(|job, _| assert_ne!(job.id(), "teardown panics", "in teardown"))
        .observe(|_| panic!("in an observer"))
        .max_processing(1)
        .drain(DrainLimits::default())
        .unwrap();
    assert_eq!((drained.finished, drained.retried, drained.dead), (1, 2, 1), "{drained}");
    assert_eq!(runs.try_iter().collect::<Vec<_>>(), ["after panics", "teardown panics"]);
    let seen: Vec<_> = afters.try_iter().map(|(_, is_ok)| is_ok).collect();
    assert_eq!(seen, [false, false, false, true], "each attempt has one call after it");
}

pub(super) fn an_observer_sees_each_attempt_and_may_ask_the_queue(on: &Benches<'_>) {
    let bench = on.bench();
    let (queue, clock) = bench.handles();
    queue.push(of("k").id("a")).unwrap();
    let (said, says) = unbounded();
    let asks = queue.clone();
    let later = clock.clone();
    Runner::builder(&queue)
        .on("k", move |_, ()| {
            later.advance(SECOND);
            Err("no".into())
        })
        .observe(move |event| {
            asks.status().unwrap();
            let line = match event {
                QueueEvent::AttemptBegun { queue, id, kind, attempt, .. } => format!("{queue} {id} {kind} {attempt}"),
                QueueEvent::AttemptEnded { id, attempt, elapsed, ended, .. } => {
                    format!("{id} {attempt} {elapsed:?} {ended:?}")
                }
                other => format!("{other:?}"),
            };
            said.send(line).unwrap();
        })
        .drain(DrainLimits::default())
        .unwrap();
    let said: Vec<_> = says.try_iter().collect();
    assert_eq!(said, ["q a k 1", r#"a 1 1s Retried { error: "no" }"#]);
}

/// Several threads end their jobs while others write, so that ends are written in batches.
pub(super) fn each_hook_runs_once_per_attempt_in_batched_ends(on: &Benches<'_>) {
    const JOBS: usize = 100;
    let bench = on.bench();
    bench.queue.push_all((0..JOBS).map(|n| of("k").id(n.to_string()))).unwrap();
    let (said, says) = unbounded::<(&str, String)>();
    let say = |hook: &'static str| {
        let said = said.clone();
        move |job: &str| said.send((hook, job.to_owned())).unwrap()
    };
    let [before, after, teardown, begun, ended] = ["before", "after", "teardown", "begun", "ended"].map(say);
    let drained = Runner::builder(&bench.queue)
        .on("k", |_, ()| Ok(Outcome::Done))
        .before(move |job| {
            before(job.id());
            Ok(())
        })
        .after_each(move |job, _| after(job.id()))
        .teardown(move |job, _| teardown(job.id()))
        .observe(move |event| match event {
            QueueEvent::AttemptBegun { id, .. } => begun(id),
            QueueEvent::AttemptEnded { id, .. } => ended(id),
            other => panic!("no time has passed: {other:?}"),
        })
        .max_processing(6)
        .drain(DrainLimits::default());
    assert_eq!(drained.unwrap().finished, JOBS as u64);
    let said: Vec<_> = says.try_iter().collect();
    assert_eq!(said.len(), 5 * JOBS);
    assert_eq!(said.iter().collect::<BTreeSet<_>>().len(), 5 * JOBS, "each once");
}

/// Drains the jobs of a kind, each of which takes this long.
fn drain(bench: &Bench, kind: &str, took: Duration, with: impl FnOnce(RunnerBuilder) -> RunnerBuilder) -> Summary {
    let clock = bench.clock.clone();
    let builder = Runner::builder(&bench.queue).max_processing(1);
    let builder = builder.on(kind, move |job, ()| -> Result<Outcome, BoxError> {
        clock.advance(took);
        if job.id() == "fails" { Err("no".into()) } else { Ok(Outcome::Done) }
    });
    with(builder).drain(DrainLimits::default()).unwrap()
}

pub(super) fn q35_the_begin_event_has_the_expected_duration(on: &Benches<'_>) {
    let (bench, seen) = (on.bench(), Arc::new(Mutex::new(Vec::new())));
    bench.queue.push_all((0..3).map(|_| of("k"))).unwrap();
    let sees = seen.clone();
    let summary = drain(&bench, "k", SECOND * 4, |builder| {
        builder.observe(move |event| {
            if let QueueEvent::AttemptBegun { expected, .. } = event {
                sees.lock().push(*expected);
            }
        })
    });
    assert_eq!(summary.reached, Reached::NothingReady);
    assert_eq!(*seen.lock(), [None, Some(SECOND * 4), Some(SECOND * 4)]);
}

pub(super) fn q36_each_kind_averages_its_successful_attempts(on: &Benches<'_>) {
    let bench = on.bench();
    assert!(bench.queue.durations().is_empty());
    for (kind, seconds, jobs) in [("short", 1, 3), ("long", 9, 1), ("short", 5, 1)] {
        bench.queue.push_all((0..jobs).map(|_| of(kind))).unwrap();
        drain(&bench, kind, SECOND * seconds, |builder| builder);
    }
    bench.push(of("short").id("fails"));
    assert_eq!(drain(&bench, "short", SECOND * 60, |builder| builder).retried, 1);
    let durations = bench.queue.durations();
    let seconds = |kind: &str| durations.get(kind).map(|of| (of.count, of.mean.as_secs(), of.last.as_secs()));
    assert_eq!((seconds("short"), seconds("long")), (Some((4, 2, 5)), Some((1, 9, 9))));
}
