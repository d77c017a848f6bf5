//! The workers of a queue, as those see them who look at it.

use crate::types::job::JobId;
use std::fmt;
use std::time::{Duration, SystemTime};

/// The most running jobs that a [`WorkerInfo`] shows.
pub(crate) const SHOWN: usize = 64;

/// A worker of a queue, from [`Queue::workers`](crate::Queue::workers): a process that takes
/// its jobs, with a runner, by [`accept`](crate::Queue::accept), or in another language.
/// `Display` names it: by its name, or by its process and host.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerInfo {
    /// The name under which it claims. Others may have the same one. `None`: it has none, as the
    /// process of a store.
    pub name: Option<String>,
    /// The number of its process. `None`, here and in the next three: it has not said.
    pub process: Option<u32>,
    /// The name of the machine that it runs on.
    pub host: Option<String>,
    /// The language that it is written in: `rust`, `python`, `javascript` …
    pub language: Option<String>,
    /// The version of its library, or of the program.
    pub version: Option<String>,
    /// The kinds that it takes; `None`: all, or more than are kept of a worker (256 kinds and 16
    /// kB).
    pub kinds: Option<Vec<String>>,
    /// The most jobs that it runs at once. `None`: it has no bound, as a caller of
    /// [`accept`](crate::Queue::accept), or it has not said.
    pub slots: Option<u32>,
    /// The slots that are taken: by the jobs that it has, and by those that were removed or taken
    /// back and whose handlers go on.
    pub busy: u32,
    /// The time since which it is there.
    pub began: SystemTime,
    /// The time since it was heard of last. Zero for the process that has the store.
    pub silent_for: Duration,
    /// It is no longer heard of. Two thirds of the lease of its jobs have passed without a renewal,
    /// of which there are three in a lease; a worker without jobs was silent for as long, and for 3
    /// seconds at least. Its process has died, or it stands still, or it cannot reach the database.
    pub is_silent: bool,
    /// It claims no more jobs, and ends when those have ended that it has.
    pub is_stopping: bool,
    /// The jobs that it has, the one that began first before the others: up to 64.
    pub jobs: Vec<WorkerJob>,
    /// The time for which the job runs that it began last.
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
    /// The time for which it runs.
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
