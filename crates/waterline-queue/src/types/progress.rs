//! The progress of a job.

use crate::types::config::ConfigError;
use crate::types::job::time;
use std::time::SystemTime;
use waterline::seam::check_number;

/// The maximum length of a note, in bytes: some sentences. Each write contains it.
const LONGEST: usize = 1024;

/// The progress of a job, as its worker has shown it: see
/// [`Running::progress`](crate::Running::progress).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct JobProgress {
    /// The fraction that is done: 0 to 1.
    pub fraction: f64,
    /// The note of the worker, which may be empty.
    pub note: String,
    /// When it was shown.
    pub at: SystemTime,
}

impl JobProgress {
    /// Returns the progress that a worker shows at this time, in milliseconds since 1970.
    pub(crate) fn new(fraction: f64, note: &str, wall: u64) -> Result<Self, ConfigError> {
        check_number("progress", fraction, 0.0..=1.0, ("the progress of the job", "use 0 to 1"))?;
        if note.len() > LONGEST {
            let why = format!("the note of the progress has {} bytes: use at most 1,024", note.len());
            return Err(ConfigError::Length { what: "progress note", length: note.len(), most: LONGEST, why });
        }
        Ok(Self { fraction, note: note.to_owned(), at: time(wall) })
    }
}
