//! What a wake-up meets on its way to a source, beside its gates: bounds that hold the source back,
//! as a status names them, and logs.

use crate::base::index::Index;
use crate::base::sync::Arc;
use std::fmt;

/// A log that is full, so that no more jobs start which fill it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Full {
    pub(crate) log: String,
    /// The items that are still to be processed.
    pub(crate) items: u64,
    /// The number of items from which on it is full.
    pub(crate) most: u64,
    /// The consumer behind that is last; `None` if none is named.
    pub(crate) behind: Option<Behind>,
}

/// The consumer that a full log waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Behind {
    /// The name of its progress, or "unnamed".
    pub(crate) name: String,
    pub(crate) ended: bool,
}

/// A bound of a source. It is asked under the lock of the consumer, and only reads.
pub(crate) trait Bound: fmt::Debug + Send + Sync {
    /// Returns what is full, if this index is held back by it.
    fn full(&self, index: Index) -> Option<Full>;
}

/// A log that is read.
pub(crate) trait Numbered: fmt::Debug + Send + Sync {
    fn name(&self) -> &str;
    fn first(&self) -> Index;
}

/// A log that a wake-up has met, and its first index then.
#[derive(Clone, Debug)]
pub(crate) struct MetLog {
    pub(crate) log: Arc<dyn Numbered>,
    pub(crate) first: Index,
    /// The address of its store.
    pub(crate) store: usize,
}
