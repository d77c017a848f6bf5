//! Notes, and their changes.
#![allow(missing_docs, reason = "no user sees these types, and the names say it")]

use crate::types::meta::{check_key, check_text};
use serde_json::Value;

/// A note as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Noted {
    /// When it expires, in milliseconds since 1970; 0: never.
    pub until: u64,
    /// When that time was set; 0: it does not expire.
    pub since: u64,
    pub value: Value,
}

impl Noted {
    pub fn is_over(&self, wall: u64) -> bool {
        self.until > 0 && self.until <= wall
    }
}

/// A change of a note.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Sets a value, until this time; 0: it stays.
    Set(Value, u64),
    Add(i64),
    /// Sets when it expires.
    Keep(u64),
    Remove,
}

/// Returns the note after a change at this time. Pure: an expired note counts as none.
///
/// # Errors
/// Why the note cannot be counted.
pub(crate) fn changed(old: Option<&Noted>, change: &Change, wall: u64) -> Result<Option<Noted>, String> {
    let until =
        |until: u64, value: &Value| Noted { until, since: if until > 0 { wall } else { 0 }, value: value.clone() };
    Ok(match (change, old) {
        (Change::Remove, _) | (Change::Keep(_), None) => None,
        (Change::Set(value, time), _) => Some(until(*time, value)),
        (Change::Keep(time), Some(old)) => Some(until(*time, &old.value)),
        (Change::Add(by), None) => Some(until(0, &(*by).into())),
        (Change::Add(by), Some(old)) => {
            let count = old.value.as_i64().ok_or("the note there is no whole number of 64 bits: set it to one")?;
            let sum = count.checked_add(*by);
            let sum = sum.ok_or_else(|| format!("{count} and {by} are more than 64 bits: set it to another number"))?;
            Some(Noted { value: sum.into(), ..old.clone() })
        }
    })
}

/// Returns the last part of the key of a note: the length of the kind as two digits, the kind, and
/// the user's key. It is text, since the entry of its time has it as an id.
pub(crate) fn place(kind: &str, key: &str) -> String {
    format!("{:02x}{kind}{key}", kind.len())
}

/// Returns the name of these notes and the key of one, for an error.
pub(crate) fn counted_in(queue: &str, of: &str) -> (String, Vec<u8>) {
    let length = of.get(..2).and_then(|digits| usize::from_str_radix(digits, 16).ok()).unwrap_or(0);
    let (kind, key) = of.get(2..).and_then(|rest| rest.split_at_checked(length)).unwrap_or(("", of));
    (format!("notes of {kind} in {queue}"), key.as_bytes().to_vec())
}

pub(crate) fn check(key: &str, change: &Change) -> Result<(), crate::types::config::ConfigError> {
    check_key(key)?;
    match change {
        Change::Set(value, _) => check_text(value.to_string().as_bytes()),
        _ => Ok(()),
    }
}
