//! Timed changes without a worker: every call that reads sees them.

use crate::bench::*;
use std::time::Duration;
use waterline::Retry;
use waterline_queue::{JobState, Lease, Queue, QueueOptions, Retention, Waits};

/// A job whose lease expires after a minute.
fn silent(bench: &Bench) -> Lease {
    bench.push(job("a"));
    bench.claim()
}

fn options() -> QueueOptions {
    QueueOptions::default().lease(MINUTE).retry(Retry::fixed(SECOND)).retention(Retention::For(SECOND)).dead_for(SECOND)
}

pub(super) fn c20_every_read_notices_a_silent_worker(on: &Benches<'_>) {
    type Looks = fn(&Queue) -> bool;
    let looks: [(&str, Looks); 5] = [
        ("state", |queue| queue.state("a").unwrap() == Some(JobState::Scheduled)),
        ("get", |queue| queue.get("a").unwrap().unwrap().error.unwrap().contains("silent")),
        ("counts", |queue| (queue.counts().running, queue.counts().scheduled) == (0, 1)),
        ("list", |queue| queue.list(JobState::Running, None, 9).unwrap().is_empty()),
        ("status", |queue| queue.status().unwrap().waits == Waits::NothingReady { due_in: Some(SECOND) }),
    ];
    for (name, sees) in looks {
        let bench = on.bench_with(options());
        let _lease = silent(&bench);
        bench.clock.advance(MINUTE);
        assert!(sees(&bench.queue), "{name}");
    }
}

pub(super) fn expired_rows_are_neither_shown_nor_counted(on: &Benches<'_>) {
    let bench = on.bench_with(options());
    bench.finished("finished");
    bench.running("dead").bury("no way").unwrap();
    bench.push(job("expires").expires(2 * SECOND));
    bench.push(job("due").delay(SECOND));
    bench.clock.advance(SECOND);
    let gone = [None, None];
    assert_eq!(bench.states(["finished", "dead"]), gone);
    assert_eq!((bench.queue.counts().finished, bench.queue.counts().dead), (0, 0));
    assert_eq!(bench.states(["expires", "due"]), [Some(JobState::Ready), Some(JobState::Ready)]);
    bench.clock.advance(SECOND);
    assert_eq!((bench.state("expires"), bench.queue.counts().dead), (Some(JobState::Dead), 1));
}

pub(super) fn a_finished_job_shows_its_failures_and_last_error(on: &Benches<'_>) {
    let bench = on.bench_with(QueueOptions::default().retry(Retry::fixed(Duration::ZERO)));
    bench.running("a").retry("it fails").unwrap();
    bench.finish("a");
    let info = bench.info("a");
    assert_eq!((info.state, info.failures, info.error.as_deref()), (JobState::Finished, 1, Some("it fails")));
    // Pushed anew, it has no failures.
    bench.push(job("a"));
    assert_eq!((bench.info("a").failures, bench.info("a").error), (0, None));
}
