//! The seam between a queue and the database that keeps it.
//!
//! An engine keeps all queues of one database. Everything that has to be atomic is one call of it.
//! Only durations cross the seam, and times that users or the engine itself gave: the clock is the
//! engine's. The rules are pure and shared ([`rules`](crate::rules)); those who wait, the
//! averages and the lines of the log stand above, in [`Shared`].

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

/// The number of a queue within its engine.
pub type QueueNo = u32;

/// A note with its place, or the reason why it cannot be read.
pub type NoteRead = (String, Result<Noted, String>);

/// A job in the hands of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The queue that it is in.
    pub queue: QueueNo,
    /// Its id.
    pub id: JobId,
    /// The token of its lease. None is ever given out again.
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

/// A wish for jobs.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The queue.
    pub queue: QueueNo,
    /// The most jobs to be claimed.
    pub most: usize,
    /// The jobs that are meant.
    pub wanted: Wanted,
}

/// A job that was claimed. The place in its row is the token of the lease.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// The queue that it is in.
    pub queue: QueueNo,
    /// Its id.
    pub id: JobId,
    /// The job.
    pub row: Row,
    /// Its payload, as JSON.
    pub payload: Vec<u8>,
}

/// The answer to a turn.
#[derive(Debug, Default)]
pub struct Turned {
    /// For each end the state that its job has then, or `None` where its row is gone. `None` in
    /// place of that: the lease was over, and nothing was written for it.
    pub ended: Vec<Option<Option<JobState>>>,
    /// The jobs that were claimed.
    pub claimed: Vec<Claimed>,
    /// True if nothing was claimed so far, and another look may find a job.
    pub again: bool,
}

/// Work that a turn does beside its ends and claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// It does what time has brought.
    Tidy,
    /// It does nothing else: a record that cannot be read is not to hold up the ends.
    Nothing,
    /// The same, and a record that cannot be read is the answer: nothing is written then.
    Alone,
}

/// A change of a job.
#[derive(Clone, Debug)]
pub enum Edit {
    /// Nothing but the check that the lease holds.
    Nothing,
    /// Other data, as JSON.
    Data(Vec<u8>),
    /// A value of its metadata; `None` takes it away.
    Meta(String, Option<Value>),
    /// It runs once more when this run has succeeded, from this time on: milliseconds since 1970.
    Resubmit(u64),
}

impl Edit {
    /// Says what it does, for the text of an error.
    pub fn doing(&self) -> &'static str {
        match self {
            Self::Nothing | Self::Data(_) => "update a job",
            Self::Meta(..) => "set metadata of a job",
            Self::Resubmit(_) => "resubmit a job",
        }
    }
}

/// A change of a queue by somebody who steers it. The answer is the number of jobs that it changed.
#[derive(Clone, Debug)]
pub enum Steer {
    /// Removes a job in any state.
    Remove(JobId),
    /// Makes a dead job ready.
    Requeue(JobId),
    /// Makes a scheduled job due now.
    RunNow(JobId),
    /// Removes the jobs of this state that wait or run: some of them. 0: there is none.
    Purge(JobState),
    /// Makes dead jobs ready: some of them. 0: there is none.
    RequeueDead,
    /// Pauses the queue until this time, in milliseconds since 1970; 0: not any more.
    Pause(u64),
    /// Removes the record of a periodic job, and makes no more jobs of it.
    RemovePeriodic(String),
}

impl Steer {
    /// Says what it does, behind "could not".
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

/// The part of a queue's state that is in memory: no look at it costs a read.
#[derive(Clone, Copy, Debug)]
pub struct Glance {
    /// The ready jobs of the kinds in question that a claim may find. A claim that finds others
    /// puts them where this counts them no more.
    pub ready: u64,
    /// True while the queue is paused.
    pub is_paused: bool,
    /// True if no job may begin now, since a limit of the queue is full, or a job runs alone.
    pub is_full: bool,
    /// True if limits hold jobs that are ready.
    pub is_limited: bool,
    /// True if one job more may wait, or some that wait have expired.
    pub has_room: bool,
    /// The first time at which a scheduled job is due, in milliseconds since 1970; `u64::MAX`:
    /// there is none.
    pub due: u64,
    /// The first time at which a job that waits expires, in milliseconds since 1970; `u64::MAX`:
    /// none does.
    pub expires: u64,
    /// The time until time brings something; `None`: it will not.
    pub next_time: Option<Duration>,
    /// The same, and no time if there is something to be done now.
    pub next_change: Option<Duration>,
}

impl Glance {
    /// True if a claim may find a job now.
    pub fn is_ready(&self) -> bool {
        self.ready > 0 && !self.is_paused && !self.is_full
    }

    /// True if there is something to be done that time, or an end, has brought.
    pub fn is_due(&self) -> bool {
        self.next_change.is_some_and(|next| next.is_zero())
    }
}

/// The work of a queue since it was opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    /// The jobs that were pushed.
    pub pushed: u64,
    /// The attempts that were started.
    pub started: u64,
    /// The attempts that ended.
    pub ended: u64,
}

/// The things that a queue may wait for, for its status.
#[derive(Clone, Debug)]
pub struct Survey {
    /// The jobs in each state.
    pub counts: Counts,
    /// The ready job that has waited longest, and since when, in milliseconds since 1970.
    pub oldest_ready: Option<(JobId, u64)>,
    /// True if no ready job is where a claim looks first, so that limits may hold all of them.
    pub only_held: bool,
    /// The kinds of which ready jobs are in lines, since claims of other kinds have met them, with
    /// the number of each: up to 10,000 jobs of 64 kinds.
    pub lines: Vec<(String, u64)>,
    /// True if each ready job is in such a line.
    pub only_in_lines: bool,
    /// The first time at which a job is due or a periodic job has its tick.
    pub due: Option<u64>,
    /// The time until which it is paused; `u64::MAX`: until somebody resumes it.
    pub paused_until: Option<u64>,
    /// A job runs alone (true), or is to (false); `None`: neither.
    pub alone: Option<bool>,
    /// The limit of the whole queue is full: until this time if it waits for a token.
    pub full: Option<Option<u64>>,
    /// The limit that holds most jobs, their number, and the time of its next token.
    pub held: Option<(LimitOf, u64, Option<u64>)>,
    /// The number of running jobs.
    pub running: usize,
    /// The job that has run longest, and since when.
    pub oldest_running: Option<(Instant, JobId)>,
    /// The workers of all processes, as far as the database knows them, summed up.
    pub fleet: Fleet,
    /// The running jobs whose leases are over, which nobody has taken back so far, and the time
    /// since the first of these ends.
    pub lapsed: (usize, Duration),
    /// The longest of the usual runs of the kinds that run, as far as the database knows them.
    pub usual: Option<Duration>,
    /// The lease of the queue, if the database knows it.
    pub lease: Option<Duration>,
    /// The time by which the clock of the database was set back last, and for how long that is
    /// known, if the database notes it.
    pub set_back: Option<(Duration, Duration)>,
}

/// A queue that an engine has opened.
#[derive(Debug)]
pub struct Opened {
    /// Its number.
    pub number: QueueNo,
    /// The part of it that those share who have it open.
    pub shared: Arc<Shared>,
    /// It is open as long as somebody has this.
    pub keep: Arc<dyn Any + Send + Sync>,
}

/// The database of queues. Each call that changes something is one atomic write.
///
/// # Errors
/// Those of the calls of a [`Queue`](crate::Queue) that it serves.
#[allow(clippy::missing_errors_doc, reason = "they are those of the calls that they serve")]
pub trait QueueEngine: Send + Sync + 'static {
    /// Returns the engine as itself, for calls that only one engine has.
    fn as_any(&self) -> &dyn Any;

    /// Returns what it can do.
    fn capabilities(&self) -> Capabilities;

    /// Returns the same value as another engine if they keep the same database.
    fn home(&self) -> Home;

    /// Opens a queue, or returns it as it is open. Its jobs that ran when their process died count
    /// a crash each.
    fn open(&self, name: &str, options: &QueueOptions) -> Result<Opened, QueueError>;

    /// Checks jobs, and gives those an id that have none.
    fn prepare(&self, queue: QueueNo, jobs: Vec<NewJob>) -> Result<Vec<Push>, ConfigError>;

    // Changes.

    /// Pushes jobs: all or none. Those that go together into one queue are one entry.
    fn push(&self, pushes: Vec<(QueueNo, Vec<Push>)>) -> Result<Vec<Pushed>, QueueError>;

    /// Returns how many turns a runner makes at once at most. Ends that come meanwhile wait for the
    /// next one, which takes all of them along: so a runner needs few connections, and its turns do
    /// not wait for each other. `None`, the default: each thread makes its own.
    fn turns_at_once(&self) -> Option<usize> {
        None
    }

    /// Ends attempts and claims jobs, in one write.
    fn turn(&self, ends: &[Ending], claim: Option<Claim>, beside: Beside) -> Result<Turned, QueueError>;

    /// Changes a job: with a token only if that lease holds.
    fn edit(&self, queue: QueueNo, id: &str, token: Option<u64>, edit: Edit) -> Result<Row, QueueError>;

    /// Shows the progress of a job that a worker has. Returns its row if that was read.
    fn show(&self, job: &Held, fraction: f64, note: &str) -> Result<Option<Row>, QueueError>;

    /// Notes that the runner of these queues stops, which has these jobs. If its process ends now,
    /// that is no crash.
    fn note_stop(&self, queues: &[QueueNo], jobs: &[Held]) -> Result<(), QueueError>;

    /// Changes a queue for somebody who steers it.
    fn steer(&self, queue: QueueNo, steer: Steer) -> Result<u64, QueueError>;

    /// Makes the jobs of a periodic job from now on. Returns its last tick, by
    /// the clock of this process.
    fn start_periodic(&self, queue: QueueNo, periodic: Arc<Periodic>) -> Result<u64, QueueError>;

    /// Changes a note. Returns the one of before and the one of now.
    fn note(&self, queue: QueueNo, of: &str, change: Change) -> Result<(Option<Noted>, Option<Noted>), QueueError>;

    /// Does what time has brought, and takes back the jobs of silent workers: some of each.
    fn run_maintenance(&self, queue: QueueNo) -> Result<(), QueueError>;

    // Leases.

    /// Makes a lease end after so long a silence from now on; `None`: not by silence. Returns false
    /// if it is over.
    fn renew(&self, job: &Held, silence: Option<Duration>) -> bool;

    /// Lets leases end by silence: no worker has the jobs any more, and each lease lasts once more
    /// from now on. `is_stopping`: their runner stops, so the ends of the leases count no attempt.
    /// One call for all of them, which waits once for those that other calls have locked.
    fn give_up(&self, jobs: &[Held], is_stopping: bool);

    /// True if the lease holds.
    fn holds(&self, job: &Held) -> bool;

    // Looks.

    /// Returns what is in memory, as one sees it who claims jobs of these kinds; `None`: all.
    fn glance(&self, queue: QueueNo, kinds: Option<&[String]>) -> Glance;

    /// Returns the jobs in each state.
    fn counts(&self, queue: QueueNo) -> Counts;

    /// Returns the work of a queue since it was opened, if it is counted.
    fn traffic(&self, _queue: QueueNo) -> Option<Traffic> {
        None
    }

    /// Returns the limits of a queue and how full they are, if it can say.
    fn limits(&self, _queue: QueueNo) -> Result<Vec<LimitUse>, QueueError> {
        Ok(Vec::new())
    }

    /// Returns the jobs that a job waits for and those that wait for it, if it can say: so many of
    /// each at most.
    fn related(&self, _queue: QueueNo, _id: &str, _most: usize) -> Result<Related, QueueError> {
        Ok(Related::default())
    }

    /// Returns the workers of a queue, if it knows them: each with so many of its jobs at most.
    fn workers(&self, _queue: QueueNo, _jobs: usize) -> Result<Vec<WorkerInfo>, QueueError> {
        Ok(Vec::new())
    }

    /// Returns what the status of a queue is made from.
    fn survey(&self, queue: QueueNo) -> Result<Survey, QueueError>;

    /// Returns since when the job has waited that a claim takes next, or its work is due: in
    /// milliseconds since 1970.
    fn oldest(&self, queue: QueueNo) -> u64;

    /// Returns the same of the jobs of these kinds, as far as it is known which those are; `None`:
    /// of all. Jobs of other kinds may wait for ever, and say nothing about these.
    fn oldest_of(&self, queue: QueueNo, kinds: Option<&[String]>) -> u64 {
        let _ = kinds;
        self.oldest(queue)
    }

    /// Returns the ids of the running jobs and since when they run.
    fn running(&self, queue: QueueNo) -> (usize, Option<(Instant, JobId)>);

    /// Returns a job with all that belongs to it.
    fn job(&self, queue: QueueNo, id: &str) -> Result<Option<JobInfo>, QueueError>;

    /// Returns jobs of a state behind this place: so many at most.
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

    /// Returns the progress of a job: that which its worker shows, or the stored one.
    fn progress(&self, queue: QueueNo, id: &str) -> Result<Option<JobProgress>, QueueError>;

    /// Returns a note, also if its time is over.
    fn noted(&self, queue: QueueNo, of: &str) -> Result<Option<Noted>, QueueError>;

    /// Returns the notes whose places begin so, behind this one: so many at most that are not over.
    /// One that cannot be read has the reason in its place.
    fn notes(
        &self,
        queue: QueueNo,
        prefix: &str,
        behind: Option<&str>,
        most: usize,
    ) -> Result<Vec<NoteRead>, QueueError>;

    /// Returns the records of periodic jobs, and the schedules of those that are registered.
    fn periodics(&self, queue: QueueNo) -> Result<Vec<PeriodicInfo>, QueueError>;
}
