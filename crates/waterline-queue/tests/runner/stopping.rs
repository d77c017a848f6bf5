//! Jobs that run while their runner stops: the process dies, or the stop cannot be noted.

use common::LONG;
use common::queues::{Bench, for_each_sort, handlers, noon, until};
use crossbeam_channel::{bounded, unbounded};
use std::time::Duration;
use waterline::Retry;
use waterline::testing::FaultyStore;
use waterline_queue::{Clock, JobState, NewJob, Outcome, QueueError, QueueOptions};

/// Benches whose jobs die of their first failure or crash.
fn benches() -> [Bench; 2] {
    common::watch();
    let (clock, options) = (Clock::manual(noon()), QueueOptions::default().retry(Retry::none()).max_crashes(1));
    let disk = Bench::on_disk(FaultyStore::new().unwrap(), &clock, options.clone());
    [disk, Bench::on_model(&clock, options)]
}

fn push(bench: &Bench, kind: &str) {
    bench.push(NewJob::new(kind, &()).unwrap().id("a"));
}

/// Asserts that the job `a` is ready, with only what its last attempt left.
#[track_caller]
fn is_put_back(bench: &Bench, kind: &str) {
    let info = bench.info("a");
    assert_eq!((info.state, info.failures, info.crashes, info.error), (JobState::Ready, 0, 0, None), "{kind}");
    assert_eq!((info.data, info.progress.map(|it| it.fraction)), (Some(7.into()), Some(0.5)), "{kind}");
}

#[test]
fn a_process_that_dies_during_a_stop_counts_no_crash() {
    let lives = |mut bench: Bench, kind: &str| {
        push(&bench, kind);
        let begin = |bench: &Bench| {
            let ((begun, begins), (release, is_released)) = (unbounded(), bounded::<()>(0));
            let runner = handlers(bench, move |_| {
                begun.send(())?;
                let _ = is_released.recv();
                Ok(Outcome::Done)
            });
            let runner = runner.start().unwrap();
            begins.recv_timeout(LONG).unwrap();
            (runner, release)
        };
        for _ in 0..3 {
            let (runner, _release) = begin(&bench);
            let stopped = runner.stop_within(Duration::ZERO);
            assert!(matches!(&stopped, Err(QueueError::StopTimeout { running }) if *running == ["a"]), "{stopped:?}");
            bench = bench.next_life();
            is_put_back(&bench, kind);
        }
        // This runner is not asked to stop.
        let (runner, release) = begin(&bench);
        let died = bench.next_life();
        assert_eq!(died.state("a"), Some(JobState::Dead), "{kind}");
        drop(release);
        runner.stop().unwrap();
    };
    for_each_sort(|kind| benches().into_iter().for_each(|bench| lives(bench, kind)));
}

/// Noting the stop is a write, which may fail.
#[test]
fn a_runner_stops_even_if_the_stop_cannot_be_noted() {
    for_each_sort(|kind| {
        let disk = FaultyStore::new().unwrap();
        let bench = Bench::on(disk.store(), &Clock::manual(noon()), QueueOptions::default());
        push(&bench, kind);
        let ((begun, begins), (release, is_released)) = (unbounded(), bounded::<()>(0));
        let runner = handlers(&bench, move |_| {
            begun.send(())?;
            let _ = is_released.recv();
            Ok(Outcome::Done)
        });
        let runner = runner.start().unwrap();
        begins.recv_timeout(LONG).unwrap();
        disk.fail(..);
        assert!(matches!(runner.stop_within(Duration::ZERO), Err(QueueError::StopTimeout { .. })));
        disk.heal();
        drop(release);
        // A late finisher changes nothing.
        if kind != "deferred" {
            until(&bench.queue, "a", JobState::Finished);
        }
    });
}
