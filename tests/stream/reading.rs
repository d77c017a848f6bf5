//! Calls of the source: one thread at a time makes them, and nothing is lost when the thread
//! changes.

use common::*;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use waterline::{Blocked, BoxError, Consumer, Error, Index, Jobs, MemoryProgress};

const MANY: u64 = 20_000;

/// A quick source that notes which threads call it, and whether two ever do at once.
#[derive(Clone, Default)]
struct Quick(Arc<State>);

#[derive(Default)]
struct State {
    busy: AtomicBool,
    /// Whether two threads were in it at once. (A panic would be an error of the source, which is
    /// retried.)
    crowded: AtomicBool,
    callers: parking_lot::Mutex<BTreeSet<String>>,
    /// The index whose read fails once.
    fails_at: AtomicU64,
    /// The index that is missing until the next look.
    gap_at: AtomicU64,
    hangs: Arc<Hangs>,
    /// The thread whose call hangs, with the start of its run.
    hanging: parking_lot::Mutex<Option<(String, Index)>>,
    first: AtomicU64,
    on_drop: parking_lot::Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

#[derive(Default)]
struct Hangs {
    /// The index whose read hangs until the test changes this.
    at: AtomicU64,
    /// Whether `head` hangs, too.
    head: AtomicBool,
}

/// Releases all hanging calls when the test ends, even if it fails.
struct LetGo(Arc<Hangs>);

impl LetGo {
    fn reads(&self) {
        self.0.at.store(Index::MAX, Ordering::SeqCst);
    }
}

impl Drop for LetGo {
    fn drop(&mut self) {
        self.reads();
        self.0.head.store(false, Ordering::SeqCst);
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.on_drop.get_mut().take().into_iter().for_each(|on_drop| on_drop());
    }
}

impl Quick {
    fn new() -> Self {
        let quick = Self::default();
        for at in [&quick.0.fails_at, &quick.0.gap_at, &quick.0.hangs.at] {
            at.store(Index::MAX, Ordering::SeqCst);
        }
        quick
    }

    fn call<R>(&self, run: impl FnOnce() -> R) -> R {
        self.0.crowded.fetch_or(self.0.busy.swap(true, Ordering::SeqCst), Ordering::SeqCst);
        self.0.callers.lock().insert(this_thread());
        let result = run();
        self.0.busy.store(false, Ordering::SeqCst);
        result
    }

    #[track_caller]
    fn was_called_by_one_at_a_time(&self) {
        assert!(!self.0.crowded.load(Ordering::SeqCst), "two threads called the source at once");
    }

    fn callers(&self) -> Vec<String> {
        self.0.callers.lock().iter().cloned().collect()
    }
}

fn this_thread() -> String {
    std::thread::current().name().unwrap_or_default().to_owned()
}

fn take(at: &AtomicU64, index: Index) -> bool {
    at.compare_exchange(index, Index::MAX, Ordering::SeqCst, Ordering::SeqCst).is_ok()
}

impl Jobs for Quick {
    type Job = Index;

    fn first(&self) -> Result<Index, BoxError> {
        self.call(|| Ok(self.0.first.load(Ordering::SeqCst)))
    }

    fn head(&self) -> Result<Option<Index>, BoxError> {
        self.call(|| {
            self.0.gap_at.store(Index::MAX, Ordering::SeqCst);
            while self.0.hangs.head.load(Ordering::SeqCst) {
                std::thread::park_timeout(Duration::from_micros(200));
            }
            Ok(Some(MANY - 1))
        })
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        Ok(Some(index))
    }

    fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<Index>) -> Result<(), BoxError> {
        let start = *run.start();
        self.call(|| {
            for index in run {
                while self.0.hangs.at.load(Ordering::SeqCst) == index {
                    self.0.hanging.lock().get_or_insert_with(|| (this_thread(), start));
                    std::thread::park_timeout(Duration::from_micros(200));
                }
                if take(&self.0.fails_at, index) {
                    return Err("a hiccup".into());
                }
                if self.0.gap_at.load(Ordering::SeqCst) == index || index < self.0.first.load(Ordering::SeqCst) {
                    return Ok(());
                }
                into.push(index);
            }
            Ok(())
        })
    }
}

/// Runs the consumer to its end, while `meanwhile` steers. Returns the jobs that ran, in order.
fn run(
    quick: &Quick,
    max_processing: usize,
    meanwhile: impl FnOnce(&waterline::Handle),
) -> (Vec<Index>, Result<(), Error>) {
    let ran = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let consumer = Consumer::builder(quick.clone(), MemoryProgress::new())
        .max_processing(max_processing)
        // Real time, so that looks come while a worker reads.
        .poll_every(Duration::from_millis(5))
        .stop_at(MANY - 1)
        .start({
            let ran = ran.clone();
            move |job| {
                assert_eq!(job.index, job.payload);
                ran.lock().push(job.index);
                Ok(())
            }
        })
        .unwrap();
    meanwhile(&consumer.handle());
    let ended = consumer.join();
    quick.was_called_by_one_at_a_time();
    let mut ran = std::mem::take(&mut *ran.lock());
    ran.sort_unstable();
    (ran, ended)
}

#[test]
fn a_quick_source_is_read_by_one_worker_at_a_time() {
    for max_processing in [1, 4] {
        let quick = Quick::new();
        // Keeps the reader thread looking.
        let (ran, ended) = run(&quick, max_processing, |handle| {
            while !handle.wait_for(MANY - 1, Duration::ZERO) && handle.status().state == waterline::State::Running {
                handle.check();
            }
        });
        ended.unwrap();
        assert_eq!(ran, (0..MANY).collect::<Vec<_>>());
        assert!(quick.callers().contains(&"wl-reader".to_owned()), "{:?}", quick.callers());
    }
}

#[test]
fn workers_do_read_for_themselves() {
    // Whether workers read in one run depends on timing; that they never do is a bug.
    let quick = Quick::new();
    let reads = (0..50).any(|_| {
        run(&quick, 1, |_| ()).1.unwrap();
        quick.callers().contains(&"wl-worker".to_owned())
    });
    assert!(reads, "in fifty runs only {:?} called the source", quick.callers());
}

#[test]
fn an_unread_job_is_read_again_after_the_next_look() {
    for max_processing in [1, 4] {
        let quick = Quick::new();
        quick.0.fails_at.store(5_000, Ordering::SeqCst);
        quick.0.gap_at.store(11_111, Ordering::SeqCst);
        let (ran, ended) = run(&quick, max_processing, |_| ());
        ended.unwrap();
        assert_eq!(ran, (0..MANY).collect::<Vec<_>>(), "each once, in spite of an error and a gap");
    }
}

#[test]
fn a_source_pruned_ahead_of_the_workers_halts() {
    let quick = Quick::new();
    quick.0.hangs.at.store(6_000, Ordering::SeqCst);
    let (ran, ended) = run(&quick, 1, |handle| {
        until(handle, "the hanging read", |status| status.next >= 5_900);
        quick.0.first.store(10_000, Ordering::SeqCst);
        quick.0.hangs.at.store(Index::MAX, Ordering::SeqCst);
    });
    assert!(matches!(ended, Err(Error::Truncated { first: 10_000, .. })), "{ended:?}");
    assert_eq!(ran, (0..ran.len() as u64).collect::<Vec<_>>());
}

#[test]
fn a_hanging_read_delays_no_job_already_read() {
    for max_processing in [1, 4] {
        let quick = Quick::new();
        quick.0.hangs.at.store(6_000, Ordering::SeqCst);
        let (ran, ended) = run(&quick, max_processing, |handle| {
            // All jobs below the hanging run do run, whichever thread hangs.
            let status = until(handle, "all that was read", |status| {
                status.last_processed.is_some_and(|last| last + 1 == status.next) && status.next >= 5_900
            });
            assert!(matches!(status.blocked, Blocked::No | Blocked::Source { .. }), "{:?}", status.blocked);
            quick.0.hangs.at.store(Index::MAX, Ordering::SeqCst);
        });
        ended.unwrap();
        assert_eq!(ran, (0..MANY).collect::<Vec<_>>());
    }
}

/// Starts consumers of a quick source until a worker has hung in it this many times, and gives each
/// of these to `meanwhile`.
fn with_a_worker_that_hangs_in_the_source(times: usize, meanwhile: impl Fn(Quick, Consumer, LetGo)) {
    let met = (0..1_000).filter(|_| {
        let quick = Quick::new();
        quick.0.hangs.at.store(6_000, Ordering::SeqCst);
        let hangs = LetGo(quick.0.hangs.clone());
        let consumer = Consumer::builder(quick.clone(), MemoryProgress::new())
            .max_processing(1)
            .poll_every(HOUR)
            .stop_at(MANY - 1)
            .start(|_| Ok(()))
            .unwrap();
        eventually("the read that hangs", || quick.0.hanging.lock().is_some());
        let worker_hangs = quick.0.hanging.lock().as_ref().is_some_and(|(thread, _)| thread == "wl-worker");
        if worker_hangs {
            meanwhile(quick, consumer, hangs);
        } else {
            hangs.reads();
            consumer.stop().unwrap();
        }
        worker_hangs
    });
    assert!(met.take(times).count() > 0, "in a thousand runs no worker read");
}

/// Stops on another thread, so that a stop that hangs fails the test.
fn stopping(consumer: Consumer) -> impl FnOnce() -> Result<(), Error> {
    let (send, stopped) = crossbeam_channel::bounded(1);
    std::thread::spawn(move || send.send(consumer.stop()));
    move || stopped.recv_timeout(LONG).expect("it stops")
}

#[test]
fn the_sources_drop_may_use_the_handle() {
    with_a_worker_that_hangs_in_the_source(20, |quick, consumer, hangs| {
        let handle = consumer.handle();
        let dropped = Arc::new(AtomicU64::new(0));
        *quick.0.on_drop.lock() = Some(Box::new({
            let (handle, dropped) = (handle.clone(), dropped.clone());
            move || {
                let _ = handle.status();
                dropped.fetch_add(1, Ordering::SeqCst);
                panic!("and panics then");
            }
        }));
        let stopped = stopping(consumer);
        eventually("the end of all others", || handle.status().state == waterline::State::Finished);
        // Either this thread or the worker may then be the last owner of the source.
        std::thread::park_timeout(Duration::from_micros(fastrand::u64(0..3_000)));
        drop(quick);
        hangs.reads();
        stopped().unwrap();
        assert_eq!(dropped.load(Ordering::SeqCst), 1, "the source is gone when `stop` returns");
    });
}

#[test]
fn a_hanging_head_is_named_beside_a_reading_worker() {
    with_a_worker_that_hangs_in_the_source(2, |quick, consumer, hangs| {
        let handle = consumer.handle();
        quick.0.hangs.head.store(true, Ordering::SeqCst);
        handle.check();
        // The reader may or may not wait for its turn by then.
        std::thread::park_timeout(QUIET);
        hangs.reads();
        until(&handle, "the silence", |status| matches!(status.blocked, Blocked::Source { .. }));
        drop(hangs);
        consumer.stop().unwrap();
    });
}

#[test]
fn a_look_waits_for_the_reading_worker() {
    with_a_worker_that_hangs_in_the_source(10, |quick, consumer, hangs| {
        let handle = consumer.handle();
        handle.check();
        let start = quick.0.hanging.lock().as_ref().map(|(_, start)| *start);
        until(&handle, "all that was read", |status| status.last_processed == start.map(|start| start - 1));
        std::thread::park_timeout(QUIET);
        hangs.reads();
        consumer.join().unwrap();
        quick.was_called_by_one_at_a_time();
    });
}

#[test]
fn jobs_read_before_an_error_run_while_the_head_hangs() {
    with_a_worker_that_hangs_in_the_source(20, |quick, consumer, hangs| {
        let handle = consumer.handle();
        quick.0.hangs.head.store(true, Ordering::SeqCst);
        quick.0.fails_at.store(6_000, Ordering::SeqCst);
        handle.check();
        hangs.reads();
        // The read under way may have begun before the fault was set.
        until(&handle, "the jobs before the error", |status| status.last_processed >= Some(5_999));
        drop(hangs);
        consumer.join().unwrap();
    });
}
