//! The calls of a consumer into its source, as its status shows them.

use std::fmt;
use std::time::Duration;

/// The calls of a consumer into its source: see [`Status::source`](crate::Status::source).
///
/// A call asks for the head, or reads a run of jobs. With the default
/// [`Jobs::read`](crate::Jobs::read) many calls of `at_index` are one of them. `Display` writes the
/// numbers as the status does: `5 of 31 calls failed`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SourceCalls {
    /// The calls that have returned since the consumer started.
    pub made: u64,
    /// Those of them that failed: an error, a panic, or no answer within
    /// [`source_timeout`](crate::Builder::source_timeout).
    pub failed: u64,
    /// The calls that failed since the source last answered one. 0 for a source that is sound.
    pub failed_in_a_row: u32,
    /// The rest of the pause after which the source is asked again, if the watermark waits for
    /// that; zero if it is over. `None` if it waits for something else, or for a call under way.
    pub retry_in: Option<Duration>,
    /// The time after which a call is given up; `None` if nothing can end a call from outside. See
    /// [`source_timeout`](crate::Builder::source_timeout).
    pub timeout: Option<Duration>,
}

impl fmt::Display for SourceCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} calls failed", self.failed, self.made)
    }
}

impl SourceCalls {
    /// Writes when the source is asked again, behind the sentence that says what is wrong with it.
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
