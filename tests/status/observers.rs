//! Observers: the events of each mode, their order, and observers that misbehave.

use common::modes::{Attempt, Home, InStore, Mode};
use common::*;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use waterline::{
    AttemptOutcome, Blocked, Consumer, Error, Event, Handle, Index, Jobs, MemoryProgress, Observer, Progress, Retry,
    State, Status, Store,
};

const NOW: Retry = Retry::fixed(Duration::ZERO);
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Heard {
    Begun(Index, u32),
    Done(Index, u32, Duration),
    Failed(Index, u32, String),
    Saved(Option<Index>, u64),
    Stalled(Blocked),
    Halted(Index, Option<u32>, String),
    Ended(State, Option<Index>, Option<String>),
}

/// Keeps all events in order, but measurements apart, since their number depends on timing.
#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Vec<Heard>>>, Arc<Mutex<Vec<(Duration, Status)>>>);

impl Observer for Ear {
    fn observe(&self, event: &Event<'_>) {
        assert!(["p", "unnamed"].contains(&event.consumer()), "{event:?}");
        let heard = match *event {
            Event::AttemptBegun { index, attempt, .. } => Heard::Begun(index, attempt),
            Event::AttemptEnded { index, attempt, elapsed, outcome, .. } => match outcome {
                AttemptOutcome::Done => Heard::Done(index, attempt, elapsed),
                AttemptOutcome::Failed { error, .. } => Heard::Failed(index, attempt, error.to_owned()),
                other => panic!("{other:?}"),
            },
            Event::Saved { last_processed, count, .. } => Heard::Saved(last_processed, count),
            Event::Stalled { status, .. } => Heard::Stalled(status.blocked.clone()),
            Event::Halted { index, attempt, error, .. } => Heard::Halted(index, attempt, error.to_owned()),
            Event::Ended { state, last_processed, error, .. } => {
                Heard::Ended(state, last_processed, error.map(str::to_owned))
            }
            Event::Measured { lag, status, .. } => {
                let ended = self.0.lock().iter().any(|heard| matches!(heard, Heard::Ended(..)));
                assert!(!ended, "the end is the last event");
                return self.1.lock().push((lag, status.clone()));
            }
            _ => panic!("{event:?}"),
        };
        self.0.lock().push(heard);
    }
}

impl Ear {
    fn all(&self) -> Vec<Heard> {
        self.0.lock().clone()
    }

    fn count(&self, so: impl Fn(&Heard) -> bool) -> usize {
        self.0.lock().iter().filter(|heard| so(heard)).count()
    }
}

/// The modes that run each job alone and keep their progress in a store.
fn homes() -> impl Iterator<Item = InStore> {
    Mode::ALL.iter().filter(|mode| !mode.is_batched() && !mode.is_in_database()).map(|mode| InStore::new(*mode))
}

/// Checks the events against the model: each job fails as often as planned, and then succeeds.
fn check(heard: &[Heard], plan: &[u32], mode: Mode) {
    let mut attempts: BTreeMap<Index, (u32, bool)> = BTreeMap::new();
    let mut done = vec![false; plan.len()];
    let mut watermark = None;
    for (at, event) in heard.iter().enumerate() {
        match event {
            Heard::Begun(index, attempt) => {
                let (last, running) = attempts.entry(*index).or_default();
                assert!(!*running && !done[*index as usize], "{mode:?}: {event:?} at {at} in {heard:#?}");
                assert_eq!(*attempt, *last + 1, "{mode:?}: {heard:#?}");
                (*last, *running) = (*attempt, true);
            }
            Heard::Done(index, attempt, _) | Heard::Failed(index, attempt, _) => {
                let (last, running) = attempts.get_mut(index).expect("it has begun");
                assert!(std::mem::replace(running, false) && last == attempt, "{mode:?}: {event:?} in {heard:#?}");
                let succeeds = *attempt > plan[*index as usize];
                assert_eq!(matches!(event, Heard::Done(..)), succeeds, "{mode:?}: {event:?}");
                done[*index as usize] = succeeds;
            }
            Heard::Saved(last, count) => {
                assert_eq!(*count, 1);
                assert!(*last >= watermark, "the watermark went back: {heard:#?}");
                watermark = *last;
                let covered = last.map_or(0, |last| last as usize + 1);
                assert!(done[..covered].iter().all(|done| *done), "{mode:?}: saved too early: {heard:#?}");
            }
            Heard::Ended(state, last, error) => {
                assert_eq!(at, heard.len() - 1, "it is the last one: {heard:#?}");
                assert_eq!((*state, error), (State::Finished, &None));
                assert_eq!(*last, Some(plan.len() as u64 - 1));
            }
            other => panic!("{mode:?}: {other:?} in {heard:#?}"),
        }
    }
    assert!(done.iter().all(|done| *done) && matches!(heard.last(), Some(Heard::Ended(..))), "{mode:?}: {heard:#?}");
    let begun: u32 = attempts.values().map(|(last, _)| last).sum();
    assert_eq!(begun, plan.iter().map(|fails| fails + 1).sum::<u32>());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(24)))]

    #[test]
    fn each_attempt_begins_and_ends_once_before_its_save(
        plan in proptest::collection::vec(prop_oneof![3 => Just(0), 1 => 1..4u32], 1..40),
        max_processing in 1..6usize,
    ) {
        for home in homes() {
            let (ear, fails) = (Ear::default(), plan.clone());
            let builder = home.builder(plan.len() as u64)
                .max_processing(max_processing)
                .retry(NOW)
                .stop_at(plan.len() as u64 - 1)
                .observe(ear.clone())
                .clock(Time::new().clock());
            let run = move |job: &Attempt<'_>| {
                if job.attempt > fails[job.index as usize] { Ok(()) } else { Err("refused".into()) }
            };
            let consumer = home.start(builder, run).unwrap();
            let handle = consumer.handle();
            consumer.join().unwrap();
            check(&ear.all(), &plan, home.mode());
            let saves = ear.count(|heard| matches!(heard, Heard::Saved(..)));
            prop_assert_eq!(saves as u64, handle.status().saves);
        }
    }
}

#[test]
fn a_duration_runs_from_the_start_to_the_report() {
    for home in homes() {
        let (ear, time) = (Ear::default(), Arc::new(Time::new()));
        let builder = home.builder(1).stop_at(0).clock(time.clock()).observe(ear.clone());
        let run = move |_: &Attempt<'_>| {
            time.pass(HOUR);
            Ok(())
        };
        home.start(builder, run).unwrap().join().unwrap();
        let all = ear.all();
        let took = all.iter().find_map(|heard| if let Heard::Done(.., took) = heard { Some(*took) } else { None });
        assert_eq!(took, Some(HOUR), "{:?}", home.mode());
    }
}

#[test]
fn a_save_duration_includes_failed_tries() {
    let (send, saves) = unbounded();
    let progress = FaultyProgress::in_memory();
    let hold = progress.faults().hold();
    progress.faults().fail(0..1);
    let time = Time::new();
    let consumer = Consumer::builder(numbers(1), progress.clone())
        .clock(time.clock())
        .observe(move |event: &Event<'_>| {
            if let Event::Saved { elapsed, last_processed, .. } = event {
                let _ = send.send((*last_processed, *elapsed));
            }
        })
        .start(|_| Ok(()))
        .unwrap();
    hold.wait();
    time.pass(HOUR);
    drop(hold);
    until(&consumer.handle(), "the failure", |status| matches!(status.blocked, Blocked::Progress { .. }));
    time.steps(MS, "the back-off", || consumer.handle().wait_for(0, Duration::ZERO));
    consumer.stop().unwrap();
    let (last, elapsed) = saves.recv().unwrap();
    assert_eq!(last, Some(0));
    assert!(elapsed > HOUR && elapsed <= time.passed(), "{elapsed:?}");
    assert!(saves.recv().is_err(), "a save that fails is none, and the observer is gone");
}

#[test]
fn errors_and_panics_are_outcomes_in_every_mode() {
    for (home, halts) in homes().map(|home| (home, true)).chain(homes().map(|home| (home, false))) {
        let (ear, mode, most) = (Ear::default(), home.mode(), if halts { 2 } else { 3 });
        let builder = home.builder(1).retry(NOW.max_attempts(most)).stop_at(0).observe(ear.clone());
        let run = |job: &Attempt<'_>| match job.attempt {
            1 => panic!("at once"),
            2 => Err("refused".into()),
            _ => Ok(()),
        };
        let ended = home.start(builder.clock(Time::new().clock()), run).unwrap().join();
        let panicked = match mode {
            Mode::Deferred | Mode::Handed => "the job panicked",
            _ => "panicked: at once",
        };
        let failed = |attempt, error: &str| [Heard::Begun(0, attempt), Heard::Failed(0, attempt, error.to_owned())];
        let mut wanted = [failed(1, panicked), failed(2, "refused")].concat();
        wanted.extend(match &ended {
            Ok(()) => vec![
                Heard::Begun(0, 3),
                Heard::Done(0, 3, Duration::ZERO),
                Heard::Saved(Some(0), 1),
                Heard::Ended(State::Finished, Some(0), None),
            ],
            Err(error) => vec![
                Heard::Halted(0, Some(2), "job 0 failed in attempt 2: refused".to_owned()),
                // The store keeps the reason of the halt.
                Heard::Saved(None, 1),
                Heard::Ended(State::Halted, None, Some(error.report())),
            ],
        });
        assert_eq!((ear.all(), halts), (wanted, ended.is_err()), "{mode:?}");
    }
}

#[test]
fn a_panic_in_on_job_done_is_the_outcome() {
    let ear = Ear::default();
    let first = AtomicBool::new(true);
    Consumer::builder(numbers(1), MemoryProgress::new())
        .retry(NOW)
        .stop_at(0)
        .on_job_done(move |_| assert!(!first.swap(false, Ordering::SeqCst), "the first one panics"))
        .observe(ear.clone())
        .clock(Time::new().clock())
        .start(|_| Ok(()))
        .unwrap()
        .join()
        .unwrap();
    let failed = ear.count(|heard| matches!(heard, Heard::Failed(0, 1, text) if text.contains("the first one")));
    let done = ear.count(|heard| matches!(heard, Heard::Done(0, 2, _)));
    assert_eq!((failed, done), (1, 1), "{:#?}", ear.all());
}

#[test]
fn refused_effects_follow_a_done_and_halt() {
    let (store, _dir) = a_store();
    let ear = Ear::default();
    let table = store.table("sums").unwrap();
    table.put("title", "no counter").unwrap();
    let consumer = Consumer::builder(numbers(1), store.progress("p"))
        .observe(ear.clone())
        .clock(Time::new().clock())
        .start_transactional(move |_, effects| Ok(effects.add(&table, "title", 1)?))
        .unwrap();
    consumer.join().unwrap_err();
    let heard = ear.all();
    assert!(
        matches!(heard[..3], [Heard::Begun(0, 1), Heard::Done(0, 1, _), Heard::Halted(0, Some(1), _)]),
        "{heard:#?}"
    );
    assert!(matches!(heard.last(), Some(Heard::Ended(State::Halted, None, Some(_)))), "{heard:#?}");
}

#[test]
fn a_panicking_observer_changes_nothing() {
    for home in homes() {
        let (before, behind) = (Ear::default(), Ear::default());
        let calls = Arc::new(AtomicU64::new(0));
        let called = calls.clone();
        let builder = home
            .builder(100)
            .retry(NOW)
            .stop_at(99)
            .observe(before.clone())
            .clock(Time::new().clock())
            .observe(move |event: &Event<'_>| {
                called.fetch_add(1, Ordering::SeqCst);
                panic!("at {event:?}");
            })
            .observe(behind.clone());
        let run = |job: &Attempt<'_>| {
            if job.index.is_multiple_of(3) && job.attempt == 1 { Err("refused".into()) } else { Ok(()) }
        };
        let (consumer, mode) = (home.start(builder, run).unwrap(), home.mode());
        let handle = consumer.handle();
        consumer.join().unwrap();
        let status = handle.status();
        assert_eq!((status.done, status.failed, status.retries), (100, 34, 34), "{mode:?}");
        assert_eq!(handle.last_processed_index(), Some(99));
        let plan: Vec<u32> = (0..100).map(|index| u32::from(index % 3 == 0)).collect();
        check(&before.all(), &plan, mode);
        check(&behind.all(), &plan, mode);
        assert_eq!(calls.load(Ordering::SeqCst), (before.all().len() + before.1.lock().len()) as u64);
    }
}

/// A handle that is set after the start.
#[derive(Clone, Default)]
struct Later(Arc<Mutex<Option<Handle>>>);

impl Later {
    fn get(&self) -> Option<Handle> {
        self.0.lock().clone()
    }
}

#[test]
fn an_observer_may_steer_and_write_in_every_event() {
    for home in homes() {
        let (later, log) = (Later::default(), home.store.log::<String>("events").unwrap());
        let (steered, own) = (later.clone(), Arc::<Mutex<Option<Consumer>>>::default());
        let (written, mine) = (log.clone(), own.clone());
        let ((let_go, started), time) = (bounded::<()>(0), Time::new());
        let builder =
            home.builder(20).max_processing(3).retry(NOW).clock(time.clock()).observe(move |event: &Event<'_>| {
                let _ = started.recv_timeout(LONG);
                let handle = steered.get().expect("the start is over");
                handle.pause();
                let _ = handle.set_max_processing(2);
                written.push(&format!("{:?}", handle.status().state)).unwrap();
                let _ = (handle.size(), handle.wait_for(Index::MAX - 1, Duration::ZERO));
                assert_eq!(handle.wait_end(HOUR), None, "the end would wait for this call");
                handle.check();
                handle.resume();
                if let Event::Saved { last_processed: Some(19), .. } = event {
                    handle.request_stop();
                    let consumer = mine.lock().take();
                    assert!(consumer.is_none_or(|consumer| consumer.stop().is_err()), "it only asks");
                }
            });
        let run = |job: &Attempt<'_>| {
            if job.index.is_multiple_of(5) && job.attempt == 1 { Err("once".into()) } else { Ok(()) }
        };
        let (consumer, mode) = (home.start(builder, run).unwrap(), home.mode());
        let handle = consumer.handle();
        *later.0.lock() = Some(handle.clone());
        *own.lock() = Some(consumer);
        drop(let_go);
        time.steps(SECOND * 10, "the end", || handle.wait_end(Duration::ZERO).is_some());
        let ended = handle.wait_end(LONG).unwrap_or_else(|| panic!("{mode:?} hangs: {:#?}", handle.status()));
        assert_eq!((ended.state, ended.error), (State::Finished, None), "{mode:?}");
        assert_eq!(handle.last_processed_index(), Some(19));
        assert!(own.lock().is_none() && log.head().unwrap() >= Some(20 + 24 + 1));
    }
}

struct Mourned(Sender<()>);

impl Observer for Mourned {
    fn observe(&self, _: &Event<'_>) {}
}

impl Drop for Mourned {
    fn drop(&mut self) {
        let _ = self.0.send(());
        panic!("at its end");
    }
}

fn mourned() -> (Mourned, Receiver<()>) {
    let (send, dropped) = unbounded();
    (Mourned(send), dropped)
}

#[test]
fn observers_are_dropped_at_the_end() {
    let ((first, first_is_dropped), (second, second_is_dropped)) = (mourned(), mourned());
    let builder = Consumer::builder(numbers(3), MemoryProgress::new()).stop_at(2);
    let consumer = builder.observe(first).observe(second).start(|_| Ok(())).unwrap();
    let handle = consumer.handle();
    consumer.join().unwrap();
    assert!(first_is_dropped.try_recv().is_ok() && second_is_dropped.try_recv().is_ok(), "{:#?}", handle.status());
}

#[test]
fn an_abandoned_attempt_is_not_observed() {
    let ear = Ear::default();
    let (worker, stage) = manual_worker();
    let consumer = Consumer::builder(numbers(2), MemoryProgress::new())
        .max_processing(2)
        .observe(ear.clone())
        .clock(Time::new().clock())
        .start_worker(worker)
        .unwrap();
    let handle = consumer.handle();
    let mut running = stage.take(2);
    running.remove(&0).unwrap().succeed();
    assert!(handle.wait_for(0, LONG));
    assert!(matches!(consumer.stop_within(Duration::ZERO), Err(Error::StopTimeout { .. })));
    // A stop with no time does not wait for the thread that tells the observers.
    eventually("the end", || matches!(ear.all().last(), Some(Heard::Ended(State::Finished, Some(0), None))));
    let before = ear.all();
    running.remove(&1).unwrap().succeed();
    handle.wait_end(LONG).expect("the job is over");
    eventually("the observer is dropped", || Arc::strong_count(&ear.0) == 1);
    assert_eq!(ear.all(), before);
}

#[test]
fn an_observer_hears_of_stalls_without_a_subscriber() {
    let (ear, time) = (Ear::default(), Time::new());
    let (worker, stage) = manual_worker();
    let consumer = Consumer::builder(numbers(1), MemoryProgress::new())
        .clock(time.clock())
        .observe(ear.clone())
        .start_worker(worker)
        .unwrap();
    let job = stage.next();
    let stalls = || ear.count(|heard| matches!(heard, Heard::Stalled(Blocked::Running { index: 0, attempt: 1, .. })));
    time.steps(Duration::from_secs(10), "the second stall", || stalls() >= 2);
    job.succeed();
    assert!(consumer.handle().wait_for(0, LONG));
    consumer.stop().unwrap();
    assert!(matches!(ear.all().last(), Some(Heard::Ended(State::Finished, Some(0), None))), "{:#?}", ear.all());
}

#[test]
fn lag_is_measured_until_the_end() {
    let (ear, time) = (Ear::default(), Time::new());
    let (worker, stage) = manual_worker();
    let jobs = numbers(3);
    let consumer = Consumer::builder(jobs.clone(), MemoryProgress::new())
        .max_processing(2)
        .clock(time.clock())
        .observe(ear.clone())
        .start_worker(worker)
        .unwrap();
    let handle = consumer.handle();
    let last = || ear.1.lock().last().cloned();
    let mut running = stage.take(2);
    // Two of three jobs are in flight, and the lag grows without events of jobs.
    let is_lag = |(lag, status): (Duration, Status)| lag >= SECOND && status.processing == 2;
    time.steps(SECOND / 4, "a lag of a second", || last().is_some_and(is_lag));
    let (lag, status) = last().unwrap();
    assert!(
        lag <= time.passed() && status.processing == 2 && status.lag() == 3 && status.head == Some(2),
        "{lag:?}, {status:?}"
    );
    // While paused it does not stall, yet its lag grows.
    handle.pause();
    running.remove(&1).unwrap().succeed();
    time.steps(SECOND / 4, "one more", || {
        last().is_some_and(|(longer, status)| longer > lag && status.done_ahead == 1)
    });
    handle.resume();
    running.remove(&0).unwrap().succeed();
    stage.job(2).succeed();
    assert!(handle.wait_for(2, LONG));
    // The measurements do not depend on the looks for a stall, none of which is due here.
    time.pass(SECOND);
    eventually("the rest", || last().is_some_and(|(lag, status)| lag.is_zero() && status.last_processed == Some(2)));
    time.pass(SECOND * 2);
    let before = ear.1.lock().len();
    // A new job after an idle while is measured at once.
    jobs.push(3);
    let job = stage.next();
    eventually("the new one", || last().is_some_and(|(_, status)| status.head == Some(3)));
    let (lag, status) = last().unwrap();
    assert_eq!(lag, Duration::ZERO);
    assert!(status.processing <= 1 && ear.1.lock().len() > before);
    handle.request_stop();
    job.succeed();
    consumer.stop().unwrap();
    let (lag, status) = last().unwrap();
    assert_eq!((lag, status.last_processed, status.state), (Duration::ZERO, Some(3), State::Finished));
}

#[test]
fn on_stall_is_called_once_for_each_stall() {
    let (ear, (send, calls), time) = (Ear::default(), unbounded(), Time::new());
    let call = |name: &'static str| {
        let send = send.clone();
        move |status: &Status| send.send((name, status.clone())).unwrap()
    };
    let (worker, stage) = manual_worker();
    let jobs = numbers(1);
    let consumer = Consumer::builder(jobs.clone(), MemoryProgress::new())
        .clock(time.clock())
        .on_stall(SECOND * 12, call("late"))
        .on_stall(SECOND * 4, call("early"))
        .on_stall(HOUR, call("never"))
        .on_stall(Duration::MAX, call("never"))
        .observe(ear.clone())
        .start_worker(worker)
        .unwrap();
    let stalls = || ear.count(|heard| matches!(heard, Heard::Stalled(_)));
    for index in 0..3 {
        let job = stage.next();
        for (name, pause, at) in [("early", SECOND * 4, SECOND * 4), ("late", SECOND * 8, SECOND * 12)] {
            time.pass(pause - MS);
            time.pass(MS);
            let (called, status) = calls.recv_timeout(LONG).unwrap();
            assert_eq!(called, name);
            let Blocked::Running { index: of, elapsed, .. } = status.blocked else { panic!("{status:#?}") };
            assert!(of == index && elapsed == at, "{status:#?}");
            assert!(status.oldest.is_some_and(|oldest| (oldest.index, oldest.attempt) == (index, 1)), "{status:#?}");
        }
        // Further events come at each doubling of the time.
        let before = stalls();
        time.steps(SECOND * 10, "further events of the same stall", || stalls() > before + 1);
        assert!(calls.is_empty(), "{:?}", calls.try_recv());
        job.succeed();
        assert!(consumer.handle().wait_for(index, LONG));
        // A consumer that has caught up does not stall.
        time.pass(SECOND * 20);
        if index < 2 {
            jobs.push(index + 1);
        }
    }
    consumer.stop().unwrap();
    assert!(calls.is_empty(), "{:?}", calls.try_recv());
}

#[test]
fn on_stall_may_steer_and_may_panic() {
    let (later, time) = (Later::default(), Time::new());
    let (let_go, started) = bounded::<()>(0);
    let (handle, (worker, stage)) = (later.clone(), manual_worker());
    let consumer = Consumer::builder(numbers(2), MemoryProgress::new())
        .max_processing(1)
        .clock(time.clock())
        .on_stall(SECOND, |_| panic!("nobody expects it"))
        .on_stall(SECOND, move |status| {
            let _ = started.recv_timeout(LONG);
            let handle = handle.get().expect("the start is over");
            assert_eq!(handle.status().processing, status.processing);
            assert_eq!(handle.wait_end(HOUR), None, "the end would wait for this call");
            handle.request_stop();
        })
        .start_worker(worker)
        .unwrap();
    let handle = consumer.handle();
    *later.0.lock() = Some(handle.clone());
    let job = stage.next();
    drop(let_go);
    time.pass(SECOND);
    until(&handle, "the stop", |status| status.state == State::Stopping);
    job.succeed();
    consumer.join().unwrap();
    assert_eq!((handle.status().state, handle.last_processed_index()), (State::Finished, Some(0)));
}

#[test]
fn the_oldest_attempt_is_the_one_that_began_first() {
    let ((worker, stage), time) = (manual_worker(), Time::new());
    let builder = Consumer::builder(numbers(3), MemoryProgress::new()).max_processing(3).retry(NOW);
    let consumer = builder.clock(time.clock()).start_worker(worker).unwrap();
    let handle = consumer.handle();
    let oldest = || handle.status().oldest.map(|oldest| (oldest.index, oldest.attempt));
    let mut running = stage.take(3);
    assert_eq!(oldest(), Some((0, 1)));
    running.remove(&0).unwrap().fail("once more");
    let again = stage.job(0);
    assert_eq!(oldest(), Some((1, 1)), "the second attempt of the first job is younger");
    running.remove(&2).unwrap().succeed();
    until(&handle, "the third one", |status| status.done == 1);
    assert_eq!(oldest(), Some((1, 1)));
    time.pass(SECOND);
    assert_eq!(handle.status().oldest.unwrap().elapsed, SECOND);
    running.remove(&1).unwrap().succeed();
    until(&handle, "the second one", |status| status.done == 2);
    assert_eq!(oldest(), Some((0, 2)));
    again.succeed();
    assert!(handle.wait_for(2, LONG));
    assert_eq!(oldest(), None);
    consumer.stop().unwrap();
}

#[test]
fn a_panic_in_the_last_on_processed_comes_after_the_end() {
    let ear = Ear::default();
    let (let_go, ended) = bounded::<()>(0);
    let heard = ear.clone();
    let consumer = Consumer::builder(numbers(1), MemoryProgress::new())
        .stop_at(0)
        .observe(ear.clone())
        .clock(Time::new().clock())
        .on_processed(move |_| {
            let _ = ended.recv_timeout(LONG);
            panic!("too late");
        })
        .start(|_| Ok(()))
        .unwrap();
    eventually("the end", || heard.count(|heard| matches!(heard, Heard::Ended(..))) == 1);
    drop(let_go);
    consumer.join().unwrap_err();
    assert!(matches!(ear.all().last(), Some(Heard::Halted(0, None, _))), "{:#?}", ear.all());
}

#[test]
fn a_refused_start_drops_its_observers_unheard() {
    let ear = Ear::default();
    let builder = Consumer::builder(numbers(1), MemoryProgress::new())
        .max_processing(0)
        .observe(ear.clone())
        .clock(Time::new().clock());
    assert!(matches!(builder.start(|_| Ok(())), Err(Error::Config(_))));
    assert_eq!((ear.all(), Arc::strong_count(&ear.0)), (vec![], 1));
}

#[test]
fn a_shared_observer_tells_consumers_apart_by_name() {
    let (send, names) = unbounded();
    let shared: Arc<dyn Observer> = Arc::new(move |event: &Event<'_>| {
        if let Event::Ended { consumer, .. } = event {
            let _ = send.send(consumer.to_string());
        }
    });
    fn run<P: Progress>(progress: P, observer: Arc<dyn Observer>) {
        let builder = Consumer::builder(numbers(3), progress).stop_at(2).observe(observer);
        builder.start(|_| Ok(())).unwrap().join().unwrap();
    }
    let store = Store::in_memory();
    run(store.progress("a"), shared.clone());
    run(store.progress("b"), shared.clone());
    run(MemoryProgress::new(), shared);
    assert_eq!(names.iter().collect::<Vec<_>>(), ["a", "b", "unnamed"]);
}
