//! What is done above the lowest undone index, and what of it no save has yet.

use super::bits::Bits;
use crate::base::index::Index;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

/// So many that are new since the last save are listed in any case.
const LISTED: usize = if cfg!(test) { 8 } else { 4096 };

/// Beyond that, one for so many words of the window: then everything is smaller than a list of what is new.
const WORDS_FOR_ONE: usize = 2;

/// The indices that are done, above the lowest that is not.
#[derive(Debug, Default)]
pub(crate) struct DoneAhead {
    done: Bits,
    /// How many bits of `done` are set.
    count: u64,
    /// One past the highest index that an earlier life had done.
    restored_below: Index,
    /// How many of those were not passed yet by what starts next.
    beyond: u64,
    /// Whether saves are to have it.
    kept: bool,
    /// Done since the last save began; also what is not ahead any more.
    new: Vec<Index>,
    /// What the save under way has.
    saving: Vec<Index>,
    /// More is new than is worth listing.
    unlisted: bool,
    /// The save under way has all of it.
    saving_all: bool,
    /// How many finished since the last save began.
    fresh: u64,
    /// How many the save under way has.
    writing: u64,
}

/// What is done above the lowest undone index, for a save.
#[derive(Clone, Copy, Debug)]
pub struct SaveAhead<'a> {
    /// What is new since the last save, in ascending order; `None`: too much to list.
    pub new: Option<&'a [Index]>,
    done: &'a Bits,
}

impl SaveAhead<'_> {
    /// All of it, a bit for each index, the lowest first: the index of the first word's lowest bit, and the words.
    pub fn words(&self) -> (Index, impl Iterator<Item = u64>) {
        let (first, words) = self.done.words();
        (first, words.iter().copied())
    }
}

impl DoneAhead {
    pub(crate) fn keep(&mut self) {
        self.kept = true;
    }

    /// An earlier life had these done.
    pub(crate) fn restore(&mut self, run: RangeInclusive<Index>) {
        if run.is_empty() {
            return;
        }
        let new = self.done.set_run(&run);
        self.count += new;
        self.beyond += new;
        self.restored_below = self.restored_below.max(run.end() + 1);
    }

    /// This index is done, and `lowest` was the lowest undone one: which one is now.
    #[inline]
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

    /// Which index is the lowest undone one, when all below `lowest` are done.
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
            // Half of the room at least, so that it is not looked through again for each one.
            self.unlisted = self.new.len() > self.most() / 2;
        }
        self.new.push(index);
    }

    /// How many are listed at most.
    fn most(&self) -> usize {
        (self.done.words().1.len() / WORDS_FOR_ONE).max(LISTED)
    }

    /// What a save is to have: also what the one before it had, if that failed.
    pub(crate) fn begin_save(&mut self, lowest: Index) -> SaveAhead<'_> {
        self.writing += core::mem::take(&mut self.fresh);
        self.saving.append(&mut self.new);
        self.saving.retain(|index| *index >= lowest);
        self.saving_all |= core::mem::take(&mut self.unlisted) || self.saving.len() > self.most();
        if self.saving_all {
            self.saving = Vec::new();
        }
        self.saving.sort_unstable();
        SaveAhead { new: (!self.saving_all).then_some(self.saving.as_slice()), done: &self.done }
    }

    /// It is saved.
    pub(crate) fn end_save(&mut self) {
        self.writing = 0;
        self.saving_all = false;
        self.saving.clear();
        self.saving.shrink_to(LISTED);
    }

    /// Takes back that an index is done which the save under way has. `lowest` was the lowest
    /// undone one; which one is now.
    pub(crate) fn revoke(&mut self, index: Index, lowest: Index) -> Index {
        if index < lowest {
            if index + 1 < lowest {
                self.count += self.done.set_run(&(index + 1..=lowest - 1));
            }
        } else {
            self.count -= u64::from(self.done.unset(index));
        }
        // Where nothing is kept, a save has only what is below its end, and nobody asks for this
        // number.
        self.writing -= u64::from(self.kept);
        // It is not known which of the indices above it the disk has, so the save lists all.
        self.saving_all = true;
        lowest.min(index)
    }

    #[inline]
    pub(crate) fn needs_save(&self) -> bool {
        self.kept && self.fresh > 0
    }

    /// How many finished that no save has yet; `None` where what is done ahead is not kept.
    pub(crate) fn unsaved(&self) -> Option<u64> {
        self.kept.then_some(self.fresh + self.writing)
    }

    #[inline]
    pub(crate) fn contains(&self, index: Index) -> bool {
        self.done.contains(index)
    }

    /// How many are done above the lowest undone index.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        self.count
    }

    /// How many of those an earlier life had done that are above what starts next.
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

    /// How many of these, none of which was started, are done.
    #[inline]
    pub(crate) fn restored_within(&self, start: Index, end: Index) -> u64 {
        if start < self.restored_below { self.done.count(start, end) } else { 0 }
    }

    /// What starts next, and was not started: the lowest undone index from `next` on.
    #[inline]
    pub(crate) fn pass(&mut self, next: Index) -> Index {
        let undone = self.next_undone(next);
        self.beyond -= undone - next;
        undone
    }

    /// The lowest undone index from this one on, which was not started.
    #[inline]
    pub(crate) fn next_undone(&self, index: Index) -> Index {
        if index < self.restored_below { self.done.next_unset(index) } else { index }
    }

    /// One past the highest undone index of these, of which the first is undone.
    #[inline]
    pub(crate) fn trim(&self, start: Index, end: Index) -> Index {
        if start < self.restored_below { self.done.trim_set(start, end) } else { end }
    }
}
