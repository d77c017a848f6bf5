//! The latest numbers of each consumer and queue, for rates and small plots.

use super::seen::Seen;
use crate::format::At;
use crate::rows::Consumer;
use std::collections::{BTreeMap, VecDeque};

/// How many numbers are kept per name.
const KEPT: usize = 60;

#[derive(Default)]
pub(super) struct Histories {
    /// Jobs per second, by consumer.
    streams: BTreeMap<String, History>,
    /// Waiting jobs, by queue.
    queues: BTreeMap<String, History>,
}

/// The numbers of one name, the newest last.
#[derive(Default)]
struct History {
    values: VecDeque<f64>,
    /// How many jobs were done, and when.
    last: Option<(u64, At)>,
}

impl History {
    fn push(&mut self, value: f64) {
        if self.values.len() == KEPT {
            self.values.pop_front();
        }
        self.values.push_back(value);
    }
}

fn done(consumer: &Consumer) -> Option<u64> {
    Some(consumer.next?.saturating_add(consumer.done_ahead))
}

impl Histories {
    /// Records what a look found, and forgets names that are gone.
    pub(super) fn note(&mut self, seen: &Seen) {
        self.streams.retain(|name, _| seen.consumers.iter().any(|consumer| consumer.name == *name));
        for consumer in &seen.consumers {
            let history = self.streams.entry(consumer.name.clone()).or_default();
            let live = consumer.live.as_ref().and_then(|live| live.jobs_per_second);
            let since = history.last.zip(done(consumer)).and_then(|((before, at), now)| {
                let seconds = seen.at.0.saturating_sub(at.0) as f64 / 1e3;
                // A seek back counts as no work.
                (seconds > 0.0).then(|| now.saturating_sub(before) as f64 / seconds)
            });
            if let Some(rate) = live.or(since) {
                history.push(rate);
            }
            history.last = done(consumer).map(|done| (done, seen.at));
        }
        let queues = || seen.queues.iter().filter_map(|queue| queue.as_ref().ok());
        self.queues.retain(|name, _| queues().any(|queue| queue.name == *name));
        for queue in queues() {
            let waiting = [queue.counts.ready, queue.counts.scheduled, queue.counts.waiting].map(|many| many as f64);
            self.queues.entry(queue.name.clone()).or_default().push(waiting.iter().sum());
        }
    }

    /// Returns the jobs per second of a consumer; `None` before the second look.
    pub(super) fn rate(&self, consumer: &str) -> Option<f64> {
        self.streams.get(consumer)?.values.back().copied()
    }

    /// Returns the last rates of a consumer as a plot of at most this many columns.
    pub(super) fn of_stream(&self, consumer: &str, columns: usize) -> String {
        self.streams.get(consumer).map(|history| plot(&history.values, columns)).unwrap_or_default()
    }

    /// Returns the last numbers of waiting jobs as a plot of at most this many columns.
    pub(super) fn of_queue(&self, queue: &str, columns: usize) -> String {
        self.queues.get(queue).map(|history| plot(&history.values, columns)).unwrap_or_default()
    }
}

/// Draws numbers as bars, from 0 to the highest one.
fn plot(values: &VecDeque<f64>, columns: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let shown = values.iter().skip(values.len().saturating_sub(columns));
    let highest = shown.clone().copied().fold(0.0, f64::max);
    let bar = |value: &f64| {
        let part = if highest > 0.0 { value / highest } else { 0.0 };
        BARS[((part * 8.0).ceil() as usize).clamp(1, 8) - 1]
    };
    shown.map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(at: u64, next: Option<u64>, done_ahead: u64) -> Seen {
        let consumer = Consumer { name: "p".to_owned(), next, done_ahead, ..Consumer::default() };
        Seen { at: At(at), consumers: vec![consumer], ..Seen::default() }
    }

    #[test]
    fn a_rate_spans_two_looks_and_ignores_a_seek_back() {
        let mut histories = Histories::default();
        histories.note(&seen(1_000, Some(10), 0));
        assert_eq!(histories.rate("p"), None);
        histories.note(&seen(3_000, Some(20), 10));
        assert_eq!(histories.rate("p"), Some(10.0));
        histories.note(&seen(4_000, Some(5), 0));
        assert_eq!(histories.rate("p"), Some(0.0));
        histories.note(&seen(5_000, Some(10), 0));
        assert_eq!((histories.rate("p"), histories.of_stream("p", 2)), (Some(5.0), "▁█".to_owned()));
        (0..200).for_each(|more| histories.note(&seen(6_000 + more, Some(10), 0)));
        assert_eq!(histories.of_stream("p", 1_000).chars().count(), KEPT);
        let none = Seen { consumers: vec![], ..seen(9_000, None, 0) };
        histories.note(&none);
        assert_eq!((histories.rate("p"), histories.of_stream("p", 9)), (None, String::new()));
    }
}
