//! The handle that watches and steers a consumer.

use crate::base::config::{check_max_processing, check_search_ahead};
use crate::base::{Error, Index, structure::shows, sync::Arc};
use crate::driver::Driver;
use crate::observe::busy_key::BusyKey;
use crate::observe::status::{Ended, Status};
use crate::observe::strip::Strip;
use crate::source::watermark::Watermark;
use std::time::Duration;

/// Watches and steers a [`Consumer`](crate::Consumer) from any thread, its jobs and source too.
///
/// After the end of the consumer the getters return the last values.
#[derive(Clone)]
pub struct Handle {
    pub(crate) control: Arc<Driver>,
}

impl Handle {
    /// Returns the key behind which the most jobs wait, by the job that has it. `None` if no job
    /// waits for its key: see [`Builder::ordered_by`](crate::Builder::ordered_by). Looks at all
    /// keys that jobs wait for, so not in an inner loop.
    #[must_use]
    pub fn busiest_key(&self) -> Option<BusyKey> {
        self.control.busiest_key()
    }

    /// Makes the consumer check its source, since there may be a new job.
    ///
    /// A call is cheap, never blocks and is never lost. After the end it does nothing.
    pub fn check(&self) {
        self.control.check();
    }

    /// Requests a stop, and returns at once.
    ///
    /// [`Consumer::stop`](crate::Consumer::stop) and [`Consumer::join`](crate::Consumer::join)
    /// return once it has stopped.
    pub fn request_stop(&self) {
        self.control.request_stop();
    }

    /// Returns the watermark: everything up to and including this index is processed and saved.
    /// `None` while nothing was ever saved.
    #[must_use]
    pub fn last_processed_index(&self) -> Option<Index> {
        self.control.watermark().last_processed()
    }

    /// Returns how many jobs above the watermark are running, awaiting a retry, or done ahead.
    ///
    /// The index of a gap above the watermark counts as done ahead.
    #[must_use]
    pub fn size(&self) -> usize {
        usize::try_from(self.control.size()).unwrap_or(usize::MAX)
    }

    /// Returns a snapshot of the consumer, which prints in one line:
    /// `println!("{}", handle.status())`.
    ///
    /// It never waits for the source, the store or a job, and may be called from any of them.
    #[must_use]
    pub fn status(&self) -> Status {
        self.control.status()
    }

    /// Returns the window above the watermark as a strip of at most `cells` cells, for a page.
    ///
    /// It includes the attempts that run and those that wait. 1,000 cells are plenty. The call
    /// reads a bit of each index of the window under the consumer's lock: some microseconds for
    /// 10,000 indices.
    ///
    /// ```
    /// use waterline::{StripCell, Consumer, MemoryJobs, MemoryProgress, Retry};
    /// use std::time::Duration;
    ///
    /// let jobs: MemoryJobs<_> = (0..4).collect();
    /// let consumer = Consumer::builder(jobs, MemoryProgress::new())
    ///     .max_processing(1)
    ///     .retry(Retry::fixed(Duration::from_secs(3600)))
    ///     .start(|job| if job.index == 1 { Err("no".into()) } else { Ok(()) })?;
    /// let handle = consumer.handle();
    /// while handle.status().done < 3 {
    ///     std::thread::yield_now();
    /// }
    /// assert!(handle.wait_for(0, Duration::from_secs(20)));
    /// let strip = handle.strip(1_000);
    /// assert_eq!((strip.from, &strip.cells[..]), (1, &[StripCell::Failed, StripCell::Done, StripCell::Done][..]));
    /// assert_eq!((strip.retries[0].index, strip.retries[0].attempt), (1, 1));
    /// consumer.stop()?;
    /// # Ok::<(), waterline::Error>(())
    /// ```
    #[must_use]
    pub fn strip(&self, cells: usize) -> Strip {
        self.control.strip(cells)
    }

    /// Returns the name of the progress, if it has one.
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, Store};
    ///
    /// let jobs: MemoryJobs<_> = (0..3).collect();
    /// let consumer = Consumer::builder(jobs, Store::in_memory().progress("blocks")).stop_at(2).start(|_| Ok(()))?;
    /// assert_eq!(consumer.handle().name().as_deref(), Some("blocks"));
    /// consumer.join()?;
    /// # Ok::<(), waterline::Error>(())
    /// ```
    #[must_use]
    pub fn name(&self) -> Option<String> {
        self.control.watermark().progress_name()
    }

    /// Returns the watermarks that the gate of its source waits for.
    ///
    /// Compare them with [`Watermark::is_same`]: `handle.upstreams()[0].is_same(other.as_ref())`.
    ///
    /// ```
    /// use waterline::{Consumer, Jobs, MemoryJobs, MemoryProgress};
    ///
    /// let blocks: MemoryJobs<_> = (0..3).collect();
    /// let fetch = Consumer::builder(blocks.clone(), MemoryProgress::new()).start(|_| Ok(()))?;
    /// let index = Consumer::builder(blocks.gated_by(fetch.handle()), MemoryProgress::new()).start(|_| Ok(()))?;
    /// assert!(index.handle().upstreams()[0].is_same(fetch.handle().as_ref()));
    /// index.stop()?;
    /// fetch.stop()?;
    /// # Ok::<(), waterline::Error>(())
    /// ```
    #[must_use]
    pub fn upstreams(&self) -> Vec<Watermark> {
        self.control.upstreams()
    }

    /// Waits until the watermark has reached this index. Returns false if the timeout came first.
    ///
    /// It also returns false once the watermark can no longer get there: the index is above
    /// [`stop_at`](crate::Builder::stop_at), the consumer stops or has ended below it, or the index
    /// is [`u64::MAX`], which is never a job. To wait for the end, use
    /// [`wait_end`](Self::wait_end).
    #[must_use]
    pub fn wait_for(&self, index: Index, timeout: Duration) -> bool {
        self.control.wait_for(index, timeout)
    }

    /// Waits until the consumer has ended and all its threads are gone; `None` at the timeout.
    ///
    /// Then [`Consumer::join`](crate::Consumer::join) would return at once. You need not own the
    /// consumer: this works before, during and after `stop`, `join` or drop. A timeout beyond the
    /// range of the clock, such as [`Duration::MAX`], never ends.
    ///
    /// After a [`stop_within`](crate::Consumer::stop_within) that timed out, it also waits for the
    /// jobs that still run. On one of the consumer's own threads, in a job or a callback, it
    /// returns `None` at once: the end would wait for that thread.
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

    /// Pauses the consumer: no new job and no retry starts until [`resume`](Self::resume).
    ///
    /// The jobs in flight finish and are saved. Pauses do not nest, and are not stored.
    pub fn pause(&self) {
        self.control.set_paused(true);
    }

    /// Ends a [`pause`](Self::pause).
    pub fn resume(&self) {
        self.control.set_paused(false);
    }

    /// Changes `max_processing`. A lower value stops no running job.
    ///
    /// # Errors
    /// [`Error::Config`] for 0, [`Error::Stopped`] after the end.
    pub fn set_max_processing(&self, n: usize) -> Result<(), Error> {
        check_max_processing(n)?;
        self.control.set_limits(&|limits| limits.max_processing = n)
    }

    /// Changes `max_search_ahead`; [`u64::MAX`] means no limit. A lower value stops no running job.
    ///
    /// # Errors
    /// [`Error::Config`] for 0, [`Error::Stopped`] after the end.
    pub fn set_max_search_ahead(&self, n: u64) -> Result<(), Error> {
        check_search_ahead(n)?;
        self.control.set_limits(&|limits| limits.max_search_ahead = n)
    }

    /// Runs a [parked](crate::OnExhausted::Park) job for one more attempt, whatever the retry says.
    ///
    /// The watermark does not move back. The job is read from the source again, and counts in
    /// `max_processing`, but not in the window. Its success removes the record, in one write with
    /// its effects. Its failure keeps the record, with the new error, and so does a source that no
    /// longer has the job. A stop awaits the attempt while it runs; if it has not begun when the
    /// consumer stops, the job stays parked. In [`start_ordered`](crate::Builder::start_ordered)
    /// the sink gets its result when it is done, out of order.
    ///
    /// # Errors
    /// [`Error::NotParked`] if the job is not parked, [`Error::InUse`] while the consumer
    /// [waits](crate::Builder::standby) for its name, [`Error::Stopped`] once the consumer stops.
    #[doc(alias("dead letter", "replay"))]
    pub fn redrive(&self, index: Index) -> Result<(), Error> {
        self.control.redrive(index)
    }

    /// Runs all parked jobs once more, as [`redrive`](Self::redrive) does, and returns how many.
    ///
    /// # Errors
    /// [`Error::InUse`] and [`Error::Stopped`], as [`redrive`](Self::redrive).
    pub fn redrive_all(&self) -> Result<u64, Error> {
        self.control.redrive_all()
    }
}

impl AsRef<Watermark> for Handle {
    fn as_ref(&self) -> &Watermark {
        self.control.watermark()
    }
}

shows!(Handle, of: status = of.control.status());
