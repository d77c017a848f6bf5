//! The error that fails only one job.

use crate::base::{BoxError, Error};

/// Fails an operation although participant and database are sound: the asking job is at fault.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Refusal(pub Error);

impl Refusal {
    /// Returns the reason of a refusal; any other error is returned unchanged.
    pub(crate) fn reason(error: BoxError) -> Result<Error, BoxError> {
        Ok(error.downcast::<Self>()?.0)
    }
}
