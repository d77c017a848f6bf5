//! The throughput and remaining time of a stage, estimated from its last minute.

use crate::base::{Index, guard::guarded};
use crate::observe::status::{State, Status};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

/// How far back the samples go. Older ones say nothing about the present.
const SPAN: Duration = Duration::from_secs(60);

/// The time between two samples.
const EVERY: Duration = Duration::from_secs(1);

/// How many jobs are weighed at most. If there are more, these stand for all of them.
const WEIGHED: u64 = 64;

pub(super) type Weight = Box<dyn Fn(Index) -> u64 + Send + Sync>;

/// Where a stage was in the last minute.
#[derive(Debug)]
pub(super) struct Rate {
    /// The lowest unprocessed index at each time; empty while the stage waits for its name.
    samples: VecDeque<(Instant, Index)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Past {
    from: Index,
    age: Duration,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Estimate {
    pub(super) jobs_per_second: f64,
    /// `None` if unknown.
    pub(super) time_left: Option<Duration>,
}

impl Rate {
    fn new(now: Instant, unprocessed: Index) -> Self {
        Self { samples: VecDeque::from([(now, unprocessed)]) }
    }

    /// Starts with this stage's position. A stage that waits for its name has none yet.
    pub(super) fn of(now: Instant, status: &Status) -> Self {
        match status.state {
            State::Waiting => Self { samples: VecDeque::new() },
            _ => Self::new(now, status.unprocessed),
        }
    }

    /// Adds the current position, and returns an earlier one to compare it with, or `None` while
    /// the stage waits for its name.
    pub(super) fn look_at(&mut self, now: Instant, status: &Status) -> Option<Past> {
        (status.state != State::Waiting).then(|| self.look(now, status.unprocessed))
    }

    fn look(&mut self, now: Instant, unprocessed: Index) -> Past {
        let age = |at: Instant| now.saturating_duration_since(at);
        while self.samples.get(1).is_some_and(|(at, _)| age(*at) >= SPAN) {
            self.samples.pop_front();
        }
        let (since, from) = self.samples.front().copied().unwrap_or((now, unprocessed));
        if self.samples.back().is_none_or(|(at, _)| age(*at) >= EVERY) {
            self.samples.push_back((now, unprocessed));
        }
        Past { from, age: age(since) }
    }
}

impl Past {
    /// Estimates from the jobs that are left. It calls the user's `weight`: never with a lock held.
    pub(super) fn estimate(self, todo: Range<Index>, weight: Option<&Weight>) -> Estimate {
        let Self { from, age } = self;
        let seconds = age.as_secs_f64();
        let per_second = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
        let done = from.min(todo.start)..todo.start;
        let left = weigh(&todo, weight);
        let speed = per_second(weigh(&done, weight));
        let time_left = if todo.is_empty() { Some(0.0) } else { Some(left / speed).filter(|_| speed > 0.0) };
        Estimate {
            jobs_per_second: per_second((done.end - done.start) as f64),
            time_left: time_left.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
        }
    }
}

/// Returns the total weight of these jobs, estimated from some of them.
fn weigh(jobs: &Range<Index>, weight: Option<&Weight>) -> f64 {
    let count = jobs.end.saturating_sub(jobs.start);
    let Some(weight) = weight else { return count as f64 };
    let weighed = count.min(WEIGHED);
    let sum = (0..weighed).try_fold(0.0, |sum, nth| {
        let within = (u128::from(count) * (2 * u128::from(nth) + 1) / (2 * u128::from(weighed))) as u64;
        guarded(|| Ok(sum + weight(jobs.start + within) as f64))
    });
    // If `weight` panics, all jobs weigh the same.
    sum.map_or(count as f64, |sum: f64| if weighed == 0 { 0.0 } else { sum * (count as f64 / weighed as f64) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    fn looked(rate: &mut Rate, now: Instant, todo: Range<Index>, weight: Option<&Weight>) -> Estimate {
        rate.look(now, todo.start).estimate(todo, weight)
    }

    #[test]
    fn a_steady_stage_needs_lag_over_throughput() {
        let start = Instant::now();
        let mut rate = Rate::new(start, 100);
        let estimate = looked(&mut rate, at(start, 10), 200..1_200, None);
        assert_eq!(estimate, Estimate { jobs_per_second: 10.0, time_left: Some(Duration::from_secs(100)) });
        assert_eq!(looked(&mut rate, at(start, 10), 200..200, None).time_left, Some(Duration::ZERO));
    }

    #[test]
    fn a_minute_without_jobs_leaves_no_estimate() {
        let start = Instant::now();
        let mut rate = Rate::new(start, 0);
        assert_eq!(looked(&mut rate, start, 0..10, None).time_left, None);
        for second in 1..=60 {
            looked(&mut rate, at(start, second), 5 * second..1_000, None);
        }
        let stalled = (61..=122).map(|second| looked(&mut rate, at(start, second), 300..1_000, None)).last().unwrap();
        assert_eq!(stalled, Estimate { jobs_per_second: 0.0, time_left: None });
        assert!(rate.samples.len() < 64, "{} samples are kept", rate.samples.len());
    }

    #[test]
    fn the_estimate_uses_the_weight_of_the_jobs() {
        let start = Instant::now();
        // The jobs that are left weigh three times as much as those that are done.
        let weight: Weight = Box::new(|index| if index < 100 { 1 } else { 3 });
        let mut rate = Rate::new(start, 0);
        let estimate = looked(&mut rate, at(start, 10), 100..200, Some(&weight));
        assert_eq!(estimate, Estimate { jobs_per_second: 10.0, time_left: Some(Duration::from_secs(30)) });
        let rising: Weight = Box::new(|index| index);
        let many = weigh(&(0..1_000_000), Some(&rising));
        assert!((many / 5e11 - 1.0).abs() < 0.001, "{many}");
        assert_eq!(weigh(&(5..8), Some(&rising)), 18.0);
        let panics: Weight = Box::new(|_| panic!("as planned"));
        assert_eq!(weigh(&(0..7), Some(&panics)), 7.0);
        assert!(weigh(&(0..Index::MAX), Some(&rising)).is_finite());
    }
}
