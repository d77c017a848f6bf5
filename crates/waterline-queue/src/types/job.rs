//! The words of a job: its id, its state, its priority, and the result of a push.

use crate::types::config::{ConfigError, check_part};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The id of a job: 1 to 255 bytes. A job that is pushed without one gets `~` and a number, so an
/// id of yours must not begin with `~`.
pub type JobId = String;

/// The first byte of the ids that a queue makes.
pub(crate) const MADE: char = '~';

/// The state of a job. At every instant, and after any crash, a job is in exactly one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum JobState {
    /// It waits for its time: a delay, or the back-off after a failure.
    Scheduled,
    /// It waits for a worker.
    Ready,
    /// A worker has it.
    Running,
    /// It succeeded. Its row is kept for its [`Retention`].
    Finished,
    /// It failed for good (elsewhere called a dead letter). Its row is kept for
    /// [`QueueOptions::dead_for`](crate::QueueOptions::dead_for).
    Dead,
    /// It waits for the ends of other jobs.
    Waiting,
    /// Its stored row cannot be read, so it was set aside, and everything else goes on. It stays
    /// until it is removed ([`Queue::remove`](crate::Queue::remove)).
    Damaged,
}

impl JobState {
    /// All states that a row has, in the order of [`Counts`] and the stored counters.
    pub(crate) const ALL: [Self; 6] =
        [Self::Scheduled, Self::Ready, Self::Running, Self::Finished, Self::Dead, Self::Waiting];

    /// Returns its index in `ALL`.
    pub(crate) fn number(self) -> usize {
        self as usize
    }

    /// True if the job waits for a worker, a time, or other jobs.
    pub(crate) fn waits(self) -> bool {
        matches!(self, Self::Scheduled | Self::Ready | Self::Waiting)
    }

    /// True if the job has finished or died: it does not run unless it is pushed or requeued.
    #[must_use]
    pub fn is_ended(self) -> bool {
        matches!(self, Self::Finished | Self::Dead)
    }
}

/// How many jobs are in each state. For a queue in a [`Store`](waterline::Store) they are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Jobs that wait for their time.
    pub scheduled: u64,
    /// Jobs that wait for a worker.
    pub ready: u64,
    /// Jobs that a worker has.
    pub running: u64,
    /// Jobs that succeeded, and are kept for their retention.
    pub finished: u64,
    /// Jobs that failed for good, and are kept for a while.
    pub dead: u64,
    /// Jobs that wait for the ends of other jobs.
    pub waiting: u64,
    /// Jobs that cannot be read, and were set aside.
    pub damaged: u64,
    /// How old these numbers are. Zero except for a large queue in a database that many processes
    /// share: there counting takes time, so the numbers are kept for a while. If the database
    /// cannot be reached, they are the last ones. [`Duration::MAX`]: there are none, and all are
    /// zero.
    pub age: Duration,
}

impl Counts {
    pub(crate) fn of(counts: [u64; JobState::ALL.len()], damaged: u64) -> Self {
        let [scheduled, ready, running, finished, dead, waiting] = counts;
        Self { scheduled, ready, running, finished, dead, waiting, damaged, age: Duration::ZERO }
    }

    /// Returns the number of jobs in this state.
    #[must_use]
    pub fn of_state(&self, state: JobState) -> u64 {
        let Self { scheduled, ready, running, finished, dead, waiting, damaged, age: _ } = *self;
        [scheduled, ready, running, finished, dead, waiting, damaged][state.number()]
    }
}

/// The priority of a job. Workers take the highest one that has a ready job, and each eighth time
/// the lowest one, so that no priority starves. Within a priority, jobs are first in, first out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Priority {
    /// Before all others.
    Urgent,
    /// Before normal ones.
    High,
    /// The default.
    #[default]
    Normal,
    /// After all others.
    Low,
}

impl Priority {
    pub(crate) const ALL: [Self; 4] = [Self::Urgent, Self::High, Self::Normal, Self::Low];
}

/// How long the row of a finished job is kept to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retention {
    /// For this time.
    For(Duration),
    /// Until it is removed.
    Keep,
    /// Not at all. A finished job is gone at once, which is the cheapest.
    Drop,
}

/// The latest time at which a job can be due, in milliseconds since 1970: the year 9999.
pub(crate) const LATEST: u64 = 253_402_300_799_999;

/// Returns a time in milliseconds since 1970. A time before that is 0.
pub(crate) fn millis(time: SystemTime) -> Result<u64, ConfigError> {
    waterline::seam::millis(time).filter(|millis| *millis <= LATEST).ok_or(ConfigError::RunAt)
}

/// Returns the time this long after another one, rounded up to milliseconds.
pub(crate) fn after(wall: u64, pause: Duration) -> Option<u64> {
    let millis = u64::try_from(pause.as_nanos().div_ceil(1_000_000)).ok()?;
    wall.checked_add(millis).filter(|due| *due <= LATEST)
}

pub(crate) fn time(millis: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(millis.min(LATEST))
}

pub(crate) fn check_kind(kind: &str) -> Result<(), ConfigError> {
    check_part("job kind", "the kind of a job", kind)
}

pub(crate) fn check_signature(signature: &str) -> Result<(), ConfigError> {
    check_part("root signature", "the signature of a root", signature)
}

/// Checks the id of an existing job, which the queue may have made.
pub(crate) fn check_length(id: &str) -> Result<(), ConfigError> {
    check_part("job id", "the id of a job", id)
}

/// Returns the number in an id that a queue has made.
pub(crate) fn made_number(id: &str) -> Option<u64> {
    let number = id.strip_prefix(MADE)?.parse().ok()?;
    (format!("{MADE}{number}") == id).then_some(number)
}

pub(crate) fn check_key(key: &str) -> Result<(), ConfigError> {
    check_part("job key", "the key of a job's limits", key)
}

pub(crate) fn check_id(id: &str) -> Result<(), ConfigError> {
    check_length(id)?;
    if id.starts_with(MADE) { Err(ConfigError::JobIdReserved { id: id.to_owned() }) } else { Ok(()) }
}

/// The result of a push.
///
/// ```
/// use waterline::Store;
/// use waterline_queue::{NewJob, Queue, QueueOptions};
///
/// let queue = Queue::open(&Store::in_memory(), "mail", QueueOptions::default())?;
/// let order = || NewJob::new("confirm", &7).map(|job| job.id("order 7"));
/// assert!(queue.push(order()?)?.is_new());
/// assert!(!queue.push(order()?)?.is_new());       // a client that tries again
/// assert!(!queue.state("order 7")?.expect("it is there").is_ended());
/// # Ok::<(), waterline_queue::QueueError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pushed {
    /// The id of the job, or of the twin that stands for it.
    pub id: JobId,
    /// What the push did.
    pub outcome: PushOutcome,
}

impl Pushed {
    /// True if this push made the job: see [`PushOutcome::Added`].
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.outcome == PushOutcome::Added
    }
}

/// What a push did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PushOutcome {
    /// The job is new, or it had finished or died and runs again, with the new payload.
    Added,
    /// A job with this id waits already, and is due at the same time, or the job is unique and has
    /// this twin. Nothing was changed.
    Duplicate(JobId),
    /// A job of this id waited for another time. It was moved, and has the new payload. Or the job
    /// is unique, and its twin was changed as [`Clash`](crate::Clash) says.
    Rescheduled,
    /// A job of this id is running. It runs once more when this run has succeeded, at the time of
    /// this push. It keeps its payload and all its settings: those of this push do not count.
    Resubmit,
}
