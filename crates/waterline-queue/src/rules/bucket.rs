//! The token bucket of a rate. It is pure: the caller passes the time.
//!
//! A bucket counts in such fractions of a token that each millisecond adds a whole number of them.
//! So nothing is rounded, and a rate is exact in the long run.

use crate::types::job::LATEST;
use crate::types::limit::Rate;

/// The nanoseconds of a millisecond.
const MILLI: i128 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// How many fractions of tokens there are; negative after a job that cost more.
    pub(crate) level: i128,
    /// How many fractions make one token: the nanoseconds of the period.
    pub(crate) unit: u128,
    /// When it had this level, in milliseconds since 1970.
    pub(crate) since: u64,
}

impl Bucket {
    pub(crate) fn full(rate: Rate, wall: u64) -> Self {
        let unit = rate.per.as_nanos();
        Self { level: i128::from(rate.burst) * parts(unit), unit, since: wall }
    }

    /// Adds the tokens of the time that has passed.
    pub(crate) fn fill(&mut self, rate: Rate, wall: u64) {
        let unit = rate.per.as_nanos();
        if self.unit != unit {
            // The rate has changed since. Whole tokens stay.
            let tokens = self.level.div_euclid(parts(self.unit.max(1)));
            (self.level, self.unit) = (tokens.saturating_mul(parts(unit)), unit);
        }
        // After the clock was set back, tokens are refilled from then on.
        let passed = i128::from(wall.saturating_sub(self.since));
        let most = i128::from(rate.burst) * parts(unit) + per_milli(rate) - 1;
        self.level = self.level.saturating_add(passed * per_milli(rate)).min(most);
        self.since = wall;
    }

    /// True if a job of this cost may start: with its tokens, or with a full bucket.
    pub(crate) fn has(&self, rate: Rate, cost: u32) -> bool {
        self.level >= self.needed(rate, cost)
    }

    pub(crate) fn tokens(&self) -> f64 {
        self.level as f64 / parts(self.unit.max(1)) as f64
    }

    pub(crate) fn take(&mut self, cost: u32) {
        self.level = self.level.saturating_sub(i128::from(cost) * parts(self.unit));
    }

    /// Returns the first time at which a job of this cost may start.
    pub(crate) fn has_at(&self, rate: Rate, cost: u32) -> u64 {
        let missing = self.needed(rate, cost).saturating_sub(self.level).max(0);
        let millis = missing / per_milli(rate) + i128::from(missing % per_milli(rate) > 0);
        u64::try_from(millis).map_or(LATEST, |millis| self.since.saturating_add(millis)).min(LATEST)
    }

    fn needed(&self, rate: Rate, cost: u32) -> i128 {
        i128::from(cost.min(rate.burst)) * parts(self.unit)
    }
}

fn parts(unit: u128) -> i128 {
    // The nanoseconds of the longest duration are far below.
    i128::try_from(unit).unwrap_or(i128::MAX >> 32)
}

fn per_milli(rate: Rate) -> i128 {
    i128::from(rate.count) * MILLI
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    /// The naive model: tokens as fractions, in nanoseconds of the period.
    struct Naive {
        rate: Rate,
        /// When tokens were taken, and how many.
        taken: Vec<(u64, u32)>,
    }

    impl Naive {
        /// Returns the level at a time, by going through everything that was taken.
        fn level(&self, wall: u64) -> i128 {
            let unit = self.rate.per.as_nanos() as i128;
            let gain = i128::from(self.rate.count) * 1_000_000;
            let most = i128::from(self.rate.burst) * unit + gain - 1;
            let (mut level, mut at) = (i128::from(self.rate.burst) * unit, 0);
            for (time, cost) in &self.taken {
                for _ in at..*time {
                    level = (level + gain).min(most);
                }
                at = *time;
                level -= i128::from(*cost) * unit;
            }
            for _ in at..wall {
                level = (level + gain).min(most);
            }
            level
        }

        fn has(&self, wall: u64, cost: u32) -> bool {
            self.level(wall) >= i128::from(cost.min(self.rate.burst)) * self.rate.per.as_nanos() as i128
        }
    }

    prop_compose! {
        fn rates()(count in 1..2_000u32, per in 1..3_000_000_000u64, burst in 1..50u32) -> Rate {
            Rate::new(count, Duration::from_nanos(per)).burst(burst)
        }
    }

    proptest! {
        #[test]
        fn a_bucket_agrees_with_its_model(rate in rates(), calls in prop::collection::vec((0..400u64, 1..80u32), 1..40)) {
            let mut bucket = Bucket::full(rate, 0);
            let mut naive = Naive { rate, taken: Vec::new() };
            let mut wall = 0;
            for (pause, cost) in calls {
                wall += pause;
                bucket.fill(rate, wall);
                prop_assert_eq!(bucket.level, naive.level(wall));
                prop_assert_eq!(bucket.has(rate, cost), naive.has(wall, cost));
                let at = bucket.has_at(rate, cost);
                if at > wall {
                    let mut later = bucket;
                    later.fill(rate, at - 1);
                    prop_assert!(!later.has(rate, cost), "a millisecond earlier it has none");
                    later.fill(rate, at);
                    prop_assert!(later.has(rate, cost), "it has what it said");
                } else {
                    bucket.take(cost);
                    naive.taken.push((wall, cost));
                }
            }
        }

        #[test]
        fn no_period_exceeds_its_tokens_and_one_burst(rate in rates(), jumps in prop::collection::vec((0..5_000u64, any::<bool>()), 1..60)) {
            let (mut wall, mut forward, mut taken) = (1_000_000u64, 0u64, 0i128);
            let mut bucket = Bucket::full(rate, wall);
            for (by, back) in jumps {
                wall = if back { wall - by } else { wall + by };
                forward += if back { 0 } else { by };
                bucket.fill(rate, wall);
                while bucket.has(rate, 1) {
                    bucket.take(1);
                    taken += 1;
                }
            }
            let unit = rate.per.as_nanos() as i128;
            let gain = i128::from(rate.count) * 1_000_000;
            prop_assert!(taken * unit <= i128::from(rate.burst) * unit + i128::from(forward + 1) * gain);
        }
    }

    #[test]
    fn an_uneven_rate_is_exact_over_a_minute() {
        for (count, want) in [(7, 420), (1, 60), (333, 333 * 60), (999, 999 * 60)] {
            let rate = Rate::new(count, Duration::from_secs(1)).burst(1);
            let mut bucket = Bucket::full(rate, 0);
            let mut taken = 0;
            for wall in 0..60_000 {
                bucket.fill(rate, wall);
                if bucket.has(rate, 1) {
                    bucket.take(1);
                    taken += 1;
                }
            }
            assert_eq!(taken, want);
        }
    }

    #[test]
    fn a_changed_rate_keeps_whole_tokens() {
        let old = Rate::new(10, Duration::from_secs(1)).burst(20);
        let mut bucket = Bucket::full(old, 5);
        bucket.take(13);
        let new = Rate::new(1, Duration::from_secs(3600)).burst(20);
        bucket.fill(new, 5);
        assert!(bucket.has(new, 7) && !bucket.has(new, 8));
        let smaller = new.burst(2);
        bucket.fill(smaller, 5);
        bucket.take(2);
        assert!(!bucket.has(smaller, 1));
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let rate = Rate::new(u32::MAX, Duration::MAX).burst(u32::MAX);
        let mut bucket = Bucket::full(rate, 0);
        bucket.take(u32::MAX);
        bucket.fill(rate, u64::MAX);
        assert!(bucket.has_at(rate, u32::MAX) <= LATEST);
        bucket.fill(Rate::new(1, Duration::from_nanos(1)), 0);
        bucket.fill(Rate::new(1, Duration::MAX), u64::MAX);
    }
}
