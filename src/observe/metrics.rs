//! An observer that reports the metrics of a consumer to the recorder of the crate `metrics`.

use super::events::{AttemptOutcome, Event, Observer};
use super::status::{State, Status};
use crate::base::advice::{Advice, VERDICT, Verdict};
use crate::base::recorder::{Recorder, as_f64};
use crate::base::{Index, error::describe, guard::guarded, sync::Arc};
use metrics::{Counter, Gauge, Histogram, Unit};
use std::sync::OnceLock;
use std::time::Duration;

/// Returns the observer that reports one consumer's metrics. The recorder is user code: if it
/// panics, the consumer runs without metrics.
pub(crate) fn observer(consumer: String) -> Option<Box<dyn Observer>> {
    match guarded(|| Ok(Metrics::new(&consumer))) {
        Ok(metrics) => Some(Box::new(metrics)),
        Err(panic) => {
            let error = describe(&*panic);
            tracing::error!(consumer, error, "the recorder of metrics panicked; the consumer runs without metrics");
            None
        }
    }
}

/// The metrics of a standby. None is set before it has its name, since the consumer that has the
/// name may set the same ones.
#[derive(Clone)]
pub(crate) struct ToCome(Arc<Muted>);

struct Muted {
    consumer: String,
    /// The handles, registered at the start of the wait.
    made: Option<Box<dyn Observer>>,
    /// `None` until the consumer has its name, then new handles if that name differs.
    begun: OnceLock<Option<Box<dyn Observer>>>,
}

impl ToCome {
    pub(crate) fn new(consumer: &str) -> Self {
        let made = observer(consumer.to_owned());
        Self(Arc::new(Muted { consumer: consumer.to_owned(), made, begun: OnceLock::new() }))
    }

    /// Sets the metrics from now on, under the name that the consumer has taken.
    pub(crate) fn begin(&self, consumer: String) {
        let renamed = consumer != self.0.consumer;
        // There is one takeover, so this is the first call.
        let _ = self.0.begun.set(renamed.then(|| observer(consumer)).flatten());
    }
}

impl Observer for ToCome {
    fn observe(&self, event: &Event<'_>) {
        let Some(begun) = self.0.begun.get() else { return };
        begun.as_ref().or(self.0.made.as_ref()).into_iter().for_each(|metrics| metrics.observe(event));
    }
}

/// The handles of one consumer's metrics, registered once at its start.
struct Metrics {
    attempts: Counter,
    failures: Counter,
    deferrals: Counter,
    retries: Counter,
    saves: Counter,
    stalls: Counter,
    up: Gauge,
    head: Gauge,
    watermark: Gauge,
    lag_jobs: Gauge,
    lag_seconds: Gauge,
    in_flight: Gauge,
    done_ahead: Gauge,
    parked: Gauge,
    behind: Gauge,
    /// The verdict on what the watermark waits for.
    movement: Gauge,
    /// The verdict on the parked jobs.
    left_over: Gauge,
    attempt_seconds: Histogram,
    save_seconds: Histogram,
}

impl Metrics {
    fn new(consumer: &str) -> Self {
        Recorder::make("consumer", consumer, |recorder| {
            let counter = |name, text| recorder.counter(name, text);
            let gauge = |name, text| recorder.gauge(name, Unit::Count, text);
            let verdict = |on| recorder.with("on", on).gauge("waterline_verdict", Unit::Count, VERDICT);
            Self {
                attempts: counter("waterline_attempts_total", "Attempts that began."),
                failures: counter("waterline_failures_total", "Attempts that failed."),
                deferrals: counter("waterline_deferrals_total", "Attempts that ended since the job was not ready."),
                retries: counter("waterline_retries_total", "Attempts that began and were not the first of their job."),
                saves: counter("waterline_saves_total", "Saves of the progress that succeeded."),
                stalls: counter(
                    "waterline_stalls_total",
                    "Times at which the watermark was said to stand still, though there is work.",
                ),
                up: gauge("waterline_up", "1 while the consumer runs, 0 once it has halted or ended."),
                head: gauge("waterline_head", "The highest index that the source has, or -1 if it has none."),
                watermark: gauge(
                    "waterline_watermark",
                    "The saved index up to which every job is processed, or -1 if there is none.",
                ),
                lag_jobs: gauge("waterline_lag_jobs", "Jobs that are not processed yet."),
                lag_seconds: recorder.gauge(
                    "waterline_lag_seconds",
                    Unit::Seconds,
                    "For how long the head has been above what is now the watermark.",
                ),
                in_flight: gauge("waterline_in_flight", "Jobs that were handed to a worker and not reported."),
                done_ahead: gauge("waterline_done_ahead", "Jobs that finished above the watermark."),
                parked: gauge("waterline_parked", "Jobs that are parked."),
                behind: gauge("waterline_behind", "Jobs that are read and wait for an earlier one of their key."),
                movement: verdict("movement"),
                left_over: verdict("parked"),
                attempt_seconds: recorder
                    .seconds("waterline_attempt_seconds", "The time from the beginning of an attempt to its report."),
                save_seconds: recorder
                    .seconds("waterline_save_seconds", "The time that a save took, with the tries that failed."),
            }
        })
    }

    fn measured(&self, lag: Duration, status: &Status) {
        let is_over = matches!(status.state, State::Halted | State::Finished);
        self.head.set(or_none(status.head));
        self.watermark.set(or_none(status.last_processed));
        self.lag_jobs.set(as_f64(status.lag()));
        self.lag_seconds.set(lag);
        self.in_flight.set(as_f64(status.processing as u64));
        self.done_ahead.set(as_f64(status.done_ahead));
        self.parked.set(as_f64(status.parked));
        self.behind.set(as_f64(status.behind));
        let advice = status.advice();
        let verdict = |of: fn(&str) -> bool| as_f64(Advice::worst_of(&advice, of) as u64);
        self.movement.set(verdict(|reason| reason != "parked"));
        self.left_over.set(verdict(|reason| reason == "parked"));
        // Last: a reader that sees 1 here sees the other gauges of this life.
        self.up.set(f64::from(u8::from(!is_over)));
    }
}

impl Observer for Metrics {
    fn observe(&self, event: &Event<'_>) {
        match *event {
            Event::AttemptBegun { attempt, .. } => {
                self.attempts.increment(1);
                if attempt > 1 {
                    self.retries.increment(1);
                }
            }
            Event::AttemptEnded { elapsed, outcome, .. } => {
                self.attempt_seconds.record(elapsed);
                match outcome {
                    AttemptOutcome::Done | AttemptOutcome::BatchFailed { .. } => {}
                    AttemptOutcome::Failed { .. } => self.failures.increment(1),
                    AttemptOutcome::Deferred => self.deferrals.increment(1),
                }
            }
            Event::Saved { elapsed, count, .. } => {
                self.saves.increment(count);
                self.save_seconds.record_many(elapsed, usize::try_from(count).unwrap_or(usize::MAX));
            }
            Event::Measured { lag, status, .. } => self.measured(lag, status),
            // Jobs in flight still run after a halt, so only the end sets their number to 0.
            Event::Halted { .. } => {
                self.up.set(0.0);
                self.movement.set(as_f64(Verdict::NeedsYou as u64));
            }
            Event::Ended { .. } => {
                self.up.set(0.0);
                // Abandoned jobs may still run, but they are no longer counted.
                self.in_flight.set(0.0);
            }
            Event::Stalled { .. } => self.stalls.increment(1),
            // The next measurement has the number of parked jobs.
            Event::Parked { .. } | Event::Waiting { .. } | Event::TookOver { .. } => {}
        }
    }
}

/// A gauge has no value for "none", and 0 is a valid index.
fn or_none(index: Option<Index>) -> f64 {
    index.map_or(-1.0, as_f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::advice::tests::{reasons, waiting};
    use metrics::HistogramFn;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[derive(Default)]
    struct Count(AtomicU64);

    impl HistogramFn for Count {
        fn record(&self, _: f64) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_merged_saved_event_counts_all_its_saves() {
        let (saves, durations) = (Arc::new(AtomicU64::new(0)), Arc::new(Count::default()));
        let (counter, histogram) = (Counter::from_arc(saves.clone()), Histogram::from_arc(durations.clone()));
        let metrics = Metrics { saves: counter, save_seconds: histogram, ..Metrics::new("p") };
        for count in [1, 3] {
            metrics.observe(&Event::Saved { consumer: "p", last_processed: None, elapsed: Duration::ZERO, count });
        }
        assert_eq!([&*saves, &durations.0].map(|number| number.load(Ordering::Relaxed)), [4, 4]);
    }

    #[test]
    fn the_verdict_is_that_of_the_status() {
        let [movement, left_over] = [0, 1].map(|_| Arc::new(AtomicU64::new(0)));
        let read = || [&movement, &left_over].map(|gauge| f64::from_bits(gauge.load(Ordering::Relaxed)));
        let [moves, parks] = [&movement, &left_over].map(|gauge| Gauge::from_arc(gauge.clone()));
        let metrics = Metrics { movement: moves, left_over: parks, ..Metrics::new("p") };
        for (blocked, verdict) in reasons() {
            let number = [Verdict::GoesWell, Verdict::Waits, Verdict::NeedsYou].iter().position(|one| *one == verdict);
            for (parked, of_parked) in [(0, 0.0), (3, 2.0)] {
                let status = Status { parked, ..waiting(blocked.clone(), Duration::from_secs(60)) };
                metrics.observe(&Event::Measured { consumer: "p", lag: Duration::ZERO, status: &status });
                assert_eq!(read(), [number.unwrap() as f64, of_parked], "{blocked}");
            }
        }
        metrics.observe(&Event::Halted { consumer: "p", index: 1, attempt: None, error: "" });
        assert_eq!(read()[0], 2.0);
    }

    #[test]
    fn the_end_sets_up_and_in_flight_to_zero() {
        // The crate `metrics` stores a gauge as the bits of a float.
        let [up, in_flight] = [0, 1].map(|_| Arc::new(AtomicU64::new(2_f64.to_bits())));
        let read = || [&up, &in_flight].map(|gauge| f64::from_bits(gauge.load(Ordering::Relaxed)));
        let (up, in_flight) = (Gauge::from_arc(up.clone()), Gauge::from_arc(in_flight.clone()));
        let metrics = Metrics { up, in_flight, ..Metrics::new("p") };
        metrics.observe(&Event::Halted { consumer: "p", index: 1, attempt: None, error: "" });
        assert_eq!(read(), [0.0, 2.0], "the jobs in flight still run");
        let state = State::Halted;
        metrics.observe(&Event::Ended { consumer: "p", state, last_processed: None, error: None });
        assert_eq!(read(), [0.0, 0.0]);
    }
}
