//! The sentence that says why something does not move, and the action that helps.

use serde::Serialize;
use serde_json::{Value, json};
use waterline::queue::{LimitOf, QueueStatus, Waits};
use waterline::{Blocked, State, Status};

/// The part of an operator in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Tone {
    /// It moves, or there is nothing to do.
    Good,
    /// It goes on by itself.
    Waits,
    /// Somebody has to do something.
    Stuck,
}

/// The sentence, and the action beside it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Advice {
    /// The reason as a word.
    pub(crate) reason: Value,
    pub(crate) tone: Tone,
    /// The sentence of the library.
    pub(crate) sentence: String,
    /// The help in words. Empty if nothing has to be done.
    pub(crate) help: String,
    pub(crate) action: Option<Action>,
}

impl Advice {
    /// Returns the advice for a queue that only its own process knows whole.
    pub(crate) fn of_another_process(self, status: &QueueStatus) -> Self {
        let queue = &status.queue;
        let (sentence, help) = match status.waits {
            Waits::NoWorker => (
                format!("the queue {queue:?} has jobs that are due; only its process knows if a runner runs"),
                "If none does, start one.",
            ),
            // A process that was killed leaves such jobs, too.
            Waits::No => (
                format!("the queue {queue:?} has jobs that run, and only its process knows more"),
                "If it has died, start it again.",
            ),
            _ => return self,
        };
        Self { tone: Tone::Waits, sentence, help: help.to_owned(), ..self }
    }
}

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

/// Returns a name as a part of an address.
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// Returns the advice for a consumer. `upstream` is the name on the page of the one that it waits
/// for, if that is there.
pub(crate) fn of_stream(name: &str, status: &Status, upstream: Option<&str>) -> Advice {
    let (mut tone, mut help, action) = of_blocked(name, &status.blocked, upstream);
    let has_ended = status.state == State::Finished && matches!(status.blocked, Blocked::No);
    if status.ended_upstream.is_some() {
        (tone, help) = (Tone::Stuck, "Start the stage before it again: it has ended.");
    } else if has_ended && status.lag() > 0 {
        (tone, help) = (Tone::Waits, "It has ended before the head. Nothing runs before the program starts it again.");
    }
    let ended = status.ended_upstream.as_ref().map(|of| format!(" (its upstream {of:?} has ended)"));
    let blocked = if has_ended { "the consumer has ended".to_owned() } else { status.blocked.to_string() };
    let sentence = format!("{blocked}{}", ended.unwrap_or_default());
    Advice { reason: json!(status)["blocked"].clone(), tone, sentence, help: help.to_owned(), action }
}

fn of_blocked(name: &str, blocked: &Blocked, upstream: Option<&str>) -> (Tone, &'static str, Option<Action>) {
    let check = || change("Look at the source now", json!({"action": "check", "stream": name}));
    match blocked {
        Blocked::No | Blocked::CaughtUp => (Tone::Good, "", None),
        Blocked::Running { .. } => {
            (Tone::Waits, "The watermark moves when it ends. If it never does, find out what it waits for.", None)
        }
        Blocked::Overdue { .. } => {
            (Tone::Stuck, "Only its own code can end it. If it hangs for good, start the program again.", None)
        }
        Blocked::Retrying { .. } => {
            (Tone::Waits, "It is tried again by itself. Remove the cause that the error names.", None)
        }
        Blocked::Deferred { .. } => (Tone::Waits, "It is tried again by itself.", None),
        Blocked::Alone { .. } => (Tone::Waits, "It goes on by itself, with one job at a time for now.", None),
        Blocked::Threads { .. } => (Tone::Stuck, "See what the threads do, with a debugger or a profiler.", None),
        Blocked::Missing { .. } => (Tone::Stuck, "The source is asked again by itself, or now.", check()),
        Blocked::Looking { .. } => (Tone::Waits, "It goes on as soon as the source answers.", None),
        Blocked::Source { .. } => (Tone::Stuck, "The source is asked again by itself, or now.", check()),
        Blocked::SourceWaits { .. } => (Tone::Waits, "The source is asked again by itself, or now.", check()),
        Blocked::Progress { .. } => (Tone::Stuck, "Make room on the disk, or repair the database.", None),
        Blocked::AheadOfSource { .. } => (Tone::Stuck, "Nothing runs before the source is the one that it was.", None),
        Blocked::Upstream { .. } => (
            Tone::Waits,
            "See what the stage before it waits for.",
            upstream.and_then(|name| link(format!("Look at {name}"), format!("#/stream?name={}", encoded(name)))),
        ),
        Blocked::InUse { .. } => (Tone::Waits, "It is the standby. It takes over by itself.", None),
        Blocked::Paused => {
            (Tone::Stuck, "Somebody has paused it.", change("Resume", json!({"action": "resume", "stream": name})))
        }
        Blocked::Held { .. } => (Tone::Stuck, "The progress decides when it goes on.", None),
        Blocked::Leaving { .. } => (Tone::Stuck, "If it hangs for good, start the program again.", None),
        // Another cause than the job: to skip it would only lose it.
        Blocked::Halted { .. } if !blocked.is_halt_of_job() => {
            (Tone::Stuck, "Remove the cause and start the consumer again.", None)
        }
        Blocked::Halted { index, .. } => (
            Tone::Stuck,
            "Remove the cause and start the consumer again. Or skip the job once the program has let go of the consumer.",
            change(&format!("Skip job {index}"), json!({"action": "skip", "stream": name, "index": index})),
        ),
        _ => (Tone::Waits, "", None),
    }
}

/// True if there may be jobs that the runner has no handler for. It remembers their kinds after
/// they have gone.
fn has_unknown(status: &QueueStatus) -> bool {
    let counts = &status.counts;
    !status.unknown_kinds.is_empty() && counts.dead + counts.scheduled + counts.ready > 0
}

/// Returns the advice for a queue with this name on the page. `home` returns the name of the queue
/// that runs a job: in a group it may be another one.
pub(crate) fn of_queue(name: &str, status: &QueueStatus, home: impl Fn(&str) -> String) -> Advice {
    let job = |id: &str| format!("#/job?queue={}&id={}", encoded(&home(id)), encoded(id));
    let jobs = |rest: String| format!("#/jobs?queue={}&{rest}", encoded(name));
    let (tone, help, action) = match &status.waits {
        Waits::No | Waits::NothingReady { .. } if !has_unknown(status) => (Tone::Good, "", None),
        Waits::No | Waits::NothingReady { .. } => {
            // A runner buries them, or snoozes them.
            let state = if status.counts.dead > 0 { "dead" } else { "scheduled" };
            let kind = status.unknown_kinds.first().map(|kind| format!("state={state}&kind={}", encoded(kind)));
            (
                Tone::Stuck,
                "Add a handler for them to the program, or cancel them.",
                link("Look at these jobs", jobs(kind.unwrap_or_default())),
            )
        }
        Waits::Paused { left } => {
            let tone = if left.is_none() { Tone::Stuck } else { Tone::Waits };
            (tone, "Somebody has paused it.", change("Resume", json!({"action": "resume", "queue": name})))
        }
        Waits::Gate { .. } => (Tone::Waits, "It goes on by itself when the program opens the gate.", None),
        Waits::Limited { limit, .. } => {
            let filter = match limit {
                LimitOf::Kind(kind) => format!("state=ready&kind={}", encoded(kind)),
                LimitOf::Key(key) => format!("state=ready&key={}", encoded(key)),
                _ => "state=ready".to_owned(),
            };
            (
                Tone::Waits,
                "It goes on by itself. If it is too slow, raise the limit.",
                link("Look at these jobs", jobs(filter)),
            )
        }
        Waits::Busy { oldest, .. } => {
            (Tone::Waits, "It goes on as jobs end.", link("Look at the oldest job", job(oldest)))
        }
        Waits::Alone { oldest, .. } => {
            (Tone::Waits, "It goes on by itself when that job has ended.", link("Look at the job", job(oldest)))
        }
        Waits::NoWorker => (Tone::Stuck, "Start a runner in the program.", None),
        Waits::StoreFails { .. } => (Tone::Stuck, "Make room on the disk, or repair the database.", None),
        _ => (Tone::Waits, "", None),
    };
    Advice { reason: json!(status)["waits"].clone(), tone, sentence: status.sentence(), help: help.to_owned(), action }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use waterline::Store;
    use waterline::queue::{Queue, QueueOptions};

    /// Each reason, with what an operator has to do.
    fn reasons() -> Vec<(Blocked, Tone, Option<&'static str>)> {
        let (index, attempt, elapsed, timeout) = (7, 2, Duration::from_secs(3), Duration::from_secs(1));
        let (error, why) = ("no".to_owned(), "a vote".to_owned());
        let retry_in = elapsed;
        vec![
            (Blocked::No, Tone::Good, None),
            (Blocked::CaughtUp, Tone::Good, None),
            (Blocked::Running { index, attempt, elapsed }, Tone::Waits, None),
            (Blocked::Overdue { index, attempt, elapsed, timeout }, Tone::Stuck, None),
            (Blocked::Retrying { index, attempt, retry_in, error: error.clone() }, Tone::Waits, None),
            (Blocked::Deferred { index, retry_in, error: error.clone() }, Tone::Waits, None),
            (Blocked::Threads { busy: 2, elapsed }, Tone::Stuck, None),
            (Blocked::Missing { index }, Tone::Stuck, Some("check")),
            (Blocked::Looking { elapsed }, Tone::Waits, None),
            (Blocked::Source { index, error: error.clone() }, Tone::Stuck, Some("check")),
            (Blocked::SourceWaits { index, why: why.clone() }, Tone::Waits, Some("check")),
            (Blocked::Progress { error: error.clone() }, Tone::Stuck, None),
            (Blocked::AheadOfSource { last_processed: 9, head: Some(3) }, Tone::Stuck, None),
            (Blocked::Upstream { index }, Tone::Waits, None),
            (Blocked::Alone { index }, Tone::Waits, None),
            (Blocked::InUse { holder: "b".to_owned(), expires_in: None }, Tone::Waits, None),
            (Blocked::Paused, Tone::Stuck, Some("resume")),
            (Blocked::Held { why }, Tone::Stuck, None),
            (Blocked::Leaving { elapsed }, Tone::Stuck, None),
            (Blocked::Halted { index, error: "job 7 failed in attempt 2: no".to_owned() }, Tone::Stuck, Some("skip")),
            (Blocked::Halted { index, error: "the process died twice".to_owned() }, Tone::Stuck, Some("skip")),
            (Blocked::Halted { index, error }, Tone::Stuck, None),
        ]
    }

    #[test]
    fn each_reason_to_stand_still_has_its_tone_its_help_and_the_change_that_makes_it_go_on() {
        for (blocked, tone, wanted) in reasons() {
            let (found, help, action) = of_blocked("blocks", &blocked, None);
            let change = action.and_then(|action| action.change);
            let does = change.as_ref().map(|change| change["action"].as_str().unwrap_or_default());
            assert_eq!((found, does), (tone, wanted), "{blocked}");
            assert_eq!(help.is_empty(), tone == Tone::Good, "{blocked}");
            assert!(change.is_none_or(|change| change["stream"] == "blocks"), "{blocked}");
        }
        let (.., action) = of_blocked("b", &Blocked::Upstream { index: 7 }, Some("fetch & parse"));
        assert_eq!(action.unwrap().link.unwrap(), "#/stream?name=fetch%20%26%20parse");
        let (.., action) = of_blocked("b", &Blocked::Halted { index: 7, error: "job 7 failed: no".to_owned() }, None);
        assert_eq!(action.unwrap().change.unwrap()["index"], 7);
    }

    #[test]
    fn a_pause_of_a_queue_needs_somebody_unless_it_ends_by_itself() {
        let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default()).unwrap();
        for (time, tone) in [(None, Tone::Stuck), (Some(Duration::from_secs(3_600)), Tone::Waits)] {
            queue.pause(time).unwrap();
            let advice = of_queue("q", &queue.status().unwrap(), |_| "q".to_owned());
            assert_eq!((advice.tone, advice.reason), (tone, json!("paused")));
            assert_eq!(advice.action.unwrap().change.unwrap()["action"], "resume");
        }
    }
}
