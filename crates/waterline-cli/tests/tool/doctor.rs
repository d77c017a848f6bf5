//! The doctor.

use crate::application::Application;
use crate::program::{At, call, json, text};
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use waterline::{BoxError, Consumer, Index, Jobs, MemoryJobs, Store};
use waterline_queue::{NewJob, Queue, QueueOptions};

/// Returns the sentences of one level, each with what it is about.
fn found(out: &str, level: &str) -> Vec<String> {
    let records = json(out).into_iter().filter(|record| record["type"] == level);
    let text = |record: &Value, field: &str| record[field].as_str().unwrap_or_default().to_owned();
    let line = |of: Value| format!("{} {}: {}", text(&of, "subject"), text(&of, "name"), text(&of, "sentence"));
    records.map(line).collect()
}

/// Asserts that each finding contains its part, in this order.
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
    assert!(out.contains("No problem. Read: 1 consumer, 4 items, 3 rows, 1 queue, 1 job."), "{out}");
    // A pause that ends by itself is no problem, either.
    let store = Store::open(left.store()).unwrap();
    Queue::admin(&store, "mail").unwrap().pause(Some(Duration::from_secs(3_600))).unwrap();
    drop(store);
    let out = text(&left.store(), "doctor");
    assert!(out.contains("note: the queue \"mail\" is paused for another 3"), "{out}");
}

#[test]
fn a_halt_at_the_first_job_needs_no_watermark() {
    let left = Application::failed();
    let doctor = call(&left.store(), "doctor --json");
    are(&found(&doctor.out, "problem"), &["consumer assets: the consumer halted at 0"]);
    let show = text(&left.store(), "show assets");
    assert!(show.contains("nothing is saved") && show.contains("the first asset is missing"), "{show}");
}

#[test]
fn each_problem_names_the_command_that_helps() {
    let left = Application::halted();
    let store = &left.store();
    assert_eq!(call(store, "pause mail --yes").code, 0);
    let doctor = call(store, "doctor --json");
    assert_eq!((doctor.code, doctor.error.as_str()), (1, ""));
    are(
        &found(&doctor.out, "problem"),
        &[
            "consumer blocks: has 2 parked jobs",
            "consumer prices: the consumer halted at 5",
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
fn an_open_life_is_reported_only_of_a_dead_process() {
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

/// A source that loses its first jobs when it is read.
#[derive(Default)]
struct Pruned(AtomicBool);

impl Jobs for Pruned {
    type Job = u64;

    fn first(&self) -> Result<Index, BoxError> {
        Ok(if self.0.load(Ordering::SeqCst) { 10 } else { 0 })
    }

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(20))
    }

    fn at_index(&self, index: Index) -> Result<Option<u64>, BoxError> {
        self.0.store(true, Ordering::SeqCst);
        Ok((index >= 10).then_some(index))
    }
}

#[test]
fn a_halt_by_the_source_suggests_no_skip() {
    let directory = tempfile::tempdir().unwrap();
    let store = common::open_in(directory.path()).unwrap();
    let jobs: MemoryJobs<u64> = (0..3).collect();
    let builder = |name: &str| store.progress(name);
    Consumer::builder(jobs, builder("blocks")).stop_at(2).start(|_| Ok(())).unwrap().join().unwrap();
    Consumer::builder(Pruned::default(), builder("blocks")).start(|_| Ok(())).unwrap().join().unwrap_err();
    let queue = Queue::open(&store, "later", QueueOptions::default()).unwrap();
    queue.push(NewJob::new("k", &1).unwrap().delay(Duration::from_millis(1))).unwrap();
    drop((queue, store));
    let doctor = call(directory.path(), "doctor --json");
    let problems = found(&doctor.out, "problem");
    are(&problems, &["consumer blocks: the consumer halted at 3", "queue later: has "]);
    // Whether the queue promoted the due job before it was closed depends on timing.
    let due = ["queue later: has jobs that are due, and no process", "queue later: has 1 ready job, and no process"];
    assert!(due.iter().any(|due| problems[1].starts_with(due)), "{problems:?}");
    assert!(!doctor.out.contains("skip blocks"), "{}", doctor.out);
    // The exit code counts even if the output is not read.
    let mut command = At::store(directory.path()).command("doctor");
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(1));
}
