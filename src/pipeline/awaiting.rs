//! Waiting calls of a pipeline as futures, which block no thread.

use super::{Pipeline, running::End};
use crate::base::{Error, Index, config::ConfigError, time, wakers::within};
use std::time::Duration;

impl Pipeline {
    /// Waits asynchronously until the pipeline ends: the future of [`join`](Self::join).
    ///
    /// The future owns the pipeline. If it is dropped before it is ready, all stages are only asked
    /// to stop. To stop the pipeline while this future waits, call
    /// [`PipelineHandle::request_stop`](crate::PipelineHandle::request_stop), and keep awaiting.
    ///
    /// ```
    /// use waterline::{Jobs, MemoryJobs, MemoryProgress, Pipeline};
    ///
    /// let blocks: MemoryJobs<_> = (0..5).collect();
    /// let pipeline = Pipeline::builder()
    ///     .stage("fetch", |stage| stage.consumer(blocks.clone(), MemoryProgress::new()).start(|_| Ok(())))
    ///     .stage("count", |stage| {
    ///         let fetched = blocks.clone().gated_by(stage.after("fetch")?);
    ///         stage.consumer(fetched, MemoryProgress::new()).start(|_| Ok(()))
    ///     })
    ///     .stop_at(4)
    ///     .start()?;
    /// let handle = pipeline.handle();
    /// tokio::runtime::Runtime::new()?.block_on(pipeline.join_async())?;
    /// assert_eq!(handle.status().stages[1].status.last_processed, Some(4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`join`](Self::join).
    pub fn join_async(self) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        LeavingPipeline(self).end(End::Itself, None)
    }

    /// Stops the pipeline and waits for its end asynchronously: the future of [`stop`](Self::stop).
    ///
    /// The first poll requests the stop. The future owns the pipeline, as that of
    /// [`join_async`](Self::join_async) does.
    ///
    /// # Errors
    /// The errors of [`stop`](Self::stop).
    pub fn stop_async(self) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        LeavingPipeline(self).end(End::Now, None)
    }

    /// Stops the pipeline within a time limit: the future of [`stop_within`](Self::stop_within).
    ///
    /// The limit begins with the first poll. The future owns the pipeline, as that of
    /// [`join_async`](Self::join_async) does.
    ///
    /// # Errors
    /// The errors of [`stop_within`](Self::stop_within), and [`Error::Runtime`] of a stage if the
    /// runtime shuts down meanwhile.
    ///
    /// # Panics
    /// If the runtime was built without [`enable_time`](tokio::runtime::Builder::enable_time), or
    /// there is none.
    pub fn stop_within_async(self, limit: Duration) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        LeavingPipeline(self).end(End::Now, Some(limit))
    }

    /// Runs to this index: the future of [`run_to`](Self::run_to).
    ///
    /// It owns the pipeline, as that of [`join_async`](Self::join_async) does.
    ///
    /// # Errors
    /// The errors of [`run_to`](Self::run_to).
    pub fn run_to_async(self, index: Index) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        LeavingPipeline(self).end(End::At(index), None)
    }

    /// Runs to the next reported head: the future of [`run_to_head`](Self::run_to_head).
    ///
    /// It owns the pipeline, as that of [`join_async`](Self::join_async) does.
    ///
    /// # Errors
    /// The errors of [`run_to_head`](Self::run_to_head).
    pub fn run_to_head_async(self) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        LeavingPipeline(self).end(End::Head, None)
    }
}

/// A pipeline that a future owns until its end. If the future is dropped earlier, the stages are
/// let go without waiting, which would block a thread of the runtime.
struct LeavingPipeline(Pipeline);

impl LeavingPipeline {
    async fn end(mut self, end: End, limit: Option<Duration>) -> Result<(), Error> {
        end.check()?;
        let shared = self.0.shared.clone();
        if shared.is_own_thread() {
            return Err(ConfigError::OwnThread.into());
        }
        let now = time::now();
        let drain = async {
            for nth in 0..shared.stages.len() {
                shared.lead_to(nth, end);
                shared.ended(nth).await;
            }
        };
        if within(limit.map_or(Duration::MAX, |limit| limit / 2), drain).await.is_none() {
            shared.request_stop_of(shared.stages.len());
        }
        let mut errors = Vec::new();
        for nth in 0..shared.stages.len() {
            let consumer = self.0.consumers.remove(0);
            let rest = limit.map(|limit| limit.saturating_sub(time::now().saturating_duration_since(now)));
            let outcome = match rest {
                None => consumer.join_async().await,
                Some(rest) => consumer.stop_within_async(rest).await,
            };
            errors.extend(outcome.err().map(|error| (nth, error)));
        }
        shared.first_of(errors).map_or(Ok(()), Err)
    }
}

impl Drop for LeavingPipeline {
    fn drop(&mut self) {
        if !self.0.consumers.is_empty() {
            self.0.shared.request_stop_of(self.0.shared.stages.len());
            self.0.let_go();
        }
    }
}
