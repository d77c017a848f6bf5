//! The metrics of a runner, as a recorder gets them.

use common::queues::{SECOND, queue_in};
use common::recorder::Kept;
use common::{LONG, eventually};
use crossbeam_channel::{bounded, unbounded};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use waterline::{BoxError, Failure, Retry, Store};
use waterline_queue::{Clock, DrainLimits, NewJob, Outcome, Queue, QueueOptions, Runner, RunnerBuilder, Unknown};

/// Reads the metrics of the queue `q`.
trait OfQueue {
    /// Returns the builder with metrics recorded here.
    fn with(&self, builder: RunnerBuilder) -> RunnerBuilder;
    fn get(&self, name: &str, label: Option<(&str, &str)>) -> f64;
    fn ended(&self) -> [f64; 5];
    fn jobs(&self) -> [f64; 5];
}

impl OfQueue for Kept {
    fn with(&self, builder: RunnerBuilder) -> RunnerBuilder {
        metrics::with_local_recorder(self, || builder.metrics())
    }

    fn get(&self, name: &str, label: Option<(&str, &str)>) -> f64 {
        let labels: Vec<_> = [Some(("queue", "q")), label].into_iter().flatten().collect();
        self.number(&format!("waterline_queue_{name}"), &labels)
    }

    fn ended(&self) -> [f64; 5] {
        let ends = ["finished", "retried", "snoozed", "dead", "lost"];
        ends.map(|end| self.get("attempts_total", Some(("ended", end))))
    }

    fn jobs(&self) -> [f64; 5] {
        let states = ["scheduled", "ready", "running", "finished", "dead"];
        states.map(|state| self.get("jobs", Some(("state", state))))
    }
}

fn queue() -> (Queue, Clock) {
    queue_in(&Store::in_memory(), QueueOptions::default())
}

fn job(kind: &str) -> NewJob {
    NewJob::new(kind, &()).unwrap()
}

#[test]
fn each_attempt_is_counted_and_timed_once() {
    let ((queue, _), kept) = (queue(), Kept::default());
    let removes = queue.clone();
    queue.push_all(["done", "done", "fails", "dies", "later", "unknown"].map(job)).unwrap();
    queue.push(job("gone")).unwrap();
    queue.push(job("once").retry(Retry::none())).unwrap();
    let builder = Runner::builder(&queue)
        .on("done", |_, ()| Ok(Outcome::Done))
        .on("fails", |_, ()| -> Result<Outcome, BoxError> { Err("no".into()) })
        .on("once", |_, ()| panic!("out of order"))
        .on("dies", |_, ()| -> Result<Outcome, BoxError> { Err(Failure::permanent("never").into()) })
        .on("later", |_, ()| -> Result<Outcome, BoxError> { Err(Failure::defer(SECOND).into()) })
        .on("gone", move |job, ()| {
            removes.remove(job.id())?;
            Ok(Outcome::Done)
        })
        .unknown(Unknown::Snooze(SECOND));
    // A second call of `metrics` changes nothing.
    let summary = kept.with(kept.with(builder)).drain(DrainLimits::default()).unwrap();
    assert_eq!(kept.ended(), [2.0, 1.0, 2.0, 2.0, 1.0], "{summary}");
    assert_eq!(kept.get("attempt_seconds", None), 8.0);
    assert_eq!(kept.jobs(), [3.0, 0.0, 0.0, 2.0, 2.0], "as the runner left them");
}

#[test]
fn gauges_follow_a_busy_runner_and_its_end() {
    let ((queue, clock), kept) = (queue(), Kept::default());
    let ((begun, begins), (end, ends)) = (unbounded(), bounded::<()>(0));
    let builder = Runner::builder(&queue).max_processing(1).on("k", move |_, ()| {
        begun.send(()).unwrap();
        Ok(ends.recv().map_or(Outcome::Done, |()| Outcome::Done))
    });
    let runner = kept.with(builder).start().unwrap();
    queue.push_all(["k", "k", "k"].map(job)).unwrap();
    begins.recv_timeout(LONG).unwrap();
    clock.advance(SECOND * 30);
    // Nothing changes in the queue, and its only thread is busy.
    eventually("the gauges", || kept.jobs() == [0.0, 2.0, 1.0, 0.0, 0.0]);
    eventually("the age of the oldest job", || kept.get("oldest_ready_seconds", None) == 30.0);
    // Jobs in flight are counted before the other jobs, and the last gauge is set after all others.
    eventually("the jobs in flight", || kept.get("in_flight", None) == 1.0);
    let workers = || ["taking", "stopping", "silent"].map(|state| kept.get("workers", Some(("state", state))));
    let slots = || [kept.get("slots", None), kept.get("slots_busy", None)];
    eventually("the worker", || workers() == [1.0, 0.0, 0.0] && slots() == [1.0, 1.0]);
    eventually("the last gauge", || kept.get("up", None) == 1.0);
    queue.pause(None).unwrap();
    runner.set_max_processing(4).unwrap();
    eventually("more slots", || slots() == [4.0, 1.0]);
    end.send_timeout((), LONG).unwrap();
    runner.stop().unwrap();
    assert_eq!((kept.get("up", None), kept.get("in_flight", None)), (0.0, 0.0));
    assert_eq!(kept.jobs(), [0.0, 2.0, 0.0, 1.0, 0.0]);
}

#[test]
fn metrics_are_opt_in_and_a_panicking_recorder_is_harmless() {
    let ((queue, _), kept) = (queue(), Kept::default());
    queue.push_all(["k", "k"].map(job)).unwrap();
    let builder = || Runner::builder(&queue).on("k", |_, ()| Ok(Outcome::Done));
    metrics::with_local_recorder(&kept, || builder().drain(DrainLimits::default().jobs(1))).unwrap();
    assert!(kept.is_empty());
    kept.panics.store(true, Ordering::SeqCst);
    assert_eq!(kept.with(builder()).drain(DrainLimits::default()).unwrap().finished, 1);
    assert_eq!((kept.ended()[0], kept.get("up", None)), (1.0, 0.0));
}

#[test]
fn the_docs_list_every_metric_of_a_runner() {
    let ((queue, _), kept) = (queue(), Kept::default());
    let _builder = kept.with(Runner::builder(&queue));
    let source = common::tree::root().join("crates/waterline-queue/src/runner/builder.rs");
    let source = std::fs::read_to_string(source).unwrap();
    let rows = source.lines().filter_map(|line| line.trim().strip_prefix("/// | `waterline_"));
    let listed: BTreeSet<_> = rows.map(|row| format!("waterline_{}", row.split('`').next().unwrap())).collect();
    assert_eq!(listed, *kept.described.lock());
}

#[test]
fn the_verdict_gauges_match_the_status() {
    let ((queue, _), kept) = (queue(), Kept::default());
    let builder = Runner::builder(&queue)
        .on("dies", |_, ()| -> Result<Outcome, BoxError> { Err(Failure::permanent("no such customer").into()) })
        .unknown(Unknown::Dead);
    let runner = kept.with(builder).start().unwrap();
    let verdicts = || ["movement", "unknown_kinds", "dead", "damaged"].map(|on| kept.get("verdict", Some(("on", on))));
    let until = |what: &str, wanted: [f64; 4]| {
        eventually(what, || verdicts() == wanted);
        let status = queue.status().unwrap();
        let worst = wanted.into_iter().fold(0.0, f64::max);
        assert_eq!(status.verdict() as u8 as f64, worst, "{status}");
    };
    until("nothing to do", [0.0; 4]);
    queue.pause(None).unwrap();
    until("the pause", [2.0, 0.0, 0.0, 0.0]);
    queue.resume().unwrap();
    queue.push(job("dies")).unwrap();
    until("a dead job", [0.0, 0.0, 2.0, 0.0]);
    queue.push(job("misspelt")).unwrap();
    until("a kind without a handler", [0.0, 2.0, 2.0, 0.0]);
    runner.stop().unwrap();
}
