//! The queue as a user holds it.

use crate::embedded::engine::Embedded;
#[cfg(test)]
use crate::embedded::step::Step;
use crate::engine::{Opened, Peek, QueueEngine, QueueNo, Steer};
use crate::notify::shared::Shared;
use crate::rules::pushing::Push;
use crate::types::capabilities::Capabilities;
use crate::types::config::{ConfigError, check_name};
use crate::types::error::QueueError;
use crate::types::hook::Proposed;
use crate::types::job::{JobId, Pushed, after};
use crate::types::new_job::NewJob;
use crate::types::options::QueueOptions;
use crate::types::typed::TypedJob;
#[cfg(doc)]
use crate::{Clash, JobState};
#[cfg(doc)]
use crate::{PushOutcome, Runner};
use std::any::Any;
use std::fmt;
use std::sync::Arc;
#[cfg(feature = "tokio")]
use std::sync::Weak;
use std::time::Duration;
#[cfg(test)]
use waterline::BoxError;
#[cfg(doc)]
use waterline::Error;
use waterline::Store;
use waterline::seam::Moment;
use waterline::seam::guarded;
use waterline::{Clock, seam};

/// A durable queue of jobs in a [`Store`].
///
/// A clone is the same queue, and may be used by any thread. It keeps its store open.
///
/// The [module](crate) says when to use one, and shows a whole program. [`Runner`] runs its jobs,
/// and [`accept`](Self::accept) hands one to a loop of yours.
///
/// Each call that changes something is one atomic write, and blocks its thread until it is done. If
/// it fails, nothing has changed, and the call can be repeated.
#[derive(Clone)]
pub struct Queue {
    pub(super) engine: Arc<dyn QueueEngine>,
    pub(super) number: QueueNo,
    pub(super) shared: Arc<Shared>,
    /// Keep-alive guard: the queue closes when the last clone is dropped.
    _keep: Arc<dyn Any + Send + Sync>,
}

impl Queue {
    /// Opens the queue with this name (1 to 255 bytes), and creates it if there is none.
    ///
    /// [`StoreOptions::create(false)`](waterline::StoreOptions::create) prevents that. Once a store
    /// has a queue, versions of this library without queues refuse to open it ([`Error::Format`]).
    ///
    /// A queue may be opened any number of times at once, with the same options: all handles are
    /// one queue. Nothing runs until there is a [`Runner`], or a call of [`accept`](Self::accept).
    ///
    /// A job that was running when its process died counts a crash here, and runs again: the first
    /// time at once, later alone and after a back-off, until its crashes are used up
    /// ([`QueueOptions::max_crashes`](crate::QueueOptions::max_crashes)). If its runner had been
    /// asked to stop, it runs again at once, and that is no crash.
    ///
    /// In a [read-only](waterline::StoreOptions::read_only) store the queue can only be looked at,
    /// usually from beside the process that runs it. It shows what is stored: its counts, its jobs,
    /// its notes, its periodic jobs without the time of the next tick, and its status, which uses
    /// the limits of these options. Each call that changes something fails with
    /// [`Error::ReadOnly`], and so does [`subscribe`](Self::subscribe). A [`watch`](Self::watch)
    /// hears nothing.
    ///
    #[cfg_attr(feature = "testing", doc = "```")]
    #[cfg_attr(not(feature = "testing"), doc = "```ignore")]
    /// use waterline::Store;
    /// use waterline_queue::{JobState, NewJob, Queue, QueueOptions};
    ///
    /// # let disk = waterline::testing::FaultyStore::new()?;
    /// # let application = disk.store();
    /// let queue = Queue::open(&application, "mail", QueueOptions::default())?;
    /// queue.push(NewJob::new("welcome", "ann")?)?;
    ///
    /// // Mostly in another process: Store::options().read_only().open(path)?
    /// let beside = disk.store_with(&Store::options().read_only());
    /// let queue = Queue::open(&beside, "mail", QueueOptions::default())?;
    /// assert_eq!(queue.list(JobState::Ready, None, 100)?[0].kind, "welcome");
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    ///
    /// A damaged record of a job does not keep the queue from being opened. Only the two records of
    /// the queue itself do: the one with its number, and the one with its counters.
    ///
    /// # Errors
    /// [`QueueError::Config`] for a bad name, for invalid options, and while the queue is open with
    /// other options; [`QueueError::Store`] with [`Error::NotFound`] for a queue that does not
    /// exist and is not created, [`Error::Corrupt`] when it cannot be read, and [`Error::Store`]
    /// when the database fails.
    pub fn open(store: &Store, name: impl AsRef<str>, options: QueueOptions) -> Result<Self, QueueError> {
        Self::on(Arc::new(Embedded::new(store)), name.as_ref(), options)
    }

    /// Opens the queue with this name on an engine: see [`open`](Self::open).
    ///
    /// # Errors
    /// The same as [`open`](Self::open).
    pub(crate) fn on(engine: Arc<dyn QueueEngine>, name: &str, options: QueueOptions) -> Result<Self, QueueError> {
        check_name("queue", name)?;
        options.check()?;
        let Opened { number, shared, keep } = engine.open(name, &options)?;
        Ok(Self { engine, number, shared, _keep: keep })
    }

    /// Returns the name with which it was opened.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns what the database of the queue can and cannot do.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.engine.capabilities()
    }

    /// Returns its engine, and its number in that engine.
    pub(crate) fn parts(&self) -> (&dyn QueueEngine, QueueNo) {
        (&*self.engine, self.number)
    }

    /// Returns the engine of a queue in a store.
    pub(crate) fn embedded(&self) -> Option<&Embedded> {
        self.engine.as_any().downcast_ref()
    }

    /// Fails for a queue in a read-only store, where nothing changes and no change is announced.
    pub(crate) fn writable(&self) -> Result<(), QueueError> {
        self.embedded().map_or(Ok(()), |embedded| Ok(seam::writable(embedded.store())?))
    }

    pub(crate) fn moment(&self) -> Moment {
        self.shared.moment()
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.shared.options.clock
    }

    pub(crate) fn peek(&self) -> Peek {
        self.peek_for(None)
    }

    /// Returns the same for a caller that claims only jobs of these kinds; `None`: of all.
    pub(crate) fn peek_for(&self, kinds: Option<&[String]>) -> Peek {
        self.engine.peek(self.number, kinds)
    }

    /// Returns the error for a worker whose lease is over.
    pub(crate) fn halt(&self, id: &str) -> QueueError {
        QueueError::Halt { queue: self.shared.name.clone(), id: id.to_owned() }
    }

    pub(crate) fn not_found(&self, id: &str) -> QueueError {
        QueueError::NotFound { queue: self.shared.name.clone(), id: id.to_owned() }
    }

    /// Pushes a job, and returns once it is written, as durable as the store.
    ///
    /// A [`unique`](NewJob::unique) job that has a twin is treated as [`Clash`] says, whatever
    /// the ids. Otherwise, if there is a job with the same id, its state decides:
    ///
    /// | state | effect | [`PushOutcome`] |
    /// |---|---|---|
    /// | waiting, due at the same time | nothing is changed | `Duplicate` |
    /// | waiting, due at another time | it is moved, and gets the new payload; its failures stay | `Rescheduled` |
    /// | running | it runs once more, when this run has succeeded; its payload and its settings stay | `Resubmit` |
    /// | finished or dead | it runs again, with the new payload | `Added` |
    /// | damaged: its row cannot be read | it is removed, and this one takes its place | `Added` |
    ///
    /// A failed run is followed by the next attempt. If that starts before the time of the push,
    /// the job runs once more after it, too. A job that waits for others keeps waiting for them if
    /// the push names none.
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline::Store;
    /// use waterline_queue::{NewJob, PushOutcome, Queue, QueueOptions};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "digests", QueueOptions::default())?;
    /// let digest = || NewJob::new("digest", &42).map(|job| job.id("user:42"));
    /// assert_eq!(queue.push(digest()?)?.outcome, PushOutcome::Added);
    /// assert_eq!(queue.push(digest()?)?.outcome, PushOutcome::Duplicate("user:42".into()));
    /// let later = digest()?.delay(Duration::from_secs(60));
    /// assert_eq!(queue.push(later)?.outcome, PushOutcome::Rescheduled);
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Config`] for an invalid job (an id or a kind of the wrong length, an id that
    /// begins with `~`, a time beyond the year 9999, an invalid [`Retry`](waterline::Retry));
    /// [`QueueError::NotFound`], [`QueueError::Cycle`] and [`QueueError::AlreadyRuns`] for a job
    /// that cannot run [`after`](NewJob::after) those that it names; [`QueueError::Full`] if too
    /// many jobs wait; [`QueueError::Refused`] by the hook of the queue; [`QueueError::Store`] when
    /// the database fails. Nothing is pushed then. (After a failure of the database the job may
    /// still appear when the process restarts.)
    pub fn push(&self, job: NewJob) -> Result<Pushed, QueueError> {
        self.ask_before_push(&job)?;
        Ok(self.push_asked(vec![job])?.remove(0))
    }

    /// Pushes a job whose kind is a type, as [`push`](Self::push) does. [`TypedJob`] has an example.
    ///
    /// # Errors
    /// The same as [`NewJob::of`] and [`push`](Self::push).
    pub fn push_job(&self, job: &impl TypedJob) -> Result<Pushed, QueueError> {
        self.push(NewJob::of(job)?)
    }

    /// Pushes jobs in one atomic write: all of them or none. Without jobs it does nothing.
    ///
    /// # Errors
    /// The same as [`push`](Self::push).
    pub fn push_all(&self, jobs: impl IntoIterator<Item = NewJob>) -> Result<Vec<Pushed>, QueueError> {
        let jobs: Vec<_> = jobs.into_iter().collect();
        self.ask_before_pushes(&jobs)?;
        self.push_asked(jobs)
    }

    /// Checks a job, and gives it an id if it has none.
    pub(crate) fn prepare(&self, job: NewJob) -> Result<Push, ConfigError> {
        Ok(self.engine.prepare(self.number, vec![job])?.remove(0))
    }

    /// Removes a job in any state.
    ///
    /// If a worker has it, its next call fails with [`QueueError::Halt`], and it writes nothing
    /// more. A damaged job ([`JobState::Damaged`]) can be removed too: all jobs are then counted
    /// anew, which takes a while if there are many.
    ///
    /// A runner of this process hears of it at once, and one of another process with the next
    /// renewal of its leases, each third of [`QueueOptions::lease`]. It drops the future of the job
    /// at its next await point, or ends the deferred job, and the slot is free. A thread cannot be
    /// ended: its handler sees that it is to stop ([`Running::is_stopping`]), and its slot is taken
    /// until it returns ([`QueueStatus::stuck`]). The same happens to a job whose lease is lost.
    ///
    /// [`Running::is_stopping`]: crate::Running::is_stopping
    /// [`QueueStatus::stuck`]: crate::QueueStatus::stuck
    ///
    /// # Errors
    /// [`QueueError::NotFound`] for an unknown id, [`QueueError::Store`] when the database fails.
    #[doc(alias = "cancel")]
    pub fn remove(&self, id: impl Into<JobId>) -> Result<(), QueueError> {
        self.engine.steer(self.number, Steer::Remove(id.into())).map(drop)
    }

    /// Makes a dead job ready again, and returns false if the job is not dead.
    ///
    /// It starts with no failures and no crashes, and keeps its payload and data.
    ///
    /// A job that died while it waited for others ([`NewJob::after`]), mostly with one of them,
    /// waits again for those that have not ended, or run again. It does not wait for one that has
    /// finished, is dead or gone. So first requeue the one that it died with, or use
    /// [`requeue_all`](Self::requeue_all) or [`requeue_dead`](Self::requeue_dead). It does not wait
    /// for a job that by now waits for it, directly or through others, nor for any waiting job if
    /// so many (10,000) wait for itself that this cannot be told.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{Accept, JobState, NewJob, Queue, QueueOptions};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default())?;
    /// let id = queue.push(NewJob::new("k", &1)?)?.id;
    /// queue.accept(Accept::new())?.expect("a job is ready").bury("no such customer")?;
    /// for job in queue.list(JobState::Dead, None, 100)? {
    ///     println!("{}: {}", job.id, job.error.as_deref().unwrap_or_default());
    /// }
    /// assert!(queue.requeue(&id)?);
    /// assert_eq!(queue.state(&id)?, Some(JobState::Ready));
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`remove`](Self::remove).
    pub fn requeue(&self, id: impl Into<JobId>) -> Result<bool, QueueError> {
        Ok(self.engine.steer(self.number, Steer::Requeue(id.into()))? > 0)
    }

    /// Makes a scheduled job due now, whether it waits for its time or for its back-off.
    ///
    /// Nothing else of it changes. Returns false, and changes nothing, if the job is not scheduled.
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline::Store;
    /// use waterline_queue::{JobState, NewJob, Queue, QueueOptions};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default())?;
    /// let id = queue.push(NewJob::new("k", "tomorrow")?.delay(Duration::from_secs(86_400)))?.id;
    /// assert!(queue.run_now(&id)?);
    /// assert_eq!(queue.state(&id)?, Some(JobState::Ready));
    /// assert!(!queue.run_now(&id)?);
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`remove`](Self::remove).
    pub fn run_now(&self, id: impl Into<JobId>) -> Result<bool, QueueError> {
        self.catch_up();
        Ok(self.engine.steer(self.number, Steer::RunNow(id.into()))? > 0)
    }

    /// Hands out no job for this time or, with `None`, until [`resume`](Self::resume).
    ///
    /// Pushes and running jobs go on. A pause survives a restart, and a second one replaces the
    /// first. The time is by the wall clock, and moves back with it if that is set back.
    ///
    /// # Errors
    /// [`QueueError::Config`] for a time beyond the year 9999, [`QueueError::Store`] if the
    /// database fails.
    pub fn pause(&self, time: Option<Duration>) -> Result<(), QueueError> {
        let wall = self.moment().wall;
        let until = time.map_or(Ok(u64::MAX), |time| after(wall, time).ok_or(ConfigError::RunAt))?;
        self.pause_until(until)
    }

    /// Ends a [`pause`](Self::pause). Does nothing if there is none.
    ///
    /// # Errors
    /// [`QueueError::Store`] when the database fails.
    pub fn resume(&self) -> Result<(), QueueError> {
        self.pause_until(0)
    }

    fn pause_until(&self, until: u64) -> Result<(), QueueError> {
        self.engine.steer(self.number, Steer::Pause(until)).map(drop)
    }
}

/// A queue handle that does not keep the queue open.
#[cfg(feature = "tokio")]
pub(super) struct WeakQueue {
    engine: Weak<dyn QueueEngine>,
    number: QueueNo,
    shared: Weak<Shared>,
    keep: Weak<dyn Any + Send + Sync>,
}

#[cfg(feature = "tokio")]
impl WeakQueue {
    pub(super) fn upgrade(&self) -> Option<Queue> {
        let (engine, shared, keep) = (self.engine.upgrade()?, self.shared.upgrade()?, self.keep.upgrade()?);
        Some(Queue { engine, number: self.number, shared, _keep: keep })
    }
}

#[cfg(feature = "tokio")]
impl Queue {
    pub(super) fn downgrade(&self) -> WeakQueue {
        let (engine, shared) = (Arc::downgrade(&self.engine), Arc::downgrade(&self.shared));
        WeakQueue { engine, number: self.number, shared, keep: Arc::downgrade(&self._keep) }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("name", &self.name()).field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl Queue {
    /// Asks the hook whether these jobs may be pushed, and notes their kinds.
    ///
    /// Nothing of them is stored yet, and the caller holds no lock.
    pub(crate) fn ask_before_pushes<'j>(
        &self,
        jobs: impl IntoIterator<Item = &'j NewJob> + Clone,
    ) -> Result<(), QueueError> {
        let mut noted = None;
        jobs.clone().into_iter().try_for_each(|job| self.ask_hook(job))?;
        for job in jobs {
            // Mostly all jobs of a batch have one kind.
            if noted.replace(&job.kind) != Some(&job.kind) {
                self.shared.note_kind(&job.kind, || job.check().is_ok());
            }
        }
        Ok(())
    }

    pub(crate) fn ask_before_push(&self, job: &NewJob) -> Result<(), QueueError> {
        self.ask_before_pushes([job])
    }

    fn ask_hook(&self, job: &NewJob) -> Result<(), QueueError> {
        let Some(hook) = &self.shared.options.before_push.0 else { return Ok(()) };
        if job.check().is_err() {
            // The push refuses it anyway.
            return Ok(());
        }
        let proposed = Proposed { kind: &job.kind, id: job.id.as_deref(), payload: &job.payload };
        guarded(|| hook(&proposed)).map_err(|source| QueueError::Refused { kind: job.kind.clone(), source })
    }
}

#[cfg(test)]
impl Queue {
    pub(crate) fn state_of(&self) -> Arc<crate::embedded::state::QueueState> {
        self.embedded().unwrap().state(self.number)
    }

    pub(crate) fn store(&self) -> &Store {
        self.embedded().unwrap().store()
    }

    pub(crate) fn bytes(&self, key: &[u8]) -> Result<Option<Vec<u8>>, QueueError> {
        Ok(seam::kv(self.store()).get(&self.state_of().rows, key).map_err(waterline::Error::from)?)
    }

    pub(crate) fn row(&self, id: &str) -> Result<Option<crate::types::row::Row>, QueueError> {
        self.engine.row(self.number, id)
    }

    pub(crate) fn call<R, F>(&self, run: F) -> Result<R, QueueError>
    where
        R: Send + 'static,
        F: Fn(&mut Step<'_, '_>) -> Result<R, BoxError> + Send + 'static,
    {
        crate::embedded::intent::call(self.store(), &self.state_of(), "test", run)
    }
}
