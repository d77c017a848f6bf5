//! A store in an SQLite file of the user's, beside the user's own tables.

use crate::program::{At, json};
use std::path::PathBuf;
use tempfile::TempDir;
use waterline::{Consumer, MemoryJobs, Store};
use waterline_queue::{NewJob, Queue, QueueOptions};

/// A file with a table of the user's.
fn file() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("app.db");
    let mine = rusqlite::Connection::open(&file).unwrap();
    mine.execute_batch("CREATE TABLE heights (name TEXT PRIMARY KEY); INSERT INTO heights VALUES ('k2')").unwrap();
    (directory, file)
}

#[test]
fn an_attached_store_is_read_and_changed() {
    let (_directory, file) = file();
    let store = Store::attach_sqlite(&file).unwrap();
    let jobs: MemoryJobs<u64> = (0..3).collect();
    Consumer::builder(jobs, store.progress("blocks")).stop_at(2).start(|_| Ok(())).unwrap().join().unwrap();
    let mail = Queue::open(&store, "mail", QueueOptions::default()).unwrap();
    mail.push(NewJob::new("welcome", "ann").unwrap().id("ann")).unwrap();
    let at = At::store(&file);
    // This process has it open.
    let list = at.text("list");
    let holder = format!("the process {} (", std::process::id());
    assert!(list.contains("blocks") && (!cfg!(target_os = "linux") || list.contains(&holder)), "{list}");
    at.refused("pause mail --yes", 1, &["nothing was changed", "has the store at", "app.db"]);
    drop((mail, store));
    assert!(at.text("jobs mail").contains("ann"));
    let doctor = at.call("doctor --json");
    assert!(json(&doctor.out).iter().any(|found| found["name"] == "mail"), "{doctor:?}");
    assert_eq!(at.call("pause mail --yes").code, 0);
    assert_eq!(at.records("queues")[0]["paused"], true);
    let mine = rusqlite::Connection::open(&file).unwrap();
    assert_eq!(mine.query_row("SELECT name FROM heights", [], |row| row.get::<_, String>(0)).unwrap(), "k2");
}

#[test]
fn a_file_without_our_tables_is_refused_unchanged() {
    let (directory, foreign) = file();
    let text = directory.path().join("notes.txt");
    std::fs::write(&text, "no database").unwrap();
    let names = || {
        let mut names: Vec<_> =
            std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let (before, there) = ([&foreign, &text].map(|file| std::fs::read(file).unwrap()), names());
    for line in ["list", "queues", "doctor", "top", "pause mail --yes", "seek blocks 1 --new --reason no --yes"] {
        for file in [&foreign, &text] {
            let answer = At::store(file).call(line);
            assert_eq!((answer.code, answer.error.lines().count()), (1, 1), "{line}: {answer:?}");
        }
    }
    At::store(&foreign).refused("list", 1, &["has no tables of waterline, and is left as it is"]);
    assert_eq!(([&foreign, &text].map(|file| std::fs::read(file).unwrap()), names()), (before, there));
}
