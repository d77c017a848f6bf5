//! How an attempt ended, as a runner reports it.

/// How an attempt ended, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttemptEnd {
    /// It succeeded.
    Finished,
    /// It failed, and the job runs again.
    Retried {
        /// The error, with its causes.
        error: String,
    },
    /// It was not ready, and the job runs again.
    Snoozed,
    /// It failed while its runner was stopping, or its future was dropped then. The job runs again,
    /// and the attempt does not count.
    PutBack {
        /// The error, with its causes.
        error: String,
    },
    /// The job is dead.
    Dead {
        /// The error, with its causes.
        error: String,
    },
    /// The job was removed while it ran, or another worker has it, so nothing was written.
    Lost,
}
