//! The failures of the embedded store.

use super::text;
use crate::base::index::BoxError;
use std::fmt;

/// A failure of the embedded store, with its work at that moment. `{:?}` shows the text and the
/// causes, `{:#?}` the structure.
#[derive(thiserror::Error)]
#[error("the store could not {doing}: look at its path, its permissions and its disk, and try again")]
pub struct StoreError {
    pub(crate) doing: String,
    pub(crate) source: BoxError,
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
