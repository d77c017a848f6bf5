//! The state of a queue in one sentence, and in numbers.

mod deciding;
mod looking;
mod sentences;

#[cfg(doc)]
use crate::handle::Queue;
use crate::rules::fleet::Fleet;
use crate::types::job::{Counts, JobId};
use crate::types::limit::LimitOf;
use std::time::Duration;

/// The state of a queue, from [`Queue::status`]. `Display` says it in one sentence.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct QueueStatus {
    /// The name of the queue.
    pub queue: String,
    /// The number of jobs in each state.
    pub counts: Counts,
    /// The ready job that has waited longest in its priority, and its age. Of the jobs that limits
    /// hold, the first ones of 64 limits are looked at. `None` if no job is ready.
    pub oldest_ready: Option<(JobId, Duration)>,
    /// Why no job starts right now.
    pub waits: Waits,
    /// The kinds pushed since the queue was opened for which its runner has no handler: usually
    /// they are misspelt. [`Unknown`](super::Unknown) says what becomes of their jobs. There are at
    /// most 64 kinds, and none without a runner, as in a read-only store. A kind stays here when
    /// its jobs are gone, and if its push was refused later, as by a full queue. Jobs pushed before
    /// the queue was opened are seen when the runner takes them.
    pub unknown_kinds: Vec<String>,
    /// The kinds with due jobs that no worker takes: neither the runner here nor, in a database
    /// that many processes share, any known worker. Claims of other kinds have passed them by.
    pub untaken: Vec<UntakenKind>,
    /// The slots of the runner in this process whose jobs are no longer its own, if there are any.
    pub stuck: Option<StuckSlots>,
    /// Set if this process noticed that the wall clock was set back less than an hour ago. Times
    /// that the queue had written ahead moved back with it: back-offs, pauses, the windows of
    /// unique jobs, how long rows are kept, the last tick of an interval.
    pub set_back: Option<SetBack>,
    /// From where the queue is seen.
    pub(super) vantage: Vantage,
    pub(super) fleet: Fleet,
    /// How long the first lease has been over whose job no worker has taken back.
    pub(super) lapsed_for: Duration,
}

/// From where a queue is seen: it decides what the process can know of its runners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vantage {
    /// Only this process has the queue.
    Whole,
    /// Another process has it, and this one reads what is stored.
    Beside,
    /// Any number of processes have it. The database knows which jobs run.
    Shared,
}

/// A kind with due jobs that no worker here takes, from [`QueueStatus::untaken`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UntakenKind {
    /// The kind.
    pub kind: String,
    /// The number of its jobs, up to 10,000.
    pub jobs: u64,
}

/// Slots that stay taken although their jobs were removed, or taken back, while they ran.
///
/// A future is dropped at its next await point, and a deferred job ends at once, so such a slot is
/// free soon. A thread cannot be ended: its handler sees that it is to stop
/// ([`Running::is_stopping`](super::Running::is_stopping)), and holds the slot until it returns.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StuckSlots {
    /// The number of slots.
    pub slots: usize,
    /// The id of the job that was removed, or taken back, first.
    pub first: JobId,
    /// The time since then.
    pub since: Duration,
}

/// How the wall clock was set back, from [`QueueStatus::set_back`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetBack {
    /// By how much it was set back.
    pub by: Duration,
    /// How long ago that was noticed.
    pub since: Duration,
}

/// After this time a due job of a shared queue counts as untaken: workers look once a second.
pub(super) const UNTAKEN: Duration = Duration::from_secs(60);

/// Why no job of a queue starts right now.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Waits {
    /// Jobs start, or are about to.
    No,
    /// No job is ready.
    NothingReady {
        /// The time until the next scheduled job or periodic tick is due, if there is any.
        due_in: Option<Duration>,
    },
    /// The queue is paused.
    Paused {
        /// The time until it ends; `None`: it ends with [`Queue::resume`].
        left: Option<Duration>,
    },
    /// A [gate](super::RunnerBuilder::gate) of the runner is closed.
    Gate {
        /// Its name.
        name: String,
        /// For how long it has been closed.
        since: Duration,
    },
    /// Limits hold all ready jobs.
    Limited {
        /// The limit that holds the most of them, among at most 64. A key whose first job waits for
        /// the limit of its kind counts there.
        limit: LimitOf,
        /// How many jobs it holds.
        held: u64,
        /// The time until it has a token for the first of them; `None`: until a running job ends.
        left: Option<Duration>,
    },
    /// All due jobs are of kinds that no worker here takes: see [`QueueStatus::untaken`].
    OtherKinds,
    /// All slots of the runner are busy.
    Busy {
        /// The number of slots.
        slots: usize,
        /// For how long the oldest running job has run.
        since: Duration,
        /// The id of that job.
        oldest: JobId,
    },
    /// All slots are busy, and no job has ended for longer than the lease and ten usual runs.
    #[non_exhaustive]
    StandsStill {
        /// The number of slots, of the runner or of all workers that share the database.
        slots: usize,
        /// The number of these workers.
        workers: Option<usize>,
        /// The name of the worker that runs `oldest`.
        worker: Option<String>,
        /// The id of the job that has run longest.
        oldest: JobId,
        /// Its kind.
        kind: String,
        /// For how long it has run.
        since: Duration,
        /// The time since the last end of a job, or since the claim of the last slot if later.
        no_end: Duration,
    },
    /// A job runs alone, or is to run alone as soon as the running ones have ended. Its process
    /// died while it ran, and not for the first time: see
    /// [`QueueOptions::max_crashes`](crate::QueueOptions::max_crashes).
    #[non_exhaustive]
    Alone {
        /// True if it runs; false if others still do.
        runs: bool,
        /// The id of the oldest running job.
        oldest: JobId,
        /// For how long that one has run.
        since: Duration,
    },
    /// There is no runner and no caller of `accept`, or no known worker of a shared database.
    NoWorker,
    /// Workers have free slots and take the due kinds, but have started no job for a minute.
    Idle {
        /// The number of these workers.
        workers: usize,
        /// The number of their free slots; `None`: a worker has no bound.
        free: Option<u64>,
    },
    /// The store cannot be used, or a record in it is damaged. The call is retried.
    StoreFails {
        /// The error.
        error: String,
        /// The time since the first such failure.
        since: Duration,
    },
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the status of a queue without a job.
    pub(crate) fn status(waits: Waits) -> QueueStatus {
        let (queue, counts, vantage) = ("mail".to_owned(), Counts::default(), Vantage::Whole);
        let (oldest_ready, stuck, set_back, unknown_kinds, untaken) = (None, None, None, Vec::new(), Vec::new());
        let (fleet, lapsed_for) = (Fleet::of(&[]), Duration::ZERO);
        QueueStatus {
            queue,
            counts,
            oldest_ready,
            waits,
            unknown_kinds,
            untaken,
            stuck,
            set_back,
            vantage,
            fleet,
            lapsed_for,
        }
    }
}
