//! The interface between a queue and the database that keeps it.
//!
//! An engine keeps all queues of one database. Everything that has to be atomic is one call. Only
//! durations cross this interface, and times that users or the engine itself gave: the clock is the
//! engine's. The rules are pure and shared ([`rules`](crate::rules)); waiters, averages and log
//! lines belong to the layer above, in [`Shared`].

use crate::notify::shared::Shared;
use crate::rules::ends::End;
use crate::rules::fleet::Fleet;
use crate::rules::notes::{Change, Noted};
use crate::rules::pushing::Push;
use crate::types::capabilities::Capabilities;
use crate::types::config::ConfigError;
use crate::types::durations::Durations;
use crate::types::error::QueueError;
use crate::types::info::{JobInfo, PeriodicInfo};
use crate::types::job::{Counts, JobId, JobState, Pushed};
use crate::types::limit::LimitOf;
use crate::types::meta::Meta;
use crate::types::new_job::NewJob;
use crate::types::options::QueueOptions;
use crate::types::page::Place;
use crate::types::periodic::Periodic;
use crate::types::progress::JobProgress;
use crate::types::row::Row;
use crate::types::used::{LimitUse, Related};
use crate::types::wanted::Wanted;
use crate::types::worker::WorkerInfo;
use serde_json::Value;
use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};
use waterline::seam::Home;

/// The number of a queue in its engine.
pub type QueueNo = u32;

/// A note with its place, or why it cannot be read.
pub(crate) type NoteRead = (String, Result<Noted, String>);

/// A job that a worker holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its queue.
    pub queue: QueueNo,
    /// Its id.
    pub id: JobId,
    /// The token of its lease, which is never used again.
    pub token: u64,
}

/// The end of an attempt, to be written.
#[derive(Clone, Debug)]
pub struct Ending {
    /// The job.
    pub job: Held,
    /// The end, as its worker reports it.
    pub end: End,
    /// The data that it leaves, as JSON.
    pub data: Option<Vec<u8>>,
    /// The kind of the job and its durations, if they are to be stored with this end.
    pub durations: Option<(String, Durations)>,
}

/// A request for jobs.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The queue.
    pub queue: QueueNo,
    /// How many jobs to claim at most.
    pub most: usize,
    /// Which jobs to claim.
    pub wanted: Wanted,
}

/// A claimed job. The place in its row is the token of the lease.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// Its queue.
    pub queue: QueueNo,
    /// Its id.
    pub id: JobId,
    /// Its row.
    pub row: Row,
    /// Its payload, as JSON.
    pub payload: Vec<u8>,
}

/// The result of a turn.
#[derive(Debug, Default)]
pub struct Turned {
    /// Per end the new state of its job (`Some(None)`: its row is gone); `None`: its lease was
    /// over.
    pub ended: Vec<Option<Option<JobState>>>,
    /// The claimed jobs.
    pub claimed: Vec<Claimed>,
    /// True if nothing was claimed so far, and another turn may find a job.
    pub again: bool,
}

/// What a turn does besides its ends and claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// Maintenance: it promotes what is due, and drops what has expired.
    Tidy,
    /// Nothing else: a record that cannot be read must not hold up the ends.
    Nothing,
    /// Nothing else, but a record that cannot be read is an error, and nothing is written then.
    Alone,
}

/// A change of a job.
#[derive(Clone, Debug)]
pub enum Edit {
    /// Only checks that the lease holds.
    Nothing,
    /// Replaces the data, as JSON.
    Data(Vec<u8>),
    /// Sets a value of its metadata; `None` removes it.
    Meta(String, Option<Value>),
    /// Runs it once more after this run has succeeded, from this time on: milliseconds since 1970.
    Resubmit(u64),
}

impl Edit {
    /// Returns what it does, for the text of an error.
    pub fn doing(&self) -> &'static str {
        match self {
            Self::Nothing | Self::Data(_) => "update a job",
            Self::Meta(..) => "set metadata of a job",
            Self::Resubmit(_) => "resubmit a job",
        }
    }
}

/// An operator's change of a queue. The result is the number of jobs that it changed.
#[derive(Clone, Debug)]
pub enum Steer {
    /// Removes a job in any state.
    Remove(JobId),
    /// Makes a dead job ready.
    Requeue(JobId),
    /// Makes a scheduled job due now.
    RunNow(JobId),
    /// Removes some waiting or running jobs of this state. 0: there is none left.
    Purge(JobState),
    /// Makes some dead jobs ready. 0: there is none left.
    RequeueDead,
    /// Pauses the queue until this time, in milliseconds since 1970; 0: ends the pause.
    Pause(u64),
    /// Removes the record of a periodic job, which makes no more jobs.
    RemovePeriodic(String),
}

impl Steer {
    /// Returns what it does, to follow "could not".
    pub fn doing(&self) -> &'static str {
        match self {
            Self::Remove(_) => "remove a job",
            Self::Requeue(_) => "requeue a job",
            Self::RunNow(_) => "run a job now",
            Self::Purge(_) => "purge a queue",
            Self::RequeueDead => "requeue dead jobs",
            Self::Pause(0) => "resume a queue",
            Self::Pause(_) => "pause a queue",
            Self::RemovePeriodic(_) => "remove a periodic job",
        }
    }
}

/// The part of a queue's state that is in memory, so that it costs no read.
#[derive(Clone, Copy, Debug)]
pub struct Peek {
    /// How many ready jobs of the kinds in question a claim may find. A claim that meets other
    /// kinds moves them to lines, where this no longer counts them.
    pub ready: u64,
    /// True while the queue is paused.
    pub is_paused: bool,
    /// True if no job may start now, since a limit of the queue is full, or a job runs alone.
    pub is_full: bool,
    /// True if limits hold ready jobs.
    pub is_limited: bool,
    /// True if one more job may wait, or some waiting ones have expired.
    pub has_room: bool,
    /// When the first scheduled job is due, in milliseconds since 1970; `u64::MAX`: there is none.
    pub due: u64,
    /// When the first waiting job expires, in milliseconds since 1970; `u64::MAX`: none does.
    pub expires: u64,
    /// The time until maintenance is due; `None`: it never is.
    pub next_time: Option<Duration>,
    /// The same, and zero if there is work to do now.
    pub next_change: Option<Duration>,
}

impl Peek {
    /// True if a claim may find a job now.
    pub fn is_ready(&self) -> bool {
        self.ready > 0 && !self.is_paused && !self.is_full
    }

    /// True if maintenance is due, by time or because of an end.
    pub fn is_due(&self) -> bool {
        self.next_change.is_some_and(|next| next.is_zero())
    }
}

/// How much a queue has done since it was opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    /// How many jobs were pushed.
    pub pushed: u64,
    /// How many attempts were started.
    pub started: u64,
    /// How many attempts ended.
    pub ended: u64,
}

/// What the status of a queue is made from.
#[derive(Clone, Debug)]
pub struct StatusInputs {
    /// The number of jobs in each state.
    pub counts: Counts,
    /// The ready job that has waited longest, and since when, in milliseconds since 1970.
    pub oldest_ready: Option<(JobId, u64)>,
    /// True if no ready job is where a claim looks first, so that limits may hold all of them.
    pub only_held: bool,
    /// The kinds of ready jobs that other claims moved to lines, up to 64, with up to 10,000 jobs.
    pub lines: Vec<(String, u64)>,
    /// True if all ready jobs are in such lines.
    pub only_in_lines: bool,
    /// When the next job is due or the next periodic job has its tick.
    pub due: Option<u64>,
    /// Until when it is paused; `u64::MAX`: until it is resumed.
    pub paused_until: Option<u64>,
    /// Whether a job runs alone (true) or is to (false); `None`: neither.
    pub alone: Option<bool>,
    /// Set if the limit of the whole queue is full: until this time if it waits for a token.
    pub full: Option<Option<u64>>,
    /// The limit that holds the most jobs, how many, and the time of its next token.
    pub held: Option<(LimitOf, u64, Option<u64>)>,
    /// The number of running jobs.
    pub running: usize,
    /// The job that has run longest, and since when.
    pub oldest_running: Option<(Instant, JobId)>,
    /// A summary of the workers of all processes that the database knows.
    pub fleet: Fleet,
    /// How many leases of running jobs are over but not taken back, and for how long the first one.
    pub lapsed: (usize, Duration),
    /// The longest usual run among the running kinds, as far as the database knows them.
    pub usual: Option<Duration>,
    /// The lease of the queue, if the database knows it.
    pub lease: Option<Duration>,
    /// By how much the clock of the database was last set back, and how long ago, if it is noted.
    pub set_back: Option<(Duration, Duration)>,
}

/// A queue that an engine has opened.
#[derive(Debug)]
pub struct Opened {
    /// Its number.
    pub number: QueueNo,
    /// The part that all its open handles share.
    pub shared: Arc<Shared>,
    /// Keep-alive guard: the queue closes when the last clone is dropped.
    pub keep: Arc<dyn Any + Send + Sync>,
}

/// The database of queues. Each call that changes something is one atomic write.
///
/// # Errors
/// The same as the calls of a [`Queue`](crate::Queue) that it serves.
#[allow(clippy::missing_errors_doc, reason = "they are those of the calls that they serve")]
pub trait QueueEngine: Send + Sync + 'static {
    /// Returns the engine itself, for calls that only one engine has.
    fn as_any(&self) -> &dyn Any;

    /// Returns which features it has.
    fn capabilities(&self) -> Capabilities;

    /// Returns the same value as another engine if they keep the same database.
    fn home(&self) -> Home;

    /// Opens a queue, or returns it if it is open. Jobs whose process died count a crash each.
    fn open(&self, name: &str, options: &QueueOptions) -> Result<Opened, QueueError>;

    /// Checks jobs, and gives an id to those without one.
    fn prepare(&self, queue: QueueNo, jobs: Vec<NewJob>) -> Result<Vec<Push>, ConfigError>;

    // Changes.

    /// Pushes jobs: all or none. Jobs for the same queue are one entry.
    fn push(&self, pushes: Vec<(QueueNo, Vec<Push>)>) -> Result<Vec<Pushed>, QueueError>;

    /// Returns how many turns a runner makes at once at most.
    ///
    /// Ends that come meanwhile wait for the next turn, which takes all of them along: so a runner
    /// needs few connections, and its turns do not wait for each other. Default: `None`, no bound.
    fn turns_at_once(&self) -> Option<usize> {
        None
    }

    /// Ends attempts and claims jobs, in one write.
    fn turn(&self, ends: &[Ending], claim: Option<Claim>, beside: Beside) -> Result<Turned, QueueError>;

    /// Changes a job: with a token only if that lease holds.
    fn edit(&self, queue: QueueNo, id: &str, token: Option<u64>, edit: Edit) -> Result<Row, QueueError>;

    /// Shows the progress of a claimed job. Returns its row if it was read.
    fn show(&self, job: &Held, fraction: f64, note: &str) -> Result<Option<Row>, QueueError>;

    /// Notes that the runner of these queues and jobs stops: its process may end without a crash.
    fn note_stop(&self, queues: &[QueueNo], jobs: &[Held]) -> Result<(), QueueError>;

    /// Changes a queue for an operator.
    fn steer(&self, queue: QueueNo, steer: Steer) -> Result<u64, QueueError>;

    /// Registers a periodic job. Returns its last tick, by the clock of this process.
    fn start_periodic(&self, queue: QueueNo, periodic: Arc<Periodic>) -> Result<u64, QueueError>;

    /// Changes a note. Returns the note before and after it.
    fn note(&self, queue: QueueNo, of: &str, change: Change) -> Result<(Option<Noted>, Option<Noted>), QueueError>;

    /// Runs one bounded round of maintenance, and takes back jobs of silent workers.
    fn run_maintenance(&self, queue: QueueNo) -> Result<(), QueueError>;

    // Leases.

    /// Lets a lease end after this silence; `None`: never by silence. Returns false if it is over.
    fn renew(&self, job: &Held, silence: Option<Duration>) -> bool;

    /// Lets leases end by silence, one whole lease from now on, since no worker has the jobs any
    /// more.
    ///
    /// `is_stopping`: their runner is stopping, so the ends of the leases count no attempt. One
    /// call for all of them waits only once for rows that other calls have locked.
    fn give_up(&self, jobs: &[Held], is_stopping: bool);

    /// True if the lease holds.
    fn holds(&self, job: &Held) -> bool;

    // Reads.

    /// Returns what is in memory, for a caller that claims jobs of these kinds; `None`: of all.
    fn peek(&self, queue: QueueNo, kinds: Option<&[String]>) -> Peek;

    /// Returns the number of jobs in each state.
    fn counts(&self, queue: QueueNo) -> Counts;

    /// Tells those who watch the queue what other processes have changed, if its writes do not.
    fn hear(&self, _queue: QueueNo) {}

    /// Returns how much a queue has done since it was opened, if that is counted.
    fn traffic(&self, _queue: QueueNo) -> Option<Traffic> {
        None
    }

    /// Returns the limits of a queue and how full they are, if they are known.
    fn limits(&self, _queue: QueueNo) -> Result<Vec<LimitUse>, QueueError> {
        Ok(Vec::new())
    }

    /// Returns the jobs that a job waits for and those that wait for it, if they are known: at most
    /// `most` of each.
    fn related(&self, _queue: QueueNo, _id: &str, _most: usize) -> Result<Related, QueueError> {
        Ok(Related::default())
    }

    /// Returns the workers of a queue, if they are known, each with at most `jobs` of its jobs.
    fn workers(&self, _queue: QueueNo, _jobs: usize) -> Result<Vec<WorkerInfo>, QueueError> {
        Ok(Vec::new())
    }

    /// Returns what the status of a queue is made from.
    fn status_inputs(&self, queue: QueueNo) -> Result<StatusInputs, QueueError>;

    /// Returns since when the next job has waited, or maintenance was due: milliseconds since 1970.
    fn oldest(&self, queue: QueueNo) -> u64;

    /// Returns the same for jobs of these kinds, as far as known; `None`: for all. Jobs of other
    /// kinds may wait forever, and say nothing about these.
    fn oldest_of(&self, queue: QueueNo, kinds: Option<&[String]>) -> u64 {
        let _ = kinds;
        self.oldest(queue)
    }

    /// Returns the number of running jobs, and the one that has run longest with its start.
    fn running(&self, queue: QueueNo) -> (usize, Option<(Instant, JobId)>);

    /// Returns a job with all its records.
    fn job(&self, queue: QueueNo, id: &str) -> Result<Option<JobInfo>, QueueError>;

    /// Returns at most `most` jobs of a state, after this place.
    fn list(
        &self,
        queue: QueueNo,
        state: JobState,
        behind: Option<&Place>,
        most: usize,
    ) -> Result<Vec<JobInfo>, QueueError>;

    /// Returns the row of a job.
    fn row(&self, queue: QueueNo, id: &str) -> Result<Option<Row>, QueueError>;

    /// Returns the data of a job, as JSON.
    fn data(&self, queue: QueueNo, id: &str) -> Result<Option<Vec<u8>>, QueueError>;

    /// Returns the metadata of a job.
    fn meta(&self, queue: QueueNo, id: &str) -> Result<Meta, QueueError>;

    /// Returns the progress of a job: the one that its worker shows, or the stored one.
    fn progress(&self, queue: QueueNo, id: &str) -> Result<Option<JobProgress>, QueueError>;

    /// Returns a note, even an expired one.
    fn noted(&self, queue: QueueNo, of: &str) -> Result<Option<Noted>, QueueError>;

    /// Returns at most `most` notes with this prefix that have not expired, after the one at
    /// `behind`. One that cannot be read has the reason in its place.
    fn notes(
        &self,
        queue: QueueNo,
        prefix: &str,
        behind: Option<&str>,
        most: usize,
    ) -> Result<Vec<NoteRead>, QueueError>;

    /// Returns the records of periodic jobs, and the schedules of the registered ones.
    fn periodics(&self, queue: QueueNo) -> Result<Vec<PeriodicInfo>, QueueError>;
}
