//! Who calls the source: one thread at a time, whichever it is, and nothing is lost when that changes.

mod common;

use common::*;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use waterline::{Blocked, BoxError, Consumer, Error, Index, Jobs, MemoryProgress};

const MANY: u64 = 20_000;

/// Quick, and with opinions: it insists that one thread at a time calls it, and notes whose threads those are.
#[derive(Clone, Default)]
struct Quick(Arc<State>);

#[derive(Default)]
struct State {
    busy: AtomicBool,
    callers: parking_lot::Mutex<BTreeSet<String>>,
    /// Fails when this one is read, once.
    fails_at: AtomicU64,
    /// Is not there before the next look.
    gap_at: AtomicU64,
    /// Hangs at this one until the test lets go.
    hangs_at: AtomicU64,
    first: AtomicU64,
}

impl Quick {
    fn new() -> Self {
        let quick = Self::default();
        for at in [&quick.0.fails_at, &quick.0.gap_at, &quick.0.hangs_at] {
            at.store(Index::MAX, Ordering::SeqCst);
        }
        quick
    }

    fn call<R>(&self, run: impl FnOnce() -> R) -> R {
        assert!(!self.0.busy.swap(true, Ordering::SeqCst), "two threads call the source at once");
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        self.0.callers.lock().insert(name);
        let result = run();
        self.0.busy.store(false, Ordering::SeqCst);
        result
    }

    fn callers(&self) -> Vec<String> {
        self.0.callers.lock().iter().cloned().collect()
    }
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
            Ok(Some(MANY - 1))
        })
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        Ok(Some(index))
    }

    fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<Index>) -> Result<(), BoxError> {
        self.call(|| {
            for index in run {
                while self.0.hangs_at.load(Ordering::SeqCst) == index {
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

/// Runs it to its end, while `meanwhile` steers; what was run, in order.
fn run(
    quick: &Quick,
    max_processing: usize,
    meanwhile: impl FnOnce(&waterline::Handle),
) -> (Vec<Index>, Result<(), Error>) {
    let ran = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let consumer = Consumer::builder(quick.clone(), MemoryProgress::new())
        .max_processing(max_processing)
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
    let mut ran = std::mem::take(&mut *ran.lock());
    ran.sort_unstable();
    (ran, ended)
}

#[test]
fn a_quick_source_is_read_by_the_workers_and_one_thread_at_a_time_calls_it() {
    for max_processing in [1, 4] {
        let quick = Quick::new();
        // Looks all the while, which are the reader's.
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
    // Whether they get to it is up to the machine; that they never do would be a bug.
    let quick = Quick::new();
    let reads = (0..50).any(|_| {
        run(&quick, 1, |_| ()).1.unwrap();
        quick.callers().contains(&"wl-worker".to_owned())
    });
    assert!(reads, "in fifty runs only {:?} called the source", quick.callers());
}

#[test]
fn what_a_worker_cannot_read_is_read_again_after_the_next_look() {
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
fn what_was_pruned_ahead_of_the_workers_halts_the_consumer() {
    let quick = Quick::new();
    quick.0.hangs_at.store(6_000, Ordering::SeqCst);
    let (ran, ended) = run(&quick, 1, |handle| {
        until(handle, "the hanging read", |status| status.next >= 5_900);
        quick.0.first.store(10_000, Ordering::SeqCst);
        quick.0.hangs_at.store(Index::MAX, Ordering::SeqCst);
    });
    assert!(matches!(ended, Err(Error::Truncated { first: 10_000, .. })), "{ended:?}");
    assert_eq!(ran, (0..ran.len() as u64).collect::<Vec<_>>());
}

#[test]
fn a_read_that_hangs_holds_up_nothing_that_is_read() {
    for max_processing in [1, 4] {
        let quick = Quick::new();
        quick.0.hangs_at.store(6_000, Ordering::SeqCst);
        let (ran, ended) = run(&quick, max_processing, |handle| {
            // Everything below the run that hangs is run, whoever it is that hangs.
            let status = until(handle, "all that was read", |status| {
                status.last_processed.is_some_and(|last| last + 1 == status.next) && status.next >= 5_900
            });
            assert!(matches!(status.blocked, Blocked::No | Blocked::Source { .. }), "{:?}", status.blocked);
            quick.0.hangs_at.store(Index::MAX, Ordering::SeqCst);
        });
        ended.unwrap();
        assert_eq!(ran, (0..MANY).collect::<Vec<_>>());
    }
}
