//! Groups of queues: where a push goes, which queue a claim takes from, and one runner for all of
//! them, on each back end.

use common::every_write::{DEATHS, Trial, every_write};
use common::queues::{MILLI, SECOND, noon};
use common::{HOUR, Place, eventually, on_store};
use crossbeam_channel::bounded;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use waterline::queue::{
    Accept, Clock, Fair, Group, GroupBuilder, JobState, Lease, Limit, Limits, NewJob, Outcome, PushOutcome, Queue,
    QueueError, QueueOptions, Reached, Retention, Runner, RunnerBuilder, Waits,
};
use waterline::testing::FaultyStore;
use waterline::{ConfigError, Error, Retry, Store};

fn options(clock: &Clock) -> QueueOptions {
    QueueOptions::default().clock(clock.clone()).retry(Retry::fixed(SECOND).max_attempts(3))
}

/// A group of the queues `a`, `b` and `c`, each of which takes the kind of its own name.
fn abc(store: &Store, clock: &Clock) -> GroupBuilder {
    ["a", "b", "c"].into_iter().fold(Group::new(store), |group, name| group.queue(name, [name], options(clock)))
}

fn job(kind: &str) -> NewJob {
    NewJob::new(kind, &1).unwrap()
}

fn jobs(kind: &str, count: usize) -> Vec<NewJob> {
    vec![job(kind); count]
}

#[track_caller]
fn queue<'a>(group: &'a Group, name: &str) -> &'a Queue {
    group.queue(name).expect("the queue is there")
}

fn accept(group: &Group) -> Option<Lease> {
    group.accept(Accept::new()).unwrap()
}

/// Claims and finishes so many jobs. Returns their kinds, and fewer if there are no more.
fn finish(group: &Group, most: usize) -> Vec<String> {
    let claims = std::iter::from_fn(|| accept(group)).take(most);
    claims.map(|mut lease| lease.finish(None).map(|_| lease.kind().to_owned()).unwrap()).collect()
}

fn count(kinds: &[String], kind: &str) -> usize {
    kinds.iter().filter(|name| *name == kind).count()
}

fn done(builder: RunnerBuilder) -> RunnerBuilder {
    ["a", "b", "c"].into_iter().fold(builder, |builder, kind| builder.on(kind, |_, _: u32| Ok(Outcome::Done)))
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(answer: Result<T, QueueError>, expected: &ConfigError) {
    match answer {
        Err(QueueError::Config(refused)) => assert_eq!(refused, *expected),
        other => panic!("{other:?}"),
    }
}

#[test]
fn jobs_go_to_the_queues_of_their_kinds() {
    on_store(|store| {
        let clock = Clock::manual(noon());
        let group = abc(store, &clock).queue("rest", [""; 0], options(&clock)).default_queue("rest").open().unwrap();
        for kind in ["b", "a", "other", "b"] {
            assert_eq!(group.push(job(kind)).unwrap().outcome, PushOutcome::Added);
        }
        let ready = |name| queue(&group, name).counts().ready;
        assert_eq!(["a", "b", "c", "rest"].map(ready), [1, 2, 0, 1]);
        assert_eq!((group.counts().ready, group.queues().len()), (4, 4));
        assert_eq!(group.queue_of("other").map(Queue::name), Some("rest"));
        assert!(group.queue("other").is_none());
    });
}

#[test]
fn a_group_that_cannot_be_is_refused() {
    let (store, clock) = (Store::in_memory(), Clock::manual(noon()));
    let name = || "a".to_owned();
    let twice = abc(&store, &clock).queue("a", ["d"], options(&clock)).open();
    assert_refused(twice, &ConfigError::GroupQueueTwice { queue: name() });
    let kind = abc(&store, &clock).queue("d", ["e", "a"], options(&clock)).open();
    assert_refused(kind, &ConfigError::GroupKindTwice { kind: name(), first: name(), second: "d".into() });
    let kind = Group::new(&store).queue("a", ["k", "k"], options(&clock)).open();
    let twice = ConfigError::GroupKindTwice { kind: "k".into(), first: name(), second: name() };
    assert!(twice.to_string().contains("takes the kind \"k\" twice: name it once"), "{twice}");
    assert_refused(kind, &twice);
    assert_refused(Group::new(&store).open(), &ConfigError::GroupEmpty);
    let kind = Group::new(&store).queue("a", [""], options(&clock)).open();
    assert!(matches!(kind, Err(QueueError::Config(ConfigError::Length { what: "job kind", length: 0, .. }))));
    let unknown = ConfigError::GroupQueueUnknown { queue: "d".into() };
    assert_refused(abc(&store, &clock).default_queue("d").open(), &unknown);
    assert_refused(abc(&store, &clock).only_when_asked("d").open(), &unknown);
    assert_refused(abc(&store, &clock).fair(Fair::weighted([("d", 1.0)])).open(), &unknown);
    let weight = ConfigError::GroupWeight { queue: name(), weight: -1.0 };
    assert_refused(abc(&store, &clock).fair(Fair::weighted([("a", -1.0)])).open(), &weight);
    assert!(abc(&store, &clock).fair(Fair::weighted([("a", f64::NAN)])).open().is_err());
    let other = abc(&store, &clock).queue("d", ["d"], options(&Clock::manual(noon()))).open();
    assert_refused(other, &ConfigError::GroupClock { queue: "d".into() });
    // Nothing was opened by any of them.
    let all = ["a", "b", "c"].map(|queue| Queue::open(&store, queue, QueueOptions::default().lease(SECOND)).unwrap());
    let open = abc(&store, &clock).open();
    assert!(matches!(open, Err(QueueError::Config(ConfigError::QueueOptions { name })) if name == "a"));
    drop(all);
    let mut group = None;
    // The writer may have one of them for a moment longer.
    eventually("the queues to be closed", || {
        group = abc(&store, &clock).open().ok();
        group.is_some()
    });
    let group = group.unwrap();
    assert_refused(group.push(job("d")), &ConfigError::GroupKindUnknown { kind: "d".into() });
    assert_refused(group.push_all([job("a"), job("d")]), &ConfigError::GroupKindUnknown { kind: "d".into() });
    assert_refused(group.only(["d"]), &unknown);
    assert_refused(group.only([""; 0]), &ConfigError::GroupEmpty);
    assert_refused(group.except(["a", "b", "c"]), &ConfigError::GroupEmpty);
    assert_eq!(group.counts().ready, 0);
}

#[test]
fn jobs_for_several_queues_are_pushed_together_or_not_at_all() {
    let disk = FaultyStore::new().unwrap();
    let clock = Clock::manual(noon());
    let group = abc(&disk.store(), &clock).open().unwrap();
    let all = || [job("b").id("1"), job("a").id("2"), job("b").id("3"), job("c").id("1"), job("b").id("1")];
    disk.fail(..);
    assert!(matches!(group.push_all(all()), Err(QueueError::Store(Error::Store { .. }))));
    disk.heal();
    assert_eq!(group.counts().ready, 0);
    let before = disk.writes();
    let pushed = group.push_all(all()).unwrap();
    assert_eq!(disk.writes() - before, 1);
    let outcomes: Vec<_> = pushed.into_iter().map(|pushed| (pushed.id, pushed.outcome)).collect();
    let added = |id: &str| (id.to_owned(), PushOutcome::Added);
    let duplicate = ("1".to_owned(), PushOutcome::Duplicate("1".into()));
    assert_eq!(outcomes, [added("1"), added("2"), added("3"), added("1"), duplicate]);
    let order: Vec<_> =
        queue(&group, "b").list(JobState::Ready, None, 9).unwrap().into_iter().map(|job| job.id).collect();
    assert_eq!(order, ["1", "3"]);
}

#[test]
fn a_buffer_of_a_group_checks_at_once_and_pushes_in_the_order_of_the_calls() {
    on_store(|store| {
        let group = abc(store, &Clock::manual(noon())).open().unwrap();
        let mut lazy = group.lazy();
        for (kind, id) in [("b", "1"), ("a", "2"), ("b", "3")] {
            lazy.push(job(kind).id(id)).unwrap();
        }
        assert_refused(lazy.push(job("d")), &ConfigError::GroupKindUnknown { kind: "d".into() });
        assert_eq!((lazy.len(), group.counts().ready), (3, 0));
        let pushed: Vec<_> = lazy.flush().unwrap().into_iter().map(|pushed| pushed.id).collect();
        assert_eq!(pushed, ["1", "2", "3"]);
        lazy.push(job("c")).unwrap();
        drop(lazy);
        assert_eq!(group.counts().ready, 4);
    });
}

#[test]
fn a_write_of_the_users_pushes_into_a_group() {
    on_store(|store| {
        let group = abc(store, &Clock::manual(noon())).open().unwrap();
        store
            .write(|effects| {
                effects.enqueue_in(&group, job("a"))?;
                effects.enqueue_in(&group, job("c"))?;
                Ok(())
            })
            .unwrap();
        assert_eq!((queue(&group, "a").counts().ready, queue(&group, "c").counts().ready), (1, 1));
        let refused = store.write(|effects| {
            effects.enqueue_in(&group, job("b"))?;
            drop(effects.enqueue_in(&group, job("d")));
            Ok(())
        });
        assert!(matches!(refused, Err(Error::Config(ConfigError::GroupKindUnknown { .. }))), "{refused:?}");
        assert_eq!(group.counts().ready, 2);
    });
}

#[test]
fn queues_have_the_shares_that_the_rule_gives_them() {
    on_store(|store| {
        let clock = Clock::manual(noon());
        let cases = [
            (Fair::Shuffle, [200, 200, 200]),
            (Fair::weighted([("a", 4.0), ("c", 1.0)]), [400, 100, 100]),
            (Fair::weighted([("a", 0.0)]), [0, 300, 300]),
            (Fair::strict(HOUR), [600, 0, 0]),
        ];
        for (fair, expected) in cases {
            let group = abc(store, &clock).fair(fair.clone()).open().unwrap();
            group.push_all(["a", "b", "c"].iter().flat_map(|kind| jobs(kind, 600))).unwrap();
            let kinds = finish(&group, 600);
            for (kind, expected) in ["a", "b", "c"].into_iter().zip(expected) {
                let share = count(&kinds, kind);
                let slack = if expected == 0 || expected == 600 { 0 } else { 60 };
                assert!(share.abs_diff(expected) <= slack, "{fair:?}: {share} of {kind}");
            }
            for name in ["a", "b", "c"] {
                queue(&group, name).purge().unwrap();
            }
        }
    });
}

#[test]
fn a_queue_of_any_rule_is_served_once_no_other_has_a_job() {
    on_store(|store| {
        let clock = Clock::manual(noon());
        for fair in [Fair::Shuffle, Fair::weighted([("c", 0.0)]), Fair::strict(HOUR)] {
            let group = abc(store, &clock).fair(fair).open().unwrap();
            group.push_all(["c", "a", "c"].map(job)).unwrap();
            let mut kinds = finish(&group, 9);
            kinds.sort();
            assert_eq!(kinds, ["a", "c", "c"]);
        }
    });
}

#[test]
fn a_queue_whose_jobs_a_limit_has_held_ages_too() {
    on_store(|store| {
        let clock = Clock::manual(noon());
        let group = Group::new(store)
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
    });
}

#[test]
fn an_aged_queue_has_every_second_claim_of_the_strict_order_until_it_is_no_longer_aged() {
    on_store(|store| {
        let clock = Clock::manual(noon());
        let group = abc(store, &clock).fair(Fair::strict(10 * SECOND)).open().unwrap();
        group.push_all(jobs("c", 3).into_iter().chain(jobs("b", 1))).unwrap();
        clock.advance(10 * SECOND);
        group.push_all(jobs("a", 40)).unwrap();
        // Nobody has waited for longer than that.
        assert_eq!(finish(&group, 6), vec!["a"; 6]);
        clock.advance(MILLI);
        group.push_all(jobs("c", 5)).unwrap();
        // Of `b` and `c`, which have waited for the same time, `b` is the first.
        let kinds = finish(&group, 8);
        assert_eq!(kinds, ["a", "b", "a", "c", "a", "c", "a", "c"]);
        // The jobs that are left in `c` are new.
        assert_eq!(finish(&group, 6), vec!["a"; 6]);
    });
}

/// A life of a group with jobs that are ready, paused and scheduled.
fn first_life(store: &Store, clock: &Clock) -> Group {
    let group = abc(store, clock).open().unwrap();
    group.push_all([job("b"), job("c").delay(10 * SECOND)]).unwrap();
    queue(&group, "b").pause(Some(5 * SECOND)).unwrap();
    group.push(job("a")).unwrap();
    group
}

fn second_life(store: &Store, clock: &Clock) {
    let group = abc(store, clock).open().unwrap();
    assert_eq!(finish(&group, 9), ["a"]);
    clock.advance(5 * SECOND);
    assert_eq!(finish(&group, 9), ["b"]);
    clock.advance(5 * SECOND);
    assert_eq!(finish(&group, 9), ["c"]);
    assert_eq!((group.counts().finished, group.counts().ready), (3, 0));
}

#[test]
fn the_queues_with_jobs_are_known_right_after_a_crash_and_when_a_time_has_come() {
    let (disk, clock) = (FaultyStore::new().unwrap(), Clock::manual(noon()));
    let group = first_life(&disk.store(), &clock);
    let _running = accept(&group).expect("`a` has a job");
    second_life(&disk.after_crash().unwrap().store(), &clock);
}

#[test]
fn the_queues_with_jobs_are_known_right_after_a_restart() {
    let (place, clock) = (Place::default(), Clock::manual(noon()));
    drop(first_life(&place.open(), &clock));
    second_life(&place.open(), &clock);
}

/// Runs all jobs of a group. Each of them counts its runs in a table.
fn drain_counting(group: &Group, store: &Store) {
    let done = store.table("done").unwrap();
    let runner = ["a", "b", "c"].into_iter().fold(group.runner().max_processing(1), |runner, kind| {
        let done = done.clone();
        runner.on_transactional(kind, move |job, _: u32, effects| {
            effects.add(&done, job.id(), 1)?;
            Ok(Outcome::Done)
        })
    });
    runner.drain(Limits::default()).unwrap();
}

#[test]
fn a_crash_at_any_write_leaves_each_job_of_a_group_in_one_place_and_its_effects_made_once() {
    let ids = ["0", "1", "2", "3"];
    let live = |trial: &Trial| {
        let clock = Clock::manual(noon());
        let group = abc(&trial.store(), &clock).open().unwrap();
        group.push_all(ids.into_iter().zip(["a", "b", "c", "a"]).map(|(id, kind)| job(kind).id(id))).unwrap();
        drain_counting(&group, &trial.store());
        clock
    };
    every_write(&DEATHS, live, |next, clock| {
        let store = next.store();
        let group = abc(&store, &clock).open().unwrap();
        let (counts, done) = (group.counts(), store.table("done").unwrap());
        let times = || ids.map(|id| done.counter(id).unwrap());
        assert_eq!(counts.running + counts.scheduled + counts.dead, 0, "{counts:?}");
        // All of the pushes are there, or none.
        let all = counts.ready + counts.finished;
        assert!(all == 4 || all == 0 && next.struck, "{counts:?}");
        assert_eq!(times().iter().sum::<i64>(), counts.finished as i64);
        drain_counting(&group, &store);
        assert_eq!(times(), [(all / 4) as i64; 4]);
    });
}

/// Waits for a job on another thread, and calls this meanwhile. Returns the kind of the job.
fn woken_by(group: &Group, accept: Accept, waker: impl FnOnce()) -> Option<String> {
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

#[test]
fn a_thread_that_waits_is_woken_by_whatever_makes_a_job_ready_in_any_queue() {
    on_store(|store| {
        // It stands still, so nobody wakes up by the time alone.
        let clock = Clock::manual(noon());
        let group = abc(store, &clock).open().unwrap();
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
        // A lease that ends is a failed attempt, whose next one is due after the back-off.
        group.push(job("a")).unwrap();
        let mut silent = accept(&group).unwrap();
        let lease_ends = || {
            clock.advance(Duration::from_secs(60));
            eventually("the job is taken back", || group.counts().running == 0);
            clock.advance(SECOND);
        };
        assert_eq!(woken_by(&group, wait(), lease_ends), Some("a".into()));
        assert!(matches!(silent.finish(None), Err(QueueError::Halt { .. })));
        // Its own time is over, from whenever it began.
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| group.accept(Accept::new().timeout(SECOND)).unwrap().is_none());
            eventually("it gives up", || {
                clock.advance(SECOND);
                waiter.is_finished()
            });
            assert!(waiter.join().unwrap());
        });
    });
}

#[test]
fn a_write_that_fails_in_one_thread_leaves_its_job_to_another_one_that_waits() {
    // Both claims may come into the write that fails. Then it is done again.
    for _ in 0..100 {
        let disk = FaultyStore::new().unwrap();
        let group = abc(&disk.store(), &Clock::manual(noon())).open().unwrap();
        let accepted = std::thread::scope(|scope| {
            let accept = || {
                let lease = group.accept(Accept::new().timeout(HOUR));
                lease.map(|lease| lease.map(|mut lease| lease.finish(None).unwrap()))
            };
            let waiters = [scope.spawn(accept), scope.spawn(accept)];
            // The push is written, and the first claim is not.
            disk.fail(1..2);
            group.push(job("b")).unwrap();
            waiters.map(|waiter| waiter.join().unwrap())
        });
        assert!(accepted.iter().any(Result::is_err));
        if let Some(Ok(state)) = accepted.iter().find(|accepted| accepted.is_ok()) {
            assert_eq!(*state, Some(Some(JobState::Finished)));
            return;
        }
    }
    panic!("both threads always claimed in one write");
}

#[test]
fn jobs_that_are_not_due_come_after_those_that_are_in_any_queue() {
    on_store(|store| {
        let clock = Clock::manual(noon());
        let group = abc(store, &clock).fair(Fair::strict(HOUR)).open().unwrap();
        let all = [job("a").delay(20 * SECOND), job("b").delay(10 * SECOND), job("c"), job("b").delay(2 * HOUR)];
        group.push_all(all).unwrap();
        let by = |time| group.accept(Accept::new().max_run_at(time)).unwrap();
        let mut early: Vec<_> = std::iter::from_fn(|| by(noon() + HOUR)).collect();
        let kinds: Vec<_> = early.iter().map(|lease| lease.kind().to_owned()).collect();
        assert_eq!(kinds, ["c", "b", "a"]);
        early.iter_mut().for_each(|lease| assert!(lease.finish(None).is_ok()));
        // Jobs that became due later than a time that has passed are left.
        clock.advance(2 * HOUR);
        assert!(by(noon() + HOUR).is_none());
        assert!(by(noon() + 2 * HOUR).is_some());
    });
}

#[test]
fn a_pause_of_one_queue_leaves_the_others_running() {
    on_store(|store| {
        let group = abc(store, &Clock::manual(noon())).fair(Fair::strict(HOUR)).open().unwrap();
        group.push_all(["a", "b", "c"].map(job)).unwrap();
        queue(&group, "a").pause(None).unwrap();
        assert_eq!(finish(&group, 9), ["b", "c"]);
        let status = group.status().unwrap();
        assert_eq!(status.queues[0].waits, Waits::Paused { left: None });
        assert_eq!(status.queues[1].waits, Waits::NothingReady { due_in: None });
        assert_eq!(status.to_string().lines().count(), 3);
        let numbers = done(group.runner()).drain_by_queue(Limits::default()).unwrap();
        assert!(numbers.iter().all(|(_, summary)| summary.finished == 0));
        assert_eq!(numbers.iter().map(|(_, summary)| summary.reached).collect::<Vec<_>>()[0], Reached::Paused);
        assert_eq!(numbers[1].1.reached, Reached::NothingReady);
        queue(&group, "a").resume().unwrap();
        assert_eq!(finish(&group, 9), ["a"]);
    });
}

#[test]
fn queues_run_only_when_asked_or_all_but_some() {
    on_store(|store| {
        let group = abc(store, &Clock::manual(noon())).only_when_asked("b").open().unwrap();
        group.push_all(["a", "b", "c"].map(job)).unwrap();
        let kinds = |group: &Group| {
            let mut leases: Vec<_> = std::iter::from_fn(|| accept(group)).collect();
            let kinds: BTreeSet<_> = leases.iter().map(|lease| lease.kind().to_owned()).collect();
            leases.iter_mut().for_each(|lease| assert!(lease.snooze(noon()).is_ok()));
            kinds.into_iter().collect::<String>()
        };
        assert_eq!(kinds(&group), "ac");
        assert_eq!(kinds(&group.only(["b"]).unwrap()), "b");
        assert_eq!(kinds(&group.only(["b", "c"]).unwrap()), "bc");
        assert_eq!(kinds(&group.except(["a"]).unwrap()), "c");
        assert_eq!(kinds(&group.only(["b", "c"]).unwrap().except(["c"]).unwrap()), "b");
        let asked = group.only(["b"]).unwrap();
        assert_eq!(woken_by(&asked, Accept::new().timeout(HOUR), || drop(group.push(job("a")))), Some("b".into()));
        // It sleeps although another queue has jobs, until its own one has.
        let waker = || {
            group.push(job("c")).unwrap();
            group.push(job("b")).unwrap();
        };
        assert_eq!(woken_by(&asked, Accept::new().timeout(HOUR), waker), Some("b".into()));
        assert_eq!(done(group.runner()).drain(Limits::default()).unwrap().finished, 4);
    });
}

#[test]
fn one_runner_runs_all_queues_with_one_number_of_slots() {
    on_store(|store| {
        let group = abc(store, &Clock::manual(noon())).open().unwrap();
        let (running, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let runner = ["a", "b", "c"].into_iter().fold(group.runner().max_processing(2), |runner, kind| {
            let (running, most) = (running.clone(), most.clone());
            runner.on(kind, move |_, _: u32| {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::yield_now();
                running.fetch_sub(1, Ordering::SeqCst);
                Ok(Outcome::Done)
            })
        });
        let runner = runner.start().unwrap();
        group.push_all(["a", "b", "c"].iter().flat_map(|kind| jobs(kind, 50))).unwrap();
        eventually("all jobs are finished", || group.counts().finished == 150);
        assert_eq!(most.load(Ordering::SeqCst).max(2), 2);
        // Each queue has its runner.
        let second = Runner::builder(queue(&group, "b")).on("b", |_, _: u32| Ok(Outcome::Done)).start();
        assert!(matches!(second, Err(QueueError::Store(Error::InUse { name })) if name == "b"));
        let other = done(group.except(["a"]).unwrap().runner()).start();
        assert!(matches!(other, Err(QueueError::Store(Error::InUse { .. }))));
        runner.stop().unwrap();
        drop(Runner::builder(queue(&group, "b")).on("b", |_, _: u32| Ok(Outcome::Done)).start().unwrap());
        // The names that were taken in vain are free again.
        let held = Runner::builder(queue(&group, "c")).on("c", |_, _: u32| Ok(Outcome::Done)).start().unwrap();
        assert!(matches!(done(group.runner()).start(), Err(QueueError::Store(Error::InUse { name })) if name == "c"));
        drop(done(group.except(["c"]).unwrap().runner()).start().unwrap());
        drop(held);
    });
}

#[test]
fn an_end_and_the_next_claim_are_one_write_although_they_are_in_two_queues() {
    let disk = FaultyStore::new().unwrap();
    let group = abc(&disk.store(), &Clock::manual(noon())).open().unwrap();
    let count = 40;
    group.push_all(["a", "b", "c"].iter().cycle().take(count).map(|kind| job(kind))).unwrap();
    let before = disk.writes();
    let summary = done(group.runner().max_processing(1)).drain(Limits::default()).unwrap();
    assert_eq!(summary.finished, count as u64);
    // A claim, an end with the next claim for each job but the last one, and an end.
    assert_eq!(disk.writes() - before, count as u64 + 1);
}

#[test]
fn a_drain_of_a_group_has_limits_for_all_and_numbers_for_each_queue() {
    on_store(|store| {
        let group = abc(store, &Clock::manual(noon())).fair(Fair::strict(HOUR)).open().unwrap();
        group.push_all(jobs("a", 5).into_iter().chain(jobs("c", 5))).unwrap();
        let runner = || {
            let runner = group.runner().max_processing(2);
            let runner = runner.on("a", |_, _: u32| Ok(Outcome::Done)).on("b", |_, _: u32| Ok(Outcome::Done));
            runner.on("c", |_, _: u32| Ok(Outcome::Dead("it is bad".into())))
        };
        let numbers = runner().drain_by_queue(Limits::default().jobs(7)).unwrap();
        let short: Vec<_> = numbers.iter().map(|(name, all)| (name.as_str(), all.finished, all.dead)).collect();
        assert_eq!(short, [("a", 5, 0), ("b", 0, 0), ("c", 0, 2)]);
        assert!(numbers.iter().all(|(_, summary)| summary.reached == Reached::Jobs));
        let rest = runner().drain(Limits::default()).unwrap();
        assert_eq!((rest.dead, rest.finished, rest.reached), (3, 0, Reached::NothingReady));
        group.push(job("a")).unwrap();
        let none = runner().drain(Limits::default().time(Duration::ZERO)).unwrap();
        assert_eq!((none.finished, none.reached), (0, Reached::Time));
    });
}

#[test]
fn a_runner_makes_due_jobs_ready_that_no_ready_log_has_yet() {
    on_store(|store| {
        let clock = Clock::manual(noon());
        let group = abc(store, &clock).open().unwrap();
        let runner = done(group.runner().max_processing(2)).start().unwrap();
        group.push(job("b").delay(SECOND)).unwrap();
        clock.advance(SECOND);
        eventually("the job is finished", || group.counts().finished == 1);
        runner.stop().unwrap();
    });
}

#[test]
fn a_drain_ends_only_once_no_queue_has_work() {
    on_store(|store| {
        let clock = Clock::manual(noon());
        let group = abc(store, &clock).fair(Fair::strict(HOUR)).open().unwrap();
        group.push(job("a")).unwrap();
        assert_eq!(done(group.runner()).drain(Limits::default()).unwrap().finished, 1);
        // The first look of the next one finds a row in `a` whose time is over, and no job there.
        group.push_all(["b", "c"].map(|kind| job(kind).delay(SECOND))).unwrap();
        clock.advance(Duration::from_secs(60));
        assert_eq!(done(group.runner().max_processing(1)).drain(Limits::default()).unwrap().finished, 2);
        assert_eq!(queue(&group, "a").counts().finished, 0);
    });
}

#[test]
fn a_due_time_of_any_queue_ends_the_sleep() {
    // Real time: this thread sleeps, so nobody could move a clock.
    let clock = Clock::default();
    let group = abc(&Store::in_memory(), &clock).open().unwrap();
    for kind in ["c", "a"] {
        let begun = std::time::Instant::now();
        group.push(job(kind).delay(20 * MILLI)).unwrap();
        assert!(group.accept(Accept::new().timeout(HOUR)).unwrap().is_some());
        assert!(begun.elapsed() < 60 * SECOND);
    }
}

#[test]
fn attempts_of_two_queues_with_the_same_lease_number_are_told_apart() {
    on_store(|store| {
        let clock = Clock::manual(noon());
        let group = abc(store, &clock).open().unwrap();
        let held = Arc::new(Mutex::new(BTreeMap::new()));
        let runner = ["a", "b", "c"].into_iter().fold(group.runner().max_processing(3), |runner, kind| {
            let held = held.clone();
            runner.on_deferred(kind, move |job, _: u32, done| {
                held.lock().insert((job.kind().to_owned(), job.id().to_owned()), done);
            })
        });
        let runner = runner.attempt_timeout(10 * SECOND).start().unwrap();
        group.push_all(["a", "b", "c"].map(|kind| job(kind).id("x"))).unwrap();
        eventually("all three run", || held.lock().len() == 3);
        assert_eq!(runner.processing(), 3);
        let status = group.status().unwrap();
        assert!(status.queues.iter().all(|status| status.counts.running == 1));
        group.push(job("b")).unwrap();
        eventually("the runner is busy", || {
            matches!(group.status().unwrap().queues[1].waits, Waits::Busy { slots: 3, .. })
        });
        let done = held.lock().remove(&("a".to_owned(), "x".to_owned())).unwrap();
        done.complete();
        eventually("the job of a is finished, and b has two", || {
            queue(&group, "a").counts().finished == 1 && queue(&group, "b").counts().running == 2
        });
        // The time of an attempt counts from its beginning, which is later than its claim.
        eventually("all have begun", || held.lock().len() == 3);
        clock.advance(10 * SECOND);
        eventually("the others are over", || group.counts().running == 0 && group.counts().scheduled == 3);
        assert_eq!(queue(&group, "a").counts().finished, 1);
        held.lock().clear();
        runner.stop().unwrap();
    });
}

#[test]
fn jobs_given_up_at_a_stop_keep_the_leases_of_their_own_queues() {
    on_store(|store| {
        let clock = Clock::manual(noon());
        let group = Group::new(store)
            .queue("long", ["long"], options(&clock).lease(HOUR))
            .queue("short", ["short"], options(&clock).lease(SECOND))
            .open()
            .unwrap();
        let held = Arc::new(Mutex::new(Vec::new()));
        let runner = ["long", "short"].into_iter().fold(group.runner().max_processing(2), |runner, kind| {
            let held = held.clone();
            runner.on_deferred(kind, move |_, _: u32, done| held.lock().push(done))
        });
        let runner = runner.start().unwrap();
        group.push_all(["long", "short"].map(job)).unwrap();
        eventually("both run", || held.lock().len() == 2);
        let Err(QueueError::StopTimeout { running }) = runner.stop_within(MILLI) else { panic!("they still run") };
        assert_eq!(running.len(), 2);
        clock.advance(SECOND);
        assert!(accept(&group).is_none());
        assert_eq!((queue(&group, "short").counts().scheduled, queue(&group, "long").counts().running), (1, 1));
        held.lock().clear();
    });
}

/// A random number that is the same in each run of a test.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Threads that accept from 20 queues, while another one pushes, pauses and resumes. The clock
/// stands still but for this thread, so nobody who missed a wake-up wakes up later.
fn storm(store: &Store, fair: &Fair, seed: u64) {
    const QUEUES: usize = 20;
    const JOBS: u64 = 400;
    let clock = Clock::manual(noon());
    let names: Vec<_> = (0..QUEUES).map(|n| format!("q{n}")).collect();
    let options = || QueueOptions::default().retention(Retention::Keep).clock(clock.clone());
    let group = names.iter().fold(Group::new(store), |group, name| group.queue(name, [name], options()));
    let group = group.fair(fair.clone()).open().unwrap();
    let (ran, total, over) = (Mutex::new(BTreeMap::new()), AtomicU64::new(0), AtomicBool::new(false));
    let run = |mut lease: Lease| {
        let key = (lease.kind().to_owned(), lease.id().to_owned());
        *ran.lock().entry(key).or_insert(0) += 1;
        lease.finish(None).unwrap();
        total.fetch_add(1, Ordering::SeqCst);
    };
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (group, run, over) = (&group, &run, &over);
            scope.spawn(move || {
                // Two take from one half each.
                let half = (0..QUEUES / 2).map(|n| format!("q{n}"));
                let group = match thread {
                    0 => group.only(half).unwrap(),
                    1 => group.except(half).unwrap(),
                    _ => group.clone(),
                };
                while !over.load(Ordering::SeqCst) {
                    let accept = Accept::new().timeout(HOUR);
                    // Some do not take each job.
                    let accept = if thread < 4 { accept } else { accept.max_run_at(noon() + HOUR / 2) };
                    group.accept(accept).unwrap().map(run);
                }
            });
        }
        let mut state = seed;
        for n in 0..JOBS {
            let name = &names[random(&mut state) as usize % QUEUES];
            match random(&mut state) % 8 {
                0 => queue(&group, name).pause(Some(MILLI * (random(&mut state) % 4) as u32)).unwrap(),
                1 => queue(&group, name).resume().unwrap(),
                2 => clock.advance(MILLI),
                _ => {}
            }
            let delay = MILLI * (random(&mut state) % 3) as u32;
            group.push(NewJob::new(name, &n).unwrap().delay(delay)).unwrap();
            if random(&mut state).is_multiple_of(32) {
                // All threads fall asleep, and the next push has to wake one.
                clock.advance(10 * MILLI);
                eventually("each job has run", || total.load(Ordering::SeqCst) == n + 1);
            }
        }
        clock.advance(10 * MILLI);
        eventually("each job has run", || total.load(Ordering::SeqCst) == JOBS);
        over.store(true, Ordering::SeqCst);
        // A job for each thread in each half, so that all of them see that it is over.
        group.push_all(["q7", "q15"].iter().flat_map(|name| jobs(name, 8))).unwrap();
    });
    let ran = ran.into_inner();
    assert!(ran.len() as u64 >= JOBS && ran.values().all(|times| *times == 1));
    assert_eq!(group.counts().finished, ran.len() as u64);
}

#[test]
fn each_job_of_twenty_queues_runs_once_and_no_wake_up_is_lost() {
    for (seed, fair) in
        [Fair::Shuffle, Fair::weighted([("q3", 0.0), ("q4", 100.0)]), Fair::strict(Duration::from_millis(5))]
            .iter()
            .enumerate()
    {
        on_store(|store| storm(store, fair, seed as u64));
    }
}

#[test]
fn nothing_starves_while_a_high_queue_never_gets_empty() {
    on_store(|store| {
        let clock = Clock::manual(noon());
        let group = abc(store, &clock).fair(Fair::strict(10 * SECOND)).open().unwrap();
        group.push_all(jobs("b", 30).into_iter().chain(jobs("c", 30))).unwrap();
        let mut kinds = Vec::new();
        for _ in 0..200 {
            group.push(job("a")).unwrap();
            clock.advance(Duration::from_millis(100));
            kinds.extend(finish(&group, 1));
        }
        // All of the first 10 seconds are for `a`, and half of the others.
        assert_eq!(count(&kinds[..99], "a"), 99);
        let low = kinds.len() - count(&kinds, "a");
        assert!((48..=52).contains(&low), "{low}");
        assert!(count(&kinds, "b") >= 20 && count(&kinds, "c") >= 20);
        // The same holds for somebody who asks for these queues anew before each claim.
        clock.advance(20 * SECOND);
        let kinds: Vec<_> = (0..6).flat_map(|_| finish(&group.only(["a", "c"]).unwrap(), 1)).collect();
        assert_eq!(count(&kinds, "c"), 3, "{kinds:?}");
    });
}

#[test]
fn a_runner_of_twenty_queues_runs_each_job_once_and_misses_no_wake_up() {
    on_store(|store| {
        let clock = Clock::manual(noon());
        let names: Vec<_> = (0..20).map(|n| format!("q{n}")).collect();
        let options = || options(&clock).retention(Retention::Keep);
        let group = names.iter().fold(Group::new(store), |group, name| group.queue(name, [name], options()));
        let group = group.open().unwrap();
        let ran = Arc::new(Mutex::new(BTreeMap::new()));
        let runner = names.iter().fold(group.runner().max_processing(8), |runner, name| {
            let (ran, next, into) = (ran.clone(), group.clone(), names.clone());
            runner.on(name, move |job, hops: usize| {
                *ran.lock().entry((job.kind().to_owned(), job.id().to_owned())).or_insert(0) += 1;
                // Some jobs push another one, into another queue.
                if hops > 0 {
                    next.push(NewJob::new(&into[hops], &(hops - 1))?)?;
                }
                Ok(Outcome::Done)
            })
        });
        let runner = runner.start().unwrap();
        let (mut state, mut pushed) = (7, 0);
        for _ in 0..150 {
            let name = &names[random(&mut state) as usize % 20];
            match random(&mut state) % 8 {
                0 => queue(&group, name).pause(Some(MILLI * (random(&mut state) % 4) as u32)).unwrap(),
                1 => queue(&group, name).resume().unwrap(),
                _ => {}
            }
            let (hops, delay) = (random(&mut state) as usize % 3, MILLI * (random(&mut state) % 3) as u32);
            group.push(NewJob::new(name, &hops).unwrap().delay(delay)).unwrap();
            pushed += 1 + hops as u64;
            if random(&mut state).is_multiple_of(8) {
                clock.advance(10 * MILLI);
                eventually("each job has run", || group.counts().finished == pushed);
            }
        }
        clock.advance(10 * MILLI);
        eventually("each job has run", || group.counts().finished == pushed);
        runner.stop().unwrap();
        let ran = ran.lock();
        assert_eq!((ran.len() as u64, ran.values().max()), (pushed, Some(&1)));
    });
}
