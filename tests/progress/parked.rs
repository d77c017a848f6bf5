//! Parked jobs: passed with their record in one write, listed, redriven and discarded.

use common::every_write::{DEATHS, Trial, every_write, every_write_after};
use common::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use waterline::testing::FaultyStore;
use waterline::{
    AttemptOutcome, Blocked, BoxError, Consumer, Error, Event, Failure, Index, Job, JobLog, Jobs, OnExhausted, Parked,
    Retry, State, Store,
};

const PARK: OnExhausted = OnExhausted::Park { budget: 100 };

fn indices(store: &Store) -> Vec<Index> {
    store.parked("p").unwrap().iter().map(|parked| parked.index).collect()
}

/// A switch of the test that mends its jobs.
#[derive(Clone, Default)]
struct Mended(Arc<AtomicBool>);

impl Mended {
    fn mend(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn run(&self, index: Index, bad: impl Fn(Index) -> bool) -> Result<(), BoxError> {
        if bad(index) && !self.0.load(Ordering::Acquire) {
            Err(format!("job {index} is refused").into())
        } else {
            Ok(())
        }
    }
}

#[test]
fn a_parked_job_is_passed_and_listed() {
    let store = Store::in_memory();
    let time = Time::new();
    let before = time.wall();
    let consumer = Consumer::builder(numbers(10), store.progress("p"))
        .clock(time.clock())
        .retry(Retry::fixed(HOUR).max_attempts(3))
        .on_exhausted(PARK)
        .stop_at(9)
        .start(|job| if job.index % 4 == 1 { Err(format!("refused {}", job.index).into()) } else { Ok(()) })
        .unwrap();
    let handle = consumer.handle();
    time.steps(HOUR, "the end", || handle.wait_end(Duration::ZERO).is_some());
    consumer.join().unwrap();
    let status = handle.status();
    assert_eq!((status.state, status.last_processed, status.lag()), (State::Finished, Some(9), 0));
    assert_eq!((status.parked, status.failed, status.done), (3, 9, 7));
    let parked = store.parked("p").unwrap();
    assert_eq!(parked.iter().map(|parked| parked.index).collect::<Vec<_>>(), [1, 5, 9]);
    for Parked { index, attempts, error, first_failed_at, last_failed_at, parked_at, .. } in parked {
        assert_eq!((attempts, error), (3, format!("refused {index}")));
        // The stored times have milliseconds.
        assert!(before <= first_failed_at + Duration::from_millis(1) && first_failed_at + 2 * HOUR <= last_failed_at);
        assert!(last_failed_at <= parked_at && parked_at <= time.wall());
    }
    assert_eq!(store.parked("others").unwrap(), []);
}

#[test]
fn promise_02_one_failure_beyond_the_parking_budget_halts() {
    for (threads, budget) in [(1, 1), (1, 3), (8, 3), (8, 7)] {
        let store = Store::in_memory();
        for _life in 0..3 {
            let consumer = Consumer::builder(numbers(1000), store.progress("p"))
                .max_processing(threads)
                .on_exhausted(OnExhausted::Park { budget })
                .start(|job| Err(format!("job {} is refused", job.index).into()))
                .unwrap();
            let handle = consumer.handle();
            let error = consumer.join().unwrap_err();
            let blocked = handle.status().blocked.to_string();
            assert!(blocked.contains(&format!("the budget of {budget} parked jobs is used up")), "{blocked}");
            assert!(matches!(&error, Error::Job { .. }), "{error:?}");
            assert_eq!(indices(&store).len() as u64, budget, "with {threads} threads");
        }
        // A life with another budget goes on from there.
        let mended = Mended::default();
        mended.mend();
        let consumer = Consumer::builder(numbers(1000), store.progress("p")).stop_at(999).start(|_| Ok(())).unwrap();
        consumer.join().unwrap();
        assert_eq!(indices(&store).len() as u64, budget);
    }
}

#[test]
fn promise_05_a_redriven_job_keeps_its_record_until_success() {
    let (store, mended) = (Store::in_memory(), Mended::default());
    let ran = Arc::new(AtomicU32::new(0));
    let consumer = Consumer::builder(numbers(6), store.progress("p"))
        .on_exhausted(PARK)
        .start({
            let (mended, ran) = (mended.clone(), ran.clone());
            move |job| {
                if job.index == 2 {
                    ran.store(job.attempt, Ordering::Release);
                }
                mended.run(job.index, |index| index == 2)
            }
        })
        .unwrap();
    let handle = consumer.handle();
    assert!(handle.wait_for(5, LONG));
    assert_eq!((indices(&store), handle.status().parked), (vec![2], 1));
    for attempt in 2..5 {
        handle.redrive(2).unwrap();
        eventually("the attempt is kept", || store.parked("p").unwrap()[0].attempts == attempt);
        assert_eq!(ran.load(Ordering::Acquire), attempt);
    }
    assert_eq!(handle.last_processed_index(), Some(5), "the watermark does not move back");
    mended.mend();
    handle.redrive(2).unwrap();
    eventually("the record is removed", || indices(&store).is_empty());
    until(&handle, "the end of the redrive", |status| status.parked == 0 && status.processing == 0);
    let error = handle.redrive(2).unwrap_err();
    assert!(matches!(&error, Error::NotParked { name, index: 2 } if name == "p"), "{error:?}");
    consumer.stop().unwrap();
    assert!(matches!(handle.redrive(2), Err(Error::Stopped)) && matches!(handle.redrive_all(), Err(Error::Stopped)));
}

#[test]
fn redriving_all_stays_within_max_processing() {
    let (store, mended) = (Store::in_memory(), Mended::default());
    let jobs = numbers(200);
    let running = Arc::new(AtomicU32::new(0));
    let consumer = Consumer::builder(jobs.clone(), store.progress("p"))
        .max_processing(3)
        .on_exhausted(PARK)
        .start({
            let mended = mended.clone();
            move |job| {
                assert!(running.fetch_add(1, Ordering::AcqRel) < 3);
                rest();
                let outcome = mended.run(job.index, |index| index % 3 == 0);
                running.fetch_sub(1, Ordering::AcqRel);
                outcome
            }
        })
        .unwrap();
    let handle = consumer.handle();
    assert!(handle.wait_for(199, LONG));
    assert_eq!(indices(&store).len(), 67);
    mended.mend();
    assert_eq!(handle.redrive_all().unwrap(), 67);
    assert!(handle.redrive_all().unwrap() <= 67, "those that still wait run once");
    (0..100).for_each(|job| _ = jobs.push(job));
    assert!(handle.wait_for(299, LONG));
    until(&handle, "all records are gone", |status| status.parked == 0);
    consumer.stop().unwrap();
    assert_eq!(indices(&store), [0; 0]);
}

#[test]
fn a_redrive_without_a_consumer_runs_at_the_next_start() {
    let (store, mended) = (Store::in_memory(), Mended::default());
    let life = || {
        let (jobs, mended) = (numbers(6), mended.clone());
        let builder = Consumer::builder(jobs, store.progress("p")).on_exhausted(PARK).stop_at(5);
        builder.start(move |job| mended.run(job.index, |index| index % 2 == 1)).unwrap().join().unwrap();
    };
    life();
    assert_eq!(indices(&store), [1, 3, 5]);
    for index in [0, 2, 7] {
        assert!(matches!(store.redrive("p", index), Err(Error::NotParked { .. })));
        assert!(matches!(store.discard("p", index), Err(Error::NotParked { .. })));
    }
    store.redrive("p", 3).unwrap();
    assert!(store.parked("p").unwrap().iter().all(|parked| parked.redrive_wanted == (parked.index == 3)));
    life();
    let parked = store.parked("p").unwrap();
    assert_eq!(parked.iter().map(|p| (p.index, p.attempts)).collect::<Vec<_>>(), [(1, 1), (3, 2), (5, 1)]);
    assert!(parked.iter().all(|parked| !parked.redrive_wanted), "it was made once");
    mended.mend();
    store.redrive("p", 3).unwrap();
    store.discard("p", 1).unwrap();
    life();
    assert_eq!(indices(&store), [5]);
}

#[test]
fn a_running_consumer_discards_a_parked_job() {
    let store = Store::in_memory();
    let consumer = Consumer::builder(numbers(6), store.progress("p"))
        .on_exhausted(OnExhausted::Park { budget: 2 })
        .start(|job| if job.index < 2 { Err("refused".into()) } else { Ok(()) })
        .unwrap();
    let handle = consumer.handle();
    assert!(handle.wait_for(5, LONG));
    assert!(matches!(store.redrive("p", 1), Err(Error::InUse { .. })), "that is for the handle");
    store.discard("p", 1).unwrap();
    assert_eq!((indices(&store), handle.status().parked), (vec![0], 1));
    assert!(matches!(store.discard("p", 1), Err(Error::NotParked { .. })));
    assert!(matches!(handle.redrive(1), Err(Error::NotParked { .. })));
    consumer.stop().unwrap();
    assert_eq!(indices(&store), [0]);
}

#[test]
fn all_or_a_range_of_parked_jobs_are_discarded() {
    for runs in [false, true] {
        let store = Store::in_memory();
        let consumer = Consumer::builder(numbers(9), store.progress("p")).on_exhausted(PARK);
        let consumer = consumer.start(|job| if job.index < 8 { Err("refused".into()) } else { Ok(()) }).unwrap();
        let handle = consumer.handle();
        assert!(handle.wait_for(8, LONG));
        let consumer = if runs { Some(consumer) } else { consumer.stop().map(|()| None).unwrap() };
        assert_eq!(store.discard_all("p", 2..=3).unwrap(), 2);
        assert_eq!(store.discard_all("p", 20..).unwrap(), 0);
        assert_eq!(indices(&store), [0, 1, 4, 5, 6, 7]);
        assert_eq!(store.discard_all("p", ..5).unwrap(), 3);
        assert_eq!(store.discard_all("p", ..).unwrap(), 3);
        assert_eq!((indices(&store), store.discard_all("p", ..).unwrap()), (vec![], 0));
        if let Some(consumer) = consumer {
            assert_eq!(handle.status().parked, 0);
            assert_eq!(handle.redrive_all().unwrap(), 0);
            consumer.stop().unwrap();
        }
    }
}

#[test]
fn a_parked_job_gone_from_its_source_stays_listed() {
    for pruned in [false, true] {
        let (store, script) = (Store::in_memory(), Script::up_to(9));
        let consumer = Consumer::builder(script.clone(), store.progress("p"))
            .on_exhausted(PARK)
            .start(|job| if job.index == 4 { Err("refused".into()) } else { Ok(()) })
            .unwrap();
        let handle = consumer.handle();
        assert!(handle.wait_for(9, LONG));
        if pruned {
            script.set_first(7);
        }
        script.gap(4);
        handle.redrive(4).unwrap();
        eventually("the record says so", || store.parked("p").unwrap()[0].error.contains("no longer has"));
        assert_eq!(store.parked("p").unwrap()[0].attempts, 1, "nothing ran");
        // The stream goes on, and the job may reappear.
        script.set_head(Some(12));
        handle.check();
        assert!(handle.wait_for(12, LONG));
        handle.redrive(4).unwrap();
        consumer.stop().unwrap();
        assert_eq!(indices(&store), [4]);
    }
}

/// A consumer that counts its jobs. Jobs at odd indices fail until mended.
fn counting(store: &Store, jobs: Index, mended: &Mended) -> Consumer {
    let (sums, mended) = (store.table("sums").unwrap(), mended.clone());
    Consumer::builder(numbers(jobs), store.progress("p"))
        .max_processing(2)
        .on_exhausted(PARK)
        .stop_at(jobs - 1)
        .start_transactional(move |job, effects| {
            effects.add(&sums, "jobs", 1)?;
            effects.put(&sums, job.index.to_be_bytes(), "done")?;
            mended.run(job.index, |index| index % 2 == 1)
        })
        .unwrap()
}

/// Checks that each job up to the watermark is either done or parked; returns the parked ones.
fn each_is_done_or_parked(store: &Store) -> BTreeSet<Index> {
    let sums = store.table("sums").unwrap();
    let parked: BTreeSet<Index> = indices(store).into_iter().collect();
    let last = store.progress("p").last_processed().unwrap();
    for index in 0..last.map_or(0, |last| last + 1) {
        let done = sums.get(index.to_be_bytes()).unwrap().is_some();
        assert!(done != parked.contains(&index), "job {index} is done ({done}), or parked, and not both");
    }
    let rows = sums.iter().count() as u64 - u64::from(sums.get("jobs").unwrap().is_some());
    assert_eq!(sums.counter("jobs").unwrap() as u64, rows, "each effect is in once");
    parked
}

#[test]
fn promise_01_a_job_is_parked_with_its_record_at_any_crash() {
    const JOBS: Index = 12;
    let mut seen = BTreeSet::new();
    let live = |trial: &Trial| counting(&trial.store(), JOBS, &Mended::default()).join().unwrap();
    every_write(&DEATHS, live, |next, ()| {
        seen.insert(each_is_done_or_parked(&next.store()).len());
        counting(&next.store(), JOBS, &Mended::default()).join().unwrap();
        assert!(each_is_done_or_parked(&next.store()).into_iter().eq((1..JOBS).step_by(2)));
    });
    assert!(seen.len() > 1, "the crashes prove nothing: {seen:?}");
}

#[test]
fn promise_09_a_redrive_is_all_or_nothing_at_any_crash() {
    const JOBS: Index = 12;
    let prepare = |disk: &mut Arc<FaultyStore>| {
        counting(&disk.store(), JOBS, &Mended::default()).join().unwrap();
        (1..JOBS).step_by(2).for_each(|index| disk.store().redrive("p", index).unwrap());
    };
    let mended = Mended::default();
    mended.mend();
    let live = |trial: &Trial| counting(&trial.store(), JOBS, &mended).join().unwrap();
    every_write_after(prepare, &DEATHS, live, |next, ()| {
        each_is_done_or_parked(&next.store());
        counting(&next.store(), JOBS, &mended).join().unwrap();
        assert_eq!(each_is_done_or_parked(&next.store()), BTreeSet::new());
        assert_eq!(next.store().table("sums").unwrap().counter("jobs").unwrap() as u64, JOBS);
    });
}

#[test]
fn a_job_with_a_refused_add_is_parked_alone() {
    let store = Store::in_memory();
    let sums = store.table("sums").unwrap();
    sums.put("text", "no counter").unwrap();
    let consumer = Consumer::builder(numbers(30), store.progress("p"))
        .max_processing(4)
        .on_exhausted(PARK)
        .start_transactional({
            let sums = sums.clone();
            move |job, effects| Ok(effects.add(&sums, if job.index % 5 == 2 { "text" } else { "jobs" }, 1)?)
        })
        .unwrap();
    let handle = consumer.handle();
    assert!(handle.wait_for(29, LONG), "{}", handle.status());
    assert_eq!((indices(&store), sums.counter("jobs").unwrap()), (vec![2, 7, 12, 17, 22, 27], 24));
    assert!(store.parked("p").unwrap().iter().all(|parked| parked.error.contains("cannot be counted under")));
    // When the effects of a redriven job are refused, its record is back.
    handle.redrive(7).unwrap();
    eventually("it was refused", || store.parked("p").unwrap()[1].attempts > 1);
    assert_eq!(indices(&store), [2, 7, 12, 17, 22, 27]);
    sums.delete("text").unwrap();
    handle.redrive_all().unwrap();
    until(&handle, "all are done", |status| status.parked == 0);
    consumer.stop().unwrap();
    assert_eq!((indices(&store), sums.counter("text").unwrap()), (vec![], 6));
}

#[test]
fn promise_02_a_record_fills_the_budget_until_it_is_deleted() {
    let disk = FaultyStore::new().unwrap();
    let store = disk.store();
    let (go, may_go) = crossbeam_channel::bounded::<()>(1);
    let consumer = Consumer::builder(numbers(2), store.progress("p"))
        .max_processing(2)
        .on_exhausted(OnExhausted::Park { budget: 1 })
        .start(move |job| {
            if job.index == 0 && job.attempt == 2 {
                return Ok(());
            }
            if job.index == 1 {
                may_go.recv()?;
            }
            Err("refused".into())
        })
        .unwrap();
    let handle = consumer.handle();
    until(&handle, "it is parked", |status| status.last_processed == Some(0));
    assert_eq!(indices(&store), [0]);
    // The next write notes the start of the job. The one that removes its record keeps failing.
    disk.fail(1..);
    handle.redrive(0).unwrap();
    until(&handle, "it has run", |status| status.done == 1 && status.processing == 1);
    go.send(()).unwrap();
    until(&handle, "there is no room", |status| status.state == State::Halted);
    assert_eq!(indices(&store), [0]);
    disk.heal();
    let error = consumer.stop().unwrap_err();
    assert!(matches!(error, Error::Job { index: 1, .. }), "{error:?}");
    assert!(indices(&store).len() <= 1);
}

/// Returns the items that the log keeps below its first one.
fn kept(log: &JobLog<u64>) -> Vec<Index> {
    let is_there = |index: &Index| match log.at_index(*index) {
        Ok(item) => item.map(|item| assert_eq!(item, *index)).is_some(),
        Err(error) => {
            let error = error.downcast::<Error>().unwrap();
            assert!(matches!(*error, Error::Truncated { next, .. } if next == *index), "{error:?}");
            false
        }
    };
    (1..log.first().unwrap()).filter(is_there).collect()
}

/// Returns the number of those items in the list of logs.
fn counted(store: &Store) -> u64 {
    store.logs().unwrap()[0].parked
}

#[test]
fn a_trim_keeps_only_the_items_of_parked_jobs() {
    let (store, mended) = (Store::in_memory(), Mended::default());
    let log = store.log::<u64>("l").unwrap();
    log.push_all(&(1..=10).collect::<Vec<_>>()).unwrap();
    let start = || {
        let mended = mended.clone();
        let builder = Consumer::builder(log.clone(), store.progress("p")).on_exhausted(PARK);
        builder.start(move |job| mended.run(job.index, |index| index == 3 || index == 6)).unwrap()
    };
    let consumer = start();
    let handle = consumer.handle();
    assert!(handle.wait_for(10, LONG));
    // The first items are trimmed by hand, the others automatically.
    log.trim(..=4).unwrap();
    assert_eq!((log.first().unwrap(), kept(&log)), (5, vec![3]));
    log.retain([&handle]);
    eventually("the trim", || log.first().unwrap() == 11);
    let is_kept = |indices: &[Index]| kept(&log) == indices && counted(&store) == indices.len() as u64;
    assert!(is_kept(&[3, 6]) && log.backlog() == 0);
    let sentence = store.logs().unwrap()[0].to_string();
    assert_eq!(
        sentence,
        "the log \"l\" has no item from 11 on, and 2 below that parked jobs keep; redrive or discard them"
    );
    let mut read = Vec::new();
    log.read(6..=9, &mut read).unwrap();
    assert_eq!(read, [6], "it stops at the first one that is not there");
    consumer.stop().unwrap();
    let consumer = start();
    let handle = consumer.handle();
    log.retain([&handle]);
    log.push(&11).unwrap();
    eventually("the trim", || log.first().unwrap() == 12);
    assert!(is_kept(&[3, 6]));
    store.discard("p", 3).unwrap();
    eventually("the item of the job that is given up goes", || is_kept(&[6]));
    mended.mend();
    handle.redrive(6).unwrap();
    eventually("nothing is kept", || is_kept(&[]));
    until(&handle, "the job is done", |status| status.parked == 0);
    consumer.stop().unwrap();
    assert_eq!(indices(&store), [0; 0]);
}

#[test]
fn an_item_discarded_offline_goes_in_the_next_life() {
    let disk = FaultyStore::new().unwrap();
    let (store, log) = (disk.store(), disk.store().log::<u64>("l").unwrap());
    log.push_all(&(1..=10).collect::<Vec<_>>()).unwrap();
    let start = |log: &JobLog<u64>| {
        let builder = Consumer::builder(log.clone(), store.progress("p")).on_exhausted(PARK);
        builder.start(|job| if job.index % 2 == 1 { Err("refused".into()) } else { Ok(()) }).unwrap()
    };
    let life = |log: &JobLog<u64>| {
        let consumer = start(log);
        assert!(consumer.handle().wait_for(10, LONG));
        log.retain([consumer.handle()]);
        consumer
    };
    life(&log).stop().unwrap();
    eventually("the trim", || log.first().unwrap() == 11);
    assert_eq!(store.discard_all("p", 3..=7).unwrap(), 3);
    // Without a consumer the log cannot tell what is parked, so it keeps all.
    log.trim(..=10).unwrap();
    drop(log);
    let log = store.log::<u64>("l").unwrap();
    assert_eq!((kept(&log), counted(&store)), (vec![1, 3, 5, 7, 9], 5));
    let consumer = life(&log);
    eventually("the items go", || counted(&store) == 2);
    assert_eq!(kept(&log), [1, 9]);
    // A discard while the consumer runs frees the item, too.
    assert_eq!(store.discard_all("p", ..=1).unwrap(), 1);
    eventually("the item goes", || counted(&store) == 1);
    consumer.stop().unwrap();
}

#[test]
fn an_item_goes_once_the_logs_store_works_again() {
    let (store, disk) = (Store::in_memory(), FaultyStore::new().unwrap());
    let log = disk.store().log::<u64>("l").unwrap();
    log.push_all(&[1, 2, 3]).unwrap();
    // The progress is in another store, so only writes of the log fail.
    let builder = Consumer::builder(log.clone(), store.progress("p")).on_exhausted(PARK);
    let consumer = builder.start(|job| if job.index < 3 { Err("refused".into()) } else { Ok(()) }).unwrap();
    log.retain([consumer.handle()]);
    eventually("the trim", || log.first().unwrap() == 4);
    let before = disk.writes();
    disk.fail(..3);
    store.discard("p", 1).unwrap();
    eventually("the writes that fail", || disk.writes() >= before + 3);
    eventually("the item goes", || kept(&log) == [2]);
    consumer.stop().unwrap();
}

#[test]
fn promise_01_a_parked_job_has_its_item_at_any_crash() {
    const ITEMS: Index = 8;
    let start = |store: &Store, log: &JobLog<u64>, mended: &Mended| {
        let mended = mended.clone();
        let builder = Consumer::builder(log.clone(), store.progress("p")).on_exhausted(PARK).max_processing(1);
        builder.start(move |job| mended.run(job.payload, |item| item % 2 == 1)).unwrap()
    };
    let live = |trial: &Trial| {
        let (store, mended) = (trial.store(), Mended::default());
        let log = store.log::<u64>("l").unwrap();
        log.push_all(&(1..=ITEMS).collect::<Vec<_>>()).unwrap();
        let consumer = start(&store, &log, &mended);
        let handle = consumer.handle();
        log.retain([&handle]);
        assert!(handle.wait_for(ITEMS, LONG));
        eventually("the trim", || log.first().unwrap() == ITEMS + 1);
        store.discard("p", 3).unwrap();
        mended.mend();
        handle.redrive(5).unwrap();
        until(&handle, "the end of the redrive", |status| status.parked == 2);
        eventually("the items go", || counted(&store) == 2);
        consumer.stop().unwrap();
    };
    every_write(&DEATHS, live, |next, ()| {
        let store = next.store();
        let log = store.log::<u64>("l").unwrap();
        let (first, parked) = (log.first().unwrap(), indices(&store));
        let there = kept(&log);
        assert_eq!(there.len() as u64, store.logs().unwrap().first().map_or(0, |log| log.parked));
        for index in parked.iter().filter(|index| **index < first) {
            assert!(there.contains(index), "the item of the parked job {index} is lost: {there:?}");
        }
        // The next life frees what the death left behind.
        let consumer = start(&store, &log, &Mended::default());
        log.retain([consumer.handle()]);
        if let Some(head) = log.head().unwrap() {
            assert!(consumer.handle().wait_for(head, LONG));
            eventually("the trim", || log.first().unwrap() == head + 1 && kept(&log) == indices(&store));
        }
        consumer.stop().unwrap();
    });
}

#[test]
fn parking_a_job_lets_the_next_result_through() {
    let store = Store::in_memory();
    let (begun, has_begun) = crossbeam_channel::bounded(1);
    let (say, said) = crossbeam_channel::bounded(1);
    let consumer = Consumer::builder(numbers(3), store.progress("p"))
        .max_processing(2)
        .on_exhausted(PARK)
        .start_ordered(
            move |job| match job.index {
                // Job 2 starts in the slot of job 1, whose result waits by then.
                0 => Err(has_begun.recv_timeout(LONG).map_or_else(Into::into, |()| "refused".into())),
                1 => Ok(()),
                _ => {
                    begun.send(())?;
                    Ok(said.recv_timeout(LONG)?)
                }
            },
            move |index, ()| {
                if index == 1 {
                    say.send(())?;
                }
                Ok(())
            },
        )
        .unwrap();
    let handle = consumer.handle();
    assert!(handle.wait_for(2, LONG), "{}", handle.status());
    assert_eq!(indices(&store), [0]);
    consumer.stop().unwrap();
}

#[test]
fn a_stop_awaits_a_running_redriven_job() {
    let store = Store::in_memory();
    let (begun, has_begun) = crossbeam_channel::bounded(1);
    let (go, may_go) = crossbeam_channel::bounded::<()>(1);
    let consumer = Consumer::builder(numbers(4), store.progress("p"))
        .on_exhausted(PARK)
        .start(move |job| {
            if job.index != 1 {
                return Ok(());
            }
            if job.attempt == 1 {
                return Err("refused".into());
            }
            begun.send(())?;
            Ok(may_go.recv()?)
        })
        .unwrap();
    let handle = consumer.handle();
    assert!(handle.wait_for(3, LONG));
    handle.redrive(1).unwrap();
    has_begun.recv_timeout(LONG).unwrap();
    handle.request_stop();
    assert_eq!(handle.wait_end(QUIET), None, "it runs");
    go.send(()).unwrap();
    consumer.stop().unwrap();
    assert_eq!(indices(&store), [0; 0]);
}

#[test]
fn only_a_permanent_failure_parks_while_stopping() {
    for (for_good, parked, processed) in [(false, vec![], None), (true, vec![0], Some(0))] {
        let store = Store::in_memory();
        let (begun, has_begun) = crossbeam_channel::bounded(1);
        let (go, may_go) = crossbeam_channel::bounded::<()>(1);
        let consumer = Consumer::builder(numbers(4), store.progress("p"))
            .max_processing(1)
            .on_exhausted(PARK)
            .start(move |job| {
                assert_eq!(job.attempt, 1);
                begun.send(())?;
                may_go.recv()?;
                if for_good { Err(Failure::permanent("refused").into()) } else { Err("refused".into()) }
            })
            .unwrap();
        has_begun.recv_timeout(LONG).unwrap();
        consumer.handle().request_stop();
        go.send(()).unwrap();
        consumer.stop().unwrap();
        assert_eq!((indices(&store), store.progress("p").last_processed().unwrap()), (parked, processed));
        // The attempt did not count.
        let next = Consumer::builder(numbers(4), store.progress("p")).on_exhausted(PARK).stop_at(3);
        let run = |job: Job<u64>| {
            assert_eq!(job.attempt, 1);
            Ok(())
        };
        next.start(run).unwrap().join().unwrap();
    }
}

#[test]
fn a_redrive_failing_at_a_stop_runs_in_the_next_life() {
    let store = Store::in_memory();
    let (begun, has_begun) = crossbeam_channel::bounded(1);
    let (go, may_go) = crossbeam_channel::bounded::<()>(1);
    let consumer = Consumer::builder(numbers(4), store.progress("p"))
        .on_exhausted(PARK)
        .start(move |job| {
            if job.index != 1 {
                return Ok(());
            }
            if job.attempt > 1 {
                begun.send(())?;
                may_go.recv()?;
            }
            Err(format!("attempt {}", job.attempt).into())
        })
        .unwrap();
    let handle = consumer.handle();
    assert!(handle.wait_for(3, LONG));
    handle.redrive(1).unwrap();
    has_begun.recv_timeout(LONG).unwrap();
    handle.request_stop();
    go.send(()).unwrap();
    consumer.stop().unwrap();
    let parked = &store.parked("p").unwrap()[0];
    assert_eq!((parked.index, parked.attempts, parked.redrive_wanted), (1, 1, true));
    assert_eq!(parked.error, "attempt 1");
    let consumer = Consumer::builder(numbers(4), store.progress("p")).on_exhausted(PARK);
    let run = |job: Job<u64>| {
        assert_eq!((job.index, job.attempt), (1, 2));
        Ok(())
    };
    let consumer = consumer.start(run).unwrap();
    eventually("it is done", || indices(&store).is_empty());
    consumer.stop().unwrap();
}

#[test]
fn removing_a_progress_forgets_its_parked_jobs() {
    let store = Store::in_memory();
    let life = || {
        let builder = Consumer::builder(numbers(4), store.progress("p")).on_exhausted(PARK).stop_at(3);
        builder.start(|_| Err("refused".into())).unwrap().join().unwrap();
    };
    life();
    assert_eq!(indices(&store), [0, 1, 2, 3]);
    store.progress("p").remove().unwrap();
    assert_eq!(indices(&store), [0; 0]);
    life();
    store.progress("p").remove_with(|_| Ok(())).unwrap();
    assert_eq!(indices(&store), [0; 0]);
}

#[test]
fn a_permanent_failure_parks_or_halts_at_once() {
    let store = Store::in_memory();
    let forever = || Retry::fixed(Duration::ZERO);
    let fail = |index: Index| match index % 3 {
        1 => Err(Failure::permanent(format!("job {index} makes no sense")).into()),
        _ => Ok::<_, BoxError>(()),
    };
    let parking = Consumer::builder(numbers(9), store.progress("p")).retry(forever()).on_exhausted(PARK).stop_at(8);
    parking.start(move |job| fail(job.index)).unwrap().join().unwrap();
    let parked = store.parked("p").unwrap();
    assert_eq!(parked.iter().map(|p| (p.index, p.attempts)).collect::<Vec<_>>(), [(1, 1), (4, 1), (7, 1)]);
    assert_eq!(parked[0].error, "job 1 makes no sense");
    // One at a time, so that job 1 fails before job 4.
    let halting = Consumer::builder(numbers(9), store.progress("q")).retry(forever()).max_processing(1);
    let error = halting.start(move |job| fail(job.index)).unwrap().join().unwrap_err();
    assert!(matches!(error, Error::Job { index: 1, attempt: 1, .. }), "{error:?}");
    assert!(error.report().contains("and is not tried again") && error.report().ends_with("makes no sense"));
}

#[test]
fn a_deferred_job_frees_its_slot_uncounted() {
    let store = Store::in_memory();
    let (ready, time) = (Mended::default(), Time::new());
    let consumer = Consumer::builder(numbers(20), store.progress("p"))
        .clock(time.clock())
        .max_processing(1)
        .retry(Retry::none())
        .on_exhausted(PARK)
        .stop_at(19)
        .start({
            let ready = ready.clone();
            move |job| {
                assert_eq!(job.attempt, 1);
                if job.index == 3 && !ready.0.load(Ordering::Acquire) {
                    return Err(Failure::defer(HOUR).into());
                }
                Ok(())
            }
        })
        .unwrap();
    let handle = consumer.handle();
    // All others are done, with one slot.
    let status = time.until(HOUR, &handle, "the others", |status| {
        let is_saved = (status.done, status.last_processed) == (19, Some(2));
        is_saved && matches!(status.blocked, Blocked::Deferred { index: 3, .. })
    });
    assert_eq!((status.failed, status.retries), (0, 0));
    assert!(status.blocked.to_string().starts_with("job 3 was not ready and is tried again "), "{}", status.blocked);
    ready.mend();
    time.steps(HOUR, "the last one", || handle.wait_end(Duration::ZERO).is_some());
    consumer.join().unwrap();
    assert_eq!((handle.status().done, handle.status().failed, indices(&store)), (20, 0, vec![]));
}

#[test]
fn observers_hear_of_parked_and_deferred_jobs() {
    let (store, (say, said)) = (Store::in_memory(), crossbeam_channel::unbounded());
    let deferred = AtomicBool::new(false);
    Consumer::builder(numbers(3), store.progress("p"))
        .on_exhausted(PARK)
        .max_processing(1)
        .stop_at(2)
        .observe(move |event: &Event<'_>| match event {
            Event::Parked { consumer, index, attempt, error, .. } => {
                drop(say.send(format!("{consumer} parked {index} in attempt {attempt}: {error}")));
            }
            Event::AttemptEnded { index, attempt, outcome: AttemptOutcome::Deferred, .. } => {
                drop(say.send(format!("deferred {index} in attempt {attempt}")));
            }
            _ => {}
        })
        .start(move |job| match job.index {
            0 if !deferred.swap(true, Ordering::AcqRel) => Err(Failure::defer(Duration::ZERO).into()),
            1 => Err("refused".into()),
            _ => Ok(()),
        })
        .unwrap()
        .join()
        .unwrap();
    let mut heard: Vec<String> = said.iter().collect();
    heard.sort_unstable();
    assert_eq!(heard, ["deferred 0 in attempt 1", "p parked 1 in attempt 1: refused"]);
}
