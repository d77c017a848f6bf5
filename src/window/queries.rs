//! Read-only queries.

use super::{Hold, Limits, SaveState, Window};
use crate::base::Index;

impl Window {
    /// True if the due save is awaited: the window is closed, full, or has nothing else to do.
    #[inline]
    pub fn awaits_save(&self) -> bool {
        let closed = self.next - self.saved >= self.width();
        // Once it stops, fetched jobs start no more.
        let may_start = !self.stopping && (self.fetch.is_some() || self.can_run());
        let idle = self.in_flight == 0 && !may_start;
        self.saving == SaveState::Due && (closed || idle || self.full)
    }

    /// Returns the saved watermark, or `None` if nothing was ever saved.
    pub fn last_processed(&self) -> Option<Index> {
        if self.any_saved { Some(self.saved - 1) } else { None }
    }

    /// Returns the lowest index that is not done, for which the watermark waits.
    pub fn lowest_undone(&self) -> Index {
        self.done
    }

    /// Returns how many indices in `start..end` are done.
    pub fn done_within(&self, start: Index, end: Index) -> u64 {
        let passed = self.done.clamp(start, end.max(start)) - start;
        passed + self.ahead.count(start.max(self.done), end)
    }

    /// Returns how many indices in `start..end` this life has found to be gaps. Knows the lowest
    /// 1,024 runs of them above the watermark.
    pub fn gaps_within(&self, start: Index, end: Index) -> u64 {
        self.found.count(start, end)
    }

    /// Returns one past the highest index that was handed out, or done in an earlier life.
    pub fn reached(&self) -> Index {
        self.next.max(self.ahead.restored_below()).max(self.saved)
    }

    /// Returns the lowest index that was never handed out.
    pub fn next(&self) -> Index {
        self.next
    }

    /// Returns the lowest index above the watermark, or the first index without a watermark.
    pub fn lowest_unprocessed(&self) -> Index {
        self.saved
    }

    /// Returns the lowest index from this one on that was neither handed out, nor done or failed
    /// earlier.
    pub fn unstarted_from(&self, index: Index) -> Index {
        let mut index = self.ahead.next_undone(index.max(self.next));
        while self.held.contains(&index) {
            index = self.ahead.next_undone(index + 1);
        }
        index
    }

    /// True if the source has an unread job that may start and is not known to be missing.
    #[inline]
    pub fn has_unread(&self) -> bool {
        self.hold == Hold::No && !self.crowded && self.read < self.bound()
    }

    pub fn unread_from(&self) -> Index {
        self.read
    }

    pub fn head(&self) -> Option<Index> {
        self.head
    }

    /// True if the gate holds this index back, unless it has started.
    pub fn is_gated(&self, index: Index) -> bool {
        index >= self.gate
    }

    /// Returns the number of jobs that workers hold and have not reported.
    #[inline]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns the number of jobs done above the watermark, whether saved or not.
    pub fn done_ahead(&self) -> u64 {
        self.done - self.saved + self.ahead.len()
    }

    /// Returns the number of jobs done and not on disk. If only the watermark is kept, these are
    /// all jobs done above it.
    pub fn unsaved(&self) -> u64 {
        self.ahead.unsaved().unwrap_or_else(|| self.done_ahead())
    }

    /// True if this index was done in an earlier life, above its watermark.
    #[inline]
    pub fn is_restored(&self, index: Index) -> bool {
        self.ahead.is_restored(index)
    }

    /// True if any index from this one on was done in an earlier life, above its watermark.
    #[inline]
    pub fn has_restored(&self, from: Index) -> bool {
        from < self.ahead.restored_below()
    }

    /// Returns the number of jobs above the watermark that were started, in this life or an earlier
    /// one: they run, wait for a retry, or are done ahead. Jobs behind others count, too.
    pub fn size(&self) -> u64 {
        self.next - self.saved + self.ahead.beyond() + self.held.len() as u64
    }

    #[inline]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// True if nothing is in flight and nothing more starts, so that only the last save is left.
    #[inline]
    pub fn is_ending(&self) -> bool {
        self.in_flight == 0
            && (self.stopping || self.stop_at.is_some_and(|last| self.done > last) && self.redriven.is_empty())
            && !self.ended
            && !self.abandoned_save
    }

    /// True if a requested save has not ended.
    pub(crate) fn is_saving(&self) -> bool {
        self.saving != SaveState::No
    }

    /// True if nothing will start any more.
    #[inline]
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// True if [`Action::Finish`](super::Action::Finish) was returned.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns the last index that this window will pass, if there is one.
    pub fn ends_at(&self) -> Option<Index> {
        self.stop_at
    }
}
