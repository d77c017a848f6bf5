//! The sentence that says why a watermark does not move, with the details of the status.

use super::status::Status;
use std::fmt;

impl Status {
    /// Returns the sentence of [`blocked`](Self::blocked) with the details of other fields.
    ///
    /// These are the ended upstream, or when the source is called again and how many calls failed.
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, MemoryProgress};
    ///
    /// let jobs: MemoryJobs<_> = (0..3).collect();
    /// let consumer = Consumer::builder(jobs, MemoryProgress::new()).stop_at(2).start(|_| Ok(()))?;
    /// let handle = consumer.handle();
    /// consumer.join()?;
    /// assert_eq!(handle.status().reason().to_string(), "nothing is in the way");
    /// # Ok::<(), waterline::Error>(())
    /// ```
    pub fn reason(&self) -> impl fmt::Display {
        Reason(self)
    }
}

struct Reason<'a>(&'a Status);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(status) = self;
        write!(f, "{}", status.blocked)?;
        if let Some(upstream) = &status.ended_upstream {
            write!(f, " (its upstream {upstream:?} has ended)")?;
        }
        status.source.write_retry(f)
    }
}
