//! The handle: watching and steering from anywhere.

use crate::base::config::{check_max_processing, check_search_ahead};
use crate::base::error::Error;
use crate::base::index::Index;
use crate::base::sync::Arc;
use crate::driver::control::Control;
use crate::observe::ended::Ended;
use crate::observe::status::Status;
use crate::source::watermark::Watermark;
use std::fmt;
use std::time::Duration;

/// Watches and steers a [`Consumer`](crate::Consumer), from any thread, also from its own jobs and source.
///
/// After the consumer has ended the getters show the last values.
#[derive(Clone)]
pub struct Handle {
    pub(crate) control: Arc<dyn Control>,
}

impl Handle {
    /// "Look again": there may be a new job. Cheap, never blocks, never lost; nothing happens after the end.
    pub fn check(&self) {
        self.control.check();
    }

    /// Asks the consumer to stop, and returns at once; [`Consumer::stop`](crate::Consumer::stop) and [`Consumer::join`](crate::Consumer::join) then return when it has.
    pub fn request_stop(&self) {
        self.control.request_stop();
    }

    /// The watermark: everything at or below it is processed, and that is saved. `None` while nothing was ever saved.
    #[must_use]
    pub fn last_processed_index(&self) -> Option<Index> {
        self.control.watermark().last_processed()
    }

    /// How many jobs were started and are above the watermark: running, waiting for a retry, or done ahead.
    #[must_use]
    pub fn size(&self) -> usize {
        usize::try_from(self.control.size()).unwrap_or(usize::MAX)
    }

    /// A snapshot. Never waits for the source, the store or a job, and may be taken from any of them. It shows itself in one
    /// line: `println!("{}", handle.status())`.
    #[must_use]
    pub fn status(&self) -> Status {
        self.control.status()
    }

    /// Waits until the watermark has reached this index, and returns true if it has. It returns false
    /// when the time is over, and at once if the watermark can no longer get there: the index is above
    /// [`stop_at`](crate::Builder::stop_at), the consumer stops or has ended below it, or it is
    /// [`u64::MAX`], which is never a job. [`wait_end`](Self::wait_end) waits for the end itself.
    #[must_use]
    pub fn wait_for(&self, index: Index, timeout: Duration) -> bool {
        self.control.wait_for(index, timeout)
    }

    /// Waits until the consumer has ended and all its threads are gone, so that [`Consumer::join`](crate::Consumer::join) would return at
    /// once; `None` when the time is over. You need not own the consumer. It works before, during and after `stop`, `join` or
    /// drop. A timeout beyond the clock's end, [`Duration::MAX`] say, is for ever.
    ///
    /// After a [`stop_within`](crate::Consumer::stop_within) that timed out it waits for the stragglers, too. On one of the consumer's own
    /// threads, in a job or a callback, it is `None` at once: the end would wait for that thread.
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline::{Consumer, MemoryJobs, MemoryProgress, State};
    ///
    /// let jobs: MemoryJobs<_> = (0..5).collect();
    /// let consumer = Consumer::builder(jobs, MemoryProgress::new()).start(|job| match job.index {
    ///     3 => Err("connection refused".into()),
    ///     _ => Ok(()),
    /// })?;
    /// let handle = consumer.handle();
    /// let ended = std::thread::spawn(move || handle.wait_end(Duration::from_secs(20))).join().unwrap().unwrap();
    /// assert_eq!(ended.state, State::Halted);
    /// assert_eq!(ended.error, consumer.join().err().map(|error| error.report()));
    /// # Ok::<(), waterline::Error>(())
    /// ```
    #[must_use]
    pub fn wait_end(&self, timeout: Duration) -> Option<Ended> {
        self.control.wait_ended(timeout)
    }

    /// No new job and no retry starts until [`resume`](Self::resume). Running jobs finish and are saved. Does not nest, and is
    /// not stored.
    pub fn pause(&self) {
        self.control.set_paused(true);
    }

    /// Ends a [`pause`](Self::pause).
    pub fn resume(&self) {
        self.control.set_paused(false);
    }

    /// Changes `max_processing`. Lowering it stops no running job.
    ///
    /// # Errors
    /// [`Error::Config`] for 0, [`Error::Stopped`] after the end.
    pub fn set_max_processing(&self, n: usize) -> Result<(), Error> {
        check_max_processing(n)?;
        self.control.set_limits(&|limits| limits.max_processing = n)
    }

    /// Changes `max_search_ahead`; [`u64::MAX`] is no limit. Lowering it stops no running job.
    ///
    /// # Errors
    /// [`Error::Config`] for 0, [`Error::Stopped`] after the end.
    pub fn set_max_search_ahead(&self, n: u64) -> Result<(), Error> {
        check_search_ahead(n)?;
        self.control.set_limits(&|limits| limits.max_search_ahead = n)
    }
}

impl AsRef<Watermark> for Handle {
    fn as_ref(&self) -> &Watermark {
        self.control.watermark()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("status", &self.control.status()).finish_non_exhaustive()
    }
}
