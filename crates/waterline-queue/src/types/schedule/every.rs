//! A fixed interval.

use crate::types::config::ConfigError;
use crate::types::job::LATEST;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use waterline::seam::check_zero;

/// A fixed interval, as a schedule of [`Queue::periodic`](crate::Queue::periodic).
///
/// The first tick is at once, when the name is registered for the first time, and the others are
/// whole intervals after it, also across restarts: a late tick does not delay those after it. So an
/// interval does not drift.
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
/// use waterline_queue::Every;
///
/// let hourly = Every::hours(1);           // an hour after the first tick, two hours after it, …
/// let on_the_quarter = Every::minutes(15).anchor(UNIX_EPOCH);     // at :00, :15, :30 and :45
/// assert_eq!(Every::new(Duration::from_secs(3600)), hourly);
/// assert_eq!(on_the_quarter.to_string(), "every 900s, counted from 0ns after 1970");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Every {
    interval: Duration,
    anchor: Option<SystemTime>,
}

impl Every {
    /// Makes an interval of this length, rounded up to milliseconds.
    /// [`PeriodicBuilder::start`](crate::PeriodicBuilder::start) refuses an interval of zero.
    pub const fn new(interval: Duration) -> Self {
        Self { interval, anchor: None }
    }

    /// Makes an interval of this many seconds.
    pub const fn seconds(seconds: u32) -> Self {
        Self::new(Duration::from_secs(seconds as u64))
    }

    /// Makes an interval of this many minutes.
    pub const fn minutes(minutes: u32) -> Self {
        Self::new(Duration::from_secs(minutes as u64 * 60))
    }

    /// Makes an interval of this many hours.
    pub const fn hours(hours: u32) -> Self {
        Self::new(Duration::from_secs(hours as u64 * 60 * 60))
    }

    /// Makes an interval of this many days of 24 hours. For calendar days, whose length changes
    /// with the clocks, use a [`Cron`](crate#periodic-jobs).
    pub const fn days(days: u32) -> Self {
        Self::new(Duration::from_secs(days as u64 * 24 * 60 * 60))
    }

    /// Puts the ticks at this time and at all times that are whole intervals before or after it.
    /// Default: they are counted from the first tick.
    pub const fn anchor(mut self, time: SystemTime) -> Self {
        self.anchor = Some(time);
        self
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let why = "the interval of the periodic job is 0, so it would run without a pause: use a millisecond or more";
        Ok(check_zero("every", self.interval.is_zero(), why)?)
    }

    pub(super) fn is_anchored(&self) -> bool {
        self.anchor.is_some()
    }

    /// Returns the ticks after a last tick at this time.
    pub(super) fn ticks(&self, last: u64) -> Grid {
        let interval = self.interval.as_nanos().div_ceil(1_000_000).clamp(1, u128::from(LATEST) + 1) as u64;
        let anchor = self.anchor.map_or(i128::from(last), signed_millis);
        Grid { interval, phase: anchor.rem_euclid(i128::from(interval)) as u64 }
    }
}

impl fmt::Display for Every {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "every {:?}", self.interval)?;
        match self.anchor.map(|anchor| anchor.duration_since(UNIX_EPOCH)) {
            None => Ok(()),
            Some(Ok(after)) => write!(f, ", counted from {after:?} after 1970"),
            Some(Err(before)) => write!(f, ", counted from {:?} before 1970", before.duration()),
        }
    }
}

/// Returns a time in milliseconds since 1970, negative before that.
fn signed_millis(time: SystemTime) -> i128 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_millis() as i128,
        Err(before) => -(before.duration().as_millis() as i128),
    }
}

/// Equidistant times, in milliseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    interval: u64,
    /// Each tick is this much above a multiple of the interval.
    phase: u64,
}

impl Grid {
    /// Returns the first tick after this time.
    pub(super) fn next(&self, after: u64) -> Option<u64> {
        let Self { interval, phase } = *self;
        if after < phase {
            return Some(phase);
        }
        (after - (after - phase) % interval).checked_add(interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_late_tick_does_not_move_the_next_ones() {
        let hour = 3_600_000;
        let late = Every::hours(1).ticks(5);
        assert_eq!(late.next(5), Some(hour + 5));
        assert_eq!(late.next(hour + 5), Some(2 * hour + 5));
        assert_eq!(late.next(2 * hour + 9), Some(3 * hour + 5));
    }

    #[test]
    fn any_anchor_on_the_grid_gives_the_same_ticks() {
        let minute = Duration::from_secs(60);
        for anchor in [UNIX_EPOCH + minute * 1000, UNIX_EPOCH - minute * 7, UNIX_EPOCH] {
            let ticks = Every::minutes(1).anchor(anchor).ticks(123);
            assert_eq!(
                (ticks.next(0), ticks.next(59_999), ticks.next(60_000)),
                (Some(60_000), Some(60_000), Some(120_000))
            );
        }
        let half = Every::minutes(1).anchor(UNIX_EPOCH - minute / 4).ticks(0);
        assert_eq!((half.next(0), half.next(45_000)), (Some(45_000), Some(105_000)));
    }

    #[test]
    fn intervals_are_a_millisecond_at_least_or_endless() {
        assert_eq!(Every::new(Duration::from_nanos(1)).ticks(7).next(7), Some(8));
        let ages = Every::new(Duration::MAX).ticks(7).next(7).unwrap();
        assert!(ages > LATEST);
        assert!(Every::new(Duration::ZERO).check().is_err());
    }

    proptest! {
        #[test]
        fn ticks_are_whole_intervals_from_the_anchor(
            interval in 1..100u64, anchor in -500..500i64, after in 0..1000u64
        ) {
            let from = |millis: i64| match u64::try_from(millis) {
                Ok(millis) => UNIX_EPOCH + Duration::from_millis(millis),
                Err(_) => UNIX_EPOCH - Duration::from_millis(millis.unsigned_abs()),
            };
            let ticks = Every::new(Duration::from_millis(interval)).anchor(from(anchor)).ticks(0);
            let naive = (after + 1..).find(|at| (*at as i64 - anchor) % interval as i64 == 0);
            prop_assert_eq!(ticks.next(after), naive);
        }
    }
}
