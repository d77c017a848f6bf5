//! What a user holds: the consumer, its builder, and handles to it.

use crate::base::error::{Error, describe};
use crate::base::sync::Arc;
use crate::driver::control::Control;
use crate::driver::reach::OutOfReach;
use crate::progress::Progress;
use crate::source::Jobs;
use std::fmt;
use std::time::Duration;

mod builder;
mod handle;
mod ordered;
mod transactional;

pub use builder::Builder;
pub(crate) use builder::lowest_end;
pub use handle::Handle;

/// Walks a source in index order, runs its jobs in parallel, and keeps how far it is.
///
/// The promises, by the numbers under which the tests prove them:
///
/// 1. Nothing is skipped: every index at or below the watermark was reported done, in this process life or an earlier one.
/// 2. At most `max_processing` jobs are in flight, and none above watermark + `max_search_ahead`. So a store that cannot save
///    stops the consumer after that many jobs.
/// 3. Within one life an index is handed to a worker again only after it failed; first hand-overs are in ascending order.
/// 4. Nothing stalls in silence: no wake-up is lost, source and store errors are retried with back-off, and
///    [`Status::blocked`](crate::Status::blocked) names the one thing that the watermark waits for.
/// 5. A job that fails is never counted as done; when its retries are used up the consumer halts at it.
/// 6. Stopping finishes what runs and saves the watermark. After [`stop`](Self::stop) has returned no callback runs, and no thread of
///    the consumer lives.
/// 7. Progress never goes back, and is never written by two consumers: a second one on the same name is refused.
/// 8. A bad stored value is a typed error, never "all done" and never "start again".
/// 9. With [`start_transactional`](Builder::start_transactional) a job's effects, its being done and the watermark are one atomic
///    write: after any crash each job has its effects once.
/// 10. What was saved as done never runs again, also above the watermark, and also while there is none. (With a
///     [`StoreProgress`](crate::StoreProgress); any other progress keeps nothing but the watermark.)
///
/// **What runs again**: after a clean stop nothing that finished, however far above the watermark. After a crash what was in
/// flight, and what finished since the last save: no more than
/// [`Status::unsaved`](crate::Status::unsaved) says, however wide the window is. While jobs go on,
/// a save begins a millisecond after the one before. With a buffered
/// [`StoreProgress`](crate::StoreProgress) it is at most 5 ms late in 99 of 100 cases, also while
/// busy threads have all the cores (measured with 8 threads on two cores, jobs of 10 µs, and
/// nothing else on the machine). With a synced store, and with a progress of your own, the thread
/// that saves has to wait for a core then, which can take tens of milliseconds. With a progress
/// that keeps nothing but the watermark, each life begins behind that, and all that finished above it runs
/// again, at most `max_search_ahead` jobs. So the effects of a job must be the same when they are
/// repeated.
///
/// Dropping a consumer stops it, waits, and logs (with `tracing`) what `stop` would have returned.
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
#[must_use = "dropping a consumer stops it"]
pub struct Consumer {
    control: Arc<dyn Control>,
    /// Whether `stop` or `join` took care of the end.
    left: bool,
}

impl Consumer {
    /// A consumer of these jobs that keeps its watermark in this progress. Nothing happens before it is started.
    pub fn builder<J: Jobs, P: Progress>(jobs: J, progress: P) -> Builder<J, P> {
        Builder::new(jobs, progress)
    }

    /// A handle, to be cloned to wherever the consumer is watched or steered from. It keeps nothing alive.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle { control: self.control.clone() }
    }

    /// Stops: no new job starts, running ones finish, and what finished is saved. Retries are not awaited.
    ///
    /// It waits for every [`Done`](crate::Done) token too, so a thread that holds one must not call it.
    ///
    /// # Errors
    /// The first failure: what halted the consumer, or [`Error::Progress`] when the last save failed, twice. On one of the
    /// consumer's own threads [`Error::Config`]: there it only asks, and does not wait.
    pub fn stop(self) -> Result<(), Error> {
        self.control.request_stop();
        self.wait_end(None)
    }

    /// [`stop`](Self::stop) for those who cannot wait for ever.
    ///
    /// The jobs that run have until `limit`. Then the last save has a second more, and after it `on_processed`, which is told
    /// what that save wrote, and the consumer's own threads have at least a second to end. So a consumer without a job that runs
    /// is stopped in full, whatever the limit: with `Duration::ZERO` too this is `Ok`, unless something hangs.
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
    /// [`Error::StopTimeout`] when jobs were still running after `limit`. The watermark is saved up to the first of them, and
    /// `on_processed` has been told, unless the save or the callback takes more than a second. The result of a straggler is
    /// ignored, no callback runs for them, and the progress name stays in use until the last one returned. It outranks
    /// what halted the consumer, which the status still shows. If no job runs, the list of jobs is empty: then something
    /// else of yours has not returned, a call into the source, a callback, the closure of a deferred job that is done, or a
    /// destructor. [`Error::Progress`] when no job runs, and the last save does not return.
    pub fn stop_within(self, limit: Duration) -> Result<(), Error> {
        self.control.request_stop();
        self.wait_end(Some(limit))
    }

    /// Waits until the consumer ends: by `stop_at`, by a failure, or by [`Handle::request_stop`].
    ///
    /// # Errors
    /// Those of [`stop`](Self::stop). [`Error::UpstreamEnded`] when an upstream has ended below the
    /// index to stop at: the jobs that it lets through are processed first.
    pub fn join(self) -> Result<(), Error> {
        self.control.heed_ended_upstreams(OutOfReach::Fail);
        self.wait_end(None)
    }

    /// Asks it to stop, and waits for nothing. What it ends with is logged.
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
        self.control.request_stop();
        // On a thread of its own it was only asked to, which is all that a drop can do there.
        if let Err(error) = self.control.wait_end(None)
            && !matches!(error, Error::Config(_))
        {
            tracing::error!(error = describe(&error), "a consumer was dropped and ended with an error");
        }
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("status", &self.control.status()).finish_non_exhaustive()
    }
}
