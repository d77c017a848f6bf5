//! The promises of `Consumer`, each by its number.

use common::*;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use waterline::{Blocked, Consumer, Error, MemoryProgress, Retry, State, Worker};

#[test]
fn promise_02_jobs_in_flight_stay_within_both_limits() {
    let (worker, stage) = manual_worker();
    let progress = MemoryProgress::new();
    let consumer = builder(numbers(100), &progress).max_processing(3).max_search_ahead(5).start_worker(worker).unwrap();
    let handle = consumer.handle();
    let mut running = stage.take(3);
    assert_eq!(running.keys().copied().collect::<Vec<_>>(), [0, 1, 2]);
    running.remove(&1).unwrap().succeed();
    running.remove(&2).unwrap().succeed();
    running.append(&mut stage.take(2));
    let status = until(&handle, "two done ahead", |s| s.done_ahead == 2 && s.processing == 3);
    assert_eq!((status.next, status.last_processed, handle.size()), (5, None, 5));
    running.remove(&3).unwrap().succeed();
    running.remove(&4).unwrap().succeed();
    // Two workers are free, but job 5 is above the window, which is 5 wide: nothing is saved.
    let status = until(&handle, "four done ahead", |s| s.done_ahead == 4);
    assert_eq!((status.processing, status.next), (1, 5));
    assert!(stage.is_quiet());
    running.remove(&0).unwrap().succeed();
    let next = stage.take(3);
    assert_eq!(next.keys().copied().collect::<Vec<_>>(), [5, 6, 7]);
    drop(next);
    assert!(matches!(consumer.join(), Err(Error::Job { .. })));
}

#[test]
fn promise_02_unsaved_jobs_stop_at_the_window() {
    let progress = FaultyProgress::in_memory();
    progress.faults().fail(..);
    let consumer = Consumer::builder(numbers(1_000), progress.clone()).max_search_ahead(9).start(|_| Ok(())).unwrap();
    let handle = consumer.handle();
    let status = until(&handle, "a full window", |s| s.done == 9 && matches!(s.blocked, Blocked::Progress { .. }));
    assert_eq!((status.next, status.last_processed, status.done_ahead), (9, None, 9));
    progress.faults().heal();
    assert!(handle.wait_for(999, LONG));
    consumer.stop().unwrap();
}

#[test]
fn promise_03_only_a_failed_index_is_handed_out_again() {
    let handed = Arc::new(Mutex::new(Vec::new()));
    let progress = MemoryProgress::new();
    let consumer = builder(numbers(2_000), &progress)
        .max_processing(16)
        .threads(1)
        .retry(Retry::fixed(Duration::ZERO))
        .stop_at(1_999)
        .start_deferred({
            let handed = handed.clone();
            move |job, done| {
                handed.lock().push((job.index, job.attempt));
                if job.index % 10 == 3 && job.attempt < 3 { done.fail("not yet") } else { done.complete() }
            }
        })
        .unwrap();
    let handle = consumer.handle();
    consumer.join().unwrap();
    let handed = handed.lock();
    let firsts: Vec<_> = handed.iter().filter(|(_, attempt)| *attempt == 1).map(|(index, _)| *index).collect();
    assert_eq!(firsts, (0..2_000).collect::<Vec<_>>());
    let third: Vec<_> = handed.iter().filter(|(index, _)| *index == 13).collect();
    assert_eq!(third, [&(13, 1), &(13, 2), &(13, 3)]);
    assert_eq!(handed.len(), 2_000 + 2 * 200, "only those that failed ran again");
    let status = handle.status();
    assert_eq!((status.done, status.failed, status.retries), (2_000, 400, 400));
}

#[test]
fn promise_04_no_wake_is_lost() {
    let script = Script::default().subscribing();
    let progress = MemoryProgress::new();
    let consumer = builder(script.clone(), &progress).start(|_| Ok(())).unwrap();
    let handle = consumer.handle();
    // No timer helps: each job is found by its own wake, or never.
    for index in 0..2_000 {
        script.set_head(Some(index));
        if index % 2 == 0 {
            assert_eq!(script.ring(), [true]);
        } else {
            handle.check();
        }
        assert!(handle.wait_for(index, LONG), "{:?}", handle.status());
    }
    consumer.stop().unwrap();
    assert_eq!(script.ring(), [false]);
}

#[test]
fn promise_05_a_failed_job_never_counts_as_done() {
    let (worker, stage) = manual_worker();
    let progress = MemoryProgress::new();
    let consumer = builder(numbers(10), &progress).max_processing(4).start_worker(worker).unwrap();
    let handle = consumer.handle();
    let mut running = stage.take(4);
    running.remove(&0).unwrap().succeed();
    let mut later = stage.take(1);
    running.remove(&2).unwrap().fail("no");
    until(&handle, "the halt", |s| s.state == State::Halted);
    running.remove(&1).unwrap().succeed();
    running.remove(&3).unwrap().succeed();
    later.remove(&4).unwrap().succeed();
    let error = consumer.join().unwrap_err();
    assert!(matches!(&error, Error::Job { index: 2, attempt: 1, source } if source.to_string() == "no"), "{error:?}");
    assert_eq!(progress.last_processed(), Some(1), "running jobs finished and were saved, and 2 was not passed");
    assert!(stage.is_quiet(), "nothing new was started");
    let status = handle.status();
    assert_eq!((status.state, status.done, status.failed), (State::Halted, 4, 1));
    assert!(matches!(status.blocked, Blocked::Halted { index: 2, .. }));

    let (worker, stage) = manual_worker();
    let consumer = builder(numbers(10), &progress).max_processing(1).stop_at(2).start_worker(worker).unwrap();
    let again = stage.next();
    assert_eq!((again.index, again.attempt), (2, 1), "a new life begins at the job that failed");
    again.succeed();
    consumer.join().unwrap();
}

#[test]
fn promise_06_stop_finishes_saves_and_leaves_nothing() {
    let (worker, stage) = manual_worker();
    let progress = FaultyProgress::in_memory();
    let sentinel = Arc::new(());
    let announced = Announced::default();
    let script = Script::up_to(50);
    let consumer = Consumer::builder(script.clone(), progress.clone())
        .max_processing(3)
        .on_processed({
            let (sentinel, callback) = (sentinel.clone(), announced.callback());
            move |run| {
                let _ = &sentinel;
                callback(run);
            }
        })
        .on_job_done({
            let sentinel = sentinel.clone();
            move |_| drop(sentinel.clone())
        })
        .start({
            let sentinel = sentinel.clone();
            move |job| {
                let _ = &sentinel;
                worker.run(job)
            }
        })
        .unwrap();
    let handle = consumer.handle();
    let running = stage.take(3);
    handle.request_stop();
    until(&handle, "the stop", |s| s.state == State::Stopping);
    running.into_values().for_each(StartedJob::succeed);
    consumer.stop().unwrap();
    assert_eq!(progress.last_processed(), Some(2));
    assert_eq!(announced.all(), Some(0..=2), "what was saved is announced before `stop` returns");
    assert_eq!(Arc::strong_count(&sentinel), 1, "no thread and no callback is left");
    assert_eq!(script.owners(), 0, "the source is let go, although a handle is left");
    assert_eq!(handle.status().state, State::Finished);
    assert!(stage.is_quiet());
}

#[test]
fn promise_07_a_second_consumer_is_refused_until_the_end() {
    let progress = MemoryProgress::new();
    let first = builder(numbers(1), &progress).start(|_| Ok(())).unwrap();
    for _ in 0..2 {
        let second = builder(numbers(1), &progress).start(|_| Ok(()));
        assert!(matches!(second, Err(Error::InUse { .. })), "{second:?}");
    }
    first.stop().unwrap();
    drop(builder(numbers(1), &progress).start(|_| Ok(())).unwrap());
    builder(numbers(1), &progress).stop_at(0).start(|_| Ok(())).unwrap().join().unwrap();
    builder(numbers(1), &progress).start(|_| Ok(())).unwrap().stop().unwrap();
}

#[test]
fn promise_07_of_many_starts_at_once_one_succeeds() {
    let store = waterline::Store::in_memory();
    let won = AtomicUsize::new(0);
    let barrier = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                barrier.wait();
                let started = Consumer::builder(numbers(1), store.progress("one")).start(|_| Ok(()));
                barrier.wait();
                match started {
                    Ok(_) => won.fetch_add(1, Ordering::SeqCst),
                    Err(Error::InUse { name }) if name == "one" => 0,
                    Err(other) => panic!("{other}"),
                };
            });
        }
    });
    assert_eq!(won.into_inner(), 1);
}

#[test]
fn promise_07_progress_never_goes_back() {
    // `FaultyProgress` checks it at every save.
    let progress = FaultyProgress::in_memory();
    for last in [99, 50, 150] {
        Consumer::builder(numbers(200), progress.clone()).stop_at(last).start(|_| Ok(())).unwrap().join().unwrap();
    }
    assert_eq!(progress.last_processed(), Some(150));
}
