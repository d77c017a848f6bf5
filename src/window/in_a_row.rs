//! New jobs that begin, and end, while nobody asks the window: those that are laid out at once.

use crate::base::index::Index;
use crate::window::Window;
use core::ops::Range;

impl Window {
    /// Returns the new jobs, so many at most, that the next calls of [`poll_run`](Self::poll_run)
    /// would hand out one after the other if each of them was done at once.
    #[must_use]
    pub fn next_in_a_row(&self, most: u64) -> Range<Index> {
        let (next, end) = (self.next, self.read.min(self.bound()));
        let plain = self.only.is_none() && self.held.is_empty() && next >= self.ahead.restored_below();
        if !plain || !self.starts_jobs() || self.retries.can_start() {
            return next..next;
        }
        next..end.min(next.saturating_add(most)).max(next)
    }

    /// Reports that so many of the [next new jobs](Self::next_in_a_row) have begun and succeeded.
    pub fn handle_begun_and_done(&mut self, count: u64) {
        let begun = self.next..self.next + count;
        if begun.is_empty() {
            return;
        }
        self.next = begun.end;
        self.unstarted -= count;
        self.pass_restored();
        self.retried = false;
        self.done = self.ahead.insert_run(begun, self.done);
    }
}
