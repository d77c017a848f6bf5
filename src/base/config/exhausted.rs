//! What happens to the jobs of a stream that fail for good.

/// What to do with a job that has used up its attempts (elsewhere called a dead letter).
#[doc(alias = "dead letter")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnExhausted {
    /// Stop at the job: running jobs finish, no new job starts, everything below the job is saved,
    /// and `join` and `stop` return [`Error::Job`](crate::Error::Job). The default, since nothing
    /// else is right for every stream.
    #[default]
    Halt,
    /// Park the job: one atomic write keeps its record in the store and lets the watermark pass it.
    ///
    /// [`Store::parked`](crate::Store::parked) lists the records,
    /// [`Handle::redrive`](crate::Handle::redrive) runs a parked job once more, and
    /// [`Store::discard`](crate::Store::discard) gives it up. Gates, `wait_for`, `stop_at` and the
    /// lag count a parked job as processed. Parking needs the progress of a
    /// [`Store`](crate::Store), or one that [keeps records](crate::Progress::keeps_records): with
    /// any other, the start returns [`Error::Config`](crate::Error).
    ///
    /// ```
    /// use waterline::{Consumer, Error, MemoryJobs, OnExhausted, Store};
    ///
    /// let store = Store::in_memory();
    /// let jobs: MemoryJobs<_> = ["1", "two", "3"].into_iter().collect();
    /// Consumer::builder(jobs, store.progress("numbers"))
    ///     .on_exhausted(OnExhausted::Park { budget: 100 })
    ///     .stop_at(2)
    ///     .start(|job| Ok(drop(job.payload.parse::<u64>()?)))?
    ///     .join()?;
    /// assert_eq!(store.progress("numbers").last_processed()?, Some(2));
    /// let parked = store.parked("numbers")?;
    /// assert_eq!((parked[0].index, parked[0].error.as_str()), (1, "invalid digit found in string"));
    /// store.discard("numbers", 1)?;
    /// # Ok::<(), Error>(())
    /// ```
    Park {
        /// How many parked jobs the name may have, at least 1. The next job that uses up its
        /// attempts halts the consumer, so that a service which is down cannot park the whole
        /// stream.
        budget: u64,
    },
}
