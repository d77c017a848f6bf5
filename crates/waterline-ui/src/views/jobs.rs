//! The views of jobs.

use super::filter::{Filter, MOST_READ};
use super::query::{Query, limit, wanted};
use super::queues::named;
use crate::failure::Failure;
use crate::shared::Shared;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use waterline_queue::{JobInfo, JobState};

/// How many bytes of a payload are shown at most.
const SHOWN: usize = 64 * 1024;

/// How many related jobs are listed at most.
const RELATED: usize = 100;

/// Returns what a list shows of a job.
fn row(job: &JobInfo) -> Value {
    let mut row = json!(job);
    if let Some(fields) = row.as_object_mut() {
        ["payload", "data", "meta", "root"].into_iter().for_each(|name| drop(fields.remove(name)));
    }
    row
}

/// A page of the jobs that a filter matches.
pub(super) fn jobs(shared: &Shared, query: &Query) -> Result<Value, Failure> {
    let named = named(shared, query)?;
    let queue = &named.queue;
    let cursor = query.get("cursor").filter(|cursor| !cursor.is_empty()).map(String::as_str);
    let found = Filter::of(query)?.find(queue, cursor, limit(query)?)?;
    Ok(json!({
        "jobs": found.jobs.iter().map(row).collect::<Vec<_>>(),
        "next": found.next,
        "read": found.read,
        "most_read": MOST_READ,
    }))
}

/// The number of jobs that a filter matches, within the rows that one request reads.
pub(super) fn count(shared: &Shared, query: &Query) -> Result<Value, Failure> {
    let named = named(shared, query)?;
    let queue = &named.queue;
    let found = Filter::of(query)?.find(queue, None, MOST_READ)?;
    Ok(json!({
        "count": found.jobs.len(),
        "read": found.read,
        "is_all": found.next.is_none(),
        "most_read": MOST_READ,
    }))
}

/// One job with all that is kept of it.
pub(super) fn job(shared: &Shared, query: &Query) -> Result<Value, Failure> {
    let row = named(shared, query)?;
    let id = wanted(query, "id")?;
    let gone = || {
        Failure::not_found(format!(
            "the queue {:?} has no job {id:?}: it was never pushed, was removed, or ended longer ago than its retention",
            row.name
        ))
    };
    let job = row.queue.get(id)?.ok_or_else(gone)?;
    let related = row.queue.related(id, RELATED)?;
    let mut view = json!(job);
    view["payload"] = payload(&job.payload);
    view["after"] = json!(related.waits_for);
    view["before"] = json!(related.awaited_by);
    view["related_most"] = json!(RELATED);
    view["actions"] = json!(actions(&job));
    Ok(view)
}

/// Returns a payload as text: pretty JSON, or bytes in hex.
fn payload(bytes: &[u8]) -> Value {
    let is_long = bytes.len() > SHOWN;
    let pretty =
        || serde_json::from_slice::<Value>(bytes).ok().and_then(|value| serde_json::to_string_pretty(&value).ok());
    let is_json = || serde_json::from_slice::<IgnoredAny>(bytes).ok().map(|_| String::new());
    let pretty = if is_long { is_json() } else { pretty() };
    // Pretty JSON would round numbers that no `f64` can hold, so these are shown as they are. A
    // long payload would only grow by its indents, and is cut anyway.
    let exact = std::str::from_utf8(bytes).ok().filter(|text| is_long || has_long_number(text));
    let (form, mut text) = match (exact, pretty) {
        (Some(text), Some(_)) => ("json", text.to_owned()),
        (None, Some(pretty)) => ("json", pretty),
        (_, None) => ("hex", bytes.iter().take(SHOWN / 2).map(|byte| format!("{byte:02x}")).collect()),
    };
    let is_cut = text.len() > SHOWN || form == "hex" && bytes.len() > SHOWN / 2;
    if text.len() > SHOWN {
        let end = (0..=SHOWN).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
    }
    json!({"form": form, "text": text, "bytes": bytes.len(), "is_cut": is_cut})
}

/// True if a text has so many digits in a row that an `f64` may not hold them.
fn has_long_number(text: &str) -> bool {
    text.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() > 17)
}

/// Returns the changes that make sense in its state.
fn actions(job: &JobInfo) -> &'static [&'static str] {
    match job.state {
        JobState::Scheduled => &["run_now", "cancel"],
        JobState::Ready | JobState::Running | JobState::Waiting => &["cancel"],
        JobState::Dead => &["requeue", "remove"],
        JobState::Finished | JobState::Damaged => &["remove"],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_shown_as_json_or_hex_and_cut() {
        assert_eq!(payload(br#"{"to":"ann"}"#)["text"], "{\n  \"to\": \"ann\"\n}");
        let big = br#"{"id":123456789012345678901}"#;
        assert_eq!(payload(big)["text"], std::str::from_utf8(big).unwrap());
        assert_eq!(payload(&[0xff, 0]), json!({"form": "hex", "text": "ff00", "bytes": 2, "is_cut": false}));
        let long = serde_json::to_vec(&"ä".repeat(SHOWN)).unwrap();
        let shown = payload(&long);
        assert_eq!((&shown["is_cut"], &shown["bytes"]), (&json!(true), &json!(long.len())));
        assert!(shown["text"].as_str().unwrap().len() <= SHOWN);
        assert_eq!(payload(&vec![0xff; SHOWN])["is_cut"], json!(true));
    }
}
