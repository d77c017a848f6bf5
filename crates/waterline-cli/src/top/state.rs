//! The state of the live screen.

use super::history::Histories;
use super::seen::Seen;
use crate::error::Fault;

#[derive(Default)]
pub(crate) struct Top {
    pub(super) seen: Option<Seen>,
    /// Why the last look failed.
    pub(super) failed: Option<String>,
    pub(super) histories: Histories,
    /// How many lines are scrolled past.
    pub(super) scroll: u16,
}

impl Top {
    pub(super) fn take(&mut self, looked: Result<Seen, Fault>) {
        match looked {
            Ok(seen) => {
                self.histories.note(&seen);
                (self.seen, self.failed) = (Some(seen), None);
            }
            // The next look may succeed: an operator may be restoring the store.
            Err(fault) => self.failed = Some(fault.to_string()),
        }
    }
}
