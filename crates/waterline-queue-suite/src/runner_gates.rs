//! The gates of a runner.

use crate::bench::*;
use crate::runner::of;
use crossbeam_channel::{bounded, unbounded};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use waterline_queue::{
    DrainLimits, Finisher, JobState, Outcome, Queue, Reached, Runner, RunnerBuilder, RunnerGate, Waits,
};

fn builder(queue: &Queue) -> RunnerBuilder {
    Runner::builder(queue).on("k", |_, ()| Ok(Outcome::Done))
}

/// A gate that a test opens and closes, and that counts how often it is asked.
#[derive(Clone, Default)]
struct Switch {
    is_open: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
}

impl Switch {
    fn set(&self, is_open: bool) {
        self.is_open.store(is_open, Ordering::SeqCst);
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn gate(&self) -> RunnerGate {
        let me = self.clone();
        RunnerGate::new("switch", move || {
            me.asked.fetch_add(1, Ordering::SeqCst);
            me.is_open.load(Ordering::SeqCst)
        })
    }
}

pub(super) fn q31_a_closed_gate_is_asked_again_every_2_seconds(on: &Benches<'_>) {
    let bench = on.bench();
    let (queue, clock) = bench.handles();
    let switch = Switch::default();
    queue.push_all((0..3).map(|_| of("k"))).unwrap();
    let runner = builder(&queue).gate(switch.gate()).max_processing(2).start().unwrap();
    let is_named = || matches!(queue.status().unwrap().waits, Waits::Gate { ref name, .. } if name == "switch");
    // The gate answers before its answer is noted.
    eventually("the gate to be named", is_named);
    for asked in 1..=5 {
        eventually("the gate to be asked", || switch.asked() == asked);
        clock.advance(SECOND * 2 - MILLI);
        assert!(is_named());
        assert_eq!(switch.asked(), asked, "the answer still holds");
        clock.advance(MILLI);
    }
    eventually("the gate to be asked", || switch.asked() == 6);
    assert_eq!(queue.counts().ready, 3);
    let status = queue.status().unwrap().to_string();
    assert!(
        status.contains("claims no job while the gate \"switch\" is closed, which it has been for 10.0s"),
        "{status}"
    );
    switch.set(true);
    clock.advance(SECOND * 2);
    eventually("all to be done", || queue.counts().finished == 3);
    let failures: u32 =
        queue.list(JobState::Finished, None, 9).unwrap().iter().map(|job| job.failures + job.crashes).sum();
    assert_eq!(failures, 0);
    runner.stop().unwrap();
}

pub(super) fn q31_a_gate_that_closes_lets_running_jobs_end(on: &Benches<'_>) {
    let bench = on.bench();
    let (queue, clock) = bench.handles();
    let switch = Switch::default();
    switch.set(true);
    queue.push_all([of("k").id("a"), of("k").id("b")]).unwrap();
    let closes = (switch.clone(), clock.clone());
    let runner = Runner::builder(&queue)
        .on("k", move |job, ()| {
            if job.id() == "a" {
                closes.0.set(false);
                closes.1.advance(SECOND * 2);
            }
            Ok(Outcome::Done)
        })
        .gate(switch.gate())
        .max_processing(1)
        .start()
        .unwrap();
    eventually("the gate to be seen", || matches!(queue.status().unwrap().waits, Waits::Gate { .. }));
    // The gate is asked before the end of the first job is written.
    eventually("the end", || queue.counts().finished == 1);
    assert_eq!(queue.counts().ready, 1);
    runner.stop().unwrap();
    assert_eq!(queue.status().unwrap().waits, Waits::NoWorker, "the gate is gone with its runner");
}

pub(super) fn q31_a_closed_gate_holds_up_no_deferred_end(on: &Benches<'_>) {
    let bench = on.bench();
    let (queue, clock) = bench.handles();
    let switch = Switch::default();
    switch.set(true);
    let (hold, held) = unbounded::<Finisher>();
    let (leave, leaves) = bounded::<()>(0);
    let runner = Runner::builder(&queue)
        .on_deferred("k", move |_, (), done| {
            hold.send(done).unwrap();
            let _ = leaves.recv();
        })
        .gate(switch.gate())
        .max_processing(2)
        .start()
        .unwrap();
    queue.push(of("k")).unwrap();
    let done = held.recv_timeout(LONG).unwrap();
    switch.set(false);
    clock.advance(SECOND * 2);
    eventually("the gate to be asked again", || switch.asked() == 2);
    done.complete();
    eventually("the end", || queue.counts().finished == 1);
    drop(leave);
    runner.stop().unwrap();
}

pub(super) fn q31_a_drain_ends_at_a_closed_gate_if_a_job_is_due(on: &Benches<'_>) {
    let bench = on.bench();
    let (queue, clock) = bench.handles();
    let switch = Switch::default();
    let drain = || builder(&queue).gate(switch.gate()).drain(DrainLimits::default().time(SECOND)).unwrap();
    assert_eq!(drain().reached, Reached::NothingReady);
    queue.push(of("k").delay(SECOND * 60)).unwrap();
    assert_eq!(drain().reached, Reached::NothingReady);
    clock.advance(SECOND * 60);
    let drained = drain();
    assert_eq!((drained.reached, drained.finished, queue.counts().ready), (Reached::Gate, 0, 1));
    assert!(drained.to_string().ends_with("a gate is closed"), "{drained}");
    queue.pause(None).unwrap();
    assert_eq!(drain().reached, Reached::Paused);
    queue.resume().unwrap();
    switch.set(true);
    assert_eq!(drain().finished, 1);
}

pub(super) fn q31_a_drain_behind_a_closed_gate_waits_for_its_jobs(on: &Benches<'_>) {
    let bench = on.bench();
    let (queue, clock) = bench.handles();
    let switch = Switch::default();
    switch.set(true);
    queue.push_all([of("k"), of("k")]).unwrap();
    let (hold, held) = bounded::<Finisher>(1);
    let drain = Runner::builder(&queue)
        .on_deferred("k", move |_, (), done| {
            hold.send(done).unwrap();
        })
        .gate(switch.gate())
        .max_processing(1);
    let drained = std::thread::spawn(move || drain.drain(DrainLimits::default().time(SECOND)).unwrap());
    let done = held.recv_timeout(LONG).unwrap();
    switch.set(false);
    clock.advance(SECOND * 2);
    done.complete();
    let drained = drained.join().unwrap();
    assert_eq!((drained.finished, queue.counts().ready), (1, 1), "{drained}");
}

pub(super) fn q31_all_gates_must_be_open_and_a_panic_means_closed(on: &Benches<'_>) {
    let bench = on.bench();
    let (queue, clock) = bench.handles();
    let (panics, used) = (Arc::new(AtomicBool::new(true)), Arc::new(Mutex::new(0.9)));
    let (broken, value) = (panics.clone(), used.clone());
    queue.push(of("k")).unwrap();
    let runner = builder(&queue)
        .gate(RunnerGate::new("broken", move || !broken.load(Ordering::SeqCst) || panic!("out of order")))
        .gate(RunnerGate::below("memory", 0.9, move || *value.lock()).every(SECOND * 5))
        .start()
        .unwrap();
    let closed = |wanted: &'static str| {
        let status = || queue.status().unwrap().waits;
        eventually(wanted, || matches!(status(), Waits::Gate { name, .. } if name == wanted));
        assert_eq!(queue.counts().ready, 1);
    };
    closed("broken");
    panics.store(false, Ordering::SeqCst);
    clock.advance(SECOND * 2);
    closed("memory");
    *used.lock() = f64::NAN;
    clock.advance(SECOND * 5);
    closed("memory");
    *used.lock() = 0.899;
    clock.advance(SECOND * 5);
    eventually("the job to be done", || queue.counts().finished == 1);
    runner.stop().unwrap();
}
