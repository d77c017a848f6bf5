//! Workers: what this process says of itself, with calls that it makes anyway, and what the
//! database knows of all of them.

use super::Queues;
use super::answers::{time, unsigned};
use super::faults::{not_found, queue_error};
use super::opened::Opened;
use crate::sql::Value;
use postgres::Row;
use postgres::types::{Json, Type};
use serde_json::json;
use std::time::{Duration, Instant};
use waterline::engine::{NO_WORKER, Presence, host, options_of, worker_job};
use waterline::queue::{QueueError, WorkerInfo};

/// The most of its jobs that a worker is shown with.
const SHOWN: usize = 64;

/// The shortest time between two notes of a worker.
const SHORTEST: Duration = Duration::from_secs(1);

/// This process, as the database knows it.
pub(super) struct Own {
    /// Its number, which it has drawn: names may be equal.
    number: i64,
    name: String,
}

/// What was said last, and when.
pub(super) type Said = Option<(Instant, Presence)>;

impl Own {
    pub(super) fn new(name: &str) -> Self {
        Self { number: fastrand::i64(1..1_000_000_000_000_000_000), name: name.to_owned() }
    }
}

/// True if there is something to be said: once in a third of the lease, of other slots or kinds
/// after a second, and of a stop at once.
fn is_due(said: &Said, now: Instant, lease: Duration, presence: &Presence) -> bool {
    let Some((at, last)) = said else { return true };
    let age = now.saturating_duration_since(*at);
    let is_other = last.slots != presence.slots || last.kinds != presence.kinds;
    last.is_stopping != presence.is_stopping || age >= SHORTEST && (is_other || age >= lease / 3)
}

impl Opened {
    /// Returns what this process says of itself with a call about the queue, if it is time: as its
    /// runner, as one that waits for a job, or as the caller of a claim.
    pub(super) fn about(&self, now: Instant, by_hand: Option<Presence>) -> Option<serde_json::Value> {
        let mut said = self.said.lock();
        let is_soon = |at: &Instant| now.saturating_duration_since(*at) < SHORTEST;
        if said.as_ref().is_some_and(|(at, last)| is_soon(at) && last.is_stopping == self.shared.is_stopping()) {
            return None;
        }
        let presence = self.shared.presence().or(by_hand)?;
        if !is_due(&said, now, options_of(&self.shared.options).lease, &presence) {
            return None;
        }
        let about = json!({
            "queue": self.name(),
            "name": self.own.name,
            "number": self.own.number,
            "process": std::process::id(),
            "host": host(),
            "language": "rust",
            "version": env!("CARGO_PKG_VERSION"),
            "kinds": presence.kinds.as_deref(),
            // The column has 32 bits.
            "slots": presence.slots.map(|slots| i32::try_from(slots).unwrap_or(i32::MAX)),
            "stuck": presence.stuck,
            "stopping": presence.is_stopping,
        });
        *said = Some((now, presence));
        Some(about)
    }
}

/// Returns these as the argument of a call; `None`: nothing is to be said.
pub(super) fn said(about: impl IntoIterator<Item = serde_json::Value>) -> Option<String> {
    let about: Vec<_> = about.into_iter().collect();
    (!about.is_empty()).then(|| serde_json::Value::from(about).to_string())
}

/// Reads a worker.
fn worker(row: &Row) -> Result<WorkerInfo, postgres::Error> {
    let number = |name: &str| Ok(row.try_get::<_, Option<i64>>(name)?.map(|number| unsigned(Some(number))));
    let whole = |name: &str| Ok(number(name)?.map(|number| u32::try_from(number).unwrap_or(u32::MAX)));
    let span = |name: &str| Ok(number(name)?.map(Duration::from_millis));
    let Json(jobs): Json<Vec<serde_json::Value>> = row.try_get("jobs")?;
    let text = |job: &serde_json::Value, name: &str| job[name].as_str().unwrap_or_default().to_owned();
    let job = |job: &serde_json::Value| {
        worker_job(text(job, "id"), text(job, "kind"), Duration::from_millis(job["ran"].as_u64().unwrap_or(0)))
    };
    let mut worker = NO_WORKER;
    worker.name = row.try_get("name")?;
    worker.process = whole("process")?;
    worker.host = row.try_get("host")?;
    worker.language = row.try_get("language")?;
    worker.version = row.try_get("version")?;
    worker.kinds = row.try_get("kinds")?;
    worker.slots = whole("slots")?;
    worker.busy = whole("busy")?.unwrap_or(0);
    worker.began = time(number("began")?.unwrap_or(0));
    worker.silent_for = span("silent_for")?.unwrap_or_default();
    worker.is_silent = row.try_get("silent")?;
    worker.is_stopping = row.try_get("stopping")?;
    worker.newest_ran_for = span("newest_ran")?;
    worker.lease_left = span("lease_left")?;
    worker.jobs = jobs.iter().map(job).collect();
    Ok(worker)
}

impl Queues {
    /// Returns the workers of the queue with this name, each with up to 64 of its jobs.
    pub(crate) fn workers_named(&self, name: &str) -> Result<Vec<WorkerInfo>, QueueError> {
        self.read_workers(name, None, SHOWN)
    }

    /// Returns the workers of a queue, each with so many of its jobs.
    pub(super) fn workers_of(&self, queue: &Opened, jobs: usize) -> Result<Vec<WorkerInfo>, QueueError> {
        self.read_workers(queue.name(), queue.test_clock(), jobs)
    }

    fn read_workers(&self, name: &str, clock: Option<u64>, jobs: usize) -> Result<Vec<WorkerInfo>, QueueError> {
        let (sql, most) = (self.sql_of("workers_of", 2), i32::try_from(jobs).unwrap_or(i32::MAX));
        let values: [Value<'_>; 2] = [(&name, Type::TEXT), (&most, Type::INT4)];
        let read = self.with(clock, |client, statements| {
            Ok(statements.query(client, &sql, &values)?.iter().map(worker).collect::<Result<_, _>>()?)
        });
        read.map_err(|error| {
            let doing = "look at the workers of a queue";
            not_found(name, &error).unwrap_or_else(|| queue_error(name, doing, error))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_worker_speaks_once_in_a_third_of_a_lease_of_a_change_after_a_second_and_of_a_stop_at_once() {
        let lease = Duration::from_secs(30);
        let now = Instant::now();
        let plain = Presence { slots: Some(2), kinds: None, stuck: 0, is_stopping: false, began: 0 };
        let stops = Presence { is_stopping: true, ..plain.clone() };
        let grown = Presence { slots: Some(3), ..plain.clone() };
        let kinds = Presence { kinds: Some(Arc::from(["a".to_owned()])), ..plain.clone() };
        let said = Some((now, plain.clone()));
        let is_due = |after: f64, lease, presence| is_due(&said, now + Duration::from_secs_f64(after), lease, presence);
        assert!(super::is_due(&None, now, lease, &plain));
        for (presence, not_after, after) in [(&plain, 9.9, 10.0), (&grown, 0.9, 1.0), (&kinds, 0.9, 1.0)] {
            assert!(!is_due(not_after, lease, presence) && is_due(after, lease, presence), "{presence:?}");
        }
        assert!(is_due(0.0, lease, &stops));
        let short = Duration::from_secs(1);
        assert!(!is_due(0.9, short, &plain) && is_due(1.0, short, &plain), "once a second at most");
    }
}
