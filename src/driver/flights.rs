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

/// A slab: beginning and ending a flight moves nothing and, once warm, allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    slots: Vec<Slot>,
    /// The head of the list of free slots.
    free: Option<usize>,
    count: usize,
}

#[derive(Debug)]
enum Slot {
    Taken(Flight),
    Free { next: Option<usize> },
}

impl Flights {
    #[inline]
    pub(crate) fn begin(&mut self, flight: Flight) -> usize {
        self.count += 1;
        match self.free {
            Some(token) => {
                if let Slot::Free { next } = self.slots[token] {
                    self.free = next;
                }
                self.slots[token] = Slot::Taken(flight);
                token
            }
            None => {
                self.slots.push(Slot::Taken(flight));
                self.slots.len() - 1
            }
        }
    }

    #[inline]
    pub(crate) fn end(&mut self, token: usize) -> Option<Flight> {
        let slot = self.slots.get_mut(token)?;
        let Slot::Taken(flight) = *slot else { return None };
        *slot = Slot::Free { next: self.free };
        self.free = Some(token);
        self.count -= 1;
        Some(flight)
    }

    pub(crate) fn get(&self, token: usize) -> Option<&Flight> {
        match self.slots.get(token)? {
            Slot::Taken(flight) => Some(flight),
            Slot::Free { .. } => None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// In the order of the tokens, which is none.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Flight> {
        self.slots.iter().filter_map(|slot| match slot {
            Slot::Taken(flight) => Some(flight),
            Slot::Free { .. } => None,
        })
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
}
