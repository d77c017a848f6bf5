//! Looks and changes through the page of an application that runs.

use crate::application::Application;
use crate::program::{At, bytes, json};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// All looks that a page serves, with parts of their output for people.
const LOOKS: [(&str, &[&str]); 13] = [
    ("list", &["CONSUMER  PROCESSED  HEAD  LAG  JOBS/S", "the consumer halted at 5: job 5 failed", "words", "LOG"]),
    ("show blocks", &["every job that the source has is processed", "lag        0", "the block has no header"]),
    ("show prices", &["the consumer halted at 5", "    Remove the cause and start", "skip prices 5 --reason TEXT"]),
    ("show words", &["consumer       words", "processed      3"]),
    ("parked blocks", &["INDEX  ATTEMPTS  CRASHES", "    3         1        0", "the block has no header"]),
    ("history blocks", &["Nobody has moved \"blocks\" by hand."]),
    ("queues", &["QUEUE  READY  RUNNING  SCHEDULED", "mail       1        1          1"]),
    ("jobs mail", &["ID    KIND     STATE", "carl  welcome  dead", "no such customer", "bob   digest   scheduled"]),
    ("jobs mail --state scheduled --kind digest", &["bob  digest  scheduled"]),
    ("job mail ann", &["kind      welcome", "meta by: \"the shop\"", "\"ann\""]),
    ("schedules mail", &["PERIODIC  SCHEDULE", "daily", "in 23h"]),
    ("workers mail", &["The queue \"mail\" has 1 worker, 1 slot busy.", "rust 0.1.0", "now", "dora  welcome"]),
    ("show blocks --json", &["\"verdict\":\"goes_well\"", "\"state\":\"running\""]),
];

#[test]
fn looks_show_live_state_and_change_nothing() {
    let (application, page) = Application::serving("serves");
    let before = bytes(&application.store());
    for slash in ["", "/", "/#/stream?name=blocks"] {
        let at = At::url(&format!("{}{slash}", page.url));
        for (line, parts) in LOOKS {
            let out = at.text(line);
            for part in parts {
                assert!(out.contains(part), "{line} has no {part:?}:\n{out}");
            }
            assert!(line.contains("--json") || out.contains(&format!("said by the application at {}", page.url)));
            if slash.is_empty() {
                at.text(&format!("{line} --json").replace("--json --json", "--json"));
            }
        }
    }
    assert!(bytes(&application.store()) == before, "a look has changed the store");
}

#[test]
fn records_have_the_fields_of_those_from_files() {
    let (application, page) = Application::serving("serves");
    let (through, beside) = (At::url(&page.url), At::store(&application.store()));
    for line in ["list", "parked blocks", "queues", "jobs mail", "job mail ann", "job mail carl", "schedules mail"] {
        let (through, beside) = (through.records(line), beside.records(line));
        for record in &beside {
            let is_it = |other: &&Value| {
                let is = |field: &str| other[field] == record[field];
                is("type") && is("name") && is("index") && is("id")
            };
            let same = through.iter().find(is_it).unwrap_or_else(|| panic!("{line}: {record} is not in {through:#?}"));
            for (field, value) in record.as_object().unwrap() {
                // Lists of a page have no payloads, and these fields only the process knows.
                let is_left_out = line == "jobs mail" && ["payload", "data", "meta", "root"].contains(&field.as_str());
                let of_process =
                    ["reason", "sentence", "verdict", "help", "command", "schedule", "next_tick", "oldest_ready"];
                if !is_left_out && !of_process.contains(&field.as_str()) && !field.ends_with("_per_second") {
                    assert_eq!(&same[field], value, "{line}: {field} of {record}");
                }
            }
        }
        assert_eq!(through.len(), beside.len(), "{line}");
    }
}

#[test]
fn the_doctor_names_what_is_stuck_and_what_helps() {
    let (_application, page) = Application::serving("serves");
    let at = At::url(&page.url);
    let doctor = at.call("doctor --json");
    assert_eq!((doctor.code, doctor.error.as_str()), (1, ""));
    let found = json(&doctor.out);
    let lines: Vec<_> = found
        .iter()
        .map(|record| ["type", "subject", "name"].map(|field| record[field].as_str().unwrap()).join(" "))
        .collect();
    let wanted = [
        "problem consumer blocks",
        "problem consumer prices",
        "problem consumer prices",
        "note consumer words",
        "note log words",
        "problem queue mail",
    ];
    assert_eq!(lines, wanted, "{}", doctor.out);
    let text = at.call("doctor").out;
    for part in [
        "problem: the consumer \"prices\": the consumer halted at 5: job 5 failed in attempt 1: the block has no header",
        "let go of the consumer: skip prices 5 --reason TEXT",
        "the consumer \"words\" is not on the page",
        "requeue mail --dead",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("known to the process alone"), "{text}");
}

/// Makes a change after a dry run. Returns its record.
#[track_caller]
fn change(at: &At, line: &str, what: &str) -> Value {
    let dry = at.text(line);
    assert!(dry.starts_with(&format!("Would {what}")), "{line}: {dry}");
    assert!(dry.contains("Nothing was changed. Add --yes to do it."), "{dry}");
    assert!(!dry.contains("refused"), "{dry}");
    let made = at.records(&format!("{line} --yes")).remove(0);
    assert_eq!((&made["type"], &made["made"]), (&json!("change"), &json!(true)), "{line}");
    made
}

#[test]
fn a_consumer_is_moved_paused_and_redriven() {
    let (_application, page) = Application::serving("serves");
    let at = &At::url(&page.url);
    let consumer = |name: &str| at.records(&format!("show {name}")).remove(0);
    change(at, "pause blocks --consumer", "pause the consumer \"blocks\"");
    assert_eq!(consumer("blocks")["state"], "paused");
    assert_eq!(consumer("blocks")["command"], "resume blocks --consumer");
    change(at, "check blocks", "make \"blocks\" look at its source now");
    change(at, "redrive blocks 3", "redrive job 3 of \"blocks\" (the block has no header)");
    change(at, "resume blocks --consumer", "end the pause of the consumer \"blocks\"");
    assert_eq!(consumer("blocks")["state"], "running");
    change(at, "redrive blocks --all", "redrive 2 parked jobs of \"blocks\"");
    change(at, "discard blocks 5", "discard job 5 of \"blocks\"");
    // The consumer has ended, so its name is free.
    change(at, "skip prices 5 --reason empty", "skip job 5 of \"prices\"");
    change(at, "seek prices 2 --reason wrong", "make 2 the next job of \"prices\"");
    let moves = at.records("history prices");
    let moves: Vec<_> = moves.iter().map(|made| [&made["move"], &made["reason"]]).collect();
    assert_eq!(moves, [[&json!("skip"), &json!("empty")], [&json!("seek"), &json!("wrong")]]);
    change(at, "remove prices", "remove the progress \"prices\"");
    at.refused("seek blocks 2 --reason no --yes", 1, &["in use"]);
    at.refused("redrive words 1 --yes", 1, &["words"]);
}

#[test]
fn a_queue_is_changed_with_its_own_options() {
    let (_application, page) = Application::serving("serves");
    let at = &At::url(&page.url);
    let job = |id: &str| at.records(&format!("job mail {id}")).remove(0);
    change(at, "requeue mail carl", "requeue the dead job \"carl\" of the queue \"mail\" (no such customer)");
    assert_eq!(job("carl")["state"], "ready");
    let all = change(at, "requeue mail --dead", "requeue 0 dead jobs");
    assert_eq!(all["said"], "0 dead jobs are requeued");
    change(at, "run-now mail bob", "make the scheduled job \"bob\"");
    assert_eq!(job("bob")["state"], "ready");
    change(at, "cancel mail ann", "remove the ready job \"ann\"");
    at.refused("job mail ann", 1, &["has no job \"ann\""]);
    let pushed = change(at, "push mail welcome {\"to\":9007199254740993}", "push a job of the kind \"welcome\"");
    let pushed = job(pushed["id"].as_str().unwrap());
    assert_eq!((&pushed["state"], &pushed["payload"]), (&json!("ready"), &json!({ "to": 9_007_199_254_740_993_u64 })));
    assert_eq!(change(at, "push mail welcome null --id odd", "push")["id"], "odd");
    assert_eq!(job("odd")["payload"], Value::Null);
    change(at, "pause mail", "pause the queue \"mail\"");
    let queue = || at.records("queues").remove(0);
    assert_eq!(queue()["sentence"], "the queue \"mail\" is paused until somebody resumes it");
    assert_eq!((&queue()["paused"], &queue()["command"]), (&json!(true), &json!("resume mail")));
    change(at, "resume mail", "end the pause of the queue \"mail\"");
    assert_eq!(queue()["paused"], false);
}

#[test]
fn the_only_worker_is_the_serving_process() {
    let (application, page) = Application::serving("serves");
    let workers = At::url(&page.url).records("workers mail");
    let [worker] = &workers[..] else { panic!("{workers:?}") };
    assert_eq!((&worker["process"], &worker["slots"]), (&json!(application.process()), &Value::Null));
    assert_eq!((&worker["busy"], &worker["jobs"][0]["id"]), (&json!(1), &json!("dora")));
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!((&worker["host"], &worker["language"]), (&json!(host.trim()), &json!("rust")));
}

#[test]
fn names_with_odd_characters_arrive_unchanged() {
    let (_application, page) = Application::serving("serves");
    let at = &At::url(&page.url);
    for id in ["a b&c=d?e#f/g%20+ä", "..", "\u{1b}[2J\u{9b}31m\u{202e}x", "'\"; rm"] {
        let pushed = at.call_with("push mail k 1 --yes --id", &[id]);
        assert_eq!((pushed.code, pushed.error.as_str()), (0, ""), "{id:?}");
        let shown = at.call_with("job mail", &[id, "--json"]);
        assert_eq!((shown.code, &json(&shown.out)[0]["id"]), (0, &json!(id)), "{shown:?}");
        // Control characters are escaped for people and for programs.
        for more in [&[id][..], &[id, "--json"]] {
            let out = at.call_with("job mail", more).out;
            let steers = |letter: char| letter != '\n' && letter.is_control() || letter == '\u{202e}';
            assert!(!out.contains(steers), "{out:?}");
        }
        let removed = at.call_with("cancel mail --yes", &[id]);
        assert_eq!((removed.code, removed.error.as_str()), (0, ""), "{id:?}");
    }
}

#[test]
fn a_watch_outlives_the_application() {
    let (application, page) = Application::serving("serves");
    let mut watch = At::url(&page.url).command("queues --json --watch=1");
    let mut watch = watch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(watch.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(json(&line)[0]["name"], "mail");
    drop(application);
    let error = BufReader::new(watch.stderr.take().unwrap()).lines().next().unwrap().unwrap();
    assert!(error.contains("cannot be reached: nobody listens there"), "{error}");
    watch.kill().unwrap();
    watch.wait().unwrap();
}
