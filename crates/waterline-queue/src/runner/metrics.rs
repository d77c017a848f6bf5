//! The metrics of a runner, for the recorder of the crate `metrics`.

use crate::advice::worst;
use crate::handle::Queue;
use crate::notify::waiting::wait_until;
use crate::rules::fleet::Fleet;
use crate::runner::outcome::QueueEvent;
use crate::status::QueueStatus;
use crate::types::ended::AttemptEnd;
use crate::types::job::Counts;
use metrics::{Counter, Gauge, Histogram, Unit};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::time::Duration;
use waterline::Verdict;
use waterline::seam::{Recorder, VERDICT, describe, guarded, now};

/// The pause between two reads of the queue if they cost little, and the longest one.
const EVERY: Duration = Duration::from_secs(1);
const AT_LAST: Duration = Duration::from_secs(60);

/// Returns the pause after reads that took this long, while this many workers read. A read covers
/// all workers, so the reads of all of them would cost the square of their number. With this pause
/// they keep a tenth of one connection busy.
fn pause(taken: Duration, workers: usize) -> Duration {
    let workers = u32::try_from(workers).unwrap_or(u32::MAX);
    taken.saturating_mul(10).saturating_mul(workers).clamp(EVERY, AT_LAST)
}

/// The states as labels, in the order of [`numbers`].
const STATES: [&str; 7] = ["scheduled", "ready", "running", "finished", "dead", "waiting", "damaged"];

pub(crate) fn numbers(counts: &Counts) -> [u64; STATES.len()] {
    let Counts { scheduled, ready, running, finished, dead, waiting, damaged, age: _ } = *counts;
    [scheduled, ready, running, finished, dead, waiting, damaged]
}

/// The ends as labels, in the order of [`place`].
const ENDS: [&str; 6] = ["finished", "retried", "snoozed", "dead", "lost", "put back"];

fn place(ended: &AttemptEnd) -> usize {
    match ended {
        AttemptEnd::Finished => 0,
        AttemptEnd::Retried { .. } => 1,
        AttemptEnd::Snoozed => 2,
        AttemptEnd::Dead { .. } => 3,
        AttemptEnd::Lost => 4,
        AttemptEnd::PutBack { .. } => 5,
    }
}

pub(super) struct Attempts {
    ended: [Counter; 6],
    seconds: Histogram,
}

impl Attempts {
    pub(super) fn new(queue: &str) -> Self {
        let (name, text) = ("waterline_queue_attempts_total", "Attempts that ended, by their end.");
        Recorder::make("queue", queue, |recorder| Self {
            ended: ENDS.map(|end| recorder.with("ended", end).counter(name, text)),
            seconds: recorder.seconds(
                "waterline_queue_attempt_seconds",
                "The time from the claim of a job to the written end of its attempt.",
            ),
        })
    }

    pub(super) fn observe(by_queue: &HashMap<String, Self>, event: &QueueEvent<'_>) {
        if let QueueEvent::AttemptEnded { queue, elapsed, ended, .. } = event
            && let Some(attempts) = by_queue.get(*queue)
        {
            attempts.ended[place(ended)].increment(1);
            attempts.seconds.record(*elapsed);
        }
    }
}

/// The metrics that show the current state of the queues of a runner.
pub(super) struct Gauges {
    /// The gauges of each queue, in the order of the source.
    queues: Vec<OfQueue>,
    /// True once the runner has ended.
    over: Mutex<bool>,
    bell: Condvar,
}

struct OfQueue {
    up: Gauge,
    in_flight: Gauge,
    oldest: Gauge,
    jobs: [Gauge; STATES.len()],
    verdicts: [Gauge; ON.len()],
    workers: [Gauge; WORKERS.len()],
    slots: Gauge,
    busy: Gauge,
}

/// The states of workers as labels: taking jobs, stopping, or silent but still with jobs.
const WORKERS: [&str; 3] = ["taking", "stopping", "silent"];

/// What a verdict is about: why no job starts, and the reasons of what is left over.
const ON: [&str; 4] = ["movement", "unknown_kinds", "dead", "damaged"];

impl OfQueue {
    fn new(queue: &str) -> Self {
        let (name, text) = ("waterline_queue_jobs", "Jobs, by their state.");
        let (workers, of_workers) = ("waterline_queue_workers", "Workers of all processes, by their state.");
        Recorder::make("queue", queue, |recorder| Self {
            up: recorder.gauge("waterline_queue_up", Unit::Count, "1 while the runner runs, 0 once it has ended."),
            in_flight: recorder.gauge("waterline_queue_in_flight", Unit::Count, "Jobs that the runner runs."),
            oldest: recorder.gauge(
                "waterline_queue_oldest_ready_seconds",
                Unit::Seconds,
                "The age of the oldest ready job, or 0 if there is none.",
            ),
            jobs: STATES.map(|state| recorder.with("state", state).gauge(name, Unit::Count, text)),
            verdicts: ON.map(|on| recorder.with("on", on).gauge("waterline_queue_verdict", Unit::Count, VERDICT)),
            workers: WORKERS.map(|state| recorder.with("state", state).gauge(workers, Unit::Count, of_workers)),
            slots: recorder.gauge(
                "waterline_queue_slots",
                Unit::Count,
                "Slots of the workers of all processes that take jobs, or 0 if one of them has no bound.",
            ),
            busy: recorder.gauge("waterline_queue_slots_busy", Unit::Count, "Those slots that are taken."),
        })
    }

    /// Sets the gauges, and returns how many workers the queue has.
    fn set(&self, queue: &Queue, in_flight: usize) -> usize {
        for (gauge, number) in self.jobs.iter().zip(numbers(&queue.counts())) {
            gauge.set(as_f64(number));
        }
        self.in_flight.set(as_f64(in_flight as u64));
        let status = queue.status();
        let advice = status.as_ref().map(QueueStatus::advice).unwrap_or_default();
        for (on, gauge) in ON.iter().zip(&self.verdicts) {
            let is_it = |reason: &str| if *on == "movement" { !ON.contains(&reason) } else { reason == *on };
            let fails = *on == "movement" && status.is_err();
            let verdict = if fails { Verdict::NeedsYou } else { worst(&advice, is_it) };
            gauge.set(as_f64(verdict as u64));
        }
        // If the store cannot be read now, the age and the workers are unknown.
        let Ok(QueueStatus { oldest_ready, fleet, .. }) = status else { return 0 };
        self.oldest.set(oldest_ready.map_or(Duration::ZERO, |(_, age)| age));
        let Fleet { workers, stopping, slots, busy, silent_count, .. } = fleet;
        for (gauge, number) in self.workers.iter().zip([workers, stopping, silent_count]) {
            gauge.set(as_f64(number as u64));
        }
        self.slots.set(as_f64(slots.unwrap_or(0)));
        self.busy.set(as_f64(busy));
        workers
    }
}

impl Gauges {
    pub(super) fn new(queues: &[String]) -> Self {
        let queues = queues.iter().map(|queue| OfQueue::new(queue)).collect();
        Self { queues, over: Mutex::new(false), bell: Condvar::new() }
    }

    /// Ends the thread. Callers may hold the pool's lock, so do not call the pool under this lock.
    pub(super) fn close(&self) {
        *self.over.lock() = true;
        self.bell.notify_all();
    }

    /// Runs the loop of the thread.
    pub(super) fn watch(&self, queues: &[&Queue], in_flight: impl Fn(&Queue) -> usize) {
        loop {
            let is_over = *self.over.lock();
            let (came, mut workers) = (now(), 0);
            let set = guarded(|| {
                for (gauges, queue) in self.queues.iter().zip(queues) {
                    workers = workers.max(gauges.set(queue, in_flight(queue)));
                    // Last, so that a reader that sees 1 sees current values of the other gauges.
                    gauges.up.set(f64::from(u8::from(!is_over)));
                }
                Ok(())
            });
            if let Err(panic) = set {
                let (queue, error) = (queues.first().map_or("", |queue| queue.name()), describe(&*panic));
                tracing::error!(target: "waterline", queue, error, "the recorder of metrics panicked; the gauges are set no more");
                return;
            }
            if is_over {
                return;
            }
            let left = now();
            let until = left.checked_add(pause(left.saturating_duration_since(came), workers));
            let mut over = self.over.lock();
            while !*over && !wait_until(&self.bell, &mut over, until) {}
        }
    }
}

/// A gauge is a float, which is exact up to 2^53.
fn as_f64(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauge_reads_of_all_workers_take_a_tenth_of_the_time() {
        let ms = Duration::from_millis;
        for (taken, workers, seconds) in
            [(1, 1, 1), (5, 0, 1), (5, 100, 5), (50, 100, 50), (50, 1_000, 60), (9_000, 1, 60)]
        {
            assert_eq!(pause(ms(taken), workers), ms(1_000 * seconds), "{taken} {workers}");
        }
        assert_eq!(pause(Duration::MAX, usize::MAX), AT_LAST);
    }
}
