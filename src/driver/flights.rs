//! The jobs in flight by token, and their timeouts.

use crate::base::sync::{Arc, Condvar};
use crate::base::{Index, time::Coarse};
use crate::threads::stopping::Overdue;
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    pub(crate) index: Index,
    pub(crate) attempt: u32,
    /// True if the job was handed out before.
    pub(crate) again: bool,
    /// When it began, by the coarse clock, since every job reads it.
    pub(crate) started: Coarse,
    /// The state of its timeout; unused without one.
    pub(super) timer: Timer,
    /// True if its timeout has been handled. Older flights were handled before.
    pub(super) passed: bool,
}

/// The state of an attempt's timeout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Timer {
    #[default]
    Runs,
    /// The timeout no longer counts: the attempt is being reported, or its result is at the sink.
    Off,
    /// The attempt is overdue, and only its own code can end it.
    Overdue,
    /// The attempt is overdue and about to fail.
    Failing,
    /// The same, and its token was used meanwhile.
    FailingUnheard,
}

impl Flight {
    /// Makes the flight of an attempt that begins.
    #[inline]
    pub(crate) fn new(index: Index, attempt: u32, again: bool, started: Coarse) -> Self {
        Self { index, attempt, again, started, timer: Timer::Runs, passed: false }
    }
}

/// A slab: a flight begins and ends without moving anything and, once warm, without an allocation.
/// A list in order of their start finds the oldest flight and the next timeout without a search,
/// since all timeouts are equal.
#[derive(Debug)]
pub(crate) struct Flights {
    /// `None` if attempts have no timeout.
    pub(crate) timeouts: Option<Box<Timeouts>>,
    slots: Vec<Slot>,
    /// The head of the free list.
    free: usize,
    /// The number of flights, and of unused tokens of attempts that have failed.
    count: usize,
    oldest: usize,
    youngest: usize,
}

#[derive(Debug)]
struct Slot {
    flight: Flight,
    /// The flight that began before it; [`FREE`] in a free slot, [`STALE`] in one that awaits its
    /// token.
    older: usize,
    /// The flight that began after it, or the next free slot.
    younger: usize,
}

/// No slot. Both marks are larger, so one comparison finds a slot without a flight.
const NONE: usize = usize::MAX - 2;

/// The mark of a free slot.
const FREE: usize = usize::MAX;

/// The mark of a slot whose attempt has failed. Its token may still be used, so it is not reused.
const STALE: usize = usize::MAX - 1;

#[derive(Debug)]
pub(crate) struct Timeouts {
    pub(super) after: Duration,
    /// True if an overdue attempt fails at once, since only its token is left of it.
    pub(super) fails: bool,
    /// True if there is an observer, which has to hear of the start of an attempt before its end.
    pub(super) observed: bool,
    /// The token of the youngest flight whose timeout was handled.
    passed: usize,
    /// The overdue flags of the attempts, by token.
    pub(super) flags: Vec<Overdue>,
    /// True while the timeout thread waits for an attempt to begin.
    pub(super) idle: bool,
    /// The timeout thread sleeps here.
    pub(super) bell: Arc<Condvar>,
}

impl Timeouts {
    /// Makes timeouts of this length. `fails`: an overdue attempt fails at once.
    pub(crate) fn new(after: Duration, fails: bool, observed: bool) -> Box<Self> {
        let bell = Arc::new(Condvar::new());
        Box::new(Self { after, fails, observed, passed: NONE, flags: Vec::new(), idle: false, bell })
    }

    /// Notes that an attempt begins on the calling thread.
    pub(super) fn begin(&mut self, token: usize) {
        // The previous flag is often the same one, and can be reused then.
        Overdue::set_here(None);
        if self.flags.len() <= token {
            self.flags.resize_with(token + 1, Overdue::default);
        }
        let flag = &mut self.flags[token];
        flag.renew();
        Overdue::set_here(Some(flag.clone()));
        if std::mem::take(&mut self.idle) {
            self.bell.notify_one();
        }
    }

    /// Wakes the timeout thread after the end of the consumer or a change of its clock.
    pub(super) fn ring(&self) {
        self.bell.notify_all();
    }
}

impl Default for Flights {
    fn default() -> Self {
        Self { timeouts: None, slots: Vec::new(), free: NONE, count: 0, oldest: NONE, youngest: NONE }
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
        let flight = self.unlink(token, FREE)?;
        self.give_back(token);
        Some(flight)
    }

    /// Ends a flight whose token may still be used. The token stays taken until
    /// [`forget`](Self::forget).
    pub(super) fn end_stale(&mut self, token: usize) -> Option<Flight> {
        self.unlink(token, STALE)
    }

    /// Frees the token of a flight that ended stale. Returns false if it did not.
    pub(super) fn forget(&mut self, token: usize) -> bool {
        let Some(slot) = self.slots.get_mut(token).filter(|slot| slot.older == STALE) else { return false };
        slot.older = FREE;
        self.give_back(token);
        true
    }

    #[inline]
    fn give_back(&mut self, token: usize) {
        self.slots[token].younger = self.free;
        self.free = token;
        self.count -= 1;
    }

    /// Unlinks a flight and leaves this mark in its slot.
    #[inline]
    fn unlink(&mut self, token: usize, mark: usize) -> Option<Flight> {
        let slot = self.slots.get_mut(token).filter(|slot| slot.older <= NONE)?;
        let (flight, older, younger) = (slot.flight, slot.older, slot.younger);
        slot.older = mark;
        match self.slots.get_mut(older) {
            Some(older) => older.younger = younger,
            None => self.oldest = younger,
        }
        match self.slots.get_mut(younger) {
            Some(younger) => younger.older = older,
            None => self.youngest = older,
        }
        if flight.passed {
            self.unlink_passed(token, older);
        }
        Some(flight)
    }

    #[cold]
    fn unlink_passed(&mut self, token: usize, older: usize) {
        if let Some(timeouts) = self.timeouts.as_mut().filter(|timeouts| timeouts.passed == token) {
            // All older flights were passed before it.
            timeouts.passed = older;
        }
    }

    /// Returns the token of the flight whose timeout ends next.
    pub(super) fn next_timeout(&self) -> Option<usize> {
        let passed = self.timeouts.as_ref()?.passed;
        let next = self.slots.get(passed).map_or(self.oldest, |passed| passed.younger);
        (next < NONE).then_some(next)
    }

    /// Marks the timeout that ends next as handled.
    pub(super) fn pass(&mut self, token: usize, timer: Timer) {
        if let (Some(slot), Some(timeouts)) = (self.slots.get_mut(token), self.timeouts.as_mut()) {
            (slot.flight.passed, slot.flight.timer) = (true, timer);
            timeouts.passed = token;
        }
    }

    pub(crate) fn get(&self, token: usize) -> Option<&Flight> {
        self.slots.get(token).filter(|slot| slot.older <= NONE).map(|slot| &slot.flight)
    }

    pub(super) fn set_timer(&mut self, token: usize, timer: Timer) {
        if let Some(slot) = self.slots.get_mut(token).filter(|slot| slot.older <= NONE) {
            slot.flight.timer = timer;
        }
    }

    /// Stops the timeout of an attempt whose thread goes on with something other than its code.
    pub(super) fn leave_timeout(&mut self, token: usize) {
        if self.timeouts.is_some() {
            self.set_timer(token, Timer::Off);
            Overdue::set_here(None);
        }
    }

    /// Returns the number of tokens in use.
    pub(crate) fn tokens(&self) -> usize {
        self.count
    }

    pub(crate) fn oldest(&self) -> Option<&Flight> {
        self.slots.get(self.oldest).map(|slot| &slot.flight)
    }

    /// Returns the token of the flight of this job. Searches the oldest ones first, since younger
    /// ones may be many by now.
    pub(super) fn find(&self, index: Index) -> Option<usize> {
        let oldest = self.slots.get(self.oldest).map(|_| self.oldest);
        let mut all =
            std::iter::successors(oldest, |token| Some(self.slots[*token].younger).filter(|younger| *younger < NONE));
        all.find(|token| self.slots[*token].flight.index == index)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Flight> {
        self.slots.iter().filter(|slot| slot.older <= NONE).map(|slot| &slot.flight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn the_oldest_and_the_next_timeout_agree_with_a_list(
            timed in proptest::bool::ANY,
            steps in proptest::collection::vec((0..4usize, 0..12usize), 0..300),
        ) {
            let timeouts = timed.then(|| Timeouts::new(Duration::MAX, true, false));
            let mut flights = Flights { timeouts, ..Flights::default() };
            // The flights in order, each with its token, its index and whether it was passed; the
            // tokens without a flight.
            let (mut list, mut stale, mut most) = (Vec::<(usize, Index, bool)>::new(), Vec::new(), 0);
            for (index, (step, at)) in (0..).zip(steps) {
                match step {
                    0 => {
                        let flight = Flight::new(index, 1, false, crate::base::time::coarse());
                        list.push((flights.begin(flight), index, false));
                    }
                    1 => {
                        if let Some(token) = flights.next_timeout() {
                            flights.pass(token, Timer::Overdue);
                            let first = list.iter_mut().find(|(.., passed)| !passed).unwrap();
                            proptest::prop_assert_eq!(first.0, token);
                            first.2 = true;
                        }
                    }
                    2 if at < list.len() => {
                        let (token, begun, _) = list.remove(at);
                        let ended = if at % 2 == 0 { flights.end(token) } else { flights.end_stale(token) };
                        proptest::prop_assert_eq!(ended.map(|flight| flight.index), Some(begun));
                        proptest::prop_assert!(flights.get(token).is_none() && flights.end(token).is_none(), "a token ends once");
                        stale.extend((at % 2 == 1).then_some(token));
                    }
                    _ if at < stale.len() => {
                        let token = stale.remove(at);
                        proptest::prop_assert!(flights.forget(token) && !flights.forget(token));
                    }
                    _ => {}
                }
                most = most.max(list.len() + stale.len());
                proptest::prop_assert_eq!((flights.tokens(), flights.slots.len()), (list.len() + stale.len(), most), "no slot is left unused");
                let mut all: Vec<_> = flights.iter().map(|flight| flight.index).collect();
                all.sort_unstable();
                proptest::prop_assert!(list.iter().map(|(_, index, _)| *index).eq(all));
                proptest::prop_assert_eq!(flights.oldest().map(|flight| flight.index), list.first().map(|(_, index, _)| *index));
                let next = list.iter().find(|(.., passed)| timed && !passed).map(|(token, ..)| *token);
                proptest::prop_assert_eq!(flights.next_timeout(), next);
                proptest::prop_assert!(list.iter().all(|(token, _, passed)| flights.get(*token).is_some_and(|flight| flight.passed == *passed)));
            }
        }
    }
}
