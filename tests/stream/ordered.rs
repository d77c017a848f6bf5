//! Results reach the sink in order, whatever the order in which jobs finish.

use common::*;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use waterline::{Blocked, Consumer, Error, Handle, Index, MemoryProgress, Retry, State};

#[test]
fn a_waiting_result_frees_its_slot_for_earlier_jobs() {
    // When the first job is retried, the others of the window have finished: their results wait
    // and hold no slot.
    let taken = Arc::new(Mutex::new(Vec::new()));
    let sink = taken.clone();
    let time = Time::new();
    let consumer = builder(numbers(100), &MemoryProgress::new())
        .clock(time.clock())
        .max_processing(2)
        .max_search_ahead(20)
        .retry(Retry::fixed(HOUR))
        .stop_at(99)
        .start_ordered(
            |job| if job.index == 0 && job.attempt < 3 { Err("not yet".into()) } else { Ok(job.payload) },
            move |index, result| {
                assert_eq!(index, result);
                sink.lock().push(index);
                Ok(())
            },
        )
        .unwrap();
    let handle = consumer.handle();
    time.steps(HOUR, "all jobs", || handle.wait_for(99, Duration::ZERO));
    consumer.join().unwrap();
    assert_eq!(*taken.lock(), (0..100).collect::<Vec<_>>());
}

#[test]
fn promise_06_results_without_a_turn_are_not_awaited() {
    let consumer = builder(numbers(10), &MemoryProgress::new())
        .retry(Retry::fixed(HOUR))
        .start_ordered(|job| if job.index == 3 { Err("no".into()) } else { Ok(()) }, |_, ()| Ok(()))
        .unwrap();
    let handle = consumer.handle();
    until(&handle, "what waits", |status| (status.processing, status.next) == (0, 10));
    assert!(handle.wait_for(2, LONG));
    consumer.stop().unwrap();
    assert_eq!((handle.last_processed_index(), handle.status().state), (Some(2), State::Finished));
}

#[test]
fn promise_05_a_panicking_sink_fails_the_job() {
    let taken = Arc::new(Mutex::new(Vec::new()));
    let sink = taken.clone();
    let error = builder(numbers(10), &MemoryProgress::new())
        .start_ordered(
            |job| Ok(job.payload),
            move |index, _| {
                assert!(index < 4, "the sink is full");
                sink.lock().push(index);
                Ok(())
            },
        )
        .unwrap()
        .join()
        .unwrap_err();
    assert!(matches!(error, Error::Job { index: 4, attempt: 1, .. }), "{error:?}");
    assert!(error.report().contains("the sink is full"));
    assert_eq!(*taken.lock(), [0, 1, 2, 3]);
}

/// A result whose drop is counted and asks the consumer for its status. That of job 7 panics.
struct Fragile {
    index: Index,
    dropped: Arc<AtomicU64>,
    asks: Arc<Mutex<Option<Handle>>>,
}

impl Drop for Fragile {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
        let handle = self.asks.lock().clone();
        drop(handle.map(|handle| handle.status()));
        assert!(self.index != 7, "in the destructor of a result");
    }
}

/// A consumer whose sink is busy with result 0 until `go` is dropped, while the other results wait.
struct Busy {
    consumer: Consumer,
    handle: Handle,
    taken: Arc<Mutex<Vec<Index>>>,
    dropped: Arc<AtomicU64>,
    go: crossbeam_channel::Sender<()>,
}

/// Starts it. The job at `fails` fails once the test drops the returned sender.
fn busy(jobs: u64, fails: Option<Index>) -> (Busy, crossbeam_channel::Sender<()>) {
    let (taken, dropped) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicU64::new(0)));
    let (go, gone) = crossbeam_channel::bounded::<()>(0);
    let (fail, failed) = crossbeam_channel::bounded::<()>(0);
    let (took, sink_has) = crossbeam_channel::unbounded::<()>();
    let asks = Arc::new(Mutex::new(None));
    let consumer = builder(numbers(jobs), &MemoryProgress::new())
        .max_processing(2)
        .start_ordered(
            {
                let (dropped, asks) = (dropped.clone(), asks.clone());
                move |job| {
                    if Some(job.index) == fails {
                        let _ = failed.recv_timeout(LONG);
                        return Err("as the test wished".into());
                    }
                    Ok(Fragile { index: job.index, dropped: dropped.clone(), asks: asks.clone() })
                }
            },
            {
                let taken = taken.clone();
                move |index, mut result| {
                    taken.lock().push(index);
                    let _ = took.send(());
                    let _ = gone.recv_timeout(LONG);
                    // A result that the sink has taken does not panic.
                    result.index = Index::MAX;
                    Ok(())
                }
            },
        )
        .unwrap();
    let handle = consumer.handle();
    *asks.lock() = Some(handle.clone());
    // The status alone may show a job 0 that has not given its result to the sink yet.
    sink_has.recv_timeout(LONG).unwrap();
    let running = 1 + usize::from(fails.is_some());
    until(&handle, "all but those to wait", |status| (status.next, status.processing) == (jobs, running));
    (Busy { consumer, handle, taken, dropped, go }, fail)
}

#[test]
fn promise_06_a_stop_awaits_only_the_result_in_the_sink() {
    let (Busy { consumer, handle, taken, dropped, go }, _) = busy(50, None);
    handle.request_stop();
    assert!(!handle.wait_for(1, HOUR), "its result waits, so it will never come");
    drop(go);
    consumer.stop().unwrap();
    assert_eq!((taken.lock().clone(), handle.last_processed_index()), (vec![0], Some(0)));
    assert_eq!(dropped.load(Ordering::SeqCst), 50, "in spite of a destructor that panics");
}

#[test]
fn promise_06_a_halt_leaves_waiting_results_untaken() {
    let (Busy { consumer, handle, taken, go, .. }, fail) = busy(41, Some(40));
    drop(fail);
    until(&handle, "the halt", |status| status.state == State::Halted);
    drop(go);
    assert!(matches!(consumer.join(), Err(Error::Job { index: 40, .. })));
    assert_eq!((taken.lock().clone(), handle.last_processed_index()), (vec![0], Some(0)));
}

#[test]
fn a_paused_sink_goes_on_when_resumed() {
    let (Busy { consumer, handle, taken, go, .. }, _) = busy(50, None);
    handle.pause();
    drop(go);
    assert!(handle.wait_for(0, LONG), "what the sink has is finished and saved");
    let status = until(&handle, "an idle consumer", |status| status.processing == 0);
    assert_eq!((status.state, status.blocked), (State::Paused, Blocked::Paused));
    assert_eq!(*taken.lock(), [0]);
    handle.resume();
    assert!(handle.wait_for(49, LONG), "{:#?}", handle.status());
    consumer.stop().unwrap();
    assert_eq!(*taken.lock(), (0..50).collect::<Vec<_>>());
}

#[test]
fn promise_02_a_resumed_sink_waits_for_a_free_slot() {
    let (go, gone) = crossbeam_channel::bounded::<()>(0);
    let (fail, failed) = crossbeam_channel::bounded::<()>(0);
    let (last, release) = crossbeam_channel::bounded::<()>(0);
    let (took, sink_has) = crossbeam_channel::unbounded::<()>();
    let consumer = builder(numbers(5), &MemoryProgress::new())
        .max_processing(3)
        .retry(Retry::fixed(Duration::ZERO))
        .start_ordered(
            move |job| match (job.index, job.attempt) {
                (3, 1) => {
                    let _ = failed.recv_timeout(LONG);
                    Err("once".into())
                }
                (4, _) => {
                    let _ = release.recv_timeout(LONG);
                    Ok(())
                }
                _ => Ok(()),
            },
            move |_, ()| {
                let _ = took.send(());
                let _ = gone.recv_timeout(LONG);
                Ok(())
            },
        )
        .unwrap();
    let handle = consumer.handle();
    // The status alone may show a job 0 that has not given its result to the sink yet.
    sink_has.recv_timeout(LONG).unwrap();
    until(&handle, "jobs 3 and 4, and the sink", |status| (status.next, status.processing) == (5, 3));
    handle.pause();
    drop(go);
    assert!(handle.wait_for(0, LONG));
    handle.set_max_processing(1).unwrap();
    handle.resume();
    drop(fail);
    until(&handle, "job 4 alone", |status| status.failed == 1);
    assert!(!handle.wait_for(1, QUIET), "there is no slot for it");
    let status = handle.status();
    assert!(matches!(status.blocked, Blocked::Running { index: 4, .. }), "{status:#?}");
    assert_eq!((status.processing, status.done), (1, 1));
    drop(last);
    assert!(handle.wait_for(4, LONG), "{:#?}", handle.status());
    consumer.stop().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(48), ..ProptestConfig::default() })]

    #[test]
    fn the_sink_gets_every_index_in_order(
        seed in any::<u64>(),
        processing in 1..6usize,
        ahead in 1..30u64,
        ends in proptest::collection::vec(0..120u64, 0..4),
        pauses in 0..8usize,
    ) {
        const JOBS: u64 = 120;
        let progress = waterline::Store::in_memory();
        let mut next = 0;
        for end in ends.into_iter().chain([JOBS - 1]) {
            let taken = Arc::new(Mutex::new(Vec::new()));
            let (sink, rolls) = (taken.clone(), Mutex::new(fastrand::Rng::with_seed(seed ^ end)));
            let sinks = Mutex::new(fastrand::Rng::with_seed(seed.wrapping_add(end)));
            let consumer = Consumer::builder(numbers(JOBS), progress.progress("p"))
                .max_processing(processing)
                .max_search_ahead(ahead)
                .retry(Retry::fixed(Duration::ZERO))
                .stop_at(JOBS - 1)
                .start_ordered(
                    move |job| {
                        let roll = rolls.lock().u8(..);
                        (0..(roll % 8).saturating_sub(4)).for_each(|_| rest());
                        if roll < 30 { Err("now and then".into()) } else { Ok(job.payload) }
                    },
                    move |index, result| {
                        let ok = index == result && sinks.lock().u8(..) > 20;
                        sink.lock().push((index, ok));
                        if ok { Ok(()) } else { Err("no room".into()) }
                    },
                )
                .unwrap();
            let handle = consumer.handle();
            for _ in 0..pauses {
                handle.pause();
                rest();
                handle.resume();
                rest();
            }
            prop_assert!(handle.wait_for(end, LONG), "{:#?}", handle.status());
            consumer.stop().unwrap();
            let mut expected: Index = next;
            for (index, ok) in taken.lock().iter() {
                prop_assert_eq!(*index, expected);
                expected += u64::from(*ok);
            }
            next = handle.last_processed_index().map_or(0, |last| last + 1);
            prop_assert_eq!(expected, next, "what was taken is saved by the stop");
        }
        prop_assert_eq!(next, JOBS);
    }
}
