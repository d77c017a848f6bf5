//! The faults of earlier systems of this kind, a test for each, and the good ideas that we keep.

use common::*;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use waterline::{Blocked, Consumer, Error, Index, Jobs, MemoryProgress, Retry, State, Worker};

// The faults.

#[test]
fn a_completion_does_not_look_at_the_whole_window() {
    // This counts the calls of the source, and not the time: with the first job stuck, each of 20
    // 000 others is read once.
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
fn progress_is_not_written_once_a_job_and_never_when_nothing_finished() {
    let progress = FaultyProgress::in_memory();
    let hold = progress.faults().hold();
    let script = Script::up_to(0).subscribing();
    let consumer = Consumer::builder(script.clone(), progress.clone()).start(|_| Ok(())).unwrap();
    let handle = consumer.handle();
    // Everything else appears and finishes during the first write, and goes into the second write
    // together.
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
fn a_check_that_meets_a_look_under_way_is_not_dropped() {
    // This order of events loses a wake-up: the source has fixed its answer "nothing", and then a
    // job is published and announced while the look still runs.
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

#[test]
fn two_indices_with_the_same_job_are_two_jobs() {
    let ran = Arc::new(AtomicU64::new(0));
    let jobs: waterline::MemoryJobs<&str> = std::iter::repeat_n("the same", 50).collect();
    let progress = MemoryProgress::new();
    builder(jobs, &progress)
        .max_processing(8)
        .stop_at(49)
        .start({
            let ran = ran.clone();
            move |_| {
                ran.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
        })
        .unwrap()
        .join()
        .unwrap();
    assert_eq!((ran.load(Ordering::SeqCst), progress.last_processed()), (50, Some(49)));
}

#[test]
fn a_source_error_throws_nothing_away_and_is_retried() {
    let script = Script::up_to(20);
    script.fail_at(10, Fault::Error);
    let progress = FaultyProgress::in_memory();
    let consumer = Consumer::builder(script.clone(), progress.clone()).poll_every(HOUR).start(|_| Ok(())).unwrap();
    let handle = consumer.handle();
    assert!(handle.wait_for(9, LONG), "earlier jobs run, and are saved");
    assert_eq!(progress.last_processed(), Some(9));
    script.heal();
    assert!(handle.wait_for(20, LONG), "nobody has to call");
    consumer.stop().unwrap();
}

#[test]
fn a_worker_error_does_not_end_the_process_and_a_job_that_never_reports_is_named() {
    let progress = MemoryProgress::new();
    let kept = Arc::new(Mutex::new(Vec::new()));
    let consumer = builder(numbers(2), &progress)
        .max_processing(2)
        .start_deferred({
            let kept = kept.clone();
            move |job, done| if job.index == 0 { kept.lock().push(done) } else { done.fail("an error") }
        })
        .unwrap();
    let handle = consumer.handle();
    until(&handle, "the failure", |s| s.failed == 1);
    assert_eq!(handle.status().state, State::Halted);
    eventually("the other's token", || kept.lock().len() == 1);
    kept.lock().clear();
    assert!(matches!(consumer.join(), Err(Error::Job { index: 1, .. })));

    let consumer = builder(numbers(2), &progress)
        .max_processing(2)
        .start_deferred({
            let kept = kept.clone();
            move |job, done| if job.index == 0 { kept.lock().push(done) } else { done.complete() }
        })
        .unwrap();
    let handle = consumer.handle();
    let status = until(&handle, "the other job", |s| s.done == 1);
    assert!(matches!(status.blocked, Blocked::Running { index: 0, attempt: 1, .. }), "{status:?}");
    // A token that is forgotten is a failure, not a leak.
    eventually("its token", || kept.lock().len() == 1);
    kept.lock().clear();
    let error = consumer.join().unwrap_err();
    assert!(
        matches!(&error, Error::Job { index: 0, source, .. } if source.to_string().contains("dropped")),
        "{error:?}"
    );
}

#[test]
fn stop_waits_for_jobs_that_were_handed_on_and_has_a_deadline() {
    let progress = MemoryProgress::new();
    let kept = Arc::new(Mutex::new(Vec::new()));
    let start = || {
        let kept = kept.clone();
        builder(numbers(2), &progress).max_processing(2).start_deferred(move |_, done| kept.lock().push(done)).unwrap()
    };
    let consumer = start();
    eventually("both jobs", || kept.lock().len() == 2);
    let handle = consumer.handle();
    let stopping = std::thread::spawn(move || consumer.stop());
    until(&handle, "the stop", |s| s.state == State::Stopping);
    assert!(!stopping.is_finished());
    kept.lock().drain(..).for_each(waterline::Done::complete);
    stopping.join().unwrap().unwrap();
    assert_eq!(progress.last_processed(), Some(1));

    let progress = MemoryProgress::new();
    let consumer = {
        let kept = kept.clone();
        builder(numbers(2), &progress).max_processing(2).start_deferred(move |_, done| kept.lock().push(done)).unwrap()
    };
    eventually("both jobs", || kept.lock().len() == 2);
    let error = consumer.stop_within(LIMIT).unwrap_err();
    assert!(matches!(&error, Error::StopTimeout { running } if *running == [0, 1]), "{error:?}");
    kept.lock().clear();
}

/// A source that asks its handle for the status in each of its calls.
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
fn status_never_waits_for_the_source_also_from_inside_of_it() {
    let script = Script::up_to(3);
    let gate = script.gated();
    let progress = MemoryProgress::new();
    let consumer = builder(script.clone(), &progress).start(|_| Ok(())).unwrap();
    let handle = consumer.handle();
    gate.wait_for("at_index");
    // The source hangs in a call, but all these calls return.
    let _ = (handle.status(), handle.size(), handle.last_processed_index(), handle.check());
    handle.pause();
    handle.resume();
    handle.set_max_processing(3).unwrap();
    let status = until(&handle, "the silence", |s| matches!(s.blocked, Blocked::Source { .. }));
    assert!(status.blocked.to_string().contains("has not answered"), "{}", status.blocked);
    script.ungate();
    drop(gate);
    assert!(handle.wait_for(3, LONG));
    consumer.stop().unwrap();

    let (own, asked) = (Arc::new(Mutex::new(None)), Arc::new(AtomicU64::new(0)));
    let consumer = builder(Asking { handle: own.clone(), asked: asked.clone() }, &MemoryProgress::new())
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
fn a_job_that_finished_above_the_watermark_costs_no_second_run_within_a_life() {
    let (worker, stage) = manual_worker();
    let progress = MemoryProgress::new();
    let consumer = builder(numbers(6), &progress).max_processing(6).stop_at(5).start_worker(worker).unwrap();
    let mut running = stage.take(6);
    for index in [5, 3, 1, 4, 2, 0] {
        running.remove(&index).unwrap().succeed();
    }
    consumer.join().unwrap();
    assert!(stage.is_quiet());
    assert_eq!(progress.last_processed(), Some(5));
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

// The good ideas.

#[test]
fn a_gap_ends_the_reading_until_it_is_filled() {
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
fn a_window_narrower_than_the_workers_is_the_limit() {
    let (worker, stage) = manual_worker();
    let progress = MemoryProgress::new();
    let consumer =
        builder(numbers(4), &progress).max_processing(5).max_search_ahead(2).stop_at(3).start_worker(worker).unwrap();
    let mut running = stage.take(2);
    running.remove(&1).unwrap().succeed();
    until(&consumer.handle(), "one done ahead", |s| s.done_ahead == 1);
    assert!(stage.is_quiet(), "2 is above the window");
    running.remove(&0).unwrap().succeed();
    stage.take(2).into_values().for_each(StartedJob::succeed);
    consumer.join().unwrap();
}

#[test]
fn a_search_ahead_of_one_is_strictly_one_after_the_other() {
    let order = Arc::new(Mutex::new(Vec::new()));
    let progress = FaultyProgress::in_memory();
    let saved = progress.clone();
    Consumer::builder(numbers(200), progress.clone())
        .max_processing(8)
        .max_search_ahead(1)
        .stop_at(199)
        .start({
            let order = order.clone();
            move |job| {
                assert_eq!(saved.last_processed(), job.index.checked_sub(1), "each is saved before the next");
                order.lock().push(job.index);
                Ok(())
            }
        })
        .unwrap()
        .join()
        .unwrap();
    assert_eq!(*order.lock(), (0..200).collect::<Vec<_>>());
}

#[test]
fn a_watermark_above_the_head_waits_for_the_source() {
    let progress = MemoryProgress::new();
    builder(numbers(101), &progress).start_at(100).stop_at(100).start(|_| Ok(())).unwrap().join().unwrap();
    let script = Script::up_to(10);
    let consumer = builder(script.clone(), &progress)
        .start(|job| {
            assert_eq!(job.index, 101);
            Ok(())
        })
        .unwrap();
    let handle = consumer.handle();
    let status = until(&handle, "the finding", |s| matches!(s.blocked, Blocked::AheadOfSource { .. }));
    assert_eq!(status.blocked, Blocked::AheadOfSource { last_processed: 100, head: Some(10) });
    assert_eq!((status.lag(), status.processing), (0, 0));
    script.set_head(Some(101));
    handle.check();
    assert!(handle.wait_for(101, LONG));
    consumer.stop().unwrap();
}

#[test]
fn a_job_may_report_from_anywhere_in_any_order() {
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
    // Every token was dropped, so all jobs run again.
    let again: Vec<_> = (0..64).map(|_| handed.recv_timeout(LONG).unwrap()).collect();
    std::thread::scope(|scope| {
        for (_, done) in again {
            scope.spawn(move || done.complete());
        }
    });
    consumer.join().unwrap();
    assert_eq!(progress.last_processed(), Some(63));
}
