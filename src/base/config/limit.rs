//! Limits of queues that were refused.

/// A limit of a queue that was refused. `limit` says which jobs it is for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// A limit that limits nothing.
    #[error("the limit of {limit} has neither a number of jobs at once nor a rate: set one of them, or leave it out")]
    Empty {
        /// The jobs that it is for.
        limit: String,
    },
    /// A limit under which no job could ever run.
    #[error("the limit of {limit} lets 0 jobs run at once, so none would ever run: use 1 at least, or pause the queue")]
    Zero {
        /// The jobs that it is for.
        limit: String,
    },
    /// A rate at which no token ever comes.
    #[error("the rate of {limit} has a count, a period or a burst of 0: each must be above 0")]
    RateZero {
        /// The jobs that it is for.
        limit: String,
    },
    /// Two limits for the same jobs.
    #[error("the limit of {limit} is set twice: set both numbers in one limit")]
    Twice {
        /// The jobs that they are for.
        limit: String,
    },
}
