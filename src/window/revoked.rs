//! Jobs whose results wait for their turn (*aside*), and jobs that were done and then failed before
//! the save with them was written.

use super::{SaveState, Window};
use crate::base::Index;

impl Window {
    /// Reports that the result of a job in flight waits for its turn: the job is *aside*, neither
    /// in flight nor done. Returns false, and changes nothing, if the job cannot be in flight.
    pub fn handle_set_aside(&mut self, index: Index) -> bool {
        let may = self.may_be_in_flight(index);
        self.in_flight -= usize::from(may);
        may
    }

    /// Sets a [redriven](Self::handle_redriven) job aside. It stays redriven until it is [taken
    /// up](Self::handle_taken_up) and done. Changes nothing and returns false if it is not
    /// redriven.
    pub fn handle_redriven_aside(&mut self, index: Index) -> bool {
        let may = self.in_flight > 0 && self.redriven.contains(&index);
        self.in_flight -= usize::from(may);
        may
    }

    /// Reports that a job [set aside](Self::handle_set_aside) has its turn, and is in flight again.
    pub fn handle_taken_up(&mut self) {
        self.in_flight += 1;
    }

    /// Reports that a job of the save under way failed after all. It waits like one that
    /// [failed](Self::handle_failed) in flight, and holds the watermark back; the jobs above it
    /// stay done. Call [`handle_saving`](Self::handle_saving) for the new content of the save
    /// before anything else happens.
    ///
    /// The job must have been done since the last successful save: the window cannot tell other
    /// jobs from those on disk. Returns false, and changes nothing, if no save is being written, or
    /// if the job is not done or below the watermark.
    pub fn handle_revoked(&mut self, index: Index) -> bool {
        self.revoke(index) && self.retries.wait(index)
    }

    /// Takes back that a job is done, though it has not failed: its result waits again, like that
    /// of a job [set aside](Self::handle_set_aside).
    pub fn handle_put_aside(&mut self, index: Index) -> bool {
        self.revoke(index)
    }

    fn revoke(&mut self, index: Index) -> bool {
        let SaveState::Writing(end) = self.saving else { return false };
        let passed = (self.saved..self.done).contains(&index);
        let ahead = (self.done..self.next).contains(&index) && self.ahead.contains(index);
        if !passed && !ahead {
            return false;
        }
        self.done = self.ahead.revoke(index, self.done);
        self.saving = SaveState::Writing(end.min(self.done));
        true
    }
}
