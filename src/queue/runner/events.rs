//! The things that a runner tells of its attempts.

use crate::queue::job::JobState;
use crate::queue::rules::End;
use std::time::Duration;

/// The end of an attempt, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// It succeeded.
    Finished,
    /// It failed, and the job runs again.
    Retried {
        /// The error, with its causes.
        error: String,
    },
    /// It was not ready, and the job runs again.
    Snoozed,
    /// It failed while its runner stopped, or its future was dropped then. The job runs again, and
    /// the attempt does not count.
    PutBack {
        /// The error, with its causes.
        error: String,
    },
    /// The job is dead.
    Dead {
        /// The error, with its causes.
        error: String,
    },
    /// The job was removed while it ran, or somebody else has it, so nothing was written.
    Lost,
}

impl Ended {
    /// Returns the end of an attempt that left its job in this state; `None`: the job is gone.
    pub(in crate::queue) fn of(end: &End, state: Option<JobState>) -> Self {
        let error = || match end {
            End::Failed { error, .. } => error.clone(),
            End::Buried { reason } => reason.clone(),
            _ => String::new(),
        };
        match (end, state) {
            (End::Finished, _) => Self::Finished,
            (End::Snoozed { .. }, _) => Self::Snoozed,
            (End::PutBack { error }, _) => Self::PutBack { error: error.clone() },
            (_, Some(JobState::Dead) | None) => Self::Dead { error: error() },
            _ => Self::Retried { error: error() },
        }
    }
}

/// A thing that happened in a runner, for
/// [`RunnerBuilder::observe`](super::RunnerBuilder::observe).
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
        ended: &'a Ended,
    },
}
