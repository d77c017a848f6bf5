//! Groups of queues: where a push goes, and which queue a claim takes from.

use crate::bench::*;
use crossbeam_channel::bounded;
use std::time::Duration;
use waterline::Retry;
use waterline_queue::{
    Accept, Clock, ConfigError, Fair, Group, GroupBuilder, Lease, Limit, NewJob, PushOutcome, Queue, QueueError,
    QueueOptions,
};

pub(super) fn options(clock: &Clock) -> QueueOptions {
    QueueOptions::default().clock(clock.clone()).retry(Retry::fixed(SECOND).max_attempts(3))
}

/// A group of the queues `a`, `b` and `c`, each of which takes the kind of its own name.
pub(super) fn abc(database: &Database, clock: &Clock) -> GroupBuilder {
    ["a", "b", "c"].into_iter().fold(database.group(), |group, name| group.queue(name, [name], options(clock)))
}

pub(super) fn job(kind: &str) -> NewJob {
    NewJob::new(kind, &1).unwrap()
}

pub(super) fn jobs(kind: &str, count: usize) -> Vec<NewJob> {
    vec![job(kind); count]
}

#[track_caller]
pub(super) fn queue<'a>(group: &'a Group, name: &str) -> &'a Queue {
    group.queue(name).expect("the queue is there")
}

pub(super) fn accept(group: &Group) -> Option<Lease> {
    group.accept(Accept::new()).unwrap()
}

/// Claims and finishes up to this many jobs, and returns their kinds.
pub(super) fn finish(group: &Group, most: usize) -> Vec<String> {
    let claims = std::iter::from_fn(|| accept(group)).take(most);
    claims.map(|mut lease| lease.finish(None).map(|_| lease.kind().to_owned()).unwrap()).collect()
}

pub(super) fn count(kinds: &[String], kind: &str) -> usize {
    kinds.iter().filter(|name| *name == kind).count()
}

pub(super) fn jobs_go_to_the_queues_of_their_kinds(on: &Benches<'_>) {
    let database = &on.database();
    let clock = Clock::manual(noon());
    let group = abc(database, &clock).queue("rest", [""; 0], options(&clock)).default_queue("rest").open().unwrap();
    for kind in ["b", "a", "other", "b"] {
        assert_eq!(group.push(job(kind)).unwrap().outcome, PushOutcome::Added);
    }
    let ready = |name| queue(&group, name).counts().ready;
    assert_eq!(["a", "b", "c", "rest"].map(ready), [1, 2, 0, 1]);
    assert_eq!((group.counts().ready, group.queues().len()), (4, 4));
    assert_eq!(group.queue_of("other").map(Queue::name), Some("rest"));
    assert!(group.queue("other").is_none());
}

pub(super) fn a_group_buffer_checks_at_once_and_pushes_in_order(on: &Benches<'_>) {
    let database = &on.database();
    let group = abc(database, &Clock::manual(noon())).open().unwrap();
    let mut lazy = group.lazy();
    for (kind, id) in [("b", "1"), ("a", "2"), ("b", "3")] {
        lazy.push(job(kind).id(id)).unwrap();
    }
    let refused = lazy.push(job("d")).unwrap_err();
    assert!(
        matches!(&refused, QueueError::Config(ConfigError::Group { fault: "kind unknown", names, .. }) if names == &["d"]),
        "{refused:?}"
    );
    assert_eq!((lazy.len(), group.counts().ready), (3, 0));
    let pushed: Vec<_> = lazy.flush().unwrap().into_iter().map(|pushed| pushed.id).collect();
    assert_eq!(pushed, ["1", "2", "3"]);
    lazy.push(job("c")).unwrap();
    drop(lazy);
    assert_eq!(group.counts().ready, 4);
}

pub(super) fn queues_get_the_shares_of_the_rule(on: &Benches<'_>) {
    let database = &on.database();
    let clock = Clock::manual(noon());
    let cases = [
        (Fair::Shuffle, [40, 40, 40]),
        (Fair::weighted([("a", 4.0), ("c", 1.0)]), [80, 20, 20]),
        (Fair::weighted([("a", 0.0)]), [0, 60, 60]),
        (Fair::strict(HOUR), [120, 0, 0]),
    ];
    for (fair, expected) in cases {
        let group = abc(database, &clock).fair(fair.clone()).open().unwrap();
        group.push_all(["a", "b", "c"].iter().flat_map(|kind| jobs(kind, 120))).unwrap();
        let kinds = finish(&group, 120);
        for (kind, expected) in ["a", "b", "c"].into_iter().zip(expected) {
            let share = count(&kinds, kind);
            let slack = if expected == 0 || expected == 120 { 0 } else { 30 };
            assert!(share.abs_diff(expected) <= slack, "{fair:?}: {share} of {kind}");
        }
        for name in ["a", "b", "c"] {
            queue(&group, name).purge().unwrap();
        }
    }
}

pub(super) fn every_rule_serves_a_queue_once_the_others_are_empty(on: &Benches<'_>) {
    let database = &on.database();
    let clock = Clock::manual(noon());
    for fair in [Fair::Shuffle, Fair::weighted([("c", 0.0)]), Fair::strict(HOUR)] {
        let group = abc(database, &clock).fair(fair).open().unwrap();
        group.push_all(["c", "a", "c"].map(job)).unwrap();
        let mut kinds = finish(&group, 9);
        kinds.sort();
        assert_eq!(kinds, ["a", "c", "c"]);
    }
}

pub(super) fn a_queue_of_held_jobs_ages_too(on: &Benches<'_>) {
    let database = &on.database();
    let clock = Clock::manual(noon());
    let group = database
        .group()
        .queue("a", ["a"], options(&clock))
        .queue("b", ["b"], options(&clock).limit(Limit::each_key().at_once(1)).limit(Limit::kind("b").at_once(1)))
        .fair(Fair::strict(10 * SECOND))
        .open()
        .unwrap();
    group.push_all(["x", "x", "y"].map(|key| job("b").key(key))).unwrap();
    let mut running = accept(&group).unwrap();
    assert!(accept(&group).is_none(), "a limit holds both other jobs");
    clock.advance(11 * SECOND);
    group.push_all(jobs("a", 20)).unwrap();
    running.finish(None).unwrap();
    assert_eq!(count(&finish(&group, 6), "b"), 2, "a key and a kind, and each has waited long");
}

pub(super) fn an_aged_queue_gets_every_second_claim(on: &Benches<'_>) {
    let database = &on.database();
    let clock = Clock::manual(noon());
    let group = abc(database, &clock).fair(Fair::strict(10 * SECOND)).open().unwrap();
    group.push_all(jobs("c", 3).into_iter().chain(jobs("b", 1))).unwrap();
    clock.advance(10 * SECOND);
    group.push_all(jobs("a", 40)).unwrap();
    // No job has waited for longer than that.
    assert_eq!(finish(&group, 6), vec!["a"; 6]);
    clock.advance(MILLI);
    group.push_all(jobs("c", 5)).unwrap();
    // `b` and `c` have waited equally long, so `b` is first.
    let kinds = finish(&group, 8);
    assert_eq!(kinds, ["a", "b", "a", "c", "a", "c", "a", "c"]);
    // The jobs that are left in `c` are new.
    assert_eq!(finish(&group, 6), vec!["a"; 6]);
}

/// Waits for a job on another thread during this call, and returns the kind of the job.
pub(super) fn woken_by(group: &Group, accept: Accept, waker: impl FnOnce()) -> Option<String> {
    let (asleep, is_asleep) = bounded(0);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            asleep.send(()).unwrap();
            group.accept(accept).unwrap().map(|mut lease| lease.finish(None).map(|_| lease.kind().to_owned()).unwrap())
        });
        is_asleep.recv().unwrap();
        waker();
        waiter.join().unwrap()
    })
}

pub(super) fn a_ready_job_in_any_queue_wakes_the_waiting_thread(on: &Benches<'_>) {
    let database = &on.database();
    // The clock stands still, so no thread wakes by the time alone.
    let clock = Clock::manual(noon());
    let group = abc(database, &clock).open().unwrap();
    let wait = || Accept::new().timeout(HOUR);
    let b = queue(&group, "b");
    assert_eq!(woken_by(&group, wait(), || drop(group.push(job("c")))), Some("c".into()));
    assert_eq!(woken_by(&group, wait(), || drop(b.push(job("any")))), Some("any".into()));
    let both = || {
        group.push(job("a").delay(20 * SECOND)).unwrap();
        group.push(job("c").delay(10 * SECOND)).unwrap();
        clock.advance(10 * SECOND);
    };
    assert_eq!(woken_by(&group, wait(), both), Some("c".into()));
    assert_eq!(woken_by(&group, wait(), || clock.advance(10 * SECOND)), Some("a".into()));
    b.pause(None).unwrap();
    group.push(job("b")).unwrap();
    assert_eq!(woken_by(&group, wait(), || b.resume().unwrap()), Some("b".into()));
    b.pause(Some(SECOND)).unwrap();
    group.push(job("b")).unwrap();
    assert_eq!(woken_by(&group, wait(), || clock.advance(SECOND)), Some("b".into()));
    // An expired lease is a failed attempt, and the next one is due after the backoff.
    group.push(job("a")).unwrap();
    let mut silent = accept(&group).unwrap();
    let lease_ends = || {
        clock.advance(Duration::from_secs(60));
        eventually("the job is taken back", || group.counts().running == 0);
        clock.advance(SECOND);
    };
    assert_eq!(woken_by(&group, wait(), lease_ends), Some("a".into()));
    assert!(matches!(silent.finish(None), Err(QueueError::Halt { .. })));
    // The timeout ends, whenever the wait began.
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| group.accept(Accept::new().timeout(SECOND)).unwrap().is_none());
        eventually("it gives up", || {
            clock.advance(SECOND);
            waiter.is_finished()
        });
        assert!(waiter.join().unwrap());
    });
}

pub(super) fn early_jobs_come_after_due_ones_of_any_queue(on: &Benches<'_>) {
    let database = &on.database();
    let clock = Clock::manual(noon());
    let group = abc(database, &clock).fair(Fair::strict(HOUR)).open().unwrap();
    let all = [job("a").delay(20 * SECOND), job("b").delay(10 * SECOND), job("c"), job("b").delay(2 * HOUR)];
    group.push_all(all).unwrap();
    let by = |time| group.accept(Accept::new().max_run_at(time)).unwrap();
    let mut early: Vec<_> = std::iter::from_fn(|| by(noon() + HOUR)).collect();
    let kinds: Vec<_> = early.iter().map(|lease| lease.kind().to_owned()).collect();
    assert_eq!(kinds, ["c", "b", "a"]);
    early.iter_mut().for_each(|lease| assert!(lease.finish(None).is_ok()));
    // Jobs that became due after the given time are left.
    clock.advance(2 * HOUR);
    assert!(by(noon() + HOUR).is_none());
    assert!(by(noon() + 2 * HOUR).is_some());
}

pub(super) fn a_busy_high_queue_starves_no_other(on: &Benches<'_>) {
    let database = &on.database();
    let clock = Clock::manual(noon());
    let group = abc(database, &clock).fair(Fair::strict(10 * SECOND)).open().unwrap();
    group.push_all(jobs("b", 30).into_iter().chain(jobs("c", 30))).unwrap();
    let mut kinds = Vec::new();
    for _ in 0..200 {
        group.push(job("a")).unwrap();
        clock.advance(Duration::from_millis(100));
        kinds.extend(finish(&group, 1));
    }
    // The first 10 seconds are all for `a`, and half of the rest.
    assert_eq!(count(&kinds[..99], "a"), 99);
    let low = kinds.len() - count(&kinds, "a");
    assert!((48..=52).contains(&low), "{low}");
    assert!(count(&kinds, "b") >= 20 && count(&kinds, "c") >= 20);
    // The same holds for a caller that narrows the group anew before each claim.
    clock.advance(20 * SECOND);
    let kinds: Vec<_> = (0..6).flat_map(|_| finish(&group.only(["a", "c"]).unwrap(), 1)).collect();
    assert_eq!(count(&kinds, "c"), 3, "{kinds:?}");
}

pub(super) fn m29_a_group_pushes_all_jobs_or_none(on: &Benches<'_>) {
    let (database, clock) = (on.database(), Clock::manual(noon()));
    let full = options(&clock).max_waiting(1);
    let group = abc(&database, &clock).queue("full", ["full"], full).open().unwrap();
    let push = || group.push_all(["a", "full", "b", "a"].map(job));
    let kinds: Vec<_> = push().unwrap().into_iter().map(|pushed| pushed.outcome).collect();
    assert_eq!(kinds, vec![PushOutcome::Added; 4]);
    assert!(matches!(push(), Err(QueueError::Full { queue, .. }) if queue == "full"));
    assert_eq!(group.counts().ready, 4, "none of the second call");
}
