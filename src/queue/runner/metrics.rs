//! The metrics of a runner, for the recorder of the crate `metrics`.
//!
//! No metric can be taken back from a recorder, so the gauges of a queue outlive its runner. The
//! next runner of the queue sets the same ones.

use crate::base::error::describe;
use crate::base::guard::guarded;
use crate::base::sync::{Condvar, Mutex, wait_until};
use crate::queue::handle::Queue;
use crate::queue::runner::outcome::QueueEvent;
use crate::queue::words::ended::Ended;
use crate::queue::words::job::Counts;
use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, Unit, with_recorder};
use std::collections::HashMap;
use std::time::Duration;

const METADATA: Metadata<'static> = Metadata::new("waterline", Level::INFO, None);

/// The time between two looks at the queue.
const EVERY: Duration = Duration::from_secs(1);

const ATTEMPTS: (&str, &str) = ("waterline_queue_attempts_total", "Attempts that ended, by their end.");

const SECONDS: (&str, &str) =
    ("waterline_queue_attempt_seconds", "The time from the claim of a job to the written end of its attempt.");

/// The gauges: name, unit and description.
const GAUGES: [(&str, Unit, &str); 3] = [
    ("waterline_queue_up", Unit::Count, "1 while the runner runs, 0 once it has ended."),
    ("waterline_queue_in_flight", Unit::Count, "Jobs that the runner runs."),
    ("waterline_queue_oldest_ready_seconds", Unit::Seconds, "The age of the oldest ready job, or 0 if there is none."),
];

const JOBS: (&str, &str) = ("waterline_queue_jobs", "Jobs, by their state.");

/// The states as labels, in the order of [`numbers`].
const STATES: [&str; 7] = ["scheduled", "ready", "running", "finished", "dead", "waiting", "damaged"];

pub(crate) fn numbers(counts: &Counts) -> [u64; STATES.len()] {
    let Counts { scheduled, ready, running, finished, dead, waiting, damaged } = *counts;
    [scheduled, ready, running, finished, dead, waiting, damaged]
}

/// The ends as labels, in the order of [`place`].
const ENDS: [&str; 6] = ["finished", "retried", "snoozed", "dead", "lost", "put back"];

fn place(ended: &Ended) -> usize {
    match ended {
        Ended::Finished => 0,
        Ended::Retried { .. } => 1,
        Ended::Snoozed => 2,
        Ended::Dead { .. } => 3,
        Ended::Lost => 4,
        Ended::PutBack { .. } => 5,
    }
}

/// The metrics that the ends of attempts move.
pub(super) struct Attempts {
    ended: [Counter; 6],
    seconds: Histogram,
}

impl Attempts {
    pub(super) fn new(queue: &str) -> Self {
        with_recorder(|recorder| {
            recorder.describe_counter(ATTEMPTS.0.into(), Some(Unit::Count), ATTEMPTS.1.into());
            recorder.describe_histogram(SECONDS.0.into(), Some(Unit::Seconds), SECONDS.1.into());
            let ended =
                ENDS.map(|end| recorder.register_counter(&key(ATTEMPTS.0, queue, Some(("ended", end))), &METADATA));
            Self { ended, seconds: recorder.register_histogram(&key(SECONDS.0, queue, None), &METADATA) }
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

/// The metrics that show how the queues of a runner are now.
pub(super) struct Gauges {
    /// Those of each queue, in the order of the source.
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
}

impl OfQueue {
    fn new(queue: &str) -> Self {
        with_recorder(|recorder| {
            for (name, unit, text) in GAUGES {
                recorder.describe_gauge(name.into(), Some(unit), text.into());
            }
            recorder.describe_gauge(JOBS.0.into(), Some(Unit::Count), JOBS.1.into());
            let gauge = |recorder: &dyn Recorder, key| recorder.register_gauge(&key, &METADATA);
            let [up, in_flight, oldest] = GAUGES.map(|(name, ..)| gauge(recorder, key(name, queue, None)));
            let jobs = STATES.map(|state| gauge(recorder, key(JOBS.0, queue, Some(("state", state)))));
            Self { up, in_flight, oldest, jobs }
        })
    }

    fn set(&self, queue: &Queue, in_flight: usize) {
        for (gauge, number) in self.jobs.iter().zip(numbers(&queue.counts())) {
            gauge.set(as_f64(number));
        }
        self.in_flight.set(as_f64(in_flight as u64));
        // A store that cannot be read now says nothing of the age.
        if let Ok(status) = queue.status() {
            self.oldest.set(status.oldest_ready.map_or(Duration::ZERO, |(_, age)| age));
        }
    }
}

impl Gauges {
    pub(super) fn new(queues: &[String]) -> Self {
        let queues = queues.iter().map(|queue| OfQueue::new(queue)).collect();
        Self { queues, over: Mutex::new(false), bell: Condvar::new() }
    }

    /// Ends the thread. The caller may hold the lock of the pool, so this side never asks the pool
    /// while it holds its own.
    pub(super) fn close(&self) {
        *self.over.lock() = true;
        self.bell.notify_all();
    }

    /// The loop of the thread.
    pub(super) fn watch(&self, queues: &[&Queue], in_flight: impl Fn(&Queue) -> usize) {
        loop {
            let is_over = *self.over.lock();
            let set = guarded(|| {
                for (gauges, queue) in self.queues.iter().zip(queues) {
                    gauges.set(queue, in_flight(queue));
                    // This comes last: who sees it at 1 sees the other gauges of this life.
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
            let until = crate::base::time::now().checked_add(EVERY);
            let mut over = self.over.lock();
            while !*over && !wait_until(&self.bell, &mut over, until) {}
        }
    }
}

fn key(name: &'static str, queue: &str, label: Option<(&'static str, &'static str)>) -> Key {
    let mut labels = vec![Label::new("queue", queue.to_owned())];
    labels.extend(label.map(|(name, value)| Label::new(name, value)));
    Key::from_parts(name, labels)
}

/// A gauge is a float, which is exact up to 2^53.
fn as_f64(number: u64) -> f64 {
    number as f64
}
