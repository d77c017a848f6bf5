//! The end of a consumer as its handles await it and its jobs see it coming.

use common::*;
use crossbeam_channel::{Receiver, bounded, unbounded};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use waterline::{Ended, Error, Handle, Job, MemoryProgress, State};

fn assert_finished(ended: Option<Ended>) {
    let ended = ended.expect("it has ended");
    assert_eq!((ended.state, ended.error), (State::Finished, None));
}

fn waiters(handle: &Handle) -> Vec<std::thread::JoinHandle<Option<Ended>>> {
    let wait = |_| {
        let handle = handle.clone();
        std::thread::spawn(move || handle.wait_end(LONG))
    };
    (0..8).map(wait).collect()
}

#[test]
fn the_end_can_be_awaited_around_a_join() {
    let (worker, started) = manual_worker();
    let consumer = builder(numbers(1), &MemoryProgress::new()).stop_at(0).start_worker(worker).unwrap();
    let handle = consumer.handle();
    assert_eq!(handle.wait_end(QUIET), None, "it runs");
    assert_eq!(handle.wait_end(Duration::ZERO), None);
    let before = waiters(&handle);
    let owner = std::thread::spawn(|| consumer.join());
    assert_eq!(handle.wait_end(QUIET), None, "its owner waits, too");
    started.job(0).succeed();
    before.into_iter().for_each(|waiter| assert_finished(waiter.join().unwrap()));
    owner.join().unwrap().unwrap();
    assert_finished(handle.wait_end(Duration::ZERO));
    assert_finished(handle.wait_end(Duration::MAX));
}

#[test]
fn the_end_is_seen_before_a_join_and_agrees_with_it() {
    let consumer = builder(numbers(5), &MemoryProgress::new())
        .start(|job| if job.index == 3 { Err("connection refused".into()) } else { Ok(()) })
        .unwrap();
    let handle = consumer.handle();
    let waiters = waiters(&handle);
    let ended = handle.wait_end(LONG).unwrap();
    assert_eq!(ended.state, State::Halted);
    let error = consumer.join().unwrap_err();
    assert!(matches!(error, Error::Job { index: 3, .. }));
    assert_eq!(ended.error, Some(error.report()));
    waiters.into_iter().for_each(|waiter| assert_eq!(waiter.join().unwrap().as_ref(), Some(&ended)));
    assert_eq!(handle.wait_end(Duration::ZERO), Some(ended), "also when the error was handed out");
}

#[test]
fn the_end_is_known_after_a_drop() {
    let consumer = builder(numbers(1), &MemoryProgress::new()).start(|_| Err("refused".into())).unwrap();
    let handle = consumer.handle();
    until(&handle, "the halt", |status| status.state == State::Halted);
    drop(consumer);
    let ended = handle.wait_end(Duration::ZERO).expect("a drop waits");
    assert!(ended.state == State::Halted && ended.error.unwrap().ends_with("refused"));
}

#[test]
fn the_end_waits_for_stragglers_of_a_timed_out_stop() {
    let (worker, started) = manual_worker();
    let consumer = builder(numbers(1), &MemoryProgress::new()).start_worker(worker).unwrap();
    let handle = consumer.handle();
    let straggler = started.job(0);
    assert!(matches!(consumer.stop_within(QUIET), Err(Error::StopTimeout { .. })));
    assert_eq!(handle.wait_end(QUIET), None, "a thread of it runs");
    straggler.succeed();
    assert_finished(handle.wait_end(LONG));
}

/// A thread-local value whose destructor waits.
struct Lingers(Receiver<()>);

impl Drop for Lingers {
    fn drop(&mut self) {
        let _ = self.0.recv();
    }
}

thread_local! {
    static LINGERS: RefCell<Option<Lingers>> = const { RefCell::new(None) };
}

#[test]
fn the_end_waits_for_thread_local_destructors() {
    let (release, released) = bounded::<()>(0);
    let consumer = builder(numbers(1), &MemoryProgress::new())
        .stop_at(0)
        .start(move |_| {
            LINGERS.with(|lingers| lingers.replace(Some(Lingers(released.clone()))));
            Ok(())
        })
        .unwrap();
    // Dropped before the consumer, which waits for the thread, even if the test fails.
    let release = release;
    let handle = consumer.handle();
    until(&handle, "the end of all jobs", |status| status.state == State::Finished);
    assert_eq!(handle.wait_end(QUIET), None, "a thread of it is not gone");
    drop(release);
    assert_finished(handle.wait_end(LONG));
    consumer.join().unwrap();
}

#[test]
fn an_index_that_can_never_come_is_not_awaited() {
    let consumer = builder(numbers(3), &MemoryProgress::new()).stop_at(5).start(|_| Ok(())).unwrap();
    let handle = consumer.handle();
    // Without the stop it would wait for an hour.
    assert!(!handle.wait_for(6, HOUR) && !handle.wait_for(u64::MAX, HOUR));
    consumer.stop().unwrap();
    assert!(!handle.wait_for(5, HOUR));
}

#[test]
fn a_job_sees_that_another_one_halted() {
    let (enter, entered) = bounded::<()>(1);
    let consumer = builder(numbers(2), &MemoryProgress::new())
        .max_processing(2)
        .start(move |job| {
            if job.index == 0 {
                return Err(entered.recv().map_or("the other one is gone", |()| "refused").into());
            }
            enter.send(())?;
            while !job.is_stopping() {
                std::thread::park_timeout(Duration::from_micros(100));
            }
            Ok(())
        })
        .unwrap();
    assert!(matches!(consumer.join(), Err(Error::Job { index: 0, .. })));
}

#[test]
fn a_nested_job_sees_the_stop_of_its_own_consumer() {
    fn is_copy<T: Copy>(_: &T) {}
    let outer_stops = Arc::new(AtomicBool::new(false));
    let (seen, saw) = unbounded();
    let consumer = builder(numbers(1), &MemoryProgress::new())
        .stop_at(0)
        .start(move |outer: Job<u64>| {
            is_copy(&outer);
            let (asks, seen, stops) = (seen.clone(), seen.clone(), outer_stops.clone());
            let (begin, begun) = unbounded();
            let inner = builder(numbers(1), &MemoryProgress::new()).start(move |inner| {
                asks.send(("inner", inner.is_stopping()))?;
                begin.send(())?;
                while !inner.is_stopping() {
                    std::thread::park_timeout(Duration::from_micros(100));
                }
                stops.store(true, Ordering::SeqCst);
                Ok(())
            })?;
            assert!(inner.handle().status().state == State::Running);
            begun.recv_timeout(LONG)?;
            inner.stop()?;
            assert!(outer_stops.load(Ordering::SeqCst));
            seen.send(("outer", outer.is_stopping()))?;
            let elsewhere = std::thread::spawn(move || outer.is_stopping()).join();
            Ok(seen.send(("elsewhere", elsewhere.unwrap()))?)
        })
        .unwrap();
    consumer.join().unwrap();
    assert_eq!(saw.iter().collect::<Vec<_>>(), [("inner", false), ("outer", false), ("elsewhere", false)]);
    assert!(!Job::new(7, "made by hand").is_stopping());
}
