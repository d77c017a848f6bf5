//! Failures of a store.

use super::text;
use crate::base::BoxError;
use std::fmt;

/// What to check if a store in a local directory fails.
const DIRECTORY: &str = "its path, its permissions and its disk";

/// A failure of a store, and what it was doing. `{:?}` shows the text and the causes, `{:#?}` the
/// structure.
#[derive(thiserror::Error)]
#[error("the store could not {doing}: look at {look_at}, and try again")]
pub struct StoreError {
    pub(crate) doing: String,
    look_at: &'static str,
    pub(crate) source: BoxError,
}

impl StoreError {
    /// Makes the failure of a store in a directory.
    pub(crate) fn new(doing: String, source: BoxError) -> Self {
        Self { doing, look_at: DIRECTORY, source }
    }

    /// Makes the failure of a store that is elsewhere.
    #[cfg(feature = "seam")]
    pub(crate) fn elsewhere(doing: String, look_at: &'static str, source: BoxError) -> Self {
        Self { doing, look_at, source }
    }
}

impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            f.debug_struct("StoreError").field("doing", &self.doing).field("source", &self.source).finish()
        } else {
            f.write_str(&text::report(self))
        }
    }
}
