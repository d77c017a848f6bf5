//! Futures that wait for the end of a runner, without blocking a thread.

use crate::runner::handle::Runner;
use crate::runner::pool::Pool;
use crate::runner::pool::stopping::HAND_BACK;
use crate::types::error::QueueError;
use std::sync::Arc;
use std::time::Duration;
use waterline::seam as time;
use waterline::seam::within;

impl Runner {
    /// Stops the runner, once polled, and waits for its end: the future of [`stop`](Self::stop).
    ///
    /// The future owns the runner. If it is dropped before it is ready, the runner is asked to
    /// stop, and is not waited for.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{NewJob, Outcome, Queue, QueueError, QueueOptions, Runner};
    ///
    /// # let queue = Queue::open(&Store::in_memory(), "pages", QueueOptions::default())?;
    /// let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    /// runtime.block_on(async {
    ///     let builder = Runner::builder(&queue).on_async("fetch", |_job, _page: String| async { Ok(Outcome::Done) });
    ///     let runner = builder.start()?;
    ///     queue.push(NewJob::new("fetch", "/")?)?;
    ///     runner.stop_async().await
    /// })?;
    /// # Ok::<(), QueueError>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`stop`](Self::stop). Within a job of this same runner it is
    /// [`QueueError::Config`]: there it only requests the stop, and does not wait.
    pub fn stop_async(mut self) -> impl Future<Output = Result<(), QueueError>> + Send + 'static {
        let leaving = Leaving(self.pool.take());
        async move {
            leaving.ask();
            leaving.end(None).await
        }
    }

    /// Stops the runner and waits for this time at most: the future of
    /// [`stop_within`](Self::stop_within). The limit begins when it is first polled.
    ///
    /// # Errors
    /// The same as [`stop_within`](Self::stop_within) and [`stop_async`](Self::stop_async).
    ///
    /// # Panics
    /// Without a runtime that has [`enable_time`](tokio::runtime::Builder::enable_time).
    pub fn stop_within_async(
        mut self,
        limit: Duration,
    ) -> impl Future<Output = Result<(), QueueError>> + Send + 'static {
        let leaving = Leaving(self.pool.take());
        async move {
            leaving.ask();
            leaving.end(Some(limit)).await
        }
    }
}

/// A runner that a future owns until its end. If the future is dropped before that, the runner is
/// released without waiting, which would block a thread of the runtime.
pub(super) struct Leaving(pub(super) Option<Arc<Pool>>);

impl Leaving {
    fn ask(&self) {
        self.0.iter().for_each(|pool| pool.request_stop());
    }

    pub(super) async fn end(mut self, limit: Option<Duration>) -> Result<(), QueueError> {
        let Some(pool) = self.0.clone() else { return Ok(()) };
        // On one of the runner's own threads it does not wait.
        let gone = pool.is_own_thread() || within(limit.unwrap_or(Duration::MAX), pool.gone()).await.is_some();
        if gone {
            self.0 = None;
            // Nothing is left to wait for.
            return pool.wait(None);
        }
        let running = pool.abandon(true);
        within(HAND_BACK, pool.handed_back(&running)).await;
        self.0 = None;
        pool.finish(&running, time::now().checked_add(HAND_BACK))
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.take().iter().for_each(|pool| pool.let_go());
    }
}
