//! Running the jobs of a queue with handlers.

use super::{Group, Queue, QueueError};
use crate::base::config::{ConfigError, available_parallelism};
use crate::base::failure::Failure;
use crate::base::index::BoxError;
use crate::base::sync::Arc;
use crate::effects::Effects;
use crate::queue::job::{JobId, check_kind, from_json};
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

#[cfg(feature = "tokio")]
mod asynchronous;
mod attempts;
#[cfg(feature = "tokio")]
mod awaiting;
mod drain;
mod events;
mod gates;
mod handler;
#[cfg(feature = "metrics")]
mod metrics;
mod outcome;
mod pool;
mod reports;
mod running;
mod source;
mod timeouts;

pub use drain::{Limits, Reached, Summary};
pub use events::{Ended, QueueEvent};
pub use gates::Gate;
pub use handler::Finisher;
pub use outcome::{Outcome, Unknown};
pub use running::Running;

use self::gates::Gates;
use self::handler::{Handler, Hooks};
use self::pool::Pool;
use self::source::Source;

/// Runs the jobs of a queue, with a handler for each kind. Made by [`Runner::builder`]; there is
/// one at most for each queue.
///
/// A runner that is dropped stops, as [`stop`](Self::stop) does, and waits as long. If its jobs are
/// futures and it is dropped within a runtime, it is only asked to stop, since to wait there could
/// hold up those futures.
///
/// ```
/// use std::time::Duration;
/// use waterline::Store;
/// use waterline::queue::{Ended, JobState, NewJob, Outcome, Queue, QueueOptions, Runner};
///
/// let queue = Queue::open(&Store::in_memory(), "mail", QueueOptions::default())?;
/// let runner = Runner::builder(&queue)
///     .on("welcome", |job, address: String| {
///         println!("attempt {} for {address}", job.attempt());
///         Ok(Outcome::Done)
///     })
///     .teardown(|job, ended| if let Ended::Dead { error } = ended { eprintln!("{}: {error}", job.id()) })
///     .max_processing(8)
///     .start()?;
/// let id = queue.push(NewJob::new("welcome", "ann@example.org")?)?.id;
/// queue.subscribe(&id)?.wait_for(JobState::Finished, Duration::from_secs(60))?.expect("it is sent");
/// runner.stop_within(Duration::from_secs(30))?;
/// # Ok::<(), waterline::queue::QueueError>(())
/// ```
pub struct Runner {
    pool: Option<Arc<Pool>>,
}

impl Runner {
    /// Returns the settings of a runner of this queue. It needs a handler at least.
    pub fn builder(queue: &Queue) -> RunnerBuilder {
        Self::of(Source::Queue(queue.clone()))
    }

    pub(super) fn of_group(group: &Group) -> RunnerBuilder {
        Self::of(Source::Group(group.members().clone()))
    }

    fn of(source: Source) -> RunnerBuilder {
        RunnerBuilder {
            source,
            handlers: HashMap::new(),
            hooks: Hooks::default(),
            unknown: Unknown::default(),
            max_processing: None,
            attempt_timeout: None,
            gates: Vec::new(),
            #[cfg(feature = "metrics")]
            gauges: None,
            refused: None,
        }
    }

    /// Hands out no more jobs, waits for those that run, and returns when their ends are written.
    /// It blocks the calling thread, so a runtime with one thread never ends futures meanwhile.
    ///
    /// On a thread of the runner itself, and in a hook or a future of a job, it waits for nothing.
    ///
    /// # Errors
    /// [`QueueError::Config`] with [`ConfigError::OwnThread`] where it did not wait,
    /// [`QueueError::Store`] with [`Error::Thread`](crate::Error::Thread) if a thread of the runner
    /// panicked.
    pub fn stop(mut self) -> Result<(), QueueError> {
        self.pool.take().map_or(Ok(()), |pool| pool.stop(None))
    }

    /// Does the same, and waits for so long at most. Then it gives up the jobs that still run:
    ///
    /// * A future is dropped. Once it is gone, its job is handed back: it is ready, the attempt
    ///   does not count, and its data and progress stay.
    /// * A function keeps its lease for the time of
    ///   [`QueueOptions::lease`](super::QueueOptions::lease), and its answer by then counts. After
    ///   it the job is taken back as failed.
    /// * A [`Finisher`] changes nothing any more, and its job is taken back after the same time.
    ///
    /// If the process ends before that, it is no crash of these jobs: each stop notes in the store
    /// which jobs run. They are ready in the next life, and nothing is counted. Only a death
    /// without a stop is a crash.
    ///
    /// It blocks the calling thread: on a runtime of one thread no future ends meanwhile, so call
    /// `stop_within_async` there.
    ///
    /// # Errors
    /// [`QueueError::StopTimeout`] with the jobs that still run.
    pub fn stop_within(mut self, limit: Duration) -> Result<(), QueueError> {
        self.pool.take().map_or(Ok(()), |pool| pool.stop(Some(limit)))
    }

    /// Sets the most jobs that run at once, at least 1, while the runner runs: see
    /// [`RunnerBuilder::max_processing`]. More jobs start at once. If it is less than before, those
    /// that run go on, and none starts until fewer are left. It never waits, so a handler may call
    /// it too.
    ///
    /// ```
    /// # use waterline::{Store, queue::{Outcome, Queue, QueueError, QueueOptions, Runner}};
    /// # let queue = Queue::open(&Store::in_memory(), "thumbnails", QueueOptions::default())?;
    /// let runner = Runner::builder(&queue).on("png", |_job, _name: String| Ok(Outcome::Done)).max_processing(2).start()?;
    /// runner.set_max_processing(16)?;         // the users sleep
    /// assert!(matches!(runner.set_max_processing(0), Err(QueueError::Config(_))));
    /// # runner.stop()?;
    /// # Ok::<(), QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Config`] with [`ConfigError::MaxProcessingZero`]: a runner that is to claim
    /// nothing is [paused](Queue::pause).
    pub fn set_max_processing(&self, jobs: usize) -> Result<(), QueueError> {
        crate::base::config::check_max_processing(jobs)?;
        self.pool.iter().for_each(|pool| pool.resize(jobs));
        Ok(())
    }

    /// Returns the number of jobs that run.
    #[must_use]
    pub fn processing(&self) -> usize {
        self.pool.as_ref().map_or(0, |pool| pool.in_flight())
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        #[cfg(feature = "tokio")]
        if let Some(pool) = self.pool.take_if(|pool| pool.must_not_wait()) {
            return pool.let_go();
        }
        let Some(pool) = self.pool.take() else { return };
        match pool.stop(None) {
            // On its own thread it stops without a wait.
            Ok(()) | Err(QueueError::Config(ConfigError::OwnThread)) => {}
            Err(error) => {
                let (queue, error) = (pool.source().name(), error.report());
                tracing::error!(target: "waterline", queue, error, "a runner that was dropped did not stop well");
            }
        }
    }
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner").field("processing", &self.processing()).finish_non_exhaustive()
    }
}

/// The settings of a [`Runner`].
///
/// ```
/// use std::time::Duration;
/// use waterline::Store;
/// use waterline::queue::{Ended, NewJob, Outcome, Limits, Queue, QueueEvent, QueueOptions, Runner, Unknown};
///
/// let queue = Queue::open(&Store::in_memory(), "mail", QueueOptions::default())?;
/// queue.push_all([NewJob::new("welcome", "ann")?, NewJob::new("of a newer program", &1)?])?;
/// let summary = Runner::builder(&queue)
///     .on("welcome", |_job, _to: String| Ok(Outcome::Done))
///     .unknown(Unknown::Snooze(Duration::from_secs(60)))      // instead of dead at once
///     .before(|job| if job.attempt() > 3 { Err("too often".into()) } else { Ok(()) })
///     .after(|job, answer| if let Err(error) = answer { eprintln!("{}: {error}", job.id()) })
///     .teardown(|job, ended| if *ended == Ended::Finished { println!("{} is done", job.id()) })
///     .observe(|event| if let QueueEvent::AttemptEnded { elapsed, .. } = event { println!("{elapsed:?}") })
///     .drain(Limits::default())?;
/// assert_eq!((summary.finished, summary.snoozed), (1, 1));
/// # Ok::<(), waterline::queue::QueueError>(())
/// ```
#[must_use]
pub struct RunnerBuilder {
    source: Source,
    handlers: HashMap<String, Handler>,
    hooks: Hooks,
    unknown: Unknown,
    max_processing: Option<usize>,
    attempt_timeout: Option<Duration>,
    gates: Vec<Gate>,
    #[cfg(feature = "metrics")]
    gauges: Option<Arc<metrics::Gauges>>,
    /// The first setting that was refused. [`start`](Self::start) returns it.
    refused: Option<ConfigError>,
}

impl RunnerBuilder {
    /// Runs jobs of this kind with this function, on a thread of the runner. An error, and a panic,
    /// is a failed attempt: the [`Retry`](crate::Retry) of the job decides, unless the error is or
    /// contains a [`Failure`]. A payload that does not fit the type makes the job dead, since no
    /// retry mends it. An attempt that fails while the runner stops does not count, so a handler
    /// that obeys [`Running::is_stopping`] returns an error.
    pub fn on<P, F>(self, kind: impl Into<String>, handler: F) -> Self
    where
        P: DeserializeOwned,
        F: Fn(&Running, P) -> Result<Outcome, BoxError> + Send + Sync + 'static,
    {
        self.add(kind, Handler::Direct(Box::new(move |job, payload| handler(job, decoded(job.id(), payload)?))))
    }

    /// Does the same with writes of the job's, of up to 64 MiB: they are made in one atomic write
    /// with its end if that is [`Outcome::Done`] or [`Outcome::DoneWith`], and otherwise not at
    /// all. The [module](super) has an example.
    pub fn on_transactional<P, F>(self, kind: impl Into<String>, handler: F) -> Self
    where
        P: DeserializeOwned,
        F: Fn(&Running, P, &mut Effects) -> Result<Outcome, BoxError> + Send + Sync + 'static,
    {
        let handler = move |job: &Running, payload: &[u8], effects: &mut Effects| {
            handler(job, decoded(job.id(), payload)?, effects)
        };
        self.add(kind, Handler::Transactional(Box::new(handler)))
    }

    /// Runs jobs of this kind with a function that only begins them: a job ends when its
    /// [`Finisher`] is used, on any thread. It takes one of `max_processing`, and no thread.
    /// [`Finisher`] has an example.
    pub fn on_deferred<P, F>(self, kind: impl Into<String>, handler: F) -> Self
    where
        P: DeserializeOwned,
        F: Fn(Running, P, Finisher) + Send + Sync + 'static,
    {
        let handler = move |job: Running, payload: &[u8], done: Finisher| match decoded(job.id(), payload) {
            Ok(payload) => handler(job, payload, done),
            Err(error) => done.end(Err(error)),
        };
        self.add(kind, Handler::Deferred(Box::new(handler)))
    }

    /// Runs jobs of this kind as futures, on the tokio runtime in whose context
    /// [`start`](Self::start) is called. A job takes one of `max_processing`, and no thread.
    ///
    /// [`Runner::stop`], [`stop_within`](Runner::stop_within) and [`drain`](Self::drain) block
    /// their thread until the futures are done: on a runtime with one thread they would wait for
    /// ever. In async code use [`Runner::stop_async`],
    /// [`stop_within_async`](Runner::stop_within_async) and [`drain_async`](Self::drain_async).
    ///
    /// ```
    /// # use waterline::{Store, queue::{Limits, NewJob, Outcome, Queue, QueueOptions, Runner}};
    /// # let queue = Queue::open(&Store::in_memory(), "pages", QueueOptions::default())?;
    /// # queue.push(NewJob::new("fetch", "/")?)?;
    /// let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    /// let _context = runtime.enter();
    /// Runner::builder(&queue)
    ///     .on_async("fetch", |_job, _page: String| async move {
    ///         tokio::time::sleep(std::time::Duration::from_millis(1)).await;      // a request
    ///         Ok(Outcome::Done)
    ///     })
    ///     .max_processing(1_000)
    ///     .drain(Limits::default())?;
    /// # assert_eq!(queue.counts().finished, 1);
    /// # Ok::<(), waterline::queue::QueueError>(())
    /// ```
    #[cfg(feature = "tokio")]
    pub fn on_async<P, F, Fut>(self, kind: impl Into<String>, handler: F) -> Self
    where
        P: DeserializeOwned,
        F: Fn(Running, P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Outcome, BoxError>> + Send + 'static,
    {
        let handler = move |job: Running, payload: &[u8]| -> Result<handler::Boxed, BoxError> {
            let payload = decoded(job.id(), payload)?;
            Ok(Box::pin(handler(job, payload)))
        };
        self.add(kind, Handler::Async(Box::new(handler)))
    }

    fn add(mut self, kind: impl Into<String>, handler: Handler) -> Self {
        let kind = kind.into();
        if let Err(config) = check_kind(&kind) {
            self.refused.get_or_insert(config);
        }
        if self.handlers.contains_key(&kind) {
            self.refused.get_or_insert(ConfigError::HandlerTwice { kind: kind.clone() });
        }
        self.handlers.insert(kind, handler);
        self
    }

    /// Sets the treatment of jobs whose kind has no handler. Default: [`Unknown::Dead`].
    pub fn unknown(mut self, unknown: Unknown) -> Self {
        self.unknown = unknown;
        self
    }

    /// Sets the most jobs that run at once, at least 1. Default: the available parallelism, as is
    /// right for computation; use more for jobs that wait. No more jobs are claimed than run, so
    /// that a crash counts for no other one.
    pub fn max_processing(mut self, jobs: usize) -> Self {
        self.max_processing = Some(jobs);
        self
    }

    /// Sets a limit to the time of an attempt; 0 is refused. Default: none, since only you know how
    /// long a job may take. An attempt that is deferred or async
    /// fails then, and what it reports later changes nothing. A function cannot be stopped: it sees
    /// [`Running::is_stopping`], and its answer counts.
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.attempt_timeout = Some(timeout);
        self
    }

    /// Calls this before each attempt, on the thread that runs it, in the order of the calls here.
    /// An error or a panic fails the attempt, and the handler does not run.
    pub fn before(mut self, hook: impl Fn(&Running) -> Result<(), BoxError> + Send + Sync + 'static) -> Self {
        self.hooks.before.push(Box::new(hook));
        self
    }

    /// Calls this after each attempt and before its end is written, also after a panic (which is
    /// the error then). A panic in it fails the attempt.
    pub fn after(mut self, hook: impl Fn(&Running, &Result<Outcome, BoxError>) + Send + Sync + 'static) -> Self {
        self.hooks.after.push(Box::new(hook));
        self
    }

    /// Calls this once the end of each attempt is written, in the order of the calls here, on a
    /// thread that runs jobs too: it must not wait for another job. A panic in it is logged.
    pub fn teardown(mut self, hook: impl Fn(&Running, &Ended) + Send + Sync + 'static) -> Self {
        self.hooks.teardown.push(Box::new(hook));
        self
    }

    /// Tells this of each attempt, for metrics and logs. A panic in it is logged.
    pub fn observe(mut self, observer: impl Fn(&QueueEvent<'_>) + Send + Sync + 'static) -> Self {
        self.hooks.observers.push(Box::new(observer));
        self
    }

    /// Starts the runner.
    ///
    /// # Errors
    /// [`QueueError::Config`] for a setting that cannot be, [`QueueError::Store`] with
    /// [`Error::InUse`](crate::Error::InUse) while the queue has another runner, with
    /// [`Error::Runtime`](crate::Error::Runtime) for an async handler outside of a runtime, and
    /// with [`Error::Spawn`](crate::Error::Spawn) if no thread can be started.
    pub fn start(self) -> Result<Runner, QueueError> {
        Ok(Runner { pool: Some(self.start_pool(None)?) })
    }

    /// Runs ready jobs until there are none, or a limit is reached, and returns the numbers. Jobs
    /// that are scheduled for later stay. It blocks its thread. [`Limits`] has an example.
    ///
    /// While the store cannot be written, the drain tries it again after pauses of up to a second,
    /// and the log says so. That ends when the store is well again. With [`Limits::time`] it also
    /// ends when the time is over, once the ends of the jobs that have run are written.
    ///
    /// # Errors
    /// Those of [`start`](Self::start) and of [`Runner::stop`].
    pub fn drain(self, limits: Limits) -> Result<Summary, QueueError> {
        let pool = self.start_pool(Some(limits))?;
        pool.wait(None)?;
        Ok(pool.summary())
    }

    fn start_pool(self, limits: Option<Limits>) -> Result<Arc<Pool>, QueueError> {
        if let Some(config) = self.refused {
            return Err(config.into());
        }
        if self.handlers.is_empty() {
            return Err(ConfigError::NoHandlers.into());
        }
        let max_processing = self.max_processing.unwrap_or_else(available_parallelism);
        crate::base::config::check_max_processing(max_processing)?;
        if self.attempt_timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(ConfigError::AttemptTimeoutZero.into());
        }
        #[cfg(feature = "tokio")]
        let runtime = tokio::runtime::Handle::try_current().ok();
        #[cfg(feature = "tokio")]
        if runtime.is_none() && self.handlers.values().any(|handler| matches!(handler, Handler::Async(_))) {
            return Err(crate::Error::Runtime.into());
        }
        self.source.store().writable()?;
        let names = self.source.take_names(max_processing)?;
        Pool::start(
            pool::Settings {
                source: self.source,
                handlers: self.handlers,
                hooks: self.hooks,
                unknown: self.unknown,
                max_processing,
                attempt_timeout: self.attempt_timeout,
                gates: Gates::new(self.gates),
                #[cfg(feature = "metrics")]
                gauges: self.gauges,
                limits,
                #[cfg(feature = "tokio")]
                runtime,
            },
            names,
        )
    }
}

impl fmt::Debug for RunnerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut kinds: Vec<_> = self.handlers.keys().collect();
        kinds.sort();
        f.debug_struct("RunnerBuilder")
            .field("queues", &self.source.queues())
            .field("kinds", &kinds)
            .finish_non_exhaustive()
    }
}

/// Returns the payload as its type. No retry mends a payload that does not fit.
fn decoded<P: DeserializeOwned>(id: &str, payload: &[u8]) -> Result<P, BoxError> {
    let misfit = |source| Failure::permanent(QueueError::Payload { id: JobId::from(id), source });
    Ok(from_json(payload).map_err(misfit)?)
}

impl Group {
    /// Returns the settings of a runner of all queues that the group claims from: one pool of
    /// threads, with one `max_processing`. It needs a handler at least. A queue has one runner at
    /// most, also in two groups.
    pub fn runner(&self) -> RunnerBuilder {
        Runner::of_group(self)
    }
}
