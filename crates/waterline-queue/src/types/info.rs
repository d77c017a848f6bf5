//! What a call that reads a job returns.

use crate::types::error::QueueError;
use crate::types::job::{JobId, JobState, Priority, millis, time};
use crate::types::json::from_json;
use crate::types::limit::{LimitOf, of_name};
use crate::types::progress::JobProgress;
use crate::types::related::{Root, Skipped};
use crate::types::row::Row;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::time::SystemTime;

/// A stored job, as it was at the moment of the call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct JobInfo {
    /// Its id.
    pub id: JobId,
    /// Its kind.
    pub kind: String,
    /// Its state.
    pub state: JobState,
    /// Its priority.
    pub priority: Priority,
    /// How many attempts have failed since it was pushed or requeued.
    pub failures: u32,
    /// How many times its process died while it ran.
    pub crashes: u32,
    /// True if it runs alone, now or next, since its process died while it ran, and not for the
    /// first time: see [`QueueOptions::max_crashes`](crate::QueueOptions::max_crashes).
    pub runs_alone: bool,
    /// The time of its push, or of its tick if a periodic job made it.
    pub pushed_at: SystemTime,
    /// The time from which it may run; `None`: since the push.
    pub run_at: Option<SystemTime>,
    /// When it entered its state.
    pub since: SystemTime,
    /// When its row is removed, if it has finished or died; `None`: never.
    pub kept_until: Option<SystemTime>,
    /// True if it was pushed once more while it ran, and runs again after it has succeeded.
    pub resubmitted: bool,
    /// Why it finished without a run; `None` if it ran, or has not finished.
    pub skipped: Option<Skipped>,
    /// The root of its tree, if it has one.
    pub root: Option<Root>,
    /// The time by which it must have started, if there is one.
    pub expires_at: Option<SystemTime>,
    /// For how many jobs it still waits.
    pub waits_for: u32,
    /// The key of its limits, if it has one.
    pub key: Option<String>,
    /// How many tokens it takes from each rate.
    pub cost: u32,
    /// The limit in whose line a ready job waits; `None` if no limit holds it.
    pub held_by: Option<LimitOf>,
    /// The text of its last failure, with the causes.
    pub error: Option<String>,
    /// Its payload, as JSON.
    pub payload: Vec<u8>,
    /// The data that its worker has left, as JSON.
    pub data: Option<serde_json::Value>,
    /// Its metadata.
    pub meta: BTreeMap<String, serde_json::Value>,
    /// The progress that its worker shows, or that of the last attempt.
    pub progress: Option<JobProgress>,
    /// Why a part of it cannot be read and is left out here. Only [`Queue::list`] returns such a
    /// job. The kind is empty if its row cannot be read.
    ///
    /// [`Queue::list`]: crate::Queue::list
    pub damaged: Option<String>,
    pub(crate) place: u64,
    /// Its place among those with the same number in their list, in an engine that needs it.
    pub(crate) tie: u64,
}

impl JobInfo {
    pub(crate) fn of(id: &str, row: &Row, payload: Vec<u8>, data: Option<serde_json::Value>) -> Self {
        Self {
            id: id.to_owned(),
            kind: row.kind.clone(),
            state: row.state,
            priority: row.priority,
            failures: row.failures,
            crashes: row.crashes,
            runs_alone: row.extras().is_suspect,
            pushed_at: time(row.pushed),
            run_at: (row.due > 0).then(|| time(row.due)),
            since: time(row.since),
            kept_until: (row.state.is_ended() && row.place != u64::MAX).then(|| time(row.place)),
            resubmitted: row.resubmit.is_some(),
            skipped: row.extras().skipped,
            root: row.extras().root.clone(),
            expires_at: row.extras().expires.map(time),
            waits_for: if row.state == JobState::Waiting { row.extras().after } else { 0 },
            key: row.extras().key.clone(),
            cost: row.extras().cost,
            held_by: row.extras().held.as_deref().map(of_name),
            error: (!row.error.is_empty()).then(|| row.error.clone()),
            payload,
            data,
            meta: BTreeMap::new(),
            progress: None,
            damaged: None,
            place: row.place,
            tie: 0,
        }
    }

    /// Returns its payload.
    ///
    /// # Errors
    /// [`QueueError::Payload`] if it does not fit the type.
    pub fn payload<P: DeserializeOwned>(&self) -> Result<P, QueueError> {
        from_json(&self.payload).map_err(|source| QueueError::Payload { id: self.id.clone(), source })
    }
}

/// A periodic job, as [`Queue::periodics`](crate::Queue::periodics) lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeriodicInfo {
    /// Its name.
    pub name: String,
    /// Its schedule as text; `None`: this process has not registered it, and its store does not
    /// keep it. A database that many processes share does.
    pub schedule: Option<String>,
    /// The time of its last tick; `None` before the first one.
    pub last_tick: Option<SystemTime>,
    /// The time of its next tick, which may be due; `None`: there is none, or it is not known here.
    pub next_tick: Option<SystemTime>,
    /// The id of the last job that a tick made. Its row may be gone.
    pub last_run: Option<JobId>,
    /// How many ticks made no job because the last run had not ended
    /// ([`Overlap::Skip`](crate::Overlap::Skip)).
    pub skipped: u64,
    /// Why its record cannot be read. Then the values of the record are empty, and there is no tick
    /// until the name is removed and registered again.
    pub damaged: Option<String>,
}

impl PeriodicInfo {
    /// Returns the time of the last tick, if there was one. Before that, `last` is the time of the
    /// registration, which has neither made a job nor skipped one.
    pub(crate) fn ticked(last: u64, run: &str, skipped: u64) -> Option<SystemTime> {
        (!run.is_empty() || skipped > 0).then(|| time(last))
    }
}

impl JobInfo {
    /// Returns its number in the list of a state that it was in.
    pub(crate) fn list_place(&self, state: JobState) -> u64 {
        match (state, self.run_at) {
            (JobState::Scheduled, Some(time)) => millis(time).unwrap_or(u64::MAX),
            _ => self.place,
        }
    }
}
