//! Runners that begin no job: their slots are busy for long, or the queue is paused.

use super::*;
use crossbeam_channel::{bounded, unbounded};
use waterline_queue::{Outcome, Runner};

/// Returns all lines about a queue whose message contains this text.
fn told(queue: &str, part: &str) -> Vec<Line> {
    let lines = log().lines.lock();
    lines
        .iter()
        .filter(|line| line.get("queue").is_some_and(|of| of == queue) && line["message"].contains(part))
        .cloned()
        .collect()
}

#[test]
fn a_stalled_runner_is_logged_again_after_twice_the_time() {
    log();
    let (clock, options) = manual();
    let queue = Queue::open(&Store::in_memory(), "still", options).unwrap();
    let ((begun, begins), (end, ends)) = (unbounded(), bounded::<()>(0));
    let runner = Runner::builder(&queue).on("k", move |job, _: String| {
        begun.send(job.id().to_owned())?;
        ends.recv()?;
        Ok(Outcome::Done)
    });
    let runner = runner.max_processing(1).start().unwrap();
    queue.push_all([job("h0"), job("h1")]).unwrap();
    assert_eq!(begins.recv().unwrap(), "h0");
    clock.advance(MINUTE * 12);
    let still = || told("still", "the queue stands still");
    common::eventually("the line", || !still().is_empty());
    let line = &still()[0];
    let field = |name: &str| line.get(name).map(String::as_str);
    let fields = ["level", "slots", "id", "kind", "attempt", "ran"].map(field);
    assert_eq!(fields, ["WARN", "1", "h0", "k", "1", "12m"].map(Some), "{line:?}");
    let text =
        "all slots of its runner here are busy, and no job has ended for 12m; find out what its oldest job waits for";
    assert!(line["message"].contains(text), "{line:?}");
    // The next line is due after sixteen minutes.
    clock.advance(MINUTE * 3);
    clock.advance(MINUTE);
    common::eventually("the next line", || still().len() == 2);
    assert_eq!(still()[1]["ran"], "16m");
    drop(end);
    runner.stop().unwrap();
    assert_eq!(still().len(), 2);
}

#[test]
fn each_pause_a_runner_meets_is_logged_once() {
    log();
    let queue = Queue::open(&Store::in_memory(), "paused", QueueOptions::default()).unwrap();
    let runner = Runner::builder(&queue).on("k", |_, _: String| Ok(Outcome::Done)).start().unwrap();
    let paused = || told("paused", "the queue is paused, so no job is claimed: resume it");
    for pause in 1..3 {
        queue.pause(None).unwrap();
        queue.push(job(&pause.to_string())).unwrap();
        common::eventually("the line", || paused().len() == pause);
        // The runner meets the same pause again, and logs nothing more.
        queue.push(job(&format!("{pause} more"))).unwrap();
        queue.resume().unwrap();
        common::eventually("all to be done", || queue.counts().finished == 2 * pause as u64);
        assert_eq!(paused().len(), pause);
    }
    runner.stop().unwrap();
    assert_eq!(paused()[0]["level"], "INFO");
}
