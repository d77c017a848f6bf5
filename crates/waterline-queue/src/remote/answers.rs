//! Translates the answers of a server into what a queue knows. Pure: no I/O.

use crate::engine::{Claimed, QueueNo};
use crate::types::events::{About, Damaged, Event, Line};
use crate::types::job::{JobId, JobState, Priority, time};
use crate::types::limit::of_name;
use crate::types::related::{Root, Skipped};
use crate::types::row::{Extras, NO_EXTRAS, Row};
use serde_json::Value;
use std::collections::HashMap;
use std::time::Duration;

/// One row of an answer: what happened, or what there is.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub what: String,
    pub number: Option<i64>,
    pub id: Option<String>,
    pub outcome: Option<String>,
    pub state: Option<String>,
    pub token: Option<i64>,
    pub kind: Option<String>,
    pub payload: Option<String>,
    pub data: Option<String>,
    pub error: Option<String>,
    pub failures: Option<i32>,
    pub crashes: Option<i32>,
    pub pushed: Option<i64>,
    pub due: Option<i64>,
    pub since: Option<i64>,
    pub priority: Option<i32>,
    pub more: Option<String>,
}

impl Answer {
    /// True for a claimed job that did not fit into its answer.
    pub(super) fn is_brief(&self) -> bool {
        self.payload.is_none() && self.what == "claimed"
    }

    pub fn id(&self) -> JobId {
        match (&self.id, self.number) {
            (Some(id), _) => id.clone(),
            (None, Some(number)) if self.what == "claimed" => format!("~{number}"),
            (None, _) => JobId::new(),
        }
    }

    pub fn state(&self) -> Option<JobState> {
        self.state.as_deref().and_then(state_of)
    }

    /// True if the answer is for several ends.
    fn is_of_some(&self) -> bool {
        self.what == "ended" && self.more.is_some()
    }

    pub fn is_counted(&self) -> bool {
        matches!(self.outcome.as_deref(), Some("counted" | "finished"))
    }

    /// Returns the priority of a claimed job, and its place among those of the claim.
    pub(super) fn place(&self) -> Option<(i32, i32)> {
        self.priority.map(|priority| (priority & 3, priority >> 2))
    }

    /// Returns what subscribers are told.
    pub(super) fn happened(&self) -> Option<Event> {
        let id = self.id();
        match (self.what.as_str(), self.outcome.as_deref()) {
            ("told", Some("anew")) => Some(Event::Anew { id }),
            ("told", _) => self.seen(self.state()),
            ("ended", Some("finished")) => self.seen(Some(JobState::Finished)),
            ("claimed", _) => Some(Event::Seen { id, state: Some(JobState::Running), data: None, error: None }),
            ("paused", _) => Some(Event::Paused { until: unsigned(self.number) }),
            ("line", outcome) => self.line(outcome.unwrap_or_default()).map(Event::Line),
            ("more", _) => {
                let count = unsigned(self.token);
                (count > 0).then_some(Event::Line(Line::Untold { count }))
            }
            _ => None,
        }
    }

    fn seen(&self, state: Option<JobState>) -> Option<Event> {
        let data = match (&self.data, state) {
            (Some(data), _) => Some(Some(data.clone().into_bytes())),
            (None, None) => Some(None),
            (None, Some(_)) => None,
        };
        Some(Event::Seen { id: self.id(), state, data, error: self.error.clone() })
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
            "held" => Line::Held { job, limit: of_name(&error) },
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
        let row = Row {
            state: JobState::Running,
            priority: priority_of(self.priority.map_or(2, |priority| priority & 3)),
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

/// Puts what `load` has answered into the answer of the claim.
pub(super) fn loaded(of: Answer, answers: &mut [Answer]) {
    if let Some(answer) = answers.iter_mut().find(|answer| answer.token == of.token && answer.is_brief()) {
        (answer.id, answer.kind, answer.payload) = (of.id, of.kind, of.payload);
        (answer.data, answer.more, answer.error) = (of.data, of.more, of.error);
    }
}

/// A job that was to end: its number, token, id and new data.
pub type Ended<'e> = (i64, i64, &'e str, Option<String>);

/// Replaces an answer for several or all ends by one for each.
pub fn each_ended(mut answers: Vec<Answer>, ends: &[Ended<'_>]) -> Vec<Answer> {
    while let Some(at) = answers.iter().position(|answer| answer.what == "finished" || answer.is_of_some()) {
        let of = std::mem::take(&mut answers[at]);
        let places: Vec<usize> = match &of.more {
            Some(places) => places.split(',').filter_map(|place| place.parse().ok()).collect(),
            None => (1..=ends.len()).collect(),
        };
        let has_finished = of.what == "finished" || of.outcome.as_deref() == Some("finished");
        let ended = places.iter().filter_map(|place| ends.get(place.wrapping_sub(1)));
        let ended = ended.map(|(number, token, id, data)| Answer {
            what: "ended".to_owned(),
            number: Some(*number),
            token: Some(*token),
            id: Some((*id).to_owned()),
            outcome: if has_finished { Some("finished".to_owned()) } else { of.outcome.clone() },
            state: of.state.clone(),
            data: data.clone().filter(|_| has_finished),
            ..Answer::default()
        });
        answers.splice(at..=at, ended);
    }
    answers
}

/// Returns what subscribers are told of these answers.
pub(super) fn happened(answers: &[Answer]) -> Vec<Event> {
    answers.iter().filter_map(Answer::happened).collect()
}

/// Returns how many changes the answers do not list.
pub(super) fn untold(answers: &[Answer]) -> u64 {
    answers.iter().filter(|answer| answer.what == "more").map(|answer| unsigned(answer.number)).sum()
}

/// Returns the answers to ends by the job's number and token. They come in any order.
pub fn ended(answers: &[Answer]) -> HashMap<(i64, i64), &Answer> {
    let ended = answers.iter().filter(|answer| answer.what == "ended");
    ended.filter_map(|answer| Some(((answer.number?, answer.token?), answer))).collect()
}

pub(super) fn state_of(name: &str) -> Option<JobState> {
    JobState::ALL.into_iter().chain([JobState::Damaged]).find(|state| name_of(*state) == name)
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
    Priority::ALL.get(number).copied().unwrap_or_default()
}

pub(super) fn count(number: Option<i32>) -> u32 {
    number.and_then(|number| u32::try_from(number).ok()).unwrap_or(0)
}

/// Reads a time or a token. `i64::MAX` stands for never.
pub(super) fn unsigned(number: Option<i64>) -> u64 {
    match number {
        Some(i64::MAX) => u64::MAX,
        number => number.and_then(|number| u64::try_from(number).ok()).unwrap_or(0),
    }
}

/// Writes a time or a token.
pub fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_for_some_ends_becomes_one_for_each() {
        let ends = [(7, 70, "a", None), (8, 80, "b", Some("1".to_owned())), (9, 90, "c", None)];
        let some = |outcome: &str, places: &str| Answer {
            what: "ended".to_owned(),
            outcome: Some(outcome.to_owned()),
            more: Some(places.to_owned()),
            ..Answer::default()
        };
        let told = Answer { what: "told".to_owned(), ..Answer::default() };
        let each = each_ended(vec![told, some("halt", "3,1"), some("finished", "2")], &ends);
        let each: Vec<_> = each.iter().map(|one| (one.number, one.is_counted(), one.data.as_deref())).collect();
        assert_eq!(
            each,
            [(None, false, None), (Some(9), false, None), (Some(7), false, None), (Some(8), true, Some("1")),]
        );
        let all = Answer { what: "finished".to_owned(), state: Some("finished".to_owned()), ..Answer::default() };
        let each = each_ended(vec![all], &ends);
        assert!(each.iter().all(|one| one.is_counted() && one.state() == Some(JobState::Finished)));
        assert_eq!(ended(&each).len(), 3);
    }
}
