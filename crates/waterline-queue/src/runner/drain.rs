//! Running jobs until there are none, or a limit is reached.

use crate::serialized::long;
use serde::ser::{Serialize, Serializer};
use std::fmt;
use std::time::Duration;
use waterline::seam::fields;

/// The limits of [`RunnerBuilder::drain`](crate::RunnerBuilder::drain). Each is checked before a
/// job is claimed; running jobs go on. By default there are none.
///
/// ```
/// use std::time::Duration;
/// use waterline::Store;
/// use waterline_queue::{DrainLimits, NewJob, Outcome, Queue, QueueOptions, Reached, Runner};
///
/// let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default())?;
/// queue.push_all((0..5).map(|n| NewJob::new("k", &n).unwrap()))?;
/// let summary = Runner::builder(&queue)
///     .on("k", |_job, _n: u64| Ok(Outcome::Done))
///     .drain(DrainLimits::default().jobs(3).time(Duration::from_secs(60)))?;
/// assert_eq!((summary.finished, summary.reached, queue.counts().ready), (3, Reached::Jobs, 2));
/// # Ok::<(), waterline_queue::QueueError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct DrainLimits {
    pub(super) jobs: Option<u64>,
    pub(super) time: Option<Duration>,
}

impl DrainLimits {
    /// Runs this many attempts at most.
    pub fn jobs(mut self, jobs: u64) -> Self {
        self.jobs = Some(jobs);
        self
    }

    /// Claims no job once this time has passed since the start.
    pub fn time(mut self, time: Duration) -> Self {
        self.time = Some(time);
        self
    }
}

/// Why a drain has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reached {
    /// No job is ready.
    NothingReady,
    /// The queue is paused.
    Paused,
    /// Jobs are ready, and a [gate](crate::RunnerBuilder::gate) is closed.
    Gate,
    /// Limits hold the ready jobs, until there are more tokens or other workers end their jobs.
    Limited,
    /// The limit of attempts was reached.
    Jobs,
    /// The limit of time was reached.
    Time,
}

/// The results of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// How many attempts succeeded.
    pub finished: u64,
    /// How many attempts failed, so that their jobs run again.
    pub retried: u64,
    /// How many attempts do not count, since the job was not ready.
    pub snoozed: u64,
    /// How many jobs died.
    pub dead: u64,
    /// How many attempts lost their job, since it was removed.
    pub lost: u64,
    /// The time from the start to the end.
    pub elapsed: Duration,
    /// Why it ended.
    pub reached: Reached,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { finished, retried, snoozed, dead, lost, elapsed, reached } = self;
        let reached = match reached {
            Reached::NothingReady => "no job is ready",
            Reached::Paused => "the queue is paused",
            Reached::Gate => "a gate is closed",
            Reached::Limited => "limits hold the jobs that are ready",
            Reached::Jobs => "the limit of attempts is reached",
            Reached::Time => "the limit of time is reached",
        };
        write!(
            f,
            "{finished} finished, {retried} to be tried again, {snoozed} not ready, {dead} dead, {lost} lost in {elapsed:.1?}: \
             {reached}"
        )
    }
}

/// The elapsed time is in whole milliseconds.
impl Serialize for Summary {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let reached = match self.reached {
            Reached::NothingReady => "nothing_ready",
            Reached::Paused => "paused",
            Reached::Gate => "gate",
            Reached::Limited => "limited",
            Reached::Jobs => "jobs",
            Reached::Time => "time",
        };
        fields!(serializer, "Summary";
            finished = self.finished,
            retried = self.retried,
            snoozed = self.snoozed,
            dead = self.dead,
            lost = self.lost,
            elapsed = long(self.elapsed),
            reached = reached,
            text = self.to_string(),
        )
    }
}
