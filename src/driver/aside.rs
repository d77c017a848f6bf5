//! Results that wait for the sink.

use crate::base::index::Index;
use std::collections::HashMap;

/// The jobs that are neither in flight nor done, since their results wait for the sink.
#[derive(Debug, Default)]
pub(crate) struct Aside {
    /// The attempts that the results are of, by index.
    pub(super) attempts: HashMap<Index, u32>,
    /// Somebody hands results to the sink.
    pub(super) sinking: bool,
    /// The lowest job that is not done waits for its turn, which a pause has kept from it.
    pub(super) held: bool,
}

impl Aside {
    pub(super) fn has(&self, index: Index) -> bool {
        self.attempts.contains_key(&index)
    }

    /// True if a result up to this index waits.
    pub(super) fn has_up_to(&self, index: Index) -> bool {
        self.attempts.keys().any(|waiting| *waiting <= index)
    }
}
