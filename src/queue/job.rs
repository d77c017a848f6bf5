//! Jobs as users see them: a new one, its states, and a look at one that is stored.

use crate::base::config::ConfigError;
use crate::base::index::BoxError;
use crate::queue::error::QueueError;
use crate::queue::limit::{LimitOf, of_name};
use crate::queue::progress::JobProgress;
use crate::queue::related::{Root, Skipped};
use crate::queue::row::Row;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The id of a job: 1 to 255 bytes. The queue makes one for a job that is pushed without an id: `~`
/// and a number. An id of yours does not begin with `~`.
pub type JobId = String;

/// The longest id, and the longest kind of a job, in bytes.
const LONGEST: usize = 255;

/// The first byte of the ids that a queue makes.
pub(super) const MADE: char = '~';

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
    /// [`QueueOptions::dead_for`](crate::queue::QueueOptions::dead_for).
    Dead,
    /// It waits for the ends of other jobs.
    Waiting,
    /// Its stored row cannot be read, so it was set aside, and everything else goes on. It stays
    /// until somebody removes it ([`Queue::remove`](crate::queue::Queue::remove)).
    Damaged,
}

impl JobState {
    /// All states that a row has, in the order in which [`Counts`] and the stored counters have
    /// them.
    pub(crate) const ALL: [Self; 6] =
        [Self::Scheduled, Self::Ready, Self::Running, Self::Finished, Self::Dead, Self::Waiting];

    /// Returns its place in `ALL`.
    pub(super) fn number(self) -> usize {
        self as usize
    }

    /// True if the job waits for a worker, a time, or other jobs.
    pub(super) fn waits(self) -> bool {
        matches!(self, Self::Scheduled | Self::Ready | Self::Waiting)
    }

    /// True if it has finished or died.
    pub(super) fn is_ended(self) -> bool {
        matches!(self, Self::Finished | Self::Dead)
    }
}

/// The number of jobs in each state.
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
}

impl Counts {
    pub(super) fn of(counts: [u64; JobState::ALL.len()], damaged: u64) -> Self {
        let [scheduled, ready, running, finished, dead, waiting] = counts;
        Self { scheduled, ready, running, finished, dead, waiting, damaged }
    }

    /// Returns the number of jobs in this state.
    #[must_use]
    pub fn of_state(&self, state: JobState) -> u64 {
        let Self { scheduled, ready, running, finished, dead, waiting, damaged } = *self;
        [scheduled, ready, running, finished, dead, waiting, damaged][state.number()]
    }
}

/// The priority of a job. Workers take the highest one that has a ready job, and each eighth time
/// the lowest one, so that no priority starves. Within a priority, first in, first out.
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
    pub(super) const ALL: [Self; 4] = [Self::Urgent, Self::High, Self::Normal, Self::Low];
}

/// The time for which the row of a finished job is kept, to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retention {
    /// For this time.
    For(Duration),
    /// Until it is removed.
    Keep,
    /// Not at all. A finished job is gone, which is the cheapest.
    Drop,
}

/// The latest time that a job can be due at, in milliseconds since 1970: it is in the year 9999.
pub(super) const LATEST: u64 = 253_402_300_799_999;

/// Returns a time in milliseconds since 1970. A time before that is 0.
pub(super) fn millis(time: SystemTime) -> Result<u64, ConfigError> {
    crate::base::time::millis(time).filter(|millis| *millis <= LATEST).ok_or(ConfigError::RunAt)
}

/// Returns the time that is so long after another one. It may be a little later, never earlier.
pub(super) fn after(wall: u64, pause: Duration) -> Option<u64> {
    let millis = u64::try_from(pause.as_nanos().div_ceil(1_000_000)).ok()?;
    wall.checked_add(millis).filter(|due| *due <= LATEST)
}

pub(super) fn time(millis: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(millis.min(LATEST))
}

pub(super) fn check_kind(kind: &str) -> Result<(), ConfigError> {
    match kind.len() {
        1..=LONGEST => Ok(()),
        length => Err(ConfigError::JobKind { length }),
    }
}

pub(super) fn check_signature(signature: &str) -> Result<(), ConfigError> {
    match signature.len() {
        1..=LONGEST => Ok(()),
        length => Err(ConfigError::Signature { length }),
    }
}

/// Checks the id of a job that is there: the queue may have made it.
pub(super) fn check_length(id: &str) -> Result<(), ConfigError> {
    match id.len() {
        1..=LONGEST => Ok(()),
        length => Err(ConfigError::JobId { length }),
    }
}

/// Returns the number in an id that a queue has made.
pub(super) fn made_number(id: &str) -> Option<u64> {
    let number = id.strip_prefix(MADE)?.parse().ok()?;
    (format!("{MADE}{number}") == id).then_some(number)
}

pub(super) fn check_key(key: &str) -> Result<(), ConfigError> {
    match key.len() {
        1..=LONGEST => Ok(()),
        length => Err(ConfigError::JobKey { length }),
    }
}

pub(super) fn check_id(id: &str) -> Result<(), ConfigError> {
    match id.len() {
        1..=LONGEST if id.starts_with(MADE) => Err(ConfigError::JobIdReserved { id: id.to_owned() }),
        1..=LONGEST => Ok(()),
        length => Err(ConfigError::JobId { length }),
    }
}

/// Turns a value into JSON that can be read again. A panic of its code is an error.
pub(super) fn to_json(id: &str, value: &(impl Serialize + ?Sized)) -> Result<Vec<u8>, QueueError> {
    let text = crate::base::guard::guarded(|| Ok(serde_json::to_vec(value)?));
    text.and_then(|text| check_depth(&text).map(|()| text).map_err(BoxError::from))
        .map_err(|source| QueueError::Payload { id: id.to_owned(), source })
}

/// The deepest JSON that `serde_json` reads: arrays and objects within each other.
const DEEPEST: usize = 127;

/// Refuses text of JSON that could be written, and not be read again.
pub(super) fn check_depth(text: &[u8]) -> Result<(), ConfigError> {
    let (mut depth, mut deepest, mut bytes) = (0_usize, 0, text.iter());
    while let Some(byte) = bytes.next() {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            // The end of the text within quotes: each escaped byte is passed.
            b'"' => {
                while bytes.next().is_some_and(|byte| *byte != b'"' && (*byte != b'\\' || bytes.next().is_some())) {}
            }
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    if deepest <= DEEPEST { Ok(()) } else { Err(ConfigError::JsonDepth) }
}

/// Turns JSON into a value. A panic of its code is an error.
pub(super) fn from_json<P: DeserializeOwned>(bytes: &[u8]) -> Result<P, BoxError> {
    crate::base::guard::guarded(|| Ok(serde_json::from_slice(bytes)?))
}

/// The answer to a push.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pushed {
    /// The id of the job. If a twin stands for it, that is the twin's.
    pub id: JobId,
    /// The effect of the push.
    pub outcome: PushOutcome,
}

/// The effect of a push.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PushOutcome {
    /// The job is new, or it had finished or died and is to run again, with the new payload.
    Added,
    /// A job of this id waits already, and is due at the same time, or the job is unique and has
    /// this twin. Nothing was changed.
    Duplicate(JobId),
    /// A job of this id waited for another time. It was moved, and has the new payload. Or the job
    /// is unique, and its twin was changed as [`Clash`](crate::queue::Clash) says.
    Rescheduled,
    /// A job of this id is running. It runs once more when this run has succeeded, at the time of
    /// this push. It keeps its payload and all its settings: those of this push do not count.
    Resubmit,
}

/// A stored job, as it was at the moment of the call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct JobInfo {
    /// Its id.
    pub id: JobId,
    /// Its kind.
    pub kind: String,
    /// Its state.
    pub state: JobState,
    /// Its priority.
    pub priority: Priority,
    /// The number of attempts that have failed since it was pushed or requeued.
    pub failures: u32,
    /// The number of times that its process died while it ran.
    pub crashes: u32,
    /// True if it runs alone, now or next, since its process died while it ran, and not for the
    /// first time: see [`QueueOptions::max_crashes`](crate::queue::QueueOptions::max_crashes).
    pub runs_alone: bool,
    /// The time of the push, or that of the tick, if it is the job of a periodic one.
    pub pushed_at: SystemTime,
    /// The time from which it may run; `None`: from the push on.
    pub run_at: Option<SystemTime>,
    /// The time at which it came into its state.
    pub since: SystemTime,
    /// The time at which its row goes away, if it has finished or died; `None`: it stays.
    pub kept_until: Option<SystemTime>,
    /// True if it was pushed once more while it ran, and is to run for that when it has succeeded.
    pub resubmitted: bool,
    /// The reason why it finished without a run; `None` if it ran, or has not finished.
    pub skipped: Option<Skipped>,
    /// The root of its tree, if it has one.
    pub root: Option<Root>,
    /// The time by which it must have begun, if there is one.
    pub expires_at: Option<SystemTime>,
    /// The number of jobs whose ends it still waits for.
    pub waits_for: u32,
    /// The key of its limits, if it has one.
    pub key: Option<String>,
    /// The tokens that it takes from each rate.
    pub cost: u32,
    /// The limit in whose line a ready job waits; `None` if no limit holds it.
    pub held_by: Option<LimitOf>,
    /// The text of its last failure, with the causes.
    pub error: Option<String>,
    /// Its payload, as JSON.
    pub payload: Vec<u8>,
    /// The data that its worker has left, as JSON.
    pub data: Option<serde_json::Value>,
    /// Its metadata.
    pub meta: BTreeMap<String, serde_json::Value>,
    /// The progress that its worker shows, or that of the last attempt.
    pub progress: Option<JobProgress>,
    /// The reason why a part of it cannot be read, which is left out here. [`Queue::list`] alone
    /// shows such a job. The kind of a job is empty if its row cannot be read.
    ///
    /// [`Queue::list`]: crate::queue::Queue::list
    pub damaged: Option<String>,
    pub(super) place: u64,
}

impl JobInfo {
    pub(super) fn of(id: &str, row: &Row, payload: Vec<u8>, data: Option<serde_json::Value>) -> Self {
        Self {
            id: id.to_owned(),
            kind: row.kind.clone(),
            state: row.state,
            priority: row.priority,
            failures: row.failures,
            crashes: row.crashes,
            runs_alone: row.extras().is_suspect,
            pushed_at: time(row.pushed),
            run_at: (row.due > 0).then(|| time(row.due)),
            since: time(row.since),
            kept_until: (row.state.is_ended() && row.place != u64::MAX).then(|| time(row.place)),
            resubmitted: row.resubmit.is_some(),
            skipped: row.extras().skipped,
            root: row.extras().root.clone(),
            expires_at: row.extras().expires.map(time),
            waits_for: row.extras().after,
            key: row.extras().key.clone(),
            cost: row.extras().cost,
            held_by: row.extras().held.as_deref().map(of_name),
            error: (!row.error.is_empty()).then(|| row.error.clone()),
            payload,
            data,
            meta: BTreeMap::new(),
            progress: None,
            damaged: None,
            place: row.place,
        }
    }

    /// Returns its payload.
    ///
    /// # Errors
    /// [`QueueError::Payload`] if it does not fit the type.
    pub fn payload<P: DeserializeOwned>(&self) -> Result<P, QueueError> {
        from_json(&self.payload).map_err(|source| QueueError::Payload { id: self.id.clone(), source })
    }
}
