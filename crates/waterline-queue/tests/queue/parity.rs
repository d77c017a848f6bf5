//! Features and finer rules of other queues that no other test shows.
//!
//! These are CouchDB's jobs (`c`), MediaWiki's queue (`m`) with its Kafka runner (`p`), and
//! Mosquito (`q`), also with defects of theirs that the queue lacks. Tests are named after the rows
//! of the page `queue::parity`.

use common::HOUR;
use common::queues::{Bench, DAY, MINUTE, SECOND, in_lives, job, leak, noon, on_store, on_store_with, with};
use std::collections::BTreeSet;
use waterline::fuzzing::Disk;
use waterline::testing::FaultyStore;
use waterline::{Error, Retry, Store};
use waterline_queue::{
    Accept, Clock, DrainLimits, Every, JobState, Lease, NewJob, Outcome, Queue, QueueError, QueueOptions, Retention,
    Runner, Unique,
};

#[track_caller]
fn assert_halt<R: std::fmt::Debug>(answer: Result<R, QueueError>) {
    assert!(matches!(answer, Err(QueueError::Halt { .. })), "{answer:?}");
}

/// A queue on a disk that counts writes and can refuse them, with a manual clock.
fn faulty(options: QueueOptions) -> (FaultyStore, Queue, Clock) {
    let (disk, clock) = (FaultyStore::new().unwrap(), Clock::manual(noon()));
    let queue = Queue::open(&disk.store(), "q", options.clock(clock.clone())).unwrap();
    (disk, queue, clock)
}

// CouchDB.

#[test]
fn c14_c27_a_lost_lease_cannot_write() {
    type Call = fn(&mut Lease, &waterline::Table) -> Result<(), QueueError>;
    let calls: [Call; 2] = [
        |lease, table| lease.write(|effects| effects.put(table, "row", "late")),
        |lease, table| lease.finish_with(|effects| effects.put(table, "row", "late")).map(drop),
    ];
    let losses: [fn(&Bench, &mut Lease); 3] = [
        |bench, _| bench.queue.remove("a").unwrap(),
        |_, lease| assert_eq!(lease.finish(None).unwrap(), Some(JobState::Finished)),
        |bench, _| bench.pass(MINUTE),
    ];
    on_store_with(QueueOptions::default().retention(Retention::Keep), |bench| {
        let table = bench.store().table("rows").unwrap();
        for lose in losses {
            for call in calls {
                let mut lost = bench.running("a");
                lose(&bench, &mut lost);
                let before = (bench.queue.get("a").unwrap(), bench.queue.counts());
                assert_halt(call(&mut lost, &table));
                drop(lost);
                assert_eq!((bench.queue.get("a").unwrap(), bench.queue.counts()), before);
                assert_eq!(table.get("row").unwrap(), None);
                if bench.state("a").is_some() {
                    bench.queue.remove("a").unwrap();
                }
            }
        }
    });
}

#[test]
fn c07_names_lists_the_queues_of_a_store() {
    on_store(|bench| {
        assert_eq!(Queue::names(&bench.store()).unwrap(), ["q"]);
        for name in ["z", "a", "a longer one", "\u{10ffff}"] {
            bench.database.open(name, bench.options.clone()).unwrap().push(job("x")).unwrap();
        }
        assert_eq!(Queue::names(&bench.store()).unwrap(), ["a", "a longer one", "q", "z", "\u{10ffff}"]);
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
fn c18_a_job_reschedules_itself_as_it_ends() {
    in_lives(|bench| {
        let queue = bench.queue.clone();
        let mut lease = bench.running("a");
        lease.finish_with(|effects| queue.push_with(effects, with("a", 2).delay(HOUR)).map(drop)).unwrap();
        let bench = bench.next_life();
        assert_eq!((bench.state("a"), bench.payload("a")), (Some(JobState::Scheduled), 2));
        assert_eq!(bench.info("a").crashes, 0);
        bench.clock.advance(HOUR);
        assert_eq!(bench.claim().id(), "a");
    });
}

#[test]
fn c21_a_failed_sweep_of_leases_resumes_on_the_next_call() {
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

// MediaWiki.

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
                    next.push_with(effects, NewJob::new("leaf", &leaf)?)?;
                }
                if split < to {
                    next.push_with(effects, NewJob::new("range", &(split, to))?)?;
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
            .drain(DrainLimits::default())
            .unwrap();
        assert_eq!((summary.finished, summary.dead, summary.retried), (100 + 34, 0, 0), "{summary}");
        assert!((0..100).all(|leaf| done.counter(leaf.to_string()).unwrap() == 1));
    });
}

#[test]
fn m08_m09_a_read_only_queue_refuses_every_change() {
    let disk = Disk::default();
    let store = disk.open(&Store::options()).unwrap();
    let application = Queue::open(&store, "q", QueueOptions::default()).unwrap();
    application.push_all([job("dead"), job("running"), job("ready")]).unwrap();
    application.accept(Accept::new()).unwrap().expect("a job is ready").bury("no way").unwrap();
    let _running = application.accept(Accept::new()).unwrap();
    let store = disk.open(&Store::options().read_only()).unwrap();
    let queue = Queue::open(&store, "q", QueueOptions::default()).unwrap();
    let (before, notes) = (disk.records(), queue.notes("k").unwrap());
    let runner = || Runner::builder(&queue).on("k", |_, _: u32| Ok(Outcome::Done));
    let answers = [
        queue.push(job("new")).map(drop),
        queue.push_all([job("new")]).map(drop),
        queue.push_within(job("new"), HOUR).map(drop),
        queue.push_batch([job("new")], job("then")).map(drop),
        queue.accept(Accept::new()).map(drop),
        queue.set_meta("ready", "by", Some("ann".into())).map(drop),
        queue.remove("ready"),
        queue.requeue("dead").map(drop),
        queue.requeue_dead().map(drop),
        queue.purge().map(drop),
        queue.pause(None),
        queue.resume(),
        queue.subscribe("ready").map(drop),
        queue.periodic("p", Every::new(HOUR), NewJob::new("k", &1).unwrap()).start(),
        queue.remove_periodic("p").map(drop),
        notes.set("n", 1),
        notes.add("n", 1).map(drop),
        notes.remove("n").map(drop),
        runner().drain(DrainLimits::default()).map(drop),
        runner().start().map(drop),
    ];
    for (n, answer) in answers.into_iter().enumerate() {
        assert!(matches!(answer, Err(QueueError::Store(Error::ReadOnly))), "{n}: {answer:?}");
    }
    assert_eq!(disk.records(), before);
    assert_eq!((queue.counts().ready, queue.counts().running, queue.counts().dead), (1, 1, 1));
    assert_eq!(queue.watch().wait(HOUR / 3_600_000), None);
    let missing = Queue::open(&store, "other", QueueOptions::default());
    assert!(matches!(missing, Err(QueueError::Store(Error::NotFound { .. }))), "{missing:?}");
}

#[test]
fn m09_empty_and_failed_pushes_register_nothing() {
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
fn m13_q07_q25_a_claim_is_durable_before_the_job_runs() {
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

// Mosquito.

#[test]
fn q01_generated_ids_stay_unique_after_crashes() {
    in_lives(|mut bench| {
        let mut ids = BTreeSet::new();
        let mut count = 0;
        for _ in 0..3 {
            let made = || NewJob::new("k", &1).unwrap().retention(Retention::Drop);
            let pushed = bench.queue.push_all((0..1000).map(|_| made())).unwrap();
            ids.extend(pushed.into_iter().map(|pushed| pushed.id));
            let queue = bench.queue.clone();
            bench.store().write(|effects| queue.push_with(effects, made()).map(drop)).unwrap();
            ids.extend(bench.queue.list(JobState::Ready, None, 2000).unwrap().into_iter().map(|job| job.id));
            count += 1001;
            // No job is left to derive the next number from.
            assert_eq!(bench.claim_all().len(), 1001);
            bench = bench.next_life();
        }
        assert_eq!(ids.len(), count);
    });
}

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
            queue.push_with(effects, job("next")).map(drop)
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
