//! Results reach the sink in order, whatever the order in which jobs finish.

use common::*;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use waterline::{Blocked, Consumer, Error, Handle, Index, MemoryProgress, Retry, State};

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
