//! Which indices above the lowest undone one are finished: one bit each, in a ring.

use crate::index::Index;
use alloc::collections::VecDeque;

/// The bits, from the word of the lowest undone index on.
#[derive(Debug, Default)]
pub(crate) struct Bits {
    words: VecDeque<u64>,
    /// The number (index / 64) of the first word.
    origin: u64,
}

impl Bits {
    const SHRINK_FROM: usize = 64;

    #[inline]
    pub(crate) fn set(&mut self, index: Index) {
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
            self.words.resize(at + 1, 0);
        }
        self.words[at] |= 1 << (index % 64);
    }

    #[inline]
    pub(crate) fn contains(&self, index: Index) -> bool {
        let Some(at) = (index / 64).checked_sub(self.origin) else { return false };
        usize::try_from(at).ok().and_then(|at| self.words.get(at)).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    /// Forgets the unbroken run of set bits that begins at `start`, the lowest bit that may be set; one past its last.
    #[inline]
    pub(crate) fn take_run(&mut self, start: Index) -> Index {
        let mut end = start;
        while let Some(word) = self.words.front_mut() {
            debug_assert_eq!(self.origin, end / 64, "the first word is the one of the lowest undone index");
            let shift = end % 64;
            let ones = u64::from((*word >> shift).trailing_ones());
            end += ones;
            if shift + ones < 64 {
                // The bits below `end` are history; clearing them keeps "set" and "above the lowest undone" the same.
                *word &= u64::MAX << (shift + ones);
                break;
            }
            self.words.pop_front();
            self.origin += 1;
        }
        if self.words.capacity() > Self::SHRINK_FROM && self.words.len() < self.words.capacity() / 4 {
            self.words.shrink_to(self.words.len() * 2);
        }
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_taken_across_words_and_a_hole_ends_it() {
        let mut bits = Bits::default();
        (1..200).filter(|i| *i != 150).for_each(|i| bits.set(i));
        assert_eq!(bits.take_run(0), 0, "0 is not set");
        bits.set(0);
        assert_eq!(bits.take_run(0), 150);
        assert!(bits.contains(199) && !bits.contains(150) && !bits.contains(200) && !bits.contains(149));
        bits.set(150);
        assert_eq!(bits.take_run(150), 200);
    }

    #[test]
    fn memory_is_given_back_once_a_wide_window_has_closed() {
        let mut bits = Bits::default();
        (1..1_000_000).for_each(|i| bits.set(i));
        let wide = bits.words.capacity();
        assert!(wide * 64 <= 3 * 1_000_000, "{wide} words for a million bits");
        bits.set(0);
        assert_eq!(bits.take_run(0), 1_000_000);
        assert!(bits.words.capacity() <= Bits::SHRINK_FROM, "{} words are kept", bits.words.capacity());
    }
}
