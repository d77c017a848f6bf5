//! Runners whose jobs do not end: what is reported, and when.

use crate::bench::*;
use crate::runner::of;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use std::time::Duration;
use waterline::{BoxError, Verdict};
use waterline_queue::{DrainLimits, Outcome, QueueEvent, QueueOptions, Runner, RunnerBuilder, Waits};

/// The queue, slots and oldest job; how long that has run; how long no job has ended.
type Stalled = (String, Duration, Duration);

/// A runner of jobs that fail when the test tells them to.
struct Long {
    runner: Runner,
    begins: Receiver<String>,
    end: Sender<()>,
    says: Receiver<Stalled>,
}

fn long(bench: &Bench, kinds: &[&str], slots: usize) -> Long {
    let ((begun, begins), (end, ends), (said, says)) = (unbounded(), bounded(0), unbounded());
    let handler = move |job: &waterline_queue::Running, ()| -> Result<Outcome, BoxError> {
        begun.send(job.id().to_owned())?;
        let _ = ends.recv();
        Err("it did not succeed".into())
    };
    let handled = |builder: RunnerBuilder, kind: &&str| builder.on(*kind, handler.clone());
    let builder = kinds.iter().fold(Runner::builder(&bench.queue), handled).observe(move |event| {
        if let QueueEvent::Stalled { queue, slots, id, kind, attempt, elapsed, no_end, .. } = *event {
            said.send((format!("{queue} {slots} {id} {kind} {attempt}"), elapsed, no_end)).unwrap();
        }
    });
    Long { runner: builder.max_processing(slots).start().unwrap(), begins, end, says }
}

pub(super) fn a_stall_is_reported_after_a_lease_then_at_twice_the_time(on: &Benches<'_>) {
    let bench = on.bench();
    let Long { runner, begins, end, says } = long(&bench, &["k"], 2);
    let (begun, said) = (|| begins.recv_timeout(LONG).unwrap(), || says.recv_timeout(LONG).unwrap());
    bench.push(of("k").id("a"));
    assert_eq!(begun(), "a");
    // One slot is free, so this is no stall.
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
    // An end starts the time anew.
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

pub(super) fn long_jobs_stall_a_runner_after_ten_usual_runs(on: &Benches<'_>) {
    let bench = on.bench();
    let clock = bench.clock.clone();
    bench.push(of("slow").id("usual"));
    let usual = Runner::builder(&bench.queue).on("slow", move |_, ()| {
        clock.advance(20 * SECOND);
        Ok(Outcome::Done)
    });
    assert_eq!(usual.drain(DrainLimits::default()).unwrap().finished, 1);
    let Long { runner, begins, end, says } = long(&bench, &["slow", "k"], 2);
    // A job of a kind without a usual run has the other slot.
    for (kind, id) in [("slow", "a"), ("k", "b")] {
        bench.push(of(kind).id(id));
        assert_eq!(begins.recv_timeout(LONG).unwrap(), id);
        bench.clock.advance(SECOND);
    }
    bench.push(of("k").id("c"));
    [59, 139].into_iter().for_each(|seconds| bench.clock.advance(SECOND * seconds));
    let status = bench.queue.status().unwrap();
    assert!(matches!(status.waits, Waits::Busy { slots: 2, .. }), "{status}");
    bench.clock.advance(SECOND);
    assert_eq!(says.recv_timeout(LONG).unwrap(), ("q 2 a slow 1".to_owned(), 201 * SECOND, 200 * SECOND));
    drop(end);
    runner.stop().unwrap();
}

pub(super) fn a_stall_with_fewer_slots_restarts_at_the_last_end(on: &Benches<'_>) {
    let bench = on.bench();
    let Long { runner, begins, end, says } = long(&bench, &["k"], 4);
    for id in ["a", "b", "c"] {
        bench.push(of("k").id(id));
        assert_eq!(begins.recv_timeout(LONG).unwrap(), id);
        bench.clock.advance(SECOND);
    }
    bench.clock.advance(HOUR - SECOND);
    runner.set_max_processing(2).unwrap();
    assert_eq!(says.recv_timeout(LONG).unwrap(), ("q 2 a k 1".to_owned(), HOUR + 2 * SECOND, HOUR));
    // The jobs that are left fill the slots.
    end.send_timeout((), LONG).unwrap();
    eventually("the end", || runner.processing() == 2);
    bench.clock.advance(MINUTE);
    assert_eq!(says.recv_timeout(LONG).unwrap().2, MINUTE);
    drop(end);
    runner.stop().unwrap();
}

pub(super) fn jobs_meant_to_run_forever_are_no_stall(on: &Benches<'_>) {
    let bench = on.bench_with(QueueOptions::default().heal_after(MINUTE));
    let Long { runner, begins, end, says } = long(&bench, &["k"], 1);
    bench.push(of("k").id("a"));
    assert_eq!(begins.recv_timeout(LONG).unwrap(), "a");
    bench.push(of("k").id("b"));
    bench.clock.advance(DAY);
    let status = bench.queue.status().unwrap();
    assert!(matches!(status.waits, Waits::Busy { slots: 1, .. }), "{status}");
    drop(end);
    runner.stop().unwrap();
    assert!(says.is_empty());
}
