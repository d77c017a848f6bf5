//! The example `mailer`, whose process is killed and dies of one of its mails, and still accounts
//! for every mail.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;
use waterline::{Retry, Store};
use waterline_queue::{Accept, JobState, NewJob, Queue, QueueOptions, Retention};

#[test]
fn crashes_lose_no_mail_and_blame_no_neighbour() {
    let dir = tempfile::tempdir().unwrap();
    common::make_in(dir.path().join("store"));
    let text = succeeded(&example(Some(dir.path()), &["--orders", "300"]));
    // One life is killed from outside, four die of the mail, and the last ends well. A late kill
    // may meet a life that has died of the mail already.
    let lives: Vec<&str> = text.lines().filter(|line| line.starts_with("life ")).collect();
    assert!((5..=6).contains(&lives.len()) && lives.last().unwrap().ends_with("exit status: 0"), "{text}");
    assert!(lives.iter().rev().skip(1).all(|line| line.contains("signal")), "{text}");
    assert!(text.contains("dead letters (2):"), "{text}");
    let says = |order: &str, why: &str| text.lines().any(|line| line.contains(order) && line.contains(why));
    // Its job may have been running when the process died.
    assert!(says("order 60, ", ": 1 failures, ") && says("order 60, ", " crashes: \"nobody\" is no address"), "{text}");
    assert!(says("order 200, ", ": 0 failures, 4 crashes: its process died 4 times"), "{text}");
    assert!(text.lines().last().unwrap().starts_with("verified: 300 pushed = 298 sent + 2 dead"), "{text}");
    // Another life has nothing left to do.
    succeeded(&example(Some(dir.path()), &["--orders", "300", "--send"]));
    succeeded(&example(Some(dir.path()), &["--orders", "300", "--verify"]));
}

#[test]
fn one_run_in_memory_sends_every_mail() {
    let text = succeeded(&example(None, &["--orders", "70", "--in-memory"]));
    assert!(text.lines().last().unwrap().starts_with("verified: 70 pushed = 69 sent + 1 dead"), "{text}");
    assert!(text.contains("   10 attempts failed, and were made again"), "{text}");
}

#[test]
fn lost_and_repeated_mails_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    common::make_in(dir.path().join("store"));
    succeeded(&example(Some(dir.path()), &["--orders", "30"]));
    succeeded(&example(Some(dir.path()), &["--orders", "30", "--verify"]));

    let outbox = dir.path().join("outbox.txt");
    let text = std::fs::read_to_string(&outbox).unwrap();
    let twice =
        format!("{text}7 customer-7@example.org\n7 customer-7@example.org\n7 customer-7@example.org\n7 x\n7 x\n");
    std::fs::write(&outbox, twice).unwrap();
    // A kill may have made it leave twice already.
    let left = 5 + text.lines().filter(|line| line.starts_with("7 ")).count();
    refused(dir.path(), &format!("the mail of order 7 is counted 1 times, and left {left} times"));
    std::fs::write(&outbox, &text).unwrap();

    let change = |change: &dyn Fn(&Queue)| {
        let store = Store::open(dir.path().join("store")).unwrap();
        let retry = Retry::exponential(Duration::from_millis(2), Duration::from_millis(20)).max_attempts(5);
        let options = QueueOptions::default().retry(retry).retention(Retention::Keep);
        change(&Queue::open(&store, "mail", options).unwrap());
    };
    let job = |queue: &Queue| queue.list(JobState::Finished, None, 1).unwrap().remove(0);
    change(&|queue| queue.remove(job(queue).id).unwrap());
    refused(dir.path(), "29 of 30 mails are done");
    change(&|queue| {
        // With another job's payload, one order has two mails, and one has none.
        let payload: (u64, String) = job(queue).payload().unwrap();
        let id = queue.push(NewJob::new("mail", &payload).unwrap()).unwrap().id;
        let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
        assert_eq!(lease.id(), id);
        lease.finish(Some(1.into())).unwrap();
    });
    refused(dir.path(), "has a second mail");
}

fn example(directory: Option<&Path>, more: &[&str]) -> Output {
    Command::new(crate::example("mailer")).args(directory).args(more).output().unwrap()
}

/// Verifies 30 orders, which must fail with these words.
#[track_caller]
fn refused(directory: &Path, says: &str) {
    let output = example(Some(directory), &["--orders", "30", "--verify"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains(says), "{text}");
}

#[track_caller]
fn succeeded(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}\n{errors}");
    text.into_owned()
}
