//! The indices done above the lowest undone index, and which of them are in no save yet.

use super::bits::Bits;
use crate::base::Index;
use alloc::vec::Vec;
use core::ops::{Range, RangeInclusive};

/// Up to this length, a save lists the new indices.
const LISTED: usize = if cfg!(test) { 8 } else { 4096 };

/// The number of bitmap words for each listed index. A longer list would exceed the whole bitmap,
/// which is saved instead.
const WORDS_FOR_ONE: usize = 2;

#[derive(Debug, Default)]
pub(crate) struct AheadJobs {
    done: Bits,
    /// The number of set bits in `done`.
    count: u64,
    /// One past the highest index that an earlier life had done.
    restored_below: Index,
    /// The number of indices done in an earlier life that the window's `next` has not passed.
    beyond: u64,
    /// True if saves contain these indices.
    kept: bool,
    /// The indices done since the last save began. Some may now be below the lowest undone index.
    new: Vec<Index>,
    /// The listed indices of the save under way.
    saving: Vec<Index>,
    /// True if there are too many new indices to list.
    unlisted: bool,
    /// True if the save under way contains the whole bitmap.
    saving_all: bool,
    /// The number of jobs done since the last save began.
    fresh: u64,
    /// The number of jobs in the save under way.
    writing: u64,
}

/// The indices done above the lowest undone index, for a save.
#[derive(Clone, Copy, Debug)]
pub struct AheadContent<'a> {
    /// The indices that are new since the last save, ascending. `None` if there are too many to
    /// list: then save all [`words`](Self::words).
    pub new: Option<&'a [Index]>,
    done: &'a Bits,
}

impl AheadContent<'_> {
    /// Returns the whole bitmap: the index of its lowest bit, and its words, lowest bits first.
    pub fn words(&self) -> (Index, impl Iterator<Item = u64>) {
        let (first, words) = self.done.words();
        (first, words.iter().copied())
    }
}

impl AheadJobs {
    pub(crate) fn keep(&mut self) {
        self.kept = true;
    }

    /// Sets the indices done in an earlier life.
    pub(crate) fn restore(&mut self, run: RangeInclusive<Index>) {
        if run.is_empty() {
            return;
        }
        let new = self.done.set_run(&run);
        self.count += new;
        self.beyond += new;
        self.restored_below = self.restored_below.max(run.end() + 1);
    }

    /// Settles a gap above the lowest undone index, of which nothing was started. Returns how many
    /// of the indices were not done before.
    pub(crate) fn settle(&mut self, gap: RangeInclusive<Index>) -> u64 {
        let before = self.count;
        self.restore(gap);
        self.count - before
    }

    /// Forgets the indices below this one, all of which were restored. Returns their number.
    pub(crate) fn jump(&mut self, lowest: Index) -> u64 {
        let passed = self.done.begin_at(lowest);
        self.count -= passed;
        self.beyond -= passed;
        passed
    }

    /// Marks this index done. Takes the lowest undone index, and returns the new one.
    // Part of `handle_done`, which is inlined.
    #[inline(always)]
    pub(crate) fn insert(&mut self, index: Index, lowest: Index) -> Index {
        self.done.set(index);
        self.count += 1;
        self.fresh += 1;
        if index == lowest {
            return self.advance(lowest);
        }
        if self.kept {
            self.list(index);
        }
        lowest
    }

    /// Marks these undone indices done. Takes the lowest undone index, and returns the new one.
    pub(crate) fn insert_run(&mut self, run: Range<Index>, lowest: Index) -> Index {
        self.fresh += run.end - run.start;
        if run.start == lowest {
            let passed = self.done.begin_at(run.end);
            debug_assert_eq!(passed, 0, "none of them was done");
            return self.advance(run.end);
        }
        self.count += self.done.set_run(&(run.start..=run.end - 1));
        if self.kept {
            run.for_each(|index| self.list(index));
        }
        lowest
    }

    /// Returns the lowest undone index, given that all below `lowest` are done.
    #[inline]
    pub(crate) fn advance(&mut self, lowest: Index) -> Index {
        if !self.done.contains(lowest) {
            return lowest;
        }
        let end = self.done.take_run(lowest);
        self.count -= end - lowest;
        end
    }

    #[inline]
    fn list(&mut self, index: Index) {
        if self.unlisted {
            return;
        }
        if self.new.len() >= self.most() {
            let (lowest, _) = self.done.words();
            self.new.retain(|index| *index >= lowest);
            // The list goes on only if at least half of it is free now. Otherwise it would be
            // filtered again after every few jobs.
            self.unlisted = self.new.len() > self.most() / 2;
        }
        self.new.push(index);
    }

    /// Returns the maximum length of the list.
    fn most(&self) -> usize {
        (self.done.words().1.len() / WORDS_FOR_ONE).max(LISTED)
    }

    /// Begins a save and returns its content, which includes that of a failed save before it.
    pub(crate) fn begin_save(&mut self, lowest: Index) -> AheadContent<'_> {
        self.writing += core::mem::take(&mut self.fresh);
        self.saving.append(&mut self.new);
        self.saving.retain(|index| *index >= lowest);
        self.saving_all |= core::mem::take(&mut self.unlisted) || self.saving.len() > self.most();
        if self.saving_all {
            self.saving = Vec::new();
        }
        self.saving.sort_unstable();
        AheadContent { new: (!self.saving_all).then_some(self.saving.as_slice()), done: &self.done }
    }

    /// Ends a save that is written.
    pub(crate) fn end_save(&mut self) {
        self.writing = 0;
        self.saving_all = false;
        self.saving.clear();
        self.saving.shrink_to(LISTED);
    }

    /// Takes an index of the save under way back. Takes and returns the lowest undone index.
    pub(crate) fn revoke(&mut self, index: Index, lowest: Index) -> Index {
        if index < lowest {
            if index + 1 < lowest {
                self.count += self.done.set_run(&(index + 1..=lowest - 1));
            }
        } else {
            self.count -= u64::from(self.done.unset(index));
        }
        // Without done-ahead, this number is not used.
        self.writing -= u64::from(self.kept);
        // The disk may have any of the indices above this one, so the save must list all.
        self.saving_all = true;
        lowest.min(index)
    }

    #[inline]
    pub(crate) fn needs_save(&self) -> bool {
        self.kept && self.fresh > 0
    }

    /// Returns the number of done jobs that are not saved, or `None` without done-ahead.
    pub(crate) fn unsaved(&self) -> Option<u64> {
        self.kept.then_some(self.fresh + self.writing)
    }

    #[inline]
    pub(crate) fn contains(&self, index: Index) -> bool {
        self.done.contains(index)
    }

    /// Returns the number of indices done above the lowest undone one.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        self.count
    }

    /// Returns how many indices in `start..end` are done.
    pub(crate) fn count(&self, start: Index, end: Index) -> u64 {
        self.done.count(start, end)
    }

    /// Returns the number of indices done in an earlier life that `next` has not passed.
    #[inline]
    pub(crate) fn beyond(&self) -> u64 {
        self.beyond
    }

    #[inline]
    pub(crate) fn restored_below(&self) -> Index {
        self.restored_below
    }

    #[inline]
    pub(crate) fn is_restored(&self, index: Index) -> bool {
        index < self.restored_below && self.contains(index)
    }

    /// Returns how many indices in `start..end` are done, none of which was started in this life.
    #[inline]
    pub(crate) fn restored_within(&self, start: Index, end: Index) -> u64 {
        if start < self.restored_below { self.done.count(start, end) } else { 0 }
    }

    /// Returns the new `next`: the lowest undone index from `next` on, which was not started.
    #[inline]
    pub(crate) fn pass(&mut self, next: Index) -> Index {
        let undone = self.next_undone(next);
        self.beyond -= undone - next;
        undone
    }

    /// Returns the lowest undone index from this one on, which was not started.
    #[inline]
    pub(crate) fn next_undone(&self, index: Index) -> Index {
        if index < self.restored_below { self.done.next_unset(index) } else { index }
    }

    /// Returns one past the highest undone index in `start..end`, given that `start` is undone.
    #[inline]
    pub(crate) fn trim(&self, start: Index, end: Index) -> Index {
        if start < self.restored_below { self.done.trim_set(start, end) } else { end }
    }
}
