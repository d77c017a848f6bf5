//! The errors of queues.

use crate::types::config::ConfigError;
use crate::types::job::JobId;
use std::fmt;
use waterline::seam::{describe, structure};
use waterline::{BoxError, Error, StoreError};

/// Every error of a queue: what happened, and what to do about it.
///
/// `{}` is a sentence without the causes. `{:?}` adds the causes, since a `main` that returns the
/// error prints that, and `{:#?}` is the structure.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The job is no longer this worker's: its lease ran out, the job was removed, or the lease has
    /// ended already. Nothing was written. (CouchDB says *halt* too.)
    #[error(
        "the queue {queue:?} has ended the lease of the job {id:?}, so nothing was written: stop working on it, since another \
         worker may have it by now"
    )]
    #[non_exhaustive]
    Halt {
        /// The name of the queue.
        queue: String,
        /// The id of the job.
        id: JobId,
    },

    /// No job of the queue has this id.
    #[error(
        "the queue {queue:?} has no job {id:?}: it was never pushed, was removed, or ended longer ago than its retention"
    )]
    #[non_exhaustive]
    NotFound {
        /// The name of the queue.
        queue: String,
        /// The id that was asked for.
        id: JobId,
    },

    /// The job would wait for itself. Nothing was pushed.
    #[error("{}", cycle(queue, id, through))]
    #[non_exhaustive]
    Cycle {
        /// The name of the queue.
        queue: String,
        /// The id of the job.
        id: JobId,
        /// The job to wait for that waits for it, or itself. `None`: the search was given up.
        through: Option<JobId>,
    },

    /// The job is running, so it cannot wait for others first. Nothing was pushed.
    #[error(
        "the job {id:?} of the queue {queue:?} is running, so it cannot wait for other jobs: push it when it has ended, or \
         under another id"
    )]
    #[non_exhaustive]
    AlreadyRuns {
        /// The name of the queue.
        queue: String,
        /// The id of the job.
        id: JobId,
    },

    /// As many jobs of the queue wait as it allows. Nothing was pushed. See
    /// [`QueueOptions::max_waiting`](crate::QueueOptions::max_waiting).
    #[error(
        "the queue {queue:?} is full, since at most {max_waiting} of its jobs may wait: push later, wait with `push_within`, or raise max_waiting"
    )]
    Full {
        /// The name of the queue.
        queue: String,
        /// The limit.
        max_waiting: u64,
    },

    /// The hook of the queue has refused a job, or has panicked. Nothing was pushed. See
    /// [`QueueOptions::before_push`](crate::QueueOptions::before_push).
    #[error("the queue's own hook refused a job of the kind {kind:?} before its push")]
    Refused {
        /// The kind of the job.
        kind: String,
        /// The reason that the hook gave.
        source: BoxError,
    },

    /// A refused setting or job. Nothing was changed.
    #[error(transparent)]
    Config(#[from] ConfigError),

    /// A payload or data that cannot be turned into JSON, or back into the requested type.
    #[error("{}", misfit(id))]
    Payload {
        /// The id of the job. Before a job has an id, it is the kind of the job. It is empty for
        /// [`Outcome::done_with`](crate::Outcome::done_with), which does not know the job.
        id: JobId,
        /// The cause.
        source: BoxError,
    },

    /// The server has not confirmed a change: its answer was lost, or too few replicas have it. The
    /// change may be made or not. A job with an id may be pushed again: both pushes make one job,
    /// which runs once more only if it has ended between them. One that is
    /// [`Unique::within`](crate::Unique::within) a time does not run again.
    #[error(
        "the server has not confirmed the call to {doing} in the queue {queue:?}, so it may have been made or not: look, and make it again if it \
         was not (both pushes of an id make one job, which runs again only if it has ended meanwhile)"
    )]
    #[non_exhaustive]
    Unsure {
        /// The name of the queue.
        queue: String,
        /// What the call was to do.
        doing: String,
        /// The cause.
        source: BoxError,
    },

    /// Jobs that still ran when the time to stop was over. The list is empty if only a hook or a
    /// write was still running.
    #[error("{}", still_running(running))]
    StopTimeout {
        /// The ids of these jobs.
        running: Vec<JobId>,
    },

    /// An error of the store, or one that is not specific to queues.
    #[error(transparent)]
    Store(Error),
}

fn cycle(queue: &str, id: &str, through: &Option<JobId>) -> String {
    match through {
        Some(through) if through == id => {
            format!(
                "the job {id:?} of the queue {queue:?} would wait for itself, so it would never run: take its id out of `after`"
            )
        }
        Some(through) => format!(
            "the job {id:?} of the queue {queue:?} would wait for {through:?}, which waits for it, so neither would ever run: take one out of `after`"
        ),
        None => format!(
            "others wait for the job {id:?} of the queue {queue:?} already, and the jobs that it is to wait for wait for so many that nobody can \
             say if it is among them: push it under another id"
        ),
    }
}

fn misfit(id: &str) -> String {
    if id.is_empty() {
        return "the data that the job is to leave cannot be JSON that can be read again: leave a type that can"
            .to_owned();
    }
    format!(
        "the payload or the data of the job {id:?} does not fit its type, or cannot be JSON: push it and read it as one type \
         that can"
    )
}

fn still_running(running: &[JobId]) -> String {
    let after = "when the time to stop was over";
    match running {
        [] => format!(
            "a hook of the runner or a write of the store went on {after}: allow more time, or look at the store"
        ),
        [job] => format!(
            "the job {job:?} still ran {after}: a future runs again in the next life, and any other job after the lease of the \
             queue, unless it ends by then"
        ),
        [first, ..] => format!(
            "{} jobs still ran {after}, the first of them {first:?}: futures run again in the next life, and any others after \
             the lease of the queue, unless they end by then",
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
}

impl From<Error> for QueueError {
    fn from(error: Error) -> Self {
        match error {
            Error::Config(config) => Self::Config(config.into()),
            Error::Refused { source } => match source.downcast() {
                Ok(error) => *error,
                Err(source) => Self::Store(Error::Refused { source }),
            },
            error => Self::Store(error),
        }
    }
}

impl From<waterline::ConfigError> for QueueError {
    fn from(error: waterline::ConfigError) -> Self {
        Self::Config(error.into())
    }
}

impl From<StoreError> for QueueError {
    fn from(error: StoreError) -> Self {
        Self::Store(error.into())
    }
}

impl From<QueueError> for Error {
    /// Converts it for a closure that must return the crate's own error, for example that of
    /// [`Store::write`](waterline::Store::write).
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::Config(ConfigError::Setting(config)) => config.into(),
            QueueError::Store(error) => error,
            other => Self::Refused { source: Box::new(other) },
        }
    }
}

/// Makes the error for an invalid group.
pub(crate) fn group_error<const N: usize>(fault: &'static str, names: [&str; N], why: String) -> ConfigError {
    ConfigError::Group { fault, names: names.map(str::to_owned).into(), why }
}

/// Makes the error for the name of a queue that a group does not have.
pub(crate) fn unknown_queue(name: &str) -> ConfigError {
    let why = format!("the group has no queue {name:?}: add it with `queue`, or mend the name");
    group_error("queue unknown", [name], why)
}

/// True if this error says that a stored record is damaged.
pub(crate) fn is_damage(error: &BoxError) -> bool {
    matches!(error.downcast_ref(), Some(Error::Corrupt { .. }))
}

/// True if this error says that a lease is over.
pub(crate) fn is_halt(error: &BoxError) -> bool {
    matches!(error.downcast_ref(), Some(QueueError::Halt { .. }))
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
            [
                Halt { queue, id },
                NotFound { queue, id },
                Cycle { queue, id, through },
                AlreadyRuns { queue, id },
                Full { queue, max_waiting },
                Refused { kind, source },
                Payload { id, source },
                Unsure { queue, doing, source },
                StopTimeout { running }
            ]
        )
    }
}
