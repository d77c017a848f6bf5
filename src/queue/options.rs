//! The settings of a queue.

use crate::base::config::{ConfigError, DEFAULT_CRASHES};
use crate::base::retry::Retry;
use crate::queue::clock::Clock;
use crate::queue::job::Retention;
use std::time::Duration;

/// The default lease. It is far above the pauses of a healthy worker, and short enough that a job
/// of a worker which hangs is taken over within a minute.
const LEASE: Duration = Duration::from_secs(60);

/// The default retention: long enough to look at a job that has just finished.
const RETENTION: Duration = Duration::from_secs(60);

/// The default time for which dead jobs are kept: somebody looks within a week.
const DEAD_FOR: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The settings of a queue, for [`Queue::open`](crate::queue::Queue::open).
///
/// They hold for as long as the queue is open, and are not stored. Each setting may differ after
/// the next start: it then holds for all jobs, those of before too.
///
/// ```
/// use std::time::Duration;
/// use waterline::{Retry, Store};
/// use waterline::queue::{Queue, QueueOptions, Retention};
///
/// let options = QueueOptions::default()
///     .lease(Duration::from_secs(300))
///     .retry(Retry::exponential(Duration::from_secs(2), Duration::from_secs(600)).max_attempts(5))
///     .retention(Retention::Drop);
/// let queue = Queue::open(&Store::in_memory(), "thumbnails", options)?;
/// # let _ = queue;
/// # Ok::<(), waterline::queue::QueueError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct QueueOptions {
    pub(super) lease: Duration,
    pub(super) retry: Retry,
    /// `None`: no limit.
    pub(super) max_crashes: Option<u32>,
    pub(super) retention: Retention,
    pub(super) dead_for: Duration,
    pub(super) clock: Clock,
}

impl Default for QueueOptions {
    fn default() -> Self {
        let retry = Retry::exponential(Duration::from_secs(1), Duration::from_secs(3600)).max_attempts(10).jitter(0.2);
        Self {
            lease: LEASE,
            retry,
            max_crashes: Some(DEFAULT_CRASHES),
            retention: Retention::For(RETENTION),
            dead_for: DEAD_FOR,
            clock: Clock::default(),
        }
    }
}

impl QueueOptions {
    /// Sets the silence after which a running job is taken back from its [`Lease`], and counts as
    /// failed. A lease is renewed by each of its calls. Default: 60 s, which is far above the
    /// pauses of a healthy worker; a job of a worker that hangs is taken over within a minute. 0 is
    /// refused. The jobs of a [`Runner`](crate::queue::Runner) renew themselves for as long as they
    /// run.
    ///
    /// [`Lease`]: crate::queue::Lease
    pub fn lease(mut self, silence: Duration) -> Self {
        self.lease = silence;
        self
    }

    /// Sets the number of attempts and the back-off of jobs that have none of their own. Default:
    /// exponential from 1 s to 1 h, 10 attempts, a jitter of 0.2: the last attempt is some eight
    /// minutes after the first. So a service that is started anew kills no job, and a job that
    /// never succeeds is seen while somebody remembers its cause.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Sets the number of crashes of the process, while a job ran, after which that job is dead. 0
    /// is refused. Default: 5, so a machine that is restarted by force a few times in a row kills
    /// no job that is sound. After the first crash the job is ready at once, later after a back-off
    /// from 1 s to 5 min with full jitter.
    pub fn max_crashes(mut self, crashes: u32) -> Self {
        self.max_crashes = Some(crashes);
        self
    }

    /// Runs a job again however often its process died while it ran.
    pub fn unlimited_crashes(mut self) -> Self {
        self.max_crashes = None;
        self
    }

    /// Sets for how long the rows of finished jobs are kept, to be looked at with
    /// [`Queue::get`](crate::queue::Queue::get). Default: 60 s, which is enough for whoever waits
    /// for a job. [`Retention::Drop`] is the cheapest.
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// Sets for how long dead jobs are kept. Default: 7 days, so somebody looks in time. After that
    /// they are gone from every list and count. With a time of zero a job that dies is gone at
    /// once.
    pub fn dead_for(mut self, time: Duration) -> Self {
        self.dead_for = time;
        self
    }

    /// Sets the clock, for tests. Default: that of the system.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.lease.is_zero() {
            return Err(ConfigError::LeaseZero);
        }
        if self.max_crashes == Some(0) {
            return Err(ConfigError::MaxCrashesZero);
        }
        self.retry.validate()
    }
}
