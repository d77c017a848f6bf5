//! The settings of a queue.

use crate::types::config::ConfigError;
use crate::types::hook::{BeforePush, Proposed};
use crate::types::job::Retention;
use crate::types::limit;
use crate::types::limit::Limit;
use crate::types::typed::{TypedJob, limit_of};
use std::time::Duration;
use waterline::seam::{check_max_crashes, check_supported, check_zero};
use waterline::{BoxError, Clock, Retry, seam};

/// The longest sleep of a thread that waits for a due time. The wall clock may be set meanwhile.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// The default lease: far above the pauses of a healthy worker, but short for one that hangs.
const LEASE: Duration = Duration::from_secs(60);

/// The default retention: long enough to look at a job that has just finished.
const RETENTION: Duration = Duration::from_secs(60);

/// How long dead jobs are kept by default: an operator looks within a week.
const DEAD_FOR: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// How long an id of the caller's is remembered by default: jobs that wait for it come within four
/// weeks.
const IDS_FOR: Duration = Duration::from_secs(28 * 24 * 60 * 60);

/// The settings of a queue, for [`Queue::open`](crate::Queue::open).
///
/// They hold for as long as the queue is open, and are not stored. Each setting may differ after
/// the next start: it then holds for all jobs, including earlier ones. (A queue that many processes
/// share keeps them in its database: those of the last process that opened it hold for all.)
///
/// ```
/// use std::time::Duration;
/// use waterline::{Retry, Store};
/// use waterline_queue::{Queue, QueueOptions, Retention};
///
/// let options = QueueOptions::default()
///     .lease(Duration::from_secs(300))
///     .retry(Retry::exponential(Duration::from_secs(2), Duration::from_secs(600)).max_attempts(5))
///     .retention(Retention::Drop);
/// let queue = Queue::open(&Store::in_memory(), "thumbnails", options)?;
/// # let _ = queue;
/// # Ok::<(), waterline_queue::QueueError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct QueueOptions {
    pub(crate) lease: Duration,
    pub(crate) retry: Retry,
    /// `None`: no limit.
    pub(crate) max_crashes: Option<u32>,
    pub(crate) retention: Retention,
    /// `None`: never.
    pub(crate) heal_after: Option<Duration>,
    pub(crate) dead_for: Duration,
    pub(crate) ids_for: Duration,
    /// `None`: no limit.
    pub(crate) max_waiting: Option<u64>,
    /// In bytes.
    pub(crate) max_payload: usize,
    pub(crate) before_push: BeforePush,
    pub(crate) limits: Vec<Limit>,
    pub(crate) clock: Clock,
    /// True for a queue that is only changed by hand: it does only what is asked for.
    pub(crate) admin: bool,
    /// The first setting that was refused.
    refused: Option<ConfigError>,
}

/// The default of `max_payload`, and its maximum: the database and its drivers have several copies
/// of a value in memory, and none of more than a gigabyte.
const DEFAULT_PAYLOAD: usize = 16 << 20;
const MAX_PAYLOAD: usize = 256 << 20;

/// Makes the error for a payload, or data, that is too large for its queue.
pub(crate) fn payload_error(what: &'static str, length: usize, most: usize) -> ConfigError {
    let why = format!(
        "the {what} of the job has {length} bytes, and its queue takes {most} at most: keep it in a file or a table, and its name here, or raise max_payload"
    );
    ConfigError::Length { what, length, most, why }
}

impl Default for QueueOptions {
    fn default() -> Self {
        let retry = Retry::exponential(Duration::from_secs(1), Duration::from_secs(3600)).max_attempts(10).jitter(0.2);
        Self {
            lease: LEASE,
            retry,
            max_crashes: Some(5),
            retention: Retention::For(RETENTION),
            heal_after: None,
            dead_for: DEAD_FOR,
            ids_for: IDS_FOR,
            max_waiting: None,
            max_payload: DEFAULT_PAYLOAD,
            before_push: BeforePush::default(),
            limits: Vec::new(),
            clock: Clock::default(),
            admin: false,
            refused: None,
        }
    }
}

impl QueueOptions {
    /// Sets the silence after which a running job is taken back, and counts as failed.
    ///
    /// Each call on a [`Lease`] renews it, and a [`Runner`](crate::Runner) renews those of its jobs
    /// for as long as they run. Default: 60 s, which is far above the pauses of a healthy worker; a
    /// job of a hanging worker is taken over within a minute. 0 is refused.
    ///
    /// [`Lease`]: crate::Lease
    pub fn lease(mut self, silence: Duration) -> Self {
        self.lease = silence;
        self
    }

    /// Sets the number of attempts and the back-off of jobs that have none of their own.
    ///
    /// Default: exponential from 1 s to 1 h, 10 attempts, a jitter of 0.2: the last attempt is some
    /// eight minutes after the first. So a restarting service kills no job, and a job that never
    /// succeeds is noticed while its cause is still fresh.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Forgets the earlier failures of a job once a run of it has lasted this long.
    ///
    /// If that run fails, it is the first failure, with the shortest back-off. Default: never,
    /// since most jobs are meant to end. It is for jobs that run on and on, such as a replication:
    /// after a day of work one failure says nothing about those of last week. 0 is refused: no job
    /// would ever die.
    ///
    /// Crashes count as before. With an [`attempt_timeout`](crate::RunnerBuilder::attempt_timeout)
    /// this time must be longer, or a job that always hangs is retried forever. The silence at the
    /// end of a lost lease does not count.
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline::{Retry, Store};
    /// use waterline_queue::{Queue, QueueOptions};
    ///
    /// let retry = Retry::exponential(Duration::from_secs(64), Duration::from_secs(2 * 24 * 3600)).jitter(0.25);
    /// let options = QueueOptions::default().retry(retry).heal_after(Duration::from_secs(120));
    /// let queue = Queue::open(&Store::in_memory(), "replications", options)?;
    /// # let _ = queue;
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    pub fn heal_after(mut self, run: Duration) -> Self {
        self.heal_after = Some(run);
        self
    }

    /// Sets after how many crashes of the process while a job ran that job is dead.
    ///
    /// 0 is refused. Default: 5, so a few forced restarts of a machine in a row kill no sound job.
    /// After the first crash the job is ready at once, later after a back-off from 1 s to 5 min
    /// with full jitter. A process that ends while its runner is stopping has not crashed.
    ///
    /// A crash counts for each job that ran, since it is unknown which one caused it. So after its
    /// second crash, and after each further one, a job runs alone: it starts when no other job of
    /// the queue runs, and none starts until its attempt has ended. One that kills its process is
    /// alone from then on, and costs no other job an attempt. One that does not is cleared by that
    /// attempt, and runs beside others again. Jobs of other queues still run beside it, and so do
    /// those of other processes that share the queue (PostgreSQL). [`JobInfo::runs_alone`] and
    /// [`Waits::Alone`](crate::Waits::Alone) show it.
    ///
    /// [`JobInfo::runs_alone`]: crate::JobInfo::runs_alone
    pub fn max_crashes(mut self, crashes: u32) -> Self {
        self.max_crashes = Some(crashes);
        self
    }

    /// Runs a job again however often its process died while it ran.
    pub fn unlimited_crashes(mut self) -> Self {
        self.max_crashes = None;
        self
    }

    /// Sets how long the rows of finished jobs are kept, for [`Queue::get`](crate::Queue::get).
    /// Default: 60 s, enough for a caller that waits. [`Retention::Drop`] is the cheapest.
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// Sets how long dead jobs are kept. Default: 7 days, so that an operator looks in time. After
    /// that they are gone from every list and count. With zero a job that dies is gone at once.
    pub fn dead_for(mut self, time: Duration) -> Self {
        self.dead_for = time;
        self
    }

    /// Sets how long an id of yours is remembered when its job is gone.
    ///
    /// So [`NewJob::after`](crate::NewJob::after) can tell a job that has ended from one that never
    /// existed. Default: 28 days, since a waiting job is mostly pushed soon after the other one. It
    /// costs a record of the length of the id per removed job. Zero remembers none: `after` then
    /// refuses an id of yours whose job is gone. Ids made by the queue cost nothing, and are known
    /// forever.
    pub fn ids_for(mut self, time: Duration) -> Self {
        self.ids_for = time;
        self
    }

    /// Sets how many jobs may wait at once: for their time, for a worker, or for other jobs.
    ///
    /// A push of one more fails with [`QueueError::Full`](crate::QueueError::Full), and
    /// [`Queue::push_within`](crate::Queue::push_within) waits until there is room. Default: no
    /// limit, since the store has room for many more jobs than memory. 0 is refused.
    ///
    /// A push that adds no job (a duplicate, a move, one more run of a running job) is never
    /// refused, nor is the next attempt of a failed job, or a requeued dead one. So a few more may
    /// wait. [`Queue::push_with`](crate::Queue::push_with) says what a full queue means for a
    /// stream.
    pub fn max_waiting(mut self, jobs: u64) -> Self {
        self.max_waiting = Some(jobs);
        self
    }

    /// Sets the maximum size of a payload, as JSON, and of the data that a job leaves, in bytes.
    ///
    /// A push of a larger one fails with [`ConfigError::Length`], and so does larger data: an
    /// attempt that ends with it has failed. Default: 16 MB, since each payload is in the memory of
    /// its pusher, of the database and of its worker, sometimes more than once. Keep larger values
    /// in a file or a table, and push the name. 0 is refused, and more than 256 MB.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{ConfigError, NewJob, Queue, QueueError, QueueOptions};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default().max_payload(1_000))?;
    /// let large = queue.push(NewJob::new("k", &"x".repeat(1_000))?).unwrap_err();
    /// assert!(matches!(large, QueueError::Config(ConfigError::Length { length: 1_002, most: 1_000, .. })));
    /// # Ok::<(), QueueError>(())
    /// ```
    pub fn max_payload(mut self, bytes: usize) -> Self {
        self.max_payload = bytes;
        self
    }

    /// Sets a hook that sees each job before its push, and may refuse it, for example to sample.
    ///
    /// It runs on the pushing thread, before anything is written. Its error or panic is the error
    /// of the push ([`QueueError::Refused`](crate::QueueError::Refused)), and nothing of the job is
    /// stored: a refused unique job keeps out no other one. One refusal refuses all jobs of a
    /// [`Queue::push_all`](crate::Queue::push_all). Attempts and further runs of an existing job
    /// are no pushes. Default: no hook.
    ///
    /// Options with a hook equal only their clones. So open the queue once, or clone the options.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{NewJob, Queue, QueueError, QueueOptions};
    ///
    /// let options = QueueOptions::default().before_push(|job| match job.kind {
    ///     "spam" => Err("nobody wants it".into()),
    ///     _ => Ok(()),
    /// });
    /// let queue = Queue::open(&Store::in_memory(), "mail", options)?;
    /// queue.push(NewJob::new("welcome", "ann")?)?;
    /// let error = queue.push(NewJob::new("spam", "ann")?).unwrap_err();
    /// assert!(matches!(error, QueueError::Refused { .. }));
    /// # Ok::<(), QueueError>(())
    /// ```
    pub fn before_push(mut self, hook: impl Fn(&Proposed<'_>) -> Result<(), BoxError> + Send + Sync + 'static) -> Self {
        self.before_push = BeforePush::new(hook);
        self
    }

    /// Adds a limit. Two for the same jobs are refused. Default: none. Limits belong to the queue,
    /// so they hold for each [`Runner`](crate::Runner) and for [`accept`](crate::Queue::accept).
    /// After a restart, held jobs run by the new limits of the queue.
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limits.push(limit);
        self
    }

    /// Adds the [limit](TypedJob::limit) of a kind that is a type, if it has one. A runner of such
    /// a kind does not start without its limit. A queue may have jobs of other kinds too.
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline::Store;
    /// use waterline_queue::{Limit, LimitOf, Queue, QueueOptions, Rate, TypedJob};
    ///
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Fetch(String);
    ///
    /// impl TypedJob for Fetch {
    ///     const KIND: &'static str = "fetch";
    ///
    ///     fn limit(limit: Limit) -> Limit {
    ///         limit.rate(Rate::new(10, Duration::from_secs(1)))
    ///     }
    /// }
    ///
    /// let queue = Queue::open(&Store::in_memory(), "pages", QueueOptions::default().job::<Fetch>())?;
    /// queue.push_job(&Fetch("/".into()))?;
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    pub fn job<J: TypedJob>(mut self) -> Self {
        match limit_of::<J>() {
            Ok(limit) => self.limits.extend(limit),
            Err(config) => drop(self.refused.get_or_insert(config)),
        }
        self
    }

    /// Sets the clock, for tests. Default: the system's. A queue decides by time within its calls:
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use waterline::{Clock, Store};
    /// use waterline_queue::{Accept, NewJob, Queue, QueueOptions};
    ///
    /// let clock = Clock::manual(SystemTime::now());
    /// let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default().clock(clock.clone()))?;
    /// queue.push(NewJob::new("remind", "ann")?.delay(Duration::from_secs(3600)))?;
    /// assert!(queue.accept(Accept::new())?.is_none());
    /// clock.advance(Duration::from_secs(3600));
    /// assert!(queue.accept(Accept::new())?.expect("it is due").pushed_at() < clock.wall_time());
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Returns the options of a queue that is only changed by hand: see `Queue::admin`.
    pub(crate) fn admin() -> Self {
        // The bound of the queue is not known.
        Self { admin: true, max_payload: MAX_PAYLOAD, ..Self::default() }
    }

    /// Refuses a payload, or the data that a job leaves, that is too large for this queue.
    pub(crate) fn check_payload(&self, what: &'static str, length: usize) -> Result<(), ConfigError> {
        if length <= self.max_payload { Ok(()) } else { Err(payload_error(what, length, self.max_payload)) }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        self.refused.clone().map_or(Ok(()), Err)?;
        let why = "the lease is 0, so each job would be taken back at once: use some seconds at least";
        check_zero("lease", self.lease.is_zero(), why)?;
        check_max_crashes(self.max_crashes)?;
        let why = "heal_after is 0, so no job would ever use up its attempts: use a time, or leave it out";
        check_zero("heal_after", self.heal_after == Some(Duration::ZERO), why)?;
        let why =
            "max_waiting is 0, so each push would be refused: use 1 or more (to hold the jobs back, pause the queue)";
        check_zero("max_waiting", self.max_waiting == Some(0), why)?;
        let why = "max_payload is 0 bytes, so each push would be refused: use some kB at least";
        check_zero("max_payload", self.max_payload == 0, why)?;
        let why = "max_payload is more than 256 MB: keep what is so large in a file or a table, and push its name";
        check_supported("max_payload", self.max_payload <= MAX_PAYLOAD, why)?;
        limit::check(&self.limits)?;
        Ok(seam::check_retry(&self.retry)?)
    }
}
