//! Jobs that may be to blame for a crash: those that an earlier life handed out, and one that runs
//! alone.

use super::{Run, Window};
use crate::base::Index;
use alloc::vec::Vec;

impl Window {
    /// Tells the window which jobs failed in an earlier life. Those that are not done wait for a
    /// back-off, and are retried once all undone jobs below them have started. Returns them. To be
    /// called after [`restore`](Self::restore), before anything else happens.
    pub fn restore_waiting(&mut self, failed: impl IntoIterator<Item = Index>) -> Vec<Index> {
        let may_wait = |index: &Index| *index <= super::LAST_JOB && !self.is_done(*index);
        self.held = failed.into_iter().filter(may_wait).collect();
        let waiting: Vec<_> = self.held.iter().copied().collect();
        waiting.iter().for_each(|index| _ = self.retries.wait(*index));
        self.pass_restored();
        waiting
    }

    /// Moves `next` and `read` past the jobs that were done, or had failed, in an earlier life, and
    /// past those behind others. The failed ones that were passed may be retried.
    #[cold]
    pub(super) fn pass_held(&mut self) {
        while self.held.remove(&self.next) {
            self.next = self.ahead.pass(self.next + 1);
        }
        self.read = self.ahead.next_undone(self.read.max(self.next));
        while self.held.contains(&self.read) {
            self.read = self.ahead.next_undone(self.read + 1);
        }
        self.retries.reach(reach!(self));
    }

    /// Returns the lowest job from this index on that failed in an earlier life and that `next` has
    /// not passed, or [`Index::MAX`].
    #[inline]
    pub(super) fn held_from(&self, index: Index) -> Index {
        if self.held.is_empty() { Index::MAX } else { self.held.range(index..).next().copied().unwrap_or(Index::MAX) }
    }

    /// Returns one past the highest index that may be retried.
    #[inline]
    pub(super) fn tried_again_below(&self) -> Index {
        let end = self.stop_at.map_or(Index::MAX, |last| last.saturating_add(1));
        self.closed_from().min(self.held_from(0)).min(end)
    }

    /// Lets only this waiting job start, once it is [due](Self::handle_due) and nothing else is in
    /// flight. `None`: any job may start again.
    pub fn handle_alone(&mut self, only: Option<Index>) {
        self.only = only;
    }

    /// Reports that a due job waits for another back-off. Returns false, and changes nothing, if it
    /// is not due, or is being read, or was read.
    pub fn handle_put_back(&mut self, index: Index) -> bool {
        self.retries.withdraw(index) && self.retries.wait(index)
    }

    /// True if this waiting job may start, by the window's width and the started jobs below it.
    pub fn reaches(&self, index: Index) -> bool {
        index < self.tried_again_below() || self.redriven.contains(&index)
    }

    /// Returns the job that runs alone, if it is read and nothing else is in flight. The caller has
    /// checked that there is a slot.
    #[cold]
    pub(super) fn start_alone(&mut self) -> Option<Run> {
        let index = self.only.filter(|_| self.in_flight == 0)?;
        if !self.retries.take(index) {
            return None;
        }
        self.retried = true;
        self.in_flight = 1;
        Some(Run { index, retry: true })
    }

    /// True if [`start_alone`](Self::start_alone) would return a job.
    #[cold]
    pub(super) fn can_start_alone(&self) -> bool {
        self.in_flight == 0 && self.only.is_some_and(|index| self.retries.is_read(index))
    }
}
