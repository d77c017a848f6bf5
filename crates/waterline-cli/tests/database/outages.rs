//! What an operator reads in an outage, with three worker processes on a real server: the page, the
//! doctor and the log name the cause and what helps within three seconds.

use crate::server::{End, Server};
use crate::workers::{Fleet, LEASE, SLOTS, STREAM, Worker, within};
use std::time::{Duration, Instant};
use waterline_queue::{JobState, NewJob};

/// Waits until this is true, and returns the time at which it was.
fn eventually(what: &str, is_true: impl FnMut() -> bool) -> Instant {
    common::eventually(what, is_true);
    Instant::now()
}

#[test]
fn hanging_jobs_are_named_by_the_oldest() {
    let fleet = Fleet::start(Server::shared(), "hangs");
    (0..3 * SLOTS + 2).for_each(|n| fleet.push("hangs", &format!("h{n}")));
    let full = eventually("all slots to be busy", || fleet.queue.counts().running == 3 * SLOTS as u64);
    // Three workers claim at once, so any of the first jobs may be the oldest.
    let sentence = "the queue \"mail\" stands still: 6 slots of 3 workers are busy; the oldest, \"h";
    fleet.says(full + LEASE, &[sentence, "Find out what that job waits for.", "job mail h"], "the queue stands still");
}

#[test]
fn a_job_that_kills_processes_dies_and_is_named() {
    let mut fleet = Fleet::start(Server::shared(), "poison");
    // Two workers die, one after the other.
    fleet.push("poison", "p");
    let mut died = Vec::new();
    for _ in 0..2 {
        let first = eventually("a worker to die", || fleet.workers.iter_mut().any(Worker::has_died));
        died.push(first);
        let at = fleet.workers.iter_mut().position(Worker::has_died).unwrap();
        let gone = fleet.workers.remove(at);
        // The others learn of it when its lease is over.
        if died.len() == 1 {
            within(first + LEASE, "the log", || {
                let said: Vec<_> = fleet.workers.iter().map(Worker::said).collect();
                let is_said =
                    said.iter().any(|said| said.contains("was not heard of for 2s, so the job is taken back"));
                is_said.then_some(()).ok_or_else(|| said.join("\n"))
            });
        }
        drop(gone);
    }
    fleet.says(
        died[1] + LEASE,
        &["1 dead job, which nothing runs any more", "its process died 2 times while it ran", "requeue mail --dead"],
        "its process died 2 times while it ran",
    );
    assert_eq!(fleet.queue.state("p").unwrap(), Some(JobState::Dead));
}

#[test]
fn an_unknown_kind_needs_an_operator_at_once() {
    let fleet = Fleet::start(Server::shared(), "welcome");
    (0..4).for_each(|n| fleet.push("receipt", &format!("r{n}")));
    let sentence = "4 jobs of kind \"receipt\" are due, and no worker that is here has it";
    let parts = [sentence, "Start a worker that has a handler for them", "jobs mail --state ready --kind receipt"];
    fleet.says(Instant::now(), &parts, "kind=\"receipt\"");
    // A worker with that kind takes them, and the finding goes away.
    let _other = Worker::start(&fleet.database, Server::shared(), "w4", "receipt");
    let done = eventually("all to be done", || fleet.queue.counts().finished == 4);
    for (who, at) in fleet.doctors() {
        within(done, who, || {
            let said = at.call("doctor");
            (said.code == 0).then_some(()).ok_or(said.out)
        });
    }
}

#[test]
fn a_paused_queue_names_its_resume_command() {
    let fleet = Fleet::start(Server::shared(), "welcome");
    fleet.queue.pause(None).unwrap();
    let since = Instant::now();
    fleet.push("welcome", "ann");
    let sentence = "the queue \"mail\" is paused until somebody resumes it; 3 workers with 6 slots wait for that";
    fleet.says(since, &[sentence, "Resume it", "resume mail"], "the queue is paused");
    fleet.queue.resume().unwrap();
    eventually("the job to be done", || fleet.queue.counts().finished == 1);
}

#[test]
fn lost_workers_are_named_and_hide_no_waiting_job() {
    let mut fleet = Fleet::start(Server::shared(), "hangs");
    (0..2).for_each(|n| fleet.push("hangs", &format!("h{n}")));
    eventually("both to run", || fleet.queue.counts().running == 2);
    let died = fleet.workers.iter_mut().map(Worker::kill).max().unwrap();
    within(died + LEASE, "the doctor", || {
        let said = fleet.tool.call("doctor").out;
        let parts = ["was last heard of", "no worker is left", "Start a worker"];
        parts.iter().all(|part| said.contains(part)).then_some(()).ok_or(said)
    });
}

#[test]
fn a_stopped_database_is_named_and_work_resumes() {
    let server = Server::start(&[]);
    let fleet = Fleet::start(&server, "welcome");
    fleet.push("welcome", "ann");
    eventually("the first job to be done", || fleet.queue.counts().finished == 1);
    server.stop(End::Immediate);
    let stopped = Instant::now();
    within(stopped, "the page", || {
        let said = fleet.workers[2].page.call("doctor").out;
        let parts = ["the queue \"mail\" cannot be looked at", "look at its server", "Connection refused"];
        parts.iter().all(|part| said.contains(part)).then_some(()).ok_or(said)
    });
    within(stopped, "the doctor", || {
        let said = fleet.tool.call("doctor");
        (said.code == 1 && said.error.contains("cannot be used")).then_some(()).ok_or(format!("{said:?}"))
    });
    within(stopped, "the log", || {
        let said = fleet.workers[2].said();
        said.contains("cannot be").then_some(()).ok_or(said)
    });
    server.start_again();
    // The first calls may fail on a broken connection of before.
    eventually("a push", || fleet.queue.push(NewJob::new("welcome", &()).unwrap().id("bob")).is_ok());
    eventually("the second job to be done", || fleet.queue.counts().finished == 2);
}

/// The size in bytes beyond which no table can grow on the full disk. Log files have the same size.
const FULL: u64 = 1 << 20;

/// Inserts ended jobs beyond that size, four of which fill a page of the table exactly.
const OLD: &str = "INSERT INTO waterline.ended (number, queue, kind, payload, pushed, since, place, priority, died)
    SELECT -n, 0, 'old', repeat('x', 1900), 0, 0, 0, 2, false FROM generate_series(1, 560) n";

#[test]
fn a_full_disk_is_named_and_work_resumes() {
    let server = Server::start(&[]);
    let fleet = Fleet::start(&server, "welcome");
    fleet.database.client().batch_execute(OLD).unwrap();
    server.bound_files_now(Some(FULL));
    (0..200).for_each(|n| fleet.push("welcome", &format!("u{n}")));
    let since = eventually("a table that cannot grow", || server.log().contains("could not extend file"));
    let says = |who: &str, parts: &[&str], said: &dyn Fn(&Worker) -> String| {
        within(since, who, || {
            let said: Vec<_> = fleet.workers.iter().map(said).collect();
            let says = |said: &String| parts.iter().all(|part| said.contains(part));
            said.iter().any(says).then_some(()).ok_or_else(|| said.join("\n"))
        });
    };
    let parts = ["cannot use its store", "could not extend file", "Make room on the disk"];
    says("the page", &parts, &|worker: &Worker| worker.page.call("doctor").out);
    says("the log", &["cannot be written; it is tried again", "could not extend file"], &Worker::said);
    server.bound_files_now(None);
    eventually("all jobs to be done", || fleet.queue.counts().finished == 200);
}

/// Takes a minute of real time: a source may fail that long before it needs an operator.
#[test]
fn a_source_outage_needs_an_operator_after_a_minute() {
    let server = Server::shared();
    let database = server.database();
    drop(database.store(waterline_postgres::PgOptions::new()));
    let begun = Instant::now();
    // One of them gets the name, and the others wait for it.
    let workers = ["w1", "w2", "w3"].map(|name| Worker::start(&database, server, name, STREAM));
    let says = |since: Instant, parts: &[&str]| {
        within(since, "the page", || {
            let said: Vec<_> = workers.iter().map(|worker| worker.page.call("doctor").out).collect();
            let says = |said: &String| parts.iter().all(|part| said.contains(part));
            said.iter().any(says).then_some(()).ok_or_else(|| said.join("\n"))
        });
    };
    let sentence = "the source cannot be read at 0; the consumer goes on as soon as it can be: no route to the node";
    says(Instant::now(), &["note: ", sentence, "The source is asked again by itself, or now."]);
    within(Instant::now(), "the log", || {
        let said: Vec<_> = workers.iter().map(Worker::said).collect();
        let says =
            |said: &String| said.contains("the source failed; retrying") && said.contains("no route to the node");
        said.iter().any(says).then_some(()).ok_or_else(|| said.join("\n"))
    });
    let minute = Duration::from_secs(60);
    common::eventually("the minute to be over", || begun.elapsed() > minute);
    says(Instant::now(), &["problem: ", sentence, "check blocks"]);
}
