//! Order by key (`ordered_by`): state by key that is exact at any crash, and what waits for whom.

use common::every_write::{DEATHS, DiskFault, Trial, every_write};
use common::*;
use parking_lot::Mutex;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use waterline::{
    Blocked, BoxError, Consumer, Error, Index, Jobs, MemoryProgress, OnExhausted, Retry, Sparse, Store, Table,
};

/// A key's state after one more of its jobs, which depends on their order.
fn after(state: u64, index: Index) -> u64 {
    state.wrapping_mul(31).wrapping_add(index + 1)
}

fn state(rows: &Table, key: u64) -> u64 {
    let row = rows.get(key.to_be_bytes()).unwrap();
    row.map_or(0, |row| u64::from_be_bytes(row.try_into().unwrap()))
}

/// Runs a life in which each job reads the row of its key, and writes it back. Some jobs fail at
/// first.
fn live(trial: &Trial, jobs: u64, keys: u64, tries: u32) -> Result<(), Error> {
    let store = trial.store();
    let rows = store.table("rows")?;
    let consumer = Consumer::builder(numbers(jobs), store.progress("p"))
        .max_processing(4)
        .max_crashes(100)
        .retry(Retry::fixed(Duration::from_micros(200)))
        .ordered_by(move |index| Some(index % keys))
        .stop_at(jobs - 1)
        .start_transactional(move |job, effects| {
            let before = state(&rows, job.index % keys);
            if job.index.is_multiple_of(5) && job.attempt < tries {
                return Err("not yet".into());
            }
            Ok(effects.put(&rows, (job.index % keys).to_be_bytes(), after(before, job.index).to_be_bytes())?)
        })?;
    consumer.join()
}

#[test]
fn promise_09_state_by_key_is_exact_at_any_crash() {
    const JOBS: u64 = 24;
    for keys in [1, 3, 100] {
        let lives = |trial: &Trial| drop(live(trial, JOBS, keys, 2));
        every_write(&[DEATHS[0], DEATHS[1], DiskFault::Fail(1)], lives, |next, ()| {
            live(next, JOBS, keys, 1).unwrap();
            let rows = next.store().table("rows").unwrap();
            for key in 0..keys.min(JOBS) {
                let serial = (0..JOBS).filter(|index| index % keys == key).fold(0, after);
                assert_eq!(state(&rows, key), serial, "key {key} of {keys}");
            }
        });
    }
}

/// Numbers of a kibibyte each, of which one may go.
#[derive(Clone)]
struct Source {
    jobs: u64,
    reads: Arc<AtomicU64>,
    gone: Arc<Mutex<Option<Index>>>,
}

impl Source {
    fn new(jobs: u64) -> Self {
        Self { jobs, reads: Arc::default(), gone: Arc::default() }
    }
}

type Sized = (Index, Vec<u8>);

impl Jobs for Source {
    type Job = Sized;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(self.jobs - 1))
    }

    fn at_index(&self, index: Index) -> Result<Option<Sized>, BoxError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        Ok(Some((index, vec![0; 1024])))
    }

    fn read_sparse(&self, run: RangeInclusive<Index>, most: usize, into: &mut Sparse<Sized>) -> Result<(), BoxError> {
        for index in run.take(most) {
            match self.at_index(index)? {
                Some(job) if *self.gone.lock() != Some(index) => into.job(index, job),
                _ => into.none_through(index),
            }
        }
        Ok(())
    }

    fn weight(&self, job: &Sized) -> usize {
        job.1.len()
    }
}

/// Jobs that run, in this order.
type Runs = Arc<Mutex<Vec<Index>>>;

/// The jobs of one key fail until it is healed. Those behind its first one are more than are read
/// ahead, and more than the memory for their values holds; all other keys go on. One of them is
/// gone when it is read again.
#[test]
fn a_key_whose_jobs_fail_delays_no_other() {
    const JOBS: u64 = 6_000;
    const KEPT: u64 = 500;
    let (source, healed, runs) = (Source::new(JOBS), Arc::new(AtomicBool::new(false)), Runs::default());
    let (heals, ran) = (healed.clone(), runs.clone());
    let consumer = Consumer::builder(source.clone(), MemoryProgress::new())
        .max_processing(3)
        .max_search_ahead(u64::MAX)
        .max_read_ahead(2 * 1024 * KEPT as usize)
        .retry(Retry::fixed(Duration::from_millis(1)))
        .ordered_by(|(index, _): &Sized| (index % 3 == 1).then_some(1))
        .stop_at(JOBS - 1)
        .start(move |job| {
            if job.index % 3 == 1 && !heals.load(Ordering::SeqCst) {
                return Err("down".into());
            }
            ran.lock().push(job.index);
            Ok(())
        })
        .unwrap();
    let handle = consumer.handle();
    // Two of three jobs, and all behind the one that fails.
    let status = until(&handle, "the other keys", |status| status.done == JOBS * 2 / 3);
    assert_eq!((status.last_processed, status.behind), (Some(0), JOBS / 3 - 1));
    let busiest = handle.busiest_key().unwrap();
    assert_eq!((busiest.index, busiest.behind), (1, JOBS / 3 - 1));
    assert!(status.to_string().contains("job 1 failed in attempt"), "{status}");
    assert!(source.reads.load(Ordering::SeqCst) >= JOBS + status.retries);
    let gone = JOBS - 5;
    *source.gone.lock() = Some(gone);
    healed.store(true, Ordering::SeqCst);
    consumer.join().unwrap();
    let (status, runs) = (handle.status(), runs.lock());
    assert_eq!((status.done, status.absent, status.behind, handle.busiest_key()), (JOBS - 1, 1, 0, None));
    // The values of those beyond the memory are read twice.
    let twice = source.reads.load(Ordering::SeqCst) - JOBS - status.retries;
    assert!((JOBS / 3 - KEPT - 10..=JOBS / 3 - KEPT + 10).contains(&twice), "{twice} jobs were read twice");
    let expected = (0..JOBS).filter(|index| index % 3 == 1 && *index != gone);
    assert!(runs.iter().copied().filter(|index| index % 3 == 1).eq(expected), "they are out of order");
}

/// The key of a job cannot be made until it is healed: the source has failed there.
#[test]
fn a_key_that_panics_is_a_failure_of_the_source() {
    for gaps in [false, true] {
        let healed = Arc::new(AtomicBool::new(false));
        let heals = healed.clone();
        let key = move |index: Index| {
            assert!(index != 7 || heals.load(Ordering::SeqCst), "no key for job 7");
            Some(index % 2)
        };
        let retry = Retry::fixed(Duration::from_millis(1));
        let source = Source::new(10);
        *source.gone.lock() = gaps.then_some(3);
        let consumer = Consumer::builder(source, MemoryProgress::new())
            .source_retry(retry)
            .ordered_by(move |(index, _): &Sized| key(*index))
            .stop_at(9)
            .start(|_| Ok(()))
            .unwrap();
        let handle = consumer.handle();
        let blocked = |status: &waterline::Status| matches!(&status.blocked, Blocked::Source { index: 7, error } if error.contains("no key for job 7"));
        until(&handle, "the failure", blocked);
        assert!(handle.wait_for(6, LONG));
        healed.store(true, Ordering::SeqCst);
        consumer.join().unwrap();
        assert_eq!(handle.status().done, 10 - u64::from(gaps));
    }
}

/// A job that failed in an earlier life takes its key before later ones of that key start, and one
/// that is parked leaves its key.
#[test]
fn jobs_of_an_earlier_life_keep_their_place() {
    let (store, runs) = (Store::in_memory(), Runs::default());
    let start = |fails: bool, parks: bool| {
        let ran = runs.clone();
        let builder = Consumer::builder(numbers(8), store.progress("p"))
            .max_processing(4)
            .max_crashes(9)
            .ordered_by(|index| Some(index % 2));
        let builder = if parks { builder.on_exhausted(OnExhausted::Park { budget: 1 }) } else { builder };
        let retry = Retry::fixed(if fails { HOUR } else { Duration::from_millis(30) });
        builder
            .retry(if parks { retry.max_attempts(2) } else { retry })
            .start(move |job| {
                ran.lock().push(job.index);
                if job.index == 2 && (fails || parks) { Err("refused".into()) } else { Ok(()) }
            })
            .unwrap()
    };
    let first = start(true, false);
    let status = until(&first.handle(), "the odd jobs", |status| (status.done, status.failed) == (5, 1));
    assert_eq!((status.behind, std::mem::take(&mut *runs.lock()).len()), (2, 6));
    first.stop().unwrap();
    // It waits for the rest of its back-off, with its key, and is parked then.
    let second = start(false, true);
    until(&second.handle(), "the others", |status| (status.done, status.parked) == (2, 1));
    assert_eq!(std::mem::take(&mut *runs.lock()), [2, 4, 6]);
    assert_eq!(second.handle().redrive_all().unwrap(), 1);
    until(&second.handle(), "the redriven one", |status| status.failed == 2);
    second.stop().unwrap();
    assert_eq!((store.progress("p").last_processed().unwrap(), std::mem::take(&mut *runs.lock())), (Some(7), vec![2]));
}

#[test]
fn batches_have_no_order_by_key() {
    let builder = Consumer::builder(numbers(1), MemoryProgress::new()).ordered_by(|index| Some(*index));
    let started = builder.start_batched(1, Duration::ZERO, |_| Ok(()));
    let error = started.unwrap_err().to_string();
    assert!(error.contains("ordered_by is not for batches"), "{error}");
}
