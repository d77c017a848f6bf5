//! The public consumer: its builder, its handles, and its end.

use crate::base::{Error, error::describe, structure::shows, sync::Arc};
use crate::driver::{Driver, end_condition::OutOfReach};
#[cfg(feature = "tokio")]
use crate::run::asynchronous::is_in_runtime;
use std::time::Duration;

mod acquire;
#[cfg(feature = "tokio")]
mod asynchronous;
#[cfg(feature = "tokio")]
mod awaiting;
mod batched;
mod builder;
mod handle;
mod inspect;
mod keys;
mod launch;
mod listeners;
mod ordered;
mod owns;
mod recover;
mod source;
mod standby;
mod transactional;
mod writing;

pub use builder::Builder;
pub(crate) use builder::lowest_end;
pub use handle::Handle;

/// Reads a source's jobs in index order, runs them in parallel, and saves progress (the watermark).
///
/// These are its promises. The tests have their numbers:
///
/// 1. Nothing is skipped: every index up to and including the watermark was reported done, in this
///    process life or an earlier one. (If you let the consumer
///    [park](crate::OnExhausted::Park) jobs that fail for good, a job may also have a record that
///    says so.)
/// 2. At most `max_processing` jobs are in flight, and none above watermark + `max_search_ahead`.
///    This is the backpressure: a store that cannot save stops the consumer after that many jobs.
/// 3. Within one life, first hand-overs are in ascending order (with an [order by
///    key](Builder::ordered_by), within each key), and an index is handed to a worker again only
///    after it failed.
/// 4. Nothing stalls in silence: no wake-up is lost, source and store errors are retried with
///    back-off, and [`Status::blocked`](crate::Status::blocked) names the one thing that the
///    watermark waits for.
/// 5. A job that fails is never counted as done. The consumer retries it [as you
///    say](Builder::retry), by default not at all. Then it halts, or parks the job with a record of
///    it.
/// 6. Stopping finishes the jobs in flight and saves the watermark. After [`stop`](Self::stop) has
///    returned, no callback runs, and no thread of the consumer lives.
/// 7. Progress never goes back, and two consumers never write one progress: a second consumer with
///    the same name is refused, or [waits](Builder::standby) until the name is free. If a name can
///    be taken over, a stale token changes nothing: the storage refuses each save of the life
///    before, and its consumer halts with [`Error::Fenced`].
/// 8. A bad stored value is a typed error, never "all done" and never "start again".
/// 9. Exactly once: with [`start_transactional`](Builder::start_transactional), and in a database
///    of yours with [`start_writing`](Builder::start_writing), a job's effects, its completion and
///    the watermark are one atomic write. After any crash each job has its effects once.
/// 10. A job that was saved as done never runs again, even if it is above the watermark, or if
///     there is no watermark yet. (This needs a [`StoreProgress`](crate::StoreProgress), or a
///     progress that [keeps done ahead](crate::Progress::keeps_done_ahead). A
///     [`MemoryProgress`](crate::MemoryProgress) keeps only the watermark.)
///
/// # At least once: the jobs that run again
///
/// After a clean stop no finished job runs again, however far it is above the watermark. After a
/// crash the jobs in flight run again, and the jobs that finished since the last save. Their number
/// is at most [`Status::unsaved`](crate::Status::unsaved), however wide the window is. So the
/// effects of a job must be the same when they are repeated, or be written with
/// [`start_transactional`](Builder::start_transactional).
///
/// While jobs go on, a save begins a millisecond after the one before. With a buffered
/// [`StoreProgress`](crate::StoreProgress) it is at most 5 ms late in 99 of 100 cases, even if busy
/// threads use all cores (measured with 8 threads on two cores, jobs of 10 µs, and nothing else on
/// the machine). With a synced store, and with a progress of your own, the thread that saves must
/// then wait for a core, which can take tens of milliseconds.
///
/// If the progress keeps only the watermark, a new life begins right after it. All jobs that
/// finished above it run again: at most `max_search_ahead` jobs.
///
/// # One consumer for one progress
///
/// A consumer does not share its stream with others (a *consumer group*): one process runs all its
/// jobs. For more throughput raise [`max_processing`](Builder::max_processing), or split the stream
/// into several sources with a progress each. No setting limits the jobs per second (a *rate
/// limit*); a [gate](crate::Jobs::gate) that moves with time does.
///
/// Dropping a consumer stops it, waits, and logs (with `tracing`) the error that `stop` would
/// return.
///
/// ```
/// use waterline::{Consumer, MemoryJobs, MemoryProgress};
///
/// let jobs: MemoryJobs<_> = ["a", "b", "c"].into_iter().collect();
/// let consumer = Consumer::builder(jobs, MemoryProgress::new())
///     .max_processing(2)
///     .stop_at(2)
///     .start(|job| { println!("{} {}", job.index, job.payload); Ok(()) })?;
/// let handle = consumer.handle();
/// consumer.join()?;
/// assert_eq!(handle.last_processed_index(), Some(2));
/// # Ok::<(), waterline::Error>(())
/// ```
#[doc(alias("at least once", "consumer group"))]
#[must_use = "dropping a consumer stops it"]
pub struct Consumer {
    control: Arc<Driver>,
    /// True once `stop` or `join` takes care of the end.
    left: bool,
    /// True if the jobs are tasks of a runtime, which cannot end while its thread waits for them.
    #[cfg(feature = "tokio")]
    on_runtime: bool,
}

impl Consumer {
    fn new(control: Arc<Driver>) -> Self {
        Self {
            control,
            left: false,
            #[cfg(feature = "tokio")]
            on_runtime: false,
        }
    }

    /// Returns a handle, with which any thread can watch and steer the consumer.
    ///
    /// Clone it as you like: it keeps nothing alive.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle { control: self.control.clone() }
    }

    /// Stops the consumer: no new job starts, jobs in flight finish, and what finished is saved.
    ///
    /// Retries are not awaited. It also waits for every [`Done`](crate::Done) token whose attempt
    /// is not over, so a thread that holds one must not call it.
    ///
    /// # Errors
    /// The first failure: the one that halted the consumer, [`Error::Progress`] if the last save
    /// failed twice, or [`Error::Fenced`] if another consumer has taken over the name. On one of
    /// the consumer's own threads it is [`Error::Config`]: there `stop` only requests the stop.
    #[doc(alias("drain", "graceful shutdown"))]
    pub fn stop(self) -> Result<(), Error> {
        self.control.request_stop();
        self.wait_end(None)
    }

    /// Stops the consumer within a time limit.
    ///
    /// The jobs in flight have until `limit`. Then the last save has one more second. After it,
    /// `on_processed`, which hears of that save, and the consumer's own threads have at least a
    /// second to end. So without a job in flight the stop is complete whatever the limit is: even
    /// with `Duration::ZERO` it is `Ok`, unless something hangs.
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline::{Consumer, MemoryJobs, MemoryProgress};
    ///
    /// let jobs: MemoryJobs<_> = (0..3).collect();
    /// let consumer = Consumer::builder(jobs, MemoryProgress::new()).start(|_| Ok(()))?;
    /// assert!(consumer.handle().wait_for(2, Duration::from_secs(20)));
    /// consumer.stop_within(Duration::ZERO)?;          // nothing runs
    /// # Ok::<(), waterline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::StopTimeout`] if jobs were still running after `limit`. The watermark is saved up
    /// to the first of them, and `on_processed` has heard of it, unless the save or the callback
    /// takes more than a second. The results of these jobs are ignored, no callback runs for them,
    /// and the progress name stays in use until the last of them has returned. This error takes
    /// precedence over the one that halted the consumer, which the status still shows.
    ///
    /// If the list of jobs in the error is empty, other code of yours has not returned: a call into
    /// the source, a callback, the closure of a deferred job that is done, or a destructor.
    ///
    /// [`Error::Progress`] if no job runs and the last save does not return.
    pub fn stop_within(self, limit: Duration) -> Result<(), Error> {
        self.control.request_stop();
        self.wait_end(Some(limit))
    }

    /// Waits until the consumer ends: by `stop_at`, by a failure, or by [`Handle::request_stop`].
    ///
    /// # Errors
    /// The errors of [`stop`](Self::stop), and [`Error::UpstreamEnded`] if an upstream ended below
    /// the index to stop at; the jobs that it lets through are processed first.
    pub fn join(self) -> Result<(), Error> {
        self.control.heed_ended_upstreams(OutOfReach::Fail);
        self.wait_end(None)
    }

    /// Requests a stop without waiting. The error of the end is logged.
    pub(crate) fn let_go(mut self) {
        self.left = true;
        self.control.let_go();
    }

    fn wait_end(mut self, limit: Option<Duration>) -> Result<(), Error> {
        self.left = true;
        self.control.wait_end(limit)
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        if self.left {
            return;
        }
        #[cfg(feature = "tokio")]
        if self.on_runtime && is_in_runtime() {
            return self.control.let_go();
        }
        self.control.request_stop();
        // On one of the consumer's own threads `wait_end` returns at once, since it would never
        // end.
        if let Err(error) = self.control.wait_end(None)
            && !matches!(error, Error::Config(_))
        {
            tracing::error!(error = describe(&error), "a consumer was dropped and ended with an error");
        }
    }
}

shows!(Consumer, of: status = of.control.status());
