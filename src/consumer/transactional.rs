//! The start of a consumer that writes a job's effects and completion atomically.

use super::{Builder, Consumer};
use crate::base::{BoxError, Error, sync::Arc};
use crate::effects::Effects;
use crate::progress::StoreProgress;
use crate::run::{direct::TransactionalMode, mode::Mode, worker::Job};
use crate::source::Jobs;

impl<J: Jobs> Builder<J, StoreProgress> {
    /// Limits the bytes of effects that wait to be written. Default: 64 MiB.
    ///
    /// One job may have all of them. While there are more, no job starts (backpressure): a slow
    /// store slows the jobs down, a failing store stops them, and neither fills the memory. The
    /// effects of jobs already running may come on top. Only for
    /// [`start_transactional`](Self::start_transactional), also in batches and with futures.
    pub fn max_effects(mut self, bytes: usize) -> Self {
        self.asked.max_effects = Some(bytes);
        self
    }

    /// Starts the consumer with *exactly once* effects.
    ///
    /// A job's [`Effects`] on tables of the progress' store, its completion and the watermark are
    /// one atomic write: after any crash all are there, or none. So each job has its effects
    /// exactly once, in whatever order jobs finish.
    ///
    /// Many jobs share a write, and a job frees its slot as soon as it returns. The tables show its
    /// changes once they are written: at the latest when the watermark has passed the job.
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, Store};
    ///
    /// let store = Store::in_memory();            // `Store::open("some/directory")` to keep it
    /// let words = store.table("words")?;
    /// let jobs: MemoryJobs<_> = ["to", "be", "or", "not", "to", "be"].into_iter().collect();
    /// Consumer::builder(jobs, store.progress("count"))
    ///     .stop_at(5)
    ///     .start_transactional({
    ///         let words = words.clone();
    ///         move |job, effects| {
    ///             effects.add(&words, job.payload, 1)?;
    ///             effects.add(&words, "total", 1)?;
    ///             Ok(())
    ///         }
    ///     })?
    ///     .join()?;
    /// assert_eq!((words.counter("be")?, words.counter("or")?, words.counter("total")?), (2, 1, 6));
    /// # Ok::<(), waterline::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`start`](Self::start).
    #[doc(alias = "exactly once")]
    pub fn start_transactional<F>(self, run: F) -> Result<Consumer, Error>
    where
        F: Fn(Job<J::Job>, &mut Effects) -> Result<(), BoxError> + Send + Sync + 'static,
    {
        let store = self.progress.store().home();
        self.launch(Mode::Transactional, move |driver, settings| {
            let limit = settings.effects.unwrap_or(usize::MAX);
            Arc::new(TransactionalMode { work: run, store, limit, spans: driver.spans() })
        })
    }
}
