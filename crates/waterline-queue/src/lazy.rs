//! A buffer for pushes that are written together later.

use crate::group::Group;
use crate::handle::Queue;
use crate::types::error::QueueError;
use crate::types::job::Pushed;
use crate::types::new_job::NewJob;
use std::fmt;

/// A buffer for jobs, from [`Queue::lazy`] or [`Group::lazy`].
///
/// [`flush`](Self::flush) pushes them in one write, in their order. An invalid job fails at once.
///
/// A buffer that is dropped pushes its jobs, and logs a failure. If the process dies before that,
/// they are lost: use [`Queue::push`] for a job that must not be.
///
/// ```
/// use waterline::Store;
/// use waterline_queue::{NewJob, Queue, QueueOptions};
///
/// let queue = Queue::open(&Store::in_memory(), "views", QueueOptions::default())?;
/// let mut views = queue.lazy();
/// for page in ["/", "/help"] {
///     views.push(NewJob::new("count", page)?)?;       // no write yet
/// }
/// assert_eq!((views.len(), queue.counts().ready), (2, 0));
/// let pushed = views.flush()?;                        // one write
/// assert_eq!((pushed.len(), queue.counts().ready), (2, 2));
/// # Ok::<(), waterline_queue::QueueError>(())
/// ```
#[must_use]
pub struct Lazy {
    target: Target,
    jobs: Vec<NewJob>,
}

enum Target {
    Queue(Queue),
    Group(Group),
}

impl Queue {
    /// Returns a buffer for pushes that are written together later.
    pub fn lazy(&self) -> Lazy {
        Lazy::new(self.clone())
    }
}

impl Group {
    /// Returns a buffer for pushes that are written later, as by [`push_all`](Self::push_all).
    ///
    /// It keeps the order of the calls.
    pub fn lazy(&self) -> Lazy {
        Lazy::of_group(self.clone())
    }
}

impl Lazy {
    pub(super) fn new(queue: Queue) -> Self {
        Self { target: Target::Queue(queue), jobs: Vec::new() }
    }

    pub(super) fn of_group(group: Group) -> Self {
        Self { target: Target::Group(group), jobs: Vec::new() }
    }

    /// Adds a job. Its delay counts from the flush.
    ///
    /// # Errors
    /// [`QueueError::Config`] for an invalid job, [`QueueError::Refused`] by the hook of the queue,
    /// which is asked now and not by the flush. The buffer is as before then.
    pub fn push(&mut self, job: NewJob) -> Result<(), QueueError> {
        job.check()?;
        let queue = match &self.target {
            Target::Queue(queue) => queue,
            Target::Group(group) => group.routed(&job)?,
        };
        queue.ask_before_push(&job)?;
        job.due.at(queue.moment().wall)?;
        self.jobs.push(job);
        Ok(())
    }

    /// Returns the number of jobs in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// True if no job is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Pushes all of them in one atomic write.
    ///
    /// # Errors
    /// The same as [`Queue::push`]. The jobs stay in the buffer then.
    pub fn flush(&mut self) -> Result<Vec<Pushed>, QueueError> {
        let pushed = match &self.target {
            Target::Queue(queue) => queue.push_asked(self.jobs.clone())?,
            Target::Group(group) => group.push_asked(self.jobs.clone())?,
        };
        self.jobs.clear();
        Ok(pushed)
    }
}

impl Drop for Lazy {
    fn drop(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        let jobs = self.jobs.len();
        if let Err(error) = self.flush() {
            let error = error.report();
            let queue = match &self.target {
                Target::Queue(queue) => queue.name(),
                Target::Group(group) => group.queues().first().map_or("", Queue::name),
            };
            tracing::error!(target: "waterline", queue, jobs, error, "jobs of a dropped buffer were not pushed");
        }
    }
}

impl fmt::Debug for Lazy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lazy").field("jobs", &self.jobs.len()).finish_non_exhaustive()
    }
}
