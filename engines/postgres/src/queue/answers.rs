//! Translates the answers of the functions into what a queue knows.

use postgres::Row;
use postgres::types::{FromSql, Kind, Type};
use serde_json::Value;
use std::collections::HashMap;
use std::time::Duration;
use waterline_queue::engine_api::{
    About, Claimed, Damaged, Event, Extras, JobId, JobRow, Line, NO_EXTRAS, PRIORITIES, QueueNo, STATES, limit_of,
};
use waterline_queue::{JobState, Priority, Root, Skipped};

/// How many texts a procedure has for one answer.
const TEXTS: usize = 9;

/// The elements of an array of any dimensions, in their order.
struct Flat<T>(Vec<Option<T>>);

impl<'a, T: FromSql<'a>> FromSql<'a> for Flat<T> {
    fn from_sql(of: &Type, mut raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        let Kind::Array(member) = of.kind() else { return Err("it is no array".into()) };
        let number = |raw: &mut &'a [u8]| {
            let (number, rest) = raw.split_first_chunk().ok_or("an array ends too early")?;
            *raw = rest;
            Ok::<_, &str>(i32::from_be_bytes(*number))
        };
        // A flag for nulls, and the type; then the length and first index of each dimension.
        let dimensions = number(&mut raw)?;
        let (_, _) = (number(&mut raw)?, number(&mut raw)?);
        let mut length = usize::from(dimensions > 0);
        for _ in 0..dimensions {
            length *= usize::try_from(number(&mut raw)?)?;
            number(&mut raw)?;
        }
        let mut all = Vec::with_capacity(length.min(raw.len()));
        for _ in 0..length {
            let element = match usize::try_from(number(&mut raw)?) {
                Ok(bytes) => {
                    let (element, rest) = raw.split_at_checked(bytes).ok_or("an array ends too early")?;
                    raw = rest;
                    Some(T::from_sql(member, element)?)
                }
                Err(_) => None,
            };
            all.push(element);
        }
        Ok(Self(all))
    }

    fn accepts(of: &Type) -> bool {
        matches!(of.kind(), Kind::Array(member) if T::accepts(member))
    }
}

/// One row of an answer.
#[derive(Clone, Debug, Default)]
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

    /// Reads the answers of a function, one a row.
    pub(super) fn each_of(rows: &[Row]) -> Result<Vec<Self>, postgres::Error> {
        rows.iter().map(Self::of).collect()
    }

    /// Reads the answers of a procedure, whose one row has the numbers and the texts of all.
    pub(super) fn all_of(rows: &[Row]) -> Result<Vec<Self>, postgres::Error> {
        let Some(row) = rows.first() else { return Ok(Vec::new()) };
        let (numbers, texts): (Option<Flat<i64>>, Option<Flat<String>>) = (row.try_get(0)?, row.try_get(1)?);
        let mut numbers = numbers.map_or(Vec::new(), |flat| flat.0).into_iter();
        let (texts, mut answers) = (texts.map_or(Vec::new(), |flat| flat.0), Vec::new());
        answers.reserve_exact(texts.len() / TEXTS);
        let mut texts = texts.into_iter();
        while let Some(what) = texts.next() {
            let mut text = || texts.next().flatten();
            let mut number = || numbers.next().flatten();
            let (id, outcome, state, kind, payload) = (text(), text(), text(), text(), text());
            let (data, error, more) = (text(), text(), text());
            let (of, token, failures, crashes) = (number(), number(), number(), number());
            let (pushed, due, since, priority) = (number(), number(), number(), number());
            let small = |number: Option<i64>| number.and_then(|number| i32::try_from(number).ok());
            answers.push(Self {
                what: what.unwrap_or_default(),
                number: of,
                id,
                outcome,
                state,
                token,
                kind,
                payload,
                data,
                error,
                failures: small(failures),
                crashes: small(crashes),
                pushed,
                due,
                since,
                priority: small(priority),
                more,
            });
        }
        Ok(answers)
    }

    /// True for a claimed job that did not fit into its answer.
    pub(super) fn is_brief(&self) -> bool {
        self.payload.is_none() && self.what == "claimed"
    }

    pub(super) fn id(&self) -> JobId {
        match (&self.id, self.number) {
            (Some(id), _) => id.clone(),
            (None, Some(number)) if self.what == "claimed" => format!("~{number}"),
            (None, _) => JobId::new(),
        }
    }

    pub(super) fn state(&self) -> Option<JobState> {
        self.state.as_deref().and_then(state_of)
    }

    /// True if the answer is for several ends.
    fn is_of_some(&self) -> bool {
        self.what == "ended" && self.more.is_some()
    }

    pub(super) fn is_counted(&self) -> bool {
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

/// Puts a row of `load` into its answer.
pub(super) fn loaded(row: &Row, answers: &mut [Answer]) -> Result<(), postgres::Error> {
    let token: Option<i64> = row.try_get(1)?;
    if let Some(answer) = answers.iter_mut().find(|answer| answer.token == token && answer.is_brief()) {
        (answer.id, answer.kind, answer.payload) = (row.try_get(2)?, row.try_get(3)?, row.try_get(4)?);
        (answer.data, answer.more, answer.error) = (row.try_get(5)?, row.try_get(9)?, row.try_get(10)?);
    }
    Ok(())
}

/// A job that was to end: its number, token, id and new data.
pub(super) type Ended<'e> = (i64, i64, &'e str, Option<String>);

/// Replaces an answer for several or all ends by one for each.
pub(super) fn each_ended(mut answers: Vec<Answer>, ends: &[Ended<'_>]) -> Vec<Answer> {
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
pub(super) fn ended(answers: &[Answer]) -> HashMap<(i64, i64), &Answer> {
    let ended = answers.iter().filter(|answer| answer.what == "ended");
    ended.filter_map(|answer| Some(((answer.number?, answer.token?), answer))).collect()
}

/// Reads what became of ends, in their order: the outcome, and the state of the job.
pub(super) fn known(row: &Row) -> Result<Vec<(String, Option<String>)>, postgres::Error> {
    let (outcomes, states): (Option<Vec<String>>, Option<Vec<Option<String>>>) = (row.try_get(0)?, row.try_get(1)?);
    Ok(outcomes.unwrap_or_default().into_iter().zip(states.unwrap_or_default()).collect())
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

/// Reads a time or a token. `i64::MAX` stands for never.
pub(super) fn unsigned(number: Option<i64>) -> u64 {
    match number {
        Some(i64::MAX) => u64::MAX,
        number => number.and_then(|number| u64::try_from(number).ok()).unwrap_or(0),
    }
}

/// The reverse of [`unsigned`].
pub(super) fn signed(number: u64) -> i64 {
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

    #[test]
    fn arrays_are_read_in_order_and_refused_if_cut() {
        let number = |number: i32| number.to_be_bytes().to_vec();
        // Two rows of two: 1, null, 3, 4.
        let mut raw: Vec<u8> = [2, 1, 20, 2, 1, 2, 1].into_iter().flat_map(number).collect();
        for element in [Some(1_i64), None, Some(3), Some(4)] {
            raw.extend(number(if element.is_some() { 8 } else { -1 }));
            raw.extend(element.into_iter().flat_map(i64::to_be_bytes));
        }
        let flat = Flat::<i64>::from_sql(&Type::INT8_ARRAY, &raw).unwrap();
        assert_eq!(flat.0, [Some(1), None, Some(3), Some(4)]);
        let empty: Vec<u8> = [0, 0, 20].into_iter().flat_map(number).collect();
        assert!(Flat::<i64>::from_sql(&Type::INT8_ARRAY, &empty).unwrap().0.is_empty());
        for length in 0..raw.len() {
            assert!(Flat::<i64>::from_sql(&Type::INT8_ARRAY, &raw[..length]).is_err(), "{length}");
        }
    }
}
