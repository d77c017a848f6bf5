//! The things that happened in a batch, for those who wait and for the log.
#![allow(missing_docs, reason = "no user sees these types, and the names say it")]

use crate::types::job::{JobId, JobState};
use crate::types::limit::LimitOf;
use crate::types::related::Skipped;
use std::time::Duration;

/// A thing that happened in a batch, for those who wait.
#[derive(Clone, Debug)]
pub enum Event {
    /// A job has another state, or other data; `None`: it was removed.
    /// The data is new if there is some; `Some(None)`: it is gone. A dead job has the error.
    Seen { id: JobId, state: Option<JobState>, data: Option<Option<Vec<u8>>>, error: Option<String> },
    /// A job has this lease from now on.
    Claimed { id: JobId, token: u64 },
    /// A job has had this lease all along, though nothing told of it.
    Kept { id: JobId, token: u64 },
    /// This lease is over.
    Released { token: u64 },
    /// Somebody else than its worker has ended this lease.
    Lost { token: u64 },
    /// The log is to have this line.
    Line(Line),
    /// A job that had shown progress begins anew, so that is gone.
    Anew { id: JobId },
    /// The queue is paused until this time; 0: it is not.
    Paused { until: u64 },
}

impl Event {
    pub fn line(self) -> Option<Line> {
        if let Self::Line(line) = self { Some(line) } else { None }
    }
}

/// A thing that a transition did by itself, and that a person may want to hear of.
#[derive(Clone, Debug)]
pub enum Line {
    /// A job died, and no worker said so.
    Died { job: About, error: String },
    /// Its worker was silent, so it is taken back.
    TakenBack { job: About, error: String },
    /// A job finished without a run.
    Skipped { job: About, why: Skipped },
    /// A limit has no place for a job that is ready.
    Held { job: About, limit: LimitOf },
    /// A record that cannot be read is passed or replaced.
    Damaged(Damaged),
    /// A tick of a periodic job made no job. `run` is the one that has not ended.
    Passed { name: String, tick: u64, why: Passed, run: Option<JobId> },
    /// The push of a tick of a periodic job was refused.
    Unmade { name: String, error: String },
    /// So many lines about jobs did not fit into an answer of the server.
    Untold { count: u64 },
    /// The clock on the wall was set back, and what was written ahead of it went back with it.
    SetBack { by: Duration },
    /// Jobs of a kind are pushed that the runner has no handler for.
    Unhandled { kind: String, fate: Fate },
}

/// The fate of a job that the runner has no handler for.
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

/// A record that cannot be read.
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
    /// A mark that this job is compared by.
    Mark {
        id: JobId,
        error: String,
    },
    /// A job, which is set aside.
    Job {
        id: JobId,
        error: String,
    },
    /// The entry at this place, of a job that has lost it by that.
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

/// The reason why a tick makes no job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    Skipped,
    Missed,
}
