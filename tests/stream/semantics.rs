//! The behaviour of a consumer, rule by rule: its start, retries, end, controls and callbacks.

use common::*;
use parking_lot::Mutex;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use waterline::{
    Blocked, BoxError, Consumer, Error, Index, Job, Jobs, MemoryJobs, MemoryProgress, Retry, State, Wakeup, Worker,
};

type Plain = waterline::Builder<Script, MemoryProgress>;

const NOW: Retry = Retry::fixed(Duration::ZERO);
const SECOND: Duration = Duration::from_secs(1);

#[test]
fn start_at_holds_only_until_something_is_saved() {
    let script = Script::up_to(30);
    script.set_first(10);
    let began = |progress: &MemoryProgress, set: fn(Plain) -> Plain| {
        let (worker, stage) = manual_worker();
        let builder = Consumer::builder(script.clone(), progress.clone()).max_processing(1);
        let consumer = set(builder).start_worker(worker).unwrap();
        assert_eq!(consumer.handle().last_processed_index(), progress.last_processed());
        let job = stage.next();
        let index = job.index;
        consumer.handle().request_stop();
        job.succeed();
        consumer.stop().unwrap();
        index
    };
    let progress = MemoryProgress::new();
    assert_eq!(began(&MemoryProgress::new(), |b| b), 10);
    assert_eq!(began(&MemoryProgress::new(), |b| b.start_after(14)), 15);
    assert_eq!(began(&progress, |b| b.start_at(20)), 20);
    assert_eq!(progress.last_processed(), Some(20));
    assert_eq!(began(&progress, |b| b.start_at(12)), 21, "what is saved outranks what is asked for");
}

#[test]
fn lag_counts_unprocessed_jobs() {
    let progress = MemoryProgress::new();
    let (worker, stage) = manual_worker();
    let script = Script::up_to(109);
    let consumer = builder(script.clone(), &progress).max_processing(1).start_at(100).start_worker(worker).unwrap();
    let handle = consumer.handle();
    let first = stage.next();
    assert_eq!((handle.status().lag(), handle.last_processed_index()), (10, None), "head + 1 − first index");
    first.succeed();
    assert!(handle.wait_for(100, LONG));
    assert_eq!(handle.status().lag(), 9, "head − watermark");
    // Taken before the head goes back, since no job starts above the head.
    let second = stage.next();
    script.set_head(Some(5));
    handle.check();
    assert_eq!(until(&handle, "the new head", |s| s.head == Some(5)).lag(), 0, "never below 0");
    script.set_head(None);
    handle.check();
    assert_eq!(until(&handle, "no head", |s| s.head.is_none()).lag(), 0);
    handle.request_stop();
    second.succeed();
    consumer.stop().unwrap();
}

#[test]
fn a_head_that_goes_back_limits_only_new_starts() {
    let (worker, stage) = manual_worker();
    let script = Script::up_to(9);
    let progress = MemoryProgress::new();
    let consumer = builder(script.clone(), &progress).max_processing(2).start_worker(worker).unwrap();
    let handle = consumer.handle();
    let running = stage.take(2);
    script.set_head(Some(0));
    handle.check();
    until(&handle, "the new head", |s| s.head == Some(0));
    running.into_values().for_each(StartedJob::succeed);
    assert!(handle.wait_for(1, LONG));
    let status = until(&handle, "the finding", |s| s.processing == 0);
    assert_eq!(status.blocked, Blocked::AheadOfSource { last_processed: 1, head: Some(0) });
    assert!(stage.is_quiet(), "2 was read, but is above the head");
    script.set_head(Some(2));
    handle.check();
    let next = stage.next();
    assert_eq!(next.index, 2);
    next.succeed();
    assert!(handle.wait_for(2, LONG));
    consumer.stop().unwrap();
}

struct Calls(Arc<Mutex<Vec<&'static str>>>);

impl Jobs for Calls {
    type Job = ();

    fn first(&self) -> Result<Index, BoxError> {
        self.0.lock().push("first");
        Ok(0)
    }

    fn head(&self) -> Result<Option<Index>, BoxError> {
        self.0.lock().push("head");
        Ok(None)
    }

    fn at_index(&self, _: Index) -> Result<Option<()>, BoxError> {
        self.0.lock().push("at_index");
        Ok(None)
    }

    fn subscribe(&self, _: Wakeup) -> bool {
        self.0.lock().push("subscribe");
        true
    }
}

#[test]
fn the_source_is_subscribed_to_before_it_is_read() {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let consumer = builder(Arc::new(Calls(calls.clone())), &MemoryProgress::new()).start(|_| Ok(())).unwrap();
    let status = until(&consumer.handle(), "the first look", |_| calls.lock().contains(&"head"));
    consumer.stop().unwrap();
    assert_eq!(*calls.lock(), ["subscribe", "first", "head"]);
    assert_eq!((status.lag(), status.next), (0, 0));
}

#[test]
fn a_run_is_read_in_one_call_unless_cut_short() {
    /// A source that returns at most three jobs a call.
    struct Threes(Arc<Mutex<Vec<RangeInclusive<Index>>>>);
    impl Jobs for Threes {
        type Job = Index;
        fn head(&self) -> Result<Option<Index>, BoxError> {
            Ok(Some(7))
        }
        fn at_index(&self, _: Index) -> Result<Option<Index>, BoxError> {
            panic!("`read` is what is called")
        }
        fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<Index>) -> Result<(), BoxError> {
            self.0.lock().push(run.clone());
            into.extend(run.take(3));
            Ok(())
        }
    }
    let runs = Arc::new(Mutex::new(Vec::new()));
    let progress = MemoryProgress::new();
    let ran = Arc::new(Mutex::new(Vec::new()));
    let seen = ran.clone();
    builder(Threes(runs.clone()), &progress)
        .stop_at(7)
        .start(move |job| {
            seen.lock().push(job.index);
            Ok(())
        })
        .unwrap()
        .join()
        .unwrap();
    assert_eq!(*runs.lock(), [0..=7, 3..=7, 6..=7]);
    ran.lock().sort_unstable();
    assert_eq!(*ran.lock(), (0..=7).collect::<Vec<_>>());
}

#[test]
fn the_source_is_polled_unless_it_notifies() {
    let script = Script::up_to(0);
    let time = Time::new();
    let builder = |script: &Script| builder(script.clone(), &MemoryProgress::new()).clock(time.clock());
    let consumer = builder(&script).poll_every(HOUR).start(|_| Ok(())).unwrap();
    assert!(consumer.handle().wait_for(0, LONG));
    script.set_head(Some(1));
    time.steps(HOUR, "a look, though nobody rang", || consumer.handle().wait_for(1, Duration::ZERO));
    consumer.stop().unwrap();

    let silent = Script::default().subscribing();
    let consumer = builder(&silent).start(|_| Ok(())).unwrap();
    let other = Script::default();
    let default = builder(&other).start(|_| Ok(())).unwrap();
    let polled = silent.calls();
    eventually("the first look", || polled.heads.load(Ordering::SeqCst) == 1);
    // Meanwhile another consumer, with the default interval, polls twice.
    time.steps(LIMIT, "two polls", || other.calls().heads.load(Ordering::SeqCst) >= 3);
    assert_eq!(polled.heads.load(Ordering::SeqCst), 1, "who rings is not polled");
    consumer.stop().unwrap();
    default.stop().unwrap();
}

#[test]
fn a_retry_rereads_the_job_and_holds_no_worker() {
    let script = Script::up_to(3).subscribing();
    let (worker, stage) = manual_worker();
    let progress = MemoryProgress::new();
    let consumer = builder(script.clone(), &progress).max_processing(1).retry(NOW).start_worker(worker).unwrap();
    let handle = consumer.handle();
    let first = stage.next();
    let reads = script.calls().reads.load(Ordering::SeqCst);
    script.gap(0);
    first.fail("once");
    let status = until(&handle, "the gap", |s| matches!(s.blocked, Blocked::Missing { index: 0 }));
    let second = stage.next();
    assert_eq!(second.index, 1, "the slot is free for others");
    assert_eq!((status.failed, handle.size()), (1, 2));
    script.fill(0);
    handle.check();
    until(&handle, "the second reading", |s| matches!(s.blocked, Blocked::Retrying { index: 0, .. }));
    second.succeed();
    let again = stage.next();
    assert_eq!((again.index, again.attempt), (0, 2), "a due retry goes before a new job");
    again.succeed();
    stage.next().succeed();
    stage.next().succeed();
    assert!(handle.wait_for(3, LONG));
    assert!(script.calls().reads.load(Ordering::SeqCst) >= reads + 2);
    consumer.stop().unwrap();
}

#[test]
fn a_retry_whose_job_is_gone_halts() {
    let script = Script::up_to(5);
    let (worker, stage) = manual_worker();
    let consumer =
        builder(script.clone(), &MemoryProgress::new()).max_processing(1).retry(NOW).start_worker(worker).unwrap();
    let job = stage.next();
    script.set_first(3);
    job.fail("once");
    // Job 1 was read before, and may run.
    drop(stage);
    assert!(matches!(consumer.join(), Err(Error::Truncated { next: 0, first: 3 })));
}

#[test]
fn stop_at_ends_at_once_or_waits_for_the_head() {
    let progress = MemoryProgress::new();
    let jobs = numbers(5);
    builder(jobs.clone(), &progress).stop_at(3).start(|_| Ok(())).unwrap().join().unwrap();
    assert_eq!(progress.last_processed(), Some(3));
    builder(jobs.clone(), &progress).stop_at(2).start(|_| panic!("done already")).unwrap().join().unwrap();
    let consumer = builder(jobs.clone(), &progress).stop_at(5).start(|_| Ok(())).unwrap();
    let handle = consumer.handle();
    assert!(handle.wait_for(4, LONG));
    assert!(!handle.wait_for(6, LONG), "never, and that is said at once");
    assert_eq!(handle.status().state, State::Running);
    jobs.push(5);
    jobs.push(6);
    consumer.join().unwrap();
    assert_eq!((progress.last_processed(), handle.status().state), (Some(5), State::Finished));
}

#[test]
fn a_stop_awaits_no_retry_and_keeps_saving() {
    let (worker, stage) = manual_worker();
    let progress = MemoryProgress::new();
    let consumer =
        builder(numbers(9), &progress).max_processing(3).retry(Retry::fixed(HOUR)).start_worker(worker).unwrap();
    let handle = consumer.handle();
    let mut running = stage.take(3);
    handle.request_stop();
    until(&handle, "the stop", |s| s.state == State::Stopping);
    running.remove(&0).unwrap().succeed();
    assert!(handle.wait_for(0, LONG), "saved, though others still run");
    running.remove(&1).unwrap().fail("with attempts left");
    assert!(!handle.wait_for(5, LONG), "never started, and that is said at once");
    running.remove(&2).unwrap().succeed();
    consumer.stop().unwrap();
    assert_eq!(progress.last_processed(), Some(0));
}

#[test]
fn a_last_save_failing_twice_is_the_error_of_stop() {
    let progress = FaultyProgress::in_memory();
    let consumer = Consumer::builder(numbers(3), progress.clone()).start(|_| Ok(())).unwrap();
    assert!(consumer.handle().wait_for(2, LONG));
    consumer.stop().unwrap();

    let progress = FaultyProgress::in_memory();
    progress.faults().fail(..);
    let consumer = Consumer::builder(numbers(3), progress.clone()).start(|_| Ok(())).unwrap();
    until(&consumer.handle(), "the work", |s| s.done == 3);
    let handle = consumer.handle();
    let error = consumer.stop().unwrap_err();
    assert!(matches!(&error, Error::Progress { source } if source.to_string().contains("the disk")), "{error:?}");
    let status = handle.status();
    assert_eq!((status.state, status.done_ahead), (State::Halted, 3));
    assert!(matches!(status.blocked, Blocked::Halted { index: 0, .. }), "{status:?}");
    assert!(progress.faults().writes() >= 2);
    progress.faults().heal();
    // The name is free, and the unsaved jobs run again.
    Consumer::builder(numbers(3), progress.clone()).stop_at(2).start(|_| Ok(())).unwrap().join().unwrap();
    assert_eq!(progress.last_processed(), Some(2));
}

#[test]
fn stop_within_keeps_the_name_for_its_stragglers() {
    let (worker, stage) = manual_worker();
    let progress = MemoryProgress::new();
    let script = Script::up_to(9);
    let consumer = builder(script.clone(), &progress).max_processing(3).start_worker(worker).unwrap();
    let handle = consumer.handle();
    let mut running = stage.take(3);
    running.remove(&0).unwrap().succeed();
    let third = stage.next();
    let error = consumer.stop_within(LIMIT).unwrap_err();
    assert!(matches!(&error, Error::StopTimeout { running } if *running == [1, 2, 3]), "{error:?}");
    assert_eq!((progress.last_processed(), handle.status().state), (Some(0), State::Finished));
    assert!(matches!(builder(numbers(1), &progress).start(|_| Ok(())), Err(Error::InUse { .. })));
    running.into_values().for_each(StartedJob::succeed);
    assert!(matches!(builder(numbers(1), &progress).start(|_| Ok(())), Err(Error::InUse { .. })));
    third.succeed();
    eventually("the name", || builder(numbers(1), &progress).start(|_| Ok(())).is_ok());
    assert_eq!(progress.last_processed(), Some(0), "what came too late does not count");
    assert_eq!(handle.status().done, 1);

    let consumer = builder(numbers(9), &progress).start(|_| Ok(())).unwrap();
    assert!(consumer.handle().wait_for(8, LONG));
    consumer.stop_within(LONG).unwrap();
}

#[test]
fn stop_within_leaves_a_hanging_source() {
    let script = Script::up_to(9);
    let gate = script.gated();
    let progress = MemoryProgress::new();
    let consumer = builder(script.clone(), &progress).start(|_| Ok(())).unwrap();
    gate.wait_for("at_index");
    let error = consumer.stop_within(LIMIT).unwrap_err();
    assert!(matches!(&error, Error::StopTimeout { running } if running.is_empty()), "{error:?}");
    assert!(error.to_string().contains("source"), "{error}");
    script.ungate();
    drop(gate);
    eventually("the name", || builder(numbers(1), &progress).start(|_| Ok(())).is_ok());
}

#[test]
fn stop_within_says_that_a_save_hangs() {
    let progress = FaultyProgress::in_memory();
    let hold = progress.faults().hold();
    let time = Time::new();
    let builder = Consumer::builder(numbers(3), progress.clone()).clock(time.clock());
    let consumer = builder.start(|_| Ok(())).unwrap();
    hold.wait();
    let status =
        time.until(SECOND, &consumer.handle(), "the silence", |s| matches!(s.blocked, Blocked::Progress { .. }));
    assert!(status.blocked.to_string().contains("not returned"), "{}", status.blocked);
    let error = consumer.stop_within(LIMIT).unwrap_err();
    assert!(matches!(error, Error::Progress { .. }), "{error:?}");
    drop(hold);
}

#[test]
fn a_missing_job_is_asked_for_without_a_wake_or_poll() {
    for never_polled in [false, true] {
        // The head is there before its job, and no wake comes for the job.
        let (script, time) = (Script::up_to(0).subscribing(), Time::new());
        script.gap(0);
        let builder = builder(script.clone(), &MemoryProgress::new()).clock(time.clock());
        let builder = if never_polled { builder.poll_every(Duration::MAX) } else { builder };
        let consumer = builder.start(|_| Ok(())).unwrap();
        let handle = consumer.handle();
        until(&handle, "the gap", |s| matches!(s.blocked, Blocked::Missing { index: 0 }));
        script.fill(0);
        time.steps(LIMIT, "the job", || handle.wait_for(0, Duration::ZERO));
        consumer.stop().unwrap();
    }
}

#[test]
fn a_finished_run_needs_nothing_of_its_source() {
    let progress = MemoryProgress::new();
    let script = Script::up_to(20);
    builder(script.clone(), &progress).stop_at(5).start(|_| Ok(())).unwrap().join().unwrap();
    script.set_first(9);
    builder(script.clone(), &progress).stop_at(5).start(|_| Ok(())).unwrap().join().unwrap();
    let further = builder(script, &progress).stop_at(6).start(|_| Ok(()));
    assert!(matches!(further, Err(Error::Truncated { next: 6, first: 9 })));
}

#[test]
fn threads_of_deferred_jobs_follow_the_limit() {
    let (blocked, barrier) = (Arc::new(AtomicU64::new(0)), Arc::new(std::sync::Barrier::new(2)));
    let consumer = builder(numbers(2), &MemoryProgress::new())
        .max_processing(1)
        .threads(2)
        .stop_at(1)
        .start_deferred({
            let blocked = blocked.clone();
            move |_, done| {
                blocked.fetch_add(1, Ordering::SeqCst);
                barrier.wait();
                done.complete();
            }
        })
        .unwrap();
    eventually("the first", || blocked.load(Ordering::SeqCst) == 1);
    consumer.handle().set_max_processing(2).unwrap();
    consumer.join().unwrap();
}

#[test]
fn stop_in_a_callback_of_a_deferred_job_only_asks() {
    let slot = Arc::new(Mutex::new(None::<Consumer>));
    let (hand, handed) = crossbeam_channel::unbounded();
    let consumer = builder(numbers(1), &MemoryProgress::new())
        .on_job_done({
            let slot = slot.clone();
            move |_| assert!(matches!(slot.lock().take().unwrap().stop(), Err(Error::Config(_))))
        })
        .start_deferred(move |_, done| hand.send(done).unwrap())
        .unwrap();
    let handle = consumer.handle();
    *slot.lock() = Some(consumer);
    handed.recv_timeout(LONG).unwrap().complete();
    until(&handle, "the end", |s| s.state == State::Finished && s.done == 1);
}

#[test]
fn a_handle_after_the_end_shows_the_last_values() {
    let progress = MemoryProgress::new();
    let script = Script::up_to(4);
    let consumer = builder(script.clone(), &progress).stop_at(4).start(|_| Ok(())).unwrap();
    let handle = consumer.handle();
    consumer.join().unwrap();
    let before = handle.status();
    handle.check();
    handle.pause();
    handle.request_stop();
    assert_eq!((handle.last_processed_index(), handle.size(), script.owners()), (Some(4), 0, 0));
    assert_eq!((before.head, before.next, before.done, before.state), (Some(4), 5, 5, State::Finished));
    assert_eq!(handle.status(), before);
    assert!(handle.wait_for(4, HOUR) && !handle.wait_for(5, HOUR));
    assert!(matches!(handle.set_max_processing(3), Err(Error::Stopped)));
}

#[test]
fn pause_starts_nothing_and_does_not_nest() {
    let (worker, stage) = manual_worker();
    let progress = MemoryProgress::new();
    let jobs = numbers(3);
    let consumer = builder(jobs.clone(), &progress).max_processing(1).retry(NOW).start_worker(worker).unwrap();
    let handle = consumer.handle();
    let first = stage.next();
    handle.pause();
    handle.pause();
    assert_eq!(handle.status().state, State::Paused);
    assert!(matches!(handle.status().blocked, Blocked::Running { index: 0, .. }), "running ones go on");
    first.succeed();
    assert!(handle.wait_for(0, LONG), "and are saved");
    jobs.push(3);
    let status = until(&handle, "the new head", |s| s.head == Some(3));
    assert_eq!((status.blocked, status.processing), (Blocked::Paused, 0));
    handle.resume();
    let second = stage.next();
    handle.pause();
    second.fail("once");
    until(&handle, "the failure", |s| s.failed == 1);
    assert!(stage.is_quiet(), "nor does a retry start");
    handle.resume();
    let next = stage.next();
    handle.pause();
    next.succeed();
    consumer.stop().unwrap();
    assert_eq!(handle.status().state, State::Finished, "stop works while paused");
}

#[test]
fn halted_outranks_paused() {
    let (worker, stage) = manual_worker();
    let consumer = builder(numbers(3), &MemoryProgress::new()).max_processing(1).start_worker(worker).unwrap();
    let handle = consumer.handle();
    let job = stage.next();
    handle.pause();
    job.fail("no");
    until(&handle, "the halt", |s| s.state == State::Halted);
    assert!(consumer.join().is_err());
}

#[test]
fn lowering_a_limit_stops_no_running_job() {
    let (worker, stage) = manual_worker();
    let progress = MemoryProgress::new();
    let consumer = builder(numbers(100), &progress).max_processing(4).max_search_ahead(4).start_worker(worker).unwrap();
    let handle = consumer.handle();
    let mut running = stage.take(4);
    handle.set_max_processing(1).unwrap();
    handle.set_max_search_ahead(2).unwrap();
    assert_eq!(handle.status().processing, 4);
    for index in [3, 2, 1] {
        running.remove(&index).unwrap().succeed();
    }
    until(&handle, "one left", |s| s.processing == 1);
    running.remove(&0).unwrap().succeed();
    let only = stage.next();
    assert_eq!(only.index, 4);
    assert!(handle.wait_for(3, LONG));
    assert!(stage.is_quiet());
    handle.set_max_processing(3).unwrap();
    let second = stage.next();
    assert_eq!((second.index, handle.status().next), (5, 6), "6 is above the window of two");
    handle.set_max_search_ahead(u64::MAX).unwrap();
    let third = stage.next();
    assert_eq!(third.index, 6);
    assert!(matches!(handle.set_max_processing(0), Err(Error::Config(_))));
    assert!(matches!(handle.set_max_search_ahead(0), Err(Error::Config(_))));
    handle.request_stop();
    [only, second, third].into_iter().for_each(StartedJob::succeed);
    consumer.stop().unwrap();
}

#[test]
fn a_busy_on_processed_is_merged_and_delays_no_save() {
    let progress = MemoryProgress::new();
    let (enter, entered) = crossbeam_channel::unbounded();
    let (pass, passed) = crossbeam_channel::unbounded::<()>();
    // The first call covers all that was saved before it, however late its thread runs.
    let (go, gone) = crossbeam_channel::bounded::<()>(0);
    let consumer = builder(numbers(100), &progress)
        .max_search_ahead(10)
        .stop_at(99)
        .on_processed(move |run| {
            enter.send(run).unwrap();
            let _ = passed.recv();
        })
        .start(move |job| {
            if job.index == 10 {
                let _ = gone.recv();
            }
            Ok(())
        })
        .unwrap();
    let handle = consumer.handle();
    let first = entered.recv_timeout(LONG).unwrap();
    drop(go);
    assert!(handle.wait_for(99, LONG), "saves go on");
    assert_eq!(*first.start(), 0);
    drop(pass);
    let second = entered.recv_timeout(LONG).unwrap();
    assert_eq!(second, first.end() + 1..=99, "all of the rest, in one call");
    consumer.join().unwrap();
    assert!(entered.is_empty());
}

#[test]
fn a_worker_trait_works_and_sources_may_be_shared() {
    struct Sum(AtomicU64);
    impl Worker<u64> for Sum {
        fn run(&self, job: Job<u64>) -> Result<(), BoxError> {
            self.0.fetch_add(job.payload, Ordering::SeqCst);
            Ok(())
        }
    }
    let sum = Arc::new(Sum(AtomicU64::new(0)));
    let jobs: Arc<dyn Jobs<Job = u64>> = Arc::new(numbers(101));
    Consumer::builder(jobs, MemoryProgress::new()).stop_at(100).start_worker(sum.clone()).unwrap().join().unwrap();
    assert_eq!(sum.0.load(Ordering::SeqCst), 5050);
}

#[test]
fn two_stages_chain_by_hand() {
    // The first stage fills the source of the second.
    let squares = MemoryJobs::new();
    let made = squares.clone();
    let first = builder(numbers(100), &MemoryProgress::new())
        .max_search_ahead(1)
        .start(move |job| {
            made.push(job.payload * job.payload);
            Ok(())
        })
        .unwrap();
    let sum = Arc::new(AtomicU64::new(0));
    let total = sum.clone();
    let second = Consumer::builder(squares, MemoryProgress::new())
        .stop_at(99)
        .start(move |job| {
            total.fetch_add(job.payload, Ordering::SeqCst);
            Ok(())
        })
        .unwrap();
    second.join().unwrap();
    first.stop().unwrap();
    assert_eq!(sum.load(Ordering::SeqCst), (0..100).map(|n| n * n).sum::<u64>());
}
