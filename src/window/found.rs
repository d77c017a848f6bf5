//! The gaps found in this life above the watermark. No rule needs them; they are for display.

use crate::base::Index;
use alloc::collections::BTreeMap;
use core::ops::Range;

/// The most runs of gaps that are kept. The indices of others count as done.
const MOST: usize = 1_024;

/// Runs of gaps that do not touch, each from its first index to one past its last.
#[derive(Debug, Default)]
pub(crate) struct FoundGaps(BTreeMap<Index, Index>);

impl FoundGaps {
    /// Notes a gap, and forgets those below `saved`, the end of what is saved.
    pub(crate) fn note(&mut self, gap: Range<Index>, saved: Index) {
        while self.0.first_entry().is_some_and(|first| *first.get() <= saved) {
            self.0.pop_first();
        }
        let before = self.0.range_mut(..=gap.start).next_back();
        if let Some((_, end)) = before.filter(|(_, end)| **end >= gap.start) {
            *end = gap.end.max(*end);
        } else if self.0.len() < MOST && !gap.is_empty() {
            self.0.insert(gap.start, gap.end);
        }
    }

    pub(crate) fn count(&self, start: Index, end: Index) -> u64 {
        let runs = self.0.range(..end).rev().take_while(|(_, past)| **past > start);
        runs.map(|(first, past)| past.min(&end) - first.max(&start)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noted_gaps_are_counted_up_to_a_bound_of_runs() {
        let mut found = FoundGaps::default();
        [(10..12, 0), (12..13, 0), (20..30, 0), (5..6, 0), (25..26, 0), (7..7, 0)]
            .into_iter()
            .for_each(|(gap, saved)| found.note(gap, saved));
        let counted = [(0, 40), (11, 13), (12, 21), (6, 10), (29, 31), (30, 40)].map(|(a, b)| found.count(a, b));
        assert_eq!(counted, [14, 2, 2, 0, 1, 0]);
        assert_eq!(found.0.len(), 3);
        found.note(40..41, 13);
        assert_eq!((found.count(0, 20), found.count(0, 50)), (0, 11));
        (0..2 * MOST as u64).for_each(|nth| found.note(100 + 2 * nth..101 + 2 * nth, 13));
        assert_eq!((found.0.len(), found.count(0, 100)), (MOST, 11), "the first ones stay");
    }
}
