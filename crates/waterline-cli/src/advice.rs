//! The library's advice, with the command of this tool that follows it.

use crate::error::Fault;
use crate::format::word;
use crate::rows::{Advice, Consumer, Queue, Verdict, read};
use serde_json::{Map, Value, json};
use waterline::ConsumerInfo;
use waterline_queue::{QueueStatus, Waits};

/// Returns the consumers with the advice that their records support.
pub(crate) fn saved(consumers: Vec<ConsumerInfo>) -> Result<Vec<Consumer>, Fault> {
    let row = |consumer: ConsumerInfo| {
        let mut row = json!(consumer);
        let (advice, also) = split(&consumer.advice());
        put(&mut row, advice, also, |reason| of_stream(reason, &consumer.name));
        if consumer.standing_halt().is_some_and(waterline::LastHalt::is_of_job) && consumer.unreadable.is_none() {
            row["command"] = skip(&consumer.name, row["last_halt"]["index"].as_u64().unwrap_or_default()).into();
        }
        read(row)
    };
    consumers.into_iter().map(row).collect()
}

/// Returns the command that skips a job.
pub(crate) fn skip(name: &str, index: u64) -> String {
    format!("skip {} {index} --reason TEXT", word(name))
}

/// Splits advice into the first entry and the rest.
pub(crate) fn split(all: &[waterline::Advice]) -> (Value, Value) {
    let mut all = all.iter().map(|advice| json!(advice));
    (all.next().unwrap_or_default(), all.collect())
}

/// Puts the first advice into the fields of a row, and the rest into `also`. Each gets the command
/// for its reason, or else the command for its button on a page.
pub(crate) fn put(row: &mut Value, first: Value, others: Value, of_reason: impl Fn(&str) -> Option<String>) {
    let with_command = |mut advice: Value| {
        let action = advice["action"].take();
        let of_reason = advice["reason"].as_str().and_then(&of_reason);
        let of_action = || of_change(&action["change"]).or_else(|| of_link(action["link"].as_str()?));
        advice["command"] = json!(of_reason.or_else(of_action));
        if let Some(fields) = advice.as_object_mut() {
            fields.remove("action");
        }
        advice
    };
    if let Value::Object(fields) = with_command(first) {
        fields.into_iter().for_each(|(name, value)| row[name] = value);
    }
    let others = if let Value::Array(others) = others { others } else { Vec::new() };
    row["also"] = others.into_iter().map(with_command).collect();
}

/// Returns the command that helps a consumer at this reason, if it has no button.
pub(crate) fn of_stream(reason: &str, name: &str) -> Option<String> {
    let name = word(name);
    (reason == "parked")
        .then(|| format!("parked {name}, then: redrive {name} --all, or: discard {name} (INDEX | --all)"))
}

/// Returns the command that helps a queue at this reason.
pub(crate) fn of_queue(reason: &str, name: &str) -> Option<String> {
    let name = word(name);
    match reason {
        "paused" => Some(format!("resume {name}")),
        "dead" => Some(format!("jobs {name} --state dead, then: requeue {name} --dead, or: cancel {name} ID")),
        "damaged" => Some(format!("jobs {name} --state damaged, then: cancel {name} ID")),
        _ => None,
    }
}

/// Returns the command for a queue whose status is known: what the button of a page would do.
pub(crate) fn of_status(reason: &str, status: &QueueStatus) -> Option<String> {
    let name = word(&status.queue);
    match (reason, &status.waits) {
        ("untaken" | "other_kinds", _) => {
            let most = status.untaken.iter().max_by_key(|kind| kind.jobs)?;
            Some(format!("jobs {name} --state ready --kind {}", word(&most.kind)))
        }
        ("busy", Waits::Busy { oldest, .. })
        | ("stands_still", Waits::StandsStill { oldest, .. })
        | ("alone", Waits::Alone { oldest, .. }) => Some(format!("job {name} {}", word(oldest))),
        _ => of_queue(reason, &status.queue),
    }
}

/// Translates a change on a page into a command.
fn of_change(change: &Value) -> Option<String> {
    let text = |field: &str| change[field].as_str().map(word);
    match (change["action"].as_str()?, text("stream"), text("queue")) {
        ("resume", Some(name), None) => Some(format!("resume {name} --consumer")),
        ("resume", None, Some(name)) => Some(format!("resume {name}")),
        ("check", Some(name), None) => Some(format!("check {name}")),
        ("skip", Some(_), None) => {
            let index = change["index"].as_str().and_then(|index| index.parse().ok());
            Some(skip(change["stream"].as_str()?, index.or_else(|| change["index"].as_u64())?))
        }
        _ => None,
    }
}

/// Translates a link on a page, such as `#/jobs?queue=mail&state=dead`, into a command.
fn of_link(link: &str) -> Option<String> {
    let (view, query) = link.strip_prefix("#/")?.split_once('?')?;
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let all: Map<String, Value> = pairs.map(|(name, value)| (name.to_owned(), decoded(value).into())).collect();
    let text = |name: &str| all.get(name).and_then(Value::as_str).map(word);
    match view {
        "stream" => Some(format!("show {}", text("name")?)),
        "job" => Some(format!("job {} {}", text("queue")?, text("id")?)),
        "jobs" => {
            let part = |name: &str| text(name).map(|value| format!(" --{name} {value}")).unwrap_or_default();
            Some(format!("jobs {}{}{}", text("queue")?, part("state"), part("kind")))
        }
        _ => None,
    }
}

/// Decodes a percent-encoded part of a URL.
fn decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

impl Consumer {
    pub(crate) fn all_advice(&self) -> impl Iterator<Item = &Advice> {
        std::iter::once(&self.advice).chain(&self.also)
    }
}

impl Queue {
    pub(crate) fn all_advice(&self) -> impl Iterator<Item = &Advice> {
        std::iter::once(&self.advice).chain(&self.also)
    }

    pub(crate) fn needs_you(&self) -> bool {
        self.all_advice().any(Advice::needs_you)
    }
}

impl Advice {
    pub(crate) fn needs_you(&self) -> bool {
        self.verdict == Verdict::NeedsYou
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_button_of_the_page_has_a_command() {
        for (action, said) in [
            (json!({"change": {"action": "resume", "stream": "a b"}}), Some("resume 'a b' --consumer")),
            (json!({"change": {"action": "resume", "queue": "mail"}}), Some("resume mail")),
            (json!({"change": {"action": "check", "stream": "blocks"}}), Some("check blocks")),
            (json!({"change": {"action": "skip", "stream": "b", "index": 7}}), Some("skip b 7 --reason TEXT")),
            (
                json!({"change": {"action": "skip", "stream": "b", "index": "9007199254740993"}}),
                Some("skip b 9007199254740993 --reason TEXT"),
            ),
            (json!({"link": "#/stream?name=fetch%20%26%20parse"}), Some("show 'fetch & parse'")),
            (json!({"link": "#/job?queue=mail&id=%7E7%C3%A4"}), Some("job mail '~7ä'")),
            (json!({"link": "#/jobs?queue=mail&state=ready&key=a"}), Some("jobs mail --state ready")),
            (json!({"link": "#/jobs?queue=mail&state=dead&kind=k%25"}), Some("jobs mail --state dead --kind k%")),
            (json!({"link": "https://elsewhere.example/"}), None),
            (json!({"change": {"action": "explode", "stream": "b"}}), None),
            (json!(null), None),
        ] {
            let mut row = json!({});
            put(&mut row, json!({"reason": "no", "action": action}), json!([]), |_| None);
            assert_eq!(row["command"].as_str(), said, "{action}");
        }
        assert_eq!([decoded("%"), decoded("%zz%4"), decoded("%+1")], ["%", "%zz%4", "%+1"]);
    }
}
