//! The samples of one name: one a second, for the last hour, in memory.

use serde_json::{Value, json};
use std::collections::VecDeque;

/// The samples of an hour.
pub(crate) const KEPT: usize = 3_600;

/// The maximum number of points of a plot.
const POINTS: usize = 360;

/// The time over which rates are taken, in milliseconds.
const MINUTE: u64 = 60_000;

/// The last hour of one name.
pub(crate) struct Samples<S>(VecDeque<S>);

impl<S> Default for Samples<S> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

/// A sample of anything, with the time that it was taken.
pub(crate) trait Sample {
    /// Milliseconds since 1970.
    fn at(&self) -> u64;
}

/// A consumer at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OfStream {
    pub(crate) at: u64,
    pub(crate) head: Option<u64>,
    pub(crate) last_processed: Option<u64>,
    /// `None` while the head is unknown.
    pub(crate) lag: Option<u64>,
    /// The attempts that succeeded since the consumer started.
    pub(crate) done: u64,
    pub(crate) processing: u64,
}

/// A queue at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OfQueue {
    pub(crate) at: u64,
    pub(crate) waiting: u64,
    pub(crate) running: u64,
    /// The pushes, starts and ends since the queue was opened; `None` where this process does not
    /// know them.
    pub(crate) traffic: [Option<u64>; 3],
}

impl Sample for OfStream {
    fn at(&self) -> u64 {
        self.at
    }
}

impl Sample for OfQueue {
    fn at(&self) -> u64 {
        self.at
    }
}

/// Returns how fast a count grows per second; `None` if the time is too short to say.
fn rate(from: (u64, u64), to: (u64, u64)) -> Option<f64> {
    let millis = to.0.saturating_sub(from.0);
    (millis >= 500).then(|| round(to.1.saturating_sub(from.1) as f64 * 1e3 / millis as f64))
}

/// Rounds to three digits, which suffice for people and keep answers short.
fn round(number: f64) -> f64 {
    if number >= 100.0 { number.round() } else { (number * 100.0).round() / 100.0 }
}

impl<S: Sample + Copy> Samples<S> {
    pub(crate) fn add(&mut self, sample: S) {
        // If the clock was set back, a plot would run backwards.
        if self.0.back().is_some_and(|last| last.at() > sample.at()) {
            self.0.clear();
        }
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(sample);
    }

    pub(crate) fn last(&self) -> Option<&S> {
        self.0.back()
    }

    fn minute_ago(&self) -> Option<&S> {
        let since = self.last()?.at().saturating_sub(MINUTE);
        self.0.get(self.0.partition_point(|sample| sample.at() < since))
    }

    /// Returns how fast a count grew per second in the last minute.
    pub(crate) fn rate(&self, count: impl Fn(&S) -> Option<u64>) -> Option<f64> {
        let (from, to) = (self.minute_ago()?, self.last()?);
        rate((from.at(), count(from)?), (to.at(), count(to)?))
    }

    /// Returns the samples of the last `seconds`, thinned out for a plot.
    fn points(&self, seconds: u64) -> Vec<S> {
        let since = self.last().map_or(0, |last| last.at().saturating_sub(seconds * 1_000));
        let from = self.0.partition_point(|sample| sample.at() < since);
        let count = self.0.len() - from;
        let step = count.div_ceil(POINTS).max(1);
        // The newest sample is always among them.
        let first = from + count.saturating_sub(1) % step;
        self.0.iter().skip(first).step_by(step).copied().collect()
    }
}

fn times<S: Sample>(points: &[S]) -> Vec<f64> {
    points.iter().map(|point| point.at() as f64 / 1e3).collect()
}

/// Returns how fast a count grew per second between each point and the one before.
fn speeds<S: Sample>(points: &[S], count: impl Fn(&S) -> Option<u64>) -> Vec<Option<f64>> {
    let pair = |two: &[S]| rate((two[0].at(), count(&two[0])?), (two[1].at(), count(&two[1])?));
    let first = if points.is_empty() { None } else { Some(None) };
    first.into_iter().chain(points.windows(2).map(pair)).collect()
}

impl Samples<OfStream> {
    /// Returns the age of the oldest unprocessed job in seconds, and true if it may be older, since
    /// the samples do not go back that far.
    pub(crate) fn behind(&self) -> Option<(f64, bool)> {
        let last = self.last()?;
        if last.lag? == 0 {
            return Some((0.0, false));
        }
        let at = self.seen_at(self.0.len() - 1);
        Some((last.at.saturating_sub(self.0[at].at) as f64 / 1e3, at == 0))
    }

    /// Returns the place of the first sample whose head was above the watermark of this one.
    fn seen_at(&self, nth: usize) -> usize {
        let watermark = self.0[nth].last_processed;
        self.0.partition_point(|sample| sample.head <= watermark).min(nth)
    }

    /// Returns the seconds left to the head, at the speed of the last minute.
    pub(crate) fn left(&self) -> Option<f64> {
        let (from, to) = (self.minute_ago()?, self.last()?);
        left(from, to)
    }

    /// Returns the plots of the last `seconds`.
    pub(crate) fn plots(&self, seconds: u64) -> Value {
        let points = self.points(seconds);
        let behind = points.iter().map(|point| {
            let nth = self.0.partition_point(|sample| sample.at < point.at);
            let seconds = || point.at.saturating_sub(self.0[self.seen_at(nth)].at) as f64 / 1e3;
            point.lag.map(|lag| if lag == 0 { 0.0 } else { seconds() })
        });
        let lefts = points.iter().map(|point| {
            let since = point.at.saturating_sub(MINUTE);
            left(self.0.get(self.0.partition_point(|sample| sample.at < since))?, point)
        });
        json!({
            "time": times(&points),
            "head": points.iter().map(|point| point.head).collect::<Vec<_>>(),
            "watermark": points.iter().map(|point| point.last_processed).collect::<Vec<_>>(),
            "lag": points.iter().map(|point| point.lag).collect::<Vec<_>>(),
            "behind_seconds": behind.collect::<Vec<_>>(),
            "jobs_per_second": speeds(&points, |point| Some(point.done)),
            "seconds_left": lefts.collect::<Vec<_>>(),
            "processing": points.iter().map(|point| point.processing).collect::<Vec<_>>(),
        })
    }
}

/// Returns the seconds from `to` to the head, at the speed of the watermark since `from`.
fn left(from: &OfStream, to: &OfStream) -> Option<f64> {
    if to.lag? == 0 {
        return Some(0.0);
    }
    let position = |sample: &OfStream| sample.last_processed.map_or(0, |last| last.saturating_add(1));
    let speed = rate((from.at, position(from)), (to.at, position(to)))?;
    (speed > 0.0).then(|| round(to.lag.unwrap_or_default() as f64 / speed))
}

impl Samples<OfQueue> {
    /// Returns the pushes, starts and ends per second in the last minute.
    pub(crate) fn rates(&self) -> [Option<f64>; 3] {
        [0, 1, 2].map(|nth| self.rate(|sample| sample.traffic[nth]))
    }

    /// Returns the plots of the last `seconds`.
    pub(crate) fn plots(&self, seconds: u64) -> Value {
        let points = self.points(seconds);
        let speed = |nth: usize| speeds(&points, |point| point.traffic[nth]);
        json!({
            "time": times(&points),
            "waiting": points.iter().map(|point| point.waiting).collect::<Vec<_>>(),
            "running": points.iter().map(|point| point.running).collect::<Vec<_>>(),
            "pushes_per_second": speed(0),
            "starts_per_second": speed(1),
            "ends_per_second": speed(2),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(second: u64, head: u64, last_processed: u64) -> OfStream {
        let (at, done) = (1_000_000 + second * 1_000, last_processed);
        OfStream {
            at,
            head: Some(head),
            last_processed: Some(last_processed),
            lag: Some(head - last_processed),
            done,
            processing: 2,
        }
    }

    #[test]
    fn lag_in_seconds_counts_from_when_the_head_passed() {
        let mut samples = Samples::default();
        // The head moves by 10 a second, the watermark by 5.
        (0..100).for_each(|second| samples.add(stream(second, 1_000 + second * 10, 1_000 + second * 5)));
        assert_eq!(samples.rate(|sample| Some(sample.done)), Some(5.0));
        // The watermark is at 1,495. The head passed that after 49.5 seconds: seen at second 50.
        assert_eq!(samples.behind(), Some((49.0, false)));
        assert_eq!(samples.left(), Some((495.0_f64 / 5.0).round()));
        let plots = samples.plots(60);
        assert_eq!(plots["time"].as_array().unwrap().len(), 61);
        assert_eq!((&plots["lag"][60], &plots["behind_seconds"][60]), (&json!(495), &json!(49.0)));
        assert_eq!((&plots["jobs_per_second"][0], &plots["jobs_per_second"][60]), (&Value::Null, &json!(5.0)));
        // It stands still, so the time left is unknown.
        (100..200).for_each(|second| samples.add(stream(second, 2_000, 1_495)));
        assert_eq!((samples.left(), samples.behind()), (None, Some((149.0, false))));
        let mut young = Samples::default();
        young.add(stream(0, 10, 5));
        assert_eq!(
            (young.behind(), young.left(), young.rate(|sample| Some(sample.done))),
            (Some((0.0, true)), None, None)
        );
    }

    #[test]
    fn samples_span_an_hour_and_plots_are_thinned() {
        let mut samples = Samples::default();
        (0..5_000).for_each(|second| samples.add(stream(second, second, second)));
        assert_eq!(samples.0.len(), KEPT);
        let plots = samples.plots(3_600);
        let times = plots["time"].as_array().unwrap();
        assert!(times.len() <= POINTS, "{}", times.len());
        assert_eq!(times.last(), Some(&json!(1_000.0 + 4_999.0)));
        // The clock is set back.
        samples.add(stream(3, 9, 9));
        assert_eq!(samples.0.len(), 1);
    }

    #[test]
    fn a_queue_has_three_rates_or_none_if_uncounted() {
        let mut samples = Samples::default();
        for second in 0..10 {
            let traffic = [second * 3, second * 2, second].map(Some);
            samples.add(OfQueue { at: second * 1_000, waiting: second, running: 1, traffic });
        }
        assert_eq!(samples.rates(), [Some(3.0), Some(2.0), Some(1.0)]);
        assert_eq!(samples.plots(60)["ends_per_second"][9], json!(1.0));
        let mut uncounted = Samples::default();
        (0..2).for_each(|second| uncounted.add(OfQueue { at: second * 1_000, ..OfQueue::default() }));
        assert_eq!(uncounted.rates(), [None; 3]);
    }
}
