//! A machine without a thread to give: each start returns the error, and none waits for a thread.

use common::database::Database;
use common::eventually;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use waterline::{Consumer, Error, MemoryJobs, MemoryProgress, OnExhausted, Progress, Store};

/// More than the address space, so no thread gets a stack.
const STACK: &str = "1000000000000000";

#[test]
fn a_start_without_a_thread_returns_the_error() {
    let child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "no_threads::starts_without_a_thread",
            "--include-ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env("RUST_MIN_STACK", STACK)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Killed(child);
    eventually("the end of the starts", || child.0.try_wait().unwrap().is_some());
    let mut said = String::new();
    child.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    child.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("each start has returned"), "{said}");
}

/// Kills a hanging child when the test fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn refused<P: Progress>(progress: P, park: bool, standby: bool) {
    let jobs: MemoryJobs<u64> = (0..3).collect();
    let mut builder = Consumer::builder(jobs, progress);
    if park {
        builder = builder.on_exhausted(OnExhausted::Park { budget: 1 });
    }
    if standby {
        builder = builder.standby();
    }
    let started = builder.start(|_| Ok(()));
    assert!(matches!(started, Err(Error::Spawn { .. })), "{started:?}");
}

#[test]
#[ignore = "a child of the test above"]
fn starts_without_a_thread() {
    if std::env::var("RUST_MIN_STACK").is_ok_and(|stack| stack == STACK) {
        refused(MemoryProgress::new(), false, false);
        let database = Database::default();
        for park in [false, true] {
            refused(Store::in_memory().progress("p"), park, false);
            refused(database.engine().keeping_records(), park, false);
            database.hold(true);
            refused(database.engine().keeping_records(), park, true);
            database.hold(false);
        }
        println!("each start has returned");
    }
}
