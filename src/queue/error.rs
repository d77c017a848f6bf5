//! The errors of queues.

use crate::base::config::ConfigError;
use crate::base::error::{Error, StoreError, describe};
use crate::base::index::BoxError;
use crate::base::structure::structure;
use crate::queue::job::JobId;
use std::fmt;

/// Every error of a queue: what happened, and what to do about it.
///
/// `{}` is a sentence without the causes. `{:?}` is the sentence with the causes, since a `main`
/// that returns the error prints it, and `{:#?}` is the structure.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The job is no longer this worker's: its lease ran out, the job was removed, or the lease has
    /// ended already. Nothing was written. (CouchDB says *halt* too.)
    #[error(
        "the lease of the job {id:?} is over, so nothing was written: stop working on it, since another worker may have it by \
         now"
    )]
    Halt {
        /// The id of the job.
        id: JobId,
    },

    /// No job of the queue has this id.
    #[error("the queue has no job {id:?}: it was never pushed, was removed, or ended longer ago than its retention")]
    NotFound {
        /// The id that was asked for.
        id: JobId,
    },

    /// A setting or a job that was refused. Nothing was changed.
    #[error(transparent)]
    Config(#[from] ConfigError),

    /// A payload or data that cannot be turned into JSON, or back into the type that was asked for.
    #[error("the payload or the data of the job {id:?} does not fit its type")]
    Payload {
        /// The id of the job. Before a job has an id, it is the kind of the job.
        id: JobId,
        /// The reason.
        source: BoxError,
    },

    /// Jobs that still ran when the time to stop was over. The list is empty if only a hook or a
    /// write went on.
    #[error("{}", still_running(running))]
    StopTimeout {
        /// The ids of these jobs.
        running: Vec<JobId>,
    },

    /// An error of the store, or of the crate as a whole.
    #[error(transparent)]
    Store(Error),
}

fn still_running(running: &[JobId]) -> String {
    let after = "when the time to stop was over";
    match running {
        [] => format!(
            "a hook of the runner or a write of the store went on {after}: allow more time, or look at the store"
        ),
        [job] => format!(
            "the job {job:?} still ran {after}: it runs again after the lease of the queue, unless it ends by then"
        ),
        [first, ..] => format!(
            "{} jobs still ran {after}, the first of them {first:?}: they run again after the lease of the queue, unless they \
             end by then",
            running.len()
        ),
    }
}

impl QueueError {
    /// Returns the error with its causes, in one line.
    #[must_use]
    pub fn report(&self) -> String {
        describe(self)
    }

    /// Returns the error that failed an intent. An error of the queue comes back as it was.
    pub(crate) fn of_intent(doing: &str, error: BoxError) -> Self {
        let error = match error.downcast::<Self>() {
            Ok(own) => return *own,
            Err(error) => error,
        };
        match error.downcast::<Error>() {
            Ok(error) => (*error).into(),
            Err(error) => Error::from(crate::commit::intent::failed(doing, error)).into(),
        }
    }
}

impl From<Error> for QueueError {
    fn from(error: Error) -> Self {
        match error {
            Error::Config(config) => Self::Config(config),
            error => Self::Store(error),
        }
    }
}

impl From<StoreError> for QueueError {
    fn from(error: StoreError) -> Self {
        Self::Store(error.into())
    }
}

impl From<QueueError> for Error {
    /// For a closure that must return the crate's own error, for example that of
    /// [`Store::write`](crate::Store::write).
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::Config(config) => config.into(),
            QueueError::Store(error) => error,
            other => StoreError { doing: "use a queue".to_owned(), source: Box::new(other) }.into(),
        }
    }
}

impl fmt::Debug for QueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return f.write_str(&self.report());
        }
        structure!(
            self,
            f,
            [Config, Store],
            [Halt { id }, NotFound { id }, Payload { id, source }, StopTimeout { running }]
        )
    }
}
