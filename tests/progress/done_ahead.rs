//! Promise 10: a job that was saved as done never runs again, even above the watermark or without
//! one.

use common::every_write::DiskFault::{Fail, Stop};
use common::every_write::{self, every_write};
use common::*;
use fastrand::Rng;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use waterline::testing::FaultyStore;
use waterline::{BoxError, Builder, Consumer, Done, Error, Handle, Index, Jobs, Retry, Store, StoreProgress};

/// Jobs that end when the test says so. A dropped token is a failed attempt.
#[derive(Clone, Default)]
struct Hand {
    tokens: Arc<Mutex<Vec<(Index, Done)>>>,
    /// Whether every attempt fails from now on. Set under the lock of the tokens.
    let_go: Arc<AtomicBool>,
    started: Arc<Mutex<BTreeSet<Index>>>,
}

/// Drops every token if a test fails, since the drop of a consumer waits for them.
struct Release(Hand);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

impl Hand {
    /// Returns the consumer, and a guard that must be dropped before it.
    fn start<J: Jobs>(&self, builder: Builder<J, StoreProgress>) -> (Consumer, Release) {
        let hand = self.clone();
        let consumer = builder.threads(1).start_deferred(move |job, done| {
            hand.started.lock().insert(job.index);
            let mut tokens = hand.tokens.lock();
            if !hand.let_go.load(Ordering::Relaxed) {
                tokens.push((job.index, done));
            }
        });
        (consumer.unwrap(), Release(self.clone()))
    }

    /// Takes a random job in flight that is not stuck.
    fn pick(&self, random: &mut Rng, stuck: &BTreeSet<Index>) -> Option<(Index, Done)> {
        let mut tokens = self.tokens.lock();
        let from = random.usize(..tokens.len().max(1));
        let at = (from..tokens.len()).chain(0..from).find(|at| !stuck.contains(&tokens[*at].0))?;
        Some(tokens.swap_remove(at))
    }

    #[track_caller]
    fn token(&self, index: Index) -> Done {
        eventually("the job to start", || self.tokens.lock().iter().any(|(i, _)| *i == index));
        let mut tokens = self.tokens.lock();
        let at = tokens.iter().position(|(i, _)| *i == index).unwrap();
        tokens.swap_remove(at).1
    }

    fn started(&self) -> Vec<Index> {
        self.started.lock().iter().copied().collect()
    }

    /// Makes all jobs fail, those that run and those to come.
    fn let_go(&self) {
        let mut tokens = self.tokens.lock();
        self.let_go.store(true, Ordering::Relaxed);
        let held = std::mem::take(&mut *tokens);
        drop(tokens);
        drop(held);
    }
}

/// Runs a life in which only these jobs finish, all of them within the first `running`. Returns the
/// jobs that it started.
#[track_caller]
fn life<J: Jobs>(builder: Builder<J, StoreProgress>, running: usize, done: &[Index]) -> Vec<Index> {
    let hand = Hand::default();
    let (consumer, _release) = hand.start(builder.max_processing(running).retry(Retry::fixed(HOUR)));
    let handle = consumer.handle();
    eventually("all of them run", || hand.tokens.lock().len() == running);
    handle.request_stop();
    let started = hand.started();
    done.iter().for_each(|index| hand.token(*index).complete());
    hand.let_go();
    consumer.stop().unwrap();
    assert_eq!(hand.started(), started, "a consumer that stops starts nothing");
    started
}

#[test]
fn promise_10_without_a_watermark_the_first_index_stays() {
    // `start_at`: none, the same, a lower one, one among the done jobs, and one above them.
    for later in [None, Some(100), Some(50), Some(104), Some(120)] {
        let set = |builder: Builder<Script, StoreProgress>| match later {
            Some(index) => builder.start_at(index),
            None => builder,
        };
        let store = Store::in_memory();
        let script = Script::up_to(200);
        let builder = || Consumer::builder(script.clone(), store.progress("p")).max_search_ahead(50);
        let first = life(builder().start_at(100), 6, &[102, 103, 105]);
        assert_eq!(first, [100, 101, 102, 103, 104, 105]);
        assert_eq!(store.progress("p").last_processed().unwrap(), None);
        let second = life(set(builder()), 4, &[106, 104]);
        assert_eq!(second, [100, 101, 104, 106], "start_at {later:?}");
        assert_eq!(store.progress("p").last_processed().unwrap(), None, "start_at {later:?}");
        let third = life(set(builder()), 3, &[100, 101]);
        assert_eq!(third, [100, 101, 107], "start_at {later:?}");
        assert_eq!(store.progress("p").last_processed().unwrap(), Some(106), "start_at {later:?}");
        assert_eq!(life(set(builder()), 1, &[]), [107], "start_at {later:?}");
    }
}

#[test]
fn promise_10_a_source_pruned_above_undone_jobs_is_refused() {
    for done in [&[0, 1, 3, 5][..], &[1, 3, 5]] {
        let store = Store::in_memory();
        let script = Script::up_to(20);
        life(Consumer::builder(script.clone(), store.progress("p")), 6, done);
        let lowest = if done[0] == 0 { 2 } else { 0 };
        script.set_first(lowest + 1);
        let start = || Consumer::builder(script.clone(), store.progress("p")).start_at(lowest + 1).start(|_| Ok(()));
        let refused = start();
        assert!(matches!(refused, Err(Error::Truncated { next, first }) if (next, first) == (lowest, lowest + 1)));
        script.set_first(lowest);
        start().unwrap().stop().unwrap();
    }
}

#[test]
fn promise_10_names_are_separate_and_remove_forgets_all() {
    let store = Store::in_memory();
    let life = |name: &str, done: &[Index]| life(Consumer::builder(numbers(30), store.progress(name)), 4, done);
    for round in 0..3 {
        assert_eq!(life("one", &[1, 3]), [0, 1, 2, 3], "round {round}");
        assert_eq!(life("other", &[2]), [0, 1, 2, 3], "round {round}");
        assert_eq!(life("one", &[2, 4]), [0, 2, 4, 5], "round {round}");
        assert_eq!(life("other", &[0, 1]), [0, 1, 3, 4], "round {round}");
        assert_eq!(life("one", &[]), [0, 5, 6, 7], "round {round}");
        let saved = |name: &str| store.progress(name).last_processed().unwrap();
        assert_eq!((saved("one"), saved("other")), (None, Some(2)));
        store.progress("one").remove().unwrap();
        assert_eq!(life("other", &[]), [3, 4, 5, 6], "the other one is as it was");
        store.progress("other").remove().unwrap();
        assert_eq!((saved("one"), saved("other")), (None, None));
    }
}

#[test]
fn promise_10_the_watermark_is_readable_during_writes() {
    const COUNT: u64 = 40_000;
    let store = Store::in_memory();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut last = None;
            while !ended.load(Ordering::Relaxed) {
                let now = store.progress("p").last_processed().expect("what is written can be read at any time");
                assert!(now >= last && now < Some(COUNT), "from {last:?} to {now:?}");
                last = now;
            }
        });
        // Out of order, for pages of many sizes and thousands of deltas.
        let hand = Hand::default();
        let mut random = Rng::with_seed(10);
        let builder = Consumer::builder(numbers(COUNT), store.progress("p")).max_search_ahead(20_000);
        let (consumer, _release) = hand.start(builder.max_processing(2_000).stop_at(COUNT - 1));
        let handle = consumer.handle();
        while handle.last_processed_index() != Some(COUNT - 1) {
            match hand.pick(&mut random, &BTreeSet::new()) {
                Some((_, done)) => done.complete(),
                None => rest(),
            }
        }
        ended.store(true, Ordering::Relaxed);
        consumer.join().unwrap();
    });
}

/// A source that notes its reads, with jobs that ask their consumer for its status when dropped.
#[derive(Clone, Default)]
struct Noisy {
    handle: Arc<OnceLock<Handle>>,
    asked: Arc<Mutex<Vec<RangeInclusive<Index>>>>,
    dropped: Arc<Mutex<BTreeSet<Index>>>,
}

struct Noise(Index, Noisy);

impl Drop for Noise {
    fn drop(&mut self) {
        // A deadlock if the consumer drops jobs with its lock held.
        let _ = self.1.handle.get().map(Handle::status);
        self.1.dropped.lock().insert(self.0);
    }
}

impl Jobs for Noisy {
    type Job = Noise;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(99))
    }

    fn at_index(&self, index: Index) -> Result<Option<Noise>, BoxError> {
        Ok(Some(Noise(index, self.clone())))
    }

    fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<Noise>) -> Result<(), BoxError> {
        self.asked.lock().push(run.clone());
        into.extend(run.map(|index| Noise(index, self.clone())));
        Ok(())
    }
}

#[test]
fn promise_10_done_jobs_that_are_read_are_not_run() {
    let store = Store::in_memory();
    let done: Vec<Index> = (1..60).filter(|index| index % 3 != 0).collect();
    life(Consumer::builder(numbers(100), store.progress("p")), 60, &done);
    let noisy = Noisy::default();
    let ran = Arc::<Mutex<BTreeSet<Index>>>::default();
    let record = ran.clone();
    let consumer = Consumer::builder(noisy.clone(), store.progress("p"))
        .max_processing(1)
        .stop_at(99)
        .start(move |job| {
            assert_eq!(job.index, job.payload.0, "each job with its own payload");
            record.lock().insert(job.index);
            Ok(())
        })
        .unwrap();
    let _ = noisy.handle.set(consumer.handle());
    assert!(consumer.handle().wait_for(99, LONG));
    consumer.join().unwrap();
    let expected: BTreeSet<Index> = (0..60).step_by(3).chain(60..100).collect();
    assert_eq!(*ran.lock(), expected);
    assert!(
        // The first run is short, since the weight of jobs is not known yet.
        noisy.asked.lock().iter().any(|run| run.start() < &20 && run.end() > &57),
        "the source was read by the run"
    );
    let asked: BTreeSet<Index> = noisy.asked.lock().iter().cloned().flatten().collect();
    assert!(noisy.dropped.lock().is_superset(&asked), "what was read is dropped, also what was done already");
    assert!(asked.is_superset(&expected) && asked.len() > expected.len());
}

#[test]
fn promise_10_a_done_job_that_is_gone_blocks_nothing() {
    for gone in [&[1, 2, 5][..], &[2], &[7], &[1, 2, 4, 5, 7]] {
        let store = Store::in_memory();
        let script = Script::up_to(20).subscribing();
        let builder = || Consumer::builder(script.clone(), store.progress("p")).poll_every(HOUR);
        life(builder(), 8, &[1, 2, 4, 5, 7]);
        gone.iter().for_each(|index| script.gap(*index));
        // No wake comes, and the next poll is in an hour.
        let consumer = builder().start(|_| Ok(())).unwrap();
        assert!(consumer.handle().wait_for(20, LONG), "{gone:?} are gone: {:?}", consumer.handle().status());
        consumer.stop().unwrap();
    }
}

/// Lives of one stream, and what the test knows of them.
struct Trial {
    seed: u64,
    random: Rng,
    faulty: FaultyStore,
    /// The jobs known to be saved as done.
    settled: BTreeSet<Index>,
    /// The jobs that finished in any life; `finished_now` in this one.
    finished: BTreeSet<Index>,
    finished_now: BTreeSet<Index>,
    /// The number of jobs; the `stuck` ones finish only in the last life.
    count: u64,
    stuck: BTreeSet<Index>,
    /// The number of jobs that ran again after they finished.
    again: usize,
}

impl Trial {
    fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let count = random.u64(1..400);
        // With an even seed there is no watermark before the last life.
        let mut stuck: BTreeSet<Index> = (0..random.usize(..3)).map(|_| random.u64(..count)).collect();
        stuck.extend(seed.is_multiple_of(2).then_some(0));
        let (settled, finished, finished_now) = Default::default();
        let faulty = FaultyStore::new().unwrap();
        Self { seed, random, faulty, settled, finished, finished_now, count, stuck, again: 0 }
    }

    fn begin(&mut self) -> (Hand, (Consumer, Release)) {
        let hand = Hand::default();
        let random = &mut self.random;
        let builder = Consumer::builder(numbers(self.count), self.faulty.store().progress("p"))
            .max_processing(random.usize(1..40))
            .max_search_ahead(*random.choice(&[1, 7, 64, 300, u64::MAX]).unwrap())
            .retry(Retry::fixed(*random.choice(&[Duration::ZERO, HOUR]).unwrap()))
            .stop_at(self.count - 1);
        let started = hand.start(builder);
        (hand, started)
    }

    /// Ends jobs and changes limits, and notes the jobs known to be saved.
    fn steps(&mut self, hand: &Hand, consumer: &Consumer) {
        let handle = consumer.handle();
        self.finished_now.clear();
        for _ in 0..self.random.usize(..400) {
            match self.random.u8(..40) {
                0 if handle.status().unsaved == 0 => self.settled.extend(&self.finished_now),
                1 => drop(hand.pick(&mut self.random, &self.stuck)),
                2 => handle.set_max_processing(self.random.usize(1..40)).unwrap_or(()),
                3 => handle.set_max_search_ahead(self.random.u64(1..500)).unwrap_or(()),
                _ => match hand.pick(&mut self.random, &self.stuck) {
                    Some((index, done)) => {
                        done.complete();
                        self.finished_now.insert(index);
                        self.finished.insert(index);
                    }
                    None => rest(),
                },
            }
        }
    }

    /// Runs a life that ends with a stop, or with a crash, which leaves its disk to the next one.
    fn live(&mut self) {
        let (hand, (consumer, _release)) = self.begin();
        let before = self.finished.clone();
        let settled = self.settled.clone();
        self.steps(&hand, &consumer);
        let crashes = self.random.bool();
        if crashes {
            self.faulty = self.faulty.after_crash().unwrap();
        }
        consumer.handle().request_stop();
        hand.let_go();
        consumer.stop().unwrap();
        let started = hand.started.lock();
        let again: Vec<_> = started.intersection(&settled).collect();
        assert!(again.is_empty(), "seed {}: {again:?} were saved as done and ran again", self.seed);
        self.again += started.intersection(&before).count();
        if !crashes {
            self.settled.extend(&self.finished_now);
        }
        let saved = self.faulty.store().progress("p").last_processed().unwrap();
        let below = 0..saved.map_or(0, |last| last + 1);
        assert!(below.clone().all(|i| self.finished.contains(&i)), "seed {}: promise 1: {below:?}", self.seed);
    }

    fn last_life(&mut self) {
        self.stuck.clear();
        let (hand, (consumer, _release)) = self.begin();
        let deadline = Instant::now() + LONG;
        while !consumer.handle().wait_for(self.count - 1, Duration::ZERO) {
            assert!(Instant::now() < deadline, "seed {}: {:#?}", self.seed, consumer.handle().status());
            let Some((index, done)) = hand.pick(&mut self.random, &self.stuck) else {
                rest();
                continue;
            };
            done.complete();
            self.finished.insert(index);
        }
        consumer.join().unwrap();
        assert!(hand.started.lock().is_disjoint(&self.settled), "seed {}", self.seed);
        assert_eq!(self.finished.len() as u64, self.count, "seed {}", self.seed);
    }
}

#[test]
fn promise_10_jobs_saved_as_done_never_run_again() {
    let mut again = 0;
    for seed in 0..60 {
        let mut trial = Trial::new(seed);
        (0..8).for_each(|_| trial.live());
        trial.last_life();
        again += trial.again;
    }
    assert!(again > 0, "nothing ran again after any crash: the test sees nothing");
}

/// Runs jobs that each put a row and finish out of order, until the consumer ends or gives up.
/// Returns the jobs that ran.
fn rows_at_random(store: &Store, seed: u64, count: u64) -> BTreeSet<Index> {
    let mut random = Rng::with_seed(seed);
    let (hand, table) = (Hand::default(), store.table("rows").unwrap());
    let builder = Consumer::builder(numbers(count), store.progress("p"));
    let builder = builder.max_processing(8).retry(Retry::fixed(Duration::ZERO)).stop_at(count - 1);
    let (consumer, _release) = hand.start(builder);
    let none = BTreeSet::new();
    while !consumer.handle().wait_for(count - 1, Duration::ZERO) {
        let Some((index, done)) = hand.pick(&mut random, &none) else {
            rest();
            continue;
        };
        match table.put(index.to_be_bytes(), "done") {
            Ok(()) => done.complete(),
            Err(error) => done.fail(error),
        }
        // The wait spreads the jobs over many saves.
        if random.bool() {
            until(&consumer.handle(), "a save", |s| {
                s.unsaved == 0 || matches!(s.blocked, waterline::Blocked::Progress { .. })
            });
        }
    }
    consumer.join().unwrap();
    std::mem::take(&mut *hand.started.lock())
}

fn rows_of(store: &Store) -> BTreeSet<Index> {
    let table = store.table("rows").unwrap();
    table.iter().map(|row| Index::from_be_bytes(row.unwrap().0.try_into().unwrap())).collect()
}

#[test]
fn promise_10_done_jobs_have_their_rows_at_any_crash() {
    const COUNT: u64 = 40;
    let mut ahead = 0;
    // On a busy machine the jobs of a round may all finish in order, which shows nothing.
    for _ in 0..10 {
        let live = |trial: &every_write::Trial| drop(rows_at_random(&trial.store(), trial.write, COUNT));
        every_write(&[Stop], live, |next, ()| {
            let store = next.store();
            let (rows, saved) = (rows_of(&store), store.progress("p").last_processed().unwrap());
            let ran = rows_at_random(&store, next.write, COUNT);
            let claimed: BTreeSet<Index> = (0..COUNT).filter(|index| !ran.contains(index)).collect();
            assert!(claimed.is_subset(&rows), "{claimed:?} of {rows:?}");
            ahead += claimed.iter().filter(|index| saved.is_none_or(|last| **index > last)).count();
            assert_eq!(rows_of(&store).len() as u64, COUNT);
        });
        if ahead > 0 {
            return;
        }
    }
    panic!("nothing was claimed above the watermark: the test sees nothing");
}

#[test]
fn promise_10_a_failed_write_repeats_a_job_at_most_once() {
    const COUNT: u64 = 30;
    let live = |trial: &every_write::Trial| rows_at_random(&trial.store(), trial.write, COUNT).len() as u64;
    every_write(&[Fail(1)], live, |next, ran| {
        assert_eq!((ran, next.store().progress("p").last_processed().unwrap()), (COUNT, Some(COUNT - 1)));
        // The next save covered the one that failed.
        let left = next.disk.after_crash().unwrap().store();
        assert!(rows_at_random(&left, next.write, COUNT).is_empty());
        assert_eq!(rows_of(&left).len() as u64, COUNT);
    });
}
