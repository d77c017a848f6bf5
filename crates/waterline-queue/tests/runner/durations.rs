//! The average durations of jobs, and their record, over restarts.

use common::queues::{DAY, SECOND, noon};
use common::{Place, eventually};
use std::time::{Duration, UNIX_EPOCH};
use waterline::Store;
use waterline::testing::FaultyStore;
use waterline_queue::{Clock, DrainLimits, NewJob, Outcome, Queue, QueueOptions, Runner};

fn clock() -> Clock {
    Clock::manual(noon())
}

fn open(store: &Store, clock: &Clock) -> Queue {
    Queue::open(store, "q", QueueOptions::default().clock(clock.clone())).unwrap()
}

/// Runs this many jobs of a kind, each for this long.
fn run(queue: &Queue, clock: &Clock, kind: &str, took: Duration, jobs: u64) {
    queue.push_all((0..jobs).map(|_| NewJob::new(kind, &()).unwrap())).unwrap();
    let clock = clock.clone();
    let builder = Runner::builder(queue).max_processing(1).on(kind, move |_, ()| {
        clock.advance(took);
        Ok(Outcome::Done)
    });
    builder.drain(DrainLimits::default()).unwrap();
}

/// Returns the count, the mean and the last duration of a kind, in seconds.
fn seconds(queue: &Queue, kind: &str) -> Option<(u64, u64, u64)> {
    queue.durations().get(kind).map(|of| (of.count, of.mean.as_secs(), of.last.as_secs()))
}

#[test]
fn q36_averages_cost_no_write_and_survive_a_crash() {
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
    // The record was due with the first end, and ten seconds later with the sixth.
    assert_eq!(seconds(&queue, "k"), Some((6, 2, 2)));
    run(&queue, &clock, "k", SECOND * 2, 1);
    assert_eq!(seconds(&queue, "k"), Some((7, 2, 2)));
}

#[test]
fn q36_an_average_expires_30_days_after_its_last_success() {
    let (clock, store) = (clock(), Store::in_memory());
    run(&open(&store, &clock), &clock, "k", SECOND, 1);
    clock.advance(DAY * 30 - SECOND);
    assert_eq!(seconds(&open(&store, &clock), "k"), Some((1, 1, 1)));
    clock.advance(SECOND);
    // The writer may hold the earlier queue a moment longer.
    eventually("the average to be gone", || open(&store, &clock).durations().is_empty());
    clock.set_wall(UNIX_EPOCH);
    assert!(open(&store, &clock).durations().is_empty(), "its record is deleted");
}

#[test]
fn a_removed_job_records_no_duration() {
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
