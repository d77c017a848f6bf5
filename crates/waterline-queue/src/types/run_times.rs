//! How the durations of attempts are distributed.

use std::time::Duration;

/// Each power of two is cut into this many buckets, so a duration is known to within 13 %.
const PARTS: u64 = 8;

/// One bucket for each of the first numbers, then the parts of each power.
const BUCKETS: usize = (64 - 2) * PARTS as usize;

/// How the durations of successful attempts of a kind in a [`Runner`](crate::Runner) are
/// distributed, from [`Queue::activity`](crate::Queue::activity).
///
/// It counts from when this process opened the queue: see [`since`](Self::since).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunTimes(Box<[u32; BUCKETS]>);

impl Default for RunTimes {
    fn default() -> Self {
        Self(Box::new([0; BUCKETS]))
    }
}

fn bucket_of(nanos: u64) -> usize {
    if nanos < PARTS {
        return nanos as usize;
    }
    let power = u64::from(nanos.ilog2());
    let part = nanos >> (power - 3) & (PARTS - 1);
    ((power - 2) * PARTS + part) as usize
}

fn middle_of(bucket: usize) -> u64 {
    let (power, part) = (bucket as u64 / PARTS, bucket as u64 % PARTS);
    match power {
        0 => part,
        _ => ((PARTS + part) << (power - 1)) + (1 << (power - 1)) / 2,
    }
}

impl RunTimes {
    pub(crate) fn add(&mut self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let count = &mut self.0[bucket_of(nanos)];
        *count = count.saturating_add(1);
    }

    /// Returns the number of attempts.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().map(|count| u64::from(*count)).sum()
    }

    /// Returns the duration that this fraction of the attempts did not exceed, to within 13 %: 0.5
    /// for the median, 0.99 for all but a hundredth. `None` without an attempt.
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline::Store;
    /// use waterline_queue::{DrainLimits, NewJob, Outcome, Queue, QueueOptions, Runner};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "mail", QueueOptions::default())?;
    /// queue.push(NewJob::new("welcome", "ann")?)?;
    /// Runner::builder(&queue).on("welcome", |_job, _to: String| Ok(Outcome::Done)).drain(DrainLimits::default())?;
    /// let times = &queue.activity().run_times["welcome"];
    /// assert_eq!(times.count(), 1);
    /// assert!(times.percentile(0.5) < Some(Duration::from_secs(60)));
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    #[must_use]
    pub fn percentile(&self, part: f64) -> Option<Duration> {
        let count = self.count();
        let wanted = ((count as f64) * part.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut passed = 0;
        let bucket = self.0.iter().position(|here| {
            passed += u64::from(*here);
            passed >= wanted
        })?;
        Some(Duration::from_nanos(middle_of(bucket)))
    }

    /// Returns the attempts that ended since `earlier` was taken.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut rest = self.clone();
        rest.0.iter_mut().zip(earlier.0.iter()).for_each(|(count, before)| *count = count.saturating_sub(*before));
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn percentiles_cover_attempts_since_a_snapshot() {
        let mut times = RunTimes::default();
        assert_eq!((times.count(), times.percentile(0.5)), (0, None));
        (0..100).for_each(|_| times.add(Duration::from_secs(1)));
        let before = times.clone();
        (1..=100).for_each(|millis| times.add(Duration::from_millis(millis)));
        let new = times.since(&before);
        let millis = |part| new.percentile(part).map_or(0.0, |took| took.as_secs_f64() * 1e3);
        assert_eq!(new.count(), 100);
        assert!((43.0..57.0).contains(&millis(0.5)), "{}", millis(0.5));
        assert!((85.0..113.0).contains(&millis(0.99)), "{}", millis(0.99));
    }

    proptest! {
        #[test]
        fn a_duration_is_near_the_middle_of_its_bucket(nanos in any::<u64>(), shift in 0_u32..64) {
            let nanos = nanos >> shift;
            let bucket = bucket_of(nanos);
            prop_assert!(bucket < BUCKETS);
            let middle = middle_of(bucket);
            prop_assert!(middle.abs_diff(nanos) <= nanos / 8, "{nanos} {middle}");
            prop_assert_eq!(bucket_of(middle), bucket);
        }
    }
}
