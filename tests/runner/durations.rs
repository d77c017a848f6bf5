//! The durations of the jobs of a queue: the averages, the event that names them, and their record.

use common::queues::{DAY, SECOND, noon};
use common::{Place, eventually};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use waterline::queue::{
    Clock, DrainLimits, NewJob, Outcome, Queue, QueueEvent, QueueOptions, Reached, Runner, RunnerBuilder, Summary,
};
use waterline::testing::FaultyStore;
use waterline::{BoxError, Store};

fn clock() -> Clock {
    Clock::manual(noon())
}

fn open(store: &Store, clock: &Clock) -> Queue {
    Queue::open(store, "q", QueueOptions::default().clock(clock.clone())).unwrap()
}

/// Runs this many jobs of a kind, each for so long.
fn run(queue: &Queue, clock: &Clock, kind: &str, took: Duration, jobs: u64) -> Summary {
    queue.push_all((0..jobs).map(|_| NewJob::new(kind, &()).unwrap())).unwrap();
    drain(queue, clock, kind, took, |builder| builder)
}

fn drain(
    queue: &Queue,
    clock: &Clock,
    kind: &str,
    took: Duration,
    with: impl FnOnce(RunnerBuilder) -> RunnerBuilder,
) -> Summary {
    let clock = clock.clone();
    let builder = Runner::builder(queue).max_processing(1).on(kind, move |job, ()| -> Result<Outcome, BoxError> {
        clock.advance(took);
        if job.id() == "fails" { Err("no".into()) } else { Ok(Outcome::Done) }
    });
    with(builder).drain(DrainLimits::default()).unwrap()
}

/// The count, the mean and the last duration of a kind, in seconds.
fn seconds(queue: &Queue, kind: &str) -> Option<(u64, u64, u64)> {
    queue.durations().get(kind).map(|of| (of.count, of.mean.as_secs(), of.last.as_secs()))
}

#[test]
fn q36_each_kind_has_an_average_of_its_attempts_that_succeeded() {
    let (clock, store) = (clock(), Store::in_memory());
    let queue = open(&store, &clock);
    assert!(queue.durations().is_empty());
    run(&queue, &clock, "short", SECOND, 3);
    run(&queue, &clock, "long", SECOND * 9, 1);
    run(&queue, &clock, "short", SECOND * 5, 1);
    queue.push(NewJob::new("short", &()).unwrap().id("fails")).unwrap();
    assert_eq!(drain(&queue, &clock, "short", SECOND * 60, |builder| builder).retried, 1);
    assert_eq!((seconds(&queue, "short"), seconds(&queue, "long")), (Some((4, 2, 5)), Some((1, 9, 9))));
}

#[test]
fn q35_the_event_of_a_beginning_names_the_duration_to_be_expected() {
    let (clock, store) = (clock(), Store::in_memory());
    let (queue, seen) = (open(&store, &clock), Arc::new(Mutex::new(Vec::new())));
    queue.push_all((0..3).map(|_| NewJob::new("k", &()).unwrap())).unwrap();
    let sees = seen.clone();
    let summary = drain(&queue, &clock, "k", SECOND * 4, |builder| {
        builder.observe(move |event| {
            if let QueueEvent::AttemptBegun { expected, .. } = event {
                sees.lock().push(*expected);
            }
        })
    });
    assert_eq!(summary.reached, Reached::NothingReady);
    assert_eq!(*seen.lock(), [None, Some(SECOND * 4), Some(SECOND * 4)]);
}

#[test]
fn q36_averages_survive_a_restart_and_cost_no_write_and_few_records() {
    let (clock, faulty) = (clock(), FaultyStore::new().unwrap());
    let queue = open(&faulty.store(), &clock);
    let writes = faulty.writes();
    run(&queue, &clock, "k", SECOND * 2, 8);
    // The push, a claim, and one write for each end with the next claim.
    assert_eq!(faulty.writes() - writes, 1 + 1 + 8);
    assert_eq!(seconds(&queue, "k").unwrap().0, 8);
    drop(queue);
    let faulty = faulty.after_crash().unwrap();
    let queue = open(&faulty.store(), &clock);
    // Records were due with the first end and ten seconds later, that is with the sixth one.
    assert_eq!(seconds(&queue, "k"), Some((6, 2, 2)));
    run(&queue, &clock, "k", SECOND * 2, 1);
    assert_eq!(seconds(&queue, "k"), Some((7, 2, 2)));
}

#[test]
fn q36_an_average_without_a_success_for_30_days_is_gone_with_its_record() {
    let (clock, store) = (clock(), Store::in_memory());
    run(&open(&store, &clock), &clock, "k", SECOND, 1);
    clock.advance(DAY * 30 - SECOND);
    assert_eq!(seconds(&open(&store, &clock), "k"), Some((1, 1, 1)));
    clock.advance(SECOND);
    // The writer may have the queue that was open before for a moment longer.
    eventually("the average to be gone", || open(&store, &clock).durations().is_empty());
    clock.set_wall(UNIX_EPOCH);
    assert!(open(&store, &clock).durations().is_empty(), "its record is deleted");
}

#[test]
fn an_attempt_whose_job_was_removed_stores_and_counts_no_duration() {
    let (clock, faulty) = (clock(), FaultyStore::new().unwrap());
    let queue = open(&faulty.store(), &clock);
    queue.push(NewJob::new("k", &()).unwrap().id("a")).unwrap();
    let removes = queue.clone();
    let builder = Runner::builder(&queue).on("k", move |job, ()| {
        removes.remove(job.id())?;
        Ok(Outcome::Done)
    });
    assert_eq!(builder.drain(DrainLimits::default()).unwrap().lost, 1);
    assert!(queue.durations().is_empty());
    drop(queue);
    assert!(open(&faulty.after_crash().unwrap().store(), &clock).durations().is_empty());
}

#[test]
fn q36_averages_survive_a_restart() {
    let (clock, place) = (clock(), Place::default());
    run(&open(&place.open(), &clock), &clock, "k", SECOND * 3, 2);
    assert_eq!(seconds(&open(&place.open(), &clock), "k"), Some((1, 3, 3)));
}
