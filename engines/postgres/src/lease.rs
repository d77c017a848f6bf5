//! How long a life has its name. Pure: it is given the time.

use std::time::{Duration, Instant};

/// The local clock of one lease. It counts from before a renewal was sent, and the server from when
/// that came, so it never grants more time than the server does.
#[derive(Debug)]
pub(crate) struct LeaseClock {
    ttl: Duration,
    until: Instant,
    /// True while the consumer has been told to hold.
    held: bool,
}

impl LeaseClock {
    /// A lease that was asked for at this time.
    pub(crate) fn new(asked: Instant, ttl: Duration) -> Self {
        Self { ttl, until: asked + ttl, held: false }
    }

    /// Records a renewal that was sent at this time. Returns true if the consumer is held, so that
    /// it may have to be resumed.
    pub(crate) fn renewed(&mut self, sent: Instant) -> bool {
        self.until = self.until.max(sent + self.ttl);
        self.held
    }

    /// When to renew next: a third of the TTL after the last renewal.
    pub(crate) fn due(&self) -> Instant {
        self.until - (self.ttl - self.ttl / 3)
    }

    /// From when on nothing may start; `None` if that holds already.
    pub(crate) fn ends(&self) -> Option<Instant> {
        (!self.held).then_some(self.until)
    }

    /// Returns what to tell the consumer if that has changed: true if the lease has ended, false if
    /// jobs may start again. Only one thread asks and tells, so the consumer hears both in order.
    pub(crate) fn change(&mut self, now: Instant) -> Option<bool> {
        let is_over = now >= self.until;
        (std::mem::replace(&mut self.held, is_over) != is_over).then_some(is_over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_renewed_each_third_and_held_at_its_end() {
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
    fn an_expired_renewal_lets_nothing_start() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut lease = LeaseClock::new(start, 9 * second);
        assert_eq!(lease.change(start + 9 * second), Some(true));
        // Its answer comes between the check and the call of the consumer, or much later.
        assert!(lease.renewed(start + second));
        assert_eq!((lease.change(start + 10 * second), lease.ends()), (None, None));
        assert!(lease.renewed(start + 2 * second));
        assert_eq!(lease.change(start + 10 * second), Some(false));
    }
}
