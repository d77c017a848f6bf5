//! Runners whose jobs do not end: who is told, and when.

use crate::bench::*;
use crate::runner::of;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use std::time::Duration;
use waterline::{BoxError, Verdict};
use waterline_queue::{DrainLimits, Outcome, QueueEvent, Runner, RunnerBuilder, Waits};

/// What an observer hears: the queue, the slots and the oldest job, for how long that has run, and
/// for how long no job has ended.
type Stalled = (String, Duration, Duration);

/// A runner of jobs that end, by an error, when the test says so.
struct Long {
    runner: Runner,
    begins: Receiver<String>,
    end: Sender<()>,
    says: Receiver<Stalled>,
}

fn long(bench: &Bench, kind: &str, slots: usize) -> Long {
    let ((begun, begins), (end, ends), (said, says)) = (unbounded(), bounded(0), unbounded());
    let handler = move |job: &waterline_queue::Running, ()| -> Result<Outcome, BoxError> {
        begun.send(job.id().to_owned())?;
        let _ = ends.recv();
        Err("it did not succeed".into())
    };
    let builder: RunnerBuilder = Runner::builder(&bench.queue).on(kind, handler).observe(move |event| {
        if let QueueEvent::Stalled { queue, slots, id, kind, attempt, elapsed, no_end, .. } = *event {
            said.send((format!("{queue} {slots} {id} {kind} {attempt}"), elapsed, no_end)).unwrap();
        }
    });
    Long { runner: builder.max_processing(slots).start().unwrap(), begins, end, says }
}

pub(super) fn a_runner_with_all_slots_busy_for_a_lease_says_so_and_again_only_after_twice_the_time(on: &Benches<'_>) {
    let bench = on.bench();
    let Long { runner, begins, end, says } = long(&bench, "k", 2);
    let (begun, said) = (|| begins.recv_timeout(LONG).unwrap(), || says.recv_timeout(LONG).unwrap());
    bench.push(of("k").id("a"));
    assert_eq!(begun(), "a");
    // One slot is free, so nothing stands still.
    bench.clock.advance(HOUR);
    bench.push(of("k").id("b"));
    assert_eq!(begun(), "b");
    bench.push(of("k").id("c"));
    let status = || bench.queue.status().unwrap();
    assert_eq!((status().verdict(), matches!(status().waits, Waits::Busy { slots: 2, .. })), (Verdict::Waits, true));
    bench.clock.advance(MINUTE - MILLI);
    bench.clock.advance(MILLI);
    assert_eq!(said(), ("q 2 a k 1".to_owned(), HOUR + MINUTE, MINUTE));
    let now = status();
    assert_eq!((now.verdict(), now.advice()[0].reason), (Verdict::NeedsYou, "stands_still"), "{now}");
    let sentence = now.sentence();
    let expected = "stands still: 2 slots are busy; the oldest, \"a\", runs for 61m, and no job has ended for 60.0s";
    assert!(sentence.contains(expected), "{sentence}");
    bench.clock.advance(MINUTE / 2);
    bench.clock.advance(MINUTE / 2);
    assert_eq!(said().2, 2 * MINUTE);
    bench.clock.advance(10 * MINUTE);
    assert_eq!(said().2, 12 * MINUTE, "one that slept says it once");
    // An end begins it anew.
    end.send_timeout((), LONG).unwrap();
    assert_eq!(begun(), "c");
    assert_ne!(status().advice()[0].reason, "stands_still");
    bench.clock.advance(MINUTE - MILLI);
    bench.clock.advance(MILLI);
    assert_eq!(said().2, MINUTE);
    drop(end);
    runner.stop().unwrap();
    assert!(says.is_empty());
}

pub(super) fn a_runner_of_jobs_that_take_long_stands_still_after_ten_of_their_usual_runs(on: &Benches<'_>) {
    let bench = on.bench();
    let clock = bench.clock.clone();
    bench.push(of("slow").id("usual"));
    let usual = Runner::builder(&bench.queue).on("slow", move |_, ()| {
        clock.advance(20 * SECOND);
        Ok(Outcome::Done)
    });
    assert_eq!(usual.drain(DrainLimits::default()).unwrap().finished, 1);
    let Long { runner, begins, end, says } = long(&bench, "slow", 1);
    bench.push(of("slow").id("a"));
    assert_eq!(begins.recv_timeout(LONG).unwrap(), "a");
    [60, 139, 1].into_iter().for_each(|seconds| bench.clock.advance(SECOND * seconds));
    assert_eq!(says.recv_timeout(LONG).unwrap(), ("q 1 a slow 1".to_owned(), 200 * SECOND, 200 * SECOND));
    drop(end);
    runner.stop().unwrap();
}
