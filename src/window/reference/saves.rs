//! Choices about a save: its content, and its end.

use super::{Choice, Trial, nth};
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

    /// Revokes jobs in any order, and at once asks for the new content of the save.
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
        for index in revoked.into_iter().filter(|index| !self.model.parked.contains(index)).collect::<Vec<_>>() {
            assert!(self.window.handle_revoked(index));
            assert!(!self.window.handle_revoked(index), "a job is revoked once");
            self.model.done.remove(&index);
            self.model.waiting.insert(index);
            self.ever_done.remove(&index);
        }
        self.saving();
    }
}
