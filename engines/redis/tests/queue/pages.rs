//! What the pages say: the rights of a user, the commands for alarms, and the example `outbox`.

use crate::bench::{bench, options};
use crate::languages::{Language, Worker};
use crate::server::Server;
use std::process::Command;
use waterline::Store;
use waterline_queue::{DrainLimits, JobState, NewJob, Outcome, QueueOptions, Retention, Runner};
use waterline_redis::RedisStore;

#[path = "../../examples/outbox.rs"]
#[allow(dead_code, reason = "its main")]
mod outbox;

const PAGE: &str = include_str!("../../docs/operating.md");

#[test]
fn a_user_of_one_queue_works_on_it_and_on_nothing_else() {
    let server = Server::start(&[]);
    let owner = RedisStore::connect(server.url(), options()).unwrap();
    owner.migrate().unwrap();
    let (_, acl) = PAGE.split_once("```text\n").unwrap();
    server.ask(&acl.split_once("```").unwrap().0.split_whitespace().collect::<Vec<_>>());
    let url = server.url().replace("//", "//mail:secret@");
    let store = RedisStore::connect(&*url, options()).unwrap();
    let queue = store.queue("mail", QueueOptions::default().retention(Retention::Keep)).unwrap();
    let directory = tempfile::tempdir().unwrap();
    for language in Language::ALL {
        let worker = Worker::of(language, &url, "wl:{mail}:", directory.path(), 30.0, 0.1);
        let id = queue.push(NewJob::new("echo", &1).unwrap()).unwrap().id;
        common::eventually("the job ends", || queue.state(&id).unwrap() == Some(JobState::Finished));
        drop(worker);
    }
    let other = format!("{:?}", store.queue("other", QueueOptions::default()).map(drop).unwrap_err());
    let migrated = format!("{:?}", store.migrate().unwrap_err());
    assert!(other.contains("NOPERM") && migrated.contains("NOPERM"), "{other}, {migrated}");
}

#[test]
fn each_command_for_alarms_answers() {
    let server = Server::start(&[]);
    let store = RedisStore::connect(server.url(), options()).unwrap();
    store.migrate().unwrap();
    let queue = store.queue("mail", QueueOptions::default()).unwrap();
    queue.push(NewJob::new("echo", &1).unwrap()).unwrap();
    let (_, rest) = PAGE.split_once("```bash\n").unwrap();
    let (script, _) = rest.split_once("```").unwrap();
    let ran = Command::new("bash").args(["-euc", script]).env("REDIS_URL", server.url()).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    for wanted in ["ready\n1\n", "used_memory:", "aof_last_write_status:ok", "role:master"] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    assert!(!["ERR", "WQ0"].iter().any(|word| said.contains(word)), "{said}");
}

#[test]
fn what_an_outbox_pushes_twice_is_one_job() {
    let (server, options) = bench();
    let queue = RedisStore::connect(server.url(), options).unwrap().queue("mail", QueueOptions::default()).unwrap();
    // The second time the program has forgotten what it has pushed, and the jobs have ended.
    for ready in [2, 0] {
        let store = Store::in_memory();
        let log = store.log("outbox").unwrap();
        outbox::take_orders(&store, &log, &["ann@example.org", "bob@example.org"]).unwrap();
        outbox::bring_over(&store, &log, &queue, 2).unwrap();
        assert_eq!(queue.counts().ready, ready);
        let runner = Runner::builder(&queue).on("receipt", |_job, _order: (u64, String)| Ok(Outcome::Done));
        assert_eq!(runner.drain(DrainLimits::default()).unwrap().finished, ready);
    }
}
