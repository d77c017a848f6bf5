//! The doctor.

use crate::application::Application;
use crate::program::{call, json, text};
use serde_json::Value;

/// Returns the sentences of one level, each with what it is about.
fn found(out: &str, level: &str) -> Vec<String> {
    let records = json(out).into_iter().filter(|record| record["type"] == level);
    let text = |record: &Value, field: &str| record[field].as_str().unwrap_or_default().to_owned();
    let line = |of: Value| format!("{} {}: {}", text(&of, "subject"), text(&of, "name"), text(&of, "sentence"));
    records.map(line).collect()
}

/// Sees that each finding has its sentence, in this order.
fn are(found: &[String], parts: &[&str]) {
    assert_eq!(found.len(), parts.len(), "{found:#?}");
    for (found, part) in found.iter().zip(parts) {
        assert!(found.contains(part), "{part}: {found}");
    }
}

#[test]
fn a_sound_store_has_no_problem() {
    let left = Application::sound();
    let out = text(&left.store(), "doctor");
    assert!(out.contains("No problem. Read: 1 consumer, 4 items, 3 rows, 1 job."), "{out}");
}

#[test]
fn a_consumer_that_halted_at_its_first_job_is_named_though_it_has_no_watermark() {
    let left = Application::failed();
    let doctor = call(&left.store(), "doctor --json");
    are(&found(&doctor.out, "problem"), &["consumer assets: has halted at job 0"]);
    let show = text(&left.store(), "show assets");
    assert!(show.contains("nothing is saved") && show.contains("the first asset is missing"), "{show}");
}

#[test]
fn each_thing_that_cannot_move_is_named_with_the_command_that_helps() {
    let left = Application::halted();
    let store = &left.store();
    assert_eq!(call(store, "pause mail --yes").code, 0);
    let doctor = call(store, "doctor --json");
    assert_eq!((doctor.code, doctor.error.as_str()), (1, ""));
    are(
        &found(&doctor.out, "problem"),
        &[
            "consumer blocks: has 2 parked jobs",
            "consumer prices: has halted at job 5",
            "consumer prices: has 1 parked job",
            "queue mail: has 1 dead job, which nothing runs any more; one of them by: no such customer",
            "queue mail: the queue \"mail\" is paused until somebody resumes it",
            "queue mail: has 1 job that ran when the process died",
        ],
    );
    are(&found(&doctor.out, "note"), &["log words: has 1 item that the consumer of the same name has not processed"]);
    let out = call(store, "doctor").out;
    for help in [
        "skip prices 5 --reason TEXT",
        "redrive blocks --all",
        "requeue mail --dead",
        "resume mail",
        "problem: the queue \"mail\" is paused until somebody resumes it",
        "known to the process alone",
    ] {
        assert!(out.contains(help), "{help}: {out}");
    }
}

#[test]
fn an_open_life_is_left_to_the_process_that_runs_and_told_of_one_that_died() {
    let application = Application::start();
    let runs = format!("has a life that is open, and only the process {} (", application.process());
    let doctor = call(&application.store(), "doctor --json");
    assert!(found(&doctor.out, "note")[0].contains(&runs), "{}", doctor.out);
    are(&found(&doctor.out, "problem"), &["consumer blocks: has 2 parked jobs", "queue mail: has 1 dead job"]);

    let left = application.kill();
    let doctor = call(&left.store(), "doctor --json");
    let problems = found(&doctor.out, "problem");
    are(
        &problems,
        &[
            "consumer blocks: has 2 parked jobs",
            "consumer blocks: has a life that is open, though no process",
            "queue mail: has 1 dead job",
            "queue mail: has 1 ready job, and no process has the store open",
            "queue mail: has 1 job that ran when the process died",
        ],
    );
}
