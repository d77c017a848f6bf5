//! New jobs that begin, and may end, before the window hears of them: those of the tray.

use crate::base::Index;
use crate::window::Window;
use core::ops::Range;

impl Window {
    /// Returns at most `most` new jobs that the next calls of [`poll_run`](Self::poll_run) would
    /// hand out in a row if each was done at once.
    pub fn next_in_a_row(&self, most: u64) -> Range<Index> {
        let (next, end) = (self.next, self.read.min(self.bound()));
        let plain = self.only.is_none() && self.held.is_empty() && next >= self.ahead.restored_below();
        if !plain || !self.starts_jobs() || self.retries.can_start() {
            return next..next;
        }
        next..end.min(next.saturating_add(most)).max(next)
    }

    /// Reports that this many of the [next new jobs](Self::next_in_a_row) have begun and succeeded.
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
