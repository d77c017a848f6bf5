//! An error of user code, as this crate keeps it.

use crate::base::failure::{Verdict, verdict};
use crate::base::{BoxError, error::describe};

/// An error of user code and its text, of bounded length.
///
/// User code makes the text, so it is made before any lock is taken.
#[derive(Debug)]
pub(crate) struct Caught {
    pub(crate) error: BoxError,
    pub(crate) text: String,
    /// The fate that the error gives its job.
    pub(crate) verdict: Verdict,
}

impl Caught {
    pub(crate) fn boxed(error: BoxError) -> Box<Self> {
        Box::new(error.into())
    }
}

impl From<BoxError> for Caught {
    fn from(error: BoxError) -> Self {
        let (text, verdict) = (describe(&*error), verdict(&*error));
        Self { error, text, verdict }
    }
}
