//! When a source is asked for its head, and when only for its gate.

use common::*;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use waterline::{Blocked, BoxError, Consumer, Index, Jobs, MemoryProgress, Wakeup};

const MS: Duration = Duration::from_millis(1);

/// A source with a slow `head` that notes the start of each look and of the first read of the last
/// job.
struct SlowHead {
    head: Index,
    takes: Duration,
    time: Arc<Time>,
    looks: Arc<Mutex<Vec<Duration>>>,
    all_read: Arc<OnceLock<Duration>>,
}

impl SlowHead {
    fn new(head: Index, takes: Duration) -> Self {
        Self { head, takes, time: Arc::default(), looks: Arc::default(), all_read: Arc::default() }
    }
}

impl Jobs for SlowHead {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        self.looks.lock().push(self.time.passed());
        self.time.pass(self.takes);
        Ok(Some(self.head))
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        if index == self.head {
            self.all_read.get_or_init(|| self.time.passed());
        }
        Ok((index <= self.head).then_some(index))
    }
}

#[test]
fn a_slow_head_delays_no_known_job() {
    const JOBS: u64 = 5_000;
    let source = SlowHead::new(JOBS - 1, MS * 50);
    let (looks, all_read, time) = (source.looks.clone(), source.all_read.clone(), source.time.clone());
    builder(source, &MemoryProgress::new())
        .clock(time.clock())
        .max_processing(2)
        .poll_every(MS)
        .stop_at(JOBS - 1)
        .start(move |_| {
            time.pass(MS);
            Ok(())
        })
        .unwrap()
        .join()
        .unwrap();
    // Once all is read, the consumer looks again and again while the last jobs run: those looks do
    // not count.
    let (looks, all_read) = (looks.lock(), *all_read.get().unwrap());
    let looked = looks.iter().filter(|look| **look < all_read).count() as u128;
    // A look before each run would be one for every 64 jobs. The pause after a look is nine times
    // its length.
    let most = 2 + (all_read - looks[0]).as_millis() / 500;
    assert!(looked <= most, "{looked} looks of {most}");
}

#[test]
fn a_slow_head_is_asked_again_when_all_is_done() {
    let source = SlowHead::new(9, MS * 100);
    let (looks, clock) = (source.looks.clone(), source.time.clock());
    let builder = builder(source, &MemoryProgress::new()).clock(clock).poll_every(MS);
    let consumer = builder.start(|_| Ok(())).unwrap();
    // Only the looks themselves take time, so a pause after one of them would never end.
    eventually("twenty looks", || looks.lock().len() >= 20);
    consumer.stop().unwrap();
}

#[test]
fn a_moved_gate_does_not_ask_for_the_head() {
    const JOBS: u64 = 2_000;
    let progress = MemoryProgress::new();
    let upstream = Consumer::builder(numbers(JOBS), MemoryProgress::new()).max_search_ahead(1);
    let watermark = waterline::Watermark::new();
    let source = Script::up_to(JOBS - 1).subscribing();
    let stage = builder(source.clone().gated_by(&watermark), &progress).stop_at(JOBS - 1).start(|_| Ok(())).unwrap();
    let upstream = upstream.watermark(watermark).start(|_| Ok(())).unwrap();
    stage.join().unwrap();
    upstream.stop().unwrap();
    assert_eq!(progress.last_processed(), Some(JOBS - 1));
    let heads = source.calls().heads.load(Ordering::SeqCst);
    assert!(heads <= 3, "asked {heads} times for the head, which never moved");
}

#[test]
fn a_gate_passing_the_known_head_causes_a_look() {
    let source = Script::up_to(4).subscribing();
    let watermark = waterline::Watermark::new();
    let blocks = numbers(10);
    let stage =
        builder(source.clone().gated_by(&watermark), &MemoryProgress::new()).stop_at(9).start(|_| Ok(())).unwrap();
    until(&stage.handle(), "the first look", |status| status.head == Some(4));
    // Only the gate notifies the stage of these.
    source.set_head(Some(9));
    let upstream = Consumer::builder(blocks, MemoryProgress::new()).watermark(watermark).start(|_| Ok(())).unwrap();
    stage.join().unwrap();
    upstream.stop().unwrap();
}

/// A source that notifies from within `head`, and shows its only job from a later look on.
struct Echo {
    wakeup: Mutex<Option<Wakeup>>,
    looks: AtomicU64,
    shows_from: u64,
}

impl Jobs for Echo {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        let look = self.looks.fetch_add(1, Ordering::SeqCst) + 1;
        self.wakeup.lock().iter().for_each(|wakeup| _ = wakeup.ring());
        Ok((look >= self.shows_from).then_some(0))
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        Ok((index == 0).then_some(0))
    }

    fn subscribe(&self, wakeup: Wakeup) -> bool {
        *self.wakeup.lock() = Some(wakeup);
        true
    }
}

#[test]
fn wakes_from_within_head_are_paced_and_kept() {
    const LOOKS: u64 = 20;
    let source = Arc::new(Echo { wakeup: Mutex::default(), looks: AtomicU64::new(0), shows_from: LOOKS });
    let time = Time::new();
    let builder = builder(source.clone(), &MemoryProgress::new()).clock(time.clock()).stop_at(0);
    let consumer = builder.start(|_| Ok(())).unwrap();
    // The wake of the last look is the only one for job 0.
    time.steps(MS, "the job", || consumer.handle().wait_for(0, Duration::ZERO));
    // Without pauses the looks would take no time.
    assert!(time.passed() >= MS * 100, "{LOOKS} looks in {:?}", time.passed());
    consumer.join().unwrap();
}

#[test]
fn a_look_that_the_consumer_waits_for_is_named() {
    let source = Script::up_to(0);
    let gate = source.gated();
    let consumer = builder(source.clone(), &MemoryProgress::new()).stop_at(0).start(|_| Ok(())).unwrap();
    gate.entered.recv_timeout(LONG).unwrap();
    let status = consumer.handle().status();
    assert!(matches!(status.blocked, Blocked::Looking { .. } | Blocked::Source { .. }), "{status:?}");
    assert!(status.blocked.to_string().contains("head") || status.blocked.to_string().contains("answered"));
    source.ungate();
    drop(gate);
    consumer.join().unwrap();
}

/// A source that notifies from within `at_index`, and has a job there only from a later call on.
struct Murmur {
    wakeup: Mutex<Option<Wakeup>>,
    reads: AtomicU64,
}

const MISSING_READS: u64 = 20;

impl Jobs for Murmur {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(0))
    }

    fn at_index(&self, _: Index) -> Result<Option<Index>, BoxError> {
        self.wakeup.lock().iter().for_each(|wakeup| _ = wakeup.ring());
        let read = self.reads.fetch_add(1, Ordering::SeqCst);
        Ok((read >= MISSING_READS).then_some(0))
    }

    fn subscribe(&self, wakeup: Wakeup) -> bool {
        *self.wakeup.lock() = Some(wakeup);
        true
    }
}

#[test]
fn wakes_from_within_an_empty_read_are_paced() {
    let source = Murmur { wakeup: Mutex::default(), reads: AtomicU64::new(0) };
    let time = Time::new();
    let builder = builder(source, &MemoryProgress::new()).clock(time.clock()).stop_at(0);
    let consumer = builder.start(|_| Ok(())).unwrap();
    time.steps(MS, "the job", || consumer.handle().wait_for(0, Duration::ZERO));
    assert!(time.passed() >= MS * 100, "{MISSING_READS} reads in {:?}", time.passed());
    consumer.join().unwrap();
}

#[test]
fn a_held_back_stage_asks_for_the_head_rarely() {
    const JOBS: u64 = 2_000;
    let store = waterline::Store::in_memory();
    let log = store.log::<u64>("chunks").unwrap();
    let source = Script::up_to(JOBS - 1).subscribing();
    let consumer = Consumer::builder(log.hold_back(source.clone(), 1_000_000), store.progress("p"))
        .clock(Time::new().clock())
        .max_search_ahead(2)
        .stop_at(JOBS - 1)
        .start(|_| Ok(()))
        .unwrap();
    let handle = consumer.handle();
    consumer.join().unwrap();
    let (heads, saves) = (source.calls().heads.load(Ordering::SeqCst), handle.status().saves);
    assert!(saves >= JOBS / 2, "the gate moved with each of {saves} saves");
    // The clock stands still, so no pause between two looks ends.
    assert!(heads <= 3, "{heads} looks, {saves} saves");
}
