//! The error that fails one job alone.

use crate::base::error::Error;
use crate::base::index::BoxError;
use std::fmt;

/// The answer to an operation that cannot be made, although the participant and the database are
/// sound: whoever asks for it is to blame.
#[derive(Debug)]
pub struct Refusal(pub Error);

impl Refusal {
    /// Returns the reason of a refusal, and any other error as it is.
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
