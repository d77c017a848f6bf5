//! `stop_within` with little time or none.

use common::*;
use crossbeam_channel::bounded;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use waterline::{Consumer, Error, MemoryProgress, State};

#[test]
fn promise_06_the_last_save_is_announced_despite_a_straggler() {
    for life in 0..30 {
        let (worker, stage) = manual_worker();
        let (progress, announced) = (FaultyProgress::in_memory(), Announced::default());
        let consumer = Consumer::builder(numbers(3), progress.clone())
            .max_processing(3)
            .on_processed(announced.callback())
            .start_worker(worker)
            .unwrap();
        let handle = consumer.handle();
        let mut running = stage.take(3);
        let hold = progress.faults().hold();
        running.remove(&0).unwrap().succeed();
        hold.wait();
        running.remove(&1).unwrap().succeed();
        until(&handle, "job 1", |status| status.done == 2);
        let stopping = std::thread::spawn(move || consumer.stop_within(Duration::ZERO));
        // This becomes false as soon as the consumer abandons the running job.
        assert!(!handle.wait_for(2, LONG));
        drop(hold);
        let error = stopping.join().unwrap().unwrap_err();
        let heard = announced.all();
        assert!(matches!(&error, Error::StopTimeout { running } if *running == [2]), "{error:?}");
        assert_eq!((handle.last_processed_index(), heard), (Some(1), Some(0..=1)), "life {life}");
        running.into_values().for_each(StartedJob::succeed);
        eventually("the end of the straggler", || announced.owners() == 1);
        assert_eq!(announced.all(), Some(0..=1), "no call came later");
    }
}

#[test]
fn a_hanging_on_processed_is_given_up() {
    let (entered, called) = bounded(9);
    let (go, gone) = bounded::<()>(0);
    let calls = Arc::new(Mutex::new(Vec::new()));
    let (worker, stage) = manual_worker();
    let consumer = builder(numbers(3), &MemoryProgress::new())
        .max_processing(3)
        .on_processed({
            let calls = calls.clone();
            move |run| {
                calls.lock().push(run);
                entered.send(()).unwrap();
                let _ = gone.recv_timeout(LONG);
            }
        })
        .start_worker(worker)
        .unwrap();
    let handle = consumer.handle();
    let mut running = stage.take(3);
    running.remove(&0).unwrap().succeed();
    called.recv_timeout(LONG).unwrap();
    running.remove(&1).unwrap().succeed();
    assert!(handle.wait_for(1, LONG));
    let error = consumer.stop_within(Duration::ZERO).unwrap_err();
    assert!(matches!(&error, Error::StopTimeout { running } if *running == [2]), "{error:?}");
    drop(go);
    drop(running);
    eventually("the end of the callback", || Arc::strong_count(&calls) == 1);
    assert_eq!(*calls.lock(), [0..=0], "who was not awaited hears no more");
}

#[test]
fn an_idle_consumer_stops_within_no_time() {
    for life in 0..100u64 {
        let announced = Announced::default();
        let consumer = builder(numbers(life), &MemoryProgress::new())
            .max_processing(4)
            .on_processed(announced.callback())
            .start(|_| Ok(()))
            .unwrap();
        let handle = consumer.handle();
        until(&handle, "all jobs", |status| status.done == life && status.processing == 0);
        let stopped = consumer.stop_within(Duration::ZERO);
        assert!(stopped.is_ok(), "in life {life}: {stopped:?}");
        let last = life.checked_sub(1);
        assert_eq!((handle.last_processed_index(), handle.status().state), (last, State::Finished));
        assert_eq!(announced.all().map(|all| *all.end()), last, "what was saved is announced");
        assert_eq!(announced.owners(), 1, "and nothing is left of it");
    }
}

#[test]
fn a_halt_is_reported_within_no_time() {
    let consumer = builder(numbers(1), &MemoryProgress::new()).start(|_| Err("no".into())).unwrap();
    until(&consumer.handle(), "the halt", |status| status.state == State::Halted);
    assert!(matches!(consumer.stop_within(Duration::ZERO), Err(Error::Job { index: 0, .. })));
}
