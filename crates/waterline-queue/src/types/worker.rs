//! The workers of a queue, as a call that lists them returns them.

use crate::types::job::JobId;
use std::fmt;
use std::time::{Duration, SystemTime};

/// How many running jobs a [`WorkerInfo`] shows at most.
pub(crate) const SHOWN: usize = 64;

/// A worker of a queue, from [`Queue::workers`](crate::Queue::workers).
///
/// It is a process that takes jobs with a runner, by [`accept`](crate::Queue::accept), or in
/// another language. `Display` shows its name, or its process and host.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerInfo {
    /// The name under which it claims, which need not be unique. `None`: it has none.
    pub name: Option<String>,
    /// Its process id. `None`, here and in the next three: it has not reported it.
    pub process: Option<u32>,
    /// The name of its machine.
    pub host: Option<String>,
    /// Its programming language: `rust`, `python`, `javascript` …
    pub language: Option<String>,
    /// The version of its library, or of the program.
    pub version: Option<String>,
    /// The kinds that it takes; `None`: all, or more than are kept (256 kinds and 16 kB).
    pub kinds: Option<Vec<String>>,
    /// How many jobs it runs at once at most. `None`: it has no bound, as a caller of
    /// [`accept`](crate::Queue::accept), or it has not reported it.
    pub slots: Option<u32>,
    /// How many slots are taken: by its jobs, and by lost ones whose handlers go on.
    pub busy: u32,
    /// Since when it runs.
    pub began: SystemTime,
    /// How long ago it gave the last sign of life. Zero for the process that has the store.
    pub silent_for: Duration,
    /// It gives no sign of life any more. Two thirds of the lease of its jobs have passed without a
    /// renewal, of which there are three per lease; a worker without jobs was silent for as long,
    /// and for at least 3 seconds. Its process has died or hangs, or it cannot reach the database.
    pub is_silent: bool,
    /// It claims no more jobs, and ends when its jobs have ended.
    pub is_stopping: bool,
    /// Its jobs, the one that started first before the others: up to 64.
    pub jobs: Vec<WorkerJob>,
    /// How long the job has run that it started last.
    pub newest_ran_for: Option<Duration>,
    /// The time until the last lease of its jobs ends. Then others take all of them, unless it
    /// renews them. `None`: it has no job, or the leases end with its process.
    pub lease_left: Option<Duration>,
}

/// A job that a worker has, from [`WorkerInfo::jobs`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerJob {
    /// Its id.
    pub id: JobId,
    /// Its kind.
    pub kind: String,
    /// How long it has run.
    pub ran_for: Duration,
}

impl fmt::Display for WorkerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, self.process, &self.host) {
            (Some(name), ..) => f.pad(name),
            (None, Some(process), Some(host)) => f.pad(&format!("process {process} on {host}")),
            (None, Some(process), None) => f.pad(&format!("process {process}")),
            (None, None, Some(host)) => f.pad(&format!("a worker on {host}")),
            (None, None, None) => f.pad("a worker without a name"),
        }
    }
}
