//! The schedule of retries. It is pure: it has no clock, and no source of random numbers.

use crate::base::config::ConfigError;
use std::time::Duration;

/// The number of attempts of a job, and the back-off between them.
///
/// [`Retry::none`] is the default: the first failure halts the consumer. A retry must be your
/// decision, since a job may fail for ever. [`fixed`](Retry::fixed) and
/// [`exponential`](Retry::exponential) retry without end unless you set
/// [`max_attempts`](Retry::max_attempts).
///
/// ```
/// use std::time::Duration;
/// use waterline::Retry;
///
/// let retry = Retry::exponential(Duration::from_millis(100), Duration::from_secs(30)).max_attempts(5).jitter(0.2);
/// assert_eq!(retry.delay(1, 1.0), Some(Duration::from_millis(100))); // after the first attempt failed
/// assert_eq!(retry.delay(3, 1.0), Some(Duration::from_millis(400)));
/// assert_eq!(retry.delay(5, 1.0), None);                             // the fifth was the last
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct Retry {
    first: Duration,
    cap: Duration,
    doubling: bool,
    /// The highest number of attempts, the first one included; `None`: no limit.
    max_attempts: Option<u32>,
    jitter: f64,
}

impl Retry {
    /// One attempt and no retry. The default.
    pub const fn none() -> Self {
        Self { first: Duration::ZERO, cap: Duration::ZERO, doubling: false, max_attempts: Some(1), jitter: 0.0 }
    }

    /// The same back-off before every retry, without end.
    pub const fn fixed(pause: Duration) -> Self {
        Self { first: pause, cap: pause, doubling: false, max_attempts: None, jitter: 0.0 }
    }

    /// An exponential back-off without end: `first` before the second attempt, then twice as long
    /// before each further one, but never longer than `cap`.
    pub const fn exponential(first: Duration, cap: Duration) -> Self {
        Self { first, cap, doubling: true, max_attempts: None, jitter: 0.0 }
    }

    /// Limits the number of attempts, the first one included. 0 is refused at start.
    pub const fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// Shortens each back-off by a random part, up to this share of it. Then jobs that failed
    /// together are not all tried again together. 0 (the default) is none, and 1 is "full jitter";
    /// a value outside 0..=1 is refused at start. A back-off never gets longer, so the cap holds.
    pub const fn jitter(mut self, share: f64) -> Self {
        self.jitter = share;
        self
    }

    /// Returns the back-off after this attempt (from 1) failed, or `None` if it was the last
    /// attempt.
    ///
    /// `chance` is a random number in 0..=1: the place of the back-off within its jitter. 1 is the
    /// longest.
    #[must_use]
    pub fn delay(&self, attempt: u32, chance: f64) -> Option<Duration> {
        if self.max_attempts.is_some_and(|most| attempt >= most) {
            return None;
        }
        let pause = if self.doubling { self.doubled(attempt.saturating_sub(1)) } else { self.first };
        if self.jitter == 0.0 {
            return Some(pause); // Floating point would round long pauses.
        }
        let share = 1.0 - self.jitter * (1.0 - chance.clamp(0.0, 1.0));
        let shorter = Duration::try_from_secs_f64(pause.as_secs_f64() * share.clamp(0.0, 1.0));
        Some(shorter.map_or(pause, |shorter| shorter.min(pause)))
    }

    /// Doubles the first pause this many times, up to the cap.
    fn doubled(&self, times: u32) -> Duration {
        let (first, cap) = (self.first.as_nanos(), self.cap.as_nanos());
        let pause = match first {
            // Zero stays zero, and must not take the branch for lost bits.
            0 => 0,
            // A further doubling would lose the highest bit. No cap is as long as that.
            _ if times > first.leading_zeros() => u128::MAX,
            _ => first << times,
        };
        if pause < cap { from_nanos(pause) } else { self.cap }
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        if self.max_attempts == Some(0) {
            return Err(ConfigError::MaxAttemptsZero);
        }
        if !(0.0..=1.0).contains(&self.jitter) {
            return Err(ConfigError::Jitter { value: self.jitter });
        }
        Ok(())
    }
}

/// Converts from nanoseconds. They must be fewer than those of the longest `Duration`.
fn from_nanos(nanos: u128) -> Duration {
    let second = Duration::from_secs(1).as_nanos();
    Duration::new((nanos / second) as u64, (nanos % second) as u32)
}

impl Default for Retry {
    fn default() -> Self {
        Self::none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn none_means_one_attempt() {
        assert_eq!(Retry::none().delay(1, 1.0), None);
        assert_eq!(Retry::default(), Retry::none());
    }

    #[test]
    fn doubling_stops_at_the_cap_however_high_the_attempt() {
        let retry = Retry::exponential(MS, 50 * MS);
        let pauses: Vec<_> = [1, 2, 3, 6, 7, 33, 34, u32::MAX].map(|n| retry.delay(n, 1.0).unwrap()).into();
        assert_eq!(pauses, [MS, 2 * MS, 4 * MS, 32 * MS, 50 * MS, 50 * MS, 50 * MS, 50 * MS]);
    }

    #[test]
    fn doubling_goes_on_beyond_the_33rd_attempt_and_zero_stays_zero() {
        let (nano, year) = (Duration::from_nanos(1), Duration::from_secs(365 * 24 * 3600));
        let retry = Retry::exponential(nano, year);
        let pauses = [32, 33, 34, 41].map(|attempt| retry.delay(attempt, 1.0).unwrap().as_nanos());
        assert_eq!(pauses, [1 << 31, 1 << 32, 1 << 33, 1 << 40]);
        let retry = Retry::exponential(Duration::ZERO, year);
        let pauses = [1, 2, 33, 34, 129, 130, u32::MAX].map(|attempt| retry.delay(attempt, 1.0).unwrap());
        assert_eq!(pauses, [Duration::ZERO; 7]);
    }

    /// The documentation, word by word.
    fn doubled_naively(first: Duration, cap: Duration, attempt: u32) -> Duration {
        // No `Duration` has 200 bits, so further doublings change nothing.
        let steps = (attempt - 1).min(200);
        let nanos = (0..steps).fold(first.as_nanos(), |pause, _| pause.saturating_mul(2)).min(cap.as_nanos());
        Duration::new((nanos / 1_000_000_000) as u64, (nanos % 1_000_000_000) as u32)
    }

    /// Pauses of every magnitude, from a few nanoseconds to the longest.
    fn any_pause() -> impl Strategy<Value = Duration> {
        (any::<u64>(), 0u32..64, 0u32..1_000_000_000, 0u32..31).prop_map(|(seconds, lower, nanos, finer)| {
            Duration::new(seconds >> lower, (nanos >> finer).min(999_999_999))
        })
    }

    fn any_attempt() -> impl Strategy<Value = u32> {
        prop_oneof![1u32..200, Just(u32::MAX), any::<u32>().prop_map(|attempt| attempt.max(1))]
    }

    #[test]
    fn zero_attempts_and_a_jitter_outside_0_to_1_are_refused() {
        assert!(matches!(Retry::fixed(MS).max_attempts(0).validate(), Err(ConfigError::MaxAttemptsZero)));
        for bad in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(matches!(Retry::fixed(MS).jitter(bad).validate(), Err(ConfigError::Jitter { .. })), "{bad}");
        }
        assert!(Retry::fixed(MS).jitter(1.0).validate().is_ok());
    }

    #[test]
    fn jitter_works_on_the_longest_pause() {
        let retry = Retry::fixed(Duration::MAX);
        assert_eq!(retry.jitter(1e-20).delay(1, 0.5), Some(Duration::MAX));
        assert!(retry.jitter(0.5).delay(1, 0.0).unwrap() < Duration::MAX);
    }

    proptest! {
        #[test]
        fn every_pause_is_the_first_one_doubled_or_the_cap(
            first in prop_oneof![Just(Duration::ZERO), any_pause()], cap in any_pause(), attempt in any_attempt(),
        ) {
            let pause = Retry::exponential(first, cap).delay(attempt, 1.0);
            prop_assert_eq!(pause, Some(doubled_naively(first, cap, attempt)));
        }

        #[test]
        fn jitter_only_shortens_and_by_no_more_than_its_share(
            attempt in 1u32..40, jitter in 0.0..=1.0f64, chance in 0.0..=1.0f64, first in 0u64..10_000, cap in 0u64..100_000,
        ) {
            let plain = Retry::exponential(first as u32 * MS, cap as u32 * MS);
            let longest = plain.delay(attempt, 1.0).unwrap();
            let pause = plain.jitter(jitter).delay(attempt, chance).unwrap();
            prop_assert!(pause <= longest);
            prop_assert!(pause.as_secs_f64() >= longest.as_secs_f64() * (1.0 - jitter) - 1e-6);
        }
    }
}
