//! The error that fails only one job.

use crate::base::{BoxError, Error};
use std::fmt;

/// Fails an operation although participant and database are sound: the asking job is at fault.
#[derive(Debug)]
pub struct Refusal(pub Error);

impl Refusal {
    /// Returns the reason of a refusal; any other error is returned unchanged.
    pub(crate) fn reason(error: BoxError) -> Result<Error, BoxError> {
        Ok(error.downcast::<Self>()?.0)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Refusal {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}
