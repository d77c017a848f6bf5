//! The metrics of a consumer as a recorder receives them.

use common::recorder::Kept;
use common::*;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use waterline::{
    BoxError, Builder, Consumer, Error, Failure, Index, Jobs, MemoryJobs, MemoryProgress, OnExhausted, Progress, Retry,
    Store, Verdict,
};

const NOW: Retry = Retry::fixed(Duration::ZERO);

trait OfConsumer {
    fn start<J: Jobs, P: Progress>(
        &self,
        time: &Time,
        builder: Builder<J, P>,
        start: impl FnOnce(Builder<J, P>) -> Result<Consumer, Error>,
    ) -> Consumer;
    fn get(&self, name: &str) -> f64;
    fn all<const N: usize>(&self, names: [&str; N]) -> [f64; N];
    /// Lets time pass until the metrics have these values. They are measured each second.
    fn until<const N: usize>(&self, time: &Time, names: [&str; N], values: [f64; N]);
}

impl OfConsumer for Kept {
    fn start<J: Jobs, P: Progress>(
        &self,
        time: &Time,
        builder: Builder<J, P>,
        start: impl FnOnce(Builder<J, P>) -> Result<Consumer, Error>,
    ) -> Consumer {
        metrics::with_local_recorder(self, || start(builder.clock(time.clock()).metrics())).unwrap()
    }

    fn get(&self, name: &str) -> f64 {
        self.number(&format!("waterline_{name}"), &[("consumer", "p")])
    }

    fn all<const N: usize>(&self, names: [&str; N]) -> [f64; N] {
        names.map(|name| self.get(name))
    }

    #[track_caller]
    fn until<const N: usize>(&self, time: &Time, names: [&str; N], values: [f64; N]) {
        let deadline = Instant::now() + LONG;
        while self.all(names) != values {
            assert!(Instant::now() < deadline, "{names:?} are {:?} and not {values:?}", self.all(names));
            time.pass(Duration::from_millis(100));
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
}

/// The gauges of the consumer's place, without the lag in seconds.
const PLACE: [&str; 7] = ["up", "head", "watermark", "lag_jobs", "in_flight", "done_ahead", "parked"];

#[test]
fn counters_tell_failures_deferrals_and_retries_apart() {
    let (kept, store, time) = (Kept::default(), Store::in_memory(), Time::new());
    let builder = Consumer::builder(numbers(4), store.progress("p")).retry(NOW).stop_at(3);
    let deferred = Mutex::new(false);
    let consumer = kept.start(&time, builder, |builder| {
        builder.start(move |job| match (job.index, job.attempt) {
            (1, 1..=2) => Err("not yet".into()),
            (2, _) if !std::mem::replace(&mut *deferred.lock(), true) => Err(Failure::defer(Duration::ZERO).into()),
            _ => Ok(()),
        })
    });
    let handle = consumer.handle();
    consumer.join().unwrap();
    let counters = ["attempts_total", "failures_total", "deferrals_total", "retries_total", "attempt_seconds"];
    assert_eq!(kept.all(counters), [7.0, 2.0, 1.0, 2.0, 7.0]);
    let status = handle.status();
    assert_eq!((status.failed, status.retries), (2, 2), "the status counts the same");
    assert_eq!(kept.all(["saves_total", "save_seconds"]), [status.saves as f64; 2]);
    assert_eq!(kept.all(PLACE), [0.0, 3.0, 3.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(kept.get("lag_seconds"), 0.0);
}

#[derive(Clone, Default)]
struct CutOff(Arc<AtomicBool>);

impl Jobs for CutOff {
    type Job = u64;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        if self.0.load(Ordering::SeqCst) { Err("no route to the node".into()) } else { Ok(Some(3)) }
    }

    fn at_index(&self, index: Index) -> Result<Option<u64>, BoxError> {
        Ok(Some(index))
    }
}

#[test]
fn only_a_failing_idle_source_counts_stalls() {
    let (kept, store, time) = (Kept::default(), Store::in_memory(), Time::new());
    let source = CutOff::default();
    let builder = Consumer::builder(source.clone(), store.progress("p"));
    let consumer = kept.start(&time, builder, |builder| builder.start(|_| Ok(())));
    kept.until(&time, PLACE, [1.0, 3.0, 3.0, 0.0, 0.0, 0.0, 0.0]);
    // On a loaded machine, time has passed while the threads started.
    let (begun, before) = (time.passed(), kept.get("stalls_total"));
    time.steps(Duration::from_secs(1), "a minute without a job", || time.passed() > begun + Duration::from_secs(60));
    assert_eq!(kept.get("stalls_total"), before);
    source.0.store(true, Ordering::SeqCst);
    time.steps(Duration::from_secs(1), "two stalls", || kept.get("stalls_total") >= before + 2.0);
    assert_eq!(kept.all(PLACE), [1.0, 3.0, 3.0, 0.0, 0.0, 0.0, 0.0], "no gauge of its place says so");
    let verdict = || kept.number("waterline_verdict", &[("consumer", "p"), ("on", "movement")]);
    time.steps(Duration::from_secs(1), "the verdict, after a minute", || verdict() == 2.0);
    let status = consumer.handle().status();
    assert!(status.source_fails_for >= Some(Duration::from_secs(60)), "{status:#?}");
    assert_eq!(status.verdict(), Verdict::NeedsYou);
    source.0.store(false, Ordering::SeqCst);
    time.steps(Duration::from_secs(1), "the verdict, once the source is back", || verdict() == 0.0);
    source.0.store(true, Ordering::SeqCst);
    time.steps(Duration::from_millis(100), "a source that fails anew", || verdict() == 1.0);
    source.0.store(false, Ordering::SeqCst);
    consumer.stop().unwrap();
}

#[test]
fn the_verdict_on_an_idle_consumer_shows_its_pause() {
    let (kept, store, time) = (Kept::default(), Store::in_memory(), Time::new());
    let builder = Consumer::builder(numbers(4), store.progress("p"));
    let consumer = kept.start(&time, builder, |builder| builder.start(|_| Ok(())));
    kept.until(&time, PLACE, [1.0, 3.0, 3.0, 0.0, 0.0, 0.0, 0.0]);
    let verdict = || kept.number("waterline_verdict", &[("consumer", "p"), ("on", "movement")]);
    for _ in 0..2 {
        consumer.handle().pause();
        time.steps(Duration::from_millis(100), "the pause", || verdict() == 2.0);
        consumer.handle().resume();
        time.steps(Duration::from_millis(100), "the end of the pause", || verdict() == 0.0);
    }
    consumer.stop().unwrap();
}

#[test]
fn idle_gauges_show_the_place_and_parked_jobs() {
    let (kept, store, time) = (Kept::default(), Store::in_memory(), Time::new());
    let builder = Consumer::builder(numbers(4), store.progress("p"));
    let (worker, started) = manual_worker();
    let consumer =
        kept.start(&time, builder.on_exhausted(OnExhausted::Park { budget: 9 }).retry(Retry::none()), |builder| {
            builder.start_worker(worker)
        });
    for index in 0..4 {
        let job = started.job(index);
        if index < 3 { job.fail("refused") } else { job.succeed() }
    }
    kept.until(&time, PLACE, [1.0, 3.0, 3.0, 0.0, 0.0, 0.0, 3.0]);
    // It has caught up, and no new job arrives.
    let handle = consumer.handle();
    handle.redrive(1).unwrap();
    let redriven = started.job(1);
    kept.until(&time, PLACE, [1.0, 3.0, 3.0, 0.0, 1.0, 0.0, 3.0]);
    redriven.succeed();
    kept.until(&time, PLACE, [1.0, 3.0, 3.0, 0.0, 0.0, 0.0, 2.0]);
    store.discard("p", 0).unwrap();
    kept.until(&time, PLACE, [1.0, 3.0, 3.0, 0.0, 0.0, 0.0, 1.0]);
    assert_eq!(handle.redrive_all().unwrap(), 1);
    started.job(2).succeed();
    kept.until(&time, PLACE, [1.0, 3.0, 3.0, 0.0, 0.0, 0.0, 0.0]);
    consumer.stop().unwrap();
    kept.until(&time, PLACE, [0.0, 3.0, 3.0, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn abandoned_jobs_leave_no_gauge_in_flight() {
    let (kept, time) = (Kept::default(), Time::new());
    let (worker, started) = manual_worker();
    let first = Store::in_memory();
    let builder = Consumer::builder(numbers(4), first.progress("p")).max_processing(3);
    let consumer = kept.start(&time, builder, |builder| builder.start_worker(worker));
    started.job(0).succeed();
    let given_up = started.job(1);
    started.job(2).succeed();
    kept.until(&time, PLACE, [1.0, 3.0, 0.0, 3.0, 2.0, 1.0, 0.0]);
    assert!(matches!(consumer.stop_within(Duration::ZERO), Err(Error::StopTimeout { .. })));
    // The place where the next life begins. It shows a moment later, since a stop with no time does
    // not wait for the thread that tells the recorder.
    kept.until(&time, PLACE, [0.0, 3.0, 0.0, 3.0, 0.0, 1.0, 0.0]);
    drop(given_up);

    let other = Store::in_memory();
    let empty = MemoryJobs::<u64>::new();
    let builder = Consumer::builder(empty.clone(), other.progress("p"));
    let consumer = kept.start(&time, builder, |builder| builder.start(|_| Ok(())));
    kept.until(&time, PLACE, [1.0, -1.0, -1.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(kept.get("lag_seconds"), 0.0);
    empty.push(7);
    kept.until(&time, PLACE, [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    consumer.stop().unwrap();
}

#[test]
fn a_halt_shows_at_once_beside_jobs_in_flight() {
    let (kept, store, time) = (Kept::default(), Store::in_memory(), Time::new());
    let (worker, started) = manual_worker();
    let builder = Consumer::builder(numbers(2), store.progress("p")).max_processing(2).retry(Retry::none());
    let consumer = kept.start(&time, builder, |builder| builder.start_worker(worker));
    let runs = started.job(1);
    kept.until(&time, ["up", "in_flight"], [1.0, 2.0]);
    started.job(0).fail("refused");
    kept.until(&time, ["up", "in_flight"], [0.0, 1.0]);
    runs.succeed();
    assert!(consumer.join().is_err());
    assert_eq!(kept.all(["up", "in_flight", "done_ahead", "failures_total"]), [0.0, 0.0, 1.0, 1.0]);
}

#[test]
fn a_standby_sets_only_up_before_its_takeover() {
    let (store, time, theirs, mine) = (Store::in_memory(), Time::new(), Kept::default(), Kept::default());
    let builder = || Consumer::builder((0..9).collect::<MemoryJobs<u64>>(), store.progress("p")).standby();
    let holder = theirs.start(&time, builder(), |builder| builder.start(|_| Ok(())));
    theirs.until(&time, ["up", "watermark"], [1.0, 8.0]);
    let waiting = mine.start(&time, builder(), |builder| builder.start(|_| Ok(())));
    let stopped = theirs.start(&time, builder(), |builder| builder.start(|_| Ok(())));
    stopped.stop().unwrap();
    assert_eq!(theirs.all(["up", "watermark"]), [1.0, 8.0], "one that waits leaves them alone, also at its end");
    assert_eq!(mine.all(["up", "watermark", "head"]), [0.0; 3]);
    holder.stop().unwrap();
    mine.until(&time, ["up", "watermark", "head"], [1.0, 8.0, 8.0]);
    waiting.stop().unwrap();
    assert_eq!(mine.all(["up", "watermark"]), [0.0, 8.0]);
}

#[test]
fn the_head_shows_before_a_slow_first_look() {
    let (kept, store, time) = (Kept::default(), Store::in_memory(), Time::new());
    let builder = Consumer::builder(numbers(9), store.progress("p")).stop_at(8);
    builder.start(|_| Ok(())).unwrap().join().unwrap();
    let source = Script::up_to(8);
    let gate = source.gated();
    let consumer =
        kept.start(&time, Consumer::builder(source.clone(), store.progress("p")), |builder| builder.start(|_| Ok(())));
    gate.wait_for("head");
    kept.until(&time, ["up", "watermark", "head"], [1.0, 8.0, -1.0]);
    source.ungate();
    drop(gate);
    kept.until(&time, ["up", "watermark", "head"], [1.0, 8.0, 8.0]);
    consumer.stop().unwrap();
}

#[test]
fn a_panicking_recorder_stops_no_consumer() {
    struct Panics;
    impl Recorder for Panics {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
            panic!("the recorder is broken")
        }
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
            Counter::noop()
        }
        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::noop()
        }
        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }
    let builder = || Consumer::builder(numbers(3), MemoryProgress::new()).stop_at(2);
    let kept = Kept::default();
    metrics::with_local_recorder(&kept, || builder().start(|_| Ok(()))).unwrap().join().unwrap();
    assert!(kept.is_empty());
    metrics::with_local_recorder(&Panics, || builder().metrics().start(|_| Ok(()))).unwrap().join().unwrap();
}
