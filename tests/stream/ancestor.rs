//! Lessons of earlier systems of this kind: faults to avoid and ideas to keep.

use common::*;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use waterline::{Blocked, Consumer, Error, Index, Jobs, MemoryProgress, Retry, Worker};

#[test]
fn a_completion_does_not_scan_the_whole_window() {
    // Counts calls of the source, not time: with the first job stuck, each of the 20,000 others
    // is read once.
    let script = Script::up_to(20_000);
    let (worker, stage) = manual_worker();
    let progress = MemoryProgress::new();
    let consumer = builder(script.clone(), &progress)
        .max_processing(2)
        .unlimited_search_ahead()
        .stop_at(20_000)
        .start(move |job| if job.index == 0 { worker.run(job) } else { Ok(()) })
        .unwrap();
    let handle = consumer.handle();
    let stuck = stage.next();
    let status = until(&handle, "all others", |s| s.done_ahead == 20_000);
    assert_eq!((status.processing, status.last_processed, handle.size()), (1, None, 20_001));
    stuck.succeed();
    consumer.join().unwrap();
    assert_eq!(script.calls().reads.load(Ordering::SeqCst), 20_001);
    assert_eq!(progress.last_processed(), Some(20_000));
}

#[test]
fn saves_are_fewer_than_jobs_and_none_when_idle() {
    let progress = FaultyProgress::in_memory();
    let hold = progress.faults().hold();
    let script = Script::up_to(0).subscribing();
    let consumer = Consumer::builder(script.clone(), progress.clone()).start(|_| Ok(())).unwrap();
    let handle = consumer.handle();
    // All other jobs appear and finish during the first write, so the second one covers them.
    hold.wait();
    script.set_head(Some(999));
    script.ring();
    until(&handle, "the rest", |s| s.done == 1_000);
    drop(hold);
    assert!(handle.wait_for(999, LONG));
    assert_eq!(progress.faults().writes(), 2);
    let looks = script.calls().heads.load(Ordering::SeqCst);
    for more in 1..=10 {
        handle.check();
        eventually("another look", || script.calls().heads.load(Ordering::SeqCst) >= looks + more);
    }
    assert_eq!(progress.faults().writes(), 2, "looks that find nothing write nothing");
    consumer.stop().unwrap();
    assert_eq!(progress.faults().writes(), 2);
}

#[test]
fn a_check_during_a_look_is_not_lost() {
    // The order that loses a wake-up: the source has settled on the answer "nothing", then a job is
    // published and announced while that look still runs.
    let script = Script::default().subscribing();
    let gate = script.gated();
    let progress = MemoryProgress::new();
    let consumer = builder(script.clone(), &progress).poll_every(HOUR).start(|_| Ok(())).unwrap();
    let handle = consumer.handle();
    gate.wait_for("head");
    script.set_head(Some(0));
    handle.check();
    script.ungate();
    gate.pass();
    assert!(handle.wait_for(0, LONG), "{:?}", handle.status());
    consumer.stop().unwrap();
}

struct Asking {
    handle: Arc<Mutex<Option<waterline::Handle>>>,
    asked: Arc<AtomicU64>,
}

impl Asking {
    fn ask(&self) {
        if let Some(handle) = self.handle.lock().clone() {
            let _ = (handle.status(), handle.size(), handle.last_processed_index());
            handle.check();
            self.asked.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Jobs for Asking {
    type Job = ();

    fn head(&self) -> Result<Option<Index>, waterline::BoxError> {
        self.ask();
        Ok(Some(100))
    }

    fn at_index(&self, _: Index) -> Result<Option<()>, waterline::BoxError> {
        self.ask();
        Ok(Some(()))
    }
}

#[test]
fn status_never_waits_for_the_source() {
    let script = Script::up_to(3);
    let gate = script.gated();
    let time = Time::new();
    let builder = builder(script.clone(), &MemoryProgress::new()).clock(time.clock());
    let consumer = builder.start(|_| Ok(())).unwrap();
    let handle = consumer.handle();
    gate.wait_for("at_index");
    // The source hangs in a call; these return all the same.
    let _ = (handle.status(), handle.size(), handle.last_processed_index(), handle.check());
    handle.pause();
    handle.resume();
    handle.set_max_processing(3).unwrap();
    let second = Duration::from_secs(1);
    let status = time.until(second, &handle, "the silence", |s| matches!(s.blocked, Blocked::Source { .. }));
    assert!(status.blocked.to_string().contains("has not answered"), "{}", status.blocked);
    script.ungate();
    drop(gate);
    assert!(handle.wait_for(3, LONG));
    consumer.stop().unwrap();

    let (own, asked) = (Arc::new(Mutex::new(None)), Arc::new(AtomicU64::new(0)));
    let consumer = common::builder(Asking { handle: own.clone(), asked: asked.clone() }, &MemoryProgress::new())
        .max_search_ahead(2)
        .stop_at(100)
        .start({
            let own = own.clone();
            move |_| {
                own.lock().clone().map(|handle: waterline::Handle| handle.status());
                Ok(())
            }
        })
        .unwrap();
    *own.lock() = Some(consumer.handle());
    consumer.join().unwrap();
    assert!(asked.load(Ordering::SeqCst) > 0);
}

#[test]
fn the_last_index_does_not_spin() {
    let progress = MemoryProgress::new();
    let last = Index::MAX - 1;
    let script = Script::up_to(Index::MAX);
    script.set_first(last - 2);
    let consumer = builder(script, &progress).unlimited_search_ahead().start_at(last - 2).start(|_| Ok(())).unwrap();
    let handle = consumer.handle();
    assert!(handle.wait_for(last, LONG));
    assert!(!handle.wait_for(Index::MAX, LONG), "which is never a job, and that is said at once");
    until(&handle, "rest", |s| s.blocked == Blocked::CaughtUp);
    assert_eq!((handle.status().next, handle.status().lag()), (Index::MAX, 0));
    consumer.stop().unwrap();
    // A new life begins after the last job.
    let consumer = builder(Script::up_to(Index::MAX), &progress).start(|_| panic!("nothing is left")).unwrap();
    until(&consumer.handle(), "rest", |s| s.blocked == Blocked::CaughtUp);
    consumer.stop().unwrap();
}

#[test]
fn a_missing_job_ends_reading_until_it_comes() {
    let script = Script::up_to(6).subscribing();
    script.gap(3);
    let progress = MemoryProgress::new();
    let ran = Arc::new(Mutex::new(Vec::new()));
    let consumer = builder(script.clone(), &progress)
        .start({
            let ran = ran.clone();
            move |job| {
                ran.lock().push(job.index);
                Ok(())
            }
        })
        .unwrap();
    let handle = consumer.handle();
    assert!(handle.wait_for(2, LONG));
    let status = until(&handle, "the gap", |s| matches!(s.blocked, Blocked::Missing { index: 3 }));
    assert_eq!((status.next, status.lag()), (3, 4));
    script.fill(3);
    script.ring();
    assert!(handle.wait_for(6, LONG));
    consumer.stop().unwrap();
    let mut ran = ran.lock().clone();
    ran.sort_unstable();
    assert_eq!(ran, [0, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn tokens_may_report_from_any_thread_in_any_order() {
    let progress = MemoryProgress::new();
    let (hand, handed) = crossbeam_channel::unbounded();
    let consumer = builder(numbers(64), &progress)
        .max_processing(64)
        .stop_at(63)
        .retry(Retry::fixed(Duration::ZERO))
        .start_deferred(move |job, done| hand.send((job.index, done)).unwrap())
        .unwrap();
    let mut tokens: Vec<_> = (0..64).map(|_| handed.recv_timeout(LONG).unwrap()).collect();
    tokens.sort_by_key(|(index, _)| std::cmp::Reverse(*index));
    drop(tokens);
    // A dropped token is a failure, so all jobs run again.
    let again: Vec<_> = (0..64).map(|_| handed.recv_timeout(LONG).unwrap()).collect();
    std::thread::scope(|scope| {
        for (_, done) in again {
            scope.spawn(move || done.complete());
        }
    });
    consumer.join().unwrap();
    assert_eq!(progress.last_processed(), Some(63));
    let forgets = builder(numbers(1), &MemoryProgress::new()).start_deferred(|_, done| drop(done)).unwrap();
    let error = forgets.join().unwrap_err();
    assert!(matches!(error, Error::Job { index: 0, .. }) && error.report().contains("dropped"), "{error:?}");
}
