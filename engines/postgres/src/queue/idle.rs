//! The connections that no call uses now.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// A stack, so that with few calls the oldest connections stay unused, and are closed.
pub(super) struct Idle<T> {
    /// How long one may stay unused.
    longest: Duration,
    rest: Mutex<Vec<(Instant, T)>>,
}

impl<T> Idle<T> {
    pub(super) fn new(longest: Duration) -> Self {
        Self { longest, rest: Mutex::default() }
    }

    pub(super) fn take(&self) -> Option<T> {
        self.rest.lock().pop().map(|(_, one)| one)
    }

    /// Puts one back, and drops those that were unused for too long.
    pub(super) fn give(&self, one: T, now: Instant) {
        let mut rest = self.rest.lock();
        let is_old = |(since, _): &(Instant, T)| now.saturating_duration_since(*since) >= self.longest;
        // They are sorted by time.
        let old = rest.iter().take_while(|one| is_old(one)).count();
        let old: Vec<_> = rest.drain(..old).collect();
        rest.push((now, one));
        drop(rest);
        // Closing a connection takes a while, so not under the lock.
        drop(old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_ones_are_dropped_and_used_ones_stay() {
        let idle = Idle::new(Duration::from_secs(60));
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let left = || idle.rest.lock().iter().map(|(_, one)| *one).collect::<Vec<_>>();
        assert_eq!(idle.take(), None);
        (0..5).for_each(|one| idle.give(one, at(0)));
        for second in [1, 59] {
            let two = [idle.take(), idle.take()].map(Option::unwrap);
            assert_eq!(two, [4, 3], "those that came last");
            two.into_iter().rev().for_each(|one| idle.give(one, at(second)));
            assert_eq!(left(), [0, 1, 2, 3, 4]);
        }
        let one = idle.take().unwrap();
        idle.give(one, at(60));
        assert_eq!(left(), [3, 4], "three of them have lain there for a minute");
        let one = idle.take().unwrap();
        idle.give(one, at(1000));
        assert_eq!(left(), [4], "the one that a call has used just now stays");
        idle.give(5, at(0));
        assert_eq!(left(), [4, 5], "a time before that of the others is none at all");
    }
}
