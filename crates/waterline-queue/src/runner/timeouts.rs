//! The timeouts of attempts, and the thread that notices them.

use crate::notify::waiting::wait_until;
use crate::runner::running::FlightId;
use crate::runner::source::Source;
use crate::types::config::ConfigError;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};
use waterline::seam::{ClockExt, ClockWaits as Waits, check_attempt_timeout};

/// How long attempts may take.
#[derive(Clone, Debug, Default)]
pub(super) struct Times {
    /// The limit of each kind without its own.
    pub(super) all: Option<Duration>,
    pub(super) of_kinds: HashMap<String, Duration>,
}

impl Times {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let mut all = self.of_kinds.values().copied().chain(self.all);
        Ok(all.try_for_each(|after| check_attempt_timeout(Some(after)))?)
    }

    pub(super) fn are_any(&self) -> bool {
        self.all.is_some() || !self.of_kinds.is_empty()
    }

    fn of(&self, kind: &str) -> Option<Duration> {
        self.of_kinds.get(kind).copied().or(self.all)
    }
}

pub(super) struct Timeouts {
    times: Times,
    ends: Mutex<Ends>,
    bell: Condvar,
}

/// When the attempts in flight time out.
#[derive(Default)]
struct Ends {
    by_time: BTreeSet<(Instant, FlightId)>,
    /// Per attempt, when it times out and after how long.
    by_flight: HashMap<FlightId, (Instant, Duration)>,
    /// True once no attempt is left, and none will start.
    over: bool,
}

impl Timeouts {
    pub(super) fn new(times: Times) -> Self {
        Self { times, ends: Mutex::default(), bell: Condvar::new() }
    }

    /// Notes that an attempt of this kind starts. Returns true if it is the next one to time out.
    pub(super) fn begin(&self, flight: FlightId, kind: &str, now: Instant) -> bool {
        let Some(after) = self.times.of(kind) else { return false };
        // A time beyond the end of the clock never comes.
        let Some(end) = now.checked_add(after) else { return false };
        let mut ends = self.ends.lock();
        ends.by_flight.insert(flight, (end, after));
        ends.by_time.insert((end, flight));
        // Attempts of a kind have the same limit, so usually only a first one is the next.
        let is_next = ends.by_time.first() == Some(&(end, flight));
        if is_next {
            self.bell.notify_one();
        }
        is_next
    }

    pub(super) fn forget(&self, flight: FlightId) {
        let mut ends = self.ends.lock();
        if let Some((end, _)) = ends.by_flight.remove(&flight) {
            ends.by_time.remove(&(end, flight));
        }
    }

    /// Ends the thread. Callers may hold the pool's lock, so do not call the pool under this lock.
    pub(super) fn close(&self) {
        self.ends.lock().over = true;
        self.bell.notify_all();
    }

    /// Runs the loop of the thread.
    pub(super) fn watch(&self, source: &Source, overdue: impl Fn(FlightId, Duration)) {
        loop {
            let (flight, after) = {
                let mut ends = self.ends.lock();
                if ends.over {
                    return;
                }
                // Read under the lock, so that setting the clock from now on rings a sleeper.
                let at = source.moment();
                match ends.by_time.first().copied() {
                    Some((end, flight)) if end <= at.now => {
                        ends.by_time.remove(&(end, flight));
                        let after = ends.by_flight.remove(&flight).map(|(_, after)| after);
                        (flight, after.unwrap_or_default())
                    }
                    next => {
                        let pause = next.map(|(end, _)| end.saturating_duration_since(at.now));
                        wait_until(&self.bell, &mut ends, source.clock().deadline(at.after(pause)));
                        continue;
                    }
                }
            };
            overdue(flight, after);
        }
    }
}

impl Waits for Timeouts {
    fn clock_was_set(&self) {
        // With the lock, the thread either sleeps or has not looked yet.
        drop(self.ends.lock());
        self.bell.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use waterline::seam as time;

    #[test]
    fn an_earlier_timeout_wakes_the_thread() {
        let times = Times { all: Some(Duration::from_secs(60)), ..Times::default() };
        let (timeouts, now) = (Timeouts::new(times), time::now());
        assert!(timeouts.begin((0, 1), "k", now + Duration::from_secs(1)), "it is the only one");
        assert!(timeouts.begin((0, 2), "k", now), "its thread has waited for the lock since the clock was read");
        assert!(!timeouts.begin((0, 3), "k", now + Duration::from_secs(2)));
    }
}
