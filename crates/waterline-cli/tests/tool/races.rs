//! The state may differ between the plan of a change and the change: the answer says what was done.

use crate::application::Application;
use crate::program::{At, json};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::thread;

/// A page that answers each request by this function of the view or the change.
fn page(mut answer: impl FnMut(&str, Value) -> (&'static str, Value) + Send + 'static) -> At {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let (mut line, mut length) = (String::new(), 0);
            stream.read_line(&mut line).unwrap();
            let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
            while line.trim() != "" {
                line.clear();
                stream.read_line(&mut line).unwrap();
                let header = line.to_lowercase();
                length = header.strip_prefix("content-length:").map_or(length, |of| of.trim().parse().unwrap());
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).unwrap();
            let view = path.trim_start_matches("/api/").split('?').next().unwrap_or_default();
            let (status, said) = answer(view, serde_json::from_slice(&body).unwrap_or_default());
            let (said, mut stream) = (said.to_string(), stream.into_inner());
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close", said.len());
            write!(stream, "{head}\r\n\r\n{said}").unwrap();
        }
    });
    At::url(&url)
}

const OK: &str = "200 OK";

#[test]
fn redrive_all_counts_done_gone_and_failed_jobs() {
    let mut left = vec![3, 5, 7, 9];
    let at = page(move |view, change| match view {
        "overview" => (OK, json!({ "streams": [], "queues": [] })),
        "saved" => {
            let saved = json!({ "name": "p", "last_processed": 9, "next": 10, "done_ahead": 0, "parked": 4,
                "moved_at": null, "life_open": null, "last_halt": null, "unreadable": null });
            (OK, json!({ "consumers": [saved], "logs": [] }))
        }
        "parked" => {
            let job = |index: &u64| {
                json!({ "index": index, "attempts": 1, "crashes": 0, "error": "no", "first_failed_at": 0,
                    "last_failed_at": 0, "parked_at": 0, "redrive_wanted": false })
            };
            (OK, json!({ "jobs": left.iter().map(job).collect::<Vec<_>>(), "next": null }))
        }
        _ => match change["index"].as_u64() {
            // Another caller has discarded it.
            Some(5) => {
                left.retain(|index| *index != 5);
                ("404 Not Found", json!({ "error": "job 5 is not parked" }))
            }
            Some(7) => ("409 Conflict", json!({ "error": "the name is in use" })),
            _ => (OK, json!({ "said": "it runs once more" })),
        },
    });
    let made = at.call("redrive p --all --yes");
    assert_eq!((made.code, made.out.lines().next()), (1, Some("Done: redrive 2 parked jobs of \"p\".")), "{made:?}");
    let wanted = "waterline: 2 of 4 parked jobs of \"p\" will run once more, and 1 will not: the name is in use\n";
    assert_eq!(made.error, wanted);
    let made = at.call("redrive p --all --yes --json");
    let record = &json(&made.out)[0];
    // By then the page no longer lists job 5.
    let found = ["indices", "not_parked", "failed", "made"].map(|field| record[field].clone());
    assert_eq!((made.code, found), (1, [json!([3, 9]), json!(0), json!(1), json!(true)]));
}

/// Returns the overview of a page with one queue.
fn with_queue() -> Value {
    let advice = json!({ "reason": "no", "verdict": "goes_well", "sentence": "runs", "help": "" });
    let status = json!({ "counts": { "ready": 1 }, "oldest_ready": null, "oldest_ready_for": null });
    json!({ "streams": [], "queues": [{ "name": "q", "status": status, "advice": advice, "also": [] }] })
}

#[test]
fn a_proxy_timeout_leaves_a_change_in_doubt() {
    let at = page(|view, _change| match view {
        "overview" => (OK, with_queue()),
        _ => ("504 Gateway Timeout", json!("not of the page")),
    });
    at.refused("pause q --yes", 1, &["may have made the change: look before you repeat it", "504"]);
}

#[test]
fn a_job_that_dies_before_its_cancel_keeps_its_error() {
    let mut looks = 0;
    let at = page(move |view, change| match view {
        "overview" => (OK, with_queue()),
        "job" => {
            looks += 1;
            let state = if looks == 1 { "ready" } else { "dead" };
            let payload = json!({ "text": "1", "form": "json", "is_cut": false });
            (
                OK,
                json!({ "id": "a", "kind": "k", "state": state, "failures": 0, "crashes": 0, "runs_alone": false,
                    "pushed_at": 0, "run_at": null, "since": 0, "kept_until": null, "expires_at": null, "waits_for": 0,
                    "key": null, "held_by": null, "error": null, "progress": null, "damaged": null,
                    "payload": payload, "after": [], "before": [] }),
            )
        }
        // A page refuses to cancel a dead job.
        _ if change["action"] == "cancel" => ("409 Conflict", json!({ "error": "the job \"a\" is dead by now" })),
        _ => (OK, json!({ "said": "the job \"a\" is removed" })),
    });
    at.refused("cancel q a --yes", 1, &["the job \"a\" is dead by now"]);
}

#[test]
fn a_push_of_a_known_id_says_nothing_was_changed() {
    let (_application, page) = Application::serving("serves");
    let left = Application::halted();
    for at in [At::url(&page.url), At::store(&left.store())] {
        assert!(at.text("push mail welcome 1 --id ann").starts_with("Would push"));
        let again = at.text("push mail welcome 1 --id ann --yes");
        assert!(again.starts_with("Nothing was changed: the queue \"mail\" has a job of this id"), "{again}");
        let again = at.records("push mail welcome 1 --id ann --yes").remove(0);
        assert_eq!([&again["made"], &again["id"]], [&json!(false), &json!("ann")]);
        let new = at.records("push mail welcome 1 --id new --yes").remove(0);
        assert_eq!(new["made"], true);
        // The number is what was done, not what was planned.
        let all = at.records("requeue mail --dead --yes").remove(0);
        assert_eq!([&all["requeued"], &all["jobs"]], [&json!(1), &json!(1)]);
        assert!(at.text("requeue mail --dead --yes").starts_with("Done: requeue 0 dead jobs of the queue \"mail\"."));
    }
}

#[test]
fn a_seek_recreates_a_consumer_only_with_new() {
    let left = Application::halted();
    let at = At::store(&left.store());
    at.text("remove prices --yes");
    at.refused("seek prices 3 --reason back --yes", 1, &["--new seeks a name of which nothing is saved"]);
    at.refused("seek blocks 3 --new --reason back --yes", 1, &["without --new"]);
    assert!(at.text("seek prices 3 --new --reason back").starts_with("Would make 3 the first job of \"prices\""));
    at.refused("show prices", 1, &["there is no consumer or log \"prices\""]);
    assert!(at.text("seek prices 3 --new --reason back --yes").starts_with("Done: make 3 the first job"));
    assert_eq!(at.records("show prices")[0]["next"], 3);
    let bad = at.call_with("seek --new --reason back --yes", &["\u{1b}[2J", "3"]);
    assert!(!bad.out.contains('\u{1b}') && !bad.error.contains('\u{1b}'), "{bad:?}");
}
