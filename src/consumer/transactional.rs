//! Jobs whose effects and whose being done are one atomic write.

use super::{Builder, Consumer};
use crate::base::error::Error;
use crate::base::index::BoxError;
use crate::base::sync::Arc;
use crate::effects::Effects;
use crate::progress::StoreProgress;
use crate::run::mode::Mode;
use crate::run::transactional::Transactional;
use crate::run::worker::Job;
use crate::source::Jobs;

impl<J: Jobs> Builder<J, StoreProgress> {
    /// So many bytes of effects wait to be written at most, of which one job may have all: no job starts while there are
    /// more, so a store that is slow slows the jobs down, and one that fails stops them, and neither costs memory without
    /// bound. (What jobs want that run already may come on top.) Default: 64 MiB. For
    /// [`start_transactional`](Self::start_transactional) alone.
    pub fn max_effects(mut self, bytes: usize) -> Self {
        self.asked.max_effects = Some(bytes);
        self
    }

    /// Starts, with a closure whose [`Effects`] on tables of the progress' store, the job's being done and the watermark are one
    /// atomic write: after any crash each is in, or all are out. So each job has its effects exactly once, in whatever order
    /// jobs finish.
    ///
    /// Many jobs share a write, and a job makes room for the next one as soon as it returns. What it has changed is seen in the
    /// tables once it is written: at the latest when the watermark has passed it.
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
    /// Those of [`start`](Self::start).
    pub fn start_transactional<F>(self, run: F) -> Result<Consumer, Error>
    where
        F: Fn(Job<J::Job>, &mut Effects) -> Result<(), BoxError> + Send + Sync + 'static,
    {
        let store = self.progress.store().address();
        self.launch(Mode::Transactional, |_, settings| {
            let limit = settings.effects.unwrap_or(usize::MAX);
            Arc::new(Transactional { work: run, store, limit })
        })
    }
}
