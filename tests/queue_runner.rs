//! The runner of a queue: handlers, hooks, limits, timeouts, and its ends.

mod common;

use common::{HOUR, LONG, eventually, own_threads};
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use waterline::queue::{
    Accept, Clock, Ended, Finisher, JobState, Limits, NewJob, Outcome, Queue, QueueError, QueueEvent, QueueOptions,
    Reached, Runner, Running, Unknown, Waits,
};

use waterline::{Error, Failure, Retry, Store};

const SECOND: Duration = Duration::from_secs(1);

/// The time on the wall at which each test begins.
fn noon() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000)
}

/// Returns a queue with a clock that the test moves.
fn queue() -> (Queue, Clock) {
    queue_with(QueueOptions::default())
}

fn queue_with(options: QueueOptions) -> (Queue, Clock) {
    let clock = Clock::manual(noon());
    let queue = Queue::open(&Store::in_memory(), "q", options.clock(clock.clone())).unwrap();
    (queue, clock)
}

fn job(kind: &str) -> NewJob {
    NewJob::new(kind, &()).unwrap()
}

fn state(queue: &Queue, id: &str) -> Option<JobState> {
    queue.state_of(id).unwrap()
}

/// Waits until a job is in this state.
#[track_caller]
fn until(queue: &Queue, id: &str, wanted: JobState) {
    eventually(&format!("{id} to be {wanted:?}"), || state(queue, id) == Some(wanted));
}

/// Runs this on a thread of its own, and fails if it does not end.
#[track_caller]
fn ends<R: Send + 'static>(what: &str, run: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, is_done) = bounded(1);
    std::thread::spawn(move || {
        let _ = done.send(run());
    });
    is_done.recv_timeout(LONG).unwrap_or_else(|_| panic!("{what} does not end"))
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
                .drain(Limits::default());
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
    let next = Runner::builder(&queue).on("k", |_, ()| Ok(Outcome::Done)).drain(Limits::default()).unwrap();
    assert_eq!((next.finished, next.reached), (0, Reached::NothingReady), "the name is free");
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
    assert_eq!(ends.recv_timeout(LONG).unwrap(), Ended::Finished);
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
            builder.after(move |_, _| stop_here(&shared, &said)).start().unwrap()
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
        Runner::builder(&queue).on("k", |_, ()| Err(Hostile("drop").into())).after(|_, _| panic!("in a hook"));
    let drained = builder.drain(Limits::default()).unwrap();
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
                lease.finish(None::<&()>).unwrap();
            }
        });
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
