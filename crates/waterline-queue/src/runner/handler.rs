//! The user's code of a runner: handlers and hooks. A panic in them is turned into an error.

use crate::runner::attempt::{Answer, Attempt, Report};
use crate::runner::outcome::Outcome;
use crate::runner::running::Running;
use crate::types::config::ConfigError;
use crate::types::error::QueueError;
use crate::types::job::JobId;
use crate::types::json::from_json;
use serde::de::DeserializeOwned;
use std::fmt;
use waterline::seam::finish_effects;
use waterline::{BoxError, Effects, Failure};

type Direct = dyn Fn(&Running, &[u8]) -> Result<Answer, BoxError> + Send + Sync;

type Deferred = dyn Fn(Running, &[u8], Finisher) + Send + Sync;

/// What the future of a job leads to.
#[cfg(feature = "tokio")]
pub(super) enum Completion {
    Answer(Answer),
    /// This function has the job ended, together with writes of its own.
    Elsewhere(Box<dyn FnOnce(Finisher) + Send>),
}

/// The future of an async handler.
#[cfg(feature = "tokio")]
pub(super) type Boxed = std::pin::Pin<Box<dyn Future<Output = Result<Completion, BoxError>> + Send>>;

#[cfg(feature = "tokio")]
type Async = dyn Fn(Running, &[u8]) -> Result<Boxed, BoxError> + Send + Sync;

/// The code for one kind of jobs.
pub(super) enum Handler {
    Direct(Box<Direct>),
    Deferred(Box<Deferred>),
    #[cfg(feature = "tokio")]
    Async(Box<Async>),
}

/// How many jobs run at once by default if none of them takes a thread.
const WITHOUT_THREADS: usize = 64;

impl Handler {
    /// Returns how many jobs run at once by default, with these handlers.
    pub(super) fn slots<'a>(mut all: impl Iterator<Item = &'a Self>) -> usize {
        if all.any(|handler| matches!(handler, Self::Direct(_))) {
            std::thread::available_parallelism().map_or(1, usize::from)
        } else {
            WITHOUT_THREADS
        }
    }

    /// Makes the error for a runner with two handlers for one kind of jobs, or with none at all.
    pub(super) fn refused(kind: Option<String>) -> ConfigError {
        let (fault, why) = match &kind {
            Some(kind) => ("twice", format!("the runner has two handlers for the kind {kind:?}: use one")),
            None => ("none", "the runner has no handler, so it would run nothing: add one with `on`".to_owned()),
        };
        ConfigError::Handler { fault, kind, why }
    }
}

/// Ends a deferred job: see [`RunnerBuilder::on_deferred`](crate::RunnerBuilder::on_deferred).
/// Dropping it unused fails the attempt.
///
/// ```
/// use waterline::Store;
/// use waterline_queue::{DrainLimits, NewJob, Queue, QueueOptions, Runner};
///
/// let queue = Queue::open(&Store::in_memory(), "pages", QueueOptions::default())?;
/// queue.push_all([NewJob::new("fetch", "/")?, NewJob::new("fetch", "/help")?])?;
/// let summary = Runner::builder(&queue)
///     .on_deferred("fetch", |_job, page: String, done| {
///         // A client with threads of its own calls back from one of them.
///         std::thread::spawn(move || if page.is_empty() { done.fail("no page") } else { done.complete() });
///     })
///     .max_processing(100)
///     .drain(DrainLimits::default())?;
/// assert_eq!(summary.finished, 2);
/// # Ok::<(), waterline_queue::QueueError>(())
/// ```
#[must_use = "a finisher that is dropped fails its job"]
pub struct Finisher(pub(super) Option<Attempt>);

impl Finisher {
    pub(super) fn new(attempt: Attempt) -> Self {
        Self(Some(attempt))
    }

    /// Ends the attempt, as the result of a function does. It never waits: a thread of the runner
    /// writes the end. It has no effect if the attempt is over, for example by its timeout.
    pub fn end(mut self, outcome: Result<Outcome, BoxError>) {
        if let Some(attempt) = self.0.take() {
            attempt.report(|attempt| Report::of(attempt, outcome));
        }
    }

    /// Ends the job with success.
    pub fn complete(self) {
        self.end(Ok(Outcome::Done));
    }

    /// Ends the attempt with this error, which may be or contain a
    /// [`Failure`](waterline::Failure).
    pub fn fail(self, error: impl Into<BoxError>) {
        self.end(Err(error.into()));
    }
}

impl Drop for Finisher {
    fn drop(&mut self) {
        if let Some(attempt) = self.0.take() {
            attempt.report(|attempt| Report::of(attempt, Err("its finisher was dropped".into())));
        }
    }
}

impl fmt::Debug for Finisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Finisher").finish_non_exhaustive()
    }
}

/// Returns the answer of a handler that has requested these effects.
pub(super) fn answered(outcome: Outcome, effects: Effects) -> Result<Answer, BoxError> {
    let (changes, refused) = finish_effects(effects);
    refused?;
    Ok((outcome, changes))
}

/// Returns the payload as its type. No retry can help if it does not fit.
pub(super) fn decoded<P: DeserializeOwned>(id: &str, payload: &[u8]) -> Result<P, BoxError> {
    let misfit = |source| Failure::permanent(QueueError::Payload { id: JobId::from(id), source });
    Ok(from_json(payload).map_err(misfit)?)
}

/// True if a thread of the runner runs the job to its end, and reports it.
pub(super) fn is_direct(handler: Option<&Handler>) -> bool {
    matches!(handler, None | Some(Handler::Direct(_)))
}
