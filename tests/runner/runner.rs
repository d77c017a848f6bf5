//! The runner of a queue: handlers, hooks, limits, timeouts, and its ends.

use common::queues::{MINUTE, SECOND, noon, queue_in, until};
use common::{HOUR, LONG, ends, eventually, own_threads};
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use waterline::queue::{
    Accept, AttemptEnd, Clock, DrainLimits, Finisher, JobState, NewJob, Outcome, Queue, QueueError, QueueEvent,
    QueueOptions, Reached, Runner, RunnerGate, Running, Unknown, Waits,
};

use waterline::testing::FaultyStore;
use waterline::{Error, Failure, Retry, Store};

/// Returns a queue with a clock that the test moves.
fn queue() -> (Queue, Clock) {
    queue_with(QueueOptions::default())
}

fn queue_with(options: QueueOptions) -> (Queue, Clock) {
    queue_in(&Store::in_memory(), options)
}

fn job(kind: &str) -> NewJob {
    NewJob::new(kind, &()).unwrap()
}

fn state(queue: &Queue, id: &str) -> Option<JobState> {
    queue.state(id).unwrap()
}

#[test]
fn a_function_that_takes_too_long_sees_that_it_is_to_stop_and_its_answer_counts() {
    let (queue, clock) = queue();
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
    queue.push(job("k").id("a")).unwrap();
    assert!(!has_begun.recv_timeout(LONG).unwrap());
    clock.advance(SECOND);
    until(&queue, "a", JobState::Finished);
    runner.stop().unwrap();
}

#[test]
fn a_deferred_job_that_takes_too_long_fails_and_its_late_report_changes_nothing() {
    let (queue, clock) = queue();
    let (begun, finishers) = unbounded::<Finisher>();
    let runner = Runner::builder(&queue)
        .on_deferred("k", move |_, (), done| begun.send(done).unwrap())
        .attempt_timeout(SECOND)
        .start()
        .unwrap();
    queue.push(job("k").id("a")).unwrap();
    let done = finishers.recv_timeout(LONG).unwrap();
    clock.advance(SECOND - Duration::from_millis(1));
    assert_eq!(state(&queue, "a"), Some(JobState::Running));
    clock.advance(Duration::from_millis(1));
    until(&queue, "a", JobState::Scheduled);
    done.complete();
    let info = queue.get("a").unwrap().unwrap();
    assert_eq!((info.state, info.failures), (JobState::Scheduled, 1));
    assert_eq!(info.error.as_deref(), Some("the attempt took longer than 1s"));
    runner.stop().unwrap();
}

/// The thread of the timeouts and the one that ends the runner each take the locks of both.
#[test]
fn runners_with_a_timeout_end_however_their_threads_meet() {
    let (queue, _) = queue();
    ends("a runner", move || {
        for _ in 0..300 {
            queue.push(job("k")).unwrap();
            let drained = Runner::builder(&queue)
                .on("k", |_, ()| Ok(Outcome::Done))
                .attempt_timeout(HOUR)
                .drain(DrainLimits::default());
            assert_eq!(drained.unwrap().finished, 1);
        }
    });
}

#[test]
fn a_job_that_outlives_stop_within_is_taken_back_after_the_lease_and_its_finisher_changes_nothing() {
    let (queue, clock, runner, finishers) = full_runner(1);
    let stopped = runner.stop_within(Duration::ZERO);
    assert!(matches!(&stopped, Err(QueueError::StopTimeout { running }) if *running == ["~0"]), "{stopped:?}");
    finishers.recv().unwrap().complete();
    assert_eq!(state(&queue, "~0"), Some(JobState::Running));
    clock.advance(Duration::from_secs(60) - Duration::from_millis(1));
    assert!(queue.accept(Accept::new()).unwrap().is_none());
    assert_eq!(state(&queue, "~0"), Some(JobState::Running), "the lease is not over");
    clock.advance(Duration::from_millis(1));
    assert!(queue.accept(Accept::new()).unwrap().is_none());
    let info = queue.get("~0").unwrap().unwrap();
    assert_eq!((info.state, info.failures), (JobState::Scheduled, 1));
    assert!(info.error.unwrap().contains("silent"));
    let builder = || Runner::builder(&queue).on("k", |_, ()| Ok(Outcome::Done));
    eventually("the name to be free", || builder().drain(DrainLimits::default()).is_ok());
}

#[test]
fn the_answer_of_a_function_that_outlives_stop_within_counts_and_the_name_is_free_after_it() {
    let (queue, _) = queue();
    let (release, is_released) = bounded::<()>(0);
    let (ended, ends) = unbounded();
    let builder = || Runner::builder(&queue).on("k", |_, ()| Ok(Outcome::Done));
    let runner = Runner::builder(&queue)
        .on("k", move |_, ()| Ok(is_released.recv().map_or(Outcome::Done, |()| Outcome::Done)))
        .teardown(move |_, end| ended.send(end.clone()).unwrap())
        .start()
        .unwrap();
    queue.push(job("k").id("a")).unwrap();
    until(&queue, "a", JobState::Running);
    eventually("the job to be in flight", || runner.processing() == 1);
    assert!(matches!(runner.stop_within(Duration::ZERO), Err(QueueError::StopTimeout { .. })));
    assert!(matches!(builder().start(), Err(QueueError::Store(Error::InUse { .. }))));
    drop(release);
    assert_eq!(ends.recv_timeout(LONG).unwrap(), AttemptEnd::Finished);
    assert_eq!(state(&queue, "a"), Some(JobState::Finished));
    eventually("the name to be free", || builder().start().is_ok());
}

#[test]
fn a_job_that_was_claimed_while_stop_within_gave_up_is_taken_back_too() {
    let (queue, clock) = queue();
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
    queue.push_all([job("first"), job("second").id("b")]).unwrap();
    tears_down.recv_timeout(LONG).unwrap();
    let error = runner.stop_within(Duration::ZERO).unwrap_err();
    assert!(error.to_string().starts_with("a hook of the runner"), "{error}");
    drop(release);
    eventually("the job to be given a lease", || {
        clock.advance(HOUR);
        queue.accept(Accept::new()).unwrap();
        state(&queue, "b") != Some(JobState::Running)
    });
    drop(finish);
}

/// The runner in the hands of its own handlers and hooks.
type Shared = Arc<Mutex<Option<Runner>>>;

fn stop_here(shared: &Shared, said: &Sender<Option<QueueError>>) {
    let runner = shared.lock().take();
    if let Some(runner) = runner {
        said.send(runner.stop().err()).unwrap();
    }
}

#[test]
fn stop_on_a_thread_that_ends_a_job_waits_for_nothing_and_the_job_is_written() {
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
    for (name, start) in cases {
        let (queue, _) = queue();
        let shared = Shared::default();
        let (said, says) = unbounded();
        let mut held = shared.lock();
        *held = Some(start(&queue, shared.clone(), said));
        drop(held);
        queue.push(job("k").id("a")).unwrap();
        let error = says.recv_timeout(LONG).unwrap_or_else(|_| panic!("the {name} waits for itself"));
        assert!(matches!(error, Some(QueueError::Config(waterline::ConfigError::OwnThread))), "{name}: {error:?}");
        until(&queue, "a", JobState::Finished);
        let builder = || Runner::builder(&queue).on("k", |_, ()| Ok(Outcome::Done));
        eventually("the name to be free", || builder().start().is_ok());
    }
}

#[test]
fn a_deferred_job_whose_time_ends_in_a_before_hook_is_reported_once_and_never_begins() {
    for hook_fails in [false, true] {
        let (queue, clock) = queue();
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
        queue.push(job("k").id("a")).unwrap();
        is_waiting.recv_timeout(LONG).unwrap();
        clock.advance(SECOND);
        until(&queue, "a", JobState::Scheduled);
        drop(release);
        runner.stop().unwrap();
        let said: Vec<_> = says.try_iter().collect();
        assert_eq!(said, [r#"Retried { error: "the attempt took longer than 1s" }"#]);
    }
}

/// An error that panics where it can.
struct Hostile(&'static str);

impl std::fmt::Debug for Hostile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hostile")
    }
}

impl std::fmt::Display for Hostile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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

#[test]
fn an_error_that_panics_fails_its_attempt_and_nothing_else() {
    for (place, text) in [("drop", "hostile"), ("text", "whose text panics"), ("source", "panics")] {
        let (queue, _) = queue();
        let builder = Runner::builder(&queue).on("k", move |_, ()| Err(Hostile(place).into()));
        let runner = builder.on("good", |_, ()| Ok(Outcome::Done)).max_processing(1).start().unwrap();
        queue.push_all([job("k").id("bad"), job("good").id("good")]).unwrap();
        until(&queue, "good", JobState::Finished);
        until(&queue, "bad", JobState::Scheduled);
        let error = queue.get("bad").unwrap().unwrap().error.unwrap_or_default();
        assert!(error.contains(text), "{place}: {error}");
        ends("the runner", move || runner.stop()).unwrap();
    }
    // A hook that panics takes the place of the error, whose destructor panics too.
    let (queue, _) = queue();
    queue.push(job("k").id("a")).unwrap();
    let builder =
        Runner::builder(&queue).on("k", |_, ()| Err(Hostile("drop").into())).after_each(|_, _| panic!("in a hook"));
    let drained = builder.drain(DrainLimits::default()).unwrap();
    assert_eq!(drained.retried, 1, "{drained}");
    assert_eq!(queue.get("a").unwrap().unwrap().error.as_deref(), Some("panicked: in a hook"));
}

/// Returns a queue whose runner has all its slots taken by deferred jobs, with their finishers.
fn full_runner(slots: usize) -> (Queue, Clock, Runner, Receiver<Finisher>) {
    let (queue, clock) = queue();
    let (begun, finishers) = unbounded();
    let runner = Runner::builder(&queue)
        .on_deferred("k", move |_, (), done| begun.send(done).unwrap())
        .max_processing(slots)
        .start()
        .unwrap();
    queue.push_all((0..slots).map(|_| job("k"))).unwrap();
    eventually("all slots to be taken", || runner.processing() == slots && finishers.len() == slots);
    (queue, clock, runner, finishers)
}

#[test]
fn a_push_wakes_those_who_accept_although_the_threads_of_a_full_runner_sleep_too() {
    for _ in 0..50 {
        let (queue, _, runner, finishers) = full_runner(2);
        let (sender, accepted) = bounded(1);
        let acceptor = std::thread::spawn({
            let queue = queue.clone();
            move || {
                let mut lease = queue.accept(Accept::new().timeout(Duration::MAX)).unwrap().unwrap();
                sender.send(lease.id().to_owned()).unwrap();
                lease.finish(None).unwrap();
            }
        });
        // It most likely sleeps by then. The test is right if it does not, and proves less.
        (0..200).for_each(|_| std::thread::yield_now());
        queue.push(job("k").id("a")).unwrap();
        assert_eq!(accepted.recv_timeout(LONG).unwrap(), "a");
        acceptor.join().unwrap();
        finishers.iter().take(2).for_each(Finisher::complete);
        runner.stop().unwrap();
    }
}

#[test]
fn a_slot_that_is_free_again_is_filled_although_the_thread_that_freed_it_runs_a_long_job() {
    for _ in 0..50 {
        let (queue, _) = queue();
        let (begun, finishers) = unbounded();
        let (release, is_released) = bounded::<()>(0);
        let runner = Runner::builder(&queue)
            .on_deferred("deferred", move |_, (), done| begun.send(done).unwrap())
            .on("long", move |_, ()| Ok(is_released.recv().map_or(Outcome::Done, |()| Outcome::Done)))
            .on("short", |_, ()| Ok(Outcome::Done))
            .max_processing(2)
            .start()
            .unwrap();
        queue.push_all([job("deferred"), job("deferred")]).unwrap();
        let finishers: Vec<Finisher> = (0..2).map(|_| finishers.recv_timeout(LONG).unwrap()).collect();
        queue.push(job("long").id("long")).unwrap();
        finishers.into_iter().for_each(Finisher::complete);
        until(&queue, "long", JobState::Running);
        queue.push(job("short").id("short")).unwrap();
        until(&queue, "short", JobState::Finished);
        drop(release);
        runner.stop().unwrap();
    }
}

#[test]
fn a_full_runner_does_what_time_brings_and_takes_back_the_job_of_a_silent_worker() {
    let (queue, clock, runner, finishers) = full_runner(2);
    queue.push(job("k").id("later").delay(SECOND)).unwrap();
    queue.push(job("k").id("silent")).unwrap();
    let lease = queue.accept(Accept::new()).unwrap().unwrap();
    clock.advance(SECOND);
    until(&queue, "later", JobState::Ready);
    clock.advance(HOUR);
    until(&queue, "silent", JobState::Scheduled);
    drop(lease);
    finishers.iter().take(2).for_each(Finisher::complete);
    until(&queue, "later", JobState::Running);
    finishers.recv_timeout(LONG).unwrap().complete();
    runner.stop().unwrap();
}

// Handlers and their outcomes.

fn info(queue: &Queue, id: &str) -> waterline::queue::JobInfo {
    queue.get(id).unwrap().expect("it is there")
}

#[test]
fn each_outcome_of_a_function_leads_to_its_state() {
    let (queue, _) = queue();
    let later = noon() + HOUR;
    let ids = ["done", "data", "retry", "snooze", "dead", "error", "panic", "permanent", "wrapped", "defer"];
    queue.push_all(ids.map(|id| job("k").id(id))).unwrap();
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
        let info = info(&queue, id);
        (info.state, info.failures, info.run_at, info.error.unwrap_or_default())
    };
    let text = str::to_owned;
    assert_eq!(info(&queue, "data").data, Some("data".into()));
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

#[test]
fn writes_of_a_transactional_job_are_made_with_its_success_and_otherwise_not_at_all() {
    let store = Store::in_memory();
    let queue = Queue::open(&store, "q", QueueOptions::default().clock(Clock::manual(noon()))).unwrap();
    let (table, count) = (store.table("rows").unwrap(), store.table("count").unwrap());
    count.put("text", "no number").unwrap();
    let ids = ["good", "error", "panic", "snooze", "removed", "counter", "neighbour"];
    queue.push_all(ids.map(|id| job("k").id(id))).unwrap();
    let drained = Runner::builder(&queue)
        .on_transactional("k", {
            let (queue, table, count) = (queue.clone(), table.clone(), count.clone());
            move |job, (), effects| {
                effects.put(&table, job.id(), "x")?;
                effects.enqueue(&queue, NewJob::new("child", &())?.id(format!("{}/child", job.id())))?;
                match job.id() {
                    "error" => Err("no".into()),
                    "panic" => panic!("out of order"),
                    "snooze" => Ok(Outcome::Snooze(noon() + HOUR)),
                    "removed" => {
                        queue.remove("removed")?;
                        Ok(Outcome::Done)
                    }
                    "counter" => {
                        effects.add(&count, "text", 1)?;
                        Ok(Outcome::Done)
                    }
                    _ => Ok(Outcome::Done),
                }
            }
        })
        .on("child", |_, ()| Ok(Outcome::Done))
        .max_processing(2)
        .drain(DrainLimits::default())
        .unwrap();
    let keys: Vec<_> = table.iter().map(|row| String::from_utf8(row.unwrap().0).unwrap()).collect();
    assert_eq!(keys, ["good", "neighbour"]);
    assert_eq!((drained.finished, drained.retried, drained.snoozed, drained.dead, drained.lost), (4, 2, 1, 1, 1));
    assert_eq!(state(&queue, "good/child"), Some(JobState::Finished));
    assert_eq!(state(&queue, "error/child"), None);
    assert_eq!(state(&queue, "counter"), Some(JobState::Dead), "no retry mends it");
}

#[test]
fn a_payload_that_does_not_fit_and_a_kind_without_a_handler_are_dead_in_each_mode() {
    let (queue, _) = queue();
    let kinds = ["direct", "transactional", "deferred", "unknown"];
    queue.push_all(kinds.map(|kind| NewJob::new(kind, &"text").unwrap().id(kind))).unwrap();
    let drained = Runner::builder(&queue)
        .on("direct", |_, _: u32| Ok(Outcome::Done))
        .on_transactional("transactional", |_, _: u32, _| Ok(Outcome::Done))
        .on_deferred("deferred", |_, _: u32, done| done.complete())
        .drain(DrainLimits::default())
        .unwrap();
    assert_eq!(drained.dead, 4, "{drained}");
    for kind in ["direct", "transactional", "deferred"] {
        let error = info(&queue, kind).error.unwrap();
        assert!(error.contains("does not fit its type") && error.contains(kind), "{error}");
    }
    assert_eq!(info(&queue, "unknown").error.as_deref(), Some("no handler has the kind \"unknown\""));
}

#[test]
fn a_job_that_was_pushed_again_for_later_shows_that_to_its_next_attempt_too() {
    let (queue, clock) = queue_with(QueueOptions::default().retry(Retry::fixed(SECOND)));
    queue.push(job("k").id("a")).unwrap();
    let flag = |answer: Result<Outcome, &'static str>| {
        let (pushes, (sender, flags)) = (queue.clone(), bounded(1));
        let runner = Runner::builder(&queue).on("k", move |job, ()| {
            sender.send(job.is_resubmitted()).unwrap();
            pushes.push(self::job("k").id("a").delay(HOUR))?;
            Ok(answer.clone()?)
        });
        runner.drain(DrainLimits::default()).unwrap();
        clock.advance(SECOND);
        flags.recv().unwrap()
    };
    assert!(!flag(Err("once more")));
    assert!(flag(Ok(Outcome::Done)), "the push to the first attempt counts as long as the job has not run");
}

#[test]
fn a_kind_without_a_handler_can_wait_for_a_program_that_has_it() {
    let (queue, clock) = queue();
    queue.push(job("new").id("a")).unwrap();
    let old = || Runner::builder(&queue).on("old", |_, ()| Ok(Outcome::Done)).unknown(Unknown::Snooze(MINUTE));
    for _ in 0..20 {
        assert_eq!(old().drain(DrainLimits::default()).unwrap().snoozed, 1);
        clock.advance(MINUTE);
    }
    assert_eq!(info(&queue, "a").failures, 0);
    let new = Runner::builder(&queue).on("new", |_, ()| Ok(Outcome::Done));
    assert_eq!(new.drain(DrainLimits::default()).unwrap().finished, 1);
    queue.push(job("new").id("far")).unwrap();
    let far = Runner::builder(&queue).on("old", |_, ()| Ok(Outcome::Done)).unknown(Unknown::Snooze(Duration::MAX));
    assert_eq!(far.drain(DrainLimits::default()).unwrap().snoozed, 1, "as late as a calendar goes");
}

#[test]
fn a_deferred_job_ends_by_its_finisher_on_any_thread_and_fails_if_that_is_dropped() {
    let (queue, _) = queue();
    let ids = ["complete", "end", "fail", "drop", "panic", "leak"];
    queue.push_all(ids.map(|id| job("k").id(id))).unwrap();
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
    assert_eq!(info(&queue, "end").data, Some(7.into()));
    assert_eq!(info(&queue, "fail").error.as_deref(), Some("no"));
    assert_eq!(info(&queue, "drop").error.as_deref(), Some("its finisher was dropped"));
}

// Hooks and observers.

#[test]
fn hooks_are_called_in_order_around_each_attempt_and_teardown_after_its_end_is_written() {
    let (queue, _) = queue();
    queue.push(job("k").id("a")).unwrap();
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
            assert_eq!((state(&looks, job.id()), end), (Some(JobState::Finished), &AttemptEnd::Finished));
            t1();
        })
        .teardown(move |_, _| t2())
        .drain(DrainLimits::default())
        .unwrap();
    let said: Vec<_> = says.try_iter().collect();
    assert_eq!(said, ["before 1", "before 2", "handler", "after 1", "after 2", "teardown 1", "teardown 2"]);
}

#[test]
fn a_hook_before_that_fails_or_panics_fails_the_attempt_and_one_after_that_panics_too() {
    let (queue, _) = queue();
    let ids = ["before fails", "before panics", "after panics", "teardown panics"];
    queue.push_all(ids.map(|id| job("k").id(id))).unwrap();
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

#[test]
fn an_observer_hears_of_each_attempt_and_may_ask_the_queue() {
    let (queue, clock) = queue();
    queue.push(job("k").id("a")).unwrap();
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
                _ => "?".to_owned(),
            };
            said.send(line).unwrap();
        })
        .drain(DrainLimits::default())
        .unwrap();
    let said: Vec<_> = says.try_iter().collect();
    assert_eq!(said, ["q a k 1", r#"a 1 1s Retried { error: "no" }"#]);
}

// Slots.

#[test]
fn no_more_jobs_run_or_are_claimed_than_max_processing() {
    let (queue, _) = queue();
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let asks = queue.clone();
    queue.push_all((0..300).map(|n| job(if n % 2 == 0 { "direct" } else { "deferred" }))).unwrap();
    let enter = {
        let (running, most) = (running.clone(), most.clone());
        move || {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            most.fetch_max(asks.counts().running as usize, Ordering::SeqCst);
        }
    };
    let (enter_too, running_too) = (enter.clone(), running.clone());
    let drained = Runner::builder(&queue)
        .on("direct", move |_, ()| {
            enter();
            std::thread::yield_now();
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(Outcome::Done)
        })
        .on_deferred("deferred", move |_, (), done| {
            enter_too();
            let running = running_too.clone();
            std::thread::spawn(move || {
                running.fetch_sub(1, Ordering::SeqCst);
                done.complete();
            });
        })
        .max_processing(3)
        .drain(DrainLimits::default())
        .unwrap();
    assert_eq!(drained.finished, 300);
    assert!((1..=3).contains(&most.load(Ordering::SeqCst)), "{most:?}");
}

#[test]
fn a_runner_with_fewer_slots_lets_its_jobs_end_and_starts_none_until_few_enough_are_left() {
    let (queue, _) = queue();
    let ((begun, begins), (end, ends)) = (unbounded(), bounded::<()>(0));
    let runner = Runner::builder(&queue)
        .on("k", move |job, ()| {
            begun.send(job.id().to_owned()).unwrap();
            Ok(ends.recv().map_or(Outcome::Done, |()| Outcome::Done))
        })
        .max_processing(4)
        .start()
        .unwrap();
    queue.push_all((0..8).map(|_| job("k"))).unwrap();
    (0..4).for_each(|_| drop(begins.recv_timeout(LONG).unwrap()));
    runner.set_max_processing(2).unwrap();
    assert!(matches!(queue.status().unwrap().waits, Waits::Busy { slots: 2, .. }));
    for (finished, running, ready) in [(1, 3, 4), (2, 2, 4), (3, 2, 3)] {
        end.send_timeout((), LONG).unwrap();
        eventually("an end", || queue.counts().finished == finished);
        // The end that leaves few enough is written with the next claim.
        eventually("the claim", || queue.counts().ready == ready);
        assert_eq!(queue.counts().running, running);
    }
    begins.recv_timeout(LONG).unwrap();
    (0..5).for_each(|_| end.send_timeout((), LONG).unwrap());
    eventually("all to be done", || queue.counts().finished == 8);
    runner.stop().unwrap();
}

#[test]
fn the_end_of_a_deferred_job_is_written_although_the_only_slot_left_has_a_long_job() {
    let (queue, _) = queue();
    let ((begun, begins), (end, ends)) = (unbounded(), bounded::<()>(0));
    let (hold, held) = unbounded::<Finisher>();
    let runner = Runner::builder(&queue)
        .on("long", move |_, ()| {
            begun.send(()).unwrap();
            Ok(ends.recv().map_or(Outcome::Done, |()| Outcome::Done))
        })
        .on_deferred("deferred", move |_, (), done| hold.send(done).unwrap())
        .max_processing(4)
        .start()
        .unwrap();
    // They are more than are allowed soon: each thread but one has a long job then.
    queue.push_all([job("deferred").id("a"), job("long"), job("long"), job("long")]).unwrap();
    let done = held.recv_timeout(LONG).unwrap();
    (0..3).for_each(|_| begins.recv_timeout(LONG).unwrap());
    runner.set_max_processing(1).unwrap();
    // A thread that is too many would leave while it looks.
    queue.push(job("long")).unwrap();
    queue.pause(None).unwrap();
    queue.resume().unwrap();
    done.complete();
    until(&queue, "a", JobState::Finished);
    (0..4).for_each(|_| end.send_timeout((), LONG).unwrap());
    runner.stop().unwrap();
}

#[test]
fn jobs_of_all_kinds_end_while_somebody_changes_the_number_of_slots_again_and_again() {
    let (queue, _) = queue();
    let running = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
    let (enter, leave) = (running.clone(), running.clone());
    let runner = Runner::builder(&queue)
        .on("direct", move |_, ()| {
            enter.1.fetch_max(enter.0.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::yield_now();
            leave.0.fetch_sub(1, Ordering::SeqCst);
            Ok(Outcome::Done)
        })
        .on_deferred("deferred", |_, (), done| drop(std::thread::spawn(move || done.complete())))
        .max_processing(1)
        .start()
        .unwrap();
    for n in 0..1_000_usize {
        queue.push_all([job("direct"), job("deferred")]).unwrap();
        runner.set_max_processing([3, 1, 4, 2, 1][n % 5]).unwrap();
    }
    eventually("all to be done", || queue.counts().finished == 2_000);
    assert!((1..=4).contains(&running.1.load(Ordering::SeqCst)), "{running:?}");
    ends("the runner", move || runner.stop().unwrap());
}

#[test]
fn a_runner_without_a_slot_is_refused_and_a_handler_may_change_their_number() {
    let (queue, _) = queue();
    let own = Arc::new(Mutex::new(None::<Runner>));
    let runner = Runner::builder(&queue)
        .on("k", {
            let own = own.clone();
            move |_, ()| {
                own.lock().as_ref().ok_or("no runner")?.set_max_processing(3)?;
                Ok(Outcome::Done)
            }
        })
        .max_processing(1)
        .start()
        .unwrap();
    let refused = runner.set_max_processing(0).unwrap_err();
    assert!(
        matches!(refused, QueueError::Config(waterline::ConfigError::Zero { setting: "max_processing", .. })),
        "{refused}"
    );
    *own.lock() = Some(runner);
    queue.push(job("k").id("a")).unwrap();
    until(&queue, "a", JobState::Finished);
    let runner = own.lock().take().unwrap();
    runner.stop().unwrap();
}

#[test]
fn long_jobs_in_all_slots_but_one_do_not_hold_up_the_others() {
    let (queue, _) = queue();
    let (release, is_released) = bounded::<()>(0);
    let runner = Runner::builder(&queue)
        .on("long", move |_, ()| Ok(is_released.recv().map_or(Outcome::Done, |()| Outcome::Done)))
        .on("short", |_, ()| Ok(Outcome::Done))
        .max_processing(4)
        .start()
        .unwrap();
    queue.push_all([job("long"), job("long"), job("long")]).unwrap();
    for n in 0..50 {
        let id = format!("short {n}");
        queue.push(job("short").id(&id)).unwrap();
        until(&queue, &id, JobState::Finished);
    }
    assert_eq!(queue.counts().running, 3);
    drop(release);
    runner.stop().unwrap();
}

/// Short jobs are claimed several at a time.
#[test]
fn a_long_job_holds_up_neither_the_ends_before_it_nor_the_jobs_that_were_claimed_beside_it() {
    const JOBS: u64 = 600;
    const LONG_JOBS: [u64; 5] = [100, 250, 400, 550, JOBS - 5];
    let (queue, _) = queue();
    queue.push_all((0..JOBS).map(|n| NewJob::new("k", &n).unwrap().id(n.to_string()))).unwrap();
    let asks = queue.clone();
    let drained = ends("the runner", move || {
        Runner::builder(&queue)
            .on("k", move |_, n: u64| {
                if LONG_JOBS.contains(&n) {
                    let neighbours = (n - 3..n).chain(n + 1..n + 5);
                    neighbours.for_each(|n| until(&asks, &n.to_string(), JobState::Finished));
                }
                Ok(Outcome::Done)
            })
            .max_processing(6)
            .drain(DrainLimits::default())
    });
    assert_eq!(drained.unwrap().finished, JOBS);
}

#[test]
fn a_handler_may_push_subscribe_and_wait_for_another_job_of_its_queue() {
    let (queue, _) = queue();
    queue.push(job("parent").id("parent")).unwrap();
    let inner = queue.clone();
    let drained = Runner::builder(&queue)
        .on("parent", move |_, ()| {
            let child = inner.push(job("child"))?.id;
            let seen = inner.subscribe(&child)?.wait_for(JobState::Finished, HOUR)?;
            Ok(seen.map_or(Outcome::Dead("it waited in vain".to_owned()), |_| Outcome::Done))
        })
        .on("child", |_, ()| Ok(Outcome::Done))
        .max_processing(2);
    let drained = ends("the drain", move || drained.drain(DrainLimits::default())).unwrap();
    assert_eq!(drained.finished, 2, "{drained}");
}

// Ends.

#[test]
fn stop_waits_for_running_jobs_and_hands_out_no_more() {
    let (queue, _) = queue();
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
    queue.push_all([job("k").id("a"), job("k").id("b")]).unwrap();
    until(&queue, "a", JobState::Running);
    eventually("the job to be in flight", || runner.processing() == 1);
    assert_eq!(queue.counts().running, 1, "no job is claimed that nobody runs");
    let stopping = std::thread::spawn(move || runner.stop());
    drop(release);
    stopping.join().unwrap().unwrap();
    assert_eq!(sees.try_iter().collect::<Vec<_>>(), ["a"]);
    let (a, b) = (info(&queue, "a"), info(&queue, "b"));
    assert_eq!((a.state, b.state), (JobState::Finished, JobState::Ready));
    assert_eq!((b.failures, b.crashes), (0, 0), "it has lost no attempt");
}

#[test]
fn a_second_runner_is_refused_until_the_first_one_is_stopped_or_dropped() {
    let (queue, _) = queue();
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

#[test]
fn settings_that_cannot_be_are_refused_and_the_queue_stays_free() {
    let (queue, _) = queue();
    let empty = || Runner::builder(&queue);
    let one = || empty().on("k", |_, ()| Ok(Outcome::Done));
    let gate = |name| RunnerGate::new(name, || true);
    let cases = [
        (empty(), "the runner has no handler, so it would run nothing: add one with `on`"),
        (one().on("k", |_, ()| Ok(Outcome::Done)), "the runner has two handlers for the kind \"k\": use one"),
        (empty().on("", |_, ()| Ok(Outcome::Done)), "the kind of a job has 0 bytes: use 1 to 255"),
        (
            one().max_processing(0),
            "max_processing is 0, so no job would ever run: use at least 1 (to hold a consumer or a queue back, use \
             `pause`)",
        ),
        (
            one().attempt_timeout(Duration::ZERO),
            "attempt_timeout is zero, so no attempt could end in time: leave it out for no timeout",
        ),
        (
            one().gate(gate("g").every(Duration::ZERO)),
            "the answers of the gate \"g\" hold for no time: use some milliseconds at least",
        ),
        (one().gate(gate("")), "the gate name is 0 bytes long: use 1 to 255 bytes"),
    ];
    for (builder, says) in cases {
        let error = builder.start().unwrap_err();
        assert!(matches!(error, QueueError::Config(_)), "{error:?}");
        assert_eq!(error.to_string(), says);
    }
    one().start().unwrap().stop().unwrap();
}

#[test]
fn runners_give_back_their_threads() {
    let (queue, _) = queue();
    ends("the runners", move || {
        for _ in 0..50 {
            let runner =
                Runner::builder(&queue).on("k", |_, ()| Ok(Outcome::Done)).attempt_timeout(HOUR).start().unwrap();
            queue.push(job("k")).unwrap();
            runner.stop().unwrap();
        }
        drop(queue);
    });
    // Those of other tests of this process come and go.
    eventually("few threads to be left", || own_threads() < 100);
}

// Drains.

#[test]
fn a_drain_says_why_it_has_ended() {
    let (queue, clock) = queue();
    let builder = || Runner::builder(&queue).on("k", |_, ()| Ok(Outcome::Done));
    let reached = |limits| {
        let summary = builder().drain(limits).unwrap();
        (summary.finished, summary.reached)
    };
    queue.push(job("k").delay(HOUR)).unwrap();
    assert_eq!(reached(DrainLimits::default()), (0, Reached::NothingReady), "a scheduled job stays");
    queue.push_all((0..10).map(|_| job("k"))).unwrap();
    assert_eq!(reached(DrainLimits::default().jobs(0)), (0, Reached::Jobs));
    assert_eq!(reached(DrainLimits::default().jobs(3)), (3, Reached::Jobs));
    assert_eq!(reached(DrainLimits::default().time(Duration::ZERO)), (0, Reached::Time));
    let slow = clock.clone();
    let slow = Runner::builder(&queue)
        .on("k", move |_, ()| {
            slow.advance(SECOND);
            Ok(Outcome::Done)
        })
        .max_processing(1)
        .drain(DrainLimits::default().time(SECOND * 2).jobs(100))
        .unwrap();
    assert_eq!((slow.finished, slow.reached, slow.elapsed), (2, Reached::Time, SECOND * 2));
    queue.pause(None).unwrap();
    assert_eq!(reached(DrainLimits::default()), (0, Reached::Paused));
    queue.resume().unwrap();
    assert_eq!(reached(DrainLimits::default().jobs(100)), (5, Reached::NothingReady));
    let text = builder().drain(DrainLimits::default()).unwrap().to_string();
    assert_eq!(text, "0 finished, 0 to be tried again, 0 not ready, 0 dead, 0 lost in 0.0ns: no job is ready");
}

#[test]
fn a_drain_runs_what_its_jobs_push_and_never_more_than_its_limit() {
    for max_processing in [1, 2, 4] {
        let (queue, _) = queue();
        queue.push(NewJob::new("k", &6).unwrap()).unwrap();
        let pushes = queue.clone();
        let builder = move |queue: &Queue| {
            let pushes = pushes.clone();
            Runner::builder(queue)
                .on("k", move |_, depth: u32| {
                    if depth > 0 {
                        pushes.push_all((0..2).map(|_| NewJob::new("k", &(depth - 1)).unwrap()))?;
                    }
                    Ok(Outcome::Done)
                })
                .max_processing(max_processing)
        };
        let first = builder(&queue).drain(DrainLimits::default().jobs(17)).unwrap();
        assert_eq!((first.finished, first.reached), (17, Reached::Jobs));
        let rest = builder(&queue).drain(DrainLimits::default().jobs(1000)).unwrap();
        assert_eq!((rest.finished, rest.reached), (127 - 17, Reached::NothingReady));
    }
}

#[test]
fn a_thread_of_a_drain_that_finds_its_limit_reached_uses_up_no_wake_up() {
    for _ in 0..30 {
        let (queue, _) = queue();
        let (begun, finishers) = unbounded::<Finisher>();
        let builder = Runner::builder(&queue).on_deferred("k", move |_, (), done| begun.send(done).unwrap());
        let builder = builder.max_processing(4);
        queue.push(job("k")).unwrap();
        let drain = std::thread::spawn(move || builder.drain(DrainLimits::default().jobs(2)).unwrap());
        let first = finishers.recv_timeout(LONG).unwrap();
        let (sender, accepted) = bounded(1);
        let accepts = queue.clone();
        std::thread::spawn(move || {
            let mut lease = accepts.accept(Accept::new().timeout(Duration::MAX)).unwrap().unwrap();
            lease.finish(None).unwrap();
            sender.send(()).unwrap();
        });
        // One of the two is the last one of the drain.
        queue.push(job("k")).unwrap();
        eventually("the second job to be taken", || queue.counts().ready == 0);
        queue.push(job("k")).unwrap();
        accepted.recv_timeout(LONG).expect("it is woken");
        first.complete();
        finishers.recv_timeout(LONG).unwrap().complete();
        assert_eq!(drain.join().unwrap().finished, 2);
    }
}

#[test]
fn a_runner_and_loops_of_accept_share_the_jobs() {
    let (queue, _) = queue();
    let (said, says) = unbounded();
    let runs = said.clone();
    let runner = Runner::builder(&queue)
        .on("k", move |job, ()| {
            runs.send(job.id().to_owned()).unwrap();
            Ok(Outcome::Done)
        })
        .max_processing(2)
        .start()
        .unwrap();
    let loops: Vec<_> = (0..2)
        .map(|_| {
            let (queue, said) = (queue.clone(), said.clone());
            std::thread::spawn(move || {
                while let Some(mut lease) = queue.accept(Accept::new().timeout(MINUTE)).unwrap() {
                    said.send(lease.id().to_owned()).unwrap();
                    lease.finish(None).unwrap();
                }
            })
        })
        .collect();
    for n in 0..400 {
        queue.push(job("k").id(n.to_string())).unwrap();
    }
    let mut seen: Vec<u32> = (0..400).map(|_| says.recv_timeout(LONG).unwrap().parse().unwrap()).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..400).collect::<Vec<_>>());
    runner.stop().unwrap();
    queue.pause(None).unwrap();
    drop((queue, loops));
}

// A store that fails.

#[test]
fn a_store_that_fails_for_a_while_loses_no_end_and_the_status_says_so() {
    let faulty = FaultyStore::new().unwrap();
    let queue = Queue::open(&faulty.store(), "q", QueueOptions::default()).unwrap();
    let (begun, finishers) = unbounded::<Finisher>();
    let (release, is_released) = bounded::<()>(0);
    let (ended, ends_of_jobs) = unbounded();
    let runner = Runner::builder(&queue)
        .on_deferred("deferred", move |_, (), done| begun.send(done).unwrap())
        .on("direct", move |_, ()| Ok(is_released.recv().map_or(Outcome::Done, |()| Outcome::Done)))
        .teardown(move |job, end| ended.send((job.id().to_owned(), end.clone())).unwrap())
        .max_processing(4)
        .start()
        .unwrap();
    queue.push_all([job("deferred").id("a"), job("direct").id("b")]).unwrap();
    let done = finishers.recv_timeout(LONG).unwrap();
    until(&queue, "b", JobState::Running);
    faulty.fail(..);
    done.complete();
    drop(release);
    let fails = || matches!(queue.status().unwrap().waits, Waits::StoreFails { .. });
    eventually("the status to say it", fails);
    for _ in 0..100 {
        assert!(fails(), "the status says it until the store works: {}", queue.status().unwrap());
        std::thread::yield_now();
    }
    assert_eq!((state(&queue, "a"), state(&queue, "b")), (Some(JobState::Running), Some(JobState::Running)));
    faulty.heal();
    let mut ended: Vec<_> = (0..2).map(|_| ends_of_jobs.recv_timeout(LONG).unwrap()).collect();
    ended.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(ended, [("a".to_owned(), AttemptEnd::Finished), ("b".to_owned(), AttemptEnd::Finished)]);
    eventually("the status to forget it", || !fails());
    runner.stop().unwrap();
}

#[test]
fn a_drain_tries_a_store_that_fails_until_its_time_is_over() {
    let (faulty, clock) = (FaultyStore::new().unwrap(), Clock::manual(noon()));
    let options = QueueOptions::default().clock(clock.clone());
    let queue = Queue::open(&faulty.store(), "q", options).unwrap();
    queue.push(job("k").id("a")).unwrap();
    faulty.fail(..);
    let builder = Runner::builder(&queue).on("k", |_, ()| Ok(Outcome::Done));
    let drain = std::thread::spawn(move || builder.drain(DrainLimits::default().time(MINUTE)));
    let fails = || matches!(queue.status().unwrap().waits, Waits::StoreFails { .. });
    eventually("the claim to fail", fails);
    clock.advance(MINUTE);
    let summary = ends("the drain", || drain.join().unwrap()).unwrap();
    assert_eq!((summary.finished, summary.reached, state(&queue, "a")), (0, Reached::Time, Some(JobState::Ready)));
}

// The status.

#[test]
fn the_status_says_in_one_sentence_what_the_queue_waits_for() {
    let (queue, clock) = queue();
    let says = |text: &str| {
        let status = queue.status().unwrap().to_string();
        assert!(status.starts_with(&format!("the queue \"q\" {text}")), "{status}");
    };
    says("has no job that is ready or scheduled (");
    queue.push(job("k").id("removed").delay(SECOND)).unwrap();
    queue.push(job("k").id("later").delay(MINUTE)).unwrap();
    queue.remove("removed").unwrap();
    says("has no job that is ready; the next one is due in 60.0s (scheduled 1");
    clock.advance(MINUTE);
    says("has jobs that are due, and no runner and no caller of accept: start one");
    queue.push(job("k").id("first")).unwrap();
    clock.advance(SECOND * 5);
    let status = queue.status().unwrap();
    assert_eq!(status.waits, Waits::NoWorker);
    assert!(status.oldest_ready.is_some_and(|(_, age)| age == SECOND * 5));
    queue.pause(Some(MINUTE)).unwrap();
    says("is paused for another 60.0s");
    queue.pause(None).unwrap();
    says("is paused until somebody resumes it");
    queue.resume().unwrap();
    let (begun, finishers) = unbounded::<Finisher>();
    let builder = Runner::builder(&queue).on_deferred("k", move |_, (), done| begun.send(done).unwrap());
    let runner = builder.max_processing(1).start().unwrap();
    let done = finishers.recv_timeout(LONG).unwrap();
    clock.advance(SECOND * 7);
    says("has all 1 slots busy; its oldest job, ");
    assert!(matches!(queue.status().unwrap().waits, Waits::Busy { slots: 1, since, .. } if since == SECOND * 7));
    done.complete();
    finishers.recv_timeout(LONG).unwrap().complete();
    eventually("both to end", || queue.counts().finished == 2);
    runner.stop().unwrap();
    says("has no job that is ready or scheduled (");
}

// The lines of the log.

/// True while the subscriber panics at each line of the queue "hostile".
static HOSTILE: AtomicBool = AtomicBool::new(true);

/// Keeps the lines of this process. Each test that looks has a queue of its own name.
struct Lines(Mutex<Vec<std::collections::HashMap<&'static str, String>>>);

#[derive(Default)]
struct Fields(std::collections::HashMap<&'static str, String>);

impl tracing::field::Visit for Fields {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &tracing::field::Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl tracing::Subscriber for &'static Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("waterline")
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = Fields::default();
        fields.0.insert("level", event.metadata().level().to_string());
        event.record(&mut fields);
        let is_hostile = fields.0.get("queue").is_some_and(|queue| queue == "hostile");
        let panics = is_hostile && HOSTILE.load(Ordering::Relaxed);
        self.0.lock().push(fields.0);
        assert!(!panics, "in the subscriber");
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

fn lines() -> &'static Lines {
    static LINES: Lines = Lines(Mutex::new(Vec::new()));
    static BEGUN: std::sync::Once = std::sync::Once::new();
    BEGUN.call_once(|| tracing::subscriber::set_global_default(&LINES).expect("it is the first"));
    &LINES
}

#[test]
fn a_runner_whose_thread_panics_ends_and_says_so_and_frees_its_name() {
    lines();
    let clock = Clock::manual(noon());
    // The clock goes on for months while a thread of the second runner gets no core.
    let options = QueueOptions::default().clock(clock.clone()).dead_for(HOUR * 24 * 3650);
    let queue = Queue::open(&Store::in_memory(), "hostile", options).unwrap();
    let builder = Runner::builder(&queue).on("k", |_, ()| Ok(Outcome::Dead("never".to_owned())));
    let runner = builder.max_processing(2).start().unwrap();
    queue.push_all([job("k").id("a"), job("k"), job("k"), job("k")]).unwrap();
    until(&queue, "a", JobState::Dead);
    let stopped = ends("the runner", move || runner.stop());
    assert!(matches!(stopped, Err(QueueError::Store(Error::Thread))), "{stopped:?}");
    // The jobs that are left die in this one, and each has a line. Its thread had claimed one of
    // them when it panicked: that one is taken back when its lease is over.
    HOSTILE.store(false, Ordering::Relaxed);
    let others = Runner::builder(&queue).on("other", |_, ()| Ok(Outcome::Done)).start();
    let others = others.expect("the name is free");
    eventually("all to die", || {
        clock.advance(MINUTE);
        queue.counts().dead == 4
    });
    others.stop().unwrap();
}

#[test]
fn each_line_about_a_job_names_the_queue_the_job_and_the_attempt() {
    let kept = lines();
    let clock = Clock::manual(noon());
    let queue = Queue::open(&Store::in_memory(), "told", QueueOptions::default().clock(clock.clone())).unwrap();
    queue.push(job("fails").id("silent")).unwrap();
    let lease = queue.accept(Accept::new()).unwrap().unwrap();
    clock.advance(MINUTE);
    assert!(queue.accept(Accept::new()).unwrap().is_none());
    drop(lease);
    queue.remove("silent").unwrap();
    let removes = queue.clone();
    queue.push_all(["fails", "dies", "lost", "panics", "hook"].map(|id| job(id).id(id))).unwrap();
    Runner::builder(&queue)
        .on("fails", |_, ()| Err("no".into()))
        .on("dies", |_, ()| Ok(Outcome::Dead("never".to_owned())))
        .on("lost", move |job, ()| Ok(removes.remove(job.id()).map(|()| Outcome::Done)?))
        .on_deferred("panics", |_, (), _| panic!("out of order"))
        .on("hook", |_, ()| Ok(Outcome::Done))
        .teardown(|job, _| assert_ne!(job.id(), "hook"))
        .drain(DrainLimits::default())
        .unwrap();
    let lines: Vec<_> =
        kept.0.lock().iter().filter(|line| line.get("queue").is_some_and(|q| q == "told")).cloned().collect();
    let expected = [
        ("silent", "WARN", "taken back"),
        ("silent", "WARN", "removed or taken over"),
        ("fails", "DEBUG", "is tried again"),
        ("dies", "WARN", "is dead: mend its cause"),
        ("lost", "WARN", "removed or taken over"),
        ("panics", "ERROR", "a handler panicked"),
        ("panics", "DEBUG", "is tried again"),
        ("hook", "ERROR", "a teardown hook panicked"),
    ];
    for (id, level, text) in expected {
        let says = |line: &&std::collections::HashMap<_, String>| line["message"].contains(text) && line["id"] == id;
        let line = lines.iter().find(says).unwrap_or_else(|| panic!("no line of {id} says {text:?}: {lines:#?}"));
        assert_eq!((line["level"].as_str(), line.get("attempt").map(String::as_str)), (level, Some("1")), "{line:?}");
    }
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
}
