//! Single rules of queues that a random test meets too seldom, or not at all.

use std::time::Duration;
use waterline::Store;
use waterline::queue::{Accept, NewJob, Queue, QueueOptions, Retention};

fn job(payload: u64) -> NewJob {
    NewJob::new("k", &payload).unwrap()
}

/// Entries of a ready log are deleted by the range, 10,000 at a time.
#[test]
fn the_job_at_the_end_of_a_range_that_is_deleted_is_claimed() {
    let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default()).unwrap();
    for _ in 0..2 {
        queue.push_all((0..9_999).map(job)).unwrap();
        assert_eq!(queue.purge().unwrap(), 9_999);
        queue.push_all([job(9_999), job(10_000)]).unwrap();
        for payload in [9_999, 10_000] {
            let mut lease = queue.accept(Accept::new()).unwrap().expect("a job is ready");
            assert_eq!(lease.payload::<u64>().unwrap(), payload);
            lease.finish(None::<&()>).unwrap();
        }
        assert_eq!(queue.counts().ready, 0);
    }
}

#[test]
fn a_retention_of_no_time_keeps_nothing_be_it_of_the_queue_or_of_the_job() {
    let nothing = Retention::For(Duration::ZERO);
    for (of_queue, of_job) in [(nothing, None), (Retention::Keep, Some(nothing))] {
        let options = QueueOptions::default().retention(of_queue);
        let queue = Queue::open(&Store::in_memory(), "q", options).unwrap();
        queue.push(of_job.into_iter().fold(job(1), NewJob::retention)).unwrap();
        let mut lease = queue.accept(Accept::new()).unwrap().expect("a job is ready");
        assert_eq!(lease.finish(None::<&()>).unwrap(), None);
    }
}
