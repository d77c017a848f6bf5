//! Calls of the queue that need a store of their own, or one that fails. The suite has the rest.

use common::HOUR;
use common::queues::{Bench, MINUTE, SECOND, job, noon, on_store};
use waterline::testing::FaultyStore;
use waterline::{Error, Store};
use waterline_queue::{Accept, Clock, JobState, Queue, QueueError, QueueOptions};

#[test]
fn a_lost_lease_says_so_even_if_the_disk_fails() {
    let faulty = FaultyStore::new().unwrap();
    let bench = Bench::on(faulty.store(), &Clock::manual(noon()), QueueOptions::default());
    let mut ended = bench.running("ended");
    ended.finish(None).unwrap();
    let mut silent = bench.running("silent");
    bench.push(job("due").delay(SECOND));
    bench.clock.advance(HOUR);
    faulty.fail(..);
    for lease in [&mut ended, &mut silent] {
        let refused = lease.finish(None);
        assert!(matches!(refused, Err(QueueError::Halt { .. })), "{}: {refused:?}", lease.id());
    }
    faulty.heal();
}

#[test]
fn a_failed_pause_or_resume_names_itself() {
    let faulty = FaultyStore::new().unwrap();
    let bench = Bench::on(faulty.store(), &Clock::manual(noon()), QueueOptions::default());
    bench.queue.pause(None).unwrap();
    faulty.fail(..);
    let says = |answer: Result<(), QueueError>| answer.unwrap_err().report();
    let (resumed, paused) = (says(bench.queue.resume()), says(bench.queue.pause(None)));
    assert!(resumed.contains("resume a queue") && paused.contains("pause a queue"), "{resumed}; {paused}");
    faulty.heal();
}

#[test]
fn a_push_into_another_stores_queue_is_refused() {
    on_store(|bench| {
        let other = Queue::open(&Store::in_memory(), "q", QueueOptions::default()).unwrap();
        let refused = bench.store().write(|effects| other.push_with(effects, job("a")).map(drop));
        assert!(matches!(refused, Err(Error::Config(_))), "{refused:?}");
        assert_eq!(other.counts().ready + bench.queue.counts().ready, 0);
    });
}

#[test]
fn a_failing_store_changes_nothing_and_keeps_the_lease() {
    let faulty = FaultyStore::new().unwrap();
    let clock = Clock::manual(noon());
    let queue = Queue::open(&faulty.store(), "q", QueueOptions::default().clock(clock.clone())).unwrap();
    queue.push(job("a")).unwrap();
    let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
    let mut lazy = queue.lazy();
    lazy.push(job("lazy")).unwrap();
    faulty.fail(..);
    assert!(matches!(queue.push(job("b")), Err(QueueError::Store(Error::Store { .. }))));
    assert!(lazy.flush().is_err());
    assert_eq!(lazy.len(), 1, "the jobs stay in the buffer");
    assert!(lease.update(Some(1.into())).is_err());
    assert!(lease.finish(None).is_err());
    assert!(queue.accept(Accept::new()).unwrap().is_none());
    let status = queue.status().unwrap().to_string();
    assert!(status.contains("cannot use its store"), "a call that writes nothing hides nothing: {status}");
    faulty.heal();
    assert_eq!(lease.finish(None).unwrap(), Some(JobState::Finished));
    assert_eq!(lazy.flush().unwrap().len(), 1);
    let status = queue.status().unwrap().to_string();
    assert!(!status.contains("cannot write"), "{status}");
    assert_eq!(queue.state("b").unwrap(), None);
}

#[test]
fn a_lease_dropped_on_a_failing_store_expires() {
    let faulty = FaultyStore::new().unwrap();
    let clock = Clock::manual(noon());
    let queue = Queue::open(&faulty.store(), "q", QueueOptions::default().clock(clock.clone())).unwrap();
    queue.push(job("a")).unwrap();
    let lease = queue.accept(Accept::new()).unwrap().unwrap();
    faulty.fail(..);
    drop(lease);
    clock.advance(MINUTE);
    assert!(queue.accept(Accept::new()).is_err(), "it cannot be taken back yet");
    faulty.heal();
    assert!(queue.accept(Accept::new()).unwrap().is_none());
    assert_eq!(queue.state("a").unwrap(), Some(JobState::Scheduled));
}
