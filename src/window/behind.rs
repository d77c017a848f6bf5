//! Jobs that are read and wait behind another one: an earlier job of their key.
//!
//! The caller knows the keys. For the window such a job is like one that failed in an earlier life:
//! the cursor passes it, it waits, and it starts once all jobs below it have started that may. It
//! takes no room of those that are read ahead, so a long line keeps no other job from being read.

use super::{Fetch, Window};
use crate::base::Index;

impl Window {
    /// Reports that this job, which comes next in the answer to the fetch of new jobs, waits
    /// behind another one. To be called before the job's part of the answer is taken in.
    pub fn handle_behind(&mut self, index: Index) {
        debug_assert!(index >= self.read, "job {index} was taken in");
        self.held.insert(index);
        self.retries.behind(index);
    }

    /// Does the same for a job that failed in an earlier life, and waits for a back-off.
    pub fn handle_failed_earlier(&mut self, index: Index) {
        debug_assert!(index >= self.read, "job {index} was taken in");
        self.held.insert(index);
        self.retries.wait(index);
    }

    /// Reports that a read job which was about to run once more waits behind another one. Returns
    /// false, and changes nothing, if it is not read.
    pub fn handle_behind_again(&mut self, index: Index) -> bool {
        self.retries.read_waits(index)
    }

    /// Reports that a job no longer waits behind another one, and that its value is there. A job
    /// without its value is [due](Self::handle_due) instead.
    ///
    /// It goes before the new jobs, which are all later ones, so the worker that has just freed its
    /// key may take it at once. Unlike a retry it comes once: new jobs wait for the line at most.
    pub fn handle_ready(&mut self, index: Index) -> bool {
        let waited = self.retries.ready(index, reach!(self));
        self.retried &= !waited;
        waited
    }

    /// Sets whether so many jobs wait behind others that no new one is read.
    pub fn set_crowded(&mut self, crowded: bool) {
        self.crowded = crowded;
    }

    /// True if a slot is free and no job can start.
    pub(crate) fn is_starved(&self) -> bool {
        self.has_slot() && !self.can_run()
    }

    /// True if the fetch under way is for jobs that were read before.
    pub(crate) fn fetches_again(&self) -> bool {
        self.fetch == Some(Fetch::Again)
    }

    /// Returns how many of these jobs, which are taken in as new ones, wait behind others.
    #[inline]
    pub(super) fn behind_within(&self, start: Index, end: Index) -> u64 {
        if self.held.is_empty() { 0 } else { self.held.range(start..end).count() as u64 }
    }
}
