//! The user's code of a runner: handlers and hooks. A panic in them is an error.

use super::attempts::Attempt;
use super::reports::Report;
use super::{Ended, Outcome, QueueEvent, Running};
use crate::base::guard::{drop_guarded, guarded};
use crate::base::index::BoxError;
use crate::effects::Effects;
use std::fmt;

type Direct = dyn Fn(&Running, &[u8]) -> Result<Outcome, BoxError> + Send + Sync;
type Transactional = dyn Fn(&Running, &[u8], &mut Effects) -> Result<Outcome, BoxError> + Send + Sync;
type Deferred = dyn Fn(Running, &[u8], Finisher) + Send + Sync;

/// The future of an async handler.
#[cfg(feature = "tokio")]
pub(super) type Boxed = std::pin::Pin<Box<dyn Future<Output = Result<Outcome, BoxError>> + Send>>;
#[cfg(feature = "tokio")]
type Async = dyn Fn(Running, &[u8]) -> Result<Boxed, BoxError> + Send + Sync;

/// The code for one kind of jobs.
pub(super) enum Handler {
    Direct(Box<Direct>),
    Transactional(Box<Transactional>),
    Deferred(Box<Deferred>),
    #[cfg(feature = "tokio")]
    Async(Box<Async>),
}

type Before = dyn Fn(&Running) -> Result<(), BoxError> + Send + Sync;
type After = dyn Fn(&Running, &Result<Outcome, BoxError>) + Send + Sync;
type Teardown = dyn Fn(&Running, &Ended) + Send + Sync;
type Observer = dyn Fn(&QueueEvent<'_>) + Send + Sync;

#[derive(Default)]
pub(super) struct Hooks {
    pub(super) before: Vec<Box<Before>>,
    pub(super) after: Vec<Box<After>>,
    pub(super) teardown: Vec<Box<Teardown>>,
    pub(super) observers: Vec<Box<Observer>>,
}

impl Hooks {
    pub(super) fn before(&self, job: &Running) -> Result<(), BoxError> {
        self.before.iter().try_for_each(|hook| guarded(|| hook(job)))
    }

    /// Calls all hooks after an attempt. If one panics, the attempt has failed.
    pub(super) fn after(&self, job: &Running, outcome: Result<Outcome, BoxError>) -> Result<Outcome, BoxError> {
        let mut outcome = outcome;
        for hook in &self.after {
            let called = guarded(|| {
                hook(job, &outcome);
                Ok(())
            });
            if let Err(panic) = called {
                drop_guarded(std::mem::replace(&mut outcome, Err(panic)));
            }
        }
        outcome
    }

    /// Calls all hooks after the end of an attempt was written, which nothing changes any more.
    pub(super) fn teardown(&self, job: &Running, ended: &Ended) {
        for hook in &self.teardown {
            let called = guarded(|| {
                hook(job, ended);
                Ok(())
            });
            log_panic(job, "a teardown hook", called);
        }
    }

    pub(super) fn tell(&self, job: &Running, event: &QueueEvent<'_>) {
        for observer in &self.observers {
            let called = guarded(|| {
                observer(event);
                Ok(())
            });
            log_panic(job, "an observer", called);
        }
    }
}

fn log_panic(job: &Running, who: &str, called: Result<(), BoxError>) {
    if let Err(panic) = called {
        tracing::error!(target: "waterline", queue = job.queue_name(), id = job.id(), attempt = job.attempt(), %panic, "{who} panicked; the job is not affected");
    }
}

/// The way in which a deferred job ends: see
/// [`RunnerBuilder::on_deferred`](super::RunnerBuilder::on_deferred).
///
/// A finisher that is dropped unused fails its attempt.
///
/// ```
/// use waterline::Store;
/// use waterline::queue::{Limits, NewJob, Queue, QueueOptions, Runner};
///
/// let queue = Queue::open(&Store::in_memory(), "pages", QueueOptions::default())?;
/// queue.push_all([NewJob::new("fetch", "/")?, NewJob::new("fetch", "/help")?])?;
/// let summary = Runner::builder(&queue)
///     .on_deferred("fetch", |_job, page: String, done| {
///         // A client with threads of its own calls back from one of them.
///         std::thread::spawn(move || if page.is_empty() { done.fail("no page") } else { done.complete() });
///     })
///     .max_processing(100)
///     .drain(Limits::default())?;
/// assert_eq!(summary.finished, 2);
/// # Ok::<(), waterline::queue::QueueError>(())
/// ```
#[must_use = "a finisher that is dropped fails its job"]
pub struct Finisher(Option<Attempt>);

impl Finisher {
    pub(super) fn new(attempt: Attempt) -> Self {
        Self(Some(attempt))
    }

    /// Ends the attempt, as the answer of a function does. It never waits: a thread of the runner
    /// writes the end. If the attempt is over already, by its timeout say, it changes nothing.
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
    /// [`Failure`](crate::Failure).
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
