//! One list of cases, each of which runs in every mode of a consumer.

use common::modes::{Attempt, Home, InDatabase, InStore, Mode};
use common::*;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use waterline::{
    Blocked, BoxError, Consumer, Error, Failure, Handle, Index, Jobs, MemoryProgress, OnExhausted, Retry, State,
};

const NOW: Retry = Retry::fixed(Duration::ZERO);
const ZERO: Duration = Duration::ZERO;

/// Says in which mode a case fails.
struct Named(Mode);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the mode was {:?}", self.0);
        }
    }
}

/// Makes a test of each case, which runs it in all modes but those that cannot have it.
macro_rules! in_each_mode {
    ($($test:ident: $case:ident $(, not in $except:pat, since $why:literal)*;)*) => {$(
        #[test]
        fn $test() {
            for mode in Mode::ALL.iter().copied() {
                $(if matches!(mode, $except) {
                    let _: &str = $why;
                    continue;
                })*
                let _named = Named(mode);
                if mode.is_in_database() { $case(&InDatabase::new(mode)) } else { $case(&InStore::new(mode)) }
            }
        }
    )*};
}

in_each_mode! {
    promise_01_random_lives_do_each_job_once: random_lives;
    jobs_of_a_key_run_in_order_through_random_lives: random_keys,
        not in Mode::Batched | Mode::BatchedTransactional, since "jobs of a batch run together";
    promise_02_all_slots_are_used_and_no_more: slots;
    promise_09_failed_attempts_leave_one_trace: failed_attempts;
    promise_05_the_last_failure_halts_a_life: halt;
    a_failure_may_ask_for_a_later_try_or_none: later_or_never;
    a_backoff_holds_no_slot_and_delays_no_other: backoff;
    on_job_done_runs_first_and_its_panic_fails: callback;
    promise_04_no_job_passes_a_gate_that_opens: gate;
    parked_jobs_are_passed_kept_and_redriven: parked;
    promise_06_a_stop_and_a_drop_await_what_runs: stop,
        not in Mode::Ordered | Mode::OrderedAsync, since "a result without a turn is not awaited",
        not in Mode::Written | Mode::WrittenInOrder, since "a stop also writes what has run before it";
    an_error_while_stopping_is_put_back: cut_short;
    promise_07_a_straggler_has_the_name_alone: straggler,
        not in Mode::Written | Mode::WrittenInOrder, since "a stop leaves a transaction, not its jobs";
    an_end_on_an_own_thread_is_only_asked_for: own_end,
        not in Mode::Handed, since "the thread is the test's, and may wait";
    an_overdue_result_counts_unless_it_expired: overdue,
        not in Mode::Sunk | Mode::SunkAsync | Mode::Written | Mode::WrittenInOrder, since "the timeout is that of the work alone";
}

/// Returns a job that says that it has begun, and waits until the sender is dropped.
fn held() -> (impl Fn(&Attempt<'_>) -> Result<(), BoxError> + Clone + Send + Sync + 'static, Receiver<Index>, Sender<()>)
{
    let ((begin, begun), (go, gone)) = (unbounded(), bounded(0));
    let run = move |job: &Attempt<'_>| {
        begin.send(job.index)?;
        let _ = gone.recv_timeout(LONG);
        Ok(())
    };
    (run, begun, go)
}

fn assert_in_order(home: &impl Home) {
    assert!(!(home.mode().is_ordered() || home.mode().is_sunk()) || home.seen().lock().done.is_sorted());
}

fn random_lives(home: &impl Home) {
    const JOBS: u64 = 250;
    let mut random = fastrand::Rng::with_seed(seed());
    let mut next = 0;
    while next < JOBS {
        let (luck, processing, halts) = (random.u64(..), random.usize(3..7), random.bool());
        let ahead = if random.bool() { random.u64(1..30) } else { u64::MAX };
        let end = (next + random.u64(0..100)).min(JOBS - 1);
        let handle = Arc::new(OnceLock::<Handle>::new());
        let of = handle.clone();
        let builder = home.builder(JOBS).max_processing(processing).max_search_ahead(ahead);
        let builder = builder.retry(if halts { Retry::none() } else { NOW });
        let run = move |job: &Attempt<'_>| {
            // The watermark only grows meanwhile, so this is a lower bound.
            let bound = of.wait().last_processed_index().map_or(0, |last| last + 1).saturating_add(ahead);
            let mut random = fastrand::Rng::with_seed(luck ^ job.index ^ u64::from(job.attempt) << 32);
            (0..random.u8(..4)).for_each(|_| rest());
            if job.index >= bound {
                return Err(Failure::permanent(format!("job {} runs below {bound}", job.index)).into());
            }
            if random.u8(..10) == 0 { Err("by chance".into()) } else { Ok(()) }
        };
        let consumer = home.start(builder.stop_at(JOBS - 1), run).unwrap();
        handle.set(consumer.handle()).unwrap();
        for _ in 0..random.u8(..4) {
            consumer.handle().pause();
            rest();
            consumer.handle().resume();
        }
        let handle = consumer.handle();
        let came = handle.wait_for(end, LONG);
        let last = match consumer.stop() {
            Ok(()) => handle.last_processed_index(),
            Err(Error::Job { index, .. }) if halts => handle.last_processed_index().filter(|last| *last < index),
            Err(other) => panic!("{other:?}"),
        };
        assert!(came || halts && last < Some(end), "{}", handle.status());
        assert_eq!(last, home.last_processed());
        next = last.map_or(0, |last| last + 1);
        let done = home.done();
        assert!((0..next).all(|index| done.contains_key(&index)), "up to {next}: {done:?}");
        let seen = &mut *home.seen().lock();
        assert!(std::mem::take(&mut seen.most) <= processing && seen.twice.is_empty(), "{:?}", seen.twice);
    }
    home.assert_done(0..JOBS);
    assert_in_order(home);
}

/// What the jobs of each key do.
#[derive(Default)]
struct KeyUse {
    running: BTreeMap<u64, Index>,
    /// The job that first succeeded last.
    highest: BTreeMap<u64, Index>,
    /// What is against the order. A job that panicked would only run again.
    wrong: Vec<String>,
}

/// Lives with failures, parked jobs that run once more, stops and other limits.
fn random_keys(home: &impl Home) {
    const JOBS: u64 = 120;
    let mut random = fastrand::Rng::with_seed(seed());
    let kind = random.u8(..5);
    let key_of = move |index: Index| match kind {
        0 => Some(0),
        1 => Some(index % 7),
        2 => Some(index.trailing_zeros().into()),
        3 => Some(index),
        _ => (!index.is_multiple_of(3)).then_some(index % 5),
    };
    let (uses, parks) = (Arc::new(Mutex::new(KeyUse::default())), random.bool());
    let mut last = None;
    let wrong = uses.clone();
    while last != Some(JOBS - 1) || parks && !home.parked().is_empty() {
        let (luck, uses) = (random.u64(..), uses.clone());
        let ahead = if random.bool() { random.u64(1..30) } else { u64::MAX };
        let mut builder = home.builder(JOBS).max_processing(random.usize(1..7)).max_search_ahead(ahead);
        builder = builder.max_reading(random.usize(1..4));
        if parks {
            builder = builder.on_exhausted(OnExhausted::Park { budget: JOBS });
        }
        let run = move |job: &Attempt<'_>| {
            let mut random = fastrand::Rng::with_seed(luck ^ job.index ^ u64::from(job.attempt) << 32);
            let Some(key) = key_of(job.index) else { return Ok(()) };
            let note = |wrong: String| uses.lock().wrong.push(wrong);
            let other = uses.lock().running.insert(key, job.index);
            other.into_iter().for_each(|other| note(format!("jobs {other} and {} run at once", job.index)));
            (0..random.u8(..4)).for_each(|_| rest());
            let uses = &mut *uses.lock();
            uses.running.remove(&key);
            if random.u8(..6) == 0 {
                return Err("by chance".into());
            }
            let highest = uses.highest.entry(key).or_insert(job.index);
            // A parked job that runs once more comes after those behind it.
            if !parks && *highest > job.index {
                uses.wrong.push(format!("job {} runs after job {highest}", job.index));
            }
            *highest = job.index.max(*highest);
            Ok(())
        };
        let builder = builder.retry(if parks { NOW.max_attempts(2) } else { NOW });
        let consumer = home.start(builder.ordered_by(move |index| key_of(*index)), run).unwrap();
        let handle = consumer.handle();
        let end = last.map_or(0, |last| last + 1) + random.u64(1..60);
        if parks && random.bool() {
            handle.redrive_all().unwrap();
        }
        assert!(handle.wait_for(end.min(JOBS - 1), LONG), "{}", handle.status());
        if parks {
            let failed = handle.status().failed;
            handle.redrive_all().unwrap();
            until(&handle, "the parked jobs", |status| status.parked == 0 || status.failed > failed);
        }
        consumer.stop().unwrap();
        last = home.last_processed();
        assert!(home.seen().lock().twice.is_empty());
        assert!(wrong.lock().wrong.is_empty(), "of keys {kind}: {:?}", wrong.lock().wrong);
    }
    home.assert_done(0..JOBS);
    if !parks {
        assert_in_order(home);
    }
}

fn slots(home: &impl Home) {
    let (beside, in_batch) = (home.mode().beside(), home.mode().is_batched());
    let begun = AtomicUsize::new(0);
    // Each job waits for so many later ones, so as many run at once as can. Those of a batch would
    // also wait for the next one of their own.
    let run = move |_: &Attempt<'_>| {
        let before = begun.fetch_add(1, Ordering::SeqCst);
        let wanted = if in_batch { beside } else { (before + beside).min(100) };
        eventually("the others", || begun.load(Ordering::SeqCst) >= wanted);
        Ok(())
    };
    home.start(home.builder(100).stop_at(99), run).unwrap().join().unwrap();
    let most = home.seen().lock().most;
    // Of a batch all jobs are in flight.
    assert!(most == beside || in_batch && (beside..=4).contains(&most), "{most} at a time");
    home.assert_done(0..100);
}

fn failed_attempts(home: &impl Home) {
    const JOBS: u64 = 200;
    let failures = |index: Index| index % 4;
    let run = move |job: &Attempt<'_>| match (u64::from(job.attempt) > failures(job.index), job.index % 12) {
        (true, _) => Ok(()),
        (false, 5) => panic!("attempt {}", job.attempt),
        (false, _) => Err(format!("attempt {}", job.attempt).into()),
    };
    let consumer = home.start(home.builder(JOBS).retry(NOW.max_attempts(4)).stop_at(JOBS - 1), run).unwrap();
    let handle = consumer.handle();
    consumer.join().unwrap();
    let (status, failed) = (handle.status(), (0..JOBS).map(failures).sum());
    assert_eq!((status.done, status.failed, status.retries), (JOBS, failed, failed));
    home.assert_done(0..JOBS);
    // A job that failed is in no batch.
    let seen = home.seen().lock();
    assert!(seen.others.iter().all(|(index, others)| failures(*index) == 0 || *others == 0));
}

fn halt(home: &impl Home) {
    let life = || home.builder(40).retry(NOW.max_attempts(2));
    for panics in [false, true] {
        let run = move |job: &Attempt<'_>| match job.index {
            7 if panics => panic!("attempt {}", job.attempt),
            7 => Err(format!("attempt {}", job.attempt).into()),
            _ => Ok(()),
        };
        let consumer = home.start(life(), run).unwrap();
        let handle = consumer.handle();
        let error = consumer.join().unwrap_err();
        assert!(matches!(error, Error::Job { index: 7, attempt: 2, .. }), "{error:?}");
        let deferred = panics && matches!(home.mode(), Mode::Deferred | Mode::Handed);
        let text = if deferred { "panicked" } else { "attempt 2" };
        assert!(error.report().ends_with(text), "{}", error.report());
        let status = handle.status();
        assert_eq!((status.state, status.failed), (State::Halted, 2));
        // A halt leaves results that the sink has not taken.
        let last = home.last_processed();
        assert!(last == Some(6) || home.mode().is_ordered() && last < Some(6), "{last:?}");
    }
    let done: BTreeSet<Index> = home.done().into_keys().collect();
    assert!(!done.contains(&7));
    // The next life goes on behind the watermark, with first attempts, and repeats nothing.
    let fresh = move |job: &Attempt<'_>| match job.attempt == 1 && !done.contains(&job.index) {
        true => Ok(()),
        false => Err(format!("job {}", job.index).into()),
    };
    home.start(home.builder(40).stop_at(39), fresh).unwrap().join().unwrap();
    home.assert_done(0..40);
}

fn later_or_never(home: &impl Home) {
    for deferrals in [0, 2] {
        let tries = AtomicU64::new(0);
        let run = move |job: &Attempt<'_>| match job.index {
            2 if tries.fetch_add(1, Ordering::SeqCst) < deferrals => Err(Failure::defer(ZERO).into()),
            2 => Err(Failure::permanent("it is broken").into()),
            _ => Ok(()),
        };
        let error = home.start(home.builder(4).retry(NOW), run).unwrap().join().unwrap_err();
        assert!(matches!(error, Error::Job { index: 2, attempt: 1, .. }), "to defer is no failure: {error:?}");
        assert!(error.report().ends_with("it is broken"));
        // Those of its batch ran one by one.
        assert!(home.last_processed() == Some(1) || home.mode().is_ordered());
    }
}

fn backoff(home: &impl Home) {
    const AHEAD: u64 = 20;
    let time = Time::new();
    let builder = home.builder(60).clock(time.clock()).max_processing(3).max_search_ahead(AHEAD).stop_at(59);
    let fails = |job: &Attempt<'_>| if job.index == 0 && job.attempt < 3 { Err("not yet".into()) } else { Ok(()) };
    let consumer = home.start(builder.retry(Retry::fixed(HOUR)), fails).unwrap();
    let handle = consumer.handle();
    until(&handle, "the others", |status| {
        (status.failed, status.next, status.processing, status.lag()) == (1, AHEAD, 0, 60)
    });
    time.steps(HOUR / 4, "all jobs", || handle.wait_for(59, ZERO));
    assert!(time.passed() >= 2 * HOUR);
    consumer.join().unwrap();
    home.assert_done(0..60);
    assert_in_order(home);
}

fn callback(home: &impl Home) {
    let (calls, handle, mode) = (Arc::new(AtomicU64::new(0)), Arc::new(OnceLock::<Handle>::new()), home.mode());
    let (called, of, counted) = (calls.clone(), handle.clone(), calls.clone());
    let builder = home.builder(1).retry(NOW).stop_at(0).on_job_done(move |index| {
        assert_eq!((index, of.wait().status().done), (0, 0));
        assert!(called.fetch_add(1, Ordering::SeqCst) > 0, "the first call fails");
    });
    let before_write = move |_: &Attempt<'_>| match mode.is_written() && counted.load(Ordering::SeqCst) != 2 {
        true => Err("it is written too early".into()),
        false => Ok(()),
    };
    let consumer = home.start(builder, before_write).unwrap();
    handle.set(consumer.handle()).unwrap();
    consumer.join().unwrap();
    let status = handle.wait().status();
    assert_eq!((status.done, status.failed, calls.load(Ordering::SeqCst)), (1, 1, 2));
    assert!(!mode.has_effects() || home.done() == [(0, 1)].into());
}

fn gate(home: &impl Home) {
    let (worker, stage) = manual_worker();
    let upstream = builder(numbers(4), &MemoryProgress::new()).max_processing(1).start_worker(worker).unwrap();
    let gated = Consumer::builder(numbers(4).gated_by(upstream.handle()), home.progress()).max_processing(3);
    let consumer = home.start(gated.stop_at(3), |_| Ok(())).unwrap();
    let handle = consumer.handle();
    for index in 0..4 {
        until(&handle, "the gate", |status| status.blocked == Blocked::Upstream { index });
        home.assert_done(0..index);
        stage.next().succeed();
        assert!(handle.wait_for(index, LONG));
    }
    consumer.join().unwrap();
    upstream.stop().unwrap();
}

fn parked(home: &impl Home) {
    let park = || home.builder(20).retry(NOW.max_attempts(2)).on_exhausted(OnExhausted::Park { budget: 3 });
    let good = Arc::new(Mutex::new(BTreeSet::new()));
    let run = |good: &Arc<Mutex<BTreeSet<Index>>>| {
        let good = good.clone();
        move |job: &Attempt<'_>| match job.index == 5 || job.index == 9 {
            true if !good.lock().contains(&job.index) => Err("refused".into()),
            _ => Ok(()),
        }
    };
    home.start(park().stop_at(19), run(&good)).unwrap().join().unwrap();
    assert_eq!((home.last_processed(), home.parked()), (Some(19), vec![(5, 2), (9, 2)]));
    home.assert_done((0..20).filter(|index| *index != 5 && *index != 9));
    // The next life knows them. Only a redrive that succeeds removes the record.
    good.lock().insert(5);
    let second = home.start(park().retry(Retry::none()), run(&good)).unwrap();
    let handle = second.handle();
    assert_eq!((handle.status().parked, handle.redrive_all().unwrap()), (2, 2));
    until(&handle, "one success and one failure", |status| (status.parked, status.failed) == (1, 1));
    eventually("the record of the failure", || home.parked() == [(9, 3)]);
    good.lock().insert(9);
    // Until the failure is recorded, job 9 still counts as running.
    eventually("the second redrive", || {
        let _ = handle.redrive(9);
        handle.status().parked == 0
    });
    second.stop().unwrap();
    assert_eq!(home.parked(), []);
    home.assert_done(0..20);
    assert!([5, 9].iter().all(|index| home.seen().lock().others[index] == 0), "it runs in no batch");
}

fn stop(home: &impl Home) {
    let ends: [fn(Consumer); 4] = [
        |consumer| consumer.stop().unwrap(),
        |consumer| consumer.stop_within(LONG).unwrap(),
        |consumer| {
            consumer.handle().request_stop();
            consumer.join().unwrap();
        },
        drop,
    ];
    for ends in ends {
        let ((begins, begun, go), (goes_on, told, end)) = (held(), held());
        let (beside, in_batch) = (home.mode().beside(), home.mode().is_batched());
        let run = move |job: &Attempt<'_>| {
            // The later jobs of a batch begin after the stop.
            assert!(in_batch || !job.is_stopping(), "nothing stops yet");
            begins(job)?;
            eventually("the stop", || job.is_stopping());
            goes_on(job)
        };
        let consumer = home.start(home.builder(100).retry(Retry::fixed(HOUR)), run).unwrap();
        let handle = consumer.handle();
        (0..beside).for_each(|_| _ = begun.recv_timeout(LONG).unwrap());
        let ending = std::thread::spawn(move || ends(consumer));
        until(&handle, "the stop", |status| status.state == State::Stopping);
        drop(go);
        (0..beside).for_each(|_| _ = told.recv_timeout(LONG).unwrap());
        assert!(!ending.is_finished(), "it waits for them");
        drop(end);
        ending.join().unwrap();
        let began = if in_batch { 4 } else { beside };
        assert_eq!((handle.status().state, handle.status().done), (State::Finished, began as u64));
        home.assert_done(0..=home.last_processed().unwrap());
    }
}

fn cut_short(home: &impl Home) {
    // An error counts only if nothing stops, or if it is for good.
    for (stops, for_good) in [(false, false), (true, false), (true, true)] {
        let (hold, begun, go) = held();
        let run = move |job: &Attempt<'_>| {
            hold(job)?;
            Err(if for_good { Failure::permanent("cut short").into() } else { "cut short".into() })
        };
        // Only a job that fails alone fails for good.
        let jobs = if for_good { 1 } else { 4 };
        let consumer = home.start(home.builder(jobs).retry(Retry::none()), run).unwrap();
        begun.recv_timeout(LONG).unwrap();
        let handle = consumer.handle();
        if stops {
            handle.request_stop();
        }
        drop(go);
        let ended = consumer.join();
        let alone =
            std::mem::take(&mut home.seen().lock().others).values().filter(|others| **others == 0).count() as u64;
        match ended {
            // A batch that fails has no failed attempt.
            Ok(()) => assert!(stops && !for_good && (!home.mode().is_batched() || handle.status().failed == alone)),
            Err(Error::Job { attempt: 1, .. }) => assert!(!stops || for_good),
            Err(other) => panic!("{other:?}"),
        }
        assert_eq!(home.last_processed(), None);
    }
    // The next life runs them all, each in its first attempt.
    let fresh = |job: &Attempt<'_>| if job.attempt == 1 { Ok(()) } else { Err("again".into()) };
    home.start(home.builder(4).stop_at(3), fresh).unwrap().join().unwrap();
    home.assert_done(0..4);
}

fn straggler(home: &impl Home) {
    let ((hold, begun, go), calls) = (held(), Arc::new(AtomicU64::new(0)));
    let called = calls.clone();
    let builder = home.builder(1).on_job_done(move |_| _ = called.fetch_add(1, Ordering::SeqCst));
    let consumer = home.start(builder, hold).unwrap();
    begun.recv_timeout(LONG).unwrap();
    let handle = consumer.handle();
    let error = consumer.stop_within(ZERO).unwrap_err();
    assert!(matches!(&error, Error::StopTimeout { running } if *running == [0]), "{error:?}");
    let again = || home.start(home.builder(1).stop_at(0), |_| Ok(()));
    if !home.mode().is_in_database() {
        assert!(matches!(again(), Err(Error::InUse { .. })));
    }
    drop(go);
    eventually("the callback's end", || Arc::strong_count(&calls) == 1);
    assert_eq!((handle.status().done, calls.load(Ordering::SeqCst), home.last_processed()), (0, 0, None));
    eventually("the name", || again().is_ok_and(|next| next.join().is_ok()));
    assert!(!home.mode().has_effects() || home.done() == [(0, 1)].into());
}

fn own_end(home: &impl Home) {
    let only_asks = |ended| matches!(ended, Err(Error::Config(_)));
    let ends: [fn(Consumer) -> Result<(), Error>; 3] =
        [Consumer::stop, Consumer::join, |consumer| consumer.stop_within(LONG)];
    for index in 0..=ends.len() {
        let kept = Arc::new(OnceLock::<Mutex<Option<Consumer>>>::new());
        let of = kept.clone();
        let run = move |_: &Attempt<'_>| {
            let Some(consumer) = of.wait().lock().take() else { return Ok(()) };
            assert!(consumer.handle().wait_end(Duration::MAX).is_none(), "it would wait for itself");
            // The last one drops it.
            assert!(ends.get(index).is_none_or(|end| only_asks(end(consumer))));
            Ok(())
        };
        let consumer = home.start(home.builder(index as u64 + 1), run).unwrap();
        let handle = consumer.handle();
        kept.set(Mutex::new(Some(consumer))).unwrap();
        assert_eq!(handle.wait_end(LONG).map(|ended| ended.state), Some(State::Finished));
        // A result that the sink has not taken is not awaited.
        assert!(home.mode().is_ordered() || home.last_processed() == Some(index as u64));
    }
}

/// The first attempt uses up its timeout, and ends in one of three ways once it is told.
fn overdue(home: &impl Home) {
    let results: [fn() -> Result<(), BoxError>; 3] =
        [|| Ok(()), || Err("cut short".into()), || Err(Failure::permanent("it is of no use").into())];
    let (expires, time) = (home.mode().expires(), Arc::new(Time::new()));
    // Others beside it would expire as well.
    let jobs = if expires || home.mode().is_async() { 1 } else { 4 };
    for (life, result) in (0..).zip(results) {
        let (first, end, time) = (life * jobs, (life + 1) * jobs, time.clone());
        let clock = time.clock();
        let run = move |job: &Attempt<'_>| {
            if job.index > first || job.attempt > 1 {
                return Ok(());
            }
            time.pass(HOUR);
            eventually("the end of the timeout", || job.is_stopping());
            result()
        };
        let builder = || home.builder(end).clock(clock.clone()).attempt_timeout(HOUR).retry(NOW).stop_at(end - 1);
        // A token of the life before may still have the name.
        let mut started = None;
        eventually("the name", || {
            started = home.start(builder(), run.clone()).ok();
            started.is_some()
        });
        let consumer = started.unwrap();
        let handle = consumer.handle();
        match consumer.join() {
            Ok(()) => assert!(life < 2 || expires, "what comes late is ignored"),
            Err(error) => assert!(life == 2 && error.report().ends_with(": it is of no use"), "{error:?}"),
        }
        assert_eq!(handle.status().failed, u64::from(life > 0 || expires));
        if home.mode().has_effects() && life < 2 {
            home.assert_done(0..end);
        }
    }
}
