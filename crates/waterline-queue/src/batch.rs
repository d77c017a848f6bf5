//! Batches: jobs, and one that runs when all of them have ended.

use crate::handle::Queue;
use crate::rules::pushing::Push;
use crate::types::config::ConfigError;
use crate::types::error::QueueError;
use crate::types::job::Pushed;
use crate::types::new_job::NewJob;
use crate::types::related::OnDead;

impl Queue {
    /// Pushes jobs and one that runs when all of them have ended, in one atomic write.
    ///
    /// The last one, `then`, also waits for those that [`NewJob::after`] names. It becomes ready in
    /// the same atomic write as the end of the last of all these, or at once if there are none. It
    /// is the last in the returned list.
    ///
    /// If a job dies, [`NewJob::on_dead`] of `then` decides. A job whose id exists already, or that
    /// has a twin, is waited for all the same. If `then` has a twin, that one stands for
    /// it, and waits for nothing more: the result names it.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{DrainLimits, NewJob, OnDead, Outcome, Queue, QueueOptions, Runner};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "import", QueueOptions::default())?;
    /// let files = ["a.csv", "b.csv"].map(|file| NewJob::new("load", file).unwrap());
    /// let report = NewJob::new("report", &())?.on_dead(OnDead::Run);
    /// queue.push_batch(files, report)?;
    /// Runner::builder(&queue)
    ///     .on("load", |_job, _file: String| Ok(Outcome::Done))
    ///     .on("report", |job, ()| {
    ///         println!("all files are loaded, or given up: {}", job.id());
    ///         Ok(Outcome::Done)
    ///     })
    ///     .drain(DrainLimits::default())?;
    /// assert_eq!(queue.counts().finished, 3);
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`push`](Self::push). Nothing is pushed then.
    pub fn push_batch(&self, jobs: impl IntoIterator<Item = NewJob>, then: NewJob) -> Result<Vec<Pushed>, QueueError> {
        let jobs: Vec<_> = jobs.into_iter().collect();
        self.ask_before_pushes(jobs.iter().chain([&then]))?;
        self.push_prepared(self.prepare_batch(jobs, then)?)
    }

    /// Checks the jobs of a batch, and gives them ids.
    pub(super) fn prepare_batch(&self, mut jobs: Vec<NewJob>, then: NewJob) -> Result<Vec<Push>, ConfigError> {
        let on_dead = then.on_dead;
        jobs.push(then);
        let mut pushes = self.engine.prepare(self.number, jobs)?;
        if let Some((last, awaited @ [_, ..])) = pushes.split_last_mut() {
            awaited.iter_mut().for_each(|push| push.awaited_by = Some(on_dead));
            if on_dead != OnDead::Die {
                last.row.extras_mut().on_dead = on_dead;
            }
        }
        Ok(pushes)
    }
}
