//! Choices about jobs that were passed without success, or failed in an earlier life.

use super::{Trial, nth};
use crate::base::Index;
use alloc::vec::Vec;

impl Trial {
    pub(super) fn park(&mut self, pick: u8) {
        let model = &self.model;
        let failed = model.waiting.iter().filter(|index| !model.redriven.contains(index) && !model.is_held(**index));
        let Some(index) = nth(&failed.copied().collect(), pick) else { return };
        assert!(self.window.handle_parked(index));
        assert!(!self.window.handle_parked(index), "a job is parked once");
        self.model.waiting.remove(&index);
        self.model.done.insert(index);
        self.model.parked.insert(index);
        self.model.unwritten = true;
        self.ever_done.insert(index);
    }

    pub(super) fn redrive(&mut self, pick: u8) {
        let Some(index) = nth(&self.model.parked, pick).filter(|_| !self.model.finished) else { return };
        let is_new = self.model.redriven.insert(index);
        assert_eq!(self.window.handle_redriven(index), is_new, "a job is redriven once at a time");
        if is_new {
            self.model.waiting.insert(index);
        }
    }

    pub(super) fn put_back(&mut self, pick: u8) {
        let due = self.model.due.union(&self.model.missing).copied().collect();
        let Some(index) = nth(&due, pick) else { return };
        assert!(self.window.handle_put_back(index));
        self.model.due.remove(&index);
        self.model.missing.remove(&index);
        self.model.waiting.insert(index);
    }

    /// Makes some jobs of this life wait for a back-off, as failed jobs do.
    pub(super) fn restore_waiting(&mut self, by: u8) {
        let squares = (0..8_u64).filter(|bit| by >> bit & 1 == 1).map(|bit| bit * bit);
        let failed: Vec<_> = squares.map(|at| self.model.base().saturating_add(at)).collect();
        let waiting = self.window.restore_waiting(failed.iter().copied());
        let may_wait = |index: &Index| *index < Index::MAX && !self.model.done.contains(index);
        assert!(waiting.iter().copied().eq(failed.into_iter().filter(may_wait)));
        self.model.held.extend(&waiting);
        self.model.waiting.extend(waiting);
    }

    pub(super) fn withdraw(&mut self, pick: u8) {
        let Some(index) = nth(&self.model.redriven, pick) else { return };
        let model = &mut self.model;
        let waits = model.waiting.remove(&index) || model.due.remove(&index) || model.missing.remove(&index);
        assert_eq!(self.window.handle_withdrawn(index), waits, "only a job that was not read is given up");
        if waits {
            model.redriven.remove(&index);
        }
    }

    /// Removes the record of this job, which has to be saved.
    pub(super) fn unpark(&mut self, index: Index) {
        self.model.parked.remove(&index);
        self.window.handle_changed();
        self.model.changed = true;
    }
}
