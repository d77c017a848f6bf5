//! The answers of the functions, as what a queue knows.

use postgres::Row;
use serde_json::Value;
use std::collections::HashMap;
use std::time::Duration;
use waterline::engine::{
    About, Claimed, Damaged, Extras, Happened, JobId, JobRow, Line, NO_EXTRAS, PRIORITIES, QueueNo, STATES, limit_of,
};
use waterline::queue::{JobState, Priority, Root, Skipped};

/// One row of an answer.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) what: String,
    pub(super) number: Option<i64>,
    pub(super) id: Option<String>,
    pub(super) outcome: Option<String>,
    pub(super) state: Option<String>,
    pub(super) token: Option<i64>,
    pub(super) kind: Option<String>,
    pub(super) payload: Option<String>,
    pub(super) data: Option<String>,
    pub(super) error: Option<String>,
    pub(super) failures: Option<i32>,
    pub(super) crashes: Option<i32>,
    pub(super) pushed: Option<i64>,
    pub(super) due: Option<i64>,
    pub(super) since: Option<i64>,
    pub(super) priority: Option<i32>,
    pub(super) more: Option<String>,
}

impl Answer {
    pub(super) fn of(row: &Row) -> Result<Self, postgres::Error> {
        Ok(Self {
            what: row.try_get(0)?,
            number: row.try_get(1)?,
            id: row.try_get(2)?,
            outcome: row.try_get(3)?,
            state: row.try_get(4)?,
            token: row.try_get(5)?,
            kind: row.try_get(6)?,
            payload: row.try_get(7)?,
            data: row.try_get(8)?,
            error: row.try_get(9)?,
            failures: row.try_get(10)?,
            crashes: row.try_get(11)?,
            pushed: row.try_get(12)?,
            due: row.try_get(13)?,
            since: row.try_get(14)?,
            priority: row.try_get(15)?,
            more: row.try_get(16)?,
        })
    }

    pub(super) fn id(&self) -> JobId {
        self.id.clone().unwrap_or_default()
    }

    pub(super) fn state(&self) -> Option<JobState> {
        self.state.as_deref().and_then(state_of)
    }

    pub(super) fn is_counted(&self) -> bool {
        matches!(self.outcome.as_deref(), Some("counted" | "finished"))
    }

    /// Returns the place of a claimed job among those of its priority.
    pub(super) fn place(&self) -> u64 {
        self.outcome.as_deref().and_then(|place| place.parse().ok()).unwrap_or(u64::MAX)
    }

    /// Returns what those who wait are told.
    pub(super) fn happened(&self) -> Option<Happened> {
        let id = self.id();
        match (self.what.as_str(), self.outcome.as_deref()) {
            ("told", Some("anew")) => Some(Happened::Anew { id }),
            ("told", _) => self.seen(self.state()),
            ("ended", Some("finished")) => self.seen(Some(JobState::Finished)),
            ("claimed", _) => Some(Happened::Seen { id, state: Some(JobState::Running), data: None, error: None }),
            ("paused", _) => Some(Happened::Paused { until: unsigned(self.number) }),
            ("line", outcome) => self.line(outcome.unwrap_or_default()).map(Happened::Line),
            _ => None,
        }
    }

    fn seen(&self, state: Option<JobState>) -> Option<Happened> {
        let data = match (&self.data, state) {
            (Some(data), _) => Some(Some(data.clone().into_bytes())),
            (None, None) => Some(None),
            (None, Some(_)) => None,
        };
        Some(Happened::Seen { id: self.id(), state, data, error: self.error.clone() })
    }

    fn line(&self, outcome: &str) -> Option<Line> {
        if outcome == "unmade" {
            return Some(Line::Unmade { name: self.id(), error: self.error.clone().unwrap_or_default() });
        }
        if outcome == "damaged_schedule" {
            let (name, error) = (self.id(), self.error.clone().unwrap_or_default());
            return Some(Line::Damaged(Damaged::Periodic { name, error }));
        }
        if outcome == "set_back" {
            let by = self.error.as_deref().and_then(|by| by.parse().ok()).unwrap_or(0);
            return Some(Line::SetBack { by: Duration::from_millis(by) });
        }
        let (id, kind) = (self.id(), self.kind.clone().unwrap_or_default());
        let job = About { id, kind, attempt: count(self.failures).saturating_add(1) };
        let error = self.error.clone().unwrap_or_default();
        Some(match outcome {
            "died" => Line::Died { job, error },
            "taken_back" => Line::TakenBack { job, error },
            "damaged" => Line::Damaged(Damaged::Job { id: job.id, error }),
            "held" => Line::Held { job, limit: limit_of(&error) },
            "skipped" => Line::Skipped { job, why: skipped_of(&error)? },
            _ => return None,
        })
    }

    /// Returns the job that was claimed, and its number.
    pub(super) fn claimed(self, queue: QueueNo) -> (i64, Claimed) {
        let more: Value = self.more.as_deref().and_then(|more| serde_json::from_str(more).ok()).unwrap_or_default();
        let number = |name: &str| more.get(name).and_then(Value::as_u64);
        let text = |name: &str| more.get(name).and_then(Value::as_str).map(str::to_owned);
        let root = text("root").map(|signature| Root::new(signature, time(number("root_at").unwrap_or(0))));
        let extras = Extras {
            root,
            key: text("key"),
            cost: number("cost").and_then(|cost| u32::try_from(cost).ok()).unwrap_or(1),
            has_meta: more.get("meta").is_some(),
            has_progress: more.get("progress").is_some(),
            ..NO_EXTRAS.clone()
        };
        let row = JobRow {
            state: JobState::Running,
            priority: priority_of(self.priority.unwrap_or(2)),
            kind: self.kind.clone().unwrap_or_default(),
            retry: None,
            retention: None,
            failures: count(self.failures),
            crashes: count(self.crashes),
            pushed: unsigned(self.pushed),
            due: unsigned(self.due),
            named: false,
            since: unsigned(self.since),
            place: unsigned(self.token),
            resubmit: number("resubmit"),
            resubmitted: 0,
            has_data: self.data.is_some(),
            error: self.error.clone().unwrap_or_default(),
            extras: (extras != NO_EXTRAS).then(|| Box::new(extras)),
        };
        let payload = self.payload.clone().unwrap_or_default().into_bytes();
        (self.number.unwrap_or(0), Claimed { queue, id: self.id(), row, payload })
    }
}

/// A job that was to end: its number, its token, its id and its new data.
pub(super) type Ended<'e> = (i64, i64, &'e str, Option<String>);

/// Puts an answer for each job in the place of the one which says that all have ended well.
pub(super) fn each_ended<'e>(mut answers: Vec<Answer>, ends: impl Iterator<Item = Ended<'e>>) -> Vec<Answer> {
    let Some(at) = answers.iter().position(|answer| answer.what == "finished") else { return answers };
    let state = answers[at].state.take();
    let ended = ends.map(|(number, token, id, data)| Answer {
        what: "ended".to_owned(),
        number: Some(number),
        token: Some(token),
        id: Some(id.to_owned()),
        outcome: Some("finished".to_owned()),
        state: state.clone(),
        data,
        ..Answer::default()
    });
    answers.splice(at..=at, ended);
    answers
}

/// Returns the part of answers that those who wait are told.
pub(super) fn happened(answers: &[Answer]) -> Vec<Happened> {
    answers.iter().filter_map(Answer::happened).collect()
}

/// Returns the answers to ends, by the number and the token of the job. They come in any order.
pub(super) fn ended(answers: &[Answer]) -> HashMap<(i64, i64), &Answer> {
    let ended = answers.iter().filter(|answer| answer.what == "ended");
    ended.filter_map(|answer| Some(((answer.number?, answer.token?), answer))).collect()
}

pub(super) fn state_of(name: &str) -> Option<JobState> {
    STATES.into_iter().chain([JobState::Damaged]).find(|state| name_of(*state) == name)
}

pub(super) fn name_of(state: JobState) -> &'static str {
    match state {
        JobState::Scheduled => "scheduled",
        JobState::Ready => "ready",
        JobState::Running => "running",
        JobState::Finished => "finished",
        JobState::Dead => "dead",
        JobState::Waiting => "waiting",
        _ => "damaged",
    }
}

pub(super) fn skipped_of(name: &str) -> Option<Skipped> {
    match name {
        "executed" => Some(Skipped::Executed),
        "superseded" => Some(Skipped::Superseded),
        _ => None,
    }
}

pub(super) fn priority_of(number: i32) -> Priority {
    let number = usize::try_from(number).unwrap_or(2);
    PRIORITIES.get(number).copied().unwrap_or_default()
}

pub(super) fn time(millis: u64) -> std::time::SystemTime {
    std::time::UNIX_EPOCH + Duration::from_millis(millis)
}

pub(super) fn count(number: Option<i32>) -> u32 {
    number.and_then(|number| u32::try_from(number).ok()).unwrap_or(0)
}

/// A time or a token; one without an end is the largest number.
pub(super) fn unsigned(number: Option<i64>) -> u64 {
    match number {
        Some(i64::MAX) => u64::MAX,
        number => number.and_then(|number| u64::try_from(number).ok()).unwrap_or(0),
    }
}

/// The same the other way round.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
