//! The results of handlers, and the events of attempts.

use crate::types::data::JobData;
use crate::types::ended::AttemptEnd;
use crate::types::error::QueueError;
use crate::types::events::Fate;
use crate::types::json::from_json;
use std::time::{Duration, SystemTime};

/// The result of a handler that did not fail. (`Err` is a failed attempt: see
/// [`RunnerBuilder::on`](crate::RunnerBuilder::on).) A time beyond the year 9999 counts as the
/// end of that year.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Outcome {
    /// The job is finished.
    Done,
    /// The job is finished, and leaves this data, which [`Queue::get`](crate::Queue::get) and a
    /// [`Subscription`](crate::Subscription) show. Data that is nested too deeply to be read again
    /// (127 arrays and objects) fails the attempt. See also [`done_with`](Self::done_with).
    DoneWith(serde_json::Value),
    /// The attempt failed, and the next one is at this time, whatever the back-off is.
    RetryAt(SystemTime),
    /// The job was not ready: it runs again at this time, and the attempt does not count.
    Snooze(SystemTime),
    /// The job failed for good, for this reason.
    Dead(String),
}

impl Outcome {
    /// Makes the outcome of a finished job that leaves a value of yours:
    /// [`DoneWith`](Self::DoneWith) with the value as JSON, or [`Done`](Self::Done) for `None`.
    ///
    /// ```
    /// use std::collections::BTreeMap;
    /// use waterline::Store;
    /// use waterline_queue::{DrainLimits, NewJob, Outcome, Queue, QueueOptions, Runner};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "orders", QueueOptions::default())?;
    /// let id = queue.push(NewJob::new("order", &3)?)?.id;
    /// Runner::builder(&queue)
    ///     .on("order", |_job, pieces: u32| {
    ///         let receipt = BTreeMap::from([("pieces", pieces)]);     // or a struct of yours
    ///         Ok(Outcome::done_with(&receipt)?)
    ///     })
    ///     .drain(DrainLimits::default())?;
    /// let data = queue.get(id)?.expect("it is kept").data.expect("it has left some");
    /// assert_eq!(data["pieces"], 3);
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Payload`] for a value that is not JSON, or is nested too deeply.
    pub fn done_with(data: impl Into<JobData>) -> Result<Self, QueueError> {
        let Some(json) = data.into().json_of_any_size("")? else { return Ok(Self::Done) };
        from_json(&json).map(Self::DoneWith).map_err(|source| QueueError::Payload { id: String::new(), source })
    }
}

/// What happens to jobs whose kind has no handler. The first push of such a kind is logged, and
/// [`QueueStatus::unknown_kinds`](crate::QueueStatus::unknown_kinds) lists it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unknown {
    /// The runner does not take them: they wait for one that has a handler for them. The default.
    ///
    /// So two services may share a queue, and during a deploy a new kind waits for the new program.
    /// The runner finds its own jobs behind any number of others, and
    /// [`QueueStatus::untaken`](crate::QueueStatus::untaken) lists the kinds that no worker takes.
    #[default]
    Leave,
    /// The runner takes jobs of all kinds, and such a job is dead at once, which is visible.
    Dead,
    /// The runner takes jobs of all kinds, and such a job runs again after this time, when a
    /// program with its handler may run. The attempt does not count.
    Snooze(Duration),
}

impl Unknown {
    pub(super) fn fate(self) -> Fate {
        match self {
            Self::Leave => Fate::Left,
            Self::Dead => Fate::Dead,
            Self::Snooze(time) => Fate::Snoozed(time),
        }
    }
}

/// An event of a runner, for [`RunnerBuilder::observe`](crate::RunnerBuilder::observe).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum QueueEvent<'a> {
    /// An attempt starts, on the thread that runs it.
    #[non_exhaustive]
    AttemptBegun {
        /// The name of the queue.
        queue: &'a str,
        /// The id of the job.
        id: &'a str,
        /// Its kind.
        kind: &'a str,
        /// The number of the attempt, from 1.
        attempt: u32,
        /// The mean duration of successful attempts of this kind; `None`: there was none. See
        /// [`Queue::durations`](crate::Queue::durations).
        expected: Option<Duration>,
    },
    /// The end of an attempt is written.
    #[non_exhaustive]
    AttemptEnded {
        /// The name of the queue.
        queue: &'a str,
        /// The id of the job.
        id: &'a str,
        /// Its kind.
        kind: &'a str,
        /// The number of the attempt, from 1.
        attempt: u32,
        /// The time from the claim to the written end.
        elapsed: Duration,
        /// The end.
        ended: &'a AttemptEnd,
    },
    /// The queue stands still: all slots of the runner are busy, and no job has ended for longer
    /// than the lease and than ten usual runs of the running kinds. It comes on its own thread
    /// together with a log line, and again after twice the time, until a job ends.
    #[non_exhaustive]
    Stalled {
        /// The name of the queue of the job that has run longest.
        queue: &'a str,
        /// How many slots the runner has.
        slots: usize,
        /// The id of that job.
        id: &'a str,
        /// Its kind.
        kind: &'a str,
        /// The number of its attempt, from 1.
        attempt: u32,
        /// The time since its claim.
        elapsed: Duration,
        /// The time since the last end of a job, or since the claim of the last slot if later.
        no_end: Duration,
    },
}
