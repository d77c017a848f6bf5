//! The schedule of retries: pure, without a clock or a source of random numbers.

use crate::base::config::{ConfigError, check_number, check_zero};
use std::time::Duration;

/// How many attempts a job gets, and the back-off between them.
///
/// [`Retry::none`] is the default of a consumer: the first failure halts it. Retries must be your
/// decision, since a job may fail for ever. (A queue retries by default, since a failing job holds
/// up no other.) [`fixed`](Retry::fixed) and [`exponential`](Retry::exponential) retry without end
/// unless you set [`max_attempts`](Retry::max_attempts).
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
    growth: Growth,
    /// The highest number of attempts, the first one included; `None`: no limit.
    max_attempts: Option<u32>,
    jitter: f64,
}

/// How the back-off grows from one attempt to the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Growth {
    /// All pauses are equal.
    None,
    /// Each pause is twice the one before.
    Doubling,
    /// It is multiplied by this each time.
    Factor(f64),
    /// It is multiplied by the square of the number of attempts that failed.
    Quadratic,
}

impl Retry {
    /// One attempt and no retry. The default.
    pub const fn none() -> Self {
        Self { first: Duration::ZERO, cap: Duration::ZERO, growth: Growth::None, max_attempts: Some(1), jitter: 0.0 }
    }

    /// The same back-off before every retry, without end.
    pub const fn fixed(pause: Duration) -> Self {
        Self { first: pause, cap: pause, growth: Growth::None, max_attempts: None, jitter: 0.0 }
    }

    /// An exponential back-off without end, from `first` up to `cap`.
    ///
    /// It is `first` before the second attempt, and then twice as long before each further one, but
    /// never longer than `cap`.
    pub const fn exponential(first: Duration, cap: Duration) -> Self {
        Self { first, cap, growth: Growth::Doubling, max_attempts: None, jitter: 0.0 }
    }

    /// A quadratic back-off without end, which grows more slowly than an exponential one.
    ///
    /// It is `unit` before the second attempt, 4 times as long before the third, 9 times before the
    /// fourth, but never longer than `cap`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline::Retry;
    ///
    /// let retry = Retry::quadratic(Duration::from_secs(2), Duration::from_secs(3600));
    /// let pauses = [1, 2, 3, 4].map(|attempt| retry.delay(attempt, 1.0).unwrap().as_secs());
    /// assert_eq!(pauses, [2, 8, 18, 32]);
    /// ```
    pub const fn quadratic(unit: Duration, cap: Duration) -> Self {
        Self { first: unit, cap, growth: Growth::Quadratic, max_attempts: None, jitter: 0.0 }
    }

    /// Sets the growth factor of an [`exponential`](Self::exponential) back-off, instead of 2.
    ///
    /// It does nothing to any other back-off. A factor below 1 or NaN is refused at start.
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline::Retry;
    ///
    /// let retry = Retry::exponential(Duration::from_secs(60), Duration::from_secs(86_400)).factor(6.0);
    /// assert_eq!(retry.delay(2, 1.0), Some(Duration::from_secs(360)));
    /// ```
    pub const fn factor(mut self, factor: f64) -> Self {
        if matches!(self.growth, Growth::Doubling | Growth::Factor(_)) {
            self.growth = Growth::Factor(factor);
        }
        self
    }

    /// Limits the number of attempts, including the first. 0 is refused at start (by a queue: at
    /// the push, or when it is opened).
    pub const fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// Shortens each back-off by a random part, up to this share of it.
    ///
    /// Jobs that failed together are then not all retried together. 0 (the default) is no jitter,
    /// and 1 is "full jitter"; a value outside 0..=1 is refused at start. A back-off never gets
    /// longer, so the cap holds.
    pub const fn jitter(mut self, share: f64) -> Self {
        self.jitter = share;
        self
    }

    /// Returns the back-off after this attempt (from 1) failed, or `None` after the last one.
    ///
    /// `chance` is a random number in 0..=1 that places the back-off within its jitter. 1 is the
    /// longest.
    #[must_use]
    pub fn delay(&self, attempt: u32, chance: f64) -> Option<Duration> {
        if self.max_attempts.is_some_and(|most| attempt >= most) {
            return None;
        }
        let pause = match self.growth {
            Growth::None => self.first,
            Growth::Doubling => self.doubled(attempt.saturating_sub(1)),
            Growth::Factor(factor) => self.times(factor.powf(f64::from(attempt.saturating_sub(1)))),
            Growth::Quadratic => self.times(f64::from(attempt) * f64::from(attempt)),
        };
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
            // A further doubling would lose the highest bit. No cap is that long.
            _ if times > first.leading_zeros() => u128::MAX,
            _ => first << times,
        };
        if pause < cap { from_nanos(pause) } else { self.cap }
    }

    /// Returns this many first pauses, up to the cap.
    fn times(&self, times: f64) -> Duration {
        let pause = Duration::try_from_secs_f64(self.first.as_secs_f64() * times);
        pause.map_or(if self.first.is_zero() { Duration::ZERO } else { self.cap }, |pause| pause.min(self.cap))
    }

    /// Returns its parts: first pause, growth, cap, attempts and jitter.
    #[cfg(feature = "seam")]
    pub(crate) fn parts(&self) -> (Duration, Growth, Duration, Option<u32>, f64) {
        (self.first, self.growth, self.cap, self.max_attempts, self.jitter)
    }

    /// Builds it from its parts, unchecked.
    #[cfg(feature = "seam")]
    pub(crate) fn of_parts(
        (first, growth, cap, max_attempts, jitter): (Duration, Growth, Duration, Option<u32>, f64),
    ) -> Self {
        Self { first, cap, growth, max_attempts, jitter }
    }

    /// True if the attempts are unlimited.
    pub(crate) fn is_endless(&self) -> bool {
        self.max_attempts.is_none()
    }

    /// True if every pause is zero before jitter.
    pub(crate) fn is_without_pause(&self) -> bool {
        self.first.is_zero() || self.cap.is_zero()
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let why = "the retry allows 0 attempts, and the first attempt counts: use `Retry::none()` for a single attempt";
        check_zero("max_attempts", self.max_attempts == Some(0), why)?;
        let sentence = ("the retry's jitter", "use a share between 0.0 (none) and 1.0 (full)");
        check_number("jitter", self.jitter, 0.0..=1.0, sentence)?;
        let Growth::Factor(factor) = self.growth else { return Ok(()) };
        check_number("factor", factor, 1.0..=f64::MAX, ("the factor of the back-off", "use 1 or more"))
    }
}

/// Converts from nanoseconds, which must fit a `Duration`.
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

    /// A literal implementation of the documentation.
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

    proptest! {
        #[test]
        fn every_pause_is_the_first_doubled_or_the_cap(
            first in prop_oneof![Just(Duration::ZERO), any_pause()], cap in any_pause(), attempt in any_attempt(),
        ) {
            let pause = Retry::exponential(first, cap).delay(attempt, 1.0);
            prop_assert_eq!(pause, Some(doubled_naively(first, cap, attempt)));
        }

        #[test]
        fn jitter_takes_its_random_share_of_a_pause(
            attempt in 1u32..40, jitter in 0.0..=1.0f64, chance in 0.0..=1.0f64, first in 0u64..10_000, cap in 0u64..100_000,
        ) {
            let plain = Retry::exponential(first as u32 * MS, cap as u32 * MS);
            let longest = plain.delay(attempt, 1.0).unwrap();
            let pause = plain.jitter(jitter).delay(attempt, chance).unwrap();
            prop_assert!(pause <= longest);
            let shorter = longest.as_secs_f64() * jitter * (1.0 - chance);
            prop_assert!(((longest - pause).as_secs_f64() - shorter).abs() < 1e-6);
        }
    }
}
