//! Groups of queues on stores: atomic pushes, crashes, restarts, and the number of writes.

use common::every_write::{DEATHS, Trial, every_write};
use common::queues::{MILLI, SECOND, noon};
use common::{HOUR, Place, eventually, on_store};
use waterline::testing::FaultyStore;
use waterline::{Error, Retry, Store};
use waterline_queue::{
    Accept, Clock, ConfigError, DrainLimits, Fair, Group, GroupBuilder, JobState, Lease, NewJob, Outcome, PushOutcome,
    Queue, QueueError, QueueOptions, RunnerBuilder,
};

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

#[track_caller]
fn queue<'a>(group: &'a Group, name: &str) -> &'a Queue {
    group.queue(name).expect("the queue is there")
}

fn accept(group: &Group) -> Option<Lease> {
    group.accept(Accept::new()).unwrap()
}

/// Claims and finishes up to this many jobs, and returns their kinds.
fn finish(group: &Group, most: usize) -> Vec<String> {
    let claims = std::iter::from_fn(|| accept(group)).take(most);
    claims.map(|mut lease| lease.finish(None).map(|_| lease.kind().to_owned()).unwrap()).collect()
}

fn done(builder: RunnerBuilder) -> RunnerBuilder {
    ["a", "b", "c"].into_iter().fold(builder, |builder, kind| builder.on(kind, |_, _: u32| Ok(Outcome::Done)))
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(answer: Result<T, QueueError>, expected: &str, of: &[&str]) {
    match answer {
        Err(QueueError::Config(ConfigError::Group { fault, names, .. })) => {
            assert_eq!((fault, &*names), (expected, &*of.iter().map(ToString::to_string).collect::<Vec<_>>()));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_invalid_group_is_refused() {
    let (store, clock) = (Store::in_memory(), Clock::manual(noon()));
    let twice = abc(&store, &clock).queue("a", ["d"], options(&clock)).open();
    assert_refused(twice, "queue twice", &["a"]);
    let kind = abc(&store, &clock).queue("d", ["e", "a"], options(&clock)).open();
    assert_refused(kind, "kind twice", &["a", "a", "d"]);
    let kind = || Group::new(&store).queue("a", ["k", "k"], options(&clock)).open();
    let twice = kind().unwrap_err().to_string();
    assert!(twice.contains("takes the kind \"k\" twice: name it once"), "{twice}");
    assert_refused(kind(), "kind twice", &["k", "a", "a"]);
    assert_refused(Group::new(&store).open(), "empty", &[]);
    let kind = Group::new(&store).queue("a", [""], options(&clock)).open();
    assert!(matches!(kind, Err(QueueError::Config(ConfigError::Length { what: "job kind", length: 0, .. }))));
    assert_refused(abc(&store, &clock).default_queue("d").open(), "queue unknown", &["d"]);
    assert_refused(abc(&store, &clock).only_when_asked("d").open(), "queue unknown", &["d"]);
    assert_refused(abc(&store, &clock).fair(Fair::weighted([("d", 1.0)])).open(), "queue unknown", &["d"]);
    let Err(QueueError::Config(refused)) = abc(&store, &clock).fair(Fair::weighted([("a", -1.0)])).open() else {
        panic!("it has a weight below 0")
    };
    assert_eq!(refused, ConfigError::GroupWeight { queue: "a".into(), weight: -1.0 });
    assert!(abc(&store, &clock).fair(Fair::weighted([("a", f64::NAN)])).open().is_err());
    let other = abc(&store, &clock).queue("d", ["d"], options(&Clock::manual(noon()))).open();
    assert_refused(other, "clock", &["d"]);
    // None of these calls has opened a queue.
    let all = ["a", "b", "c"].map(|queue| Queue::open(&store, queue, QueueOptions::default().lease(SECOND)).unwrap());
    let open = abc(&store, &clock).open();
    assert!(matches!(open, Err(QueueError::Config(ConfigError::QueueOptions { name })) if name == "a"));
    drop(all);
    let mut group = None;
    // The writer may hold one of them a moment longer.
    eventually("the queues to be closed", || {
        group = abc(&store, &clock).open().ok();
        group.is_some()
    });
    let group = group.unwrap();
    assert_refused(group.push(job("d")), "kind unknown", &["d"]);
    assert_refused(group.push_all([job("a"), job("d")]), "kind unknown", &["d"]);
    assert_refused(group.only(["d"]), "queue unknown", &["d"]);
    assert_refused(group.only([""; 0]), "empty", &[]);
    assert_refused(group.except(["a", "b", "c"]), "empty", &[]);
    assert_eq!(group.counts().ready, 0);
}

#[test]
fn jobs_for_several_queues_are_pushed_all_or_none() {
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
fn a_user_write_can_push_into_a_group() {
    on_store(|store| {
        let group = abc(store, &Clock::manual(noon())).open().unwrap();
        store
            .write(|effects| {
                group.push_with(effects, job("a"))?;
                group.push_with(effects, job("c"))?;
                Ok(())
            })
            .unwrap();
        assert_eq!((queue(&group, "a").counts().ready, queue(&group, "c").counts().ready), (1, 1));
        let refused = store.write(|effects| {
            group.push_with(effects, job("b"))?;
            drop(group.push_with(effects, job("d")));
            Ok(())
        });
        let refused = refused.map_err(QueueError::from);
        let is_unknown = matches!(refused, Err(QueueError::Config(ConfigError::Group { fault: "kind unknown", .. })));
        assert!(is_unknown, "{refused:?}");
        assert_eq!(group.counts().ready, 2);
    });
}

/// Opens a group with jobs that are ready, paused and scheduled.
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
fn a_group_knows_its_ready_queues_after_a_crash() {
    let (disk, clock) = (FaultyStore::new().unwrap(), Clock::manual(noon()));
    let group = first_life(&disk.store(), &clock);
    let _running = accept(&group).expect("`a` has a job");
    second_life(&disk.after_crash().unwrap().store(), &clock);
}

#[test]
fn a_group_knows_its_ready_queues_after_a_restart() {
    let (place, clock) = (Place::default(), Clock::manual(noon()));
    drop(first_life(&place.open(), &clock));
    second_life(&place.open(), &clock);
}

/// Runs all jobs of a group, which count their runs in a table.
fn drain_counting(group: &Group, store: &Store) {
    let done = store.table("done").unwrap();
    let runner = ["a", "b", "c"].into_iter().fold(group.runner().max_processing(1), |runner, kind| {
        let done = done.clone();
        runner.on_transactional(kind, move |job, _: u32, effects| {
            effects.add(&done, job.id(), 1)?;
            Ok(Outcome::Done)
        })
    });
    runner.drain(DrainLimits::default()).unwrap();
}

#[test]
fn a_crash_at_any_write_runs_each_group_job_once() {
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
        // All pushes are there, or none.
        let all = counts.ready + counts.finished;
        assert!(all == 4 || all == 0 && next.struck, "{counts:?}");
        assert_eq!(times().iter().sum::<i64>(), counts.finished as i64);
        drain_counting(&group, &store);
        assert_eq!(times(), [(all / 4) as i64; 4]);
    });
}

#[test]
fn a_claim_whose_write_fails_leaves_its_job_to_a_waiter() {
    // Both claims may share the write that fails; then the trial is repeated.
    for _ in 0..100 {
        let disk = FaultyStore::new().unwrap();
        let group = abc(&disk.store(), &Clock::manual(noon())).open().unwrap();
        let accepted = std::thread::scope(|scope| {
            let accept = || {
                let lease = group.accept(Accept::new().timeout(HOUR));
                lease.map(|lease| lease.map(|mut lease| lease.finish(None).unwrap()))
            };
            let waiters = [scope.spawn(accept), scope.spawn(accept)];
            // The push is written, and the first claim fails.
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
fn an_end_and_the_next_queues_claim_are_one_write() {
    let disk = FaultyStore::new().unwrap();
    let group = abc(&disk.store(), &Clock::manual(noon())).open().unwrap();
    let count = 40;
    group.push_all(["a", "b", "c"].iter().cycle().take(count).map(|kind| job(kind))).unwrap();
    let before = disk.writes();
    let summary = done(group.runner().max_processing(1)).drain(DrainLimits::default()).unwrap();
    assert_eq!(summary.finished, count as u64);
    // A claim, one write for each end with the next claim, and the last end.
    assert_eq!(disk.writes() - before, count as u64 + 1);
}

#[test]
fn a_due_job_in_any_queue_wakes_the_caller() {
    // Real time: this thread sleeps, so it cannot move a clock.
    let clock = Clock::default();
    let group = abc(&Store::in_memory(), &clock).open().unwrap();
    for kind in ["c", "a"] {
        let begun = std::time::Instant::now();
        group.push(job(kind).delay(20 * MILLI)).unwrap();
        assert!(group.accept(Accept::new().timeout(HOUR)).unwrap().is_some());
        assert!(begun.elapsed() < 60 * SECOND);
    }
}
