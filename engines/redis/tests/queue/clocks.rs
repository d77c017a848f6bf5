//! The order of jobs: of their priorities, behind a clock that was set back, and beside a job that
//! killed its process twice.

use crate::bench::{bench, claim, job, keeping};
use crate::server::Server;
use std::mem::ManuallyDrop;
use std::time::{Duration, SystemTime};
use waterline::{Clock, Retry};
use waterline_queue::{Accept, JobState, NewJob, Priority, Queue};
use waterline_redis::{RedisOptions, RedisStore};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn noon() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)
}

fn queue() -> (Queue, Clock) {
    let (server, options) = bench();
    let clock = Clock::manual(noon());
    let store = RedisStore::connect(server.url(), options).unwrap();
    (store.queue("q", keeping().lease(MINUTE).clock(clock.clone())).unwrap(), clock)
}

/// The id of the job that a claim gets, which goes on running.
fn begun(queue: &Queue, accept: Accept) -> Option<String> {
    let lease = queue.accept(accept).unwrap()?;
    let id = lease.id().to_owned();
    let _lost = ManuallyDrop::new(lease);
    Some(id)
}

/// Does what is due, and puts what is ready aside.
fn meet(queue: &Queue) {
    assert_eq!(begun(queue, Accept::new().kinds(["none"])), None);
}

#[test]
fn each_eighth_claim_takes_a_job_of_the_lowest_priority() {
    let (queue, _) = queue();
    let jobs = (0..20).map(|n| job(format!("high{n}")).priority(Priority::High));
    queue.push_all(jobs.chain([job("low").priority(Priority::Low)])).unwrap();
    let claimed: Vec<_> = (0..8).map(|_| begun(&queue, Accept::new()).unwrap()).collect();
    assert_eq!(claimed.iter().position(|id| id == "low"), Some(7), "{claimed:?}");
}

/// A job that has failed under each of two priorities, and is due: it has an entry in both lanes.
fn failed_twice(server: &Server, options: RedisOptions) -> (RedisStore, Queue) {
    let store = RedisStore::connect(server.url(), options).unwrap();
    let queue = store.queue("q", keeping().retry(Retry::fixed(Duration::from_millis(1)))).unwrap();
    for priority in [Priority::Normal, Priority::Urgent] {
        queue.push(job("a").priority(priority)).unwrap();
        queue.accept(Accept::new()).unwrap().unwrap().retry("no").unwrap();
        common::eventually("it is due", || queue.counts().ready == 1);
    }
    (store, queue)
}

#[test]
fn a_failed_job_with_a_new_priority_is_there_once_and_is_not_damaged() {
    let (server, options) = bench();
    let (_store, queue) = failed_twice(server, options);
    (0..2).for_each(|_| meet(&queue));
    let listed = queue.list(JobState::Ready, None, 9).unwrap();
    assert_eq!(listed.iter().map(|job| (&*job.id, job.priority)).collect::<Vec<_>>(), [("a", Priority::Urgent)]);
    assert_eq!((begun(&queue, Accept::new()).as_deref(), begun(&queue, Accept::new())), (Some("a"), None));
}

#[test]
fn a_claim_of_many_gets_a_job_with_two_entries_once() {
    let (server, options) = bench();
    let (store, _queue) = failed_twice(server, options);
    assert_eq!(claim(&store, "q", 9).len(), 1, "one call reads both lanes");
}

#[test]
fn a_page_begins_where_the_last_one_ended_behind_a_clock_that_was_set_back() {
    let (queue, clock) = queue();
    queue.push(job("a").delay(SECOND / 2)).unwrap();
    clock.advance(SECOND);
    meet(&queue);
    clock.set_wall(noon() - MINUTE);
    meet(&queue);
    // The line of this kind has an entry of the time before, which is void, between these two.
    queue.push(job("b")).unwrap();
    queue.push(NewJob::new("other", "c").unwrap().id("c").delay(60 * MINUTE)).unwrap();
    queue.push(job("d").delay(60 * MINUTE)).unwrap();
    clock.advance(60 * MINUTE);
    meet(&queue);
    let (mut ids, mut next) = (Vec::new(), None);
    loop {
        let page = queue.page(JobState::Ready, next.as_deref(), 3).unwrap();
        ids.extend(page.jobs.into_iter().map(|job| job.id));
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    assert_eq!(ids, ["a", "b", "c", "d"]);
}

#[test]
fn a_job_that_was_due_waits_again_behind_a_clock_that_was_set_back() {
    for is_met in [false, true] {
        let (queue, clock) = queue();
        queue.push(job("a").delay(MINUTE)).unwrap();
        clock.advance(2 * MINUTE);
        assert_eq!(queue.counts().ready, 1);
        if is_met {
            meet(&queue);
        } else {
            queue.push(job("other").delay(MINUTE)).unwrap();
        }
        clock.set_wall(noon() + MINUTE / 2);
        meet(&queue);
        let scheduled = queue.list(JobState::Scheduled, None, 9).unwrap();
        assert!(scheduled.iter().any(|job| job.id == "a"), "{scheduled:?}");
        assert_eq!((queue.counts().ready, begun(&queue, Accept::new())), (0, None));
        clock.advance(MINUTE / 2);
        assert_eq!(begun(&queue, Accept::new()).as_deref(), Some("a"));
        assert_eq!(begun(&queue, Accept::new().kinds(["k"])), None, "it is there once");
    }
}

#[test]
fn a_job_that_was_put_aside_stays_before_later_ones_if_the_clock_is_set_back() {
    let (queue, clock) = queue();
    queue.push(job("first").delay(Duration::from_millis(1))).unwrap();
    clock.advance(2 * SECOND);
    meet(&queue);
    clock.set_wall(noon() - MINUTE);
    meet(&queue);
    queue.push(job("second")).unwrap();
    meet(&queue);
    let all = [(); 2].map(|()| begun(&queue, Accept::new()).unwrap());
    assert_eq!(all, ["first", "second"]);
}

/// A queue whose job `b` has killed its process twice, and is due in a second; `a` runs.
fn after_two_crashes() -> (Queue, Clock) {
    let (queue, clock) = queue();
    queue.push(job("b").priority(Priority::Urgent)).unwrap();
    for _ in 0..2 {
        let lease = queue.accept(Accept::new()).unwrap().unwrap();
        assert!(lease.keep());
        clock.advance(MINUTE);
        let _lost = ManuallyDrop::new(lease);
    }
    queue.push(job("a")).unwrap();
    assert_eq!(begun(&queue, Accept::new()).as_deref(), Some("a"));
    (queue, clock)
}

#[test]
fn a_job_that_runs_alone_is_taken_up_before_it_is_due() {
    let (queue, clock) = after_two_crashes();
    let early = Accept::new().max_run_at(clock.wall_time() + MINUTE);
    assert_eq!(begun(&queue, early), None, "the other one ends first");
    queue.push(job("c")).unwrap();
    assert_eq!(begun(&queue, Accept::new()), None, "no other one begins before it");
    clock.advance(SECOND);
    queue.remove("a").unwrap();
    assert_eq!(begun(&queue, Accept::new()).as_deref(), Some("b"));
    assert_eq!(begun(&queue, Accept::new()), None, "it runs alone");
    queue.remove("b").unwrap();
    assert_eq!(begun(&queue, Accept::new()).as_deref(), Some("c"));
}

#[test]
fn no_job_is_handed_out_early_while_one_is_left_to_other_processes() {
    let (queue, clock) = after_two_crashes();
    clock.advance(SECOND);
    assert_eq!(begun(&queue, Accept::new()), None, "the other one ends first");
    clock.advance(MINUTE);
    queue.push(job("late").delay(MINUTE)).unwrap();
    let early = Accept::new().max_run_at(clock.wall_time() + 2 * MINUTE);
    assert_eq!((begun(&queue, early), queue.state("b").unwrap()), (None, Some(JobState::Ready)));
}
