//! The library's advice, with the button that helps.

use serde::Serialize;
use serde_json::{Value, json};
use waterline::{Advice, Blocked, ConsumerInfo, Status, Verdict};
use waterline_queue::{LimitOf, QueueStatus, Waits};

/// The action that helps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Action {
    pub(crate) label: String,
    /// A change, as `POST api/change` takes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) change: Option<Value>,
    /// A view of the page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) link: Option<String>,
}

fn change(label: &str, change: Value) -> Option<Action> {
    Some(Action { label: label.to_owned(), change: Some(change), link: None })
}

fn link(label: impl Into<String>, link: String) -> Option<Action> {
    Some(Action { label: label.into(), change: None, link: Some(link) })
}

/// Percent-encodes a name for a URL.
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// Puts advice into a row: the first says why it does not move, the others what is left over. The
/// verdict covers all of them.
fn put(row: &mut Value, verdict: Verdict, all: Vec<Advice>, action: impl Fn(&Advice) -> Option<Action>) {
    let shown = |advice: &Advice| {
        let mut shown = json!(advice);
        shown["action"] = json!(action(advice));
        shown
    };
    let mut shown = all.iter().map(shown);
    row["verdict"] = json!(verdict);
    row["advice"] = json!(shown.next());
    row["also"] = shown.collect();
}

/// Puts the advice for a consumer into its row. `other` is the name of the consumer that it waits
/// for, if that is on the page: the stage before it, or the reader of a full log.
pub(crate) fn of_stream(row: &mut Value, name: &str, status: &Status, other: Option<&str>) {
    put(row, status.verdict(), status.advice(), |advice| match advice.reason {
        "parked" => link("Look at these jobs", format!("#/stream?name={}", encoded(name))),
        _ => of_blocked(name, &status.blocked, other),
    });
}

/// Puts the advice for a consumer that this program does not run into its row.
pub(crate) fn of_saved(row: &mut Value, consumer: &ConsumerInfo) {
    put(row, consumer.verdict(), consumer.advice(), |_| None);
}

fn of_blocked(name: &str, blocked: &Blocked, other: Option<&str>) -> Option<Action> {
    match blocked {
        Blocked::Missing { .. } | Blocked::Source { .. } | Blocked::SourceWaits { .. } => {
            change("Look at the source now", json!({"action": "check", "stream": name}))
        }
        Blocked::Upstream { .. } | Blocked::LogFull { .. } => {
            other.and_then(|name| link(format!("Look at {name}"), format!("#/stream?name={}", encoded(name))))
        }
        Blocked::Paused => change("Resume", json!({"action": "resume", "stream": name})),
        Blocked::Halted { index, .. } if blocked.is_halt_of_job() => {
            change(&format!("Skip job {index}"), json!({"action": "skip", "stream": name, "index": index}))
        }
        _ => None,
    }
}

/// Puts the advice for a queue with this name on the page into its row. `home` returns the name of
/// the queue that runs a job: in a group it may be another one.
pub(crate) fn of_queue(row: &mut Value, name: &str, status: &QueueStatus, home: impl Fn(&str) -> String) {
    let jobs = |filter: &str| link("Look at these jobs", format!("#/jobs?queue={}&{filter}", encoded(name)));
    put(row, status.verdict(), status.advice(), |advice| match advice.reason {
        "dead" | "damaged" => jobs(&format!("state={}", advice.reason)),
        "unknown_kinds" => {
            // A runner buries or snoozes them.
            let state = if status.counts.dead > 0 { "dead" } else { "scheduled" };
            let kind = status.unknown_kinds.first().map(|kind| format!("state={state}&kind={}", encoded(kind)));
            jobs(&kind.unwrap_or_default())
        }
        "untaken" | "other_kinds" => {
            let most = status.untaken.iter().max_by_key(|kind| kind.jobs);
            most.and_then(|most| jobs(&format!("state=ready&kind={}", encoded(&most.kind))))
        }
        "silent" => None,
        _ => of_waits(name, &status.waits, &home, &jobs),
    });
}

fn of_waits(
    name: &str,
    waits: &Waits,
    home: &impl Fn(&str) -> String,
    jobs: &impl Fn(&str) -> Option<Action>,
) -> Option<Action> {
    let job = |label: &str, id: &str| link(label, format!("#/job?queue={}&id={}", encoded(&home(id)), encoded(id)));
    match waits {
        Waits::Paused { .. } => change("Resume", json!({"action": "resume", "queue": name})),
        Waits::Limited { limit: LimitOf::Kind(kind), .. } => jobs(&format!("state=ready&kind={}", encoded(kind))),
        Waits::Limited { limit: LimitOf::Key(key), .. } => jobs(&format!("state=ready&key={}", encoded(key))),
        Waits::Limited { .. } => jobs("state=ready"),
        Waits::Busy { oldest, .. } | Waits::StandsStill { oldest, .. } => job("Look at the oldest job", oldest),
        Waits::Alone { oldest, .. } => job("Look at the job", oldest),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_that_can_be_helped_has_its_button() {
        let (index, error, why) = (7, "no".to_owned(), "a vote".to_owned());
        let (log, behind) = ("lines".to_owned(), Some("words".to_owned()));
        let does = |blocked: &Blocked| {
            let made = of_blocked("blocks", blocked, Some("fetch & parse"));
            made.map(|made| made.change.map_or_else(|| json!(made.link), |change| change["action"].clone()))
        };
        for (blocked, wanted) in [
            (Blocked::CaughtUp, None),
            (Blocked::Missing { index }, Some("check")),
            (Blocked::Source { index, error: error.clone() }, Some("check")),
            (Blocked::SourceWaits { index, why }, Some("check")),
            (Blocked::Progress { error: error.clone() }, None),
            (Blocked::Upstream { index }, Some("#/stream?name=fetch%20%26%20parse")),
            (
                Blocked::LogFull { index, log, items: 9, most: 9, behind, ended: false },
                Some("#/stream?name=fetch%20%26%20parse"),
            ),
            (Blocked::Paused, Some("resume")),
            (Blocked::Halted { index, error: "job 7 failed in attempt 2: no".to_owned() }, Some("skip")),
            (Blocked::Halted { index, error: "the process died twice".to_owned() }, Some("skip")),
            (Blocked::Halted { index, error }, None),
        ] {
            assert_eq!(does(&blocked), wanted.map(|wanted| json!(wanted)), "{blocked}");
        }
        let skip = of_blocked("b", &Blocked::Halted { index: 7, error: "job 7 failed: no".to_owned() }, None);
        assert_eq!(skip.unwrap().change.unwrap()["index"], 7);
    }
}
