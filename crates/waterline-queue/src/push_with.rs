//! Pushing within an atomic write of the caller's.

use crate::embedded::codec::push::encode_pushes;
use crate::group::Group;
use crate::handle::Queue;
use crate::types::config::ConfigError;
use crate::types::error::QueueError;
use crate::types::job::JobId;
use crate::types::new_job::NewJob;
use waterline::{Effects, Error, seam};

impl Queue {
    /// Pushes a job in an atomic write of the same store, and returns its id.
    ///
    /// So a stream pushes exactly once, and a finished job pushes the next one with its own end.
    ///
    /// It follows the rules of [`push`](Self::push). Only the write shows whether a job with this
    /// id exists. And only the write shows whether the queue refuses the job, because one that it
    /// is to run [`after`](NewJob::after) never existed ([`QueueError::NotFound`]) or waits for it
    /// ([`QueueError::Cycle`]), or because it runs by now ([`QueueError::AlreadyRuns`]):
    ///
    /// * The attempt of a job of a stream or of a [`Runner`](crate::Runner) has failed with this
    ///   error, and none of its writes is made. It is retried as after any other failure, since the
    ///   next attempt may find the other job. All other jobs of the same save are written.
    /// * [`Lease::finish_with`](crate::Lease::finish_with) and
    ///   [`Store::write`](waterline::Store::write) fail with it, and nothing is written.
    ///
    /// Pushes of one save, or of one write, that wait for each other are made in an order that
    /// works, whatever the order of the calls.
    ///
    /// Only the write shows, too, whether the queue is full
    /// ([`QueueOptions::max_waiting`](crate::QueueOptions::max_waiting)). Then nothing is written,
    /// and nothing is lost:
    ///
    /// * A stream tries to save again, with a pause of up to 5 s, until there is room. Meanwhile
    ///   its window fills and it reads no more, and its status says why.
    /// * A job of a [`Runner`](crate::Runner) is snoozed for a second, so that its slot is free for
    ///   the jobs that make room. The attempt does not count.
    /// * [`Lease::finish_with`](crate::Lease::finish_with) and
    ///   [`Store::write`](waterline::Store::write) fail, with [`QueueError::Full`] as their error
    ///   or its source.
    ///
    /// Such a write may push any number of jobs if there was room for one before it, so the bound
    /// may be exceeded by the jobs of one batch. Otherwise a stream whose jobs push more than may
    /// ever wait would be stuck forever.
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, Store};
    /// use waterline_queue::{NewJob, Queue, QueueOptions};
    ///
    /// let store = Store::in_memory();
    /// let queue = Queue::open(&store, "mail", QueueOptions::default())?;
    /// let orders: MemoryJobs<_> = (0..3u64).collect();
    /// Consumer::builder(orders, store.progress("orders"))
    ///     .stop_at(2)
    ///     .start_transactional({
    ///         let queue = queue.clone();
    ///         move |order, effects| {
    ///             queue.push_with(effects, NewJob::new("confirm", &order.payload)?)?;
    ///             Ok(())
    ///         }
    ///     })?
    ///     .join()?;
    /// assert_eq!(queue.counts().ready, 3);
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`] for an invalid job and for a queue of another store, [`Error::ReadOnly`]
    /// for a read-only queue, and [`Error::EffectsTooLarge`] as for [`Effects::put`].
    /// [`Error::Refused`] with [`QueueError::Refused`] as its source for a job that the hook of the
    /// queue refuses: the closure may go on without that job.
    #[doc(alias = "outbox")]
    pub fn push_with(&self, effects: &mut Effects, job: NewJob) -> Result<JobId, Error> {
        // A job that the hook refuses changes nothing, so the closure may go on without it.
        self.ask_before_push(&job)?;
        let push = match self.prepare(job) {
            Ok(push) => push,
            Err(config) => return Err(refuse(effects, config)),
        };
        self.ask(effects, encode_pushes(std::slice::from_ref(&push)))?;
        Ok(push.id)
    }

    /// Pushes a batch of jobs and the one that runs when all of them have ended, in an atomic
    /// write. Returns their ids, the last job's at the end. See [`push_batch`](Self::push_batch).
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{DrainLimits, NewJob, Outcome, Queue, QueueOptions, Runner};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "books", QueueOptions::default())?;
    /// queue.push(NewJob::new("split", &3)?)?;
    /// let pages = queue.clone();
    /// Runner::builder(&queue)
    ///     .on_transactional("split", move |_job, count: u32, effects| {
    ///         let all = (1..=count).map(|page| NewJob::new("page", &page)).collect::<Result<Vec<_>, _>>()?;
    ///         let ids = pages.push_batch_with(effects, all, NewJob::new("bind", &count)?)?;
    ///         assert_eq!(ids.len(), count as usize + 1);
    ///         Ok(Outcome::Done)       // with the pages and the binding, or without any
    ///     })
    ///     .on("page", |_job, _page: u32| Ok(Outcome::Done))
    ///     .on("bind", |_job, _count: u32| Ok(Outcome::Done))
    ///     .drain(DrainLimits::default())?;
    /// assert_eq!(queue.counts().finished, 5);
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`push_with`](Self::push_with).
    pub fn push_batch_with(
        &self,
        effects: &mut Effects,
        jobs: impl IntoIterator<Item = NewJob>,
        then: NewJob,
    ) -> Result<Vec<JobId>, Error> {
        let jobs: Vec<_> = jobs.into_iter().collect();
        // A job that the hook refuses changes nothing, so the closure may go on without the batch.
        self.ask_before_pushes(jobs.iter().chain([&then]))?;
        let pushes = match self.prepare_batch(jobs, then) {
            Ok(pushes) => pushes,
            Err(config) => return Err(refuse(effects, config)),
        };
        self.ask(effects, encode_pushes(&pushes))?;
        Ok(pushes.into_iter().map(|push| push.id).collect())
    }

    /// Adds an operation of this queue to a write of the same store.
    pub(crate) fn ask(&self, effects: &mut Effects, op: Vec<u8>) -> Result<(), Error> {
        let Some(embedded) = self.embedded() else {
            let foreign = waterline::ConfigError::Foreign { what: "queue", name: self.name().to_owned() };
            return Err(refuse(effects, foreign.into()));
        };
        let what = ("queue", self.name());
        seam::operate(effects, embedded.store(), what, embedded.state(self.number), op)
    }
}

/// Refuses an invalid change, so that the write fails.
pub(crate) fn refuse(effects: &mut Effects, config: ConfigError) -> Error {
    seam::refuse(effects, move || QueueError::from(config.clone()).into())
}

impl Group {
    /// Pushes a job into the queue that takes its kind, in an atomic write.
    ///
    /// # Errors
    /// [`Error::Config`] for an unknown kind; otherwise the same as [`Queue::push_with`].
    pub fn push_with(&self, effects: &mut Effects, job: NewJob) -> Result<JobId, Error> {
        match self.routed(&job) {
            Ok(queue) => queue.push_with(effects, job),
            Err(config) => Err(refuse(effects, config)),
        }
    }
}
