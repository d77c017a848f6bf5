//! How `serde` writes the answers of a queue: for an HTTP response, or a file. A time is in whole
//! milliseconds since 1970, a duration in whole milliseconds.

use crate::group::status::GroupStatus;
use crate::notify::watchers::QueueChange;
use crate::status::{QueueStatus, StuckSlots, UntakenKind};
use crate::subscription::Seen;
use crate::types::ended::AttemptEnd;
use crate::types::info::{JobInfo, PeriodicInfo};
use crate::types::job::{Counts, JobState, Priority, PushOutcome, Pushed};
use crate::types::json::from_json;
use crate::types::limit::LimitOf;
use crate::types::page::Page;
use crate::types::progress::JobProgress;
use crate::types::related::{Root, Skipped};
use crate::types::worker::{WorkerInfo, WorkerJob};
use serde::ser::{Serialize, Serializer};
use serde_json::Value;
use std::fmt;
use std::time::{Duration, SystemTime};
use waterline::seam::{fields, millis};

/// Returns a time as a number: milliseconds since 1970.
fn at(time: SystemTime) -> u64 {
    millis(time).unwrap_or_default()
}

/// Returns a duration as a number, in milliseconds.
pub(crate) fn long(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Serializes and displays the values of an enum as these words.
macro_rules! words {
    ($type:ident: $($value:ident = $word:literal,)+) => {
        impl $type {
            fn word(self) -> &'static str {
                match self {
                    $(Self::$value => $word,)+
                }
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.word())
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.word())
            }
        }
    };
}

words!(JobState: Scheduled = "scheduled", Ready = "ready", Running = "running", Finished = "finished", Dead = "dead",
    Waiting = "waiting", Damaged = "damaged",);

words!(Priority: Urgent = "urgent", High = "high", Normal = "normal", Low = "low",);

words!(Skipped: Executed = "executed", Superseded = "superseded",);

fields!(Counts, of: scheduled = of.scheduled, ready = of.ready, running = of.running, finished = of.finished,
    dead = of.dead, waiting = of.waiting, damaged = of.damaged,);

fields!(JobProgress, of: fraction = of.fraction, note = of.note, at = at(of.at),);

fields!(Root, of: signature = of.signature, timestamp = at(of.timestamp),);

fields!(JobInfo, of:
    id = of.id,
    kind = of.kind,
    state = of.state,
    priority = of.priority,
    failures = of.failures,
    crashes = of.crashes,
    runs_alone = of.runs_alone,
    pushed_at = at(of.pushed_at),
    run_at = of.run_at.map(at),
    since = at(of.since),
    kept_until = of.kept_until.map(at),
    resubmitted = of.resubmitted,
    skipped = of.skipped,
    root = of.root,
    expires_at = of.expires_at.map(at),
    waits_for = of.waits_for,
    key = of.key,
    cost = of.cost,
    held_by = of.held_by,
    error = of.error,
    // A payload that is not JSON belongs to a damaged job.
    payload = from_json::<Value>(&of.payload).ok(),
    data = of.data,
    meta = of.meta,
    progress = of.progress,
    damaged = of.damaged,
);

fields!(Page, of: jobs = of.jobs, next = of.next,);

fields!(PeriodicInfo, of:
    name = of.name,
    schedule = of.schedule,
    last_tick = of.last_tick.map(at),
    next_tick = of.next_tick.map(at),
    last_run = of.last_run,
    skipped = of.skipped,
    damaged = of.damaged,
);

fields!(Pushed, of: id = of.id, outcome = of.outcome, is_new = of.is_new(),);

fields!(QueueStatus, of:
    queue = of.queue,
    counts = of.counts,
    oldest_ready = of.oldest_ready.as_ref().map(|(id, _)| id),
    oldest_ready_for = of.oldest_ready.as_ref().map(|(_, age)| long(*age)),
    waits = of.of_waits().0,
    unknown_kinds = of.unknown_kinds,
    untaken = of.untaken,
    stuck = of.stuck,
    set_back_by = of.set_back.map(|set_back| long(set_back.by)),
    set_back_for = of.set_back.map(|set_back| long(set_back.since)),
    text = of.to_string(),
);

fields!(WorkerJob, of: id = of.id, kind = of.kind, ran_for = long(of.ran_for),);

fields!(WorkerInfo, of:
    name = of.name,
    process = of.process,
    host = of.host,
    language = of.language,
    version = of.version,
    kinds = of.kinds,
    slots = of.slots,
    busy = of.busy,
    began = at(of.began),
    silent_for = long(of.silent_for),
    is_silent = of.is_silent,
    is_stopping = of.is_stopping,
    jobs = of.jobs,
    newest_ran_for = of.newest_ran_for.map(long),
    lease_left = of.lease_left.map(long),
    text = of.to_string(),
);

fields!(UntakenKind, of: kind = of.kind, jobs = of.jobs,);

fields!(StuckSlots, of: slots = of.slots, first = of.first, first_for = long(of.since),);

fields!(GroupStatus, of: queues = of.queues, text = of.to_string(),);

fields!(Seen, of: state = of.state, data = of.data, error = of.error, progress = of.progress,);

/// The field `change` names the variant.
impl Serialize for QueueChange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Job { id, state } => fields!(serializer, "QueueChange"; change = "job", id = id, state = state),
            Self::Paused { until } => fields!(serializer, "QueueChange"; change = "paused", until = until.map(at)),
            Self::Resumed => fields!(serializer, "QueueChange"; change = "resumed"),
            Self::Missed { changes } => fields!(serializer, "QueueChange"; change = "missed", changes = changes),
        }
    }
}

/// The field `end` names the variant.
impl Serialize for AttemptEnd {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (end, error) = match self {
            Self::Finished => ("finished", None),
            Self::Retried { error } => ("retried", Some(error)),
            Self::Snoozed => ("snoozed", None),
            Self::PutBack { error } => ("put_back", Some(error)),
            Self::Dead { error } => ("dead", Some(error)),
            Self::Lost => ("lost", None),
        };
        fields!(serializer, "AttemptEnd"; end = end, error = error)
    }
}

impl Serialize for PushOutcome {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Self::Added => "added",
            Self::Duplicate(_) => "duplicate",
            Self::Rescheduled => "rescheduled",
            Self::Resubmit => "resubmit",
        })
    }
}

/// The text of `Display`: `the kind "mail"`.
impl Serialize for LimitOf {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Lists only the states that have jobs: `3 ready, 1 dead`.
impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let states = JobState::ALL.into_iter().chain([JobState::Damaged]);
        let there = states.map(|state| (self.of_state(state), state)).filter(|(count, _)| *count > 0);
        let words: Vec<_> = there.map(|(count, state)| format!("{count} {state}")).collect();
        f.write_str(if words.is_empty() { "no job" } else { "" })?;
        f.write_str(&words.join(", "))
    }
}
