//! A durable job queue in the store: jobs that are pushed one by one, run later, tried again, and
//! die visibly.
//!
//! A stream is pulled, and its order matters: see [`Consumer`](crate::Consumer). A queue is for
//! jobs that are independent of each other: someone creates a job, wants it to run later, again
//! after a failure, and never twice at once, and wants to see what became of it.
//!
//! ```
//! use waterline::Store;
//! use waterline::queue::{Limits, NewJob, Outcome, Queue, QueueOptions, Runner};
//!
//! let store = Store::in_memory();            // `Store::open("some/directory")` to keep it
//! let queue = Queue::open(&store, "mail", QueueOptions::default())?;
//! queue.push(NewJob::new("welcome", "ann@example.org")?)?;
//!
//! let summary = Runner::builder(&queue)
//!     .on("welcome", |_job, address: String| {
//!         println!("welcome, {address}");
//!         Ok(Outcome::Done)
//!     })
//!     .drain(Limits::default())?;
//! assert_eq!(summary.finished, 1);
//! # Ok::<(), waterline::queue::QueueError>(())
//! ```
//!
//! ## Where to look
//!
//! * [`Queue`] pushes jobs ([`NewJob`]), and shows and steers them. [`QueueOptions`] has the
//!   settings and their defaults.
//! * [`Effects::enqueue`](crate::Effects::enqueue) pushes in an atomic write: so a stream, or a
//!   job, pushes exactly once.
//! * [`Runner`] runs jobs with handlers: functions, deferred ones, futures. [`Outcome`] is the
//!   answer of a handler, [`Failure`](crate::Failure) an error that says more, [`Running`] the job.
//! * [`Queue::accept`] hands a job to a loop of yours, as a [`Lease`].
//! * [`Queue::status`] says in one sentence what the queue waits for, [`Queue::counts`] how many
//!   jobs are in each [`JobState`], [`Queue::list`] which ones, and [`Queue::subscribe`] tells you
//!   when a job changes.
//!
//! The page [`design`](crate::design#the-queue) explains how it works.
//!
//! ## Promises
//!
//! | promise | holds |
//! |---|---|
//! | a job that was pushed is not lost | after any crash it is in exactly one state |
//! | at least once | a job runs again if its process died before its end was written |
//! | no worker overwrites another one | each call carries the token of its lease; a late one is [`QueueError::Halt`] |
//! | attempts are bounded | failures by [`Retry`](crate::Retry), deaths of the process by [`max_crashes`](QueueOptions::max_crashes) |
//! | a failure is visible | a job that fails for good is [`JobState::Dead`], with its error |
//!
//! Since a job may run again, make its effects the same when they are repeated. Or make them in one
//! write with its end: [`RunnerBuilder::on_transactional`], [`Lease::finish_with`]. Only effects
//! elsewhere (a mail, a request, a file) then happen again.
//!
//! ```
//! # use waterline::{Store, queue::{Limits, NewJob, Outcome, Queue, QueueOptions, Runner}};
//! # let store = Store::in_memory();
//! # let queue = Queue::open(&store, "orders", QueueOptions::default())?;
//! # queue.push(NewJob::new("order", &3)?)?;
//! let (next, stock) = (queue.clone(), store.table("stock")?);
//! Runner::builder(&queue)
//!     .on_transactional("order", move |_job, pieces: i64, effects| {
//!         effects.add(&stock, "pieces", -pieces)?;
//!         effects.enqueue(&next, NewJob::new("parcel", &pieces)?)?;
//!         Ok(Outcome::Done)       // with both writes, or without either
//!     })
//!     .on("parcel", |_job, _pieces: i64| Ok(Outcome::Done))
//!     .drain(Limits::default())?;
//! # assert_eq!((queue.counts().finished, store.table("stock")?.counter("pieces")?), (2, -3));
//! # Ok::<(), waterline::queue::QueueError>(())
//! ```
//!
//! A queue belongs to one process, as its store does. Its jobs are as durable as the store: with
//! [`Durability::Buffered`](crate::Durability) the loss of power may take the last moments.
//!
//! Times are kept in milliseconds. A job never runs before its time. The clock on the wall decides
//! when a job is due, and a monotonic one when a lease is over.

mod accept;
mod clock;
mod enqueue;
mod error;
mod head;
mod intent;
mod job;
mod keys;
mod lazy;
mod lease;
mod listing;
mod options;
mod row;
mod rules;
mod runner;
mod state;
mod status;
mod step;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod stored;
mod subscription;

pub use accept::Accept;
pub use clock::Clock;
pub use error::QueueError;
pub use job::{Counts, JobId, JobInfo, JobState, NewJob, Priority, PushOutcome, Pushed, Retention};
pub use lazy::Lazy;
pub use lease::Lease;
pub use options::QueueOptions;
pub use runner::{
    Ended, Finisher, Limits, Outcome, QueueEvent, Reached, Runner, RunnerBuilder, Running, Summary, Unknown,
};
pub use status::{QueueStatus, Waits};
pub use subscription::{Seen, Subscription};

use self::head::{decode_number, encode_number};
use self::intent::call;
use self::row::Row;
use self::state::QueueState;
use self::step::Push;
use crate::base::config::{ConfigError, check_name};
use crate::base::error::Error;
use crate::base::sync::{Arc, Mutex};
use crate::kv::batch::Records;
use crate::kv::{Family, QUEUE, READY};
use crate::store::Store;
use std::fmt;
use std::sync::Weak;
use std::time::Duration;

/// A durable queue of jobs in a [`Store`]. A clone is the same queue, and may be used by any
/// thread. It keeps its store open.
///
/// The [module](self) says when to use one, and shows a whole program. [`Runner`] runs its jobs,
/// and [`accept`](Self::accept) hands one to a loop of yours.
///
/// Each call that changes something is one atomic write: it blocks its thread for the time of a
/// write. If it fails, nothing is changed, and it can be made again.
#[derive(Clone)]
pub struct Queue {
    store: Store,
    state: Arc<QueueState>,
}

/// The queues that are open in this store.
#[derive(Default)]
struct OpenQueues(Mutex<Vec<Weak<QueueState>>>);

impl Queue {
    /// Opens the queue with this name: 1 to 255 bytes. It is made if there is none, unless
    /// [`StoreOptions::create`](crate::StoreOptions::create) is `false`. From the first queue on,
    /// versions of this library that know no queues refuse the store ([`Error::Format`]).
    ///
    /// A queue may be opened any number of times at once, with the same options: all of them are
    /// one queue. Nothing runs until there is a [`Runner`], or a call of [`accept`](Self::accept).
    ///
    /// A job that was running when its process died counts a crash here, and runs again: the first
    /// time at once, later after a back-off, and not once its crashes are used up.
    ///
    /// # Errors
    /// [`QueueError::Config`] for a bad name, for options that cannot be, and while the queue is
    /// open with other options; [`QueueError::Store`] with [`Error::NotFound`] for a queue that is
    /// not there and is not made, [`Error::ReadOnly`] for a read-only store, [`Error::Corrupt`]
    /// when it cannot be read, and [`Error::Store`] when the database fails.
    pub fn open(store: &Store, name: impl AsRef<str>, options: QueueOptions) -> Result<Self, QueueError> {
        let name = name.as_ref();
        check_name("queue", name)?;
        options.check()?;
        store.writable()?;
        store.writer().start().map_err(|source| Error::Spawn { source })?;
        let open = store.kept::<OpenQueues>();
        let mut open = open.0.lock();
        open.retain(|queue| queue.strong_count() > 0);
        if let Some(state) = open.iter().filter_map(Weak::upgrade).find(|queue| queue.name == name) {
            if state.options != options {
                return Err(ConfigError::QueueOptions { name: name.to_owned() }.into());
            }
            return Ok(Self { store: store.clone(), state });
        }
        let state = Self::load(store, name, options)?;
        open.push(Arc::downgrade(&state));
        Ok(Self { store: store.clone(), state })
    }

    fn load(store: &Store, name: &str, options: QueueOptions) -> Result<Arc<QueueState>, QueueError> {
        let families = [store.family(QUEUE)?, store.family(READY)?];
        let number = Self::number(store, name, &families[0])?;
        let stored = state::load(store.kv(), name, number, &families)?;
        let state = QueueState::new(name, number, families, options, (stored.head, stored.from));
        let state = Arc::new(state);
        let waits: Weak<dyn clock::Waits> = Arc::downgrade(&(state.clone() as Arc<dyn clock::Waits>));
        state.options.clock.tell(waits);
        let running = stored.running;
        let (crashed, damaged) = call(store, &state, "open a queue", move |step| step.recover(&running))?;
        if crashed > 0 {
            tracing::warn!(target: "waterline", queue = name, jobs = crashed, "the process died while jobs ran; each counts a crash");
        }
        for id in damaged {
            tracing::error!(target: "waterline", queue = name, id, "the row of a running job cannot be read: restore it from a backup, or remove the job");
        }
        Ok(state)
    }

    /// Returns the number of the queue with this name, which is made if there is none.
    fn number(store: &Store, name: &str, rows: &Family) -> Result<u32, QueueError> {
        let key = keys::name(name);
        if let Some(bytes) = store.kv().get(rows, &key)? {
            let corrupt = |reason| Error::Corrupt { name: name.to_owned(), reason };
            return Ok(decode_number(name, &bytes).map_err(corrupt)?);
        }
        if !store.creates() {
            return Ok(store.not_found("queue", name)?);
        }
        store.note_in_use("queue")?;
        let number = store.ids().next()?;
        let mut records = Records::default();
        records.put(rows.id, &[&key], &[&encode_number(name, number)])?;
        store.write_records(&records)?;
        Ok(number)
    }

    /// Returns the name that it was opened with.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.state.name
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn inner(&self) -> &Arc<QueueState> {
        &self.state
    }

    /// Pushes a job, and returns once it is written, as durable as the store.
    ///
    /// If a job of the same id is there already, it depends on the state of that job:
    ///
    /// | state | effect | [`PushOutcome`] |
    /// |---|---|---|
    /// | waiting, due at the same time | nothing is changed | `Duplicate` |
    /// | waiting, due at another time | it is moved, and gets the new payload; its failures stay | `Rescheduled` |
    /// | running | it runs once more, when this run has succeeded; its payload stays | `Resubmit` |
    /// | finished or dead | it runs again, with the new payload | `Added` |
    ///
    /// A run that fails is followed by the next attempt. If that begins before the time of the
    /// push, the job runs once more after it, too.
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline::Store;
    /// use waterline::queue::{NewJob, PushOutcome, Queue, QueueOptions};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "digests", QueueOptions::default())?;
    /// let digest = || NewJob::new("digest", &42).map(|job| job.id("user:42"));
    /// assert_eq!(queue.push(digest()?)?.outcome, PushOutcome::Added);
    /// assert_eq!(queue.push(digest()?)?.outcome, PushOutcome::Duplicate("user:42".into()));
    /// let later = digest()?.delay(Duration::from_secs(60));
    /// assert_eq!(queue.push(later)?.outcome, PushOutcome::Rescheduled);
    /// # Ok::<(), waterline::queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Config`] for a job that no queue takes (an id or a kind of the wrong length,
    /// an id that begins with `~`, a time beyond the year 9999, a [`Retry`](crate::Retry) that
    /// cannot be), [`QueueError::Store`] when the database fails. Nothing is pushed then. (After a
    /// failure of the database the job may be there in the next life of the process.)
    pub fn push(&self, job: NewJob) -> Result<Pushed, QueueError> {
        let push = self.prepare(job)?;
        let id = push.id.clone();
        let outcome = call(&self.store, &self.state, "push a job", move |step| {
            let outcome = step.push(&push)?;
            step.keep_house(SOME)?;
            Ok(outcome)
        })?;
        Ok(Pushed { id, outcome })
    }

    /// Pushes jobs in one atomic write: all of them or none. Nothing in, nothing out.
    ///
    /// # Errors
    /// Those of [`push`](Self::push).
    pub fn push_all(&self, jobs: impl IntoIterator<Item = NewJob>) -> Result<Vec<Pushed>, QueueError> {
        let pushes = jobs.into_iter().map(|job| self.prepare(job)).collect::<Result<Vec<_>, _>>()?;
        if pushes.is_empty() {
            return Ok(Vec::new());
        }
        call(&self.store, &self.state, "push jobs", move |step| {
            let pushed = pushes.iter().map(|push| Ok(Pushed { id: push.id.clone(), outcome: step.push(push)? }));
            let pushed = pushed.collect::<Result<Vec<_>, crate::BoxError>>()?;
            step.keep_house(SOME)?;
            Ok(pushed)
        })
    }

    /// Returns a buffer for pushes that nobody waits for.
    pub fn lazy(&self) -> Lazy {
        Lazy::new(self.clone())
    }

    /// Checks a job, and gives it an id if it has none.
    fn prepare(&self, job: NewJob) -> Result<Push, ConfigError> {
        job.check()?;
        let wall = self.state.moment().wall;
        let due = job.due.at(wall)?;
        let made = if job.id.is_none() { Some(self.state.make_id()) } else { None };
        let id = job.id.unwrap_or_else(|| format!("{}{}", job::MADE, made.unwrap_or_default()));
        let row = Row {
            state: JobState::Ready,
            priority: job.priority,
            kind: job.kind,
            retry: job.retry,
            retention: job.retention,
            failures: 0,
            crashes: 0,
            pushed: wall,
            due,
            since: wall,
            place: 0,
            resubmit: None,
            has_data: false,
            error: String::new(),
        };
        Ok(Push { id, made, row, payload: job.payload })
    }

    /// Removes a job in any state. If a worker has it, its next call tells it so
    /// ([`QueueError::Halt`]), and it writes nothing more. A job whose row is damaged can be
    /// removed too: all jobs are then counted anew, which takes a while if they are many.
    ///
    /// # Errors
    /// [`QueueError::NotFound`] for an unknown id, [`QueueError::Store`] when the database fails.
    pub fn remove(&self, id: impl Into<JobId>) -> Result<(), QueueError> {
        let id = id.into();
        call(&self.store, &self.state, "remove a job", move |step| step.remove(&id))
    }

    /// Makes a dead job ready again, with no failures and no crashes, and with its payload and
    /// data. Returns false if the job is not dead.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline::queue::{Accept, JobState, NewJob, Queue, QueueOptions};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default())?;
    /// let id = queue.push(NewJob::new("k", &1)?)?.id;
    /// queue.accept(Accept::new())?.expect("a job is ready").bury("no such customer")?;
    /// for job in queue.list(JobState::Dead, None, 100)? {
    ///     println!("{}: {}", job.id, job.error.as_deref().unwrap_or_default());
    /// }
    /// assert!(queue.requeue(&id)?);
    /// assert_eq!(queue.state(&id)?, Some(JobState::Ready));
    /// # Ok::<(), waterline::queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`remove`](Self::remove).
    pub fn requeue(&self, id: impl Into<JobId>) -> Result<bool, QueueError> {
        let id = id.into();
        call(&self.store, &self.state, "requeue a job", move |step| step.requeue(&id))
    }

    /// Hands out no job for this time, or, with `None`, until [`resume`](Self::resume). Pushes go
    /// on, and running jobs too. It survives a restart. The time is that of the clock on the wall.
    /// A second pause replaces the first one.
    ///
    /// # Errors
    /// [`QueueError::Config`] for a time beyond the year 9999, [`QueueError::Store`] when the
    /// database fails.
    pub fn pause(&self, time: Option<Duration>) -> Result<(), QueueError> {
        let wall = self.state.moment().wall;
        let until = time.map_or(Ok(u64::MAX), |time| job::after(wall, time).ok_or(ConfigError::RunAt))?;
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
        call(&self.store, &self.state, "pause a queue", move |step| {
            step.head().paused_until = until;
            Ok(())
        })
    }

    /// Subscribes to the changes of a job.
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline::Store;
    /// use waterline::queue::{Accept, JobState, NewJob, Queue, QueueOptions};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default())?;
    /// let id = queue.push(NewJob::new("k", &1)?)?.id;
    /// let mut subscription = queue.subscribe(&id)?;
    /// let mut lease = queue.accept(Accept::new())?.expect("a job is ready");
    /// lease.finish(Some("as good as new".into()))?;
    /// let seen = subscription.wait_for(JobState::Finished, Duration::from_secs(60))?.expect("it is");
    /// assert_eq!(seen.data, Some("as good as new".into()));
    /// # Ok::<(), waterline::queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::NotFound`] for an unknown id, [`QueueError::Store`] when the database fails.
    pub fn subscribe(&self, id: impl AsRef<str>) -> Result<Subscription, QueueError> {
        let id = id.as_ref();
        Subscription::new(&self.state, id, || {
            let Some(row) = self.row(id)? else { return Ok(None) };
            let data = if row.has_data { self.bytes(&self.state.keys.data(id))? } else { None };
            Ok(Some((row.state, data)))
        })
    }
}

/// The most jobs that each push and each claim moves for others: those that are due, and those
/// whose time to be kept is over.
const SOME: usize = 8;

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("name", &self.name()).field("counts", &self.counts()).finish_non_exhaustive()
    }
}
