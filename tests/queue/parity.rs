//! The features and the finer rules of CouchDB's jobs (`c`), of MediaWiki's queue (`m`) with its
//! Kafka runner (`p`), and of Mosquito (`q`), where no other test shows that the queue has them, or
//! that it lacks a defect of theirs. A test is named by its rows of the page `queue::parity`.

use common::queues::{
    Bench, DAY, MILLI, MINUTE, SECOND, in_lives, job, leak, noon, on_each, on_each_with, on_store, on_store_with, with,
};
use common::{HOUR, LONG};
use crossbeam_channel::bounded;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use waterline::fuzzing::Disk;
use waterline::queue::{
    Accept, Clock, Counts, JobState, Lease, Limit, Limits, NewJob, Outcome, PushOutcome, Queue, QueueChange,
    QueueError, QueueOptions, Rate, Retention, Runner, Skipped, Subscription, Unique, Unknown,
};
use waterline::testing::FaultyStore;
use waterline::{Error, Failure, Retry, Store};

#[track_caller]
fn assert_halt<R: std::fmt::Debug>(answer: Result<R, QueueError>) {
    assert!(matches!(answer, Err(QueueError::Halt { .. })), "{answer:?}");
}

/// A queue on a disk that counts and refuses writes, with the clock of the test.
fn faulty(options: QueueOptions) -> (FaultyStore, Queue, Clock) {
    let (disk, clock) = (FaultyStore::new().unwrap(), Clock::manual(noon()));
    let queue = Queue::open(&disk.store(), "q", options.clock(clock.clone())).unwrap();
    (disk, queue, clock)
}

// The table of CouchDB's states: each call on each of them.

/// The places that a job can be in.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Absent,
    Ready,
    Scheduled,
    /// With another worker, where a lease was lost.
    Running,
    Finished,
    Dead,
}

/// The first job of a queue has the place of one that has none, so it is a ready one.
const PLACES: [Place; 6] =
    [Place::Ready, Place::Absent, Place::Scheduled, Place::Running, Place::Finished, Place::Dead];

/// The ways in which a worker loses its job.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Removal,
    Silence,
    End,
}

fn tomorrow() -> std::time::SystemTime {
    noon() + DAY
}

/// Brings a job that is ready to a place. Returns its lease if it runs there.
fn bring(bench: &Bench, id: &str, place: Place) -> Option<Lease> {
    match place {
        Place::Absent => bench.queue.remove(id).unwrap(),
        Place::Ready => {}
        Place::Scheduled => assert_eq!(bench.push(with(id, 1).run_at(tomorrow())), PushOutcome::Rescheduled),
        Place::Running => return Some(bench.claim()),
        Place::Finished => drop(bench.claim().finish(Some("end".into())).unwrap()),
        Place::Dead => {
            let mut lease = bench.claim();
            lease.update(Some("half".into())).unwrap();
            lease.bury("no").unwrap();
        }
    }
    None
}

/// Lets a worker lose its job, and brings that job to a place. Returns both leases.
fn lose(bench: &Bench, id: &str, loss: Loss, place: Place) -> (Lease, Option<Lease>) {
    let mut lease = bench.running(id);
    match loss {
        Loss::End => {
            lease.finish(None).unwrap();
            bench.push(with(id, 1));
        }
        Loss::Removal => {
            bench.queue.remove(id).unwrap();
            bench.push(with(id, 1));
        }
        Loss::Silence => {
            bench.clock.advance(MINUTE);
            assert!(bench.accept().is_none(), "it waits for its back-off");
            bench.clock.advance(SECOND);
            // A push looks for jobs that are due.
            bench.push(job("other"));
            bench.queue.remove("other").unwrap();
        }
    }
    assert_eq!(bench.state(id), Some(JobState::Ready));
    (lease, bring(bench, id, place))
}

#[test]
fn c13_c14_c15_each_call_of_a_lost_lease_is_halt_and_writes_nothing_wherever_its_job_is() {
    type Call = fn(&mut Lease, &waterline::Table) -> Result<(), QueueError>;
    let calls: [Call; 10] = [
        |lease, _| lease.update(None),
        |lease, _| lease.update(Some("late".into())),
        |lease, table| lease.write(|effects| effects.put(table, "row", "late")),
        |lease, _| lease.finish(Some("late".into())).map(drop),
        |lease, table| lease.finish_with(|effects| effects.put(table, "row", "late")).map(drop),
        |lease, _| lease.retry("late").map(drop),
        |lease, _| lease.retry_at(noon(), "late").map(drop),
        |lease, _| lease.snooze(noon()).map(drop),
        |lease, _| lease.bury("late").map(drop),
        |lease, _| lease.resubmit(None),
    ];
    on_store_with(QueueOptions::default().retention(Retention::Keep).dead_for(3650 * DAY), |bench| {
        let table = bench.store().table("rows").unwrap();
        for loss in [Loss::Removal, Loss::Silence, Loss::End] {
            for place in PLACES {
                for (number, call) in calls.iter().enumerate() {
                    let (mut lost, other) = lose(&bench, "a", loss, place);
                    let before = (bench.queue.get("a").unwrap(), bench.queue.counts());
                    assert_halt(call(&mut lost, &table));
                    drop(lost);
                    let after = (bench.queue.get("a").unwrap(), bench.queue.counts());
                    assert_eq!(after, before, "{loss:?} {place:?} {number}");
                    assert_eq!(table.get("row").unwrap(), None);
                    if let Some(mut other) = other {
                        assert_eq!(other.finish(None).unwrap(), Some(JobState::Finished), "its lease holds");
                    }
                    if place != Place::Absent {
                        bench.queue.remove("a").unwrap();
                    }
                }
            }
        }
    });
}

#[test]
fn c01_to_c05_a_push_on_each_state_does_as_the_table_says() {
    let other = noon() + 2 * DAY;
    on_each(|bench| {
        for place in PLACES {
            for later in [true, false] {
                bench.push(with("a", 1));
                let lease = bring(&bench, "a", place);
                let before = bench.queue.get("a").unwrap();
                let is_same = if later { place == Place::Scheduled } else { place == Place::Ready };
                // The same due time is that of the place: none, or tomorrow.
                let due = later.then(|| if is_same { tomorrow() } else { other });
                if place == Place::Running {
                    // The last one of such pushes holds.
                    bench.push(with("a", 3).run_at(noon() + HOUR));
                }
                let new = due.iter().fold(with("a", 2), |new, due| new.run_at(*due));
                let outcome = bench.push(new);
                let info = bench.info("a");
                let payload: u32 = info.payload().unwrap();
                match place {
                    Place::Absent | Place::Finished | Place::Dead => {
                        assert_eq!((outcome, payload), (PushOutcome::Added, 2), "{place:?} {later}");
                        assert_eq!((info.failures, info.data.clone(), info.error.clone()), (0, None, None));
                    }
                    Place::Running => {
                        assert_eq!((outcome, payload), (PushOutcome::Resubmit, 1), "{later}");
                        assert_eq!((info.state, info.resubmitted), (JobState::Running, true));
                    }
                    Place::Ready | Place::Scheduled if is_same => {
                        assert_eq!(outcome, PushOutcome::Duplicate("a".to_owned()), "{place:?}");
                        assert_eq!(Some(&info), before.as_ref(), "not even its payload is changed");
                    }
                    Place::Ready | Place::Scheduled => {
                        assert_eq!((outcome, payload), (PushOutcome::Rescheduled, 2), "{place:?} {later}");
                    }
                }
                let waits = if later { JobState::Scheduled } else { JobState::Ready };
                if let Some(mut lease) = lease {
                    let ended = if later { lease.finish(Some("data".into())) } else { lease.bury("no") };
                    assert_eq!(ended.unwrap(), Some(waits), "it runs once more");
                    let info = bench.info("a");
                    assert_eq!((info.resubmitted, info.failures), (false, 0));
                    assert_eq!((info.data, info.error), (later.then(|| "data".into()), (!later).then(|| "no".into())));
                }
                let info = bench.info("a");
                assert_eq!((info.state, info.run_at), (waits, due), "{place:?}");
                let counts = bench.queue.counts();
                assert_eq!(counts.ready + counts.scheduled, 1);
                assert_eq!((counts.running, counts.finished, counts.dead), (0, 0, 0));
                let runs = if later { &[][..] } else { &["a"] };
                assert_eq!(bench.claim_all(), runs, "{place:?}: an entry of its old place is stale");
                bench.queue.remove("a").unwrap();
            }
        }
    });
}

#[test]
fn c06_c07_c22_a_removal_and_a_look_on_each_state_do_as_the_table_says() {
    let states = [
        Some(JobState::Ready),
        None,
        Some(JobState::Scheduled),
        Some(JobState::Running),
        Some(JobState::Finished),
        Some(JobState::Dead),
    ];
    on_each(|bench| {
        for (place, state) in PLACES.into_iter().zip(states) {
            bench.push(with("a", 1));
            let lease = bring(&bench, "a", place);
            assert_eq!((bench.state("a"), bench.queue.get("a").unwrap().map(|info| info.state)), (state, state));
            if place == Place::Finished {
                assert_eq!(bench.info("a").kept_until, Some(noon() + MINUTE), "the default retention");
            }
            let mut subscription = bench.queue.subscribe("a");
            match (&mut subscription, state) {
                (Ok(subscription), Some(state)) => {
                    assert_eq!(subscription.state(), Some(state));
                    let seen = subscription.wait_for(state, Duration::ZERO).unwrap().unwrap();
                    assert_eq!(seen.data, bench.info("a").data);
                    assert_eq!(subscription.wait(Duration::ZERO).unwrap(), None, "nothing has changed since");
                }
                (Err(QueueError::NotFound { .. }), None) => {}
                other => panic!("{place:?}: {other:?}"),
            }
            let removed = bench.queue.remove("a");
            assert_eq!(removed.is_ok(), state.is_some(), "{place:?}: {removed:?}");
            if let Ok(mut subscription) = subscription {
                assert_eq!(subscription.wait(LONG).unwrap().unwrap().state, None);
            }
            assert!(matches!(bench.queue.remove("a"), Err(QueueError::NotFound { .. })));
            assert_eq!(bench.state("a"), None);
            if let Some(mut lease) = lease {
                assert_halt(lease.finish(None));
            }
            assert_eq!(bench.queue.counts(), Counts::default());
            bench.none();
        }
        bench.pass(2 * DAY);
    });
}

// CouchDB.

#[test]
fn c07_the_queues_of_a_store_are_listed_by_their_names() {
    on_store(|bench| {
        assert_eq!(Queue::names(bench.store()).unwrap(), ["q"]);
        for name in ["z", "a", "a longer one", "\u{10ffff}"] {
            bench.database.open(name, bench.options.clone()).unwrap().push(job("x")).unwrap();
        }
        assert_eq!(Queue::names(bench.store()).unwrap(), ["a", "a longer one", "q", "z", "\u{10ffff}"]);
    });
    let disk = Disk::default();
    let written = disk.open(&Store::options()).unwrap();
    assert_eq!(Queue::names(&written).unwrap(), [""; 0]);
    Queue::open(&written, "q", QueueOptions::default()).unwrap();
    drop(written);
    let read_only = disk.open(&Store::options().read_only()).unwrap();
    assert_eq!(Queue::names(&read_only).unwrap(), ["q"]);
}

#[test]
fn c10_a_job_whose_id_is_the_last_one_of_its_time_is_not_skipped() {
    on_each(|bench| {
        let last = "\u{10ffff}".repeat(63);
        bench.push(job(&last).run_at(noon() + HOUR));
        bench.push(job("a").run_at(noon() + HOUR));
        let early = || bench.queue.accept(Accept::new().max_run_at(noon() + HOUR)).unwrap();
        let leases: Vec<_> = std::iter::from_fn(early).collect();
        let ids: Vec<_> = leases.iter().map(Lease::id).collect();
        assert_eq!(ids, ["a", &last]);
    });
}

#[test]
fn c11_ids_that_are_alike_and_jobs_for_later_hold_up_no_claim() {
    on_each(|bench| {
        bench.queue.push_all((0..2000).map(|n| job(&format!("job {n:05}")).delay(HOUR))).unwrap();
        bench.queue.push_all((2000..2003).map(|n| job(&format!("job {n:05}")))).unwrap();
        assert_eq!(bench.claim_all(), ["job 02000", "job 02001", "job 02002"]);
    });
}

#[test]
fn c13_data_that_is_no_json_is_refused_and_the_job_runs_on() {
    on_each(|bench| {
        bench.push(job("a"));
        let keys = BTreeMap::from([((1, 2), 3)]);
        let summary = Runner::builder(&bench.queue)
            .on("k", move |job, _: u32| {
                job.update(&"half")?;
                assert!(matches!(job.update(&keys), Err(QueueError::Payload { .. })));
                assert_eq!(job.data(), Some("half".into()), "nothing is changed");
                job.check()?;
                Ok(Outcome::Done)
            })
            .drain(Limits::default())
            .unwrap();
        assert_eq!(summary.finished, 1, "{summary}");
        assert_eq!(bench.info("a").data, Some("half".into()));
    });
}

#[test]
fn c18_a_job_pushes_itself_for_later_in_the_write_of_its_end() {
    in_lives(|bench| {
        let queue = bench.queue.clone();
        let mut lease = bench.running("a");
        lease.finish_with(|effects| effects.enqueue(&queue, with("a", 2).delay(HOUR)).map(drop)).unwrap();
        let bench = bench.next_life();
        assert_eq!((bench.state("a"), bench.payload("a")), (Some(JobState::Scheduled), 2));
        assert_eq!(bench.info("a").crashes, 0);
        bench.clock.advance(HOUR);
        assert_eq!(bench.claim().id(), "a");
    });
}

#[test]
fn c21_where_taking_back_fails_in_the_middle_the_next_look_takes_the_rest() {
    let (disk, queue, clock) = faulty(QueueOptions::default());
    queue.push_all((0..100).map(|n| job(&n.to_string()))).unwrap();
    let leases: Vec<_> = (0..100).map(|_| queue.accept(Accept::new()).unwrap().unwrap()).collect();
    clock.advance(MINUTE);
    disk.fail(40..);
    assert!(matches!(queue.accept(Accept::new()), Err(QueueError::Store(Error::Store { .. }))));
    let counts = queue.counts();
    assert!(counts.running > 0 && counts.scheduled > 0 && counts.running + counts.scheduled == 100, "{counts:?}");
    disk.heal();
    assert!(queue.accept(Accept::new()).unwrap().is_none());
    assert_eq!((queue.counts().running, queue.counts().scheduled), (0, 100));
    let jobs = queue.list(JobState::Scheduled, None, 1000).unwrap();
    assert!(jobs.iter().all(|job| job.failures == 1), "each has failed once");
    leases.into_iter().for_each(leak);
}

#[test]
fn c23_a_job_that_is_removed_and_pushed_again_is_seen_again() {
    on_each(|bench| {
        bench.push(job("a"));
        let mut subscription = bench.queue.subscribe("a").unwrap();
        bench.queue.remove("a").unwrap();
        assert_eq!(subscription.wait(LONG).unwrap().unwrap().state, None);
        bench.push(job("another one"));
        assert_eq!(subscription.wait(Duration::ZERO).unwrap(), None);
        bench.push(job("a").delay(MINUTE));
        assert_eq!(subscription.wait(Duration::ZERO).unwrap().unwrap().state, Some(JobState::Scheduled));
    });
}

#[test]
fn c24_a_wait_for_several_jobs_tells_the_first_one_that_changes() {
    // The clock may run on while a thread wakes, and the rows are to stay.
    on_each_with(QueueOptions::default().retention(Retention::Keep), |bench| {
        let other = bench.database.open("other", bench.options.clone()).unwrap();
        for n in 0..3 {
            bench.push(job(&n.to_string()));
        }
        other.push(job("3")).unwrap();
        let mut all: Vec<_> = (0..3).map(|n| bench.queue.subscribe(n.to_string()).unwrap()).collect();
        all.push(other.subscribe("3").unwrap());
        let wait = |all: &mut Vec<Subscription>| Subscription::wait_any(all, Duration::ZERO).unwrap();
        assert_eq!(wait(&mut all), None);
        assert_eq!(wait(&mut Vec::new()), None, "nobody would ever be told");
        bench.queue.remove("2").unwrap();
        bench.claim().finish(Some(7.into())).unwrap();
        let told = std::iter::from_fn(|| wait(&mut all)).take(9);
        let told: Vec<_> = told.map(|(place, seen)| (place, seen.state)).collect();
        assert_eq!(told, [(0, Some(JobState::Finished)), (2, None)], "each change is told once");
        let mut wait_for = |state| Subscription::wait_any_for(&mut all, state, Duration::ZERO).unwrap();
        assert_eq!(wait_for(JobState::Dead), None);
        let (place, seen) = wait_for(JobState::Finished).unwrap();
        assert_eq!((place, seen.data), (0, Some(7.into())));
        // A thread that sleeps is woken by a job of any queue, and by its deadline.
        for is_timed in [false, true] {
            let (sender, answers) = bounded(1);
            std::thread::scope(|scope| {
                scope.spawn(|| sender.send(Subscription::wait_any(&mut all, 30 * SECOND).unwrap()).unwrap());
                if !is_timed {
                    other.accept(Accept::new()).unwrap().unwrap().finish(None).unwrap();
                    assert_eq!(answers.recv_timeout(LONG).unwrap().map(|(place, _)| place), Some(3));
                } else {
                    let mut waited = Duration::ZERO;
                    while answers.is_empty() {
                        bench.clock.advance(SECOND);
                        waited += SECOND;
                        std::thread::yield_now();
                    }
                    assert_eq!(answers.recv_timeout(LONG).unwrap(), None);
                    assert!(waited >= 30 * SECOND, "it waited for {waited:?} only");
                }
            });
            // The end of the job may be told after its claim was.
            while wait(&mut all).is_some() {}
        }
        bench.queue.purge().unwrap();
        for id in ["0", "1", "3"] {
            drop((bench.queue.remove(id), other.remove(id)));
        }
        assert_eq!(Subscription::wait_any_for(&mut all, JobState::Ready, LONG).unwrap(), None, "all are gone");
    });
}

#[test]
fn c25_a_subscription_that_is_dropped_leaves_no_news_to_the_next_one() {
    on_each(|bench| {
        bench.push(job("a"));
        let (dropped, mut other) = (bench.queue.subscribe("a").unwrap(), bench.queue.subscribe("a").unwrap());
        let mut lease = bench.claim();
        lease.update(Some(1.into())).unwrap();
        drop(dropped);
        lease.update(Some(2.into())).unwrap();
        let mut next = bench.queue.subscribe("a").unwrap();
        assert_eq!(next.state(), Some(JobState::Running));
        assert_eq!(next.wait(Duration::ZERO).unwrap(), None, "nothing has happened since");
        lease.finish(None).unwrap();
        assert_eq!(next.wait(LONG).unwrap().unwrap().state, Some(JobState::Finished));
        assert!(other.wait_for(JobState::Finished, LONG).unwrap().is_some(), "it is independent of the others");
    });
}

#[test]
fn c30_a_handler_whose_job_is_removed_learns_it_and_its_end_changes_nothing() {
    on_each(|bench| {
        bench.push(job("a"));
        let queue = bench.queue.clone();
        let summary = Runner::builder(&bench.queue)
            .on("k", move |job, _: u32| {
                job.check()?;
                queue.remove(job.id())?;
                assert_halt(job.check());
                assert_halt(job.update(&1));
                queue.push(with("a", 2).delay(HOUR))?;
                assert_halt(job.update(&1));
                Ok(Outcome::DoneWith("late".into()))
            })
            .drain(Limits::default())
            .unwrap();
        assert_eq!((summary.finished, summary.lost), (0, 1), "{summary}");
        let info = bench.info("a");
        assert_eq!((info.state, info.data.clone(), bench.payload("a")), (JobState::Scheduled, None, 2));
    });
}

// MediaWiki.

#[test]
fn m04_leaves_of_leaves_have_the_time_of_the_root_however_late_they_are_pushed() {
    on_each_with(QueueOptions::default().lease(DAY), |bench| {
        bench.push(job("root").root("tree", noon()));
        for (from, to) in [("root", "leaf"), ("leaf", "leaf of leaf")] {
            let mut lease = bench.claim();
            assert_eq!(lease.id(), from);
            bench.clock.advance(HOUR);
            bench.push(job(to).leaf(lease.root().expect("it inherits it")));
            lease.finish(None).unwrap();
        }
        let root = bench.info("leaf of leaf").root.unwrap();
        assert_eq!((root.signature.as_str(), root.timestamp), ("tree", noon()));
        bench.push(job("newer").root("tree", noon() + MILLI));
        assert_eq!(bench.claim_all(), ["newer"], "so a newer root makes all of them needless");
    });
}

#[test]
fn m07_a_job_that_splits_itself_keeps_the_queue_short() {
    on_store(|bench| {
        const LEAVES: u64 = 3;
        let (done, asks) = (bench.store().table("done").unwrap(), bench.queue.clone());
        bench.push(NewJob::new("range", &(0, 100)).unwrap());
        let next = bench.queue.clone();
        let summary = Runner::builder(&bench.queue)
            .on_transactional("range", move |_, (from, to): (u64, u64), effects| {
                assert!(asks.counts().ready <= LEAVES, "the rest is pushed last, behind its leaves");
                let split = to.min(from + LEAVES);
                for leaf in from..split {
                    effects.enqueue(&next, NewJob::new("leaf", &leaf)?)?;
                }
                if split < to {
                    effects.enqueue(&next, NewJob::new("range", &(split, to))?)?;
                }
                Ok(Outcome::Done)
            })
            .on_transactional("leaf", {
                let done = done.clone();
                move |_, leaf: u64, effects| {
                    effects.add(&done, leaf.to_string(), 1)?;
                    Ok(Outcome::Done)
                }
            })
            .max_processing(1)
            .drain(Limits::default())
            .unwrap();
        assert_eq!((summary.finished, summary.dead, summary.retried), (100 + 34, 0, 0), "{summary}");
        assert!((0..100).all(|leaf| done.counter(leaf.to_string()).unwrap() == 1));
    });
}

#[test]
fn m08_m09_a_store_that_is_read_only_refuses_a_queue_by_its_name() {
    let disk = Disk::default();
    let store = disk.open(&Store::options()).unwrap();
    Queue::open(&store, "q", QueueOptions::default()).unwrap().push(job("a")).unwrap();
    drop(store);
    let store = disk.open(&Store::options().read_only()).unwrap();
    let refused = Queue::open(&store, "q", QueueOptions::default());
    assert!(matches!(refused, Err(QueueError::Store(Error::ReadOnly))), "{refused:?}");
}

#[test]
fn m09_an_empty_push_writes_nothing_and_a_push_that_fails_registers_no_root() {
    let (disk, queue, _) = faulty(QueueOptions::default());
    let before = disk.writes();
    assert_eq!(queue.push_all([]).unwrap(), []);
    assert_eq!(disk.writes(), before);
    queue.push(job("old").root("tree", noon())).unwrap();
    disk.fail(..);
    assert!(queue.push(job("new").root("tree", noon() + MINUTE)).is_err());
    disk.heal();
    assert_eq!(queue.accept(Accept::new()).unwrap().expect("its root is the newest one").id(), "old");
}

#[test]
fn m10_a_push_of_many_jobs_is_one_write_whatever_their_settings() {
    let (disk, queue, _) = faulty(QueueOptions::default());
    let jobs = || {
        let plain = (0..1000).map(|n| job(&n.to_string()));
        let unique = (0..1000).map(|n| with(&format!("u{n}"), n).unique(Unique::until_done()));
        plain.chain(unique)
    };
    disk.fail(..);
    assert!(queue.push_all(jobs()).is_err());
    disk.heal();
    assert_eq!(queue.counts(), Counts::default(), "all or none");
    let before = disk.writes();
    assert_eq!(queue.push_all(jobs()).unwrap().len(), 2000);
    assert_eq!((disk.writes() - before, queue.counts().ready), (1, 2000));
}

#[test]
fn m13_q07_q25_a_claim_is_written_before_the_job_runs_so_a_death_counts_at_once() {
    in_lives(|mut bench| {
        bench.push(job("a"));
        bench.push(job("neighbour"));
        leak(bench.claim());
        bench = bench.next_life();
        assert_eq!((bench.info("a").crashes, bench.info("a").failures), (1, 0));
        assert_eq!(bench.info("neighbour").crashes, 0);
        assert_eq!(bench.claim().id(), "neighbour");
        let lease = bench.claim();
        assert_eq!((lease.id(), lease.attempt(), lease.crashes()), ("a", 1, 1), "it runs again without a wait");
        leak(lease);
        bench = bench.next_life();
        assert_eq!((bench.state("a"), bench.info("a").crashes), (Some(JobState::Scheduled), 2), "after a back-off");
    });
}

#[test]
fn m21_jobs_whose_time_has_come_stand_behind_the_ready_ones_in_the_order_of_their_times() {
    on_each(|bench| {
        bench.push(job("late").delay(3 * SECOND));
        bench.push(job("early").delay(SECOND));
        bench.push(job("middle").run_at(noon() + 2 * SECOND));
        bench.push(job("ready"));
        bench.push(job("past").run_at(noon() - DAY));
        assert_eq!(bench.state("past"), Some(JobState::Ready), "a past time means at once");
        bench.clock.advance(3 * SECOND);
        assert_eq!(bench.claim_all(), ["ready", "past", "early", "middle", "late"]);
    });
}

#[test]
fn m29_jobs_for_several_queues_are_pushed_in_one_write() {
    on_store(|bench| {
        let other = bench.database.open("other", bench.options.clone()).unwrap();
        let push = |is_good: bool| {
            let written = bench.store().write(|effects| {
                effects.enqueue(&bench.queue, job("a"))?;
                effects.enqueue(&other, job("b"))?;
                if is_good { Ok(()) } else { Err(Error::Stopped) }
            });
            written.is_ok()
        };
        assert!(!push(false));
        assert_eq!((bench.queue.counts().ready, other.counts().ready), (0, 0));
        assert!(push(true));
        assert_eq!((bench.queue.counts().ready, other.counts().ready), (1, 1));
    });
}

#[test]
fn m34_the_rate_of_one_kind_leaves_that_of_another_and_a_needless_job_takes_no_token() {
    let slow = |kind: &str| Limit::kind(kind).rate(Rate::new(1, MINUTE));
    on_each_with(QueueOptions::default().limit(slow("a")).limit(slow("b")), |mut bench| {
        let new = |kind: &str, id: &str| NewJob::new(kind, &1).unwrap().id(id);
        bench.queue.push_all(["a1", "a2", "b1", "b2"].map(|id| new(&id[..1], id))).unwrap();
        assert_eq!(bench.claim_all(), ["a1", "b1"]);
        bench.reopen();
        assert!(bench.claim_all().is_empty(), "a restart forgets neither");
        bench.clock.advance(MINUTE);
        assert_eq!(bench.claim_all(), ["a2", "b2"]);
        bench.push(new("a", "old").root("tree", noon()));
        bench.push(new("a", "newer").root("tree", noon() + MILLI));
        bench.clock.advance(MINUTE);
        assert_eq!(bench.claim_all(), ["newer"], "the needless one before it has cost nothing");
        assert_eq!(bench.info("old").skipped, Some(Skipped::Superseded));
    });
}

// The Kafka runner.

#[test]
fn p06_a_job_for_later_holds_no_slot() {
    on_each(|bench| {
        bench.queue.push_all((0..50).map(|n| job(&format!("later {n}")).delay(HOUR))).unwrap();
        bench.push(job("now"));
        let runner = || Runner::builder(&bench.queue).on("k", |_, _: u32| Ok(Outcome::Done)).max_processing(1);
        assert_eq!(runner().drain(Limits::default()).unwrap().finished, 1);
        assert_eq!((bench.queue.counts().scheduled, bench.state("now")), (50, Some(JobState::Finished)));
        bench.clock.advance(HOUR);
        assert_eq!(runner().drain(Limits::default()).unwrap().finished, 50);
    });
}

#[test]
fn p07_a_leaf_expires_with_its_root() {
    on_each_with(QueueOptions::default().lease(DAY), |bench| {
        bench.push(job("root").root("tree", noon()).expires(HOUR));
        let mut lease = bench.claim();
        let root = lease.root().unwrap().clone();
        bench.clock.advance(HOUR / 2);
        let left = |passed: Duration| (root.timestamp + HOUR).duration_since(noon() + passed).unwrap_or_default();
        bench.push(job("leaf").leaf(&root).expires(left(HOUR / 2)));
        assert_eq!(bench.info("leaf").expires_at, Some(noon() + HOUR));
        bench.clock.advance(HOUR / 2);
        bench.push(job("late leaf").leaf(&root).expires(left(HOUR)));
        lease.finish(None).unwrap();
        assert!(bench.accept().is_none());
        assert_eq!((bench.state("leaf"), bench.state("late leaf")), (Some(JobState::Dead), Some(JobState::Dead)));
    });
}

#[test]
fn p10_a_key_that_fails_too_often_has_its_jobs_refused_for_a_while() {
    on_each_with(QueueOptions::default().retry(Retry::none()), |bench| {
        fn customer(job: &waterline::queue::Running) -> String {
            job.id().split('/').next().unwrap_or_default().to_owned()
        }
        let failures = bench.queue.notes("k").unwrap();
        let drain = || {
            let (counts, counted) = (failures.clone(), failures.clone());
            Runner::builder(&bench.queue)
                .on("k", |job, _: u32| if job.id().starts_with("bad") { Err("500".into()) } else { Ok(Outcome::Done) })
                .before(move |job| match counts.get(customer(job))?.and_then(|failures| failures.as_u64()) {
                    Some(3..) => Err(Failure::permanent("it has failed too often").into()),
                    _ => Ok(()),
                })
                .after(move |job, answer| {
                    if answer.as_ref().is_err_and(|error| error.to_string() == "500") {
                        counted.add(customer(job), 1).unwrap();
                        counted.keep_for(customer(job), HOUR).unwrap();
                    }
                })
                .max_processing(1)
                .drain(Limits::default())
                .unwrap()
        };
        let errors = |ids: std::ops::Range<u32>| {
            let dead = ids.map(|n| bench.info(&format!("bad/{n}")).error.unwrap());
            dead.collect::<Vec<_>>()
        };
        bench.queue.push_all((0..5).flat_map(|n| [job(&format!("bad/{n}")), job(&format!("good/{n}"))])).unwrap();
        let summary = drain();
        assert_eq!((summary.finished, summary.dead), (5, 5), "{summary}");
        assert_eq!(errors(0..5), ["500", "500", "500", "it has failed too often", "it has failed too often"]);
        bench.clock.advance(HOUR);
        bench.push(job("bad/5"));
        assert_eq!((drain().dead, errors(5..6)), (1, vec!["500".to_owned()]), "its time is over");
    });
}

// Mosquito.

#[test]
fn q01_no_id_that_the_queue_makes_comes_twice_though_the_clock_stands_still() {
    in_lives(|mut bench| {
        let mut ids = BTreeSet::new();
        let mut count = 0;
        for _ in 0..3 {
            let made = || NewJob::new("k", &1).unwrap().retention(Retention::Drop);
            let pushed = bench.queue.push_all((0..1000).map(|_| made())).unwrap();
            ids.extend(pushed.into_iter().map(|pushed| pushed.id));
            let queue = bench.queue.clone();
            bench.store().write(|effects| effects.enqueue(&queue, made()).map(drop)).unwrap();
            ids.extend(bench.queue.list(JobState::Ready, None, 2000).unwrap().into_iter().map(|job| job.id));
            count += 1001;
            // Nothing is left by which a number could be told.
            assert_eq!(bench.claim_all().len(), 1001);
            bench = bench.next_life();
        }
        assert_eq!(ids.len(), count);
    });
}

#[test]
fn q03_payloads_of_many_types_come_back_as_they_were() {
    fn comes_back<P>(bench: &Bench, payload: P)
    where
        P: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
    {
        bench.queue.push(NewJob::new("k", &payload).unwrap()).unwrap();
        let mut lease = bench.claim();
        assert_eq!(lease.payload::<P>().unwrap(), payload);
        lease.finish(None).unwrap();
    }
    on_each(|bench| {
        comes_back(&bench, (i8::MIN, i64::MIN, u64::MAX, 0.1_f64, 1.5e-30_f32));
        comes_back(&bench, (false, true, 'ß', "Grüße\u{0}\n\"".to_owned()));
        comes_back(&bench, (None::<u32>, Some("x".to_owned()), ()));
        comes_back(&bench, vec![BTreeMap::from([("k".to_owned(), vec![1, 2])]), BTreeMap::new()]);
        comes_back(&bench, [0_u8, 255, 7, 9]);
        comes_back(&bench, Duration::new(3, 5));
        comes_back(&bench, serde_json::json!({ "a": [null, 1.25, "x"] }));
        comes_back(&bench, "x".repeat(1_000_000));
    });
}

#[test]
fn q10_q17_a_hook_that_is_not_ready_sets_the_time_of_the_next_look_and_no_attempt_counts() {
    on_each_with(QueueOptions::default().retry(Retry::none()), |bench| {
        bench.push(job("a"));
        let (ran, runs) = crossbeam_channel::unbounded();
        let drain = |is_ready: bool| {
            let ran = ran.clone();
            Runner::builder(&bench.queue)
                .on("k", |_, _: u32| Ok(Outcome::Done))
                .before(move |_| if is_ready { Ok(()) } else { Err(Failure::defer(HOUR).into()) })
                .after(move |_, answer| ran.send(answer.is_ok()).unwrap())
                .drain(Limits::default())
                .unwrap()
        };
        for n in 1..=20 {
            let summary = drain(false);
            assert_eq!((summary.snoozed, summary.dead), (1, 0), "{summary}");
            assert_eq!((bench.info("a").run_at, bench.info("a").failures), (Some(noon() + n * HOUR), 0));
            bench.clock.advance(HOUR - MILLI);
            assert!(bench.accept().is_none(), "not before its time");
            bench.clock.advance(MILLI);
        }
        assert_eq!(drain(true).finished, 1);
        let after: Vec<_> = runs.try_iter().collect();
        assert_eq!((after.len(), after[19], after[20]), (21, false, true), "a hook after it is always called");
    });
}

#[test]
fn q14_q15_a_job_without_a_handler_dies_once_and_goes_away_with_its_time() {
    on_each(|bench| {
        bench.push(NewJob::new("unknown", &7).unwrap().id("a"));
        let summary = Runner::builder(&bench.queue)
            .on("k", |_, _: u32| Ok(Outcome::Done))
            .unknown(Unknown::Dead)
            .drain(Limits::default())
            .unwrap();
        assert_eq!(summary.dead, 1);
        let dead = bench.queue.list(JobState::Dead, None, 9).unwrap();
        assert_eq!((dead.len(), dead[0].kept_until), (1, Some(noon() + 7 * DAY)));
        assert_eq!(dead[0].payload::<u32>().unwrap(), 7, "it is there for as long as the job is");
        bench.clock.advance(7 * DAY);
        assert!(bench.accept().is_none());
        assert!(bench.queue.list(JobState::Dead, None, 9).unwrap().is_empty());
        assert_eq!((bench.queue.counts(), bench.state("a")), (Counts::default(), None));
    });
}

#[test]
fn q16_a_hook_that_always_fails_is_tried_after_its_back_off_and_a_bounded_number_of_times() {
    on_each_with(QueueOptions::default().retry(Retry::fixed(MINUTE).max_attempts(3)), |bench| {
        bench.push(job("a"));
        let drain = || {
            Runner::builder(&bench.queue)
                .on("k", |_, _: u32| Ok(Outcome::Done))
                .before(|_| Err("not today".into()))
                .drain(Limits::default())
                .unwrap()
        };
        for failures in 1..=2 {
            assert_eq!(drain().retried, 1, "once, and not in a hot loop");
            assert_eq!((bench.info("a").failures, bench.state("a")), (failures, Some(JobState::Scheduled)));
            bench.clock.advance(MINUTE);
        }
        assert_eq!(drain().dead, 1);
        bench.clock.advance(HOUR);
        let summary = drain();
        assert_eq!((summary.retried, summary.dead), (0, 0), "{summary}");
    });
}

#[test]
fn q35_one_who_watches_a_queue_is_told_of_each_push_claim_end_removal_and_pause() {
    on_each_with(QueueOptions::default().retry(Retry::fixed(SECOND)), |bench| {
        bench.push(job("before"));
        let mut watch = bench.queue.watch();
        let mut told = || {
            let changes = std::iter::from_fn(|| watch.wait(Duration::ZERO));
            changes.map(|change| format!("{change:?}")).collect::<Vec<_>>()
        };
        let seen = |id: &str, state: &str| format!("Job {{ id: {id:?}, state: {state} }}");
        let (ready, running) = ("Some(Ready)", "Some(Running)");
        bench.queue.push_all([job("a"), job("b").delay(SECOND)]).unwrap();
        assert_eq!(told(), [seen("a", ready), seen("b", "Some(Scheduled)")]);
        bench.claim().finish(None).unwrap();
        bench.claim().retry("no").unwrap();
        let ends = [seen("before", running), seen("before", "Some(Finished)")];
        assert_eq!(told(), [ends, [seen("a", running), seen("a", "Some(Scheduled)")]].concat());
        bench.clock.advance(SECOND);
        bench.claim().bury("no").unwrap();
        bench.queue.remove("b").unwrap();
        let due = [seen("a", ready), seen("b", ready), seen("a", running), seen("a", "Some(Dead)"), seen("b", "None")];
        assert_eq!(told(), due);
        bench.queue.pause(None).unwrap();
        bench.queue.pause(Some(SECOND)).unwrap();
        bench.queue.resume().unwrap();
        let until = format!("Paused {{ until: {:?} }}", Some(noon() + 2 * SECOND));
        assert_eq!(told(), ["Paused { until: None }", &until, "Resumed"]);
        bench.queue.push_all((0..5000).map(|n| job(&format!("many {n}")))).unwrap();
        let last = told();
        assert_eq!((last.len(), last[0].as_str()), (4097, "Missed { changes: 904 }"));
        assert_eq!(last[4096], seen("many 4999", ready));
        let (sender, answers) = bounded(1);
        std::thread::scope(|scope| {
            scope.spawn(|| sender.send(watch.wait(LONG)).unwrap());
            bench.queue.resume().unwrap();
            assert_eq!(answers.recv_timeout(LONG).unwrap(), Some(QueueChange::Resumed));
        });
    });
}

#[test]
fn q40_a_job_spawns_others_and_gathers_their_results() {
    on_store(|bench| {
        let (all, children) = (bench.queue.clone(), bench.queue.clone());
        bench.push(NewJob::new("sum", &3).unwrap().id("sum"));
        let summary = Runner::builder(&bench.queue)
            .on_transactional("sum", move |_, parts: u64, effects| {
                for n in 0..parts {
                    effects.enqueue(&children, NewJob::new("part", &n)?.id(format!("part {n}")))?;
                }
                Ok(Outcome::Done)
            })
            .on("part", |_, n: u64| Ok(Outcome::DoneWith((n * 10).into())))
            .drain(Limits::default())
            .unwrap();
        assert_eq!(summary.finished, 4, "{summary}");
        let data = (0..3).map(|n| all.get(format!("part {n}")).unwrap().unwrap().data.unwrap());
        assert_eq!(data.map(|data| data.as_u64().unwrap()).sum::<u64>(), 30);
    });
}

// The transitions, each of which is one write.

#[test]
fn each_transition_of_a_job_is_one_write() {
    let options = QueueOptions::default().retry(Retry::fixed(SECOND).max_attempts(3)).dead_for(MINUTE);
    let (disk, queue, clock) = faulty(options);
    let store = disk.store();
    let table = store.table("rows").unwrap();
    let mut last = disk.writes();
    let mut writes = |of: &str, wanted: u64| {
        let now = disk.writes();
        assert_eq!(now - last, wanted, "{of}");
        last = now;
    };
    queue.push(job("a").unique(Unique::until_done()).root("tree", noon()).expires(DAY)).unwrap();
    writes("create: the row, its place, its marks, the counts", 1);
    let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
    writes("claim: out of the ready log, the lease, the attempt", 1);
    lease.update(Some(1.into())).unwrap();
    writes("update", 1);
    lease.update(None).unwrap();
    writes("a heartbeat", 0);
    lease.retry("no").unwrap();
    writes("fail and wait for the next attempt", 1);
    clock.advance(SECOND);
    let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
    writes("due and ready, and the claim with it", 1);
    lease
        .finish_with(|effects| {
            effects.put(&table, "row", "x")?;
            effects.enqueue(&queue, job("next")).map(drop)
        })
        .unwrap();
    writes("complete, with the user's writes and the next job", 1);
    let lease = queue.accept(Accept::new()).unwrap().unwrap();
    writes("claim", 1);
    clock.advance(MINUTE);
    assert!(queue.accept(Accept::new()).unwrap().is_none());
    writes("a silent worker loses its job; a finished job goes away", 2);
    clock.advance(SECOND);
    queue.accept(Accept::new()).unwrap().unwrap().bury("no").unwrap();
    writes("due and claimed, and dead", 2);
    queue.requeue("next").unwrap();
    writes("requeue", 1);
    queue.remove("next").unwrap();
    writes("remove", 1);
    leak(lease);
}
