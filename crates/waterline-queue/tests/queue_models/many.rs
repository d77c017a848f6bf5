//! A queue with so many jobs that its ready log entries are deleted in large ranges.

use waterline::Store;
use waterline_queue::{DrainLimits, JobState, NewJob, Outcome, Queue, QueueOptions, Retention, Runner};

/// More than two ranges that are deleted at once.
const JOBS: u64 = 25_000;

#[test]
fn deleting_claimed_entries_in_ranges_loses_no_job() {
    let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default().retention(Retention::Drop)).unwrap();
    for block in 0..JOBS / 250 {
        let jobs = (block * 250..(block + 1) * 250).map(|n| NewJob::new("k", &n).unwrap());
        assert_eq!(queue.push_all(jobs).unwrap().len(), 250);
    }
    let (say, said) = crossbeam_channel::unbounded();
    let runner = Runner::builder(&queue).max_processing(2).on("k", move |_, n: u64| {
        say.send(n)?;
        Ok(Outcome::Done)
    });
    assert_eq!(runner.drain(DrainLimits::default()).unwrap().finished, JOBS);
    let mut ran: Vec<u64> = said.try_iter().collect();
    ran.sort_unstable();
    assert!(ran.into_iter().eq(0..JOBS));
    assert!(queue.list(JobState::Ready, None, 1).unwrap().is_empty());
    assert_eq!(queue.counts().ready, 0);
}
