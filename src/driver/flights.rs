//! The jobs in flight, by token.

use crate::base::index::Index;
use crate::base::time::Coarse;

/// One job in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    pub(crate) index: Index,
    pub(crate) attempt: u32,
    /// True if the job was handed out before.
    pub(crate) again: bool,
    /// The time at which it began. It is coarse, since it is read for every job.
    pub(crate) started: Coarse,
}

/// A slab: beginning and ending a flight moves nothing and, once warm, allocates nothing. The
/// flights are also a list by their beginning, so the oldest one is found without a search.
#[derive(Debug)]
pub(crate) struct Flights {
    slots: Vec<Slot>,
    /// The head of the list of free slots.
    free: usize,
    count: usize,
    oldest: usize,
    youngest: usize,
}

#[derive(Debug)]
struct Slot {
    flight: Flight,
    /// The flight that began before it; [`FREE`] in a free slot.
    older: usize,
    /// The flight that began after it, or the next free slot.
    younger: usize,
}

/// No slot.
const NONE: usize = usize::MAX;

/// The mark of a slot that is free.
const FREE: usize = usize::MAX - 1;

impl Default for Flights {
    fn default() -> Self {
        Self { slots: Vec::new(), free: NONE, count: 0, oldest: NONE, youngest: NONE }
    }
}

impl Flights {
    #[inline]
    pub(crate) fn begin(&mut self, flight: Flight) -> usize {
        self.count += 1;
        let slot = Slot { flight, older: self.youngest, younger: NONE };
        let token = match self.slots.get_mut(self.free) {
            Some(free) => {
                let token = self.free;
                self.free = free.younger;
                *free = slot;
                token
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        };
        match self.slots.get_mut(self.youngest) {
            Some(before) => before.younger = token,
            None => self.oldest = token,
        }
        self.youngest = token;
        token
    }

    #[inline]
    pub(crate) fn end(&mut self, token: usize) -> Option<Flight> {
        let slot = self.slots.get_mut(token).filter(|slot| slot.older != FREE)?;
        let (flight, older, younger) = (slot.flight, slot.older, slot.younger);
        (slot.older, slot.younger) = (FREE, self.free);
        self.free = token;
        self.count -= 1;
        match self.slots.get_mut(older) {
            Some(older) => older.younger = younger,
            None => self.oldest = younger,
        }
        match self.slots.get_mut(younger) {
            Some(younger) => younger.older = older,
            None => self.youngest = older,
        }
        Some(flight)
    }

    pub(crate) fn get(&self, token: usize) -> Option<&Flight> {
        self.slots.get(token).filter(|slot| slot.older != FREE).map(|slot| &slot.flight)
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Returns the flight that began first.
    pub(crate) fn oldest(&self) -> Option<&Flight> {
        self.slots.get(self.oldest).map(|slot| &slot.flight)
    }

    /// In the order of the tokens, which is none.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Flight> {
        self.slots.iter().filter(|slot| slot.older != FREE).map(|slot| &slot.flight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_used_again_and_a_token_ends_once() {
        let flight = |index| Flight { index, attempt: 1, again: false, started: crate::base::time::coarse() };
        let mut flights = Flights::default();
        let (a, b) = (flights.begin(flight(1)), flights.begin(flight(2)));
        assert_eq!(flights.end(a).map(|f| f.index), Some(1));
        assert!(flights.end(a).is_none());
        assert_eq!(flights.begin(flight(3)), a, "no slot is left unused");
        assert_eq!(flights.iter().map(|f| f.index).collect::<Vec<_>>(), [3, 2]);
        flights.end(a);
        flights.end(b);
        assert_eq!(flights.len(), 0);
    }

    proptest::proptest! {
        #[test]
        fn the_oldest_flight_is_that_of_a_list_whatever_ends_first(steps in proptest::collection::vec(0..12usize, 0..200)) {
            let (mut flights, mut list) = (Flights::default(), Vec::<(usize, Index)>::new());
            for (index, step) in (0..).zip(steps) {
                if step < list.len() {
                    let (token, begun) = list.remove(step);
                    proptest::prop_assert_eq!(flights.end(token).map(|flight| flight.index), Some(begun));
                    proptest::prop_assert!(flights.end(token).is_none(), "a token ends once");
                } else {
                    let flight = Flight { index, attempt: 1, again: false, started: crate::base::time::coarse() };
                    list.push((flights.begin(flight), index));
                }
                proptest::prop_assert_eq!(flights.oldest().map(|flight| flight.index), list.first().map(|(_, index)| *index));
                let (mut all, mut listed): (Vec<_>, Vec<_>) =
                    (flights.iter().map(|flight| flight.index).collect(), list.iter().map(|(_, index)| *index).collect());
                all.sort_unstable();
                listed.sort_unstable();
                proptest::prop_assert_eq!(all, listed);
                proptest::prop_assert_eq!(flights.len(), list.len());
            }
        }
    }
}
