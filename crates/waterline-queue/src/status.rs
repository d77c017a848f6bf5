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
    /// The ready job that has waited for the longest time in its priority, and its age. Of the
    /// jobs that limits hold, the first ones of 64 limits are looked at. `None` if no job is ready.
    pub oldest_ready: Option<(JobId, Duration)>,
    /// The reason why no job starts right now.
    pub waits: Waits,
    /// The kinds that somebody has pushed since the queue was opened, and that its runner has no
    /// handler for: mostly they are misspelt. [`Unknown`](super::Unknown) says what becomes of
    /// their jobs. It has 64 kinds at most, and none without a runner, as in a store that is only
    /// read. A kind stays here when its jobs are gone, and if its push was refused later, as by a
    /// full queue. Jobs that were pushed in an earlier life are seen when the runner takes them.
    pub unknown_kinds: Vec<String>,
    /// The kinds of which jobs are due, and that no worker takes: neither the runner here nor, in a
    /// database that many processes share, one that is heard of. Claims of other kinds have passed
    /// them by.
    pub untaken: Vec<UntakenKind>,
    /// The slots of the runner in this process that jobs hold which are no longer its own. `None`
    /// if there are none, as without a runner.
    pub stuck: Option<StuckSlots>,
    /// The clock on the wall was set back less than an hour ago, as this process has noticed. What
    /// the queue had written at a time that is ahead since went back with it: a back-off, a pause,
    /// the window of a unique job, the time for which a row is kept, the last tick of an interval.
    pub set_back: Option<SetBack>,
    /// The place from which the queue was seen.
    pub(super) vantage: Vantage,
    /// The workers of the queue.
    pub(super) fleet: Fleet,
    /// The time since the first lease has ended of a job that nobody has taken back.
    pub(super) lapsed_for: Duration,
}

/// The place from which a queue is seen: it decides what the process can know of its runners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vantage {
    /// This process has the queue for itself.
    Whole,
    /// Another process has it, and this one reads what is saved.
    Beside,
    /// Any number of processes have it. The database knows which jobs run.
    Shared,
}

/// Jobs of a kind that are due and that no worker here takes, from [`QueueStatus::untaken`].
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
/// A future is dropped at its next await point, and a deferred job ends at once, so such a slot
/// soon is free. A thread cannot be ended: its handler sees that it is to stop
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

/// A clock on the wall that was set back, from [`QueueStatus::set_back`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetBack {
    /// The time by which it went back.
    pub by: Duration,
    /// The time since that was noticed.
    pub since: Duration,
}

/// The time after which a job that is due has no worker, where many processes share the queue:
/// workers look once a second.
pub(super) const UNTAKEN: Duration = Duration::from_secs(60);

/// The reason why no job of a queue starts right now.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Waits {
    /// Jobs start, or are about to.
    No,
    /// No job is ready.
    NothingReady {
        /// The time until the next scheduled job is due, or the next tick of a periodic one, if
        /// there is any.
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
        /// The time for which it has been closed.
        since: Duration,
    },
    /// Limits hold all jobs that are ready.
    Limited {
        /// The limit that holds the most of them, among 64 limits at most. A key whose first job
        /// waits for the limit of its kind counts there.
        limit: LimitOf,
        /// The number of jobs that it holds.
        held: u64,
        /// The time until it has a token for the first of them; `None`: it has a place when a job
        /// ends that runs.
        left: Option<Duration>,
    },
    /// All jobs that are due are of kinds that no worker here takes: see
    /// [`QueueStatus::untaken`].
    OtherKinds,
    /// All slots of the runner are busy.
    Busy {
        /// The number of slots.
        slots: usize,
        /// The time for which the oldest running job has run.
        since: Duration,
        /// The id of that job.
        oldest: JobId,
    },
    /// All slots are busy, and for longer than the lease and than ten usual runs of the kinds that
    /// run no job has ended.
    #[non_exhaustive]
    StandsStill {
        /// The number of slots: of the runner, or of all workers of a database that many processes
        /// share.
        slots: usize,
        /// The number of these workers.
        workers: Option<usize>,
        /// The worker of the next one, as it is named.
        worker: Option<String>,
        /// The id of the job that has run longest.
        oldest: JobId,
        /// Its kind.
        kind: String,
        /// The time for which it has run.
        since: Duration,
        /// The time since the last end of a job; since the claim of the last slot if that came
        /// later.
        no_end: Duration,
    },
    /// A job runs alone, or is to run alone as soon as those that run have ended. Its process died
    /// while it ran, and not for the first time: see
    /// [`QueueOptions::max_crashes`](crate::QueueOptions::max_crashes).
    #[non_exhaustive]
    Alone {
        /// True if it runs; false if others still do.
        runs: bool,
        /// The id of the oldest running job.
        oldest: JobId,
        /// The time for which that one has run.
        since: Duration,
    },
    /// No runner runs, and nobody accepts jobs. In a database that many processes share: no worker
    /// is heard of.
    NoWorker,
    /// Workers are there that have free slots and take the kinds that are due, and for a minute
    /// none of them has begun a job.
    Idle {
        /// The number of these workers.
        workers: usize,
        /// The number of their free slots; `None`: one has no bound.
        free: Option<u64>,
    },
    /// The store cannot be used, or a record in it is damaged. The call is tried again.
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
