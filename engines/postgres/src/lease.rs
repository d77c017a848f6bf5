//! The time for which a life has its name. Pure: it is given the time.

use std::time::{Duration, Instant};

/// The clock of one lease, by this machine. It counts from before a renewal was sent, so the
/// server, which counts from when it came, never has less.
#[derive(Debug)]
pub(crate) struct LeaseClock {
    ttl: Duration,
    until: Instant,
    /// True if the consumer was told to hold, and not to go on since then.
    held: bool,
}

impl LeaseClock {
    /// A lease that was asked for at this time.
    pub(crate) fn new(asked: Instant, ttl: Duration) -> Self {
        Self { ttl, until: asked + ttl, held: false }
    }

    /// A renewal that was sent at this time has come through. Returns true if the consumer is held,
    /// so that it may be time to tell it to go on.
    pub(crate) fn renewed(&mut self, sent: Instant) -> bool {
        self.until = self.until.max(sent + self.ttl);
        self.held
    }

    /// The time of the next renewal: a third of the TTL after the last one.
    pub(crate) fn due(&self) -> Instant {
        self.until - (self.ttl - self.ttl / 3)
    }

    /// The time from which on nothing may start; `None` if that holds already.
    pub(crate) fn ends(&self) -> Option<Instant> {
        (!self.held).then_some(self.until)
    }

    /// Returns what the consumer is to be told now, if it was told something else last: true if the
    /// time is over, false if jobs may start again. One thread alone asks and tells, so the
    /// consumer hears both in this order.
    pub(crate) fn change(&mut self, now: Instant) -> Option<bool> {
        let is_over = now >= self.until;
        (std::mem::replace(&mut self.held, is_over) != is_over).then_some(is_over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_renewed_each_third_of_its_time_and_held_once_when_that_is_over() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut lease = LeaseClock::new(start, 9 * second);
        assert_eq!((lease.due(), lease.ends()), (start + 3 * second, Some(start + 9 * second)));
        assert!(!lease.renewed(start + 4 * second));
        assert_eq!(lease.due(), start + 7 * second);
        assert!(!lease.renewed(start + 3 * second), "an answer that came late moves nothing back");
        assert_eq!(lease.change(start + 12 * second), None);
        assert_eq!(lease.change(start + 13 * second), Some(true));
        assert_eq!((lease.change(start + 14 * second), lease.ends()), (None, None));
        assert!(lease.renewed(start + 15 * second), "there is something to tell");
        assert_eq!(lease.change(start + 16 * second), Some(false), "jobs start again");
        assert_eq!((lease.change(start + 17 * second), lease.ends()), (None, Some(start + 24 * second)));
    }

    #[test]
    fn a_renewal_whose_time_is_over_already_lets_nothing_start() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut lease = LeaseClock::new(start, 9 * second);
        assert_eq!(lease.change(start + 9 * second), Some(true));
        // Its answer comes between the look and the call of the consumer, or much later.
        assert!(lease.renewed(start + second));
        assert_eq!((lease.change(start + 10 * second), lease.ends()), (None, None));
        assert!(lease.renewed(start + 2 * second));
        assert_eq!(lease.change(start + 10 * second), Some(false));
    }
}
