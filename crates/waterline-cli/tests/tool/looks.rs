//! Commands that change nothing.

use crate::application::Application;
use crate::program::{bytes, call, command, json, records, text};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use waterline::Store;
use waterline_queue::{JobState, Queue, QueueOptions};

/// All looks, with parts of their output for people.
const LOOKS: [(&str, &[&str]); 16] = [
    (
        "list",
        &["CONSUMER  PROCESSED  NEXT  DONE AHEAD  PARKED", "blocks            9    10           0       2", "words"],
    ),
    ("show blocks", &["processed      9", "parked         2 jobs", "the block has no header"]),
    ("show words", &["consumer       words", "processed      3"]),
    ("parked blocks", &["INDEX  ATTEMPTS  CRASHES", "    3         1        0", "the block has no header"]),
    ("history blocks", &["Nobody has moved \"blocks\" by hand."]),
    ("log peek words", &["INDEX  BYTES  ITEM", "    1      4  \"to\"", "the log \"words\" has the items 1 to 4"]),
    ("log peek words --from 3 --limit 1", &["    3      4  \"or\""]),
    ("tables", &["TABLE", "heights"]),
    ("table heights", &["KEY      BYTES  VALUE", "everest      4  8849", "(as a counter: 12)"]),
    ("table heights --prefix k --limit 1", &["k2       4  8611"]),
    ("queues", &["QUEUE  READY  RUNNING  SCHEDULED", "mail       1        1          1"]),
    ("jobs mail", &["ID    KIND     STATE", "carl  welcome  dead", "no such customer", "bob   digest   scheduled"]),
    ("jobs mail --state scheduled --kind digest", &["bob  digest  scheduled"]),
    ("job mail ann", &["kind      welcome", "meta by: \"the shop\"", "\"ann\""]),
    ("schedules mail", &["PERIODIC", "daily"]),
    ("workers mail", &["WORKER", "PROCESS", "JOB   KIND     RUNS FOR", "dora  welcome", "--url asks its page"]),
];

/// Runs all looks, and asserts that they changed nothing.
fn look_at_everything(store: &Path, freshness: &str) {
    let before = bytes(store);
    for (line, parts) in LOOKS {
        let out = text(store, line);
        for part in parts.iter().chain([&freshness]) {
            assert!(out.contains(part), "{line} has no {part:?}:\n{out}");
        }
        assert!(!out.contains('\u{1b}'), "there is no terminal: {out}");
        assert!(call(store, &format!("{line} --json")).code == 0);
        assert!(bytes(store) == before, "{line} has changed the store");
    }
    call(store, "doctor");
    assert!(bytes(store) == before, "doctor has changed the store");
}

#[test]
fn looks_beside_a_running_application_change_nothing() {
    let application = Application::start();
    let freshness = format!("the process {} (", application.process());
    look_at_everything(&application.store(), &freshness);
    let workers = text(&application.store(), "workers mail");
    assert!(workers.starts_with("The queue \"mail\" has 1 worker, 1 slot busy.\n"), "{workers}");
    let worker = &records(&application.store(), "workers mail")[0];
    assert_eq!((&worker["process"], &worker["is_silent"]), (&json!(application.process()), &json!(false)));
    assert_eq!((&worker["busy"], &worker["jobs"][0]["id"]), (&json!(1), &json!("dora")));
}

#[test]
fn looks_after_a_kill_change_and_count_nothing() {
    let left = Application::start().kill();
    look_at_everything(&left.store(), "no process that is seen from here has the store open");
    let workers = text(&left.store(), "workers mail");
    let lost = "no longer heard of; its job comes back when its program is started again";
    assert!(workers.contains(lost) && workers.contains("no worker; 1 is no longer heard of"), "{workers}");
    // When the application starts again, the death counts once, however many looks there were.
    let store = Store::open(left.store()).unwrap();
    let mail = Queue::open(&store, "mail", QueueOptions::default()).unwrap();
    let dora = mail.get("dora").unwrap().unwrap();
    assert_eq!((dora.state, dora.crashes), (JobState::Ready, 1));
}

#[test]
fn json_records_have_the_documented_names() {
    let left = Application::halted();
    let store = &left.store();
    let list = records(store, "list");
    let of = |name: &str, kind: &str| {
        list.iter().find(|record| record["name"] == name && record["type"] == kind).unwrap_or(&Value::Null)
    };
    let prices = of("prices", "consumer");
    assert_eq!((&prices["last_processed"], &prices["next"], &prices["parked"]), (&json!(4), &json!(5), &json!(1)));
    assert_eq!((&prices["halted"], &prices["life_open"]), (&json!(true), &json!(false)));
    assert_eq!(prices["last_halt"]["index"], 5);
    assert!(prices["moved_at"].is_u64() && prices["unreadable"].is_null());
    let words = of("words", "log");
    assert_eq!([&words["first"], &words["head"], &words["items"]], [&json!(1), &json!(4), &json!(4)]);

    let parked = records(store, "parked blocks");
    assert_eq!(parked.iter().map(|job| job["index"].as_u64().unwrap()).collect::<Vec<_>>(), [3, 5]);
    assert_eq!(parked[0]["error"], "the block has no header");
    let items = records(store, "log peek words --from 2 --limit 2");
    assert_eq!(items.iter().map(|item| item["item"].as_str().unwrap()).collect::<Vec<_>>(), ["be", "or"]);
    let rows = records(store, "table heights --prefix 0x6b32");
    assert_eq!((&rows[0]["key"], &rows[0]["value_hex"]), (&json!("k2"), &json!("38363131")));
    let queue = &records(store, "queues")[0];
    assert_eq!(
        (&queue["counts"]["dead"], &queue["counts"]["running"], &queue["paused"]),
        (&json!(1), &json!(1), &json!(false))
    );
    let job = &records(store, "job mail ann")[0];
    assert_eq!((&job["type"], &job["state"], &job["kind"]), (&json!("job"), &json!("ready"), &json!("welcome")));
    assert_eq!(records(store, "schedules mail")[0]["name"], "daily");
    assert_eq!(records(store, "tables")[0]["name"], "heights");
}

/// Returns the field names that the README lists for this type.
fn documented(kind: &str) -> BTreeSet<String> {
    let readme = include_str!("../../README.md");
    let row =
        readme.lines().find(|line| line.split('|').nth(1).is_some_and(|cell| cell.contains(&format!("`{kind}`"))));
    let fields = row.unwrap_or_else(|| panic!("{kind} has no row")).splitn(4, '|').nth(3).unwrap();
    // Words in parentheses describe a field or its parts.
    let (mut names, mut depth) = (String::new(), 0);
    for letter in fields.chars() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            letter if depth == 0 => names.push(letter),
            _ => {}
        }
    }
    names.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn records_have_exactly_the_fields_of_the_readme() {
    let left = Application::halted();
    let mut seen = BTreeSet::new();
    for line in [
        "list",
        "parked blocks",
        "log peek words",
        "tables",
        "table heights",
        "queues",
        "schedules mail",
        "workers mail",
        "doctor",
    ] {
        for record in json(&call(&left.store(), &format!("{line} --json")).out) {
            let kind = record["type"].as_str().unwrap().to_owned();
            assert_eq!(fields(&record), documented(&kind), "{line}: {record}");
            seen.insert(kind);
        }
    }
    let all = ["consumer", "item", "log", "note", "parked", "periodic", "problem", "queue", "row", "table", "worker"];
    assert_eq!(seen.iter().map(String::as_str).collect::<Vec<_>>(), all);
}

/// Returns the field names of a record, without `type`.
fn fields(record: &Value) -> BTreeSet<String> {
    record.as_object().unwrap().keys().filter(|field| *field != "type").cloned().collect()
}

#[test]
fn changes_moves_and_jobs_have_the_listed_fields() {
    let left = Application::halted();
    let store = &left.store();
    let mut found = BTreeSet::new();
    for line in [
        "discard blocks 3",
        "discard blocks --to 4 --yes",
        "redrive blocks --all --yes",
        "seek prices 7 --reason no --yes",
        "cancel mail bob",
        "push mail welcome 1 --yes",
        "requeue mail --dead --yes",
    ] {
        found.extend(fields(&records(store, line)[0]));
    }
    // Only a page adds this one.
    found.insert("said".to_owned());
    assert_eq!(found, documented("change"));
    assert_eq!(fields(&records(store, "history prices")[0]), documented("move"));
    let (listed, whole) = (&records(store, "jobs mail --state scheduled")[0], &records(store, "job mail bob")[0]);
    let more: Vec<_> = fields(whole).difference(&fields(listed)).cloned().collect();
    assert_eq!(more, ["awaited_by_ids", "waits_for_ids"]);
    let look = Store::options().read_only().open(store).unwrap();
    let bob = Queue::open(&look, "mail", QueueOptions::default()).unwrap().get("bob").unwrap().unwrap();
    let info = fields(&json!(bob)).into_iter().chain(["queue".to_owned()]);
    assert_eq!(fields(listed), info.collect());
}

#[test]
fn a_queue_without_a_worker_says_what_to_do() {
    let left = Application::sound();
    let workers = text(&left.store(), "workers mail");
    let wanted = "The queue \"mail\" has no worker. No process has its store open: start its program.\n";
    assert!(workers.starts_with(wanted), "{workers}");
    assert_eq!(records(&left.store(), "workers mail"), [] as [Value; 0]);
}

#[test]
fn a_watch_shows_what_is_saved_later() {
    let left = Application::sound();
    let mut watch = command(&left.store(), "table heights --json --prefix new --watch=1");
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let store = Store::open(left.store()).unwrap();
    store.table("heights").unwrap().put("new", "4810").unwrap();
    let mut line = String::new();
    BufReader::new(watch.stdout.take().unwrap()).read_line(&mut line).unwrap();
    watch.kill().unwrap();
    watch.wait().unwrap();
    assert_eq!(json(&line)[0]["value"], "4810");
}

#[test]
fn a_watch_goes_on_after_a_failed_look() {
    let left = Application::sound();
    let (store, aside) = (left.store(), left.store().with_extension("aside"));
    let mut watch = command(&store, "tables --json --watch=1");
    let mut watch = watch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(watch.stdout.take().unwrap());
    let mut errors = BufReader::new(watch.stderr.take().unwrap()).lines();
    out.read_line(&mut String::new()).unwrap();
    std::fs::rename(&store, &aside).unwrap();
    let error = errors.next().unwrap().unwrap();
    assert!(error.contains("there is no store at"), "{error}");
    std::fs::rename(&aside, &store).unwrap();
    Store::open(&store).unwrap().table("later").unwrap().put("key", "value").unwrap();
    assert!(out.lines().any(|line| line.is_ok_and(|line| line.contains("later"))), "the watch has ended");
    watch.kill().unwrap();
    watch.wait().unwrap();
}

#[test]
fn completions_are_printed_without_a_store() {
    for shell in ["bash", "zsh", "fish"] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_waterline")).args(["completions", shell]).output();
        let output = output.unwrap();
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && script.contains("waterline") && script.contains("schedules"), "{shell}");
    }
}
