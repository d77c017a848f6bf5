//! The time for which a life has its name. Pure: it is given the time.

use std::time::{Duration, Instant};

/// The clock of one lease, by this machine. It counts from before a renewal was sent, so the
/// server, which counts from when it came, never has less.
#[derive(Debug)]
pub(crate) struct LeaseClock {
    ttl: Duration,
    until: Instant,
    held: bool,
}

impl LeaseClock {
    /// A lease that was asked for at this time.
    pub(crate) fn new(asked: Instant, ttl: Duration) -> Self {
        Self { ttl, until: asked + ttl, held: false }
    }

    /// A renewal that was sent at this time has come through. Returns true if that ends a time in
    /// which nothing was to start.
    pub(crate) fn renewed(&mut self, sent: Instant) -> bool {
        self.until = self.until.max(sent + self.ttl);
        std::mem::take(&mut self.held)
    }

    /// The time of the next renewal: a third of the TTL after the last one.
    pub(crate) fn due(&self) -> Instant {
        self.until - (self.ttl - self.ttl / 3)
    }

    /// The time from which on nothing may start; `None` if that holds already.
    pub(crate) fn ends(&self) -> Option<Instant> {
        (!self.held).then_some(self.until)
    }

    /// Returns true once, when the time is over.
    pub(crate) fn is_over(&mut self, now: Instant) -> bool {
        now >= self.until && !std::mem::replace(&mut self.held, true)
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
        assert!(!lease.is_over(start + 12 * second));
        assert!(lease.is_over(start + 13 * second) && !lease.is_over(start + 14 * second));
        assert_eq!(lease.ends(), None);
        assert!(lease.renewed(start + 15 * second), "jobs start again");
        assert_eq!(lease.ends(), Some(start + 24 * second));
    }
}
