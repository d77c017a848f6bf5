use crate::Clock;
use crate::accept::Accept;
use crate::embedded::codec::limit::LimitRecord;
use crate::handle::Queue;
use crate::lease::Lease;
use crate::status::Waits;
use crate::types::job::JobState;
use crate::types::limit::{Limit, Rate};
use crate::types::new_job::NewJob;
use crate::types::options::QueueOptions;
use std::time::{Duration, UNIX_EPOCH};
use waterline::Store;
use waterline::seam::{self, Records};

const SECOND: Duration = Duration::from_secs(1);

fn queue(limits: &[Limit]) -> (Queue, Clock) {
    let clock = Clock::manual(UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    let options = QueueOptions::default().clock(clock.clone());
    let options = limits.iter().fold(options, |options, limit| options.limit(limit.clone()));
    (Queue::open(&Store::in_memory(), "q", options).unwrap(), clock)
}

fn keyed(id: &str, key: &str) -> NewJob {
    NewJob::new("k", &()).unwrap().id(id).key(key)
}

fn accept(queue: &Queue) -> Option<Lease> {
    queue.accept(Accept::new()).unwrap()
}

fn records(queue: &Queue) -> Vec<String> {
    queue.call(|step| step.txn.limit_names()).unwrap()
}

fn record(queue: &Queue, name: &str) -> LimitRecord {
    let bytes = queue.bytes(&queue.state_of().keys.limit(name)).unwrap().unwrap();
    LimitRecord::decode("q", name, &bytes).unwrap()
}

#[test]
fn an_idle_limit_has_no_record() {
    let rate = Rate::new(1, SECOND).burst(2);
    let (queue, clock) = queue(&[Limit::each_key().at_once(1), Limit::kind("k").rate(rate), Limit::queue().rate(rate)]);
    queue.push_all((0..2).map(|n| keyed(&format!("a{n}"), &format!("key{n}")))).unwrap();
    let mut lease = accept(&queue).unwrap();
    assert_eq!(records(&queue), ["kkey0", "q", "tk"]);
    lease.finish(None).unwrap();
    assert_eq!(records(&queue), ["q", "tk"]);
    accept(&queue).unwrap().finish(None).unwrap();
    clock.advance(62 * SECOND);
    assert!(accept(&queue).is_none());
    assert_eq!(records(&queue), Vec::<String>::new());
    assert!(accept(&queue).is_none());
}

#[test]
fn a_job_without_a_limit_costs_no_record() {
    let (queue, _) = queue(&[Limit::each_key().at_once(1), Limit::kind("other").at_once(1)]);
    queue.push(NewJob::new("k", &()).unwrap().id("a")).unwrap();
    let _lease = accept(&queue).unwrap();
    assert_eq!(records(&queue), Vec::<String>::new());
    let state = queue.state_of();
    assert_eq!(queue.bytes(&state.keys.row("a")).unwrap().unwrap()[0], 1, "the short form");
    assert_eq!(queue.bytes(&state.keys.head()).unwrap().unwrap()[0], 1, "the short form");
}

#[test]
fn a_held_row_returns_to_its_short_form() {
    let (queue, _) = queue(&[Limit::kind("k").at_once(1)]);
    queue.push_all(["a", "b"].map(|id| NewJob::new("k", &()).unwrap().id(id))).unwrap();
    let mut lease = accept(&queue).unwrap();
    assert!(accept(&queue).is_none());
    let version = || queue.bytes(&queue.state_of().keys.row("b")).unwrap().unwrap()[0];
    assert_eq!(version(), 2);
    lease.finish(None).unwrap();
    let _lease = accept(&queue).unwrap();
    assert_eq!(version(), 1);
}

#[test]
fn removing_a_held_job_updates_its_limit() {
    let (queue, _) = queue(&[Limit::each_key().at_once(1)]);
    queue.push_all((0..4).map(|n| keyed(&format!("a{n}"), "a"))).unwrap();
    let _lease = accept(&queue).unwrap();
    assert!(accept(&queue).is_none());
    for (id, held, next) in [("a2", 2, 0), ("a1", 1, 1), ("a3", 0, 3)] {
        queue.remove(id).unwrap();
        let record = record(&queue, "ka");
        assert_eq!((record.held, record.next, record.end), (held, next, 3), "{id}");
    }
    assert_eq!(queue.state_of().look(|live| live.head.held), 0);
}

#[test]
fn a_damaged_record_is_rebuilt_from_the_jobs() {
    let rate = Rate::new(1, SECOND);
    let (queue, clock) = queue(&[Limit::each_key().at_once(2), Limit::kind("slow").rate(rate)]);
    queue.push_all((0..6).map(|n| keyed(&format!("a{n}"), "a"))).unwrap();
    let mut leases: Vec<_> = std::iter::from_fn(|| accept(&queue)).collect();
    queue.remove("a3").unwrap();
    let before = record(&queue, "ka");
    assert_eq!((before.held, before.running, before.next, before.end), (3, 2, 0, 4));
    let mut batch = Records::default();
    batch.put(queue.state_of().rows.id, &[&queue.state_of().keys.limit("ka")], &[b"damaged"]).unwrap();
    seam::write_records(queue.store(), &batch).unwrap();
    assert!(matches!(queue.status().unwrap().waits, Waits::No));
    leases.remove(0).finish(None).unwrap();
    let mut next = accept(&queue).unwrap();
    assert_eq!((next.id(), record(&queue, "ka").running), ("a2", 2));
    assert!(accept(&queue).is_none());
    next.finish(None).unwrap();
    leases.push(accept(&queue).unwrap());
    drop(leases);
    clock.advance(10 * SECOND);
    while let Some(mut lease) = accept(&queue) {
        lease.finish(None).unwrap();
    }
    assert_eq!((queue.counts().ready, records(&queue)), (0, vec![]));
}

#[test]
fn removing_a_damaged_job_recounts_its_limits() {
    let (queue, _) = queue(&[Limit::each_key().at_once(1), Limit::queue().at_once(2)]);
    queue.push_all((0..4).map(|n| keyed(&format!("a{n}"), "a"))).unwrap();
    let mut lease = accept(&queue).unwrap();
    assert!(accept(&queue).is_none());
    for id in ["a0", "a1"] {
        queue.damage(id);
        queue.remove(id).unwrap();
    }
    assert!(lease.finish(None).is_err());
    assert_eq!((record(&queue, "ka").held, record(&queue, "ka").running), (2, 0));
    assert_eq!(queue.list(JobState::Ready, None, 9).unwrap().len(), 2);
    for id in ["a2", "a3"] {
        let mut lease = accept(&queue).unwrap();
        assert_eq!(lease.id(), id);
        lease.finish(None).unwrap();
    }
    assert_eq!(records(&queue), Vec::<String>::new());
}
