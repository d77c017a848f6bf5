//! Reading the jobs of a queue, and calls on many of them.

use crate::embedded::state::loading;
use crate::engine::Steer;
use crate::handle::Queue;
use crate::rules::causes::CausesFirst;
use crate::types::error::QueueError;
use crate::types::info::JobInfo;
use crate::types::job::{Counts, JobId, JobState};
use crate::types::page::{Page, Place};
use std::collections::HashSet;
#[cfg(doc)]
use waterline::Error;
use waterline::Store;

impl Queue {
    /// Lists the names of all queues in a store, in ascending order. A read-only store has the list
    /// as of its opening or last refresh.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{Queue, QueueOptions};
    ///
    /// let store = Store::in_memory();
    /// for name in ["mail", "thumbnails"] {
    ///     Queue::open(&store, name, QueueOptions::default())?;
    /// }
    /// assert_eq!(Queue::names(&store)?, ["mail", "thumbnails"]);
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Store`] with [`Error::Corrupt`] for a name that cannot be read, and with
    /// [`Error::Store`] when the database fails.
    pub fn names(store: &Store) -> Result<Vec<String>, QueueError> {
        loading::names(store)
    }

    /// Returns the job with this id; `None` if there is none.
    ///
    /// # Errors
    /// [`QueueError::Store`] with [`Error::Corrupt`] for a job that cannot be read
    /// ([`list`](Self::list) shows what is left of it), and with [`Error::Store`] when the database
    /// fails.
    pub fn get(&self, id: impl AsRef<str>) -> Result<Option<JobInfo>, QueueError> {
        self.catch_up();
        self.engine.job(self.number, id.as_ref())
    }

    /// Returns the state of the job with this id; `None` if there is none.
    ///
    /// # Errors
    /// The same as [`get`](Self::get).
    pub fn state(&self, id: impl AsRef<str>) -> Result<Option<JobState>, QueueError> {
        self.catch_up();
        Ok(self.engine.row(self.number, id.as_ref())?.map(|row| row.state))
    }

    /// Returns the number of jobs in each state.
    ///
    /// In a [`Store`] they are exact, and nothing is read: a [`get`](Self::get) may see a write a
    /// moment before these numbers do. In a database that many processes share it is a call, and
    /// the numbers of a large queue are some seconds old: [`Counts::age`].
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.catch_up();
        self.engine.counts(self.number)
    }

    /// Lists jobs in this state, after the job `from`, which may have left the state meanwhile.
    ///
    /// Ready jobs come in the order of their claims within each priority, followed by those that
    /// limits hold; scheduled ones by their time; running ones by their claims; finished and dead
    /// ones by when they are removed.
    ///
    /// A job that cannot be read hides no other one: it is listed with the reason
    /// ([`JobInfo::damaged`]), as [`JobState::Damaged`] if it is its row that cannot be read. Once
    /// the queue comes across such a row and sets it aside, only the list of that state has it.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{JobState, NewJob, Queue, QueueOptions};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default())?;
    /// queue.push_all((0..25).map(|n| NewJob::new("k", &n).unwrap()))?;
    /// let (mut from, mut seen) = (None, 0);
    /// loop {
    ///     let page = queue.list(JobState::Ready, from.as_ref(), 10)?;
    ///     seen += page.len();
    ///     let Some(last) = page.into_iter().last() else { break };
    ///     from = Some(last);
    /// }
    /// assert_eq!(seen, 25);
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`get`](Self::get).
    pub fn list(&self, state: JobState, from: Option<&JobInfo>, limit: usize) -> Result<Vec<JobInfo>, QueueError> {
        self.catch_up();
        self.engine.list(self.number, state, from.map(|job| Place::of(job, state)).as_ref(), limit)
    }

    /// Returns a page of the jobs in this state, in the order of [`list`](Self::list).
    ///
    /// It has up to `limit` jobs, at least one if there is any, and begins after the page whose
    /// [`Page::next`] is the cursor, or with the first job.
    ///
    /// A cursor is text for a URL (`GET /jobs?state=dead&cursor=…`), of ASCII letters and digits.
    /// It stays valid after a restart, and when the last job of its page has left the state. Going
    /// through all pages shows each job once that keeps its place in the list. A job that leaves
    /// the state and comes back meanwhile, or that a limit starts to hold, may come a second time.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{JobState, NewJob, Queue, QueueOptions};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default())?;
    /// queue.push_all((0..25).map(|n| NewJob::new("k", &n).unwrap()))?;
    /// let first = queue.page(JobState::Ready, None, 10)?;
    /// let second = queue.page(JobState::Ready, first.next.as_deref(), 10)?;
    /// let third = queue.page(JobState::Ready, second.next.as_deref(), 10)?;
    /// assert_eq!([first.jobs.len(), second.jobs.len(), third.jobs.len()], [10, 10, 5]);
    /// assert_eq!(third.next, None);
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Config`] with [`ConfigError::Cursor`] for a cursor of another state or queue,
    /// and for text that is no cursor; otherwise the same as [`get`](Self::get).
    ///
    /// [`ConfigError::Cursor`]: crate::ConfigError::Cursor
    pub fn page(&self, state: JobState, cursor: Option<&str>, limit: usize) -> Result<Page, QueueError> {
        let limit = limit.max(1);
        let behind = cursor.map(|cursor| Place::of_cursor(cursor, self.name(), state)).transpose()?;
        self.catch_up();
        // One more than the page tells whether there is another page.
        let mut jobs = self.engine.list(self.number, state, behind.as_ref(), limit.saturating_add(1))?;
        let has_more = jobs.len() > limit;
        jobs.truncate(limit);
        let last = jobs.last().filter(|_| has_more);
        let next = last.map(|job| Place::of(job, state).cursor(self.name(), state));
        Ok(Page { jobs, next })
    }

    /// Removes all jobs that wait or run when they are reached, and returns their number.
    ///
    /// Finished, dead and damaged jobs stay. A worker whose job is removed learns of it as
    /// [`remove`](Self::remove) says. It takes several writes, so a crash may leave the rest.
    ///
    /// # Errors
    /// The same as [`get`](Self::get).
    pub fn purge(&self) -> Result<u64, QueueError> {
        let mut count = 0;
        // Waiting jobs go first: the end of a job would make those ready that wait for it.
        for state in [JobState::Waiting, JobState::Scheduled, JobState::Ready, JobState::Running] {
            self.catch_up();
            count += self.engine.steer(self.number, Steer::Purge(state))?;
        }
        Ok(count)
    }

    /// Requeues all dead jobs, as [`requeue`](Self::requeue) does, and returns their number.
    ///
    /// Those that others waited for come first, so jobs that died together run in their order
    /// again. It takes several writes, so a crash may leave the rest dead; the next call goes on.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{Accept, JobState, NewJob, Queue, QueueOptions};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "import", QueueOptions::default())?;
    /// queue.push(NewJob::new("load", "orders.csv")?.id("load"))?;
    /// queue.push(NewJob::new("count", "orders")?.id("count").after(["load"]))?;
    /// queue.accept(Accept::new())?.expect("the load is ready").bury("no such file")?;
    /// assert_eq!(queue.state("count")?, Some(JobState::Dead));
    ///
    /// assert_eq!(queue.requeue_dead()?, 2);
    /// assert_eq!(queue.state("load")?, Some(JobState::Ready));
    /// assert_eq!(queue.state("count")?, Some(JobState::Waiting), "until the load has finished");
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`get`](Self::get).
    #[doc(alias("dead letter", "replay"))]
    pub fn requeue_dead(&self) -> Result<u64, QueueError> {
        self.catch_up();
        self.engine.steer(self.number, Steer::RequeueDead)
    }

    /// Requeues the dead ones of these jobs, as [`requeue`](Self::requeue) does, and returns their
    /// number. Those that others of them waited for come first. Each is a write.
    ///
    /// # Errors
    /// The same as [`get`](Self::get). The jobs before are requeued then.
    pub fn requeue_all(&self, ids: impl IntoIterator<Item = impl Into<JobId>>) -> Result<u64, QueueError> {
        let ids: Vec<JobId> = ids.into_iter().map(Into::into).collect();
        let wanted: HashSet<JobId> = ids.iter().cloned().collect();
        let (mut order, mut count) = (CausesFirst::new(ids), 0);
        let waited_for = |id: &str| -> Result<_, QueueError> {
            if !wanted.contains(id) {
                return Ok(None);
            }
            Ok(Some(self.engine.related(self.number, id, usize::MAX)?.waits_for))
        };
        while let Some(id) = order.next(waited_for)? {
            match self.requeue(id) {
                Ok(done) => count += u64::from(done),
                Err(QueueError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    }
}
