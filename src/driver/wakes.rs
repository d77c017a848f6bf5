//! The duties that a critical section leaves for after the lock is free.

use crate::crew::workers::Wake;

/// The duties for after the lock is free.
#[derive(Default)]
#[must_use]
pub(crate) struct Wakes {
    pub(crate) reader: bool,
    pub(crate) worker: Wake,
    pub(crate) save: bool,
    pub(crate) hurry: bool,
    pub(crate) news: bool,
    /// True if some threads that wait for an index were called.
    pub(crate) called: bool,
    pub(crate) ended: bool,
    /// True if there are lines to write.
    pub(crate) tell: bool,
}

impl Wakes {
    pub(crate) fn is_empty(&self) -> bool {
        let Self { reader, worker, save, hurry, news, called, ended, tell } = self;
        !(*reader || *worker != Wake::Nobody || *save || *hurry || *news || *called || *ended || *tell)
    }
}
