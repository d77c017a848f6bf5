//! What a wake-up meets on its way to a source besides gates: logs and bounds.

use crate::base::{Index, sync::Arc};
use std::fmt;

/// A full log, which holds back the jobs that fill it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Full {
    pub(crate) log: String,
    /// How many items are still to be processed.
    pub(crate) items: u64,
    /// The number of items from which it is full.
    pub(crate) most: u64,
    /// The slowest consumer of the log; `None` if none is registered.
    pub(crate) behind: Option<BehindConsumer>,
}

/// The consumer that a full log waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BehindConsumer {
    /// The name of its progress, or "unnamed".
    pub(crate) name: String,
    pub(crate) ended: bool,
}

/// A bound of a source. It is called under the consumer's lock, so it only reads.
pub(crate) trait Bound: fmt::Debug + Send + Sync {
    /// Returns the full log that holds this index back, if any.
    fn full(&self, index: Index) -> Option<Full>;
}

pub(crate) trait Numbered: fmt::Debug + Send + Sync {
    fn name(&self) -> &str;
    fn first(&self) -> Index;
}

#[derive(Clone, Debug)]
pub(crate) struct MetLog {
    pub(crate) log: Arc<dyn Numbered>,
    pub(crate) first: Index,
    /// The address of its store.
    pub(crate) store: usize,
}
