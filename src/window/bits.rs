//! The indices done above the lowest undone one: one bit each, in a ring.

use crate::base::Index;
use alloc::collections::VecDeque;
use core::ops::RangeInclusive;

/// The bits, from the word of the lowest undone index on.
#[derive(Debug, Default)]
pub(crate) struct Bits {
    words: VecDeque<u64>,
    /// The lowest index of the first word, divided by 64.
    origin: u64,
}

impl Bits {
    const SHRINK_FROM: usize = 64;

    // Part of `handle_done`, which is inlined.
    #[inline(always)]
    pub(crate) fn set(&mut self, index: Index) {
        let at = self.room_for(index);
        self.words[at] |= 1 << (index % 64);
    }

    /// Returns the position of the word with the bit of this index, and makes room for it.
    #[inline]
    fn room_for(&mut self, index: Index) -> usize {
        let number = index / 64;
        if self.words.is_empty() {
            self.origin = number;
        }
        while number < self.origin {
            self.words.push_front(0);
            self.origin -= 1;
        }
        let at = (number - self.origin) as usize;
        if at >= self.words.len() {
            if at >= self.words.capacity() {
                // The ring grows by a quarter: doubling would leave up to half of it empty.
                self.words.reserve_exact(at + 1 + at / 4 - self.words.len());
            }
            self.words.resize(at + 1, 0);
        }
        at
    }

    /// Sets all of these bits. Returns how many were not set before.
    pub(crate) fn set_run(&mut self, run: &RangeInclusive<Index>) -> u64 {
        self.room_for(*run.start());
        self.room_for(*run.end());
        let mut new = 0;
        for number in run.start() / 64..=run.end() / 64 {
            let low = if number == run.start() / 64 { u64::MAX << (run.start() % 64) } else { u64::MAX };
            let high = if number == run.end() / 64 { u64::MAX >> (63 - run.end() % 64) } else { u64::MAX };
            let word = &mut self.words[(number - self.origin) as usize];
            new += u64::from((low & high & !*word).count_ones());
            *word |= low & high;
        }
        new
    }

    /// Clears the bit of this index. Returns true if it was set.
    pub(crate) fn unset(&mut self, index: Index) -> bool {
        let was_set = self.contains(index);
        if was_set {
            self.words[(index / 64 - self.origin) as usize] &= !(1 << (index % 64));
        }
        was_set
    }

    #[inline]
    pub(crate) fn contains(&self, index: Index) -> bool {
        self.word_of(index).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    /// Returns the lowest index from `start` on whose bit is not set.
    pub(crate) fn next_unset(&self, start: Index) -> Index {
        let mut index = start;
        while let Some(word) = self.word_of(index) {
            let ones = u64::from((word >> (index % 64)).trailing_ones());
            index += ones;
            if !index.is_multiple_of(64) || ones == 0 {
                break;
            }
        }
        index
    }

    /// Returns one past the highest unset index in `start..end`, or `start` if all are set.
    pub(crate) fn trim_set(&self, start: Index, end: Index) -> Index {
        let mut end = end;
        while end > start {
            let Some(word) = self.word_of(end - 1) else { break };
            let ones = u64::from((word << (63 - (end - 1) % 64)).leading_ones());
            end = end.saturating_sub(ones).max(start);
            if ones == 0 || !end.is_multiple_of(64) {
                break;
            }
        }
        end
    }

    /// Returns how many bits in `start..end` are set.
    pub(crate) fn count(&self, start: Index, end: Index) -> u64 {
        let mut count = 0;
        let mut index = start.max(self.origin * 64);
        while index < end {
            let Some(word) = self.word_of(index) else { break };
            let next = (index / 64 + 1).saturating_mul(64).min(end);
            let below = if next.is_multiple_of(64) { u64::MAX } else { (1 << (next % 64)) - 1 };
            count += u64::from((word & below & (u64::MAX << (index % 64))).count_ones());
            index = next;
        }
        count
    }

    /// Returns the index of the lowest bit, and the words.
    pub(crate) fn words(&self) -> (Index, &VecDeque<u64>) {
        (self.origin * 64, &self.words)
    }

    #[inline]
    fn word_of(&self, index: Index) -> Option<u64> {
        let at = (index / 64).checked_sub(self.origin)?;
        self.words.get(usize::try_from(at).ok()?).copied()
    }

    /// Forgets the bits below this index, and begins with its word. Returns how many were set.
    pub(crate) fn begin_at(&mut self, lowest: Index) -> u64 {
        let mut forgotten = 0;
        while self.origin < lowest / 64
            && let Some(word) = self.words.pop_front()
        {
            forgotten += u64::from(word.count_ones());
            self.origin += 1;
        }
        if let Some(word) = self.words.front_mut().filter(|_| self.origin == lowest / 64) {
            let below = *word & !(u64::MAX << (lowest % 64));
            forgotten += u64::from(below.count_ones());
            *word ^= below;
        }
        self.shrink();
        forgotten
    }

    #[inline]
    fn shrink(&mut self) {
        if self.words.capacity() > Self::SHRINK_FROM && self.words.len() < self.words.capacity() / 4 {
            self.words.shrink_to(self.words.len() * 2);
        }
    }

    /// Forgets the run of set bits from `start`, the lowest bit that may be set. Returns its end.
    #[inline]
    pub(crate) fn take_run(&mut self, start: Index) -> Index {
        let mut end = start;
        while let Some(word) = self.words.front_mut() {
            debug_assert_eq!(self.origin, end / 64, "the first word is the one of the lowest undone index");
            let shift = end % 64;
            let ones = u64::from((*word >> shift).trailing_ones());
            end += ones;
            if shift + ones < 64 {
                // Set bits stand for indices above the lowest undone one, so those of the run go.
                *word &= u64::MAX << (shift + ones);
                break;
            }
            self.words.pop_front();
            self.origin += 1;
        }
        self.shrink();
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_searches_agree_with_a_scan() {
        let mut bits = Bits::default();
        let set = |i: Index| i.is_multiple_of(7) || (130..260).contains(&i) || i == 64;
        (60..400).filter(|i| set(*i)).for_each(|i| bits.set(i));
        let is_set = |i: &Index| (60..400).contains(i) && set(*i);
        for start in 0..420 {
            assert_eq!(bits.next_unset(start), (start..).find(|i| !is_set(i)).unwrap(), "from {start}");
            for end in start..420 {
                assert_eq!(bits.count(start, end), (start..end).filter(is_set).count() as u64, "{start}..{end}");
                let last = (start..end).rev().find(|i| !is_set(i)).map_or(start, |i| i + 1);
                assert_eq!(bits.trim_set(start, end), last, "{start}..{end}");
            }
        }
    }

    #[test]
    fn a_wide_window_frees_its_memory_as_it_closes() {
        let mut bits = Bits::default();
        (1..1_000_000).for_each(|i| bits.set(i));
        let wide = bits.words.capacity();
        assert!(wide * 64 <= 3 * 1_000_000, "{wide} words for a million bits");
        bits.set(0);
        assert_eq!(bits.take_run(0), 1_000_000);
        assert!(bits.words.capacity() <= Bits::SHRINK_FROM, "{} words are kept", bits.words.capacity());
    }
}
