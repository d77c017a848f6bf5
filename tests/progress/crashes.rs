//! Jobs that kill their process. To simulate the crash, the disk takes no writes from the moment
//! the job runs.

use common::every_write::DiskFault::Stop;
use common::every_write::{every_write, every_write_after};
use common::{HOUR, LONG, QUIET, Time, eventually, numbers, rest, until};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};
use waterline::testing::FaultyStore;
use waterline::{
    Blocked, BoxError, Builder, Clock, Consumer, Error, Failure, Gate, Handle, Index, Job, Jobs, MemoryJobs,
    OnExhausted, Retry, Status, Store, StoreProgress,
};

const PARK: OnExhausted = OnExhausted::Park { budget: 100 };
const JOBS: Index = 60;

struct Lives {
    disk: Arc<FaultyStore>,
    deaths: u32,
}

/// One life, as its jobs see it.
#[derive(Default)]
struct Life {
    dead: AtomicBool,
    in_flight: AtomicUsize,
    /// The number of jobs in flight beside the one that killed the process.
    company: AtomicUsize,
}

type Stream = Builder<MemoryJobs<u64>, StoreProgress>;

impl Lives {
    fn new() -> Self {
        Self { disk: Arc::new(FaultyStore::new().unwrap()), deaths: 0 }
    }

    /// Runs a consumer to its end, or until one of these jobs kills it. Returns the end, or the
    /// number of jobs in flight beside the one that killed it.
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
                    disk.freeze_at(0);
                    life.dead.store(true, Ordering::SeqCst);
                    life.company.store(company, Ordering::SeqCst);
                }
                // Lets jobs overlap.
                rest();
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
fn a_crashing_job_alone_is_blamed_and_parked() {
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
        let times = if max == 1 { "once".to_owned() } else { format!("{max} times") };
        assert!(error.contains(&format!("died {times} while job {poison} ran alone")), "{error}");
    }
}

#[test]
fn jobs_that_crash_together_are_told_apart() {
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

/// The kill comes at any moment, also between a job and its save, and within a write.
#[test]
fn a_kill_at_any_write_blames_no_job() {
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
    every_write(
        &[Stop],
        |trial| life(&trial.disk),
        |next, first| {
            // The second life dies at some write, too, so the third has suspects.
            next.disk.freeze_at(next.write % 7);
            let second = life(&next.disk);
            let disk = next.disk.after_crash().unwrap();
            let third = life(&disk);
            assert_eq!(first | second | third, (1 << JOBS) - 1, "a job was skipped");
            assert_eq!(disk.store().progress("p").last_processed().unwrap(), Some(JOBS - 1));
            assert_eq!(disk.store().parked("p").unwrap(), []);
            let writes = disk.writes();
            assert_eq!(life(&disk), 0);
            assert!(disk.writes() <= writes + 2, "the records of earlier lives are gone");
        },
    );
}

/// For each write of the lives that a job kills: it is lost, with all later writes of that life.
#[test]
fn a_crashing_job_alone_is_parked_at_any_disk_fault() {
    let with = |builder: Stream| builder.max_processing(3).max_crashes(2).on_exhausted(PARK);
    let live = |disk: &Arc<FaultyStore>| {
        let mut lives = Lives { disk: disk.clone(), deaths: 0 };
        let end = lives.live(with, |index| index == 20);
        (lives, end)
    };
    // The number of earlier lives, which the job kills, too.
    for before in 0..4 {
        let prepare = |disk: &mut Arc<FaultyStore>| (0..before).for_each(|_| *disk = live(disk).0.disk);
        every_write_after(
            prepare,
            &[Stop],
            |trial| drop(live(&trial.disk)),
            |next, ()| {
                let (mut lives, mut end) = live(&next.disk);
                while end.is_err() {
                    assert!(lives.deaths <= 12, "it dies for ever");
                    end = lives.live(with, |index| index == 20);
                }
                end.unwrap().unwrap();
                assert_eq!(lives.crashes(), BTreeMap::from([(20, 2)]));
                assert_eq!(lives.disk.store().progress("p").last_processed().unwrap(), Some(JOBS - 1));
            },
        );
    }
}

#[test]
fn a_crashing_job_halts_a_consumer_without_parking() {
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
fn uncounted_crashes_never_park_a_long_job() {
    let mut lives = Lives::new();
    for _ in 0..20 {
        assert!(lives.live(|builder| builder.max_processing(1), |index| index == 5).is_err());
    }
    lives.live(|builder| builder, |_| false).unwrap().unwrap();
}

#[test]
fn attempts_and_backoff_survive_a_crash() {
    let store = Store::in_memory();
    let (say, said) = crossbeam_channel::unbounded();
    let time = Time::new();
    let life = |pause: Duration| {
        let say = say.clone();
        Consumer::builder(numbers(2), store.progress("p"))
            .clock(time.clock())
            .max_processing(1)
            .retry(Retry::fixed(pause).max_attempts(4))
            .on_exhausted(PARK)
            .start(move |job| {
                say.send((job.index, job.attempt))?;
                Err("not yet".into())
            })
            .unwrap()
    };
    let consumer = life(HOUR);
    until(&consumer.handle(), "both have failed", |status| {
        status.failed == 2 && status.saves > 0 && status.processing == 0
    });
    consumer.stop().unwrap();
    assert_eq!(said.try_iter().collect::<Vec<_>>(), [(0, 1), (1, 1)]);
    time.pass(HOUR / 4);
    let consumer = life(HOUR);
    let waits = |status: &Status| matches!(status.blocked, Blocked::Retrying { attempt: 1, .. });
    let status = until(&consumer.handle(), "a back-off", waits);
    let Blocked::Retrying { retry_in, error, .. } = status.blocked else { unreachable!() };
    assert_eq!((retry_in, &*error), (HOUR * 3 / 4, "not yet"));
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
fn an_attempt_put_back_by_a_stop_does_not_count() {
    let store = Store::in_memory();
    let (begun, has_begun) = crossbeam_channel::bounded(1);
    let (go, may_go) = crossbeam_channel::bounded::<()>(1);
    let builder = || Consumer::builder(numbers(1), store.progress("p")).on_exhausted(PARK);
    let consumer = builder()
        .retry(Retry::fixed(Duration::ZERO).max_attempts(4))
        .start(move |job| {
            if job.attempt == 2 {
                begun.send(())?;
                may_go.recv()?;
            }
            Err("not yet".into())
        })
        .unwrap();
    has_begun.recv_timeout(LONG).unwrap();
    consumer.handle().request_stop();
    go.send(()).unwrap();
    consumer.stop().unwrap();
    let (say, said) = crossbeam_channel::unbounded();
    builder().stop_at(0).start(move |job| Ok(say.send(job.attempt)?)).unwrap().join().unwrap();
    assert_eq!(said.try_iter().collect::<Vec<_>>(), [2]);
}

#[test]
fn a_clock_set_back_keeps_the_rest_of_a_backoff() {
    let clock = Clock::manual(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000));
    let store = Store::in_memory();
    let life = || {
        Consumer::builder(numbers(1), store.progress("p"))
            .clock(clock.clone())
            .retry(Retry::fixed(HOUR).max_attempts(4))
            .on_exhausted(PARK)
            .start(|_| Err("not yet".into()))
            .unwrap()
    };
    let right = clock.wall_time();
    clock.set_wall(right + 365 * 24 * HOUR);
    let consumer = life();
    until(&consumer.handle(), "it has failed", |status| status.failed == 1 && status.saves > 0);
    clock.advance(HOUR / 4);
    consumer.stop().unwrap();
    clock.set_wall(right + HOUR / 2);
    let consumer = life();
    let waits = |status: &Status| matches!(status.blocked, Blocked::Retrying { attempt: 1, .. });
    let status = until(&consumer.handle(), "a back-off", waits);
    let Blocked::Retrying { retry_in, .. } = status.blocked else { unreachable!() };
    assert_eq!(retry_in, HOUR * 3 / 4, "what was left when the life before ended");
    consumer.stop().unwrap();
}

#[test]
fn counting_crashes_costs_two_small_writes_a_life() {
    let writes = |with: fn(Stream) -> Stream| {
        let disk = FaultyStore::new().unwrap();
        // The store notes once that its consumers may park jobs, which is not counted.
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
fn the_store_shows_open_lives_moves_and_halts() {
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

/// A source whose head and gate the test moves.
#[derive(Clone)]
struct Steered(Arc<(AtomicU64, AtomicU64)>);

impl Steered {
    fn new(head: Index, gate: Index) -> Self {
        Self(Arc::new((head.into(), gate.into())))
    }
}

impl Jobs for Steered {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(self.0.0.load(Ordering::SeqCst)))
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        Ok(Some(index))
    }

    fn gate(&self) -> Gate {
        Gate::UpTo(self.0.1.load(Ordering::SeqCst))
    }
}

/// Runs a consumer until this job kills it, and returns the disk that is left.
fn killed_by(
    poison: Index,
    disk: FaultyStore,
    with: impl Fn(Builder<Steered, StoreProgress>) -> Builder<Steered, StoreProgress>,
    jobs: &Steered,
) -> FaultyStore {
    let disk = Arc::new(disk);
    let builder = Consumer::builder(jobs.clone(), disk.store().progress("p"));
    let (say, said) = crossbeam_channel::bounded(99);
    let consumer = with(builder).max_processing(1).start({
        let disk = disk.clone();
        move |job| {
            if job.index == poison {
                disk.freeze_at(0);
                say.send(())?;
            }
            Ok(())
        }
    });
    assert_eq!(said.recv_timeout(LONG), Ok(()), "{}", consumer.unwrap().handle().status());
    disk.after_crash().unwrap()
}

#[test]
fn a_suspect_that_never_started_is_not_blamed() {
    let mut lives = Lives::new();
    let with = |builder: Stream| builder.max_processing(1).max_crashes(2).on_exhausted(PARK);
    for _ in 0..2 {
        assert!(lives.live(with, |index| index == 5).is_err());
    }
    for _life in 0..4 {
        // The first write opens the life; the second counts the crash.
        lives.disk.fail(1..);
        let builder = Consumer::builder(numbers(JOBS), lives.disk.store().progress("p"));
        let consumer = with(builder).start(|job| Err(format!("job {} ran", job.index).into())).unwrap();
        let handle = consumer.handle();
        until(&handle, "the count is refused", |status| matches!(status.blocked, Blocked::Progress { .. }));
        handle.pause();
        lives.disk.heal();
        until(&handle, "it is counted", |status| status.saves > 0);
        consumer.stop().unwrap();
    }
    lives.live(with, |_| false).unwrap().unwrap();
    assert_eq!(lives.crashes(), BTreeMap::new());
}

#[test]
fn a_suspect_above_a_narrowed_window_blocks_no_job() {
    let mut lives = Lives::new();
    let with = |builder: Stream| builder.max_processing(4).max_crashes(2).on_exhausted(PARK);
    for _ in 0..2 {
        assert!(lives.live(with, |index| index == 5).is_err());
    }
    let builder = Consumer::builder(numbers(JOBS), lives.disk.store().progress("p"));
    let (pause, time) = (Retry::fixed(HOUR).max_attempts(5), Time::new());
    let builder = builder.clock(time.clock());
    let consumer = with(builder).max_search_ahead(1).retry(pause).stop_at(JOBS - 1).start(|job| match job.attempt {
        1 | 2 => Err("not yet".into()),
        _ => Ok(()),
    });
    let consumer = consumer.unwrap();
    let handle = consumer.handle();
    time.steps(HOUR, "all jobs", || handle.wait_for(JOBS - 1, Duration::ZERO));
    consumer.join().unwrap();
    assert_eq!(lives.crashes(), BTreeMap::new());
}

#[test]
fn narrowing_while_a_suspect_is_counted_stalls_no_job() {
    let mut lives = Lives::new();
    let with = |builder: Stream| builder.max_processing(4).max_crashes(2).on_exhausted(PARK);
    for _ in 0..2 {
        assert!(lives.live(with, |index| index == 5).is_err());
    }
    let (pause, time) = (Retry::fixed(HOUR).max_attempts(5), Time::new());
    let builder = Consumer::builder(numbers(JOBS), lives.disk.store().progress("p")).clock(time.clock());
    let builder = builder.retry(pause).stop_at(JOBS - 1);
    let (failed, has_failed) = crossbeam_channel::bounded(1);
    let fails = AtomicBool::new(true);
    let consumer = with(builder).start({
        let disk = lives.disk.clone();
        move |job| {
            if fails.swap(false, Ordering::SeqCst) {
                // Neither its record nor the count of the next suspect is written.
                disk.fail(..);
                failed.send(job.index)?;
                return Err("not yet".into());
            }
            Ok(())
        }
    });
    let consumer = consumer.unwrap();
    let handle = consumer.handle();
    has_failed.recv_timeout(LONG).unwrap();
    until(&handle, "the next one is counted", |status| matches!(status.blocked, Blocked::Progress { .. }));
    handle.set_max_search_ahead(1).unwrap();
    lives.disk.heal();
    time.steps(HOUR, "all jobs", || handle.wait_for(JOBS - 1, Duration::ZERO));
    consumer.join().unwrap();
    assert_eq!(lives.crashes(), BTreeMap::new());
}

#[test]
fn a_gated_job_is_no_suspect_and_stays_gated() {
    let jobs = Steered::new(40, 5);
    let with = |builder: Builder<Steered, _>| builder.max_crashes(3).on_exhausted(PARK);
    let disk = killed_by(3, FaultyStore::new().unwrap(), with, &jobs);
    let disk = killed_by(3, disk, with, &jobs);
    let highest = Arc::new(AtomicU64::new(0));
    let builder = Consumer::builder(jobs.clone(), disk.store().progress("p"));
    let consumer = with(builder).start({
        let highest = highest.clone();
        move |job| {
            highest.fetch_max(job.index, Ordering::SeqCst);
            Ok(())
        }
    });
    let consumer = consumer.unwrap();
    let handle = consumer.handle();
    until(&handle, "the gate", |status| status.blocked == Blocked::Upstream { index: 6 } && status.unsaved == 0);
    assert_eq!(highest.load(Ordering::SeqCst), 5);
    jobs.0.1.store(40, Ordering::SeqCst);
    handle.check();
    assert!(handle.wait_for(40, LONG));
    consumer.stop().unwrap();
}

#[test]
fn a_redrive_request_survives_a_stop() {
    let disk = FaultyStore::new().unwrap();
    let builder = || Consumer::builder(numbers(4), disk.store().progress("p")).on_exhausted(PARK);
    let bad = |index: Index| if index == 2 { Err("bad".into()) } else { Ok(()) };
    builder().stop_at(3).start(move |job| bad(job.index)).unwrap().join().unwrap();
    disk.store().redrive("p", 2).unwrap();
    disk.fail(1..);
    let consumer = builder().start(|_| Ok(())).unwrap();
    let handle = consumer.handle();
    until(&handle, "its start is not recorded", |status| matches!(status.blocked, Blocked::Progress { .. }));
    handle.pause();
    disk.heal();
    until(&handle, "its start is recorded", |status| status.saves > 0);
    consumer.stop().unwrap();
    assert!(disk.store().parked("p").unwrap()[0].redrive_wanted);
    builder().stop_at(3).start(|_| Ok(())).unwrap().join().unwrap();
    assert_eq!(disk.store().parked("p").unwrap(), []);
}

#[test]
fn a_job_parked_for_crashes_runs_after_a_seek_back() {
    let mut lives = Lives::new();
    let with = |builder: Stream| builder.max_processing(4).max_crashes(2).on_exhausted(PARK);
    while lives.live(with, |index| index == 30).is_err() {}
    assert_eq!(lives.crashes(), BTreeMap::from([(30, 2)]));
    lives.disk.store().progress("p").seek(0, "job 30 is mended").unwrap();
    // The jobs below job 30 are new ones.
    let builder = Consumer::builder(Steered::new(JOBS, 0), lives.disk.store().progress("p"));
    let consumer = builder.max_crashes(2).on_exhausted(PARK).start(|_| Ok(())).unwrap();
    assert!(consumer.handle().status().next <= 1);
    consumer.stop().unwrap();
    let again = (0..).take_while(|_| lives.live(with, |index| index == 30).is_err()).count();
    assert_eq!(lives.crashes(), BTreeMap::from([(30, 2)]));
    assert!(again >= 2, "the crashes before the seek count: it was parked after {again}");
    lives.disk.store().progress("p").seek(0, "job 30 is mended").unwrap();
    lives.live(with, |_| false).unwrap().unwrap();
    assert_eq!(lives.crashes(), BTreeMap::new(), "it has run");
}

#[test]
fn a_parked_job_does_not_run_after_a_seek_past_it() {
    let mut lives = Lives::new();
    let with = |builder: Stream| builder.max_processing(4).max_crashes(2).on_exhausted(PARK);
    while lives.live(with, |index| index == 30).is_err() {}
    lives.disk.store().progress("p").seek(0, "job 30 is mended").unwrap();
    // From the second life on, job 30 is noted as started beside its record as parked.
    let often = |builder: Stream| builder.max_processing(4).max_crashes(9).on_exhausted(PARK);
    (0..3).for_each(|_| assert!(lives.live(often, |index| index == 30).is_err()));
    lives.disk.store().progress("p").seek(40, "job 30 is of no use").unwrap();
    lives.live(often, |index| index == 30).expect("job 30 does not run").unwrap();
    assert!(lives.crashes().contains_key(&30), "it stays parked");
}

#[test]
fn an_unsaved_window_width_allows_no_smaller_one() {
    let disk = Arc::new(FaultyStore::new().unwrap());
    let (go, gate) = crossbeam_channel::unbounded::<()>();
    let healed = Arc::new(AtomicBool::new(false));
    let builder = Consumer::builder(numbers(JOBS), disk.store().progress("p")).max_crashes(2).max_processing(8);
    let consumer = builder.max_search_ahead(1).stop_at(JOBS - 1).start({
        let healed = healed.clone();
        move |job| {
            if job.index == 0 {
                gate.recv()?;
            } else {
                assert!(healed.load(Ordering::SeqCst), "job {} started", job.index);
            }
            Ok(())
        }
    });
    let consumer = consumer.unwrap();
    let handle = consumer.handle();
    until(&handle, "job 0 runs", |status| status.processing == 1);
    disk.fail(..);
    handle.set_max_search_ahead(100).unwrap();
    handle.set_max_search_ahead(50).unwrap();
    until(&handle, "the width is refused", |status| matches!(status.blocked, Blocked::Progress { .. }));
    let writes = disk.writes();
    eventually("it is refused again", || disk.writes() > writes + 1);
    healed.store(true, Ordering::SeqCst);
    disk.heal();
    go.send(()).unwrap();
    consumer.join().unwrap();
}

#[test]
fn refused_effects_blame_no_suspect_for_a_crash() {
    let mut lives = Lives::new();
    let with = |builder: Stream| builder.max_processing(1).max_crashes(2);
    for _ in 0..2 {
        assert!(lives.live(with, |index| index == 0).is_err());
    }
    let text = lives.disk.store().table("text").unwrap();
    text.put("no counter", "abc").unwrap();
    for life in 0..4 {
        let builder = Consumer::builder(numbers(JOBS), lives.disk.store().progress("p"));
        let text = text.clone();
        let consumer = with(builder).start_transactional(move |_, effects| Ok(effects.add(&text, "no counter", 1)?));
        let error = consumer.unwrap().join().unwrap_err();
        assert!(matches!(error, Error::Job { .. }), "life {life}: {error:?}");
    }
}

#[test]
fn a_late_source_hides_no_crashing_job() {
    let jobs = Steered::new(0, JOBS);
    let max = 2;
    let with = |builder: Builder<Steered, _>| builder.unlimited_search_ahead().max_crashes(max).on_exhausted(PARK);
    let mut disk = Arc::new(FaultyStore::new().unwrap());
    for deaths in 0.. {
        assert!(deaths <= max + 2, "it dies for ever");
        jobs.0.0.store(0, Ordering::SeqCst);
        let builder = Consumer::builder(jobs.clone(), disk.store().progress("p"));
        let dies = Arc::new(AtomicBool::new(false));
        let consumer = with(builder).max_processing(2).start({
            let (disk, dies) = (disk.clone(), dies.clone());
            move |job| {
                if job.index == 30 {
                    disk.freeze_at(0);
                    dies.store(true, Ordering::SeqCst);
                }
                Ok(())
            }
        });
        let consumer = consumer.unwrap();
        until(&consumer.handle(), "a look", |status| status.head == Some(0));
        jobs.0.0.store(JOBS, Ordering::SeqCst);
        consumer.handle().check();
        assert!(consumer.handle().wait_for(JOBS, LONG));
        consumer.stop().unwrap();
        if !dies.load(Ordering::SeqCst) {
            break;
        }
        disk = Arc::new(disk.after_crash().unwrap());
    }
    assert_eq!(disk.store().parked("p").unwrap()[0].crashes, max);
}

#[test]
fn new_jobs_do_not_wait_for_a_suspects_backoff() {
    let jobs = Steered::new(3, JOBS);
    let with = |builder: Builder<Steered, _>| builder.max_crashes(3).on_exhausted(PARK).max_search_ahead(4);
    let disk = killed_by(2, FaultyStore::new().unwrap(), with, &jobs);
    let builder = Consumer::builder(jobs.clone(), disk.store().progress("p"));
    let hour = Retry::fixed(HOUR);
    let consumer =
        builder.max_crashes(3).retry(hour).start(|job| if job.index == 3 { Err("no".into()) } else { Ok(()) });
    let consumer = consumer.unwrap();
    let handle = consumer.handle();
    until(&handle, "job 3 waits", |status| status.failed == 1 && status.unsaved == 0 && status.processing == 0);
    // One by one, so that the head is at some time the last job that may have been in flight.
    for head in 4..10 {
        jobs.0.0.store(head, Ordering::SeqCst);
        handle.check();
        until(&handle, "the job at the head is done", |status| status.done_ahead == head - 3);
    }
    consumer.stop().unwrap();
}

#[test]
fn a_failed_job_above_the_end_does_not_run() {
    let store = Store::in_memory();
    let life = |stop_at, retry: Retry, ran: Arc<AtomicU64>| {
        let builder = Consumer::builder(numbers(20), store.progress("p")).on_exhausted(PARK).max_processing(1);
        let builder = builder.retry(retry.max_attempts(9)).stop_at(stop_at);
        let consumer = builder.start(move |job| {
            ran.fetch_or(1 << job.index, Ordering::SeqCst);
            if [3, 15].contains(&job.index) && job.attempt < 3 { Err("not yet".into()) } else { Ok(()) }
        });
        consumer.unwrap()
    };
    let first = life(19, Retry::fixed(HOUR), Arc::default());
    until(&first.handle(), "both wait", |status| status.done_ahead == 15 && status.unsaved == 0);
    first.stop().unwrap();
    let ran = Arc::new(AtomicU64::new(0));
    life(10, Retry::fixed(Duration::ZERO), ran.clone()).join().unwrap();
    assert_eq!(ran.load(Ordering::SeqCst), 1 << 3);
    life(19, Retry::fixed(Duration::ZERO), ran.clone()).join().unwrap();
    assert_eq!(ran.load(Ordering::SeqCst), 1 << 3 | 1 << 15);
}

#[test]
fn nothing_starts_before_a_crash_count_is_cleared() {
    let mut lives = Lives::new();
    let with = |builder: Stream| builder.max_processing(1).max_search_ahead(8).max_crashes(1).on_exhausted(PARK);
    lives.live(|builder| with(builder).stop_at(4), |_| false).unwrap().unwrap();
    for _ in 0..2 {
        assert!(lives.live(with, |index| index == 5).is_err());
    }
    // Jobs 5 to 12 are suspects now.
    let healed = Arc::new(AtomicBool::new(false));
    let builder = Consumer::builder(numbers(JOBS), lives.disk.store().progress("p")).stop_at(JOBS - 1);
    let consumer = with(builder).start({
        let (disk, healed) = (lives.disk.clone(), healed.clone());
        move |job| {
            if job.index == 12 {
                disk.fail(..);
            }
            assert!(job.index <= 12 || healed.load(Ordering::SeqCst), "job {} starts", job.index);
            Ok(())
        }
    });
    let consumer = consumer.unwrap();
    let handle = consumer.handle();
    until(&handle, "a save fails", |status| matches!(status.blocked, Blocked::Progress { .. }));
    let writes = lives.disk.writes();
    eventually("it fails again", || lives.disk.writes() > writes + 1);
    healed.store(true, Ordering::SeqCst);
    lives.disk.heal();
    consumer.join().unwrap();
    assert_eq!(lives.crashes(), BTreeMap::new());
}

#[test]
fn a_suspect_in_order_waits_for_its_turn() {
    let disk = FaultyStore::new().unwrap();
    let jobs = Steered::new(9, JOBS);
    let with = |builder: Builder<Steered, _>| builder.max_crashes(3).on_exhausted(PARK);
    let disk = killed_by(0, disk, with, &jobs);
    let disk = killed_by(0, disk, with, &jobs);
    let (say, said) = crossbeam_channel::unbounded();
    let hour = Retry::fixed(HOUR);
    let life = |retry: Retry| {
        let builder = Consumer::builder(jobs.clone(), disk.store().progress("p")).stop_at(9);
        let say = say.clone();
        let work = move |job: Job<Index>| {
            say.send(job.index)?;
            if job.attempt == 1 { Err("not yet".into()) } else { Ok(()) }
        };
        with(builder).max_processing(2).retry(retry).start_ordered(work, |_, ()| Ok(())).unwrap()
    };
    let consumer = life(hour);
    assert_eq!(said.recv_timeout(LONG), Ok(0));
    assert!(said.recv_timeout(QUIET).is_err(), "the others wait for job 0");
    consumer.stop().unwrap();
    life(Retry::fixed(Duration::ZERO)).join().unwrap();
    assert_eq!(disk.store().parked("p").unwrap(), []);
}

struct Process {
    /// The number of earlier processes.
    number: u32,
    disk: FaultyStore,
    dead: AtomicBool,
    handle: OnceLock<Handle>,
}

impl Process {
    fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    fn die(&self) {
        self.disk.freeze_at(0);
        self.dead.store(true, Ordering::SeqCst);
    }

    fn handle(&self) -> &Handle {
        self.handle.wait()
    }
}

/// Starts processes until one ends well. Returns the number of those that died, and the parked jobs
/// with their crashes.
fn processes(
    with: impl Fn(u32, Stream) -> Stream,
    run: impl Fn(&Process, Job<u64>) -> Result<(), BoxError> + Clone + Send + Sync + 'static,
) -> (u32, BTreeMap<Index, u32>) {
    let (mut disk, mut deaths) = (FaultyStore::new().unwrap(), 0);
    for number in 0..50 {
        let process = Process { number, disk, dead: AtomicBool::new(false), handle: OnceLock::new() };
        let process = Arc::new(process);
        let builder = Consumer::builder(numbers(JOBS), process.disk.store().progress("p")).on_exhausted(PARK);
        let consumer = with(number, builder).stop_at(JOBS - 1).start({
            let (process, run) = (process.clone(), run.clone());
            move |job| run(&process, job)
        });
        let consumer = consumer.unwrap();
        let _ = process.handle.set(consumer.handle());
        let end = consumer.join();
        disk = process.disk.after_crash().unwrap();
        deaths += u32::from(process.is_dead());
        let store = disk.store();
        if !process.is_dead() && store.progress("p").last_processed().unwrap() == Some(JOBS - 1) {
            end.unwrap();
            let parked = store.parked("p").unwrap();
            return (deaths, parked.into_iter().map(|parked| (parked.index, parked.crashes)).collect());
        }
    }
    panic!("it dies for ever");
}

#[test]
fn the_last_job_of_a_window_is_recorded_first() {
    let with = |number, builder: Stream| {
        builder.max_crashes(1).max_processing(8).max_search_ahead(if number == 0 { 4 } else { 100 })
    };
    let died = processes(with, |process, job| {
        match job.index {
            3 => process.die(),
            // Holds the window until job 3 has killed the process.
            0..3 if process.number == 0 => eventually("job 3 runs", || process.is_dead()),
            _ => {}
        }
        Ok(())
    });
    assert_eq!(died, (3, BTreeMap::from([(3, 1)])));
}

#[test]
fn a_job_of_a_widened_window_is_recorded_first() {
    let with = |number, builder: Stream| {
        builder.max_crashes(1).max_processing(8).max_search_ahead(if number == 0 { 1 } else { 100 })
    };
    let died = processes(with, |process, job| {
        match job.index {
            5 => process.die(),
            0 if process.number == 0 => {
                process.handle().set_max_search_ahead(6)?;
                eventually("job 5 runs", || process.is_dead());
            }
            1..5 if process.number == 0 => eventually("job 5 runs", || process.is_dead()),
            _ => {}
        }
        Ok(())
    });
    assert_eq!(died, (3, BTreeMap::from([(5, 1)])));
}

#[test]
fn a_crash_while_stopping_is_counted() {
    let with = |_, builder: Stream| builder.max_crashes(2).max_processing(2);
    let died = processes(with, |process, job| {
        if job.index == 9 {
            process.handle().request_stop();
            // If the life were closed too early, the disk would say so by now.
            std::thread::park_timeout(QUIET);
            process.die();
        }
        Ok(())
    });
    assert_eq!(died, (4, BTreeMap::from([(9, 2)])));
}

#[test]
fn a_failed_suspect_is_suspect_after_a_stop() {
    let with = |_, builder: Stream| builder.max_crashes(2).max_processing(1).retry(Retry::fixed(HOUR).max_attempts(9));
    let died = processes(with, |process, job| {
        // In the third process, the job fails while the consumer stops.
        match (job.index, process.number) {
            (9, 2) => {
                process.handle().request_stop();
                return Err("not yet".into());
            }
            (9, _) => process.die(),
            _ => {}
        }
        Ok(())
    });
    assert_eq!(died, (4, BTreeMap::from([(9, 2)])));
}

#[test]
fn a_suspect_failing_for_good_is_parked_uncounted() {
    let with = |_, builder: Stream| builder.max_crashes(5).max_processing(1);
    let died = processes(with, |process, job| {
        match (job.index, process.number) {
            (9, 0 | 1) => process.die(),
            (9, _) => return Err(Failure::permanent("it is bad").into()),
            _ => {}
        }
        Ok(())
    });
    assert_eq!(died, (2, BTreeMap::from([(9, 0)])));
}

#[test]
fn a_suspect_is_not_counted_while_others_run() {
    let time = Arc::new(Time::new());
    let clock = time.clock();
    let with =
        |_, builder: Stream| builder.clock(clock.clone()).max_crashes(1).max_processing(2).retry(Retry::fixed(HOUR));
    let fails = AtomicBool::new(true);
    let fails = Arc::new(fails);
    let died = processes(with, move |process, job| {
        match (job.index, process.number) {
            (5, 0 | 1) => process.die(),
            // Its retry is due once job 30 lets time pass.
            (5, 2) if fails.load(Ordering::SeqCst) => return Err("not yet".into()),
            (30, 2) => {
                fails.store(false, Ordering::SeqCst);
                let waits = |status: &Status| status.blocked == Blocked::Alone { index: 5 };
                time.until(HOUR, process.handle(), "job 5 to wait", waits);
                // A count would be on the disk by now.
                std::thread::park_timeout(QUIET);
                process.die();
            }
            _ => {}
        }
        Ok(())
    });
    assert_eq!(died, (3, BTreeMap::new()));
}

#[test]
fn a_redriven_job_keeps_its_error_until_it_ran() {
    let store = Store::in_memory();
    let (go, may_go) = crossbeam_channel::bounded::<()>(0);
    let consumer = Consumer::builder(numbers(1), store.progress("p"))
        .on_exhausted(PARK)
        .start(move |job| {
            if job.attempt > 1 {
                may_go.recv()?;
            }
            Err(format!("refused in attempt {}", job.attempt).into())
        })
        .unwrap();
    let handle = consumer.handle();
    assert!(handle.wait_for(0, LONG));
    let before = store.parked("p").unwrap().remove(0);
    handle.redrive(0).unwrap();
    until(&handle, "it runs", |status| status.processing == 1);
    let running = store.parked("p").unwrap().remove(0);
    assert!(running.redrive_wanted, "the wish stands until it has run");
    let same =
        |parked: &waterline::Parked| (parked.error.clone(), parked.last_failed_at, parked.parked_at, parked.attempts);
    assert_eq!(same(&running), same(&before));
    go.send(()).unwrap();
    eventually("it has failed again", || store.parked("p").unwrap()[0].error == "refused in attempt 2");
    consumer.stop().unwrap();
}
