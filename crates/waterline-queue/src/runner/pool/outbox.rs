//! The ends of jobs on their way to the database, and the claims that go with them.

use super::claim_batch::{BatchSizer, ClaimBatch};
use super::tried::Tried;
use crate::runner::attempt::Report;

/// How many ends one write has at most. Failed ones go one by one, and all others wait for them.
const MOST_ENDS: usize = 512;

#[derive(Default)]
pub(super) struct Outbox {
    /// Ends that no thread has taken yet.
    pub(super) inbox: Vec<Report>,
    pub(super) claim_batch: ClaimBatch,
    pub(super) batch_sizer: BatchSizer,
    /// How many writes are under way, or about to start.
    pub(super) writes: usize,
    /// True once a thread waits for the end of one of them.
    pub(super) is_full: bool,
    pub(super) tried: Tried,
    /// How many written ends hooks are being called for. A hook may push a job.
    pub(super) telling: usize,
}

impl Outbox {
    /// Takes all waiting ends, or as many as fit in one write.
    pub(super) fn take(&mut self, reports: &mut Vec<Report>) {
        self.claim_batch.take_ends(reports);
        reports.append(&mut self.inbox);
        if reports.len() > MOST_ENDS {
            // The others wait for this write, or join one that starts meanwhile.
            self.inbox.extend(reports.split_off(MOST_ENDS));
            self.is_full = true;
        }
    }

    /// Leaves the ends to the next write, if as many are under way as are allowed. One of them
    /// rings when it ends, and the first in the line takes the ends.
    pub(super) fn leave(&mut self, reports: &mut Vec<Report>, at_once: Option<usize>) -> bool {
        let leaves = at_once.is_some_and(|most| self.writes >= most);
        if leaves {
            self.is_full = true;
            self.inbox.append(reports);
        }
        leaves
    }
}
