//! Millions of jobs that end in every way, on a consumer that is constantly steered, paused,
//! stopped and restarted.
//!
//! Seeds decide how each job ends and how the consumer is steered, and a failure names them. The
//! machine decides when each thread runs.

mod thousand;
mod trial;

use common::*;
use crossbeam_channel::{Sender, bounded};
use parking_lot::Mutex;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};
use trial::{Counting, PLANNED, Passed, Trial, Watched, helpers};
use waterline::{Consumer, Error, Handle, Index, MemoryProgress, Retry, State, Status};

fn jobs() -> u64 {
    size(300_000, 10_000_000)
}

fn jobs_of_many_lives() -> u64 {
    size(60_000, 600_000)
}

/// Several times what the slowest busy machine needs. Only a test that hangs waits for it.
const DEADLINE: Duration = Duration::from_secs(900);

const MOST_PROCESSING: u64 = 64;
const MOST_AHEAD: u64 = 100_000;
const RETRY: Retry = Retry::exponential(Duration::from_micros(50), Duration::from_millis(1)).jitter(0.5);

/// Lets one test run at a time, so that its threads can be counted.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Hides the planned panics, of which there are thousands.
fn silence_planned_panics() {
    static SILENCED: Once = Once::new();
    SILENCED.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let payload = panic.payload();
            let text = payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
            if text != Some(PLANNED) {
                others(panic);
            }
        }));
    });
}

/// Makes a blocking call on another thread, so that a hang fails the test and names the place.
#[track_caller]
fn in_time<R: Send + 'static>(what: &str, handle: &Handle, call: impl FnOnce() -> R + Send + 'static) -> R {
    let (answer, answered) = bounded(1);
    std::thread::spawn(move || answer.send(call()));
    match answered.recv_timeout(DEADLINE) {
        Ok(answer) => answer,
        Err(why) => panic!("{what}: {why}: {:#?}", handle.status()),
    }
}

/// Watches and steers a consumer, and checks that its views of it agree.
struct Meddler {
    handle: Handle,
    trial: Arc<Trial>,
    rng: fastrand::Rng,
    before: Status,
    deadline: Instant,
}

impl Meddler {
    fn meddle(mut self) {
        while self.look().state != State::Finished {
            match self.rng.u8(..10) {
                0..=2 => self.set_max_processing(),
                3..=5 => self.set_max_search_ahead(),
                6 => self.pause(),
                7 => self.handle.check(),
                _ => self.size(),
            }
            std::thread::park_timeout(Duration::from_micros(self.rng.u64(..4000)));
        }
    }

    /// Takes a snapshot, and checks it against the earlier ones.
    fn look(&mut self) -> Status {
        let processing = self.trial.processing.glance();
        let status = self.handle.status();
        assert!(Instant::now() < self.deadline, "it takes too long: {status:#?}");
        self.trial.assert_right();
        if let Some(most) = self.trial.processing.steady_since(processing) {
            self.trial.claim(status.processing as u64 <= most, || format!("above {most}: {status:?}"));
        }
        self.trial.check_status(&status);
        let counts = |s: &Status| [s.next, s.done, s.failed, s.retries, s.saves, s.last_processed.map_or(0, |l| l + 1)];
        let grows = counts(&self.before).iter().zip(counts(&status)).all(|(before, now)| *before <= now);
        self.trial.claim(grows, || format!("{status:?} goes back behind {:?}", self.before));
        self.before = status.clone();
        status
    }

    /// Looks until a condition is true or the consumer has ended.
    fn look_until(&mut self, so: impl Fn(&Trial, &Status) -> bool) {
        loop {
            let status = self.look();
            if so(&self.trial, &status) || status.state == State::Finished {
                return;
            }
            std::thread::park_timeout(Duration::from_micros(100));
        }
    }

    /// Picks an exponent for a limit: often wide, so that most jobs run under wide limits.
    fn exponent(&mut self, most: u32) -> u32 {
        (0..3).map(|_| self.rng.u32(..=most)).max().unwrap_or(most)
    }

    fn set_max_processing(&mut self) {
        let most = 1 << self.exponent(MOST_PROCESSING.ilog2());
        if most > self.trial.processing.value() {
            self.trial.processing.set(most);
        }
        let set = self.handle.set_max_processing(most as usize);
        self.check_set(set);
        // A lower limit stops no running job, so it holds once enough have ended.
        self.look_until(|_, status| status.processing as u64 <= most);
        self.trial.processing.set(most);
    }

    fn set_max_search_ahead(&mut self) {
        let magnitude = 10u64.pow(self.exponent(MOST_AHEAD.ilog10()));
        let most = self.rng.u64(1..=magnitude);
        if most > self.trial.ahead.value() {
            self.trial.ahead.set(most);
        }
        let set = self.handle.set_max_search_ahead(most);
        self.check_set(set);
        // It holds once all jobs that were handed out before have reached a worker.
        let started = self.look().next - self.trial.base;
        self.look_until(|trial, _| trial.arrived.load(SeqCst) >= started);
        self.trial.ahead.set(most);
    }

    fn check_set(&self, set: Result<(), Error>) {
        let status = self.handle.status();
        let right = set.is_ok() || status.state == State::Finished;
        self.trial.claim(right, || format!("{set:?}: {status:?}"));
    }

    /// Checks that neither a new job nor a retry starts during a pause.
    fn pause(&mut self) {
        self.handle.pause();
        let paused = self.look();
        std::thread::park_timeout(Duration::from_millis(1));
        let later = self.look();
        let still = (paused.next, paused.retries) == (later.next, later.retries);
        let said = [State::Paused, State::Finished].contains(&paused.state);
        self.trial.claim(still && said, || format!("paused: {paused:?}, later: {later:?}"));
        self.handle.resume();
    }

    /// Checks that the size is within what the snapshots before and after it allow.
    fn size(&mut self) {
        let first = |s: &Status| s.last_processed.map_or(0, |last| last + 1);
        let (before, size) = (self.look(), self.handle.size() as u64);
        let after = self.look();
        let allowed = before.next.saturating_sub(first(&after))..=after.next - first(&before);
        self.trial.claim(allowed.contains(&size), || format!("{size} is not in {allowed:?}: {before:?} {after:?}"));
    }
}

fn walk(handle: &Handle, trial: &Trial) {
    for mile in 1..=100 {
        let index = mile * jobs() / 100 - 1;
        let at_once = handle.wait_for(index, Duration::ZERO);
        trial.claim(!at_once || handle.last_processed_index() >= Some(index), || format!("{index} was not there"));
        let reached = handle.wait_for(index, DEADLINE);
        trial.claim(reached && handle.last_processed_index() >= Some(index), || format!("no {index}"));
    }
    trial.claim(!handle.wait_for(jobs(), HOUR), || format!("{} will never come", jobs()));
}

#[test]
fn ten_million_jobs_with_every_feature_at_once() {
    let _alone = ONE_AT_A_TIME.lock();
    silence_planned_panics();
    let (seed, threads) = (0x7a7e_0001, 4);
    let trial = Trial::new(seed, 0, jobs(), 8, 10_000, threads);
    let (progress, helpers) = (MemoryProgress::new(), helpers(3, seed));
    let [worker, confirmed, processed] = [(); 3].map(|()| trial.clone());
    let consumer = Consumer::builder(Counting(jobs()), Watched::new(&progress, &trial))
        .max_processing(trial.processing.value() as usize)
        .max_search_ahead(trial.ahead.value())
        .threads(threads as usize)
        .retry(RETRY)
        .stop_at(jobs() - 1)
        .on_job_done(move |index| confirmed.on_job_done(index))
        .on_processed(move |run| processed.on_processed(run))
        .start_deferred(move |job, done| worker.start(&job, done, &helpers))
        .unwrap();
    let handle = consumer.handle();
    let walker = std::thread::spawn({
        let (handle, trial) = (handle.clone(), trial.clone());
        move || walk(&handle, &trial)
    });
    let (before, deadline) = (handle.status(), Instant::now() + DEADLINE);
    let rng = fastrand::Rng::with_seed(seed);
    Meddler { handle: handle.clone(), trial: trial.clone(), rng, before, deadline }.meddle();
    in_time("join", &handle, || consumer.join()).unwrap();
    in_time("the walk", &handle, || walker.join()).unwrap();
    let status = handle.status();
    assert_eq!((status.done, status.next, status.retries), (jobs(), jobs(), status.failed));
    trial.check_end(&status, progress.last_processed());
    assert_eq!(progress.last_processed(), Some(jobs() - 1));
    assert!(status.failed > jobs() / 1000, "every kind of failure was met: {status:#?}");
    eventually("no thread is left", || own_threads() == 0);
    println!("{} jobs, {} failures, {} saves", status.done, status.failed, status.saves);
}

#[derive(Debug, Default)]
struct Ends {
    awaited: u64,
    timed_out: u64,
}

struct Stream {
    progress: MemoryProgress,
    helpers: Sender<Passed>,
    rng: fastrand::Rng,
    ends: Ends,
}

impl Stream {
    fn next(&self) -> Index {
        self.progress.last_processed().map_or(0, |last| last + 1)
    }

    /// Runs one life from the watermark on. Returns whether it reached the end.
    fn live(&mut self, life: u64) -> bool {
        let (base, processing) = (self.next(), self.rng.u64(1..=16));
        let magnitude = 10u64.pow(self.rng.u32(..=4));
        let ahead = self.rng.u64(1..=magnitude);
        let trial = Trial::new(life, base, jobs_of_many_lives(), processing, ahead, processing);
        let deferred = self.rng.bool();
        let consumer = self.start(&trial, deferred);
        let handle = consumer.handle();
        assert!(handle.last_processed_index() >= base.checked_sub(1), "it goes on where the life before ended");
        let _ = handle.wait_for(base + self.rng.u64(..40_000), Duration::from_micros(self.rng.u64(..8000)));
        // Mostly no time at all, since only then a job often still runs.
        let limit = Duration::from_micros(self.rng.u64(..500).saturating_sub(400));
        let stop = self.rng.u8(..5);
        let end = {
            let handle = handle.clone();
            in_time("the end", &handle.clone(), move || match stop {
                0 => consumer.stop(),
                1 => {
                    drop(consumer);
                    Ok(())
                }
                2 => {
                    handle.request_stop();
                    consumer.join()
                }
                _ => consumer.stop_within(limit),
            })
        };
        self.check(&trial, &handle, end);
        self.next() == jobs_of_many_lives()
    }

    /// Starts a consumer, once no job of the previous life keeps the name in use.
    fn start(&self, trial: &Arc<Trial>, deferred: bool) -> Consumer {
        let begun = Instant::now();
        loop {
            let [worker, confirmed, processed] = [(); 3].map(|()| trial.clone());
            let builder = Consumer::builder(Counting(jobs_of_many_lives()), Watched::new(&self.progress, trial))
                .max_processing(trial.processing.value() as usize)
                .max_search_ahead(trial.ahead.value())
                .retry(RETRY)
                .stop_at(jobs_of_many_lives() - 1)
                .on_job_done(move |index| confirmed.on_job_done(index))
                .on_processed(move |run| processed.on_processed(run));
            let helpers = self.helpers.clone();
            let started = if deferred {
                builder.start_deferred(move |job, done| worker.start(&job, done, &helpers))
            } else {
                builder.start(move |job| worker.run(&job))
            };
            match started {
                Ok(consumer) => return consumer,
                Err(Error::InUse { .. }) if begun.elapsed() < DEADLINE => {
                    std::thread::park_timeout(Duration::from_micros(100));
                }
                Err(error) => panic!("a life does not start at {}: {error:?}", trial.base),
            }
        }
    }

    fn check(&mut self, trial: &Trial, handle: &Handle, end: Result<(), Error>) {
        let (status, saved) = (handle.status(), self.progress.last_processed());
        match end {
            Ok(()) => {
                assert_eq!(status.state, State::Finished);
                trial.check_end(&status, saved);
                trial.check_saved(saved);
                self.ends.awaited += 1;
                eventually("no thread is left", || own_threads() == 0);
            }
            Err(Error::StopTimeout { running }) => {
                trial.check_saved(saved);
                trial.check_announced(saved);
                assert!(!running.is_empty(), "the source answers, and nothing else was left");
                let lowest = running.first().copied().unwrap_or(Index::MAX);
                assert!(saved.is_none_or(|saved| saved < lowest), "{saved:?} is above what runs: {running:?}");
                assert!(running.is_sorted() && running.len() as u64 <= trial.processing.value(), "{running:?}");
                self.ends.timed_out += 1;
            }
            Err(error) => panic!("{error:?}: {status:#?}"),
        }
    }
}

#[test]
fn lives_that_end_in_every_way_skip_nothing() {
    let _alone = ONE_AT_A_TIME.lock();
    silence_planned_panics();
    let seed = 0x7a7e_0002;
    let (progress, helpers) = (MemoryProgress::new(), helpers(2, seed));
    let rng = fastrand::Rng::with_seed(seed);
    let mut stream = Stream { progress, helpers, rng, ends: Ends::default() };
    let deadline = Instant::now() + DEADLINE;
    let mut life = 0;
    while !stream.live(seed << 32 | life) {
        life += 1;
        assert!(Instant::now() < deadline, "life {life} from {}, after {:?}", stream.next(), stream.ends);
    }
    assert!(stream.ends.awaited > 10 && stream.ends.timed_out > 10, "every way was met: {:?}", stream.ends);
    println!("{} lives: {:?}", life + 1, stream.ends);
}
