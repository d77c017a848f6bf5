//! Jobs that failed for good and were passed (*parked*), and parked jobs that run once more
//! (*redriven*).
//!
//! A parked job counts as done: the watermark passes it. The caller keeps the record of it. A job
//! that is redriven is no longer part of the window, whichever index it has: it is read and handed
//! out as a failed job is, counts in flight, and moves nothing when it ends. It may be above the
//! window, too.

use super::{SaveState, Window};
use crate::base::index::Index;

impl Window {
    /// Reports that a job which waits for a back-off is parked: it counts as done. Returns false,
    /// and changes nothing, if the job does not wait for one.
    pub fn handle_parked(&mut self, index: Index) -> bool {
        if self.held.contains(&index) || !self.retries.forget(index) {
            return false;
        }
        self.done = self.ahead.insert(index, self.done);
        true
    }

    /// Reports that a parked job is to run once more. It waits until
    /// [`handle_due`](Self::handle_due) says that it may, and is then read and handed out in its
    /// turn among the failed jobs. [`handle_done`](Self::handle_done),
    /// [`handle_failed`](Self::handle_failed) or [`handle_withdrawn`](Self::handle_withdrawn) ends
    /// it. Returns false, and changes nothing, if the job is not done, or is to run already.
    pub fn handle_redriven(&mut self, index: Index) -> bool {
        if self.ended || !self.is_done(index) || !self.redriven.insert(index) {
            return false;
        }
        self.retries.wait(index)
    }

    /// Reports that a redriven job cannot be read, and is given up. Returns false, and changes
    /// nothing, if it is not redriven, or runs.
    pub fn handle_withdrawn(&mut self, index: Index) -> bool {
        self.redriven.contains(&index) && self.retries.withdraw(index) && self.redriven.remove(&index)
    }

    /// Asks for a save though no job of the window has finished, since the record of a parked job
    /// has changed.
    pub fn handle_changed(&mut self) {
        self.changed = true;
    }

    /// True if this job is to run once more, or does.
    #[must_use]
    pub fn is_redriven(&self, index: Index) -> bool {
        self.redriven.contains(&index)
    }

    /// True while a redriven job has not ended, or a save with the record of a parked job has not.
    #[must_use]
    pub(crate) fn has_parked_work(&self) -> bool {
        !self.redriven.is_empty() || self.changed || self.saving != SaveState::No
    }

    /// True if this job counts as done.
    #[must_use]
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
