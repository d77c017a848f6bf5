//! Starts of a consumer whose jobs run in batches.

use super::{Builder, Consumer};
use crate::base::{BoxError, Error, config::check_batch, sync::Arc};
use crate::effects::Effects;
use crate::progress::{Progress, StoreProgress};
use crate::run::batched::{Batched, BatchedTransactional};
use crate::run::{mode::Mode, worker::Job};
use crate::source::Jobs;
use std::time::Duration;

impl<J: Jobs, P: Progress> Builder<J, P> {
    /// Starts the consumer with a closure that runs several jobs at once.
    ///
    /// This is for a sink that takes many rows or messages in one call. A batch has 1 to `max`
    /// jobs, which are done when the closure returns `Ok`.
    ///
    /// A batch that is not full waits for more jobs, at most for `linger`; with [`Duration::ZERO`]
    /// it never waits. Its jobs are not in flight meanwhile. It starts at once if nothing can join
    /// it: if all slots of `max_processing` are used up, the window ends behind it, no more jobs
    /// fit into the [read-ahead](Self::max_read_ahead) buffer, or it has the job of
    /// [`stop_at`](Self::stop_at). A consumer that is paused or stopping starts none. All jobs of a
    /// batch count in `max_processing`, so several batches run in parallel if that is larger than
    /// `max`. The jobs of a batch are mostly, but not always, in index order and without a gap.
    ///
    /// If a batch of several jobs fails, that is no failed attempt: each of its jobs runs again, in
    /// a batch of its own. The job that fails there has failed an attempt, and the consumer's
    /// [`Retry`](crate::Retry) decides what follows. Later attempts of that job are batches of one,
    /// too. So one bad job delays its neighbours, and fails none of them. **The neighbours run
    /// twice**: the sink has to tolerate that, as after a crash (*at least once*). With
    /// [`start_batched_transactional`](Builder::start_batched_transactional) their effects happen
    /// once.
    ///
    /// A job that failed before, and one that may have killed its process, runs alone; batches and
    /// such jobs take turns. [`Failure::permanent`](crate::Failure::permanent) and
    /// [`Failure::defer`](crate::Failure::defer) work for a batch of one; for a larger batch they
    /// are a failure like any other. [`on_job_done`](Self::on_job_done) is called for each job of a
    /// batch that succeeded. If it panics, the batch has failed.
    /// [`attempt_timeout`](Self::attempt_timeout) limits the batch as a whole, from its start. Once
    /// that time is over, [`Job::is_stopping`] is true for each of its jobs.
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline::{Consumer, MemoryJobs, MemoryProgress};
    ///
    /// let jobs: MemoryJobs<_> = (0..1000).collect();
    /// let (send, rows) = crossbeam_channel::unbounded();
    /// Consumer::builder(jobs, MemoryProgress::new())
    ///     .max_processing(256)
    ///     .stop_at(999)
    ///     .start_batched(100, Duration::from_millis(5), move |jobs| {
    ///         // One `INSERT` of many rows, one request with many documents, …
    ///         let sum: u64 = jobs.iter().map(|job| job.payload).sum();
    ///         Ok(send.send((jobs.len(), sum))?)
    ///     })?
    ///     .join()?;
    /// let batches: Vec<_> = rows.iter().collect();
    /// assert!(batches.len() >= 10 && batches.iter().all(|(jobs, _)| *jobs <= 100));
    /// assert_eq!(batches.iter().map(|(_, sum)| sum).sum::<u64>(), 999 * 1000 / 2);
    /// # Ok::<(), waterline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfigError::Size`](crate::ConfigError::Size) if `max` is 0 or larger than
    /// `max_processing`, and the errors of [`start`](Self::start).
    pub fn start_batched<F>(self, max: usize, linger: Duration, run: F) -> Result<Consumer, Error>
    where
        F: Fn(Vec<Job<J::Job>>) -> Result<(), BoxError> + Send + Sync + 'static,
    {
        check_batch(max, self.max_processing)?;
        self.launch(Mode::Batched, move |driver, _| {
            driver.set_batches(max, linger);
            Arc::new(Batched { work: run, spans: driver.spans() })
        })
    }
}

impl<J: Jobs> Builder<J, StoreProgress> {
    /// Starts the consumer with batches whose effects are written *exactly once*.
    ///
    /// All jobs of a batch share one [`Effects`], which one atomic write stores together with the
    /// completion of all of them, as in [`start_transactional`](Self::start_transactional). The
    /// rest is as in [`start_batched`](Self::start_batched).
    ///
    /// If a batch of several jobs fails, none of its effects is written, and each of its jobs runs
    /// alone. So each job has its effects once, whichever job of the batch failed. The same holds
    /// for an [`add`](Effects::add) that is impossible and for a push that the queue refuses: the
    /// batch is rolled back, its jobs run alone, and only the job that asks for it fails. One batch
    /// may have as many effects as [`max_effects`](Self::max_effects) allows.
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline::{Consumer, MemoryJobs, Store};
    ///
    /// let store = Store::in_memory();
    /// let totals = store.table("totals")?;
    /// let jobs: MemoryJobs<i64> = (0..1000).collect();
    /// Consumer::builder(jobs, store.progress("sums"))
    ///     .max_processing(256)
    ///     .stop_at(999)
    ///     .start_batched_transactional(256, Duration::ZERO, {
    ///         let totals = totals.clone();
    ///         // One add for the batch, in place of one for each job.
    ///         move |jobs, effects| Ok(effects.add(&totals, "sum", jobs.iter().map(|job| job.payload).sum())?)
    ///     })?
    ///     .join()?;
    /// assert_eq!(totals.counter("sum")?, 999 * 1000 / 2);
    /// # Ok::<(), waterline::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`start_batched`](Self::start_batched).
    pub fn start_batched_transactional<F>(self, max: usize, linger: Duration, run: F) -> Result<Consumer, Error>
    where
        F: Fn(Vec<Job<J::Job>>, &mut Effects) -> Result<(), BoxError> + Send + Sync + 'static,
    {
        check_batch(max, self.max_processing)?;
        let store = self.progress.store().home();
        self.launch(Mode::BatchedTransactional, move |driver, settings| {
            driver.set_batches(max, linger);
            let limit = settings.effects.unwrap_or(usize::MAX);
            Arc::new(BatchedTransactional { work: run, store, limit, spans: driver.spans() })
        })
    }
}
