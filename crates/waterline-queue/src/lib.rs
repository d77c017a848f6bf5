//! A durable job queue in the store: delays, retries, limits, workflows and a visible dead letter.
//!
//! A stream is pulled, and its order matters: see [`Consumer`](waterline::Consumer). A queue is for
//! jobs that are independent of each other: each runs at its own time, is retried after a failure,
//! never runs twice at once, and its end can be looked up.
//!
//! ```
//! use waterline::Store;
//! use waterline_queue::{DrainLimits, NewJob, Outcome, Queue, QueueOptions, Runner};
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
//!     .drain(DrainLimits::default())?;
//! assert_eq!(summary.finished, 1);
//! # Ok::<(), waterline_queue::QueueError>(())
//! ```
//!
//! ## Where to look
//!
//! * [`Queue`] pushes jobs ([`NewJob`]), and shows and steers them. [`QueueOptions`] has the
//!   settings and their defaults.
//! * [`TypedJob`] is a kind as a type: its name is written once, with the settings of each push.
//!
//!   ```
//!   # use waterline::{Retry, Store};
//!   # use waterline_queue::{DrainLimits, NewJob, Outcome, Queue, QueueOptions, Runner, TypedJob};
//!   # let queue = Queue::open(&Store::in_memory(), "mail", QueueOptions::default())?;
//!   #[derive(serde::Serialize, serde::Deserialize)]
//!   struct Welcome { address: String }
//!
//!   impl TypedJob for Welcome {
//!       const KIND: &'static str = "welcome";
//!
//!       fn settings(&self, job: NewJob) -> NewJob {
//!           job.retry(Retry::none())
//!       }
//!   }
//!
//!   queue.push_job(&Welcome { address: "ann@example.org".into() })?;
//!   let runner = Runner::builder(&queue).job(|_job, _welcome: Welcome| Ok(Outcome::Done));
//!   # assert_eq!(runner.drain(DrainLimits::default())?.finished, 1);
//!   # Ok::<(), waterline_queue::QueueError>(())
//!   ```
//! * [`Queue::push_with`] pushes in an atomic write: so a stream or a job pushes exactly once.
//! * [`Runner`] runs jobs with handlers: functions, deferred ones, futures. [`Outcome`] is the
//!   result of a handler, [`Failure`](waterline::Failure) an error with a verdict, [`Running`] the
//!   job.
//! * [`NewJob::after`] and [`Queue::push_batch`] run a job when others have ended,
//!   [`NewJob::unique`] refuses duplicates, and [`NewJob::expires`] gives up a late job.
//! * [`Queue::periodic`] makes jobs by a schedule: see [below](#periodic-jobs).
//! * [`Limit`] bounds how many jobs run at once and how fast they start: per queue, per kind or per
//!   key. A [`RunnerGate`] stops a runner while something else is short, such as disk space.
//! * [`Queue::accept`] hands a job to a loop of yours, as a [`Lease`].
//! * [`Group`] uses several queues as one: a push goes to the queue of its kind, and one runner or
//!   one loop takes from all of them, by shares or by rank ([`Fair`]).
//! * [`Queue::status`] says in one sentence what the queue waits for, [`Queue::counts`] how many
//!   jobs are in each [`JobState`], and [`Queue::list`] and [`Queue::page`] which ones.
//!   [`Queue::subscribe`] tells you when a job changes, [`Queue::watch`] when any job does, and
//!   [`Queue::workers`] which processes run them. Jobs that die, are skipped or are held are logged
//!   by `tracing` with queue, id and attempt.
//! * The answers ([`JobInfo`], [`Page`], [`QueueStatus`], [`QueueChange`], [`Seen`] …) are
//!   [`serde::Serialize`], for a service of yours. Times are in milliseconds since 1970.
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
//! | attempts are bounded | failures by [`Retry`](waterline::Retry), deaths of the process by [`max_crashes`](QueueOptions::max_crashes); from the second death on a job runs alone |
//! | a failure is visible | a job that fails for good is [`JobState::Dead`], with its error |
//! | damage spreads to nothing | a job that cannot be read is set aside as [`JobState::Damaged`], and the others go on |
//!
//! Answers are up to date even if no worker runs: a call that reads ([`Queue::get`],
//! [`Queue::status`] …) or waits ([`Queue::subscribe`], [`Queue::watch`]) first promotes due jobs,
//! takes back the jobs of silent workers, and drops expired rows: up to 1,024 at once.
//!
//! Since a job may run again, make its effects idempotent. Or make them in one write with its end:
//! [`RunnerBuilder::on_transactional`] (for a future `on_transactional_async`), [`Lease::with`].
//! Then only effects elsewhere may repeat.
//!
//! ```
//! # use waterline::Store;
//! # use waterline_queue::{DrainLimits, NewJob, Outcome, Queue, QueueOptions, Runner};
//! # let store = Store::in_memory();
//! # let queue = Queue::open(&store, "orders", QueueOptions::default())?;
//! # queue.push(NewJob::new("order", &3)?)?;
//! let (next, stock) = (queue.clone(), store.table("stock")?);
//! Runner::builder(&queue)
//!     .on_transactional("order", move |_job, pieces: i64, effects| {
//!         effects.add(&stock, "pieces", -pieces)?;
//!         next.push_with(effects, NewJob::new("parcel", &pieces)?)?;
//!         Ok(Outcome::Done)       // with both writes, or without either
//!     })
//!     .on("parcel", |_job, _pieces: i64| Ok(Outcome::Done))
//!     .drain(DrainLimits::default())?;
//! # assert_eq!((queue.counts().finished, store.table("stock")?.counter("pieces")?), (2, -3));
//! # Ok::<(), waterline_queue::QueueError>(())
//! ```
//!
//! ## Periodic jobs
//!
//! [`Queue::periodic`] makes a job at each tick of a schedule: [`Every`], a fixed interval, or,
//! with the feature `cron`, `Cron`, a cron expression in any time zone.
//!
//! * A new name with an [`Every`] has its first tick at once, and one with a `Cron` at the next
//!   time of the expression. [`start_at_next`](PeriodicBuilder::start_at_next) and
//!   [`start_at_once`](PeriodicBuilder::start_at_once) change that. The last tick is stored, so a
//!   restart brings no second first tick.
//! * At most one run is unfinished: [`Overlap::Skip`] skips and counts a tick that comes too soon.
//!   A run ends when its job has finished or died. One whose process died runs again as any other
//!   job does, and holds up the ticks only until it ends.
//! * Ticks that were missed while the process was down make one job for all of them
//!   ([`CatchUp::One`]), none, or one each.
//! * Ticks follow the wall clock. If it is set forward, the ticks in between were missed. If it is
//!   set back, so that the last tick lies ahead, an interval goes on from now. So does a `Cron` if
//!   that tick is a day ahead or another tick lies between. Otherwise the tick counts as done.
//! * The job of a tick is an ordinary one. `pushed_at` is the time of its tick, in each attempt.
//!
//! A queue belongs to one process, as its store does. Its jobs are as durable as the store: with
//! [`Durability::Buffered`](waterline::Durability) a power loss may take the last moments.
//!
//! Times are kept in milliseconds. A job never runs before its time. The wall clock decides when a
//! job is due, and a monotonic clock when a lease is over. If the wall clock was ahead and is set
//! back, the times written meanwhile are moved back with it: delays, back-offs, pauses, the windows
//! of unique jobs, and how long rows are kept. A job that was due in a minute is still due in a
//! minute. A time that you named ([`NewJob::run_at`]) stays. The log and the
//! [status](QueueStatus::set_back) report it.

// Tests of the library may read clocks.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
#![warn(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, unreachable_pub)]

mod accept;
mod activity;
mod admin;
mod advice;
#[cfg(feature = "tokio")]
mod awaiting;
mod batch;
mod bound;
mod embedded;
mod engine;
#[doc(hidden)]
pub mod engine_api;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzzing;
mod group;
mod handle;
mod in_hand;
mod lazy;
mod lease;
mod listing;
mod meta;
mod notes;
mod notify;
mod periodic;
mod push_with;
#[cfg(feature = "remote")]
#[doc(hidden)]
pub mod remote;
mod rules;
mod runner;
mod serialized;
mod status;
mod subscription;
#[cfg(feature = "testing")]
pub mod testing;
mod types;
mod watch;

pub use self::accept::Accept;
pub use self::activity::Activity;
pub use self::admin::QueueAdmin;
pub use self::group::Group;
pub use self::group::builder::GroupBuilder;
pub use self::group::status::GroupStatus;
pub use self::handle::Queue;
pub use self::lazy::Lazy;
pub use self::lease::Lease;
pub use self::lease::writes::LeaseWrites;
pub use self::notes::{Note, Notes};
pub use self::notify::watchers::QueueChange;
pub use self::periodic::PeriodicBuilder;
pub use self::rules::fair::Fair;
pub use self::runner::builder::RunnerBuilder;
pub use self::runner::drain::{DrainLimits, Reached, Summary};
pub use self::runner::gates::RunnerGate;
pub use self::runner::handle::{Runner, RunnerHandle};
pub use self::runner::handler::Finisher;
pub use self::runner::outcome::{Outcome, QueueEvent, Unknown};
pub use self::runner::running::Running;
pub use self::status::{QueueStatus, SetBack, StuckSlots, UntakenKind, Waits};
pub use self::subscription::{Seen, Subscription};
pub use self::types::capabilities::Capabilities;
pub use self::types::config::ConfigError;
pub use self::types::data::JobData;
pub use self::types::durations::Durations;
pub use self::types::ended::AttemptEnd;
pub use self::types::error::QueueError;
pub use self::types::hook::Proposed;
pub use self::types::info::{JobInfo, PeriodicInfo};
pub use self::types::job::{Counts, JobId, JobState, Priority, PushOutcome, Pushed, Retention};
pub use self::types::limit::{Limit, LimitOf, Rate};
pub use self::types::new_job::NewJob;
pub use self::types::options::QueueOptions;
pub use self::types::page::Page;
pub use self::types::progress::JobProgress;
pub use self::types::related::{OnDead, Root, Skipped};
pub use self::types::run_times::RunTimes;
#[cfg(feature = "cron")]
pub use self::types::schedule::cron::Cron;
pub use self::types::schedule::every::Every;
pub use self::types::schedule::{CatchUp, Overlap, Schedule};
pub use self::types::typed::TypedJob;
pub use self::types::unique::{Clash, Unique};
pub use self::types::used::{LimitUse, Related};
pub use self::types::worker::{WorkerInfo, WorkerJob};
pub use self::watch::Watch;
pub use waterline::Clock;

#[doc = include_str!("../docs/queue.md")]
pub mod design {}

#[doc = include_str!("../docs/which_queue.md")]
pub mod which_queue {}

#[doc = include_str!("../docs/parity.md")]
pub mod parity {}

/// Compiles the programs of README.md with the tests.
#[cfg(all(doctest, feature = "tokio"))]
#[doc = include_str!("../README.md")]
struct Readme;
