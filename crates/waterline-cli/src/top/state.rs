//! The state of the live screen.

use super::history::Histories;
use super::seen::Seen;
use crate::error::Fault;

/// The state of the screen.
#[derive(Default)]
pub(crate) struct Top {
    pub(super) seen: Option<Seen>,
    /// The reason why the last look has failed.
    pub(super) failed: Option<String>,
    pub(super) histories: Histories,
    /// The lines that are above the screen.
    pub(super) scroll: u16,
}

impl Top {
    pub(super) fn take(&mut self, looked: Result<Seen, Fault>) {
        match looked {
            Ok(seen) => {
                self.histories.note(&seen);
                (self.seen, self.failed) = (Some(seen), None);
            }
            // It looks again: an operator may be about to restore the store.
            Err(fault) => self.failed = Some(fault.to_string()),
        }
    }
}
