//! The end of the text about the last attempt of a job.

use super::Error;
use crate::base::BoxError;
use crate::base::failure::{Verdict, verdict};

impl Error {
    /// Returns how the text about a job's last attempt ends: its state, and what to do.
    pub(super) fn after_the_last(source: &BoxError) -> &'static str {
        match source.downcast_ref::<Error>() {
            Some(error) if error.is_for_good() || matches!(error, Error::Runtime) => {
                " and is not tried again: fix the cause and start again"
            }
            _ if verdict(&**source) == Verdict::Permanent => " and is not tried again: fix the cause and start again",
            _ => ", its last: fix the cause and start again, or allow more attempts",
        }
    }
}
