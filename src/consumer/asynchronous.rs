//! The start of a consumer whose jobs are futures on a tokio runtime.

use super::{Builder, Consumer};
use crate::base::{BoxError, Error, sync::Arc};
use crate::progress::Progress;
use crate::run::asynchronous::{Asynchronous, has_shut_down};
use crate::run::{mode::Mode, worker::Job};
use crate::source::Jobs;
use tokio::runtime::Handle;

impl<J: Jobs, P: Progress> Builder<J, P> {
    /// Starts the consumer with an async closure: each job is a future on this tokio runtime.
    ///
    /// The job is done when the future returns `Ok`, and failed if it returns an error or panics.
    /// No job holds a thread while it waits, so [`max_processing`](Self::max_processing) may be ten
    /// thousand.
    ///
    /// A few threads of the consumer (at most one for each core) take the jobs. Such a thread calls
    /// the closure and polls the future once, in the context of the runtime. If the future is ready
    /// then, the job was never a task. Otherwise the future becomes a task of its own, which the
    /// runtime polls from then on. So code that blocks before the first `.await` holds up other
    /// jobs; put it into `spawn_blocking`. Within the first poll there is no task
    /// (`tokio::task::id` panics).
    ///
    /// A stop awaits the running jobs. After the limit of [`stop_within`](Consumer::stop_within)
    /// each of their futures is woken and dropped at its next poll. In a job, [`Job::is_stopping`]
    /// says that the consumer stops, and a call that waits for the end of this same consumer
    /// returns at once, as on one of its threads.
    ///
    /// The runtime must be driven until the consumer has ended. A `multi_thread` runtime drives
    /// itself. A `current_thread` runtime runs only within its `block_on`: outside of it, jobs that
    /// need more than one poll stay in flight, and a stop waits for them. On the thread of that
    /// runtime await the end with [`Consumer::stop_async`] or [`Consumer::join_async`]; `stop` and
    /// `join` would wait there for ever. A consumer dropped within the context of a runtime is only
    /// asked to stop, and the error of its end is logged.
    ///
    /// If the runtime shuts down first, the running jobs fail without a retry: the consumer halts
    /// with [`Error::Job`], whose source is [`Error::Runtime`]. They run again in the next life.
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline::{Consumer, MemoryJobs, MemoryProgress};
    ///
    /// let runtime = tokio::runtime::Runtime::new()?;
    /// let jobs: MemoryJobs<u64> = (0..2_000).collect();
    /// let consumer = Consumer::builder(jobs, MemoryProgress::new())
    ///     .max_processing(1_000)
    ///     .stop_at(1_999)
    ///     .start_async(runtime.handle(), |job| async move {
    ///         tokio::time::sleep(Duration::from_millis(5)).await;      // a request, for example
    ///         if job.payload < 2_000 { Ok(()) } else { Err("too large".into()) }
    ///     })?;
    /// runtime.block_on(consumer.join_async())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`start`](Self::start), and [`Error::Runtime`] if the runtime has shut down.
    pub fn start_async<F, Fut>(self, runtime: &Handle, run: F) -> Result<Consumer, Error>
    where
        F: Fn(Job<J::Job>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        if has_shut_down(runtime) {
            return Err(Error::Runtime);
        }
        let runtime = runtime.clone();
        let mut consumer =
            self.launch(Mode::Asynchronous, |driver, _| Arc::new(Asynchronous::new(run, runtime, driver.clone())))?;
        consumer.on_runtime = true;
        Ok(consumer)
    }
}
