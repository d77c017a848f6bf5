//! The statistics of calls into a source, as a status shows them.

use std::fmt;
use std::time::Duration;

/// The calls of a consumer into its source: see [`Status::source`](crate::Status::source).
///
/// A call asks for the head, or reads a run of jobs. With the default
/// [`Jobs::read`](crate::Jobs::read), many calls of `at_index` count as one. `Display` writes the
/// numbers as the status does: `5 of 31 calls failed`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SourceCalls {
    /// The calls that returned since the consumer started.
    pub made: u64,
    /// How many of them failed: an error, a panic, or no answer within
    /// [`source_timeout`](crate::Builder::source_timeout).
    pub failed: u64,
    /// The calls that failed since the source last answered one. 0 for a healthy source.
    pub failed_in_a_row: u32,
    /// How long until the source is called again, if the watermark waits for that; zero if it is
    /// due. `None` if it waits for something else, or for a call under way.
    pub retry_in: Option<Duration>,
    /// How long a call may take; `None` if nothing can end a call from outside. See
    /// [`source_timeout`](crate::Builder::source_timeout).
    pub timeout: Option<Duration>,
}

impl fmt::Display for SourceCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} calls failed", self.failed, self.made)
    }
}

impl SourceCalls {
    /// Writes when the source is called again, after the sentence about its fault.
    pub(crate) fn write_retry(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.retry_in {
            None => return Ok(()),
            Some(Duration::ZERO) => write!(f, " (it is asked again now")?,
            Some(retry_in) => write!(f, " (it is asked again in {retry_in:.1?}")?,
        }
        if self.failed > 0 {
            write!(f, "; {self}")?;
        }
        write!(f, ")")
    }
}
