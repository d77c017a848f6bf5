//! Jobs that wait for others, and batches with a last job, on each back end.

use common::HOUR;
use common::every_write::{DEATHS, Trial, every_write};
use common::queues::{Bench, SECOND, noon, on_store_with, open_anew};
use std::time::Duration;
use waterline::fuzzing::Disk;
use waterline::testing::FaultyStore;
use waterline::{Consumer, Error, MemoryJobs, Retry, Store};
use waterline_queue::{
    Accept, Clock, DrainLimits, JobState, NewJob, OnDead, Outcome, Queue, QueueError, QueueOptions, Retention, Runner,
};

fn options() -> QueueOptions {
    QueueOptions::default().retry(Retry::none())
}

fn on_store(test: impl Fn(Bench)) {
    on_store_with(options(), test);
}

fn job(id: &str) -> NewJob {
    NewJob::new("k", id).unwrap().id(id)
}

const WAITING: Option<JobState> = Some(JobState::Waiting);
const READY: Option<JobState> = Some(JobState::Ready);
const FINISHED: Option<JobState> = Some(JobState::Finished);

#[test]
fn a_job_whose_cycle_search_takes_too_long_is_refused() {
    let bench = Bench::in_memory(options());
    bench.push(job("a"));
    bench.push(job("b").after(["a"]));
    bench.queue.push_all((0..10_001).map(|n| job(&format!("{n}")))).unwrap();
    bench.push(job("c").after((0..10_001).map(|n| n.to_string())));
    let refused = bench.queue.push(job("a").after(["c"])).unwrap_err();
    assert!(matches!(refused, QueueError::Cycle { through: None, .. }));
    assert!(refused.to_string().ends_with("push it under another id"));
    // No job waits for this one, so there is nothing to search.
    bench.push(job("d").after(["c"]));
}

#[test]
fn a_batch_in_a_write_commits_with_it_or_not_at_all() {
    on_store(|bench| {
        let (queue, table) = (&bench.queue, bench.store().table("t").unwrap());
        let mut ids = Vec::new();
        let made = NewJob::new("k", &1).unwrap();
        bench
            .store()
            .write(|effects| {
                ids = queue.push_batch_with(effects, [job("a"), job("b")], job("c"))?;
                ids.extend(queue.push_batch_with(effects, [], made)?);
                Ok(())
            })
            .unwrap();
        assert_eq!(ids[..3], ["a", "b", "c"], "in their order, with the last one at the end");
        assert_eq!(bench.state(&ids[3]), Some(JobState::Ready), "the id that the queue has made");
        queue.remove(&ids[3]).unwrap();
        assert_eq!(bench.info("c").waits_for, 2);
        let refused = bench.store().write(|effects| {
            effects.put(&table, "key", "value")?;
            queue.push_batch_with(effects, [job("x")], job("y").after(["never"])).map(drop)
        });
        let refused = QueueError::from(refused.unwrap_err());
        assert!(matches!(&refused, QueueError::NotFound { id, .. } if id == "never"), "{refused:?}");
        assert_eq!((table.get("key").unwrap(), bench.states(["x", "y"])), (None, [None; 2]));
        ["a", "b", "c"].into_iter().for_each(|id| bench.finish(id));
    });
}

#[test]
fn a_stream_halts_at_a_push_after_an_unknown_job() {
    on_store(|bench| {
        let progress = || bench.store().progress("orders");
        let orders = || -> MemoryJobs<u64> { (0..3u64).collect() };
        let table = bench.store().table("seen").unwrap();
        let consumer = || {
            let (queue, table) = (bench.queue.clone(), table.clone());
            Consumer::builder(orders(), progress())
                .retry(Retry::fixed(Duration::ZERO).max_attempts(2))
                .stop_at(2)
                .start_transactional(move |order, effects| {
                    effects.add(&table, "seen", 1)?;
                    let new = job(&format!("order {}", order.payload));
                    queue.push_with(effects, if order.payload == 1 { new.after(["first"]) } else { new })?;
                    Ok(())
                })
                .unwrap()
        };
        let error = consumer().join().unwrap_err();
        assert!(matches!(error, Error::Job { index: 1, attempt: 2, .. }), "{error:?}");
        assert!(error.report().contains("the queue \"q\" has no job \"first\""), "{error:?}");
        let there = ["order 0", "order 2"].iter().filter(|order| bench.state(order).is_some()).count();
        assert_eq!(table.counter("seen").unwrap(), there as i64);
        assert!(bench.state("order 1").is_none() && progress().last_processed().unwrap() == Some(0));
        bench.push(job("first"));
        consumer().join().unwrap();
        assert_eq!(table.counter("seen").unwrap(), 3);
        assert_eq!(bench.states(["order 0", "order 1", "order 2"]), [READY, WAITING, READY]);
    });
}

#[test]
fn a_handler_that_pushes_after_an_unknown_job_is_retried() {
    on_store(|bench| {
        bench.push(job("a").retry(Retry::fixed(SECOND).max_attempts(2)));
        let queue = bench.queue.clone();
        let runner = || {
            let next = queue.clone();
            Runner::builder(&bench.queue).on_transactional("k", move |job, id: String, effects| {
                if id == "a" {
                    let child = if job.attempt() == 1 { "never" } else { "was" };
                    next.push_with(effects, self::job("b").after([child]))?;
                }
                Ok(Outcome::Done)
            })
        };
        bench.push(job("was"));
        runner().drain(DrainLimits::default()).unwrap();
        assert_eq!(bench.states(["a", "b", "was"]), [Some(JobState::Scheduled), None, FINISHED]);
        assert!(bench.info("a").error.unwrap().contains("the queue \"q\" has no job \"never\""));
        bench.clock.advance(SECOND);
        runner().drain(DrainLimits::default()).unwrap();
        assert_eq!(bench.states(["a", "b"]), [FINISHED, FINISHED]);
    });
}

#[test]
fn ten_thousand_waiting_jobs_become_ready_in_batches() {
    on_store(|Bench { queue, clock: _, database, options, .. }| {
        queue.push(job("a")).unwrap();
        queue.push_all((0..10_000).map(|n| job(&format!("{n:05}")).after(["a"]))).unwrap();
        queue.accept(Accept::new()).unwrap().unwrap().finish(None).unwrap();
        assert_eq!((queue.counts().ready, queue.counts().waiting), (64, 9936));
        // The id is pushed again meanwhile; "new" waits for that run, not for the old one.
        queue.push(job("a").delay(HOUR)).unwrap();
        queue.push(job("new").after(["a"])).unwrap();
        drop(queue);
        let queue = open_anew(&database, &options);
        let mut most = 0;
        while queue.counts().waiting > 1 {
            let before = queue.counts().waiting;
            queue.push(job("same")).unwrap();
            most = most.max(before - queue.counts().waiting);
            assert!(queue.counts().waiting < before, "{before} wait on");
        }
        assert!(most <= 64, "{most} in one write");
        assert_eq!(queue.state("new").unwrap(), WAITING);
    });
}

#[test]
fn a_chain_of_ten_thousand_jobs_dies_in_batches() {
    on_store(|bench| {
        bench.queue.push_all(chain(10_000)).unwrap();
        bench.bury("09999");
        assert_eq!(bench.queue.counts().dead, 65);
        assert!(bench.queue.accept(Accept::new()).unwrap().is_none());
        assert_eq!((bench.queue.counts().dead, bench.queue.counts().waiting), (10_000, 0));
        assert!(bench.info("00000").error.unwrap().contains("\"00001\""));
        assert_eq!(bench.queue.requeue_dead().unwrap(), 10_000);
        assert_eq!((bench.queue.counts().ready, bench.queue.counts().waiting), (1, 9_999));
        (9_900..10_000).rev().for_each(|n| bench.finish(&link(n)));
        assert_eq!((bench.queue.counts().ready, bench.queue.counts().waiting), (1, 9_899));
    });
}

fn link(n: usize) -> String {
    format!("{n:05}")
}

/// A chain that begins with the last id, so that its dead jobs are listed in reverse order.
fn chain(links: usize) -> impl Iterator<Item = NewJob> {
    let job = |n: usize| NewJob::new("k", &link(n)).unwrap().id(link(n));
    (0..links).rev().map(move |n| if n + 1 < links { job(n).after([link(n + 1)]) } else { job(n) })
}

#[test]
fn an_interrupted_requeue_of_a_chain_readies_no_job_early() {
    let clock = Clock::manual(noon());
    let options = options().clock(clock);
    let disk = FaultyStore::new().unwrap();
    let queue = Queue::open(&disk.store(), "q", options.clone()).unwrap();
    queue.push_all(chain(1_500)).unwrap();
    queue.accept(Accept::new()).unwrap().unwrap().bury("no way").unwrap();
    assert!(queue.accept(Accept::new()).unwrap().is_none());
    assert_eq!(queue.counts().dead, 1_500);
    // The second write fails, and the process dies after it.
    disk.fail(1..2);
    queue.requeue_dead().unwrap_err();
    let now = queue.counts();
    assert!((1..=1_000).contains(&(now.ready + now.waiting)), "so many in one write: {now:?}");
    drop(queue);
    let disk = disk.after_crash().unwrap();
    let queue = Queue::open(&disk.store(), "q", options).unwrap();
    assert_eq!((queue.counts(), queue.counts().ready), (now, 1));
    assert_eq!(queue.requeue_dead().unwrap(), now.dead);
    assert_eq!((queue.counts().ready, queue.counts().waiting), (1, 1_499));
    for n in (0..1_500).rev() {
        let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
        assert_eq!(lease.id(), link(n));
        lease.finish(None).unwrap();
    }
}

#[test]
fn each_job_of_a_long_batch_costs_two_writes() {
    let disk = FaultyStore::new().unwrap();
    let queue = Queue::open(&disk.store(), "q", options().clock(Clock::manual(noon()))).unwrap();
    let before = disk.writes();
    queue.push_batch((0..3000).map(|n| NewJob::new("k", &n).unwrap()), job("end")).unwrap();
    assert_eq!(disk.writes(), before + 1);
    for left in (0..3000).rev() {
        queue.accept(Accept::new()).unwrap().unwrap().finish(None).unwrap();
        assert_eq!(queue.get("end").unwrap().unwrap().waits_for, left);
    }
    assert_eq!((disk.writes(), queue.state("end").unwrap()), (before + 1 + 2 * 3000, READY));
}

/// Returns the keys and sizes of a queue's records, without ready log entries. (In those, the byte
/// after the queue's number is the priority, up to 3.)
fn stored(disk: &Disk) -> Vec<(Vec<u8>, usize)> {
    let rows = disk.records().into_iter().filter(|(family, ..)| family.starts_with("waterline."));
    let rows = rows.filter(|(family, ..)| family == "waterline.queue" || family == "waterline.ready");
    rows.filter(|(_, key, _)| key[4] > 3).map(|(_, key, value)| (key, value.len())).collect()
}

#[test]
fn jobs_that_are_gone_leave_no_wait_records() {
    let (disk, clock) = (Disk::default(), Clock::manual(noon()));
    let options =
        options().clock(clock.clone()).ids_for(Duration::ZERO).retention(Retention::Drop).dead_for(Duration::ZERO);
    let queue = Queue::open(&disk.open(&Store::options()).unwrap(), "q", options).unwrap();
    let before: Vec<_> = stored(&disk).into_iter().map(|(key, _)| key).collect();
    for on_dead in [OnDead::Die, OnDead::Run, OnDead::Hold] {
        for dies in [false, true] {
            let others = (0..100).map(|n| job(&format!("{n}")));
            queue.push_batch(others, job("end").on_dead(on_dead)).unwrap();
            queue.push(job("after").after(["end"])).unwrap();
            for n in 0..100 {
                let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
                if dies && n == 50 {
                    lease.bury("no way").unwrap()
                } else {
                    lease.finish(None).unwrap()
                };
            }
            while let Some(mut lease) = queue.accept(Accept::new()).unwrap() {
                lease.finish(None).unwrap();
            }
            let left: Vec<_> = stored(&disk).into_iter().map(|(key, _)| key).collect();
            assert_eq!(left, before, "{on_dead:?} {dies}");
        }
    }
}

#[test]
fn a_job_without_waits_stores_no_extra_bytes() {
    let (disk, clock) = (Disk::default(), Clock::manual(noon()));
    let queue = Queue::open(&disk.open(&Store::options()).unwrap(), "q", options().clock(clock.clone())).unwrap();
    let size = |part: u8| stored(&disk).iter().find(|(key, _)| key[4] == part).map(|(_, size)| *size);
    let a = NewJob::new("k", &1).unwrap();
    let a = queue.push(a).unwrap().id;
    let (row, head) = (size(b'j').unwrap(), size(b'h').unwrap());
    assert_eq!((row, head), (50, 197));
    queue.remove(&a).unwrap();
    // Generated ids are not remembered by a record.
    assert_eq!(stored(&disk).len(), 2);
    queue.push(job("a")).unwrap();
    queue.remove("a").unwrap();
    assert_eq!(stored(&disk).len(), 3);
}

#[test]
fn wait_records_have_the_documented_layout() {
    let (disk, clock) = (Disk::default(), Clock::manual(noon()));
    let queue = Queue::open(&disk.open(&Store::options()).unwrap(), "q", options().clock(clock.clone())).unwrap();
    queue.push_all([job("x"), job("end").after(["x"])]).unwrap();
    let number = &queue_number(&disk)[..];
    let record = |part: u8, rest: &[&[u8]]| [number, &[part], &rest.concat()].concat();
    let value = |key: &[u8]| {
        let records = disk.records().into_iter();
        records.filter(|(_, found, _)| found == key).map(|(family, _, value)| (family, value)).next()
    };
    let (rows, entries) = ("waterline.queue".to_owned(), "waterline.ready".to_owned());
    let list = 0u64.to_be_bytes();
    assert_eq!(value(&record(b'a', &[&list, b"end"])), Some((rows.clone(), vec![])));
    assert_eq!(value(&record(b'o', &[&[3], b"end", &list])), Some((rows.clone(), b"x".to_vec())));
    let now = 1_700_000_000_000u64;
    assert_eq!(value(&record(b'w', &[&now.to_be_bytes(), b"end"])), Some((entries.clone(), vec![])));
    // The extras stand before the length of the kind: a bit for each, then their values.
    let extras = |id: &[u8]| {
        let (_, row) = value(&record(b'j', &[id])).unwrap();
        row[44..row.len() - 6].to_vec()
    };
    assert_eq!(extras(b"end"), [0, 0, 2, 0, 0, 0, 0, 1]);
    assert_eq!(extras(b"x"), [&[0, 0, 8, 0][..], &list].concat());
    queue.push(job("late").after(["x"]).on_dead(OnDead::Hold)).unwrap();
    assert_eq!(extras(b"x"), [&[0, 0, 0x88, 0][..], &list, &1u64.to_be_bytes()].concat());
    assert_eq!(extras(b"late"), [0, 0, 6, 0, 0, 0, 0, 1, 2]);
    queue.push_all((0..64).map(|n| job(&format!("more {n}")).after(["x"]))).unwrap();
    queue.accept(Accept::new()).unwrap().unwrap().finish(None).unwrap();
    // Of the 65 jobs of this list, all but the last one were woken.
    assert_eq!(value(&record(b't', &[&list, b"fx"])), Some((entries.clone(), b"more 8".to_vec())));
    queue.remove("end").unwrap();
    let day = 86_400_000;
    let forgotten = (now + 28 * day).div_ceil(day) * day;
    assert_eq!(value(&record(b'g', &[&forgotten.to_be_bytes(), b"end"])), Some((entries, vec![])));
}

fn queue_number(disk: &Disk) -> [u8; 4] {
    let head = stored(disk).into_iter().find(|(key, _)| key[4..] == [b'h']).expect("it has a head").0;
    head[..4].try_into().unwrap()
}

#[test]
fn the_last_job_of_a_batch_survives_a_crash_at_any_write() {
    let live = |trial: &Trial| {
        let clock = Clock::manual(noon());
        let queue = Queue::open(&trial.store(), "q", options().clock(clock.clone())).unwrap();
        let retry = Retry::fixed(SECOND).max_attempts(2);
        let pages = (0..20).map(|n| job(&format!("page {n:02}")).retry(retry));
        queue.push_batch(pages, job("end").on_dead(OnDead::Run)).unwrap();
        for n in 0..20 {
            let mut lease = queue.accept(Accept::new()).unwrap().unwrap();
            match n {
                5 => lease.bury("no way").unwrap(),
                6 => lease.retry("it fails").unwrap(),
                _ => lease.finish(None).unwrap(),
            };
        }
        queue.remove("page 03").unwrap();
        clock.advance(SECOND);
        queue.accept(Accept::new()).unwrap().unwrap().finish(None).unwrap();
        queue.accept(Accept::new()).unwrap().unwrap().finish(None).unwrap();
        assert_eq!(queue.state("end").unwrap(), FINISHED);
        (queue, clock)
    };
    let lives = every_write(&DEATHS, live, |next, (_dead, clock)| {
        // No job was running, so opening the queue changes nothing on the disk.
        let queue = Queue::open(&next.store(), "q", options().clock(clock.clone())).unwrap();
        let Some(end) = queue.get("end").unwrap() else {
            assert_eq!(queue.counts().waiting + queue.counts().ready, 0, "half a batch");
            assert!(next.struck, "the batch is lost");
            return;
        };
        let open = |n: &u32| {
            let state = queue.state(format!("page {n:02}")).unwrap();
            state.is_some_and(|state| !matches!(state, JobState::Finished | JobState::Dead))
        };
        let open = (0..20).filter(open).count();
        assert_eq!(end.waits_for as usize, open);
        assert_eq!(end.state == JobState::Waiting, open > 0);
        let was_finished = end.state == JobState::Finished;
        clock.advance(SECOND);
        let mut ends = 0;
        while let Some(mut lease) = queue.accept(Accept::new()).unwrap() {
            if lease.id() == "end" {
                ends += 1;
                assert_eq!((queue.counts().ready, queue.counts().scheduled), (0, 0));
            }
            lease.finish(None).unwrap();
        }
        assert_eq!(ends, u32::from(!was_finished));
    });
    assert!(lives > 40, "only {lives} writes");
}
