//! One life of a consumer on trial: jobs that end in every possible way, and an independent checker
//! that keeps a byte for each index.

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use parking_lot::Mutex;
use std::cell::Cell;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use waterline::{BoxError, Checkpoint, Done, Error, Index, Job, Jobs, MemoryProgress, Progress, Status};

/// The text of planned panics, which are not printed.
pub const PLANNED: &str = "as the trial planned";

// The state of an index, in the low half of its byte. The high half is its latest attempt.
const FRESH: u8 = 0;
const RUNNING: u8 = 1;
/// The job succeeded, and `on_job_done` is still to be called.
const SUCCEEDED: u8 = 2;
const CONFIRMED: u8 = 3;
/// `on_processed` was called with it.
const PROCESSED: u8 = 4;
const FAILED: u8 = 5;

/// From this attempt on every job succeeds.
const LAST_ATTEMPT: u32 = 5;

thread_local! {
    /// The last job that reached this thread in its first attempt.
    static LATEST: Cell<Option<Index>> = const { Cell::new(None) };
}

/// A limit that other threads check while it changes. It counts only while it is steady.
pub struct Bound(AtomicU64);

impl Bound {
    fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    pub fn set(&self, value: u64) {
        let generation = (self.0.load(SeqCst) >> 32) + 1;
        self.0.store(generation << 32 | value, SeqCst);
    }

    pub fn value(&self) -> u64 {
        self.0.load(SeqCst) & u64::from(u32::MAX)
    }

    /// Returns a state for [`steady_since`](Self::steady_since), which is called after the checked
    /// event.
    pub fn glance(&self) -> u64 {
        self.0.load(SeqCst)
    }

    pub fn steady_since(&self, glance: u64) -> Option<u64> {
        (self.0.load(SeqCst) == glance).then_some(glance & u64::from(u32::MAX))
    }
}

pub struct Trial {
    seed: u64,
    /// The first index of this life.
    pub base: Index,
    cells: Vec<AtomicU8>,
    /// The number of jobs that have reached a thread.
    pub arrived: AtomicU64,
    /// The number of jobs that the trial holds, which is at most the number in flight.
    running: AtomicU64,
    failures: AtomicU64,
    /// The two limits. `processing` is at least the number of jobs in flight, and `ahead` at least
    /// how far above the watermark any job in flight was started.
    pub processing: Bound,
    pub ahead: Bound,
    /// The number of threads that get jobs.
    threads: u64,
    /// One past the watermark of the latest save; `processed`: one past the last index of
    /// `on_processed`.
    pub saving: AtomicU64,
    pub processed: AtomicU64,
    /// Whether the consumer has stopped, so that no call may come any more.
    pub closed: AtomicBool,
    wrong: Mutex<Option<String>>,
}

/// The end of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Succeed,
    Fail,
    Panic,
    /// Its token is dropped unused.
    Forget,
    /// Succeeds, but `on_job_done` panics.
    Deny,
    Sleep,
    /// Another thread ends the job: at once, or late and out of order.
    Pass {
        late: bool,
    },
}

impl Trial {
    pub fn new(seed: u64, base: Index, end: Index, processing: u64, ahead: u64, threads: u64) -> Arc<Self> {
        Arc::new(Self {
            seed,
            base,
            cells: (base..end).map(|_| AtomicU8::new(FRESH)).collect(),
            arrived: AtomicU64::new(0),
            running: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            processing: Bound::new(processing),
            ahead: Bound::new(ahead),
            threads,
            saving: AtomicU64::new(base),
            processed: AtomicU64::new(base),
            closed: AtomicBool::new(false),
            wrong: Mutex::new(None),
        })
    }

    /// Notes the first fault, since a panic would only fail a job.
    #[track_caller]
    pub fn claim(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            let line = std::panic::Location::caller().line();
            self.wrong.lock().get_or_insert_with(|| format!("{} (line {line}, seed {:#x})", what(), self.seed));
        }
    }

    #[track_caller]
    pub fn assert_right(&self) {
        let wrong = self.wrong.lock().clone();
        assert_eq!(wrong, None);
    }

    fn cell(&self, index: Index) -> &AtomicU8 {
        &self.cells[(index - self.base) as usize]
    }

    fn roll(&self, index: Index, attempt: u32) -> u64 {
        // The finalizer of SplitMix64.
        let mut z = self.seed ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(attempt) << 56;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn fate(&self, index: Index, attempt: u32) -> Fate {
        if attempt >= LAST_ATTEMPT {
            return Fate::Succeed;
        }
        match self.roll(index, attempt) % 8192 {
            0..8 => Fate::Fail,
            8..12 => Fate::Panic,
            12..20 => Fate::Forget,
            20..24 => Fate::Deny,
            24..26 => Fate::Sleep,
            26..400 => Fate::Pass { late: false },
            400..560 => Fate::Pass { late: true },
            _ => Fate::Succeed,
        }
    }

    /// Moves an index from one state to another within an attempt, which it returns.
    #[track_caller]
    fn step(&self, index: Index, from: u8, to: u8) -> u32 {
        let before = self.cell(index).load(SeqCst);
        let moved = self.cell(index).compare_exchange(before, before & 0xf0 | to, SeqCst, SeqCst).is_ok();
        self.claim(moved && before & 0xf == from, || format!("{index} went from {before:#x}, not {from}, to {to}"));
        u32::from(before >> 4)
    }

    /// Checks a job that reached a worker, and decides its fate.
    fn arrive(&self, job: &Job<Index>) -> Fate {
        let (index, attempt) = (job.index, job.attempt);
        self.claim(job.payload == index, || format!("{index} has the job of {}", job.payload));
        self.claim(!self.closed.load(SeqCst), || format!("{index} was started after the end"));
        let (processing, ahead) = (self.processing.glance(), self.ahead.glance());
        let running = self.running.fetch_add(1, SeqCst) + 1;
        if let Some(most) = self.processing.steady_since(processing) {
            self.claim(running <= most, || format!("{running} jobs run where {most} may"));
        }
        let expected = if attempt == 1 { FRESH } else { FAILED | (attempt as u8 - 1) << 4 };
        let before = self.cell(index).swap(RUNNING | (attempt as u8) << 4, SeqCst);
        self.claim(before == expected, || format!("{index} was handed out in attempt {attempt} though {before:#x}"));
        if attempt == 1 {
            self.arrive_first(index, ahead);
        }
        self.fate(index, attempt)
    }

    fn arrive_first(&self, index: Index, ahead: u64) {
        // Every job that was handed out before this one has arrived, or is on its way to another
        // thread.
        let arrived = self.arrived.fetch_add(1, SeqCst);
        let behind = index - self.base;
        self.claim(arrived + self.threads > behind, || format!("{index} came when only {arrived} had come before"));
        let latest = LATEST.replace(Some(index));
        self.claim(latest.is_none_or(|latest| latest < index), || format!("{index} came after {latest:?}"));
        // The watermark of the saves never goes back.
        let saving = self.saving.load(SeqCst);
        if let Some(most) = self.ahead.steady_since(ahead) {
            self.claim(index < saving + most, || format!("{index} is more than {most} above {saving} - 1"));
        }
    }

    /// Ends an attempt, before the consumer hears of the end.
    fn end(&self, index: Index, success: bool) {
        self.step(index, RUNNING, if success { SUCCEEDED } else { FAILED });
        self.failures.fetch_add(u64::from(!success), SeqCst);
        self.running.fetch_sub(1, SeqCst);
    }

    /// The closure of `start`.
    pub fn run(&self, job: &Job<Index>) -> Result<(), BoxError> {
        let fate = self.arrive(job);
        match fate {
            Fate::Sleep | Fate::Pass { late: true } => nap(),
            _ => {}
        }
        let success = !matches!(fate, Fate::Fail | Fate::Panic | Fate::Forget);
        self.end(job.index, success);
        assert!(fate != Fate::Panic, "{PLANNED}");
        if success { Ok(()) } else { Err(PLANNED.into()) }
    }

    /// The closure of `start_deferred`.
    pub fn start(self: &Arc<Self>, job: &Job<Index>, done: Done, helpers: &Sender<Passed>) {
        let index = job.index;
        match self.arrive(job) {
            Fate::Pass { late } => {
                let passed = Passed { trial: self.clone(), index, attempt: job.attempt, done, late };
                assert!(helpers.send(passed).is_ok(), "the helpers outlive the trial");
            }
            Fate::Panic => {
                self.end(index, false);
                let _dropped_by_the_panic = done;
                panic!("{PLANNED}");
            }
            Fate::Forget => {
                self.end(index, false);
                drop(done);
            }
            fate => {
                if fate == Fate::Sleep {
                    nap();
                }
                self.finish(index, done, fate != Fate::Fail);
            }
        }
    }

    fn finish(&self, index: Index, done: Done, success: bool) {
        self.end(index, success);
        if success {
            done.complete();
        } else {
            done.fail(PLANNED);
        }
    }

    pub fn on_job_done(&self, index: Index) {
        self.claim(!self.closed.load(SeqCst), || format!("{index} was reported after the end"));
        let attempt = u32::from(self.cell(index).load(SeqCst) >> 4);
        let denied = self.fate(index, attempt) == Fate::Deny;
        self.step(index, SUCCEEDED, if denied { FAILED } else { CONFIRMED });
        if denied {
            self.failures.fetch_add(1, SeqCst);
            panic!("{PLANNED}");
        }
    }

    pub fn on_processed(&self, run: RangeInclusive<Index>) {
        self.claim(!self.closed.load(SeqCst), || format!("{run:?} was announced after the end"));
        let next = self.processed.swap(run.end() + 1, SeqCst);
        self.claim(*run.start() == next && !run.is_empty(), || format!("{run:?} was announced, not {next}.."));
        self.claim(*run.end() < self.saving.load(SeqCst), || format!("{run:?} was announced before it was saved"));
        for index in run {
            self.step(index, CONFIRMED, PROCESSED);
        }
    }

    fn on_save(&self, last: Index) {
        let from = self.saving.swap(last + 1, SeqCst);
        self.claim(from <= last, || format!("{last} was saved after {from} - 1"));
        for index in from..=last {
            let cell = self.cell(index).load(SeqCst);
            self.claim(cell & 0xf == CONFIRMED, || format!("{last} was saved though {index} is {cell:#x}"));
        }
    }

    /// Checks that a snapshot is consistent, and agrees with the trial.
    pub fn check_status(&self, status: &Status) {
        let first = status.last_processed.filter(|last| *last >= self.base).map_or(self.base, |last| last + 1);
        let retrying = status.failed - status.retries;
        let size = status.next - first;
        let claim = |holds, what| self.claim(holds, || format!("{what}: {status:?}"));
        claim(size == status.processing as u64 + status.done_ahead + retrying, "the parts of the window add up");
        claim(status.done == first - self.base + status.done_ahead, "done is processed or done ahead");
        claim(status.lag() == status.head.map_or(0, |head| head + 1 - first), "the lag is head minus watermark");
        claim(first <= self.saving.load(SeqCst), "the watermark was saved");
        claim(!status.blocked.to_string().is_empty(), "it says why");
    }

    /// Checks the state after a stop that waited for everything.
    pub fn check_end(&self, status: &Status, saved: Option<Index>) {
        self.closed.store(true, SeqCst);
        self.check_status(status);
        let first = saved.map_or(self.base, |last| last + 1).max(self.base);
        assert_eq!(status.last_processed, saved);
        assert_eq!(status.failed, self.failures.load(SeqCst), "each failure was counted");
        assert_eq!(self.running.load(SeqCst), 0, "nothing runs");
        self.check_announced(saved);
        assert_eq!(self.saving.load(SeqCst), first, "everything that was saved counts");
        let places = self.cells.iter().map(|cell| cell.load(SeqCst) & 0xf);
        for (index, place) in (self.base..).zip(places) {
            let right = match index {
                _ if index < first => place == PROCESSED,
                // Had it succeeded, it would have been saved, too.
                _ if index == first => [FRESH, FAILED].contains(&place),
                _ if index < status.next => [CONFIRMED, FAILED].contains(&place),
                _ => place == FRESH,
            };
            assert!(right, "{index} is in place {place} at the end: {status:#?}");
        }
        self.assert_right();
    }

    /// Checks that `on_processed` was called with everything that is saved.
    pub fn check_announced(&self, saved: Option<Index>) {
        let first = saved.map_or(self.base, |last| last + 1).max(self.base);
        assert_eq!(self.processed.load(SeqCst), first, "everything that is saved was announced");
    }

    /// Checks that everything below the watermark was reported done, which is all that is certain
    /// while a job still runs.
    pub fn check_saved(&self, saved: Option<Index>) {
        for index in self.base..saved.map_or(self.base, |last| last + 1) {
            let place = self.cell(index).load(SeqCst) & 0xf;
            assert!([CONFIRMED, PROCESSED].contains(&place), "{index} was skipped: it is in place {place}");
        }
        self.assert_right();
    }
}

fn nap() {
    std::thread::park_timeout(Duration::from_micros(100));
}

pub struct Passed {
    trial: Arc<Trial>,
    index: Index,
    attempt: u32,
    done: Done,
    late: bool,
}

impl Passed {
    fn finish(self) {
        match self.trial.roll(self.index, self.attempt) >> 32 & 63 {
            0 => self.trial.finish(self.index, self.done, false),
            1 => {
                self.trial.end(self.index, false);
                drop(self.done);
            }
            _ => self.trial.finish(self.index, self.done, true),
        }
    }
}

/// Starts threads that end jobs until the sender is dropped. Each shuffles up to sixteen late jobs.
pub fn helpers(count: u64, seed: u64) -> Sender<Passed> {
    let (sender, jobs) = unbounded();
    for helper in 0..count {
        let jobs: Receiver<Passed> = jobs.clone();
        let rng = fastrand::Rng::with_seed(seed ^ helper);
        std::thread::spawn(move || help(&jobs, rng));
    }
    sender
}

fn help(jobs: &Receiver<Passed>, mut rng: fastrand::Rng) {
    let mut kept: Vec<Passed> = Vec::new();
    loop {
        match jobs.recv_timeout(Duration::from_micros(300)) {
            Ok(passed) if passed.late => kept.push(passed),
            Ok(passed) => passed.finish(),
            Err(RecvTimeoutError::Timeout) if !kept.is_empty() => kept.swap_remove(rng.usize(..kept.len())).finish(),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if kept.len() > 16 {
            kept.swap_remove(rng.usize(..kept.len())).finish();
        }
    }
    kept.into_iter().for_each(Passed::finish);
}

/// A source of the jobs 0, 1, 2, … without memory, which cuts each run short.
pub struct Counting(pub u64);

impl Jobs for Counting {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(self.0.checked_sub(1))
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        Ok((index < self.0).then_some(index))
    }

    fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<Index>) -> Result<(), BoxError> {
        let most = 1 + (run.start().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57) as usize;
        into.extend(run.take(most).take_while(|index| *index < self.0));
        Ok(())
    }
}

/// A progress in memory whose saves the trial sees before they count.
pub struct Watched {
    inner: MemoryProgress,
    trial: Arc<Trial>,
}

impl Watched {
    pub fn new(progress: &MemoryProgress, trial: &Arc<Trial>) -> Self {
        Self { inner: progress.clone(), trial: trial.clone() }
    }
}

impl Progress for Watched {
    fn acquire(&mut self) -> Result<Option<Checkpoint>, Error> {
        self.inner.acquire()
    }

    fn save(&mut self, checkpoint: &Checkpoint) -> Result<(), BoxError> {
        self.trial.on_save(checkpoint.last_processed);
        self.inner.save(checkpoint)
    }
}
