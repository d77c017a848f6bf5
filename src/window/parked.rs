//! Jobs that failed for good and were passed (*parked*), and parked jobs that run once more
//! (*redriven*).
//!
//! A parked job counts as done: the watermark passes it, and the caller keeps its record. A
//! redriven job is outside of the window, whatever its index: it is read and handed out like a
//! failed job and counts as in flight, but its end moves nothing.

use super::{SaveState, Window};
use crate::base::Index;

impl Window {
    /// Reports that a job which backs off is parked, so that it counts as done. Returns false, and
    /// changes nothing, if the job does not back off.
    pub fn handle_parked(&mut self, index: Index) -> bool {
        if self.held.contains(&index) || !self.retries.forget(index) {
            return false;
        }
        self.done = self.ahead.insert(index, self.done);
        true
    }

    /// Reports that a parked job is to run once more. It waits until
    /// [`handle_due`](Self::handle_due), and is then read and handed out in turn with the failed
    /// jobs. [`handle_done`](Self::handle_done), [`handle_failed`](Self::handle_failed) or
    /// [`handle_withdrawn`](Self::handle_withdrawn) ends it. Returns false, and changes nothing, if
    /// the job is not done, or is redriven already.
    pub fn handle_redriven(&mut self, index: Index) -> bool {
        if self.ended || !self.is_done(index) || !self.redriven.insert(index) {
            return false;
        }
        self.retries.wait(index)
    }

    /// Reports that a redriven job cannot be read and is given up. Returns false, and changes
    /// nothing, if it is not redriven, or is read or runs.
    pub fn handle_withdrawn(&mut self, index: Index) -> bool {
        self.redriven.contains(&index) && self.retries.withdraw(index) && self.redriven.remove(&index)
    }

    /// Requests a save because the record of a parked job has changed.
    pub fn handle_changed(&mut self) {
        self.changed = true;
    }

    /// True if this job is to run once more, or runs.
    pub fn is_redriven(&self, index: Index) -> bool {
        self.redriven.contains(&index)
    }

    /// True until a redriven job, or a save with the record of a parked job, has ended.
    pub(crate) fn has_parked_work(&self) -> bool {
        !self.redriven.is_empty() || self.changed || self.saving != SaveState::No
    }

    /// True if this job counts as done.
    pub fn is_done(&self, index: Index) -> bool {
        index < self.done || self.ahead.contains(index)
    }

    /// Ends the attempt of a redriven job. Returns false if it is not redriven.
    #[cold]
    pub(super) fn end_redriven(&mut self, index: Index) -> bool {
        let ends = self.in_flight > 0 && self.redriven.remove(&index);
        self.in_flight -= usize::from(ends);
        ends
    }
}
