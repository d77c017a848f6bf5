//! Random lives of consumers in all modes: jobs that kill their process, failures, stops, pauses,
//! changed limits, failing disks, gaps and moves by hand. After the last life each job is done once
//! or parked, and only jobs that kill are blamed.

use common::{LONG, rest, seeds};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use waterline::testing::FaultyStore;
use waterline::{
    BoxError, Builder, Consumer, Error, Failure, Gate, Index, Jobs, OnExhausted, Retry, Sparse, Store, StoreProgress,
};

const JOBS: Index = 40;

/// A source with a gate, and with jobs that are missing for a while or cannot be read.
#[derive(Clone, Default)]
struct Source(Arc<State>);

#[derive(Default)]
struct State {
    head: AtomicU64,
    gate: AtomicU64,
    missing: AtomicU64,
    failing: AtomicU64,
    /// The jobs that are gaps for good.
    absent: AtomicU64,
}

fn bit(index: Index) -> u64 {
    1 << index
}

impl Jobs for Source {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(self.0.head.load(Ordering::SeqCst)))
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        if self.0.failing.load(Ordering::SeqCst) & bit(index) != 0 {
            return Err("it cannot be read".into());
        }
        let missing = self.0.missing.load(Ordering::SeqCst) | self.0.absent.load(Ordering::SeqCst);
        Ok((missing & bit(index) == 0).then_some(index))
    }

    fn read_sparse(&self, run: RangeInclusive<Index>, most: usize, into: &mut Sparse<Index>) -> Result<(), BoxError> {
        let absent = self.0.absent.load(Ordering::SeqCst);
        let mut left = most;
        for index in run.take_while(|index| *index < JOBS) {
            if absent & bit(index) != 0 {
                // The gap goes on above the last job.
                into.none_through(if index == JOBS - 1 { 3 * JOBS } else { index });
                continue;
            }
            match self.at_index(index)? {
                Some(job) if left > 0 => into.job(index, job),
                _ => break,
            }
            left -= 1;
        }
        Ok(())
    }

    fn gate(&self) -> Gate {
        Gate::UpTo(self.0.gate.load(Ordering::SeqCst))
    }
}

/// The behaviour of the jobs, and what was seen of them.
struct Plan {
    seed: u64,
    poison: BTreeSet<Index>,
    /// The jobs that are gaps by now.
    absent: AtomicU64,
    /// Whether a job kills in the sink and not in its work.
    in_sink: bool,
    flaky: BTreeSet<Index>,
    deferring: BTreeSet<Index>,
    panicking: BTreeSet<Index>,
    attempts: u32,
    failures: Mutex<BTreeMap<Index, u32>>,
    deaths: Mutex<BTreeMap<Index, u32>>,
    highest: AtomicU64,
}

impl Plan {
    fn is_absent(&self, index: Index) -> bool {
        self.absent.load(Ordering::SeqCst) & bit(index) != 0
    }
}

struct Life {
    plan: Arc<Plan>,
    disk: Arc<FaultyStore>,
    dead: AtomicBool,
}

impl Life {
    fn die(&self, index: Index) {
        // Only the first job that dies kills the process.
        if self.plan.poison.contains(&index) && !self.dead.swap(true, Ordering::SeqCst) {
            self.disk.freeze_at(0);
            *self.plan.deaths.lock().entry(index).or_default() += 1;
        }
    }

    fn run(&self, index: Index, attempt: u32) -> Result<(), BoxError> {
        let plan = &self.plan;
        plan.highest.fetch_max(index, Ordering::SeqCst);
        if !plan.in_sink {
            self.die(index);
        }
        rest();
        if self.dead.load(Ordering::SeqCst) {
            return Ok(());
        }
        let mut failures = plan.failures.lock();
        let times = failures.entry(index).or_default();
        *times += 1;
        if plan.deferring.contains(&index) && *times < 3 {
            return Err(Failure::defer(Duration::from_micros(100)).into());
        }
        if plan.panicking.contains(&index) && *times < 3 && attempt < plan.attempts {
            drop(failures);
            std::panic::resume_unwind(Box::new("it panics"));
        }
        if plan.flaky.contains(&index) && *times < 4 && attempt < plan.attempts {
            return Err("it fails".into());
        }
        Ok(())
    }
}

fn some(random: &mut fastrand::Rng, most: usize) -> BTreeSet<Index> {
    (0..random.usize(..=most)).map(|_| random.u64(..JOBS)).collect()
}

fn begin(
    mode: u8,
    builder: Builder<Source, StoreProgress>,
    life: &Arc<Life>,
    store: &Store,
) -> Result<Consumer, Error> {
    let life = life.clone();
    match mode {
        0 => builder.start(move |job| life.run(job.index, job.attempt)),
        1 => builder.start_deferred(move |job, done| {
            let life = life.clone();
            std::thread::spawn(move || match life.run(job.index, job.attempt) {
                Ok(()) => done.complete(),
                Err(error) => done.fail(error),
            });
        }),
        2 => {
            let work = life.clone();
            builder.start_ordered(
                move |job| work.run(job.index, job.attempt),
                move |index, ()| {
                    if life.plan.in_sink {
                        life.die(index);
                    }
                    Ok(())
                },
            )
        }
        4 => builder.start_batched(1 + life.plan.attempts as usize % MOST, LINGER, move |jobs| {
            jobs.iter().try_for_each(|job| life.run(job.index, job.attempt))
        }),
        5 => {
            let counts = store.table("counts")?;
            let most = 1 + life.plan.attempts as usize % MOST;
            builder.start_batched_transactional(most, LINGER, move |jobs, effects| {
                for job in jobs {
                    effects.add(&counts, job.index.to_be_bytes(), 1)?;
                    life.run(job.index, job.attempt)?;
                }
                Ok(())
            })
        }
        _ => {
            let counts = store.table("counts")?;
            builder.start_transactional(move |job, effects| {
                effects.add(&counts, job.index.to_be_bytes(), 1)?;
                life.run(job.index, job.attempt)
            })
        }
    }
}

/// The size limit of a batch, and its wait for more jobs.
const MOST: usize = 4;
const LINGER: Duration = Duration::from_micros(200);

const WIDTHS: [u64; 5] = [1, 2, 5, 12, 10_000];

fn plan(seed: u64, mode: u8, random: &mut fastrand::Rng) -> Plan {
    Plan {
        seed,
        poison: some(random, 3),
        absent: AtomicU64::new(0),
        in_sink: mode == 2 && random.bool(),
        flaky: some(random, 5),
        deferring: some(random, 3),
        panicking: if mode == 1 { BTreeSet::new() } else { some(random, 2) },
        attempts: 3 + random.u32(..4),
        failures: Mutex::default(),
        deaths: Mutex::default(),
        highest: AtomicU64::new(0),
    }
}

fn width(random: &mut fastrand::Rng) -> u64 {
    WIDTHS[random.usize(..WIDTHS.len())]
}

/// Disturbs a life from its start on. Returns the index at which it ends, or `None` for a stop.
fn disturb(random: &mut fastrand::Rng, source: &Source, disk: &FaultyStore, unjust: bool) -> Option<Index> {
    match random.u8(..6) {
        0 => source.0.missing.store(random.u64(..), Ordering::SeqCst),
        1 => source.0.failing.store(random.u64(..), Ordering::SeqCst),
        2 => source.0.head.store(random.u64(..JOBS), Ordering::SeqCst),
        3 if unjust => disk.freeze_at(random.u64(..8)),
        4 => {
            let from = 1 + random.u64(..6);
            disk.fail(from..from + random.u64(..4));
        }
        _ => return Some(random.u64(..JOBS)),
    }
    None
}

fn steer(random: &mut fastrand::Rng, consumer: Consumer) -> Result<(), Error> {
    let handle = consumer.handle();
    for _ in 0..random.usize(..6) {
        match random.u8(..8) {
            0 => handle.pause(),
            1 => handle.resume(),
            2 => drop(handle.set_max_search_ahead(width(random))),
            3 => drop(handle.set_max_processing(1 + random.usize(..6))),
            4 => drop(handle.redrive_all()),
            5 => _ = handle.wait_for(random.u64(..JOBS), Duration::from_micros(random.u64(..3000))),
            _ => rest(),
        }
    }
    handle.resume();
    if random.bool() { consumer.stop_within(Duration::from_micros(random.u64(..500))) } else { consumer.stop() }
}

fn make_gaps(random: &mut fastrand::Rng, count: u32, plan: &Plan, source: &Source) {
    for _ in 0..count {
        let index = random.u64(..JOBS);
        plan.absent.fetch_or(bit(index), Ordering::SeqCst);
        source.0.absent.fetch_or(bit(index), Ordering::SeqCst);
        rest();
    }
}

/// Runs lives until one ends well, and checks what is left.
fn live(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let random = &mut random;
    let mode = random.u8(..6);
    let plan = Arc::new(plan(seed, mode, random));
    let (max, unjust) = (1 + random.u32(..3), random.bool());
    let mut gaps = fastrand::Rng::with_seed(!seed);
    let becomes_gaps = [0, 1, 5][gaps.usize(..3)];
    if becomes_gaps > 0 {
        plan.absent.store(gaps.u64(..) & gaps.u64(..), Ordering::SeqCst);
    }
    let mut disk = Arc::new(FaultyStore::new().unwrap());
    let disturbed = if random.bool() { 0 } else { random.u32(..8) };
    // `killed`: whether a process was killed by anything but a job.
    let (mut killed, mut gate) = (unjust, 0);
    for number in 0.. {
        assert!(number < 200, "seed {seed}: it never ends");
        let (source, disturbs) = (Source::default(), number < disturbed);
        // The watermark of an upstream never goes back.
        gate = if disturbs { gate.max(random.u64(..2 * JOBS)) } else { JOBS };
        source.0.gate.store(gate, Ordering::SeqCst);
        source.0.head.store(JOBS - 1, Ordering::SeqCst);
        plan.highest.store(0, Ordering::SeqCst);
        (0..becomes_gaps).for_each(|_| _ = plan.absent.fetch_or(bit(gaps.u64(..JOBS)), Ordering::SeqCst));
        source.0.absent.store(plan.absent.load(Ordering::SeqCst), Ordering::SeqCst);
        let last = if disturbs { disturb(random, &source, &disk, unjust) } else { Some(JOBS - 1) };
        let builder = Consumer::builder(source.clone(), disk.store().progress("p"))
            // In real time, as the pauses below, so that each life meets other moments.
            .poll_every(Duration::from_millis(1))
            .max_processing(if mode < 4 { 1 } else { MOST } + random.usize(..6))
            .max_crashes(max)
            .retry(Retry::fixed(Duration::from_micros(random.u64(..300))).max_attempts(plan.attempts))
            .on_exhausted(OnExhausted::Park { budget: 50 });
        let builder = match random.u8(..5) {
            0 => builder.unlimited_search_ahead(),
            _ => builder.max_search_ahead(width(random)),
        };
        let builder = last.into_iter().fold(builder, Builder::stop_at);
        let life = Arc::new(Life { plan: plan.clone(), disk: disk.clone(), dead: AtomicBool::new(false) });
        let Ok(consumer) = begin(mode, builder, &life, &disk.store()) else {
            assert!(disturbs, "seed {seed}: it does not start");
            disk.heal();
            continue;
        };
        let handle = consumer.handle();
        make_gaps(&mut gaps, becomes_gaps, &plan, &source);
        let end = if disturbs {
            steer(random, consumer)
        } else {
            assert!(
                handle.wait_end(LONG / 3).is_some(),
                "seed {seed}, mode {mode}: it stands still: {}",
                handle.status()
            );
            consumer.join()
        };
        // The process is gone, so attempts that still run do no harm.
        let dead = life.dead.swap(true, Ordering::SeqCst);
        assert!(plan.highest.load(Ordering::SeqCst) <= gate, "seed {seed}: a gate was passed");
        disk.heal();
        if dead || disturbs {
            disk = Arc::new(disk.after_crash().unwrap());
        }
        if disturbs {
            // An abandoned attempt may kill the process after the end of its consumer.
            let is_open = disk.store().consumers().unwrap().iter().any(|info| info.life_open == Some(true));
            killed |= is_open != dead || matches!(&end, Err(Error::Progress { .. }));
        } else if !dead {
            end.unwrap();
            break;
        }
        check_records(&plan, &disk.store(), killed);
    }
    check_end(&plan, &disk, mode, max, killed);
}

fn check_end(plan: &Plan, disk: &FaultyStore, mode: u8, max: u32, killed: bool) {
    let store = disk.store();
    let place = format!("seed {}, mode {mode}, at most {max} crashes", plan.seed);
    assert_eq!(store.progress("p").last_processed().unwrap(), Some(JOBS - 1), "{place}");
    let parked = check_records(plan, &store, killed);
    for index in (0..JOBS).filter(|_| !killed) {
        let deaths = plan.deaths.lock().get(&index).copied().unwrap_or(0);
        let crashes = plan.poison.contains(&index).then_some(max);
        if plan.is_absent(index) {
            // It may have been parked before it became a gap.
            assert!(!parked.contains_key(&index) || crashes.is_some(), "{place}: gap {index}");
            continue;
        }
        assert_eq!(parked.get(&index).copied(), crashes, "{place}: job {index}");
        assert!(deaths <= max + 2, "{place}: job {index} has died {deaths} times");
    }
    let counts = store.table("counts").unwrap();
    for index in (0..JOBS).filter(|_| mode == 3 || mode == 5) {
        let times = counts.counter(index.to_be_bytes()).unwrap();
        let once = i64::from(!parked.contains_key(&index));
        let is_right = if plan.is_absent(index) { (0..=once).contains(&times) } else { times == once };
        assert!(is_right, "{place}: the effects of job {index}: {times}");
    }
    // Done jobs leave no records.
    let writes = disk.writes();
    let consumer = Consumer::builder(Source::default(), store.progress("p")).max_crashes(max).stop_at(JOBS - 1);
    consumer.start(|_| Err("it runs again".into())).unwrap().join().unwrap();
    assert!(disk.writes() <= writes + 2, "{place}");
    let info = store.consumers().unwrap().remove(0);
    assert_eq!((info.life_open, info.parked), (Some(false), parked.len() as u64), "{place}");
}

/// Returns the parked jobs with their crashes, and checks that only jobs that kill are blamed.
fn check_records(plan: &Plan, store: &Store, killed: bool) -> BTreeMap<Index, u32> {
    let parked = store.parked("p").unwrap();
    for job in &parked {
        let may = plan.poison.contains(&job.index) || killed;
        assert!(may || job.crashes == 0, "seed {}: {job:?} is blamed", plan.seed);
        assert!(plan.poison.contains(&job.index) || killed, "seed {}: {job:?} is parked", plan.seed);
    }
    parked.into_iter().map(|job| (job.index, job.crashes)).collect()
}

#[test]
fn random_lives_lose_no_job_and_blame_only_killers() {
    seeds(6, 60).for_each(live);
}
