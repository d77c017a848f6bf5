//! User code that misbehaves, or does what is allowed at the worst moment: nothing hangs, and
//! nothing is lost.

use common::*;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use waterline::{
    Blocked, BoxError, Consumer, Done, Error, Handle, Index, Jobs, MemoryJobs, MemoryProgress, Retry, State, Store,
    Worker,
};

const NOW: Retry = Retry::fixed(Duration::ZERO);

#[test]
fn a_job_already_read_starts_while_the_source_hangs() {
    let script = Script::up_to(9).subscribing();
    let (worker, stage) = manual_worker();
    let consumer = builder(script.clone(), &MemoryProgress::new()).max_processing(2).start_worker(worker).unwrap();
    let handle = consumer.handle();
    let mut running = stage.take(2);
    handle.pause();
    running.remove(&1).unwrap().succeed();
    until(&handle, "one done ahead", |s| s.done_ahead == 1);
    let gate = script.gated();
    handle.check();
    gate.wait_for("head");
    handle.resume();
    let next = stage.next();
    assert_eq!(next.index, 2, "a worker is free, and this job was read long ago");
    script.ungate();
    drop(gate);
    handle.request_stop();
    next.succeed();
    running.into_values().for_each(StartedJob::succeed);
    consumer.stop().unwrap();
}

#[test]
fn failing_jobs_delay_neither_new_jobs_nor_looks() {
    let script = Script::up_to(40).subscribing();
    let consumer = builder(script.clone(), &MemoryProgress::new())
        .max_processing(4)
        .retry(NOW)
        .start(|job| if job.index < 3 { Err("always".into()) } else { Ok(()) })
        .unwrap();
    let handle = consumer.handle();
    until(&handle, "all others", |s| s.done_ahead == 38);
    script.set_head(Some(50));
    handle.check();
    until(&handle, "the new ones", |s| s.done_ahead == 48);
    consumer.stop().unwrap();
}

#[test]
fn an_unreadable_retry_delays_no_other_read() {
    let script = Script::up_to(u64::MAX - 1);
    let (worker, stage) = manual_worker();
    let consumer = builder(script.clone(), &MemoryProgress::new())
        .max_processing(2)
        .unlimited_search_ahead()
        .retry(NOW)
        .start(move |job| if job.index == 0 { worker.run(job) } else { Ok(()) })
        .unwrap();
    let first = stage.next();
    script.fail_at(0, Fault::Error);
    first.fail("once");
    until(&consumer.handle(), "the error", |s| matches!(s.blocked, Blocked::Source { index: 0, .. }));
    script.heal();
    // The backlog is endless, so the retry cannot wait for its end.
    let again = stage.next();
    assert_eq!((again.index, again.attempt), (0, 2));
    again.succeed();
    consumer.stop().unwrap();
}

#[test]
fn a_source_that_hangs_on_a_retry_is_named() {
    let script = Script::up_to(0).subscribing();
    let (worker, stage) = manual_worker();
    let time = Time::new();
    let builder = builder(script.clone(), &MemoryProgress::new()).clock(time.clock()).retry(NOW);
    let consumer = builder.start_worker(worker).unwrap();
    let handle = consumer.handle();
    let first = stage.next();
    let gate = script.gated();
    first.fail("once");
    gate.wait_for("at_index");
    time.until(Duration::from_secs(1), &handle, "the silence", |s| {
        matches!(s.blocked, Blocked::Source { index: 0, .. })
    });
    script.ungate();
    drop(gate);
    stage.next().succeed();
    consumer.stop().unwrap();
}

struct Hostile {
    on_display: Box<dyn Fn() + Send + Sync>,
    on_drop: Box<dyn Fn() + Send + Sync>,
}

impl Hostile {
    fn new(on_display: impl Fn() + Send + Sync + 'static, on_drop: impl Fn() + Send + Sync + 'static) -> Self {
        Self { on_display: Box::new(on_display), on_drop: Box::new(on_drop) }
    }
}

impl fmt::Display for Hostile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.on_display)();
        write!(f, "hostile")
    }
}

impl fmt::Debug for Hostile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Hostile {}

impl Drop for Hostile {
    fn drop(&mut self) {
        (self.on_drop)();
    }
}

#[test]
fn an_error_may_use_the_handle_in_display_and_drop() {
    let slot = Arc::new(Mutex::new(None::<Handle>));
    let jobs = MemoryJobs::new();
    let ask = |slot: &Arc<Mutex<Option<Handle>>>| {
        let slot = slot.clone();
        move || {
            let handle = slot.lock().clone().expect("set before the first job");
            let _ = (handle.status(), handle.size(), handle.check());
        }
    };
    for retry in [NOW.max_attempts(3), Retry::none()] {
        let progress = MemoryProgress::new();
        let source = slot.clone();
        let consumer = builder(jobs.clone(), &progress)
            .max_processing(1)
            .retry(retry)
            .start(move |_| Err(Hostile::new(ask(&source), ask(&source)).into()))
            .unwrap();
        *slot.lock() = Some(consumer.handle());
        jobs.push(());
        assert!(matches!(consumer.join(), Err(Error::Job { index: 0, .. })));
    }
}

/// An error that owns values, as that of a channel without a receiver owns what was sent.
struct Unsent(#[expect(dead_code, reason = "it is there to be dropped")] Vec<Done>);

impl fmt::Debug for Unsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unsent")
    }
}

impl fmt::Display for Unsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unsent")
    }
}

impl std::error::Error for Unsent {}

#[test]
fn an_error_may_own_the_tokens_of_other_jobs() {
    let batch = Arc::new(Mutex::new(Vec::new()));
    let consumer = builder(numbers(4), &MemoryProgress::new())
        .max_processing(4)
        .threads(1)
        .retry(Retry::fixed(HOUR))
        .start_deferred(move |job, done| {
            let mut batch = batch.lock();
            if job.index == 3 { done.fail(Unsent(std::mem::take(&mut *batch))) } else { batch.push(done) }
        })
        .unwrap();
    until(&consumer.handle(), "all failures", |s| s.failed == 4 && s.processing == 0);
    consumer.stop().unwrap();
}

#[test]
fn a_panic_in_display_or_drop_kills_no_thread() {
    let calm = || {};
    let texts: [fn() -> BoxError; 2] = [
        || Hostile::new(|| panic!("in the text"), || {}).into(),
        || Hostile::new(|| {}, || panic!("in the destructor")).into(),
    ];
    for make in texts {
        let progress = MemoryProgress::new();
        let consumer = builder(numbers(6), &progress)
            .max_processing(2)
            .retry(NOW)
            .stop_at(5)
            .start(move |job| if job.attempt < 3 { Err(make()) } else { Ok(()) })
            .unwrap();
        consumer.join().unwrap();
        assert_eq!(progress.last_processed(), Some(5));
    }
    // Now as the payload of a panic, and in a job that never runs.
    let progress = MemoryProgress::new();
    let consumer = builder(numbers(3), &progress)
        .retry(NOW)
        .stop_at(2)
        .start(move |job| {
            if job.attempt == 1 {
                std::panic::panic_any(Hostile::new(calm, || panic!("in the destructor")));
            }
            Ok(())
        })
        .unwrap();
    consumer.join().unwrap();
    let unread: MemoryJobs<Arc<Mutex<Option<Hostile>>>> =
        (0..5).map(|_| Arc::new(Mutex::new(Some(Hostile::new(calm, || panic!("in the destructor")))))).collect();
    let consumer = builder(Taking(unread), &MemoryProgress::new())
        .max_processing(1)
        .start(|_| Err("the first halts".into()))
        .unwrap();
    assert!(matches!(consumer.join(), Err(Error::Job { index: 0, .. })));
}

/// Takes the values out of its jobs, so that the consumer is their last owner.
struct Taking(MemoryJobs<Arc<Mutex<Option<Hostile>>>>);

impl Jobs for Taking {
    type Job = Option<Hostile>;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        self.0.head()
    }

    fn at_index(&self, index: Index) -> Result<Option<Option<Hostile>>, BoxError> {
        Ok(self.0.at_index(index)?.map(|job| job.lock().take()))
    }
}

#[test]
fn the_longest_durations_never_run_out() {
    let jobs = numbers(1);
    let progress = MemoryProgress::new();
    let consumer = builder(jobs.clone(), &progress)
        .poll_every(Duration::MAX)
        .retry(Retry::fixed(Duration::MAX).jitter(1e-20))
        .start(|job| if job.index == 5 { Err("once".into()) } else { Ok(()) })
        .unwrap();
    let handle = consumer.handle();
    assert!(handle.wait_for(0, Duration::MAX));
    for n in 1..6 {
        jobs.push(n);
    }
    until(&handle, "the failure", |s| matches!(s.blocked, Blocked::Retrying { index: 5, .. }));
    consumer.stop_within(Duration::MAX).unwrap();
}

#[test]
fn a_callbacks_drop_may_use_the_handle_at_stop_within() {
    let slot = Arc::new(Mutex::new(None::<Handle>));
    let asks = slot.clone();
    let hostile = Hostile::new(|| {}, move || drop(asks.lock().clone().map(|handle| handle.status())));
    let (hand, handed) = crossbeam_channel::unbounded();
    let consumer = builder(numbers(1), &MemoryProgress::new())
        .on_job_done(move |_| {
            let _ = &hostile;
        })
        .start_deferred(move |_, done| hand.send(done).unwrap())
        .unwrap();
    *slot.lock() = Some(consumer.handle());
    let done = handed.recv_timeout(LONG).unwrap();
    assert!(matches!(consumer.stop_within(Duration::ZERO), Err(Error::StopTimeout { .. })));
    done.complete();
}

#[test]
fn panicking_destructors_cost_no_running_job() {
    struct Source(#[expect(dead_code, reason = "it is there to be dropped")] Hostile);
    impl Jobs for Source {
        type Job = Index;
        fn head(&self) -> Result<Option<Index>, BoxError> {
            Ok(Some(0))
        }
        fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
            Ok(Some(index))
        }
    }
    let bomb = || Hostile::new(|| {}, || panic!("in the destructor"));
    for _ in 0..20 {
        let (worker, stage) = manual_worker();
        let (in_worker, in_callback, in_news) = (bomb(), bomb(), bomb());
        let progress = MemoryProgress::new();
        let consumer = builder(Source(bomb()), &progress)
            .on_job_done(move |_| {
                let _ = &in_callback;
            })
            .on_processed(move |_| {
                let _ = &in_news;
            })
            .start(move |job| {
                let _ = &in_worker;
                worker.run(job)
            })
            .unwrap();
        let job = stage.next();
        consumer.handle().request_stop();
        job.succeed();
        consumer.stop().unwrap();
        assert_eq!(progress.last_processed(), Some(0));
    }
}

#[test]
fn both_closures_of_ordered_jobs_may_panic_in_drop() {
    let bomb = || Hostile::new(|| {}, || panic!("in the destructor"));
    let (in_work, in_sink) = (bomb(), bomb());
    let progress = MemoryProgress::new();
    let consumer = builder(numbers(3), &progress).stop_at(2).start_ordered(
        move |_| {
            let _ = &in_work;
            Ok(())
        },
        move |_, ()| {
            let _ = &in_sink;
            Ok(())
        },
    );
    consumer.unwrap().join().unwrap();
    assert_eq!(progress.last_processed(), Some(2));
}

#[test]
fn a_consumer_may_own_another_one_on_the_same_store() {
    let store = Store::in_memory();
    let inner = Consumer::builder(numbers(10), store.progress("inner")).start(|_| Ok(())).unwrap();
    let end_of_inner = inner.handle();
    let outer = Consumer::builder(numbers(10), store.progress("outer"))
        .stop_at(9)
        .on_job_done(move |_| {
            let _ = &inner;
        })
        .start(|_| Ok(()))
        .unwrap();
    outer.join().unwrap();
    assert_eq!(end_of_inner.status().state, State::Finished, "dropped with the callback that owned it");
    Consumer::builder(numbers(3), store.progress("third")).stop_at(2).start(|_| Ok(())).unwrap().join().unwrap();
}

#[test]
fn a_closure_may_own_its_own_consumer() {
    let slot = Arc::new(Mutex::new(None::<Consumer>));
    let owner = slot.clone();
    let consumer = builder(numbers(3), &MemoryProgress::new())
        .start(move |_| {
            let _ = &owner;
            Ok(())
        })
        .unwrap();
    let handle = consumer.handle();
    *slot.lock() = Some(consumer);
    drop(slot);
    handle.request_stop();
    until(&handle, "the end", |s| s.state == State::Finished);
}

#[derive(Clone)]
struct Holding(Script, Arc<()>);

impl Jobs for Holding {
    type Job = Arc<()>;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        self.0.head()
    }

    fn at_index(&self, index: Index) -> Result<Option<Arc<()>>, BoxError> {
        Ok(self.0.at_index(index)?.map(|_| self.1.clone()))
    }
}

#[test]
fn jobs_read_while_stopping_are_dropped() {
    let sentinel = Arc::new(());
    let script = Script::up_to(50);
    let gate = script.gated();
    let consumer =
        builder(Holding(script.clone(), sentinel.clone()), &MemoryProgress::new()).start(|_| Ok(())).unwrap();
    let handle = consumer.handle();
    gate.wait_for("at_index");
    handle.request_stop();
    until(&handle, "the end", |s| s.state == State::Finished);
    script.ungate();
    drop(gate);
    consumer.stop().unwrap();
    assert_eq!(Arc::strong_count(&sentinel), 1, "though a handle is left");
    drop(handle);
}

#[test]
fn wait_for_returns_once_its_index_cannot_come() {
    let (worker, stage) = manual_worker();
    let consumer = builder(numbers(3), &MemoryProgress::new())
        .max_processing(3)
        .retry(Retry::fixed(HOUR))
        .start_worker(worker)
        .unwrap();
    let handle = consumer.handle();
    let mut running = stage.take(3);
    handle.request_stop();
    let waiting = {
        let handle = handle.clone();
        std::thread::spawn(move || handle.wait_for(2, HOUR))
    };
    running.remove(&1).unwrap().fail("and it is not awaited");
    assert!(!waiting.join().unwrap());
    running.into_values().for_each(StartedJob::succeed);
    consumer.stop().unwrap();
}

#[test]
fn wait_for_counts_on_running_jobs_at_a_callback_halt() {
    let (worker, stage) = manual_worker();
    let progress = MemoryProgress::new();
    let consumer = builder(numbers(4), &progress)
        .max_processing(4)
        .on_processed(|_| panic!("at once"))
        .start_worker(worker)
        .unwrap();
    let handle = consumer.handle();
    let mut running = stage.take(4);
    running.remove(&0).unwrap().succeed();
    until(&handle, "the halt", |s| s.state == State::Halted);
    let waiting = {
        let handle = handle.clone();
        std::thread::spawn(move || handle.wait_for(3, LONG))
    };
    running.into_values().for_each(StartedJob::succeed);
    assert!(waiting.join().unwrap());
    assert!(matches!(consumer.join(), Err(Error::Callback { index: 0, .. })));
}

#[test]
fn no_retry_starts_above_a_narrowed_window() {
    let (worker, stage) = manual_worker();
    let consumer =
        builder(numbers(9), &MemoryProgress::new()).max_processing(4).retry(NOW).start_worker(worker).unwrap();
    let handle = consumer.handle();
    let mut running = stage.take(4);
    handle.set_max_search_ahead(2).unwrap();
    running.remove(&3).unwrap().fail("above the window now");
    running.remove(&1).unwrap().fail("within it");
    let again = stage.next();
    assert_eq!((again.index, again.attempt), (1, 2));
    assert!(stage.is_quiet());
    again.succeed();
    running.remove(&0).unwrap().succeed();
    let again = stage.next();
    assert_eq!((again.index, again.attempt), (3, 2));
    handle.request_stop();
    again.succeed();
    running.remove(&2).unwrap().succeed();
    consumer.stop().unwrap();
}

#[test]
fn stop_within_names_stragglers_after_a_halt() {
    let (worker, stage) = manual_worker();
    let consumer = builder(numbers(2), &MemoryProgress::new()).max_processing(2).start_worker(worker).unwrap();
    let handle = consumer.handle();
    let mut running = stage.take(2);
    running.remove(&1).unwrap().fail("no");
    until(&handle, "the halt", |s| s.state == State::Halted);
    let error = consumer.stop_within(LIMIT).unwrap_err();
    assert!(matches!(&error, Error::StopTimeout { running } if *running == [0]), "{error:?}");
    assert!(matches!(handle.status().blocked, Blocked::Halted { index: 1, .. }));
}

#[test]
fn stop_awaits_thread_locals_of_retired_threads() {
    struct Bye(Arc<AtomicU64>);
    impl Drop for Bye {
        fn drop(&mut self) {
            // A stop that did not wait would return meanwhile.
            std::thread::park_timeout(QUIET);
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    thread_local! {
        static CONNECTION: std::cell::RefCell<Option<Bye>> = const { std::cell::RefCell::new(None) };
    }
    let (opened, closed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let jobs = MemoryJobs::new();
    let consumer = builder(jobs.clone(), &MemoryProgress::new())
        .max_processing(4)
        .start({
            let (opened, closed) = (opened.clone(), closed.clone());
            move |_| {
                CONNECTION.with_borrow_mut(|connection| {
                    connection.get_or_insert_with(|| {
                        opened.fetch_add(1, Ordering::SeqCst);
                        Bye(closed.clone())
                    });
                });
                rest();
                Ok(())
            }
        })
        .unwrap();
    let handle = consumer.handle();
    for round in 0..20u64 {
        (0..50).for_each(|_| assert!(jobs.push(()) < Index::MAX));
        assert!(handle.wait_for(50 * round + 49, LONG));
        handle.set_max_processing(1 + round as usize % 4).unwrap();
    }
    consumer.stop().unwrap();
    assert_eq!(closed.load(Ordering::SeqCst), opened.load(Ordering::SeqCst));
}

#[test]
fn stop_within_leaves_a_hanging_thread_local() {
    struct Held(crossbeam_channel::Receiver<()>);
    impl Drop for Held {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }
    thread_local! {
        static HELD: std::cell::RefCell<Option<Held>> = const { std::cell::RefCell::new(None) };
    }
    let (hold, held) = crossbeam_channel::unbounded();
    let progress = MemoryProgress::new();
    let consumer = builder(numbers(3), &progress)
        .max_processing(1)
        .stop_at(2)
        .start(move |job| {
            if job.index == 2 {
                HELD.set(Some(Held(held.clone())));
            }
            Ok(())
        })
        .unwrap();
    let handle = consumer.handle();
    until(&handle, "the end", |s| s.state == State::Finished);
    let (answer, answered) = crossbeam_channel::bounded(1);
    std::thread::spawn(move || answer.send(consumer.stop_within(LIMIT)));
    let stopped = answered.recv_timeout(LONG);
    drop(hold);
    let error = stopped.expect("it does not wait for ever").unwrap_err();
    assert!(matches!(&error, Error::StopTimeout { running } if running.is_empty()), "{error:?}");
    assert_eq!(handle.last_processed_index(), Some(2));
    builder(numbers(3), &progress).start(|_| Ok(())).unwrap().stop().unwrap();
}

#[test]
fn wait_for_does_not_wait_for_abandoned_jobs() {
    let (worker, stage) = manual_worker();
    let progress = FaultyProgress::in_memory();
    let consumer = Consumer::builder(numbers(2), progress.clone()).max_processing(2).start_worker(worker).unwrap();
    let handle = consumer.handle();
    let mut running = stage.take(2);
    let hold = progress.faults().hold();
    running.remove(&0).unwrap().succeed();
    hold.wait();
    let error = consumer.stop_within(LIMIT).unwrap_err();
    assert!(matches!(&error, Error::StopTimeout { running } if *running == [1]), "{error:?}");
    assert!(!handle.wait_for(1, HOUR));
    assert!(matches!(handle.status().blocked, Blocked::Progress { .. }), "{:?}", handle.status());
    drop(hold);
}

#[test]
fn a_consumer_may_be_dropped_by_an_ending_thread() {
    thread_local! {
        static KEPT: std::cell::RefCell<Option<Consumer>> = const { std::cell::RefCell::new(None) };
    }
    let progress = MemoryProgress::new();
    let consumer = builder(numbers(3), &progress).start(|_| Ok(())).unwrap();
    let handle = consumer.handle();
    assert!(handle.wait_for(2, LONG));
    std::thread::spawn(move || {
        // Uses the library's thread-locals first, so that they are gone when the consumer drops.
        builder(numbers(1), &MemoryProgress::new()).start(|_| Ok(())).unwrap().stop().unwrap();
        KEPT.set(Some(consumer));
    })
    .join()
    .unwrap();
    assert_eq!(handle.status().state, State::Finished);
}

#[test]
fn a_consumer_may_be_dropped_by_its_own_ending_thread() {
    thread_local! {
        static KEPT: std::cell::RefCell<Option<Consumer>> = const { std::cell::RefCell::new(None) };
    }
    let progress = MemoryProgress::new();
    let (give, given) = crossbeam_channel::bounded::<Consumer>(1);
    let consumer = builder(numbers(1), &progress)
        .start(move |_| {
            let consumer = given.recv()?;
            consumer.handle().request_stop();
            KEPT.set(Some(consumer));
            Ok(())
        })
        .unwrap();
    let handle = consumer.handle();
    give.send(consumer).unwrap();
    // The name is free once the thread-local has dropped the consumer.
    eventually("the free name", || match builder(numbers(1), &progress).start(|_| Ok(())) {
        Ok(next) => next.stop().is_ok(),
        Err(Error::InUse { .. }) => false,
        Err(other) => panic!("{other}"),
    });
    assert_eq!((handle.status().state, handle.last_processed_index()), (State::Finished, Some(0)));
}

#[test]
fn many_short_lives_leave_nothing_behind() {
    let sentinel = Arc::new(AtomicU64::new(0));
    for life in 0..500u64 {
        let counter = sentinel.clone();
        let consumer = builder(numbers(20), &MemoryProgress::new())
            .max_processing(1 + life as usize % 5)
            .max_search_ahead(1 + life % 7)
            .retry(NOW)
            .start(move |job| {
                counter.fetch_add(1, Ordering::Relaxed);
                if (job.index + life) % 5 == 0 && job.attempt == 1 { Err("once".into()) } else { Ok(()) }
            })
            .unwrap();
        let handle = consumer.handle();
        let _ = handle.wait_for(life % 25, Duration::from_micros(life % 300));
        match life % 3 {
            0 => drop(consumer),
            1 => consumer.stop().unwrap(),
            _ => {
                handle.request_stop();
                consumer.join().unwrap();
            }
        }
        assert_eq!(Arc::strong_count(&sentinel), 1, "in life {life}");
    }
}
