//! Reasons to wait, other than the next job, that a status names; and its fields.

use common::*;
use crossbeam_channel::{Receiver, bounded};
use std::time::{Duration, SystemTime};
use waterline::{Blocked, Clock, MemoryProgress, Retry, State};

#[test]
fn a_stop_while_paused_names_the_awaited_job() {
    let (worker, stage) = manual_worker();
    let consumer = builder(numbers(2), &MemoryProgress::new())
        .max_processing(2)
        .retry(Retry::fixed(HOUR))
        .start_worker(worker)
        .unwrap();
    let handle = consumer.handle();
    let mut running = stage.take(2);
    running.remove(&0).unwrap().fail("tried again in an hour");
    until(&handle, "the failure", |status| status.failed == 1);
    handle.pause();
    assert_eq!(handle.status().blocked, Blocked::Paused);
    handle.request_stop();
    let status = handle.status();
    assert_eq!(status.state, State::Stopping);
    assert!(matches!(status.blocked, Blocked::Running { index: 1, .. }), "{status:#?}");
    running.remove(&1).unwrap().succeed();
    consumer.stop().unwrap();
}

/// An error whose destructor waits for the test.
#[derive(Debug)]
struct Clinging(Receiver<()>);

impl std::fmt::Display for Clinging {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("it clings")
    }
}

impl std::error::Error for Clinging {}

impl Drop for Clinging {
    fn drop(&mut self) {
        let _ = self.0.recv_timeout(LONG);
    }
}

#[test]
fn a_hanging_destructor_is_named_before_a_due_retry() {
    let ((hold, held), time) = (bounded::<()>(0), Time::new());
    let consumer = builder(numbers(1), &MemoryProgress::new())
        .clock(time.clock())
        .max_processing(1)
        .retry(Retry::fixed(Duration::ZERO))
        .stop_at(0)
        .start(move |job| if job.attempt == 1 { Err(Box::new(Clinging(held.clone()))) } else { Ok(()) })
        .unwrap();
    let handle = consumer.handle();
    let is_named = |status: &waterline::Status| matches!(status.blocked, Blocked::Threads { .. });
    let status = time.until(Duration::from_millis(100), &handle, "the finding", is_named);
    assert!(matches!(status.blocked, Blocked::Threads { busy: 1, .. }), "{status:#?}");
    drop(hold);
    consumer.join().unwrap();
}

/// Programs match these fields without `..`, so a new field would break them: a reason with more
/// to say needs a variant of its own.
#[test]
fn blocked_variants_keep_their_public_fields() {
    let index_of = |blocked: &Blocked| match blocked {
        Blocked::No | Blocked::CaughtUp | Blocked::Paused => None,
        Blocked::Running { index, attempt: _, elapsed: _ }
        | Blocked::Retrying { index, attempt: _, retry_in: _, error: _ }
        | Blocked::Missing { index }
        | Blocked::Source { index, error: _ }
        | Blocked::Upstream { index }
        | Blocked::Halted { index, error: _ } => Some(*index),
        Blocked::Progress { error: _ } => None,
        Blocked::AheadOfSource { last_processed, head: _ } => Some(*last_processed),
        _ => None,
    };
    assert_eq!(index_of(&Blocked::Missing { index: 7 }), Some(7));
    assert_eq!(index_of(&Blocked::Progress { error: "full".to_owned() }), None);
}

#[test]
fn a_status_serializes_to_json() {
    let (worker, stage) = manual_worker();
    let clock = Clock::manual(SystemTime::UNIX_EPOCH);
    let consumer = builder(numbers(3), &MemoryProgress::new())
        .max_processing(2)
        .clock(clock.clone())
        .start_worker(worker)
        .unwrap();
    let handle = consumer.handle();
    let mut running = stage.take(2);
    clock.advance(Duration::from_millis(1500));
    let status = handle.status();
    assert_eq!(
        serde_json::json!(status),
        serde_json::json!({
            "state": "running", "head": 2, "last_processed": null, "lag": 3, "next": 2, "processing": 2,
            "done_ahead": 0, "unsaved": 0, "blocked": "running", "source_fails_for": null, "ended_upstream": null, "done": 0, "failed": 0,
            "retries": 0, "saves": 0, "absent": 0, "parked": 0, "behind": 0,
            "oldest": { "index": 0, "attempt": 1, "elapsed": 1500 },
            "source": {
                "made": status.source.made, "failed": 0, "failed_in_a_row": 0, "retry_in": null, "timeout": null,
            },
            "text": status.to_string(),
        })
    );
    handle.request_stop();
    running.remove(&0).unwrap().succeed();
    running.remove(&1).unwrap().succeed();
    consumer.stop().unwrap();
    let status = serde_json::json!(handle.status());
    assert_eq!((&status["state"], &status["oldest"]), (&"finished".into(), &serde_json::Value::Null));
}
