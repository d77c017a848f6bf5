//! Metadata of a job, notes of a kind, and progress: in writes, and over crashes.

use common::every_write::DiskFault::{Fail, PowerLoss, Stop};
use common::every_write::{Trial, every_write};
use common::queues::{Bench, SECOND, job, noon, on_store_with};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use waterline::testing::FaultyStore;
use waterline::{Error, Retry, Store};
use waterline_queue::{
    Accept, Clock, ConfigError, DrainLimits, JobState, NewJob, Outcome, Queue, QueueError, QueueOptions, Retention,
    Runner,
};

fn options() -> QueueOptions {
    QueueOptions::default().retry(Retry::fixed(SECOND).max_attempts(2)).retention(Retention::Keep)
}

fn on_store(test: impl Fn(Bench)) {
    on_store_with(options(), test);
}

#[test]
fn a_note_commits_with_the_end_of_a_job_or_not_at_all() {
    on_store(|bench| {
        let notes = bench.queue.notes("k").unwrap();
        notes.set("text", "no number").unwrap();
        notes.set("full", i64::MAX).unwrap();
        for (id, key) in [("a", "n"), ("b", "text"), ("c", "full"), ("d", "n")] {
            bench.push(NewJob::new("k", key).unwrap().id(id));
        }
        let shared = notes.clone();
        Runner::builder(&bench.queue)
            .max_processing(1)
            .on_transactional("k", move |job, key: String, effects| {
                shared.set_with(effects, "last", job.id())?;
                shared.add_with(effects, key, 1)?;
                if job.id() == "d" { Err("it fails".into()) } else { Ok(Outcome::Done) }
            })
            .drain(DrainLimits::default())
            .unwrap();
        let states = ["a", "b", "c", "d"].map(|id| bench.info(id).state);
        assert_eq!(states, [JobState::Finished, JobState::Dead, JobState::Dead, JobState::Scheduled]);
        assert_eq!((notes.get("n").unwrap(), notes.get("last").unwrap()), (Some(1.into()), Some("a".into())));
        let error = bench.info("b").error.unwrap();
        assert!(error.contains("the key \"text\" of the table \"notes of k in q\" cannot be counted under"), "{error}");
        assert_eq!(notes.get("full").unwrap(), Some(i64::MAX.into()));
        // A user's write, and a direct call.
        let write = bench.store().write(|effects| {
            notes.set_with(effects, "last", "written")?;
            notes.add_with(effects, "text", 1)
        });
        assert!(matches!(write.unwrap_err(), Error::Counter { .. }));
        assert!(matches!(notes.add("full", 1).unwrap_err(), QueueError::Store(Error::Counter { .. })));
        assert_eq!(notes.get("last").unwrap(), Some("a".into()));
    });
}

#[test]
fn an_invalid_note_is_refused() {
    on_store(|bench| {
        let (notes, long) = (bench.queue.notes("k").unwrap(), "x".repeat(70_000));
        assert!(matches!(
            bench.queue.notes("").unwrap_err(),
            QueueError::Config(ConfigError::Length { what: "job kind", length: 0, .. })
        ));
        assert!(matches!(
            notes.set("", 1).unwrap_err(),
            QueueError::Config(ConfigError::Length { what: "metadata key", length: 0, .. })
        ));
        assert!(matches!(
            notes.add(&long, 1).unwrap_err(),
            QueueError::Config(ConfigError::Length { what: "metadata key", length: 70_000, .. })
        ));
        let large = notes.set("a", long.clone()).unwrap_err();
        assert!(matches!(large, QueueError::Config(ConfigError::Length { what: "metadata", length: 70_002, .. })));
        let write = bench.store().write(|effects| notes.set_with(effects, "a", long.clone()).or(Ok(())));
        assert!(
            matches!(
                QueueError::from(write.unwrap_err()),
                QueueError::Config(ConfigError::Length { what: "metadata", .. })
            ),
            "a refused change fails it"
        );
        let foreign = Queue::open(&Store::in_memory(), "q", QueueOptions::default()).unwrap();
        let write = bench.store().write(|effects| foreign.notes("k")?.add_with(effects, "a", 1));
        assert!(matches!(write.unwrap_err(), Error::Config(waterline::ConfigError::Foreign { .. })));
        assert_eq!(notes.list(None, 9).unwrap(), []);
    });
}

/// Returns the progress of a job, and asserts that lists show the same.
fn shown(queue: &Queue, id: &str) -> Option<(f64, String)> {
    let job = queue.get(id).unwrap().unwrap_or_else(|| panic!("there is no {id}"));
    let listed = queue.list(job.state, None, 9).unwrap();
    assert_eq!(listed.iter().find(|other| other.id == id), Some(&job));
    job.progress.map(|progress| (progress.fraction, progress.note))
}

#[test]
fn progress_is_written_at_most_twice_a_second() {
    let (disk, clock) = (FaultyStore::new().unwrap(), Clock::manual(noon()));
    let queue = Queue::open(&disk.store(), "q", options().clock(clock.clone())).unwrap();
    queue.push_all([job("a"), job("b")]).unwrap();
    let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
    let before = disk.writes();
    for call in 0..=2000 {
        if call > 0 {
            clock.advance(Duration::from_millis(1));
        }
        lease.progress(f64::from(call) / 2000.0, "").unwrap();
    }
    assert_eq!(disk.writes() - before, 5, "at 0, 500, 1000, 1500 and 2000 ms");
    lease.progress(0.25, "the last one").unwrap();
    let before = disk.writes();
    lease.retry("it fails").unwrap();
    assert_eq!(disk.writes() - before, 1, "it is in the write of the end");
    assert_eq!(shown(&queue, "a"), Some((0.25, "the last one".into())));
    assert_eq!(shown(&queue, "b"), None);
}

#[test]
fn the_next_attempt_sees_the_progress_of_the_last() {
    let (disk, clock) = (FaultyStore::new().unwrap(), Clock::manual(noon()));
    let queue = Queue::open(&disk.store(), "q", options().clock(clock.clone())).unwrap();
    queue.push(job("a")).unwrap();
    let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
    lease.progress(0.1, "one").unwrap();
    lease.progress(0.2, "two").unwrap();
    lease.retry("it fails").unwrap();
    clock.advance(SECOND);
    let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
    assert_eq!(lease.last_progress().map(|last| last.note), Some("two".into()));
    assert_eq!(shown(&queue, "a"), Some((0.2, "two".into())), "until it shows some of its own");
    lease.progress(0.3, "three").unwrap();
    lease.progress(0.4, "four").unwrap();
    let died = disk.after_crash().unwrap();
    let queue = Queue::open(&died.store(), "q", options().clock(clock.clone())).unwrap();
    assert_eq!(shown(&queue, "a"), Some((0.3, "three".into())), "the last one that was written");
    assert_eq!(queue.get("a").unwrap().unwrap().crashes, 1);
}

#[test]
fn progress_whose_write_fails_is_written_later() {
    let (disk, clock) = (FaultyStore::new().unwrap(), Clock::manual(noon()));
    let queue = Queue::open(&disk.store(), "q", options().clock(clock.clone())).unwrap();
    queue.push(job("a")).unwrap();
    let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
    disk.fail(0..1);
    assert!(matches!(lease.progress(0.1, "one"), Err(QueueError::Store(Error::Store { .. }))));
    assert_eq!(shown(&queue, "a"), Some((0.1, "one".into())));
    lease.progress(0.2, "two").unwrap();
    let died = Queue::open(&disk.after_crash().unwrap().store(), "q", options().clock(clock.clone())).unwrap();
    assert_eq!(shown(&died, "a"), Some((0.2, "two".into())));
}

/// Metadata and progress by id, and the notes.
type Kept = (BTreeMap<String, (Value, Option<(f64, String)>)>, Vec<(String, Value)>);

/// A life in which each call is one write.
struct Life {
    disk: Arc<FaultyStore>,
    /// The number of writes before this life.
    first: u64,
    clock: Clock,
    queue: Queue,
    failed: u64,
    /// The state after each write of this life, by its number, and the time then.
    kept: BTreeMap<u64, (SystemTime, Kept)>,
    now: SystemTime,
}

fn kept(queue: &Queue) -> Kept {
    let ids = ["a", "b", "c"].into_iter().filter(|id| queue.state(id).unwrap().is_some());
    let notes = queue.notes("k").unwrap().list(None, 99).unwrap();
    (
        ids.map(|id| (id.to_owned(), (json!(queue.get(id).unwrap().unwrap().meta), shown(queue, id)))).collect(),
        notes.into_iter().map(|note| (note.key, note.value)).collect(),
    )
}

impl Life {
    /// Makes a call, again if its write has failed, and records the state after it.
    fn call<T>(&mut self, mut call: impl FnMut(&Queue) -> Result<T, QueueError>) -> T {
        let before = self.disk.writes();
        loop {
            match call(&self.queue) {
                Ok(answer) => {
                    assert!(self.disk.writes() <= before + 1 + self.failed, "a call is one write");
                    if self.disk.writes() > before {
                        self.kept.insert(self.disk.writes() - self.first, (self.now, kept(&self.queue)));
                    }
                    return answer;
                }
                Err(QueueError::Store(Error::Store { .. })) if self.failed == 0 => self.failed = 1,
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    fn advance(&mut self, by: Duration) {
        self.clock.advance(by);
        self.now += by;
    }

    fn live(disk: Arc<FaultyStore>) -> Self {
        let (first, clock) = (disk.writes(), Clock::manual(noon()));
        let queue = (0..2).find_map(|_| Queue::open(&disk.store(), "q", options().clock(clock.clone())).ok()).unwrap();
        let mut life = Self { disk, first, clock, queue, failed: 0, kept: BTreeMap::new(), now: noon() };
        let with = |id: &str, key: &str| job(id).meta(key, &1).unwrap();
        life.call(|queue| queue.push_all([with("a", "one"), job("b"), with("c", "three").delay(SECOND)]));
        life.call(|queue| queue.set_meta("b", "two", Some(2.into())));
        life.call(|queue| queue.notes("k")?.set_for("soon", 1, 2 * SECOND));
        let mut lease = life.call(|queue| queue.accept(Accept::new())).unwrap();
        life.call(|_| lease.set_meta("one", None));
        life.call(|_| lease.progress(0.1, "a tenth"));
        life.advance(SECOND);
        life.call(|_| lease.progress(0.2, "a fifth"));
        // This one is only in memory until the end is written.
        life.call(|_| lease.progress(0.3, "a third"));
        life.call(|_| lease.retry("it fails"));
        life.call(|queue| queue.notes("k")?.add("count", 5));
        life.call(|queue| queue.push(with("c", "four").delay(2 * SECOND)));
        let notes = life.queue.notes("k").unwrap();
        let mut lease = life.call(|queue| queue.accept(Accept::new())).unwrap();
        life.call(|_| lease.finish_with(|effects| notes.add_with(effects, "count", 2)));
        life.advance(SECOND);
        // The expired note is swept with this push.
        life.call(|queue| queue.push(with("b", "five")));
        life.call(|queue| queue.remove("c"));
        let mut lease = life.call(|queue| queue.accept(Accept::new())).unwrap();
        life.call(|_| lease.bury("no way"));
        let ids: Vec<_> = life.queue.list(JobState::Dead, None, 9).unwrap().into_iter().map(|job| job.id).collect();
        ids.iter().for_each(|id| assert!(life.call(|queue| queue.requeue(id))));
        life
    }
}

#[test]
fn a_crash_at_any_write_keeps_metadata_notes_and_progress() {
    let sound = kept(&Life::live(Arc::new(FaultyStore::new().unwrap())).queue);
    let mut compared = 0;
    let live = |trial: &Trial| Life::live(trial.disk.clone());
    every_write(&[Stop, PowerLoss, Fail(1)], live, |next, life| {
        assert_eq!(kept(&life.queue), sound);
        if let (Stop | PowerLoss, Some((now, want))) = (next.fault, life.kept.get(&next.write)) {
            let options = options().clock(Clock::manual(*now));
            assert_eq!(&kept(&Queue::open(&next.store(), "q", options).unwrap()), want);
            compared += 1;
        }
    });
    assert!(compared >= 30, "{compared}");
}
