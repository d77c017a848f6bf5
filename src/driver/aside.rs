//! Results that wait for the sink.

use crate::base::index::Index;
use std::collections::BTreeMap;

/// The jobs that are neither in flight nor done, since their results wait for the sink.
#[derive(Debug, Default)]
pub(crate) struct Aside {
    /// The attempts of the jobs whose results wait, by index.
    pub(super) attempts: BTreeMap<Index, u32>,
    /// True while a thread hands results to the sink.
    pub(super) sinking: bool,
    /// True if the lowest undone job waits for its turn because of a pause, or since the job below
    /// it was parked.
    pub(super) held: bool,
}

impl Aside {
    pub(super) fn has(&self, index: Index) -> bool {
        self.attempts.contains_key(&index)
    }

    /// True if a result up to this index waits.
    pub(super) fn has_up_to(&self, index: Index) -> bool {
        self.attempts.range(..=index).next().is_some()
    }
}
