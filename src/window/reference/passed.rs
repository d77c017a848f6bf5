//! The choices that concern jobs which were passed without success, or were handed out by an
//! earlier life.

use super::{Trial, nth};
use crate::base::index::Index;

impl Trial {
    pub(super) fn park(&mut self, pick: u8) {
        let failed = self.model.waiting.iter().filter(|index| !self.model.redriven.contains(index));
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

    /// The lowest jobs of this life wait for a back-off, as failed jobs do.
    pub(super) fn restore_waiting(&mut self, by: u8) {
        let last = self.model.base().saturating_add(u64::from(by % 32)).min(Index::MAX - 1);
        let waiting = self.window.restore_waiting(last);
        assert!(waiting.iter().all(|index| !self.model.done.contains(index)));
        self.model.started.extend(&waiting);
        self.model.waiting.extend(waiting);
        assert!((self.model.base()..=last).all(|i| self.model.waiting.contains(&i) || self.model.done.contains(&i)));
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

    /// The caller no longer has a record of this job, and wants that saved.
    pub(super) fn unpark(&mut self, index: Index) {
        self.model.parked.remove(&index);
        self.window.handle_changed();
        self.model.changed = true;
    }
}
