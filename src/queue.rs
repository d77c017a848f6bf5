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
//! * [`NewJob::after`] and [`Queue::push_batch`] run a job when others have ended,
//!   [`NewJob::unique`] refuses twins, and [`NewJob::expires`] gives a job up.
//! * [`Queue::periodic`] makes jobs by a schedule: see [below](#periodic-jobs).
//! * [`Limit`] bounds the jobs that run at once and the rate at which they begin: of the queue, of
//!   a kind or of each key. A [`Gate`] stops a runner while something else is short, such as the
//!   disk.
//! * [`Queue::accept`] hands a job to a loop of yours, as a [`Lease`].
//! * [`Group`] uses several queues as one: a push goes to the queue of its kind, and one runner or
//!   one loop takes from all of them, by shares or by rank ([`Fair`]).
//! * [`Queue::status`] says in one sentence what the queue waits for, [`Queue::counts`] how many
//!   jobs are in each [`JobState`], and [`Queue::list`] which ones.
//!   [`Queue::subscribe`] tells you when a job changes, and [`Queue::watch`] when any job does.
//!   Jobs that die, are skipped or are held have lines of `tracing` with queue, id and attempt.
//! * [`NewJob::meta`] and [`Queue::notes`] keep values beside a job and for all jobs of a kind, and
//!   [`Running::progress`] shows how far a job is.
//!
//! The page [`design`] compares a queue with a stream, and explains how it works. The page
//! [`parity`] compares it with the queues that it learned from, feature by feature.
//!
//! ## Promises
//!
//! | promise | holds |
//! |---|---|
//! | a job that was pushed is not lost | after any crash it is in exactly one state |
//! | at least once | a job runs again if its process died before its end was written |
//! | no worker overwrites another one | each call carries the token of its lease; a late one is [`QueueError::Halt`] |
//! | attempts are bounded | failures by [`Retry`](crate::Retry), deaths of the process by [`max_crashes`](QueueOptions::max_crashes); from the second death on a job runs alone |
//! | a failure is visible | a job that fails for good is [`JobState::Dead`], with its error |
//! | damage spreads to nothing | a job that cannot be read is set aside as [`JobState::Damaged`], and the others go on |
//!
//! An answer is true also if no worker runs: a call that looks ([`Queue::get`], [`Queue::list`],
//! [`Queue::status`] …) or waits ([`Queue::subscribe`], [`Queue::watch`]) first does what time has
//! brought. It makes due jobs ready, takes back those of silent workers, and drops rows whose time
//! is over: up to 1,024 at once.
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
//! ## Periodic jobs
//!
//! [`Queue::periodic`] makes a job at each tick of a schedule: [`Every`], a fixed interval, or,
//! with the feature `cron`, `Cron`, a cron expression in any time zone.
//!
//! * A new name with an [`Every`] has its first tick at once, and one with a `Cron` at the next
//!   time of the expression. [`start_at_next`](PeriodicBuilder::start_at_next) and
//!   [`start_at_once`](PeriodicBuilder::start_at_once) say otherwise. The last tick is stored, so a
//!   restart brings no second first tick.
//! * There is one run that has not ended, at most: [`Overlap::Skip`] passes a tick that comes too
//!   soon, and counts it. A run ends when its job has finished or died. One whose process died runs
//!   again as any other job, and holds up the ticks until it ends, and no longer.
//! * Ticks that were missed while the process was down make one job for all of them
//!   ([`CatchUp::One`]), or none, or one each.
//! * Ticks go by the clock on the wall. If it is set back, no tick comes twice: there is none until
//!   the last one has come again. If it is set forward, the ticks in between were missed.
//! * The job of a tick is an ordinary one. `pushed_at` is the time of its tick, in each attempt.
//!
//! A queue belongs to one process, as its store does. Its jobs are as durable as the store: with
//! [`Durability::Buffered`](crate::Durability) the loss of power may take the last moments.
//!
//! Times are kept in milliseconds. A job never runs before its time. The clock on the wall decides
//! when a job is due, and a monotonic one when a lease is over.

mod accept;
mod batch;
mod bell;
mod bound;
mod durations;
mod enqueue;
mod entry;
mod error;
mod extras;
mod fingerprint;
mod group;
mod head;
mod hook;
mod intent;
mod job;
mod keys;
mod lazy;
mod lease;
mod limit;
mod lines;
mod listing;
mod marks;
mod meta;
mod new_job;
mod notes;
mod options;
mod pausing;
mod periodic;
mod prepare;
mod progress;
mod related;
mod row;
mod rules;
mod runner;
mod state;
mod status;
mod step;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod stored;
mod subscription;
mod unique;
mod watch;

pub use crate::base::clock::Clock;
pub use crate::base::config::LimitError;
pub use accept::Accept;
pub use durations::Durations;
pub use error::QueueError;
pub use group::{Fair, Group, GroupBuilder, GroupError, GroupStatus};
pub use hook::Proposed;
pub use job::{Counts, JobId, JobInfo, JobState, Priority, PushOutcome, Pushed, Retention};
pub use lazy::Lazy;
pub use lease::Lease;
pub use limit::{Limit, LimitOf, Rate};
pub use new_job::NewJob;
pub use notes::{Note, Notes};
pub use options::QueueOptions;
#[cfg(feature = "cron")]
pub use periodic::Cron;
pub use periodic::{CatchUp, Every, Overlap, PeriodicBuilder, PeriodicInfo, Schedule};
pub use progress::JobProgress;
pub use related::{OnDead, Root, Skipped};
pub use runner::{
    Ended, Finisher, Gate, Limits, Outcome, QueueEvent, Reached, Runner, RunnerBuilder, Running, Summary, Unknown,
};
pub use status::{QueueStatus, Waits};
pub use subscription::{Seen, Subscription};
pub use unique::{Clash, Unique};
pub use watch::{QueueChange, Watch};

use self::durations::Averages;
use self::head::{decode_number, encode_number};
use self::intent::call;
use self::keys::Keys;
use self::state::QueueState;
use self::step::{Claimed, Push};
use crate::base::clock;
use crate::base::config::{ConfigError, check_name};
use crate::base::error::Error;
use crate::base::sync::{Arc, Mutex};
use crate::kv::batch::Records;
use crate::kv::{Family, QUEUE, READY};
use crate::store::Store;
use std::fmt;
use std::sync::Weak;

#[doc = include_str!("../docs/queue.md")]
pub mod design {}

#[doc = include_str!("../docs/parity.md")]
pub mod parity {}

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
    /// time at once, later alone and after a back-off, and not once its crashes are used up
    /// ([`QueueOptions::max_crashes`](crate::queue::QueueOptions::max_crashes)). If its runner
    /// was asked to stop before, it runs again at once, and that is no crash.
    ///
    /// A damaged record of one job does not keep the queue from being opened. Only the two records
    /// of the queue itself do: the one with its number, and the one with its counters.
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
        let stored = state::loading::load(store.kv(), name, number, &families)?;
        let wall = options.clock.moment().wall;
        let (averages, old) = Averages::load(store.kv(), name, Keys(number), &families[0], wall)?;
        let state =
            QueueState::new(name, number, families, options, (stored.head, stored.from, stored.damaged), averages);
        let state = Arc::new(state);
        let waits: Weak<dyn clock::Waits> = Arc::downgrade(&(state.clone() as Arc<dyn clock::Waits>));
        state.options.clock.tell(waits);
        let running = stored.running;
        let crashed = call(store, &state, "open a queue", move |step| {
            for key in &old {
                step.batch.delete(step.queue.rows.id, &[key])?;
            }
            step.recover(&running)
        })?;
        if crashed > 0 {
            tracing::warn!(target: "waterline", queue = name, jobs = crashed, "the process died while jobs ran; each counts a crash");
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
    /// A [`unique`](NewJob::unique) job that has a twin is treated as [`Clash`] says, whatever the
    /// ids. Otherwise, if a job of the same id is there already, it depends on the state of that
    /// job:
    ///
    /// | state | effect | [`PushOutcome`] |
    /// |---|---|---|
    /// | waiting, due at the same time | nothing is changed | `Duplicate` |
    /// | waiting, due at another time | it is moved, and gets the new payload; its failures stay | `Rescheduled` |
    /// | running | it runs once more, when this run has succeeded; its payload and its settings stay | `Resubmit` |
    /// | finished or dead | it runs again, with the new payload | `Added` |
    /// | damaged: its row cannot be read | it is removed, and this one takes its place | `Added` |
    ///
    /// A run that fails is followed by the next attempt. If that begins before the time of the
    /// push, the job runs once more after it, too. A job that waits for others goes on to wait for
    /// them if the push names none.
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
    /// cannot be); [`QueueError::NotFound`], [`QueueError::Cycle`] and [`QueueError::AlreadyRuns`]
    /// for a job that cannot run [`after`](NewJob::after) those that it names;
    /// [`QueueError::Full`] if too many jobs wait; [`QueueError::Refused`] by the hook of the
    /// queue; [`QueueError::Store`] when the database fails. Nothing is pushed then. (After a
    /// failure of the database the job may be there in the next life of the process.)
    pub fn push(&self, job: NewJob) -> Result<Pushed, QueueError> {
        self.ask_before_push(&job)?;
        let push = self.prepare(job)?;
        Ok(self.push_prepared(vec![push])?.remove(0))
    }

    /// Pushes jobs in one atomic write: all of them or none. Nothing in, nothing out.
    ///
    /// # Errors
    /// Those of [`push`](Self::push).
    pub fn push_all(&self, jobs: impl IntoIterator<Item = NewJob>) -> Result<Vec<Pushed>, QueueError> {
        let jobs: Vec<_> = jobs.into_iter().collect();
        jobs.iter().try_for_each(|job| self.ask_before_push(job))?;
        self.push_asked(jobs)
    }

    /// Returns a buffer for pushes that nobody waits for.
    pub fn lazy(&self) -> Lazy {
        Lazy::new(self.clone())
    }

    /// Checks a job, and gives it an id if it has none.
    fn prepare(&self, job: NewJob) -> Result<Push, ConfigError> {
        self.state.prepare(job, self.state.moment().wall)
    }

    /// Removes a job in any state. If a worker has it, its next call tells it so
    /// ([`QueueError::Halt`]), and it writes nothing more. A job whose row is damaged
    /// ([`JobState::Damaged`]) can be removed too: all jobs are then counted anew, which takes a
    /// while if they are many.
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
}

/// The most jobs that each push and each claim moves for others: those that are due, and those
/// whose time to be kept is over.
const SOME: usize = 8;

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("name", &self.name()).field("counts", &self.counts()).finish_non_exhaustive()
    }
}
