//! The answer of a handler, and the events of an attempt.

use crate::queue::words::ended::AttemptEnd;
use std::time::{Duration, SystemTime};

/// The answer of a handler that did not fail. (`Err` is a failed attempt: see
/// [`RunnerBuilder::on`](crate::queue::RunnerBuilder::on).) A time beyond the year 9999 is taken as
/// the end of that year.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Outcome {
    /// The job is finished.
    Done,
    /// The job is finished, and leaves this data, which [`Queue::get`](crate::queue::Queue::get)
    /// and a [`Subscription`](crate::queue::Subscription) show. Data that is nested too deep to be
    /// read again (127 arrays and objects) fails the attempt.
    DoneWith(serde_json::Value),
    /// The attempt failed, and the next one is at this time, whatever the back-off says.
    RetryAt(SystemTime),
    /// The job was not ready: it runs again at this time, and the attempt does not count.
    Snooze(SystemTime),
    /// The job failed for good, for this reason.
    Dead(String),
}

/// The treatment of a job whose kind has no handler. The first push of such a kind is a line of the
/// log, and [`QueueStatus::unknown_kinds`](crate::queue::QueueStatus::unknown_kinds) has the kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unknown {
    /// The job is dead at once, which everybody sees. The default.
    #[default]
    Dead,
    /// The job runs again after this time, when a program with its handler may run. The attempt
    /// does not count.
    Snooze(Duration),
}

/// A thing that happened in a runner, for
/// [`RunnerBuilder::observe`](crate::queue::RunnerBuilder::observe).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum QueueEvent<'a> {
    /// An attempt begins, on the thread that runs it.
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
        /// The mean duration of the attempts of this kind that succeeded; `None`: there was none.
        /// See [`Queue::durations`](crate::queue::Queue::durations).
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
}
