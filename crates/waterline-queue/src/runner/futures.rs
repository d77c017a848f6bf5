//! Handlers that are futures.

use crate::runner::builder::RunnerBuilder;
use crate::runner::handler::{Boxed, Completion, Finisher, Handler, answered, decoded};
use crate::runner::outcome::Outcome;
use crate::runner::running::Running;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use waterline::seam::{Changes, has_mark, marked_effects};
use waterline::{BoxError, Effects};

/// The error of a handler that hands back effects which are not those that it was given.
const NOT_ITS_OWN: &str =
    "its handler handed back the effects of another attempt: hand back those that this attempt was given";

impl RunnerBuilder {
    /// Runs jobs of this kind as futures, on the tokio runtime in whose context
    /// [`start`](Self::start) is called. A job takes one of `max_processing`, and no thread.
    ///
    /// [`Runner::stop`](crate::Runner::stop), [`stop_within`](crate::Runner::stop_within) and
    /// [`drain`](Self::drain) block their thread until the futures are done: on a single-threaded
    /// runtime they would wait forever. In async code use
    /// [`Runner::stop_async`](crate::Runner::stop_async),
    /// [`stop_within_async`](crate::Runner::stop_within_async) and
    /// [`drain_async`](Self::drain_async).
    ///
    /// ```
    /// # use waterline::Store;
    /// # use waterline_queue::{DrainLimits, NewJob, Outcome, Queue, QueueOptions, Runner};
    /// # let queue = Queue::open(&Store::in_memory(), "pages", QueueOptions::default())?;
    /// # queue.push(NewJob::new("fetch", "/")?)?;
    /// let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    /// let _context = runtime.enter();
    /// Runner::builder(&queue)
    ///     .on_async("fetch", |_job, _page: String| async move {
    ///         tokio::time::sleep(std::time::Duration::from_millis(1)).await;      // a request
    ///         Ok(Outcome::Done)
    ///     })
    ///     .max_processing(1_000)
    ///     .drain(DrainLimits::default())?;
    /// # assert_eq!(queue.counts().finished, 1);
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    pub fn on_async<P, F, Fut>(self, kind: impl Into<String>, handler: F) -> Self
    where
        P: DeserializeOwned,
        F: Fn(Running, P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Outcome, BoxError>> + Send + 'static,
    {
        self.add_async(kind, move |job, payload| {
            let future = handler(job, payload);
            async move { Ok(Completion::Answer((future.await?, Changes::default()))) }
        })
    }

    /// Runs jobs of this kind as futures, as [`on_async`](Self::on_async) does, which may also
    /// write, as those of [`on_transactional`](Self::on_transactional) do.
    ///
    /// A future owns its effects, and hands them back beside its outcome. They are made in one
    /// atomic write with the end of the job if that is [`Outcome::Done`] or [`Outcome::DoneWith`].
    /// Those of any other end are dropped: of an attempt that fails, times out or loses its job, or
    /// is cut short by a stop. To hand back the effects of another job or attempt fails the
    /// attempt.
    ///
    /// ```
    /// # use waterline::Store;
    /// # use waterline_queue::{DrainLimits, NewJob, Outcome, Queue, QueueOptions, Runner};
    /// # let store = Store::in_memory();
    /// # let queue = Queue::open(&store, "pages", QueueOptions::default())?;
    /// # queue.push(NewJob::new("fetch", "/")?)?;
    /// # let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    /// let sizes = store.table("sizes")?;
    /// let builder = Runner::builder(&queue).on_transactional_async("fetch", move |_job, page: String, mut effects| {
    ///     let sizes = sizes.clone();
    ///     async move {
    ///         tokio::time::sleep(std::time::Duration::from_millis(1)).await;      // a request
    ///         effects.add(&sizes, &page, 500)?;
    ///         Ok((Outcome::Done, effects))
    ///     }
    /// });
    /// runtime.block_on(builder.drain_async(DrainLimits::default()))?;
    /// assert_eq!(store.table("sizes")?.counter("/")?, 500);
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    pub fn on_transactional_async<P, F, Fut>(self, kind: impl Into<String>, handler: F) -> Self
    where
        P: DeserializeOwned,
        F: Fn(Running, P, Effects) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(Outcome, Effects), BoxError>> + Send + 'static,
    {
        self.add_async(kind, move |job, payload| {
            let (effects, mark) = marked_effects(job.home());
            let future = handler(job, payload, effects);
            async move {
                let (outcome, effects) = future.await?;
                if !has_mark(&effects, mark) {
                    return Err(NOT_ITS_OWN.into());
                }
                Ok(Completion::Answer(answered(outcome, effects)?))
            }
        })
    }

    fn add_async<P, F, Fut>(self, kind: impl Into<String>, handler: F) -> Self
    where
        P: DeserializeOwned,
        F: Fn(Running, P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Completion, BoxError>> + Send + 'static,
    {
        let handler = move |job: Running, payload: &[u8]| -> Result<Boxed, BoxError> {
            let payload = decoded(job.id(), payload)?;
            Ok(Box::pin(handler(job, payload)))
        };
        self.add(kind, Handler::Async(Box::new(handler)))
    }
}

/// Runs jobs of this kind as futures, each of whose results `end` gets, with the right to end its
/// job. It is called in the context of the runtime, so it must not wait.
pub fn on_async_then<P, R, F, Fut, E>(
    builder: RunnerBuilder,
    kind: impl Into<String>,
    handler: F,
    end: E,
) -> RunnerBuilder
where
    P: DeserializeOwned,
    R: Send + 'static,
    F: Fn(Running, P) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, BoxError>> + Send + 'static,
    E: Fn(Running, R, Finisher) + Send + Sync + 'static,
{
    let end = Arc::new(end);
    builder.add_async(kind, move |job, payload| {
        let (future, end) = (handler(job.clone(), payload), end.clone());
        async move {
            let result = future.await?;
            Ok(Completion::Elsewhere(Box::new(move |done| end(job, result, done))))
        }
    })
}
