//! Whether a job caused a halt, which decides what helps.

use crate::base::error::is_halt_of_job;
use crate::observe::status::Blocked;

impl Blocked {
    /// True if the consumer halted because a job failed for good, or killed its process.
    ///
    /// Then skipping the job helps, unlike after any other halt, such as that of a failing source.
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, MemoryProgress, Retry};
    ///
    /// let jobs: MemoryJobs<_> = (0..1).collect();
    /// let consumer = Consumer::builder(jobs, MemoryProgress::new())
    ///     .retry(Retry::none())
    ///     .start(|_| Err("no such price".into()))?;
    /// let handle = consumer.handle();
    /// assert!(consumer.join().is_err());
    /// assert!(handle.status().blocked.is_halt_of_job());
    /// # Ok::<(), waterline::Error>(())
    /// ```
    #[must_use]
    pub fn is_halt_of_job(&self) -> bool {
        matches!(self, Self::Halted { index, error } if is_halt_of_job(*index, error))
    }
}
