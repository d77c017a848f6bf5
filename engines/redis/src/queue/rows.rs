//! Reads the rows of answers, whose columns have a fixed order.

use redis::Value;
use std::vec::IntoIter;
use waterline_queue::remote::{Answer, LimitRow, PeriodicRow, Shown, WorkerRow};

/// The columns of a row. Those that are missing at its end are null.
pub(super) struct Columns(IntoIter<Value>);

/// What cannot be true in an answer.
pub(super) type Odd = String;

/// Reads all rows of an answer.
pub(super) fn rows<R>(answer: Value, read: impl Fn(&mut Columns) -> Result<R, Odd>) -> Result<Vec<R>, Odd> {
    list(answer)?.into_iter().map(|row| read(&mut Columns(list(row)?.into_iter()))).collect()
}

pub(super) fn list(value: Value) -> Result<Vec<Value>, Odd> {
    match value {
        Value::Array(values) => Ok(values),
        Value::Nil => Ok(Vec::new()),
        other => Err(format!("{other:?} is no list")),
    }
}

pub(super) fn text(value: Value) -> Result<Option<String>, Odd> {
    match value {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            // Another program may have pushed it.
            Err(error) => Ok(Some(String::from_utf8_lossy(error.as_bytes()).into_owned())),
        },
        Value::SimpleString(text) => Ok(Some(text)),
        Value::Int(number) => Ok(Some(number.to_string())),
        other => Err(format!("{other:?} is no text")),
    }
}

pub(super) fn number(value: Value) -> Result<Option<i64>, Odd> {
    match value {
        Value::Nil => Ok(None),
        Value::Int(number) => Ok(Some(number)),
        // A time without end is more than a number of the functions can be.
        Value::BulkString(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            text.parse().map(Some).map_err(|_| format!("{text:?} is no number"))
        }
        other => Err(format!("{other:?} is no number")),
    }
}

impl Columns {
    fn next(&mut self) -> Value {
        self.0.next().unwrap_or(Value::Nil)
    }

    pub(super) fn text(&mut self) -> Result<Option<String>, Odd> {
        text(self.next())
    }

    /// A text that is never null.
    pub(super) fn plain(&mut self) -> Result<String, Odd> {
        Ok(self.text()?.unwrap_or_default())
    }

    pub(super) fn number(&mut self) -> Result<Option<i64>, Odd> {
        number(self.next())
    }

    pub(super) fn whole(&mut self) -> Result<i64, Odd> {
        Ok(self.number()?.unwrap_or(0))
    }

    fn small(&mut self) -> Result<Option<i32>, Odd> {
        Ok(self.number()?.and_then(|number| i32::try_from(number).ok()))
    }

    fn fraction(&mut self) -> Result<Option<f64>, Odd> {
        let Some(text) = self.text()? else { return Ok(None) };
        text.parse().map(Some).map_err(|_| format!("{text:?} is no number"))
    }

    fn flag(&mut self) -> Result<Option<bool>, Odd> {
        Ok(self.number()?.map(|flag| flag != 0))
    }

    fn texts(&mut self) -> Result<Option<Vec<String>>, Odd> {
        match self.next() {
            Value::Nil => Ok(None),
            value => Ok(Some(texts(value)?)),
        }
    }
}

/// Reads a list of texts.
pub(super) fn texts(value: Value) -> Result<Vec<String>, Odd> {
    list(value)?.into_iter().map(|value| Ok(text(value)?.unwrap_or_default())).collect()
}

pub(super) fn answer(row: &mut Columns) -> Result<Answer, Odd> {
    Ok(Answer {
        what: row.plain()?,
        number: row.number()?,
        id: row.text()?,
        outcome: row.text()?,
        state: row.text()?,
        token: row.number()?,
        kind: row.text()?,
        payload: row.text()?,
        pushed: row.number()?,
        since: row.number()?,
        priority: row.small()?,
        more: row.text()?,
        data: row.text()?,
        error: row.text()?,
        failures: row.small()?,
        crashes: row.small()?,
        due: row.number()?,
    })
}

/// Reads a claimed job that did not fit into its answer.
pub(super) fn loaded(row: &mut Columns) -> Result<Answer, Odd> {
    let number = row.number()?;
    Ok(Answer {
        number,
        token: row.number()?,
        id: row.text()?,
        kind: row.text()?,
        payload: row.text()?,
        data: row.text()?,
        failures: row.small()?,
        crashes: row.small()?,
        pushed: row.number()?,
        more: row.text()?,
        error: row.text()?,
        ..Answer::default()
    })
}

pub(super) fn shown(row: &mut Columns) -> Result<Shown, Odd> {
    // The queue, the number, and the name that the push gave: the id says as much.
    (0..3).for_each(|_| drop(row.next()));
    Ok(Shown {
        id: row.plain()?,
        state: row.plain()?,
        priority: row.small()?.unwrap_or(2),
        place: row.number()?,
        tie: row.number()?,
        kind: row.plain()?,
        payload: row.plain()?,
        data: row.text()?,
        meta: row.text()?,
        key: row.text()?,
        failures: row.small()?.unwrap_or(0),
        crashes: row.small()?.unwrap_or(0),
        pushed: row.number()?,
        due: row.number()?,
        since: row.number()?,
        resubmit: row.number()?,
        error: row.text()?,
        fraction: row.fraction()?,
        note: row.text()?,
        noted: row.number()?,
        root: row.text()?,
        root_at: row.number()?,
        is_root: row.flag()?,
        expires: row.number()?,
        cost: row.small()?.unwrap_or(1),
        held_by: row.text()?,
        pending: row.small()?.unwrap_or(0),
        suspect: row.flag()?.unwrap_or(false),
        skipped: row.text()?,
    })
}

/// Reads what waiters are told of a job.
pub(super) fn state(row: &mut Columns) -> Result<Shown, Odd> {
    Ok(Shown {
        id: row.plain()?,
        state: row.plain()?,
        data: row.text()?,
        error: row.text()?,
        fraction: row.fraction()?,
        note: row.text()?,
        noted: row.number()?,
        ..Shown::default()
    })
}

pub(super) fn limit(row: &mut Columns) -> Result<LimitRow, Odd> {
    Ok(LimitRow {
        name: row.plain()?,
        at_once: row.number()?,
        rate_count: row.number()?,
        rate_per_ns: row.number()?,
        rate_burst: row.number()?,
        running: row.number()?,
        tokens: row.fraction()?,
        held: row.number()?,
    })
}

pub(super) fn periodic(row: &mut Columns) -> Result<PeriodicRow, Odd> {
    Ok(PeriodicRow {
        name: row.plain()?,
        last: row.whole()?,
        run: row.text()?,
        skipped: row.whole()?,
        schedule: row.text()?,
        next: row.number()?,
        damaged: row.text()?,
    })
}

pub(super) fn worker(row: &mut Columns) -> Result<WorkerRow, Odd> {
    Ok(WorkerRow {
        name: row.text()?,
        process: row.number()?,
        host: row.text()?,
        language: row.text()?,
        version: row.text()?,
        kinds: row.texts()?,
        slots: row.number()?,
        busy: row.number()?,
        began: row.number()?,
        silent_for: row.number()?,
        silent: row.flag()?.unwrap_or(false),
        stopping: row.flag()?.unwrap_or(false),
        newest_ran: row.number()?,
        lease_left: row.number()?,
        jobs: serde_json::from_str(&row.plain()?)
            .map_err(|error| format!("the jobs of a worker are no JSON: {error}"))?,
    })
}
