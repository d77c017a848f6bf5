//! A queue that an operator changes by hand, while no program runs it.

use crate::engine::QueueEngine;
use crate::handle::Queue;
use crate::types::error::QueueError;
use crate::types::job::{JobId, Pushed};
use crate::types::new_job::NewJob;
use crate::types::options::QueueOptions;
use std::sync::Arc;
use std::time::Duration;
#[cfg(doc)]
use waterline::Error;
use waterline::Store;
use waterline::seam;

/// A queue that an operator's tool changes by hand; made by [`Queue::admin`].
///
/// It has no [options](QueueOptions), since only the program of the queue knows them. So it does
/// what an operator asks for, and nothing else: it counts no crash for a job whose process died,
/// promotes or expires nothing, drops no row, and applies no limit. The next [`Queue::open`] does
/// all that. A push does not ask the hook of the queue ([`QueueOptions::before_push`]), nor check
/// its bound ([`QueueOptions::max_waiting`]).
///
/// ```
/// use waterline::Store;
/// use waterline_queue::{Accept, JobState, NewJob, Queue, QueueOptions};
///
/// let store = Store::in_memory();
/// let queue = Queue::open(&store, "mail", QueueOptions::default())?;
/// let id = queue.push(NewJob::new("welcome", "ann")?)?.id;
/// queue.accept(Accept::new())?.expect("a job is ready").bury("no such customer")?;
/// drop(queue);
///
/// let by_hand = Queue::admin(&store, "mail")?;
/// assert!(by_hand.requeue(&id)?);
/// by_hand.pause(None)?;
/// drop(by_hand);
///
/// let queue = Queue::open(&store, "mail", QueueOptions::default())?;
/// assert_eq!(queue.state(&id)?, Some(JobState::Ready));
/// assert!(queue.accept(Accept::new())?.is_none(), "it is paused");
/// # Ok::<(), waterline_queue::QueueError>(())
/// ```
#[derive(Clone, Debug)]
pub struct QueueAdmin(Queue);

impl Queue {
    /// Opens the existing queue with this name, to change it by hand: see [`QueueAdmin`].
    ///
    /// # Errors
    /// [`QueueError::Store`] with [`Error::NotFound`] for a queue that does not exist, and with
    /// [`Error::ReadOnly`] in a read-only store; [`QueueError::Config`] while the queue is open in
    /// this process; otherwise the same as [`open`](Self::open).
    pub fn admin(store: &Store, name: impl AsRef<str>) -> Result<QueueAdmin, QueueError> {
        seam::writable(store)?;
        Ok(QueueAdmin(Self::open(store, name, QueueOptions::admin())?))
    }
}

impl QueueAdmin {
    pub(crate) fn on(engine: Arc<dyn QueueEngine>, name: &str) -> Result<Self, QueueError> {
        Ok(Self(Queue::on(engine, name, QueueOptions::admin())?))
    }

    /// Returns the queue to read its counts, lists and status. It is not meant for workers.
    ///
    /// ```
    /// # use waterline::Store;
    /// use waterline_queue::{NewJob, Queue, QueueOptions};
    ///
    /// # let store = Store::in_memory();
    /// # let queue = Queue::open(&store, "mail", QueueOptions::default())?;
    /// # queue.push(NewJob::new("welcome", "ann")?)?;
    /// # drop(queue);
    /// let by_hand = Queue::admin(&store, "mail")?;
    /// assert_eq!(by_hand.look().counts().ready, 1);
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    #[must_use]
    pub fn look(&self) -> &Queue {
        &self.0
    }

    /// Returns the name of the queue.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Pushes a job, as [`Queue::push`] does, but without the hook and the bound of the queue.
    ///
    /// # Errors
    /// The same as [`Queue::push`], except `Refused` and `Full`.
    pub fn push(&self, job: NewJob) -> Result<Pushed, QueueError> {
        self.0.push(job)
    }

    /// Removes a job in any state, as [`Queue::remove`] does. If its id is yours, it is remembered
    /// for the default of [`QueueOptions::ids_for`].
    ///
    /// # Errors
    /// The same as [`Queue::remove`].
    pub fn remove(&self, id: impl Into<JobId>) -> Result<(), QueueError> {
        self.0.remove(id)
    }

    /// Makes a dead job ready again, as [`Queue::requeue`] does. Returns false if it is not dead.
    ///
    /// # Errors
    /// The same as [`Queue::requeue`].
    pub fn requeue(&self, id: impl Into<JobId>) -> Result<bool, QueueError> {
        self.0.requeue(id)
    }

    /// Requeues all dead jobs, as [`Queue::requeue_dead`] does, and returns their number.
    ///
    /// # Errors
    /// The same as [`Queue::requeue_dead`].
    pub fn requeue_dead(&self) -> Result<u64, QueueError> {
        self.0.requeue_dead()
    }

    /// Makes a scheduled job due now. Returns false if the job is not scheduled.
    ///
    /// # Errors
    /// The same as [`Queue::run_now`].
    pub fn run_now(&self, id: impl Into<JobId>) -> Result<bool, QueueError> {
        self.0.run_now(id)
    }

    /// Pauses the queue for this time or, with `None`, until it is resumed.
    ///
    /// # Errors
    /// The same as [`Queue::pause`].
    pub fn pause(&self, time: Option<Duration>) -> Result<(), QueueError> {
        self.0.pause(time)
    }

    /// Ends a pause. Does nothing if there is none.
    ///
    /// # Errors
    /// The same as [`Queue::resume`].
    pub fn resume(&self) -> Result<(), QueueError> {
        self.0.resume()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accept::Accept;
    use crate::types::job::{Counts, JobState};
    use std::mem::ManuallyDrop;
    use std::time::{Duration, SystemTime};
    use waterline::testing::FaultyStore;
    use waterline::{Clock, Error};

    #[test]
    fn admin_counts_no_crash_and_drops_no_row() {
        // The row of the finished job is due to be removed, and the process dies while a job runs.
        let clock = Clock::manual(SystemTime::now() - Duration::from_secs(3600));
        let options = QueueOptions::default().clock(clock.clone()).dead_for(Duration::from_secs(1));
        let disk = FaultyStore::new().unwrap();
        let queue = Queue::open(&disk.store(), "q", options.clone()).unwrap();
        let job = |id: &str| NewJob::new("k", id).unwrap().id(id);
        queue.push_all(["finished", "dead", "runs", "ready"].map(job)).unwrap();
        queue.push(job("late").delay(Duration::from_secs(999_999))).unwrap();
        let lease = || queue.accept(Accept::new()).unwrap().unwrap();
        lease().finish(None).unwrap();
        lease().bury("no such customer").unwrap();
        let _runs = ManuallyDrop::new(lease());
        let died = disk.after_crash().unwrap();

        let store = died.store();
        let admin = Queue::admin(&store, "q").unwrap();
        assert!(admin.requeue("dead").unwrap() && admin.run_now("late").unwrap());
        admin.remove("ready").unwrap();
        admin.push(job("pushed")).unwrap();
        admin.pause(None).unwrap();
        assert!(matches!(admin.requeue("nobody"), Err(QueueError::NotFound { .. })));
        drop(admin);

        let look = died.store_with(&Store::options().read_only());
        let looked = Queue::open(&look, "q", options.clone()).unwrap();
        let runs = looked.get("runs").unwrap().unwrap();
        assert_eq!((runs.state, runs.crashes), (JobState::Running, 0));
        assert_eq!(looked.counts(), Counts { ready: 3, running: 1, finished: 1, ..Counts::default() });

        // The program opens it again with its own options: now the crash counts.
        let queue = Queue::open(&store, "q", options).unwrap();
        queue.resume().unwrap();
        let runs = queue.get("runs").unwrap().unwrap();
        assert_eq!((runs.state, runs.crashes), (JobState::Ready, 1));
        assert_eq!(queue.counts().ready, 4);
    }

    #[test]
    fn admin_makes_no_queue_and_refuses_an_open_one() {
        let disk = FaultyStore::new().unwrap();
        let store = disk.store();
        let writes = disk.writes();
        let found = Queue::admin(&store, "q");
        assert!(matches!(found, Err(QueueError::Store(Error::NotFound { what: "queue", .. }))));
        assert_eq!((disk.writes(), Queue::names(&store).unwrap().len()), (writes, 0));
        let _open = Queue::open(&store, "q", QueueOptions::default()).unwrap();
        assert!(matches!(Queue::admin(&store, "q"), Err(QueueError::Config(_))));
        let look = disk.store_with(&Store::options().read_only());
        assert!(matches!(Queue::admin(&look, "q"), Err(QueueError::Store(Error::ReadOnly))));
    }
}
