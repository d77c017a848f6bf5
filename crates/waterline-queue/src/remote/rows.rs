//! Rows that a server answers with, and what they say. Times are in milliseconds since 1970 by its
//! clock.

use super::answers::{count, priority_of, skipped_of, state_of, unsigned};
use crate::types::info::JobInfo;
use crate::types::job::{JobId, JobState, time};
use crate::types::limit::of_name;
use crate::types::meta::Meta;
use crate::types::progress::JobProgress;
use crate::types::related::Root;
use crate::types::row::{Extras, NO_EXTRAS, Row};
use crate::types::used::LimitUse;
use crate::types::worker::{WorkerInfo, WorkerJob};
use serde_json::Value;
use std::time::Duration;

/// A job as it is shown, with all that belongs to it.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    pub id: JobId,
    pub state: String,
    pub priority: i32,
    pub place: Option<i64>,
    pub tie: Option<i64>,
    pub kind: String,
    pub payload: String,
    pub data: Option<String>,
    pub meta: Option<String>,
    pub key: Option<String>,
    pub failures: i32,
    pub crashes: i32,
    pub pushed: Option<i64>,
    pub due: Option<i64>,
    pub since: Option<i64>,
    pub resubmit: Option<i64>,
    pub error: Option<String>,
    pub fraction: Option<f64>,
    pub note: Option<String>,
    pub noted: Option<i64>,
    pub root: Option<String>,
    pub root_at: Option<i64>,
    pub is_root: Option<bool>,
    pub expires: Option<i64>,
    pub cost: i32,
    pub held_by: Option<String>,
    pub pending: i32,
    pub suspect: bool,
    pub skipped: Option<String>,
}

impl Shown {
    pub(super) fn state(&self) -> JobState {
        state_of(&self.state).unwrap_or(JobState::Ready)
    }

    pub(super) fn progress(&self) -> Option<JobProgress> {
        let (fraction, at) = self.fraction.zip(self.noted)?;
        JobProgress::new(fraction, self.note.as_deref().unwrap_or_default(), unsigned(Some(at))).ok()
    }

    pub(super) fn meta(&self) -> Meta {
        self.meta.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// Takes what belongs to the row.
    pub(super) fn take_row(&mut self) -> Row {
        let whole = |time: Option<i64>| time.map(|time| unsigned(Some(time)));
        let root = self.root.take().zip(self.root_at);
        let has_progress = self.progress().is_some();
        let extras = Extras {
            root: root.map(|(signature, at)| Root::new(signature, time(unsigned(Some(at))))),
            is_root: self.is_root.unwrap_or(false),
            expires: whole(self.expires),
            key: self.key.take(),
            cost: count(Some(self.cost)),
            after: count(Some(self.pending)),
            held: self.held_by.take(),
            skipped: self.skipped.as_deref().and_then(skipped_of),
            has_meta: self.meta.is_some(),
            has_progress,
            is_suspect: self.suspect,
            ..NO_EXTRAS.clone()
        };
        Row {
            state: self.state(),
            priority: priority_of(self.priority),
            kind: std::mem::take(&mut self.kind),
            retry: None,
            retention: None,
            failures: count(Some(self.failures)),
            crashes: count(Some(self.crashes)),
            pushed: unsigned(self.pushed),
            due: unsigned(self.due),
            named: false,
            since: unsigned(self.since),
            place: unsigned(self.place),
            resubmit: whole(self.resubmit),
            resubmitted: 0,
            has_data: self.data.is_some(),
            error: self.error.take().unwrap_or_default(),
            extras: (extras != NO_EXTRAS).then(|| Box::new(extras)),
        }
    }

    pub(super) fn info(mut self) -> JobInfo {
        let data = self.data.as_deref().and_then(|data| serde_json::from_str(data).ok());
        let (meta, progress, tie) = (self.meta(), self.progress(), unsigned(self.tie));
        let row = self.take_row();
        let mut info = JobInfo { meta, progress, tie, ..JobInfo::of(&self.id, &row, self.payload.into_bytes(), data) };
        if info.state == JobState::Damaged {
            // The reason takes the place of the last error.
            info.damaged = info.error.take();
        }
        info
    }
}

/// A limit with its bounds and its use. A period is in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct LimitRow {
    pub name: String,
    pub at_once: Option<i64>,
    pub rate_count: Option<i64>,
    pub rate_per_ns: Option<i64>,
    pub rate_burst: Option<i64>,
    pub running: Option<i64>,
    pub tokens: Option<f64>,
    pub held: Option<i64>,
}

impl LimitRow {
    pub(super) fn used(self) -> LimitUse {
        let per = self.rate_per_ns.map(|per| Duration::from_nanos(unsigned(Some(per))));
        let rate = small(self.rate_count).zip(per).zip(small(self.rate_burst));
        LimitUse {
            limit: of_name(&self.name),
            at_once: small(self.at_once),
            running: unsigned(self.running),
            rate: rate.map(|(rate, _)| rate),
            burst: rate.map(|(_, burst)| burst),
            tokens: self.tokens,
            held: unsigned(self.held),
        }
    }
}

/// The record of a schedule, or the reason why it cannot be read.
#[derive(Clone, Debug, Default)]
pub struct PeriodicRow {
    pub name: String,
    pub last: i64,
    pub run: Option<String>,
    pub skipped: i64,
    pub schedule: Option<String>,
    pub next: Option<i64>,
    pub damaged: Option<String>,
}

/// A worker, with the time since it was heard of and those of its jobs in milliseconds.
#[derive(Clone, Debug, Default)]
pub struct WorkerRow {
    pub name: Option<String>,
    pub process: Option<i64>,
    pub host: Option<String>,
    pub language: Option<String>,
    pub version: Option<String>,
    pub kinds: Option<Vec<String>>,
    pub slots: Option<i64>,
    pub busy: Option<i64>,
    pub began: Option<i64>,
    pub silent_for: Option<i64>,
    pub silent: bool,
    pub stopping: bool,
    pub newest_ran: Option<i64>,
    pub lease_left: Option<i64>,
    /// Objects with `id`, `kind` and `ran`.
    pub jobs: Vec<Value>,
}

impl WorkerRow {
    pub(super) fn info(self) -> WorkerInfo {
        let span = |millis: Option<i64>| millis.map(|millis| Duration::from_millis(unsigned(Some(millis))));
        let text = |job: &Value, name: &str| job[name].as_str().unwrap_or_default().to_owned();
        let job = |job: &Value| {
            let ran_for = Duration::from_millis(job["ran"].as_u64().unwrap_or(0));
            WorkerJob { id: text(job, "id"), kind: text(job, "kind"), ran_for }
        };
        WorkerInfo {
            name: self.name,
            process: small(self.process),
            host: self.host,
            language: self.language,
            version: self.version,
            kinds: self.kinds,
            slots: small(self.slots),
            busy: small(self.busy).unwrap_or(0),
            began: time(unsigned(self.began)),
            silent_for: span(self.silent_for).unwrap_or_default(),
            is_silent: self.silent,
            is_stopping: self.stopping,
            newest_ran_for: span(self.newest_ran),
            lease_left: span(self.lease_left),
            jobs: self.jobs.iter().map(job).collect(),
        }
    }
}

fn small(number: Option<i64>) -> Option<u32> {
    number.map(|number| u32::try_from(unsigned(Some(number))).unwrap_or(u32::MAX))
}
