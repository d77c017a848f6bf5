//! Questions to a window, which do not change it.

use super::hold::Hold;
use super::{Limits, SaveState, Window};
use crate::base::index::Index;

impl Window {
    /// True if a save is due and something waits for it: the window is closed or full, or nothing
    /// else is left to do.
    #[inline]
    #[must_use]
    pub fn awaits_save(&self) -> bool {
        let closed = self.next - self.saved >= self.width();
        // Once it stops, what a fetch under way brings starts no more.
        let may_start = !self.stopping && (self.fetch.is_some() || self.can_run());
        let idle = self.in_flight == 0 && !may_start;
        self.saving == SaveState::Due && (closed || idle || self.full)
    }

    /// Returns the watermark that is saved. `None` while nothing was ever saved.
    #[must_use]
    pub fn last_processed(&self) -> Option<Index> {
        if self.any_saved { Some(self.saved - 1) } else { None }
    }

    /// Returns the lowest index that is not done. The watermark waits for it.
    #[must_use]
    pub fn lowest_undone(&self) -> Index {
        self.done
    }

    /// Returns how many of the indices from `start` on and below `end` are done.
    #[must_use]
    pub fn done_within(&self, start: Index, end: Index) -> u64 {
        let passed = self.done.clamp(start, end.max(start)) - start;
        passed + self.ahead.count(start.max(self.done), end)
    }

    /// Returns how many of the indices from `start` on and below `end` this life has found to be
    /// gaps. It knows the lowest 1,024 runs of them above the watermark.
    #[must_use]
    pub fn gaps_within(&self, start: Index, end: Index) -> u64 {
        self.found.count(start, end)
    }

    /// Returns one past the highest index that was handed out, or that an earlier life had done.
    #[must_use]
    pub fn reached(&self) -> Index {
        self.next.max(self.ahead.restored_below()).max(self.saved)
    }

    /// Returns the lowest index that was never handed out.
    #[must_use]
    pub fn next(&self) -> Index {
        self.next
    }

    /// Returns the lowest index above the watermark, or the first index while there is no
    /// watermark.
    #[must_use]
    pub fn lowest_unprocessed(&self) -> Index {
        self.saved
    }

    /// Returns the lowest index, from this one on, that was neither handed out, nor done in an
    /// earlier life, nor failed in one.
    #[must_use]
    pub fn unstarted_from(&self, index: Index) -> Index {
        let mut index = self.ahead.next_undone(index.max(self.next));
        while self.held.contains(&index) {
            index = self.ahead.next_undone(index + 1);
        }
        index
    }

    /// True if the source has a job that may start, was never read, and is not known to be missing.
    #[inline]
    #[must_use]
    pub fn has_unread(&self) -> bool {
        self.hold == Hold::No && self.read < self.bound()
    }

    /// Returns the lowest index that was never read.
    #[must_use]
    pub fn unread_from(&self) -> Index {
        self.read
    }

    /// Returns the head that was last seen.
    #[must_use]
    pub fn head(&self) -> Option<Index> {
        self.head
    }

    /// True if the gate holds this index back, provided that it never started.
    #[must_use]
    pub fn is_gated(&self, index: Index) -> bool {
        index >= self.gate
    }

    /// Returns the number of jobs that workers hold and have not reported.
    #[inline]
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns the number of jobs that finished above the watermark, with those that are not saved
    /// yet.
    #[must_use]
    pub fn done_ahead(&self) -> u64 {
        self.done - self.saved + self.ahead.len()
    }

    /// Returns the number of jobs that finished and are on no disk yet. If only the watermark is
    /// kept, these are all jobs that finished above it.
    #[must_use]
    pub fn unsaved(&self) -> u64 {
        self.ahead.unsaved().unwrap_or_else(|| self.done_ahead())
    }

    /// True if an earlier life had done this index, above its watermark.
    #[inline]
    #[must_use]
    pub fn is_restored(&self, index: Index) -> bool {
        self.ahead.is_restored(index)
    }

    /// True if an earlier life had done any index from this one on, above its watermark.
    #[inline]
    #[must_use]
    pub fn has_restored(&self, from: Index) -> bool {
        from < self.ahead.restored_below()
    }

    /// Returns the number of jobs above the watermark that were started in this life or an earlier
    /// one: running, waiting for a retry, or done ahead.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.next - self.saved + self.ahead.beyond() + self.held.len() as u64
    }

    /// Returns the limits that hold.
    #[inline]
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// True if the window is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// True if nothing is in flight and nothing is to start any more, and the end only waits for
    /// the last save.
    #[inline]
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.in_flight == 0
            && (self.stopping || self.stop_at.is_some_and(|last| self.done > last) && self.redriven.is_empty())
            && !self.ended
            && !self.abandoned_save
    }

    /// True if a save was asked for and has not come to its end.
    #[must_use]
    pub(crate) fn is_saving(&self) -> bool {
        self.saving != SaveState::No
    }

    /// True if nothing will start any more.
    #[inline]
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// True if [`Action::Finish`](super::Action::Finish) was returned.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns the last index that this window will ever pass, if there is one.
    #[must_use]
    pub fn ends_at(&self) -> Option<Index> {
        self.stop_at
    }
}
