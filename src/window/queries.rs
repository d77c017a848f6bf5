//! What can be asked of a window, without changing it.

use super::{Limits, SaveState, Window};
use crate::base::index::Index;

impl Window {
    /// Whether a save is due that something waits for: no job can start before it, or none is there.
    #[inline]
    #[must_use]
    pub fn awaits_save(&self) -> bool {
        let closed = self.next - self.saved >= self.limits.max_search_ahead;
        let idle = self.in_flight == 0 && self.fetch.is_none() && !self.can_run();
        self.saving == SaveState::Due && (closed || idle || self.full)
    }

    /// The saved last processed index; `None` while nothing was ever saved.
    #[must_use]
    pub fn last_processed(&self) -> Option<Index> {
        if self.any_saved { Some(self.saved - 1) } else { None }
    }

    /// The lowest index that is not done: the one that the watermark waits for.
    #[must_use]
    pub fn lowest_undone(&self) -> Index {
        self.done
    }

    /// The lowest index that was never handed out.
    #[must_use]
    pub fn next(&self) -> Index {
        self.next
    }

    /// The lowest index above the watermark; the first one while there is no watermark.
    #[must_use]
    pub fn lowest_unprocessed(&self) -> Index {
        self.saved
    }

    /// The lowest index from this one on that was neither handed out nor done in an earlier life.
    #[must_use]
    pub fn unstarted_from(&self, index: Index) -> Index {
        self.ahead.next_undone(index.max(self.next))
    }

    /// Whether the source has a job that may start, was never read, and is not known to be missing.
    #[inline]
    #[must_use]
    pub fn has_unread(&self) -> bool {
        !self.new_held && self.read < self.bound()
    }

    /// The lowest index that was never read.
    #[must_use]
    pub fn unread_from(&self) -> Index {
        self.read
    }

    /// The head that was last seen.
    #[must_use]
    pub fn head(&self) -> Option<Index> {
        self.head
    }

    /// Whether the gate holds this index back, if it was never started.
    #[must_use]
    pub fn is_gated(&self, index: Index) -> bool {
        index >= self.gate
    }

    /// Handed to a worker and not reported.
    #[inline]
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Finished above the watermark, also what is not yet saved.
    #[must_use]
    pub fn done_ahead(&self) -> u64 {
        self.done - self.saved + self.ahead.len()
    }

    /// Finished, and on no disk yet: where only the watermark is kept, all that finished above it.
    #[must_use]
    pub fn unsaved(&self) -> u64 {
        self.ahead.unsaved().unwrap_or_else(|| self.done_ahead())
    }

    /// Whether this index was done in an earlier life, above what was processed then.
    #[inline]
    #[must_use]
    pub fn is_restored(&self, index: Index) -> bool {
        self.ahead.is_restored(index)
    }

    /// Whether any index from this one on was.
    #[inline]
    #[must_use]
    pub fn has_restored(&self, from: Index) -> bool {
        from < self.ahead.restored_below()
    }

    /// Started and above the watermark, in this life or an earlier one: running, waiting for a retry, or done ahead.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.next - self.saved + self.ahead.beyond()
    }

    /// The limits that hold.
    #[inline]
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether nothing starts for now.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Whether nothing will start any more.
    #[inline]
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// Whether `Finish` was polled.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// The last index that this window will ever pass, if there is such a one.
    #[must_use]
    pub fn ends_at(&self) -> Option<Index> {
        self.stop_at
    }
}
