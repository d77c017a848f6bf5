//! Jobs that kill their process. A crash is simulated by a disk that takes no more writes from the
//! moment on at which the job runs.

mod common;

use common::{LONG, eventually, numbers, until};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};
use waterline::testing::FaultyStore;
use waterline::{
    Blocked, Builder, ConfigError, Consumer, Error, Failure, Index, MemoryJobs, MemoryProgress, OnExhausted, Retry,
    Status, Store, StoreProgress,
};

const PARK: OnExhausted = OnExhausted::Park { budget: 100 };
const JOBS: Index = 60;

/// The lives of a consumer on one disk.
struct Lives {
    disk: Arc<FaultyStore>,
    deaths: u32,
}

/// One life, as its jobs see it.
#[derive(Default)]
struct Life {
    dead: AtomicBool,
    in_flight: AtomicUsize,
    /// The number of jobs that were in flight beside the one that killed the process.
    company: AtomicUsize,
}

type Stream = Builder<MemoryJobs<u64>, StoreProgress>;

impl Lives {
    fn new() -> Self {
        Self { disk: Arc::new(FaultyStore::new().unwrap()), deaths: 0 }
    }

    /// Lets a consumer live until its end, or until one of these jobs kills it. Returns the end, or
    /// the number of jobs that were in flight beside the job that killed it.
    fn live(
        &mut self,
        with: impl FnOnce(Stream) -> Stream,
        kills: impl Fn(Index) -> bool + Send + Sync + 'static,
    ) -> Result<Result<(), Error>, usize> {
        let life = Arc::new(Life::default());
        let builder = Consumer::builder(numbers(JOBS), self.disk.store().progress("p")).stop_at(JOBS - 1);
        let consumer = with(builder).start({
            let (life, disk) = (life.clone(), self.disk.clone());
            move |job| {
                let company = life.in_flight.fetch_add(1, Ordering::SeqCst);
                if !life.dead.load(Ordering::SeqCst) && kills(job.index) {
                    // Nothing that is written from now on reaches the disk.
                    disk.freeze_at(0);
                    life.dead.store(true, Ordering::SeqCst);
                    life.company.store(company, Ordering::SeqCst);
                }
                // Jobs are in flight side by side.
                std::thread::yield_now();
                life.in_flight.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            }
        });
        let end = consumer.and_then(Consumer::join);
        if !life.dead.load(Ordering::SeqCst) {
            return Ok(end);
        }
        self.deaths += 1;
        self.disk = Arc::new(self.disk.after_crash().unwrap());
        Err(life.company.load(Ordering::SeqCst))
    }

    fn crashes(&self) -> BTreeMap<Index, u32> {
        let parked = self.disk.store().parked("p").unwrap();
        parked.into_iter().map(|parked| (parked.index, parked.crashes)).collect()
    }
}

#[test]
fn a_job_that_kills_its_process_is_parked_after_its_crashes_and_no_other_one_is_blamed() {
    for (threads, max, poison) in [(1, 1, 0), (1, 3, 7), (4, 2, 0), (4, 3, 31), (8, 5, 59), (16, 1, 17)] {
        let mut lives = Lives::new();
        let mut alone = 0;
        let end = loop {
            let with = |builder: Stream| builder.max_processing(threads).max_crashes(max).on_exhausted(PARK);
            match lives.live(with, move |index| index == poison) {
                Ok(end) => break end,
                Err(company) => alone += u32::from(company == 0),
            }
        };
        end.unwrap();
        let place = format!("{threads} threads, at most {max} crashes, job {poison}");
        assert!(lives.deaths <= max + 2, "{place}: {} deaths", lives.deaths);
        assert!(alone >= max, "{place}: {alone} deaths while it ran alone");
        assert_eq!(lives.crashes(), BTreeMap::from([(poison, max)]), "{place}");
        let store = lives.disk.store();
        assert_eq!(store.progress("p").last_processed().unwrap(), Some(JOBS - 1));
        let error = &store.parked("p").unwrap()[0].error;
        assert!(error.contains(&format!("died {max} times while job {poison} ran alone")), "{error}");
    }
}

#[test]
fn jobs_that_kill_their_process_together_are_told_apart() {
    for seed in 0..30 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (threads, max) = (1 + random.usize(..9), 1 + random.u32(..4));
        let poison: BTreeSet<Index> = (0..1 + random.usize(..4)).map(|_| random.u64(..JOBS)).collect();
        let mut lives = Lives::new();
        let end = loop {
            let poison = poison.clone();
            let with = |builder: Stream| builder.max_processing(threads).max_crashes(max).on_exhausted(PARK);
            match lives.live(with, move |index| poison.contains(&index)) {
                Ok(end) => break end,
                Err(_) => assert!(lives.deaths < 100, "seed {seed}: it dies for ever"),
            }
        };
        end.unwrap();
        assert_eq!(lives.crashes(), poison.iter().map(|index| (*index, max)).collect(), "seed {seed}");
        assert!(lives.deaths <= poison.len() as u32 * (max + 2), "seed {seed}: {} deaths", lives.deaths);
    }
}

/// A process that somebody kills at any moment, also between the job and its save, and while a
/// record is written.
#[test]
fn a_process_that_is_killed_at_any_write_blames_nobody_if_the_next_lives_go_well() {
    for write in 0..40 {
        let disk = FaultyStore::new().unwrap();
        let life = |disk: &FaultyStore| {
            let ran = Arc::new(AtomicU64::new(0));
            let builder = Consumer::builder(numbers(JOBS), disk.store().progress("p")).stop_at(JOBS - 1);
            let consumer = builder.max_processing(4).max_crashes(1).on_exhausted(PARK).start({
                let ran = ran.clone();
                move |job| {
                    ran.fetch_or(1 << job.index, Ordering::SeqCst);
                    Ok(())
                }
            });
            consumer.unwrap().join().unwrap();
            ran.load(Ordering::SeqCst)
        };
        disk.freeze_at(write);
        let first = life(&disk);
        let disk = disk.after_crash().unwrap();
        // The second life dies at some write too, so there are suspects in the third.
        disk.freeze_at(write % 7);
        let second = life(&disk);
        let disk = disk.after_crash().unwrap();
        let third = life(&disk);
        assert_eq!(first | second | third, (1 << JOBS) - 1, "a crash at write {write}: a job was skipped");
        assert_eq!(disk.store().progress("p").last_processed().unwrap(), Some(JOBS - 1));
        assert_eq!(disk.store().parked("p").unwrap(), [], "a crash at write {write}");
        let writes = disk.writes();
        assert_eq!(life(&disk), 0);
        assert!(disk.writes() <= writes + 2, "the records of earlier lives are gone");
    }
}

/// Each single write of the lives that a job kills is lost, one after the other, with all later
/// writes of that life.
#[test]
fn wherever_the_disk_stops_a_job_that_kills_its_process_is_parked_in_the_end_and_alone() {
    for write in 0..60 {
        let mut lives = Lives::new();
        let mut left = write;
        let end = loop {
            let with = |builder: Stream| builder.max_processing(3).max_crashes(2).on_exhausted(PARK);
            let before = lives.disk.writes();
            let frozen = left < 12;
            if frozen {
                lives.disk.freeze_at(left);
            }
            let end = lives.live(with, |index| index == 20);
            match end {
                Ok(_) if frozen => lives.disk = Arc::new(lives.disk.after_crash().unwrap()),
                Ok(end) => break end,
                Err(_) => assert!(lives.deaths <= 12, "it dies for ever"),
            }
            left = if frozen { u64::MAX } else { left.saturating_sub(lives.disk.writes().max(before + 12) - before) };
        };
        end.unwrap();
        assert_eq!(lives.crashes(), BTreeMap::from([(20, 2)]), "the disk stopped at write {write}");
        assert_eq!(lives.disk.store().progress("p").last_processed().unwrap(), Some(JOBS - 1));
    }
}

#[test]
fn a_consumer_that_parks_nothing_halts_at_the_job_until_it_is_mended_or_may_crash_more_often() {
    let mut lives = Lives::new();
    let life = |lives: &mut Lives, max: u32, poison: bool| loop {
        let with = |builder: Stream| builder.max_processing(2).max_crashes(max);
        if let Ok(end) = lives.live(with, move |index| poison && index == 9) {
            break end;
        }
    };
    for _ in 0..3 {
        let error = life(&mut lives, 2, true).unwrap_err();
        assert!(matches!(&error, Error::Crashed { index: 9, crashes: 2 }), "{error:?}");
        assert_eq!(lives.deaths, 4);
    }
    let error = life(&mut lives, 3, true).unwrap_err();
    assert!(error.report().contains("died 3 times"), "{error:?}");
    assert_eq!(lives.deaths, 5);
    let info = lives.disk.store().consumers().unwrap().remove(0);
    let halt = info.last_halt.expect("it halted");
    assert!(halt.index == 9 && halt.error.contains("died 3 times while job 9 ran alone"), "{halt:?}");
    life(&mut lives, 4, false).unwrap();
    assert_eq!(lives.disk.store().progress("p").last_processed().unwrap(), Some(JOBS - 1));
}

#[test]
fn a_long_job_outlives_any_number_of_deaths_where_crashes_do_not_count() {
    let mut lives = Lives::new();
    for _ in 0..20 {
        assert!(lives.live(|builder| builder.max_processing(1), |index| index == 5).is_err());
    }
    lives.live(|builder| builder, |_| false).unwrap().unwrap();
}

#[test]
fn attempts_and_the_rest_of_a_back_off_outlive_the_process() {
    let store = Store::in_memory();
    let (say, said) = crossbeam_channel::unbounded();
    let life = |pause: Duration| {
        let say = say.clone();
        Consumer::builder(numbers(2), store.progress("p"))
            .max_processing(1)
            .retry(Retry::fixed(pause).max_attempts(4))
            .on_exhausted(PARK)
            .start(move |job| {
                say.send((job.index, job.attempt))?;
                Err("not yet".into())
            })
            .unwrap()
    };
    let hour = Duration::from_secs(3600);
    let consumer = life(hour);
    until(&consumer.handle(), "both have failed", |status| {
        status.failed == 2 && status.saves > 0 && status.processing == 0
    });
    consumer.stop().unwrap();
    assert_eq!(said.try_iter().collect::<Vec<_>>(), [(0, 1), (1, 1)]);
    let consumer = life(hour);
    let waits = |status: &Status| matches!(status.blocked, Blocked::Retrying { attempt: 1, .. });
    let status = until(&consumer.handle(), "a back-off", waits);
    let Blocked::Retrying { retry_in, error, .. } = status.blocked else { unreachable!() };
    assert!(retry_in > hour - LONG && error == "not yet", "{retry_in:?}: {error}");
    consumer.stop().unwrap();
    assert_eq!(said.try_iter().count(), 0);
    let consumer = life(Duration::ZERO);
    eventually("both are parked", || store.parked("p").unwrap().len() == 2);
    consumer.stop().unwrap();
    let ran: BTreeSet<_> = said.try_iter().collect();
    assert!(ran.into_iter().eq((0..2).flat_map(|index| (2..=4).map(move |attempt| (index, attempt)))));
    let parked = store.parked("p").unwrap();
    assert!(parked.iter().all(|parked| parked.attempts == 4 && parked.crashes == 0), "{parked:?}");
}

#[test]
fn an_ordinary_life_costs_two_small_writes_and_none_where_crashes_do_not_count() {
    let writes = |with: fn(Stream) -> Stream| {
        let disk = FaultyStore::new().unwrap();
        // The store notes once that its consumers may park jobs.
        let first = Consumer::builder(numbers(0), disk.store().progress("first")).on_exhausted(PARK);
        first.start(|_| Ok(())).unwrap().stop().unwrap();
        let builder = Consumer::builder(numbers(0), disk.store().progress("p"));
        let before = disk.writes();
        with(builder).start(|_| Ok(())).unwrap().stop().unwrap();
        disk.writes() - before
    };
    assert_eq!(writes(|builder| builder), 0);
    assert_eq!(writes(|builder| builder.max_crashes(9)), 2);
    assert_eq!(writes(|builder| builder.on_exhausted(PARK)), 2);
}

#[test]
fn the_store_says_if_a_life_is_open_when_the_watermark_moved_and_how_it_halted() {
    let before = SystemTime::now();
    let disk = FaultyStore::new().unwrap();
    let info = |disk: &FaultyStore| disk.store().consumers().unwrap().remove(0);
    let builder = Consumer::builder(numbers(5), disk.store().progress("p")).on_exhausted(PARK);
    let consumer =
        builder.start(|job| if job.index == 3 { Err(Failure::permanent("bad").into()) } else { Ok(()) }).unwrap();
    assert!(consumer.handle().wait_for(4, LONG));
    let running = info(&disk);
    assert_eq!((running.life_open, running.parked, running.last_processed), (Some(true), 1, Some(4)));
    let moved = running.moved_at.expect("it moved");
    assert!(before <= moved + Duration::from_millis(1) && moved <= SystemTime::now());
    let dead = disk.after_crash().unwrap();
    consumer.stop().unwrap();
    assert_eq!((info(&disk).life_open, info(&dead).life_open), (Some(false), Some(true)));
    let builder = Consumer::builder(numbers(9), disk.store().progress("p"));
    let error = builder.start(|_| Err("refused".into())).unwrap().join().unwrap_err();
    let halt = info(&disk).last_halt.expect("it halted");
    assert!(matches!(error, Error::Job { index, .. } if index == halt.index));
    assert!(halt.error.contains("refused") && halt.at >= moved, "{halt:?}");
}

#[test]
fn crashes_that_cannot_be_counted_are_refused() {
    let builder = || Consumer::builder(numbers(1), Store::in_memory().progress("p"));
    let refused = builder().max_crashes(0).start(|_| Ok(())).map(drop);
    assert!(matches!(refused, Err(Error::Config(ConfigError::MaxCrashesZero))), "{refused:?}");
    let refused = Consumer::builder(numbers(1), MemoryProgress::new()).max_crashes(1).start(|_| Ok(())).map(drop);
    assert!(matches!(refused, Err(Error::Config(ConfigError::MaxCrashesUnsupported))), "{refused:?}");
}
