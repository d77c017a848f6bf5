//! How long the attempts of a kind take.

#[cfg(doc)]
use crate::Queue;
use std::fmt;
use std::time::Duration;

/// The weight of the average against the newest duration. Such an average is overall as old as the
/// plain mean of twice as many durations.
const SPAN: u64 = 50;

/// How long successful attempts of a kind took in a runner, from [`Queue::durations`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Durations {
    /// How many attempts are in the average.
    pub count: u64,
    /// The average of about the last 100 attempts: the newer ones count for more.
    pub mean: Duration,
    /// The duration of the last attempt.
    pub last: Duration,
}

impl Durations {
    pub(crate) fn with(self, took: Duration) -> Self {
        let count = self.count.saturating_add(1);
        let parts = u128::from(count.min(SPAN));
        let sum = self.mean.as_nanos().saturating_mul(parts - 1).saturating_add(took.as_nanos());
        Self { count, mean: from_nanos(u64::try_from(sum / parts).unwrap_or(u64::MAX)), last: took }
    }
}

/// Displays a long duration in a rough unit: `12.5s`, `12m`, `5h`, `3d`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Long(pub(crate) Duration);

impl fmt::Display for Long {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() {
            0..120 => write!(f, "{:.1?}", self.0),
            seconds @ 120..7_200 => write!(f, "{}m", seconds / 60),
            seconds @ 7_200..172_800 => write!(f, "{}h", seconds / 3_600),
            seconds => write!(f, "{}d", seconds / 86_400),
        }
    }
}

pub(crate) fn from_nanos(nanos: u64) -> Duration {
    Duration::from_nanos(nanos)
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seconds(seconds: impl IntoIterator<Item = u64>) -> Durations {
        let add = |durations: Durations, seconds| durations.with(Duration::from_secs(seconds));
        seconds.into_iter().fold(Durations::default(), add)
    }

    #[test]
    fn the_mean_follows_the_last_hundred_attempts() {
        let first = seconds([1, 2, 3, 6]);
        assert_eq!((first.count, first.mean, first.last), (4, Duration::from_secs(3), Duration::from_secs(6)));
        let moved = seconds((0..1_000).map(|_| 1).chain((0..100).map(|_| 101)));
        assert!((80..95).contains(&moved.mean.as_secs()), "{moved:?}");
        assert_eq!(seconds([5; 10_000]).mean, Duration::from_secs(5));
    }

    #[test]
    fn a_long_duration_is_shown_in_few_digits() {
        let said = [0, 90, 119, 120, 725, 7_199, 7_200, 172_799, 172_800, 999_999];
        let said = said.map(|seconds| Long(Duration::from_secs(seconds)).to_string());
        assert_eq!(said, ["0.0ns", "90.0s", "119.0s", "2m", "12m", "119m", "2h", "47h", "2d", "11d"]);
    }

    proptest! {
        #[test]
        fn a_mean_lies_between_shortest_and_longest(took in proptest::collection::vec(any::<u64>(), 1..200)) {
            let durations = took.iter().fold(Durations::default(), |sum, took| sum.with(from_nanos(*took)));
            let (least, most) = (took.iter().min().unwrap(), took.iter().max().unwrap());
            // Each division rounds down.
            let slack = took.len() as u64;
            prop_assert!((least.saturating_sub(slack)..=*most).contains(&nanos(durations.mean)));
        }

    }
}
