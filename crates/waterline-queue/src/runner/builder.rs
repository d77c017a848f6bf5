//! The settings of a runner.

use crate::group::Group;
use crate::group::members::Members;
use crate::handle::Queue;
#[cfg(feature = "tokio")]
use crate::runner::awaiting::Leaving;
use crate::runner::drain::{DrainLimits, Summary};
use crate::runner::gates::{Gates, RunnerGate};
use crate::runner::handle::Runner;
use crate::runner::handler::{Finisher, Handler, answered, decoded};
use crate::runner::hooks::Hooks;
#[cfg(feature = "metrics")]
use crate::runner::metrics::{Attempts, Gauges};
use crate::runner::outcome::{Outcome, QueueEvent, Unknown};
use crate::runner::pool::{Pool, Settings};
use crate::runner::running::Running;
use crate::runner::source::Source;
use crate::runner::timeouts::Times;
use crate::types::config::ConfigError;
use crate::types::ended::AttemptEnd;
use crate::types::error::QueueError;
use crate::types::job::check_kind;
use crate::types::limit::Limit;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
#[cfg(doc)]
use waterline::Failure;
use waterline::seam::{Changes, check_max_processing, new_effects};
#[cfg(feature = "metrics")]
use waterline::seam::{describe, guarded};
use waterline::{BoxError, Effects};

impl Runner {
    /// Returns the settings of a runner of this queue. It needs at least one handler.
    pub fn builder(queue: &Queue) -> RunnerBuilder {
        Self::of(Source::new(Arc::new(Members::of_one(queue.clone()))), None)
    }

    fn of(source: Source, group: Option<Group>) -> RunnerBuilder {
        RunnerBuilder {
            source,
            group,
            handlers: HashMap::new(),
            hooks: Hooks::default(),
            unknown: Unknown::default(),
            max_processing: None,
            times: Times::default(),
            wanted: Vec::new(),
            gates: Vec::new(),
            #[cfg(feature = "metrics")]
            gauges: None,
            refused: None,
        }
    }
}

/// The settings of a [`Runner`].
///
/// ```
/// use std::time::Duration;
/// use waterline::Store;
/// use waterline_queue::{AttemptEnd, DrainLimits, NewJob, Outcome, Queue, QueueEvent, QueueOptions, Runner, Unknown};
///
/// let queue = Queue::open(&Store::in_memory(), "mail", QueueOptions::default())?;
/// queue.push_all([NewJob::new("welcome", "ann")?, NewJob::new("of a newer program", &1)?])?;
/// let summary = Runner::builder(&queue)
///     .on("welcome", |_job, _to: String| Ok(Outcome::Done))
///     .unknown(Unknown::Snooze(Duration::from_secs(60)))      // instead of left where they are
///     .before(|job| if job.attempt() > 3 { Err("too often".into()) } else { Ok(()) })
///     .after_each(|job, answer| if let Err(error) = answer { eprintln!("{}: {error}", job.id()) })
///     .teardown(|job, ended| if *ended == AttemptEnd::Finished { println!("{} is done", job.id()) })
///     .observe(|event| if let QueueEvent::AttemptEnded { elapsed, .. } = event { println!("{elapsed:?}") })
///     .drain(DrainLimits::default())?;
/// assert_eq!((summary.finished, summary.snoozed), (1, 1));
/// # Ok::<(), waterline_queue::QueueError>(())
/// ```
#[must_use]
pub struct RunnerBuilder {
    pub(super) source: Source,
    /// The group whose queues it runs, if it is not a single queue.
    pub(super) group: Option<Group>,
    pub(super) handlers: HashMap<String, Handler>,
    hooks: Hooks,
    unknown: Unknown,
    max_processing: Option<usize>,
    pub(super) times: Times,
    /// The limits of types, which their queue must have too, and the names of the types.
    pub(super) wanted: Vec<(Limit, &'static str)>,
    gates: Vec<RunnerGate>,
    #[cfg(feature = "metrics")]
    gauges: Option<Arc<Gauges>>,
    /// The first refused setting, which [`start`](Self::start) returns.
    refused: Option<ConfigError>,
}

impl RunnerBuilder {
    /// Runs jobs of this kind with this function, on a thread of the runner.
    ///
    /// An error or a panic is a failed attempt: the [`Retry`](waterline::Retry) of the job decides,
    /// unless the error is or contains a [`Failure`]. A payload that does not fit the type
    /// makes the job dead, since no retry can help. An attempt that fails while the runner is
    /// stopping does not count, so a handler that obeys [`Running::is_stopping`] returns an error.
    /// With [`job`](Self::job) the kind comes from the type.
    pub fn on<P, F>(self, kind: impl Into<String>, handler: F) -> Self
    where
        P: DeserializeOwned,
        F: Fn(&Running, P) -> Result<Outcome, BoxError> + Send + Sync + 'static,
    {
        let handler =
            move |job: &Running, payload: &[u8]| Ok((handler(job, decoded(job.id(), payload)?)?, Changes::default()));
        self.add(kind, Handler::Direct(Box::new(handler)))
    }

    /// Runs jobs of this kind with a function that may also write, up to 64 MiB: the writes are
    /// made in one atomic write with the end of the job if that is [`Outcome::Done`] or
    /// [`Outcome::DoneWith`], and otherwise not at all. The [module](crate) has an example.
    pub fn on_transactional<P, F>(self, kind: impl Into<String>, handler: F) -> Self
    where
        P: DeserializeOwned,
        F: Fn(&Running, P, &mut Effects) -> Result<Outcome, BoxError> + Send + Sync + 'static,
    {
        let handler = move |job: &Running, payload: &[u8]| {
            let (payload, mut effects) = (decoded(job.id(), payload)?, new_effects(job.home()));
            let outcome = handler(job, payload, &mut effects)?;
            answered(outcome, effects)
        };
        self.add(kind, Handler::Direct(Box::new(handler)))
    }

    /// Runs jobs of this kind with a function that only starts them: a job ends when its
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

    pub(super) fn add(mut self, kind: impl Into<String>, handler: Handler) -> Self {
        let kind = kind.into();
        self.refuse(check_kind(&kind));
        if self.handlers.insert(kind.clone(), handler).is_some() {
            self.refuse(Err(Handler::refused(Some(kind))));
        }
        self
    }

    /// Keeps the first refused setting, for the start.
    pub(super) fn refuse(&mut self, checked: Result<(), ConfigError>) {
        self.refused = self.refused.take().or(checked.err());
    }

    /// Sets what happens to jobs whose kind has no handler. Default: [`Unknown::Leave`].
    pub fn unknown(mut self, unknown: Unknown) -> Self {
        self.unknown = unknown;
        self
    }

    /// Sets how many jobs run at once, at least 1. No more are claimed. Jobs that take less time
    /// than a write of the store share one thread and their writes, up to this number. A job with
    /// an earlier crash is claimed alone. Default: the available parallelism, since functions
    /// usually compute. If all handlers are async or deferred, their jobs take no thread and mostly
    /// wait for a network: 64 then, which at 50 ms each is 1,280 jobs a second.
    pub fn max_processing(mut self, jobs: usize) -> Self {
        self.max_processing = Some(jobs);
        self
    }

    /// Sets how long an attempt may take; 0 is refused. Default: without limit, since only you know
    /// how long a job may take. After it a deferred or async attempt fails, and what it reports
    /// later changes nothing. A function cannot be stopped: it sees [`Running::is_stopping`], and
    /// its result counts. A kind may have its own limit:
    /// [`attempt_timeout_of`](Self::attempt_timeout_of).
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.times.all = Some(timeout);
        self
    }

    /// Calls this before each attempt, on its thread, in the order in which hooks were added. An
    /// error or a panic fails the attempt, and the handler does not run.
    pub fn before(mut self, hook: impl Fn(&Running) -> Result<(), BoxError> + Send + Sync + 'static) -> Self {
        self.hooks.before.push(Box::new(hook));
        self
    }

    /// Calls this after each attempt and before its end is written, also after a panic (which is
    /// the error then). A panic in it fails the attempt. `Ok` is the result of the handler, and not
    /// yet final: a write that belongs to the end may be refused, or the lease may be over.
    /// [`teardown`](Self::teardown) gets what was written.
    pub fn after_each(mut self, hook: impl Fn(&Running, &Result<Outcome, BoxError>) + Send + Sync + 'static) -> Self {
        self.hooks.after.push(Box::new(hook));
        self
    }

    /// Calls this once the end of each attempt is written, in the order in which hooks were added,
    /// on a thread that runs jobs too: it must not wait for another job. Jobs that were claimed in
    /// the same write start after it, so a slow hook delays them. A panic in it is logged.
    pub fn teardown(mut self, hook: impl Fn(&Running, &AttemptEnd) + Send + Sync + 'static) -> Self {
        self.hooks.teardown.push(Box::new(hook));
        self
    }

    /// Calls this with each [`QueueEvent`], for metrics and logs. It should be quick, as
    /// [`teardown`](Self::teardown) should. A panic in it is logged.
    pub fn observe(mut self, observer: impl Fn(&QueueEvent<'_>) + Send + Sync + 'static) -> Self {
        self.hooks.observers.push(Box::new(observer));
        self
    }

    /// Starts the runner.
    ///
    /// # Errors
    /// [`QueueError::Config`] for an invalid setting, [`QueueError::Store`] with
    /// [`Error::InUse`](waterline::Error::InUse) while the queue has another runner, with
    /// [`Error::Runtime`](waterline::Error::Runtime) for an async handler outside of a runtime,
    /// with [`Error::ReadOnly`](waterline::Error::ReadOnly) for a queue of a read-only store, and
    /// with [`Error::Spawn`](waterline::Error::Spawn) if no thread can be started.
    pub fn start(self) -> Result<Runner, QueueError> {
        Ok(Runner { pool: Some(self.start_pool(None)?) })
    }

    /// Runs ready jobs until there are none, or a limit is reached, and returns the numbers. Jobs
    /// that are scheduled for later stay. It blocks its thread. [`DrainLimits`] has an example.
    ///
    /// While the store cannot be written, the drain retries after pauses of up to a second, and
    /// logs it, until the store works again. With [`DrainLimits::time`] it also ends when the time
    /// is over, once the ends of the jobs that have run are written.
    ///
    /// # Errors
    /// The same as [`start`](Self::start) and [`Runner::stop`].
    pub fn drain(self, limits: DrainLimits) -> Result<Summary, QueueError> {
        let pool = self.start_pool(Some(limits))?;
        pool.wait(None)?;
        Ok(pool.summary())
    }

    fn start_pool(mut self, limits: Option<DrainLimits>) -> Result<Arc<Pool>, QueueError> {
        if let Some(config) = self.refused {
            return Err(config.into());
        }
        if self.handlers.is_empty() {
            return Err(Handler::refused(None).into());
        }
        let max_processing = self.max_processing.unwrap_or_else(|| Handler::slots(self.handlers.values()));
        check_max_processing(max_processing)?;
        self.times.check()?;
        self.check_kinds()?;
        #[cfg(feature = "tokio")]
        let runtime = tokio::runtime::Handle::try_current().ok();
        #[cfg(feature = "tokio")]
        if runtime.is_none() && self.handlers.values().any(|handler| matches!(handler, Handler::Async(_))) {
            return Err(waterline::Error::Runtime.into());
        }
        self.source.first().writable()?;
        let names = self.source.take_names(max_processing)?;
        self.source.note_handlers(self.handlers.keys(), self.unknown);
        if self.unknown == Unknown::Leave {
            self.source.take_only(self.handlers.keys());
        }
        Pool::start(
            Settings {
                source: self.source,
                handlers: self.handlers,
                hooks: self.hooks,
                unknown: self.unknown,
                max_processing,
                times: self.times,
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

    /// Adds a gate: no job is claimed unless all gates are open. [`RunnerGate`] has an example.
    pub fn gate(mut self, gate: RunnerGate) -> Self {
        self.refuse(gate.check());
        self.gates.push(gate);
        self
    }

    /// Reports metrics to the current recorder of the crate [`metrics`](https://docs.rs/metrics):
    /// the global one, or that of
    /// [`with_local_recorder`](https://docs.rs/metrics/0.24/metrics/fn.with_local_recorder.html).
    /// Without a recorder they cost next to nothing. Default: none.
    ///
    /// | metric | type | value |
    /// |---|---|---|
    /// | `waterline_queue_up` | gauge | 1 while the runner runs, 0 once it has ended |
    /// | `waterline_queue_in_flight` | gauge | the jobs that the runner runs |
    /// | `waterline_queue_jobs` | gauge | the jobs in each [state](crate::JobState), by the label `state`: `scheduled`, `ready`, `running`, `finished`, `dead`, `waiting`, `damaged` |
    /// | `waterline_queue_verdict` | gauge | 0 if it goes well, 1 if it waits, 2 if it [needs you](waterline::Verdict), by the label `on`: `movement` (why no job starts), `unknown_kinds`, `dead`, `damaged` |
    /// | `waterline_queue_oldest_ready_seconds` | gauge | the age of the oldest ready job, or 0 |
    /// | `waterline_queue_workers` | gauge | the [workers](crate::Queue::workers) of all processes, by the label `state`: `taking` jobs, `stopping`, `silent` (without a sign of life, but still with jobs) |
    /// | `waterline_queue_slots` | gauge | the slots of the workers of all processes that take jobs, or 0 if one of them has no bound |
    /// | `waterline_queue_slots_busy` | gauge | those slots that are taken |
    /// | `waterline_queue_attempts_total` | counter | the attempts that ended, by the label `ended`: `finished`, `retried`, `snoozed`, `dead`, `lost`, `put back` (see [`AttemptEnd`]) |
    /// | `waterline_queue_attempt_seconds` | histogram | the time from the claim to the written end |
    ///
    /// The label `queue` is the name of the queue. Two stores with the same names need two
    /// recorders.
    ///
    /// A thread sets the gauges once a second, or, where many workers share one database, at least
    /// once a minute. When the runner ends, `waterline_queue_up` becomes 0 and the other gauges
    /// stay, so alert on it too. A recorder that panics is logged, and gets no gauges from then on.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{DrainLimits, NewJob, Outcome, Queue, QueueOptions, Runner};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "mail", QueueOptions::default())?;
    /// queue.push(NewJob::new("welcome", "ann")?)?;
    /// let runner = Runner::builder(&queue).on("welcome", |_job, _to: String| Ok(Outcome::Done)).metrics();
    /// runner.drain(DrainLimits::default())?;
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    #[cfg(feature = "metrics")]
    pub fn metrics(mut self) -> Self {
        if self.gauges.is_some() {
            return self;
        }
        let queues = self.source.queues().into_iter();
        let names: Vec<_> = queues.map(|queue| queue.name().to_owned()).collect();
        let made = guarded(|| {
            let attempts = names.iter().map(|name| (name.clone(), Attempts::new(name)));
            Ok((attempts.collect::<HashMap<_, _>>(), Gauges::new(&names)))
        });
        match made {
            Ok((attempts, gauges)) => {
                self.gauges = Some(Arc::new(gauges));
                self.observe(move |event| Attempts::observe(&attempts, event))
            }
            Err(panic) => {
                let (queue, error) = (self.source.name(), describe(&*panic));
                tracing::error!(target: "waterline", queue, error, "the recorder of metrics panicked; the runner runs without metrics");
                self
            }
        }
    }

    /// Drains as [`drain`](Self::drain) does, and returns the numbers of each queue of a
    /// [`Group`](crate::Group) with its name. The limits are for all of them together.
    ///
    /// # Errors
    /// The same as [`drain`](Self::drain).
    pub fn drain_by_queue(self, limits: DrainLimits) -> Result<Vec<(String, Summary)>, QueueError> {
        let pool = self.start_pool(Some(limits))?;
        pool.wait(None)?;
        Ok(pool.summaries())
    }

    /// Drains the queue without blocking a thread: the future of [`drain`](Self::drain). It starts
    /// when it is first polled. If it is dropped before it is ready, the runner is asked to stop,
    /// but not awaited.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{DrainLimits, NewJob, Outcome, Queue, QueueError, QueueOptions, Runner};
    ///
    /// # let queue = Queue::open(&Store::in_memory(), "pages", QueueOptions::default())?;
    /// queue.push(NewJob::new("fetch", "/")?)?;
    /// let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    /// let builder = Runner::builder(&queue).on_async("fetch", |_job, _page: String| async { Ok(Outcome::Done) });
    /// let summary = runtime.block_on(builder.drain_async(DrainLimits::default()))?;
    /// assert_eq!(summary.finished, 1);
    /// # Ok::<(), QueueError>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`drain`](Self::drain).
    #[cfg(feature = "tokio")]
    pub async fn drain_async(self, limits: DrainLimits) -> Result<Summary, QueueError> {
        let pool = self.start_pool(Some(limits))?;
        Leaving(Some(pool.clone())).end(None).await?;
        Ok(pool.summary())
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

impl Group {
    /// Returns the settings of a runner of all queues that the group claims from: one pool of
    /// threads, with one `max_processing`. It needs at least one handler. A queue has at most one
    /// runner, even if it is in two groups.
    pub fn runner(&self) -> RunnerBuilder {
        Runner::of(Source::new(self.members().clone()), Some(self.clone()))
    }
}
