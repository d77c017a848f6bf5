//! The end of an attempt as a runner reports it.

/// The end of an attempt, as it was written.
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
