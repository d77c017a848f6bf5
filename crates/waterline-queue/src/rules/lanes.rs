//! The ready logs, and which one the next claim takes from.

/// The number of ready logs: one for each priority.
pub(crate) const LANES: usize = 4;

/// One claim in this many takes the lowest priority that has a job.
const TURN_OF_THE_LOWEST: u64 = 8;

/// Returns the ready log for the next claim, by the number of claims so far.
pub(crate) fn lane(lanes: &[Lane; 4], claims: u64) -> Option<usize> {
    let mut full = (0..lanes.len()).filter(|lane| lanes[*lane].next < lanes[*lane].end);
    if is_turn_of_the_lowest(claims) { full.next_back() } else { full.next() }
}

/// Returns the ready logs in the order of the next claim, by the number of claims so far.
pub(crate) fn lanes(claims: u64) -> [usize; 4] {
    if is_turn_of_the_lowest(claims) { [3, 2, 1, 0] } else { [0, 1, 2, 3] }
}

/// True if a held job of this priority is claimed before the next one of this ready log. It was met
/// earlier, so it comes first among equals.
pub(crate) fn is_before(priority: usize, lane: Option<usize>, claims: u64) -> bool {
    lane.is_none_or(|lane| if is_turn_of_the_lowest(claims) { priority >= lane } else { priority <= lane })
}

fn is_turn_of_the_lowest(claims: u64) -> bool {
    claims % TURN_OF_THE_LOWEST == TURN_OF_THE_LOWEST - 1
}

/// A ready log: its entries have the indices from `next` to `end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lane {
    /// The lowest index that was not claimed.
    pub(crate) next: u64,
    pub(crate) end: u64,
    /// All entries below this index are deleted.
    pub(crate) deleted: u64,
}

impl Lane {
    pub(crate) fn numbers(&mut self) -> [&mut u64; 3] {
        [&mut self.next, &mut self.end, &mut self.deleted]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_eighth_claim_takes_the_lowest_priority() {
        let full = Lane { next: 3, end: 4, deleted: 0 };
        let none = Lane { next: 4, end: 4, deleted: 0 };
        let taken = |lanes| (0..17).filter_map(|claims| lane(&lanes, claims)).collect::<Vec<_>>();
        let turns = |high, low| (0..17).map(move |claims| if [7, 15].contains(&claims) { low } else { high });
        assert_eq!(taken([full, none, full, none]), turns(0, 2).collect::<Vec<_>>());
        assert_eq!(taken([none, full, full, full]), turns(1, 3).collect::<Vec<_>>());
        assert_eq!(taken([none; 4]).len(), 0);
        assert_eq!((lanes(6), lanes(7), lanes(8)), ([0, 1, 2, 3], [3, 2, 1, 0], [0, 1, 2, 3]));
        let before = |claims| [0, 1, 2].map(|priority| is_before(priority, Some(1), claims));
        assert_eq!((before(0), before(7)), ([true, true, false], [false, true, true]));
        assert!(is_before(3, None, 0));
    }
}
