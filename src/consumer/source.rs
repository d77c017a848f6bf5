//! Settings for a source that fails or does not answer.

use super::builder::Builder;
use crate::base::config::{check_supported, check_zero};
use crate::base::{Error, guard::guarded, retry::Retry};
use crate::progress::Progress;
use crate::source::Jobs;
use std::time::Duration;

/// How the source is read.
pub(super) struct Reading {
    /// The most reads under way.
    pub(super) calls: usize,
    pub(super) retry: Retry,
}

impl<J: Jobs, P: Progress> Builder<J, P> {
    /// Sets the back-off after failed calls into the source.
    ///
    /// Default: 50 ms, then twice as long each time, up to 5 s, with a [jitter](Retry::jitter) of
    /// 0.2. The first failure after a success is retried at once, so a source that fails now and
    /// then costs one more call for each failure. A read that brings a job resets the count. Calls
    /// for the head, reads of new jobs, and reads of one failed job are counted separately, and
    /// jobs that were read before run meanwhile. [`Status::source`](crate::Status::source) counts
    /// the failed calls, and says when the source is called again.
    ///
    /// A source is retried until it answers, so [`Retry::max_attempts`] (and [`Retry::none`]) is
    /// refused. So is a pause of zero, with which the consumer would call all the time.
    ///
    /// A job that the source should have, and does not (it returns `None` at or below its head), is
    /// no failure. It is requested again after 20 ms, then after twice as long each time, up to a
    /// second, and whenever the source rings.
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline::{Consumer, MemoryJobs, MemoryProgress, Retry};
    ///
    /// let jobs: MemoryJobs<_> = (0..3).collect();
    /// Consumer::builder(jobs, MemoryProgress::new())
    ///     .source_retry(Retry::exponential(Duration::from_millis(200), Duration::from_secs(60)).jitter(0.5))
    ///     .stop_at(2)
    ///     .start(|_| Ok(()))?
    ///     .join()?;
    /// # Ok::<(), waterline::Error>(())
    /// ```
    pub fn source_retry(mut self, retry: Retry) -> Self {
        self.source_retry = retry;
        self
    }

    /// Limits the time of each call into the source. A longer call counts as failed.
    ///
    /// Default: 30 s for `AsyncJobs`, and no limit for any other source. [`Duration::MAX`] is no
    /// limit; zero is refused.
    ///
    /// * **A source of futures** (`AsyncJobs`, also within [`gated_by`](Jobs::gated_by),
    ///   [`confirmed`](Jobs::confirmed), [`hold_back`](crate::JobLog::hold_back) or an `Arc`): the
    ///   future is dropped. Jobs that a `read` appended before are valid. A call reads a whole run,
    ///   so the limit must be longer than the slowest run. The time is the machine's, whatever
    ///   [`clock`](Self::clock) is set. A source that several consumers share has one limit: the
    ///   last one set.
    /// * **A source of functions**: nothing can end a function from outside, so the start is
    ///   refused with a [`ConfigError`](crate::ConfigError). Set the timeout in the client that the
    ///   source calls, for the connection and for each answer: `timeout` of an HTTP client
    ///   (`reqwest`, `ureq`), the deadline of a gRPC request, `statement_timeout` and
    ///   `tcp_user_timeout` of PostgreSQL (`PgJobs` ends its calls within its `ttl`), and
    ///   `set_read_timeout` of a socket. A source whose client takes a timeout may implement
    ///   [`Jobs::call_timeout`], which this setting then calls.
    ///
    /// [`Status::blocked`](crate::Status::blocked) names a call that has not returned for a second,
    /// and says when it is given up.
    pub fn source_timeout(mut self, after: Duration) -> Self {
        self.source_timeout = Some(after);
        self
    }

    /// Sets how many reads of the source may be under way at once. Default: 1.
    ///
    /// For a source behind a network, whose answers take long: with 30 ms for an answer one read
    /// after the other brings 33 jobs a second, and 64 at once bring 2,100. The answers may come in
    /// any order, and go on in index order. A read that fails, or that does not bring its job, is
    /// made again by itself, and the others go on; once several in a row have failed, the
    /// [back-off](Self::source_retry) is that of the source as a whole. No index is read twice at
    /// once.
    ///
    /// * **A source of futures** (`AsyncJobs`, also within [`gated_by`](Jobs::gated_by),
    ///   [`confirmed`](Jobs::confirmed), [`hold_back`](crate::JobLog::hold_back) or an `Arc`): the
    ///   reads are tasks of its runtime, which has to be driven. Each has a
    ///   [timeout](Self::source_timeout) of its own, and is dropped when the consumer ends.
    /// * **A source of functions**: workers without a job make the calls, and one of them stays
    ///   free for a job; while all are busy, the reader calls. So fewer are under way than
    ///   [`max_processing`](Self::max_processing), and the end waits for them. An adapter of your
    ///   own around `AsyncJobs` is such a source, too.
    ///
    /// A source that implements [`Jobs::read`] or [`Jobs::read_sparse`] is asked for several runs
    /// at once, which become as long as it answers as a whole. No more jobs are read ahead than
    /// max(64, 2 × `max_processing`), as ever, or twice this many if that is more, and no more
    /// bytes than [`max_read_ahead`](Self::max_read_ahead), but for the answers under way.
    ///
    /// Zero is refused.
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, MemoryProgress};
    ///
    /// let jobs: MemoryJobs<_> = (0..100).collect();
    /// Consumer::builder(jobs, MemoryProgress::new())
    ///     .max_processing(8)
    ///     .max_reading(4)
    ///     .stop_at(99)
    ///     .start(|_| Ok(()))?
    ///     .join()?;
    /// # Ok::<(), waterline::Error>(())
    /// ```
    pub fn max_reading(mut self, calls: usize) -> Self {
        self.max_reading = calls;
        self
    }

    /// Returns the read-ahead that the reads need. While as many as may be are under way, as many
    /// answers may wait for a slower one before them.
    pub(super) fn read_ahead(&self) -> u64 {
        if self.max_reading > 1 { (self.max_reading as u64).saturating_mul(2) } else { 0 }
    }

    pub(super) fn reading(&self) -> Reading {
        Reading { calls: self.max_reading, retry: self.source_retry }
    }

    /// Checks the settings against what the source supports.
    pub(super) fn check_source(&self) -> Result<(), Error> {
        let why = "max_reading is 0, so the source could never be read: use 1 for one read after the other";
        check_zero("max_reading", self.max_reading == 0, why)?;
        let retry = self.source_retry;
        retry.validate()?;
        let why = "source_retry has a limit of attempts, but a source is asked until it answers: leave `max_attempts` out, and \
                   use `Retry::fixed` or `Retry::exponential` in place of `Retry::none`";
        check_supported("source_retry", retry.is_endless(), why)?;
        let why = "source_retry has a pause of zero, so a source that is down would be asked all the time: use some milliseconds \
                   at least";
        check_zero("source_retry", retry.is_without_pause(), why)?;
        let why = "source_timeout is zero, so no call could end in time: leave it out for the default, or use `Duration::MAX` for \
                   no limit";
        check_zero("source_timeout", self.source_timeout == Some(Duration::ZERO), why)?;
        let keeps_to_it = self.call_timeout()?.is_some();
        let why = "source_timeout cannot end a call of this source, which is a function on a thread: set a timeout in the client \
                   that it calls, make it `AsyncJobs`, or let it implement `Jobs::call_timeout` (an adapter hands that on)";
        check_supported(
            "source_timeout",
            keeps_to_it || self.source_timeout.is_none_or(|after| after == Duration::MAX),
            why,
        )?;
        Ok(())
    }

    /// Passes the timeout to the source, and returns the one that applies.
    pub(super) fn call_timeout(&self) -> Result<Option<Duration>, Error> {
        let answer = guarded(|| Ok(self.jobs.call_timeout(self.source_timeout)));
        answer.map_err(|source| Error::Source { index: self.start_at.flatten().unwrap_or(0), source })
    }
}
