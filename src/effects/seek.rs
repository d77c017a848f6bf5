//! The seek of a progress, which may read the beginning of a log.

use crate::base::error::Error;
use crate::base::index::Index;
use crate::progress::StoreProgress;

impl StoreProgress {
    /// Sets the next job to run: the next consumer begins with the job `next`, and everything below
    /// it counts as processed. It goes both ways.
    ///
    /// The jobs that were done above the old watermark are forgotten, so all jobs from `next` on
    /// run, those that ran before once more. The effects of these stay, so a transactional consumer
    /// makes them a second time: to make them anew, remove them and the progress in one write with
    /// [`remove_with`](Self::remove_with). A parked job keeps its record until the job is done: if
    /// it is at or above `next`, it runs in its turn, and its success removes the record. Its
    /// [crashes](crate::Builder::max_crashes) are forgotten, so it does run. A
    /// [`discard`](crate::Store::discard) removes no more than the record of such a job. If nothing
    /// was saved under this name, the stream begins with the job `next`, and
    /// [`start_at`](crate::Builder::start_at) counts no more.
    ///
    /// If the last consumer with this name has read a [log](crate::JobLog) of the same store, a job
    /// below the beginning of that log is refused ([`ConsumerInfo::log`](crate::ConsumerInfo::log)
    /// names it). The store knows no other source: if that no longer has the job `next`, the next
    /// start returns [`Error::Truncated`]. If the source ends below `next` - 1, the consumer
    /// starts, waits for it, and says so:
    /// [`Blocked::AheadOfSource`](crate::Blocked::AheadOfSource).
    ///
    /// The move and its record in the [history](Self::history) are one atomic write. The reason has
    /// 1 to 1,024 bytes, since a reader of the history needs one.
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
    /// Nothing is changed by a call that returns an error.
    /// * [`Error::InUse`] while a consumer of this process has the name, also one that is about to
    ///   start.
    /// * [`Error::Truncated`] for a job that the log no longer has.
    /// * [`Error::Config`] for a bad name or reason, and for [`Index::MAX`], which is never a job.
    /// * [`Error::ReadOnly`] if the store is read-only, and [`Error::NotFound`] if nothing is saved
    ///   and the store [makes nothing](crate::StoreOptions::create).
    /// * [`Error::Corrupt`] if the progress cannot be read: [`remove`](Self::remove) begins anew.
    /// * [`Error::Progress`] and [`Error::Store`] if the database fails.
    #[doc(alias("backfill", "replay", "reprocess"))]
    pub fn seek(&self, next: Index, reason: &str) -> Result<(), Error> {
        self.seek_if(next, reason, |log| self.store().check_beginning(log, next))
    }
}
