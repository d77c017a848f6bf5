//! Choices about a save: its content, and its end. And about jobs that were passed without success,
//! or failed in an earlier life.

use super::{Choice, Trial, Window, nth};
use crate::base::Index;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

impl Trial {
    pub(super) fn save(&mut self, choice: Choice) {
        match choice {
            Choice::Saving => self.saving(),
            Choice::Saved => {
                if let Some((last, ahead)) = self.model.saving.take() {
                    self.model.save_due = false;
                    self.model.writing.clear();
                    self.window.handle_saved();
                    if let Some(last) = last {
                        let saved = self.model.base()..=last;
                        assert!(saved.clone().all(|i| self.ever_done.contains(&i)), "promise 1: nothing is skipped");
                        self.ever_done = self.ever_done.split_off(&last);
                    }
                    self.model.disk = last;
                    self.model.disk_ahead = ahead;
                }
            }
            Choice::Revoke(pick) => self.revoke(pick),
            _ => {
                if self.model.saving.take().is_some() {
                    self.model.save_due = false;
                    self.model.writing.clear();
                    self.window.handle_save_abandoned();
                    self.model.abandoned_save = true;
                    self.model.stopping = true;
                }
            }
        }
    }

    fn saving(&mut self) {
        let model = &mut self.model;
        let save = self.window.handle_saving();
        assert_eq!(save.is_some(), model.save_due, "a save has content if and only if it is due");
        let Some(save) = save else { return };
        let (lowest, mut ahead) = (model.lowest_undone(), model.ahead());
        assert_eq!(save.next, lowest, "promise 5: a save contains the done jobs and no others");
        let last = (model.disk.is_some() || lowest > model.base()).then(|| lowest - 1);
        assert_eq!(save.last_processed, last);
        if model.keeps {
            let (first, words) = save.ahead.words();
            let all = words.enumerate().flat_map(|(at, word)| {
                (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| first + 64 * at as u64 + bit)
            });
            assert!(all.eq(ahead.iter().copied()), "promise 10: a save contains everything done ahead");
            if let Some(new) = save.ahead.new {
                let expected = ahead.difference(&model.disk_ahead).filter(|index| !model.gaps.contains(index));
                assert!(new.iter().eq(expected), "promise 10: a save lists each new index once, in order");
                // The next life asks for the gaps again.
                ahead.retain(|index| model.disk_ahead.contains(index) || !model.gaps.contains(index));
            }
        }
        model.unwritten = false;
        model.changed = false;
        let is_news = |i: &&Index| !model.disk_ahead.contains(i) && !model.gaps.contains(i);
        model.writing = model.done.range(model.base()..).filter(is_news).copied().collect();
        model.saving = Some((last, if model.keeps { ahead } else { BTreeSet::new() }));
    }

    /// Revokes jobs in any order, or puts them aside, and asks for the new content of the save.
    fn revoke(&mut self, pick: u8) {
        let Some(lowest) = nth(&self.model.writing, pick / 16) else {
            let done = self.model.done.first().copied().unwrap_or(self.model.first);
            return assert!(
                self.model.saving.is_some() || !self.window.handle_revoked(done),
                "no save is being written"
            );
        };
        let mut revoked: Vec<_> = self.model.writing.range(lowest..).take(usize::from(pick % 8) + 1).copied().collect();
        if pick & 8 > 0 {
            revoked.reverse();
        }
        // A parked job has no effects that could be refused.
        revoked.retain(|index| !self.model.parked.contains(index));
        for (nth, index) in revoked.into_iter().enumerate() {
            // The results of some wait again.
            let (aside, window) = (nth % 2 == 1, &mut self.window);
            let revoke = if aside { Window::handle_put_aside } else { Window::handle_revoked };
            assert!(revoke(window, index));
            assert!(!revoke(window, index), "a job is revoked once");
            assert!(!aside || !window.handle_due(index), "a result waits for no back-off");
            self.model.done.remove(&index);
            let waits = if aside { &mut self.model.aside } else { &mut self.model.waiting };
            waits.insert(index);
            self.ever_done.remove(&index);
        }
        self.saving();
    }

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
