//! What happened in a batch, for waiters and for the log.
#![allow(missing_docs, reason = "no user sees these types, and the names say it")]

use crate::types::job::{JobId, JobState};
use crate::types::limit::LimitOf;
use crate::types::related::Skipped;
use std::time::Duration;

/// What happened in a batch, for waiters.
#[derive(Clone, Debug)]
pub enum Event {
    /// A job has another state (`None`: removed) or data (`Some(None)`: gone). A dead one has an
    /// error.
    Seen { id: JobId, state: Option<JobState>, data: Option<Option<Vec<u8>>>, error: Option<String> },
    /// A job has this lease from now on.
    Claimed { id: JobId, token: u64 },
    /// A job has had this lease all along, though no event said so.
    Kept { id: JobId, token: u64 },
    /// This lease is over.
    Released { token: u64 },
    /// This lease was ended, and not by its worker.
    Lost { token: u64 },
    /// A line for the log.
    Line(Line),
    /// A job that had shown progress starts anew, so the progress is gone.
    Anew { id: JobId },
    /// The queue is paused until this time; 0: it is not.
    Paused { until: u64 },
}

impl Event {
    pub fn line(self) -> Option<Line> {
        if let Self::Line(line) = self { Some(line) } else { None }
    }
}

/// What a transition did by itself that an operator may want to know.
#[derive(Clone, Debug)]
pub enum Line {
    /// A job died, and not because its worker said so.
    Died { job: About, error: String },
    /// Its worker was silent, so it is taken back.
    TakenBack { job: About, error: String },
    /// A job finished without a run.
    Skipped { job: About, why: Skipped },
    /// A limit has no room for a ready job.
    Held { job: About, limit: LimitOf },
    /// An unreadable record is skipped or replaced.
    Damaged(Damaged),
    /// A tick of a periodic job made no job. `run` is the one that has not ended.
    Passed { name: String, tick: u64, why: Passed, run: Option<JobId> },
    /// The push of a tick of a periodic job was refused.
    Unmade { name: String, error: String },
    /// How many lines about jobs did not fit into an answer of the server.
    Untold { count: u64 },
    /// The wall clock was set back, and times written ahead of it moved back with it.
    SetBack { by: Duration },
    /// Jobs were pushed of a kind that the runner has no handler for.
    Unhandled { kind: String, fate: Fate },
}

/// What happens to a job that the runner has no handler for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It waits for a runner that has one.
    Left,
    Snoozed(Duration),
    Dead,
}

/// The job that a line is about.
#[derive(Clone, Debug)]
pub struct About {
    pub id: JobId,
    pub kind: String,
    pub attempt: u32,
}

/// An unreadable record.
#[derive(Clone, Debug)]
pub enum Damaged {
    /// The state of a limit.
    Limit {
        name: String,
        reason: String,
    },
    Note {
        error: String,
    },
    /// A mark by which this job is compared.
    Mark {
        id: JobId,
        error: String,
    },
    /// A job, which is set aside.
    Job {
        id: JobId,
        error: String,
    },
    /// The entry at this place, so that its job has lost it.
    Entry {
        place: String,
        error: String,
    },
    /// The record of a periodic job.
    Periodic {
        name: String,
        error: String,
    },
}

/// Why a tick makes no job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    Skipped,
    Missed,
}
