//! The seek of a progress, which may have to read where a log begins.

use crate::base::{Error, Index};
use crate::progress::StoreProgress;

impl StoreProgress {
    /// Sets the next job to run, forward or back: everything below `next` counts as processed.
    ///
    /// The jobs done above the old watermark are forgotten, so all jobs from `next` on run, even
    /// those that ran before. Their effects stay, so a transactional consumer makes them a second
    /// time: to start over, remove the effects and the progress in one write with
    /// [`remove_with`](Self::remove_with).
    ///
    /// A parked job keeps its record until the job is done: if it is at or above `next`, it runs in
    /// its turn, and its success removes the record. Its [crashes](crate::Builder::max_crashes) are
    /// forgotten, so that it does run. A [`discard`](crate::Store::discard) of such a job removes
    /// only its record. If nothing was saved under this name, the stream begins with the job
    /// `next`, and [`start_at`](crate::Builder::start_at) no longer applies.
    ///
    /// If the last consumer with this name has read a [log](crate::JobLog) of the same store, a job
    /// below the beginning of that log is refused ([`ConsumerInfo::log`](crate::ConsumerInfo::log)
    /// names it). The store knows no other source: if one no longer has the job `next`, the next
    /// start returns [`Error::Truncated`]. If the source ends below `next` - 1, the consumer
    /// starts, waits for it, and reports [`Blocked::AheadOfSource`](crate::Blocked::AheadOfSource).
    ///
    /// The move and its record in the [history](Self::history) are one atomic write. The reason,
    /// for readers of the history, has 1 to 1,024 bytes.
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, MoveKind, Store};
    ///
    /// let (store, jobs) = (Store::in_memory(), (0..9).collect::<MemoryJobs<u64>>());
    /// let life = |first| {
    ///     let consumer = Consumer::builder(jobs.clone(), store.progress("p")).stop_at(8);
    ///     consumer.start(move |job| Ok(assert!(job.index >= first)))?.join()
    /// };
    /// life(0)?;
    /// store.progress("p").seek(5, "the prices of blocks 5 to 8 were wrong")?;
    /// assert_eq!(store.progress("p").last_processed()?, Some(4));
    /// life(5)?;
    ///
    /// let history = store.progress("p").history()?;
    /// assert_eq!((history[0].kind, history[0].from, history[0].to), (MoveKind::Seek, Some(9), 5));
    /// assert_eq!(history[0].reason, "the prices of blocks 5 to 8 were wrong");
    /// # Ok::<(), waterline::Error>(())
    /// ```
    ///
    /// # Errors
    /// Nothing changes if the call returns an error.
    /// * [`Error::InUse`] while a consumer of this process has the name, or is about to start with
    ///   it.
    /// * [`Error::Truncated`] for a job that the log no longer has.
    /// * [`Error::Config`] for a bad name or reason, and for [`Index::MAX`], which is never a job.
    /// * [`Error::ReadOnly`] if the store is read-only, and [`Error::NotFound`] if nothing is saved
    ///   and the store [creates nothing](crate::StoreOptions::create).
    /// * [`Error::Corrupt`] if the progress cannot be read: [`remove`](Self::remove) starts over.
    /// * [`Error::Progress`] and [`Error::Store`] if the database fails.
    #[doc(alias("backfill", "replay", "reprocess"))]
    pub fn seek(&self, next: Index, reason: &str) -> Result<(), Error> {
        self.seek_if(next, reason, |log| self.store().check_beginning(log, next))
    }
}
