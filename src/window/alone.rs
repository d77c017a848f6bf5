//! Jobs that a crash may have been the fault of: those that an earlier life had handed out, and a
//! job that runs alone.

use super::{Run, Window};
use crate::base::index::Index;
use alloc::vec::Vec;

impl Window {
    /// Tells the window that an earlier life had handed out every job up to and including this one.
    /// Those that are not done wait for a back-off, as failed jobs do. Returns them. Call it after
    /// [`restore`](Self::restore), before anything else happens.
    pub fn restore_waiting(&mut self, last: Index) -> Vec<Index> {
        let mut waiting = Vec::new();
        while self.next <= last.min(super::LAST_JOB) {
            self.retries.wait(self.next);
            waiting.push(self.next);
            self.next += 1;
            self.pass_restored();
        }
        waiting
    }

    /// From now on no job starts but this one, which waits for a back-off. It starts once it is
    /// [due](Self::handle_due) and no other job is in flight. `None`: any job may start again.
    pub fn handle_alone(&mut self, only: Option<Index>) {
        self.only = only;
    }

    /// Reports that a job which is due waits for another back-off. Returns false, and changes
    /// nothing, if it is not due, or if it is being read or was read.
    pub fn handle_put_back(&mut self, index: Index) -> bool {
        self.retries.withdraw(index) && self.retries.wait(index)
    }

    /// True if this job, which waits, may start as far as the width of the window goes.
    #[must_use]
    pub fn reaches(&self, index: Index) -> bool {
        index < self.closed_from() || self.redriven.contains(&index)
    }

    /// Returns the job that runs alone, if it was read and nothing else is in flight. The caller
    /// has seen that there is a slot.
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
