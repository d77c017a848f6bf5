//! An add that cannot be made is a bug of its job: the job fails for good with an error that names
//! index, table and key, and no other job fails.

use common::every_write::DiskFault::{Fail, PowerLoss, Stop};
use common::every_write::{Trial, every_write_after};
use common::*;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use waterline::testing::FaultyStore;
use waterline::{
    Blocked, BoxError, Builder, Consumer, Effects, Error, Failure, Handle, Index, Job, JobLog, MemoryJobs, OnExhausted,
    Retry, State, Store, StoreProgress, Table,
};

const NOW: Retry = Retry::fixed(Duration::ZERO);

/// The changes of each job: a new row, a replaced row, a sum, its own counter, and a log.
#[derive(Clone)]
struct Rows {
    rows: Table,
    sums: Table,
    items: JobLog<u64>,
}

impl Rows {
    fn of(store: &Store) -> Self {
        let (rows, sums) = (store.table("rows").unwrap(), store.table("sums").unwrap());
        Self { rows, sums, items: store.log("items").unwrap() }
    }

    /// The rows that jobs delete, and a value that is no counter.
    fn prepare(&self, count: u64) {
        (0..count).for_each(|index| self.rows.put(old(index), "").unwrap());
        self.sums.put("text", "abc").unwrap();
    }

    fn write(&self, index: Index, effects: &mut Effects) -> Result<(), Error> {
        effects.push(&self.items, &index)?;
        effects.put(&self.rows, index.to_be_bytes(), "new")?;
        effects.add(&self.sums, index.to_be_bytes(), 1)?;
        effects.add(&self.sums, "jobs", 1)?;
        effects.delete(&self.rows, old(index))
    }

    /// Returns the jobs whose changes are in the store, and checks that no changes are there in
    /// part.
    #[track_caller]
    fn done(&self, count: u64) -> BTreeSet<Index> {
        let in_rows = |index: &Index| self.rows.get(index.to_be_bytes()).unwrap().is_some();
        let done: BTreeSet<Index> = (0..count).filter(in_rows).collect();
        for index in 0..count {
            let is_done = done.contains(&index);
            let deleted = self.rows.get(old(index)).unwrap().is_none();
            let times = self.sums.counter(index.to_be_bytes()).unwrap();
            assert_eq!((deleted, times), (is_done, i64::from(is_done)), "half of job {index}");
        }
        assert_eq!(self.sums.counter("jobs").unwrap(), done.len() as i64);
        let mut items: Vec<u64> = (1..=done.len() as u64).filter_map(|at| read(&self.items, at)).collect();
        items.sort_unstable();
        assert!(items.iter().eq(&done), "{items:?} were pushed");
        assert_eq!(read(&self.items, done.len() as u64 + 1), None);
        done
    }
}

fn old(index: Index) -> Vec<u8> {
    [b"old ".as_slice(), &index.to_be_bytes()].concat()
}

fn read(log: &JobLog<u64>, index: Index) -> Option<u64> {
    waterline::Jobs::at_index(log, index).unwrap()
}

fn all_but(count: u64, bad: &[Index]) -> BTreeSet<Index> {
    (0..count).filter(|index| !bad.contains(index)).collect()
}

fn consumer(store: &Store, count: u64) -> Builder<MemoryJobs<u64>, StoreProgress> {
    Consumer::builder(numbers(count), store.progress("p")).max_processing(4).stop_at(count - 1).retry(NOW)
}

/// Returns the error of a job, and the table and the key that its source names.
#[track_caller]
fn refused(error: &Error) -> (Index, u32, &str, &[u8], &str) {
    let Error::Job { index, attempt, source } = error else { panic!("{error:?}") };
    match source.downcast_ref() {
        Some(Error::Counter { table, key, reason }) => (*index, *attempt, table, key, reason),
        _ => panic!("{error:?}"),
    }
}

fn run_all(
    store: &Store,
    count: u64,
    run: impl Fn(u64, &mut Effects) -> Result<(), Error> + Send + Sync + 'static,
) -> Vec<Index> {
    let ran: Arc<Mutex<Vec<Index>>> = Arc::default();
    let log = ran.clone();
    let consumer = consumer(store, count).start_transactional(move |job, effects| {
        log.lock().push(job.index);
        Ok(run(job.index, effects)?)
    });
    consumer.unwrap().join().unwrap();
    let mut ran = ran.lock().clone();
    ran.sort_unstable();
    ran
}

/// Returns a store in which a consumer has saved: numbers for further consumers are reserved, so
/// each write has everything that is due.
fn faulty() -> FaultyStore {
    let faulty = FaultyStore::new().unwrap();
    let before = Consumer::builder(numbers(1), faulty.store().progress("before")).stop_at(0).start(|_| Ok(()));
    before.unwrap().join().unwrap();
    faulty
}

/// A job waits at it until the test drops the sender.
fn latch() -> (crossbeam_channel::Sender<()>, crossbeam_channel::Receiver<()>) {
    crossbeam_channel::bounded(0)
}

fn wait(latch: &crossbeam_channel::Receiver<()>) {
    assert!(latch.recv_timeout(LONG).is_err_and(|e| e.is_disconnected()), "the test lets it go on");
}

#[test]
fn promise_05_a_refused_add_halts_and_the_others_are_saved() {
    const COUNT: u64 = 40;
    let faulty = faulty();
    let store = faulty.store();
    let rows = Rows::of(&store);
    rows.prepare(COUNT);
    // The failing store gathers the changes of all jobs, and then writes them together. The last
    // job runs on: otherwise the end would give the save up.
    faulty.fail(..);
    let (open, closed) = latch();
    let (end, last) = latch();
    let confirmed: Arc<Mutex<BTreeSet<Index>>> = Arc::default();
    let (wanted, told) = (rows.clone(), confirmed.clone());
    let consumer = consumer(&store, COUNT)
        .on_job_done(move |index| assert!(told.lock().insert(index), "a second attempt of {index}"))
        .start_transactional(move |job, effects| {
            wanted.write(job.index, effects)?;
            if job.index == COUNT - 1 {
                wait(&last);
            }
            if job.index == 7 {
                wait(&closed);
                effects.put(&wanted.rows, "of the bad job", "")?;
                effects.add(&wanted.sums, "text", 1)?;
                effects.put(&wanted.sums, "text", "never written")?;
            }
            Ok(())
        })
        .unwrap();
    let handle = consumer.handle();
    until(&handle, "the others", |s| s.done == COUNT - 2);
    drop(open);
    until(&handle, "the halt, though nothing can be written", |s| s.state == State::Halted);
    assert_eq!(rows.done(COUNT), all_but(0, &[]));
    faulty.heal();
    until(&handle, "one save", |s| s.saves == 1);
    assert_eq!(rows.done(COUNT), all_but(COUNT - 1, &[7]));
    drop(end);
    let error = consumer.join().unwrap_err();
    let (index, attempt, table, key, reason) = refused(&error);
    assert_eq!((index, attempt, table, key), (7, 1, "sums", b"text".as_slice()));
    assert!(reason.contains("3 bytes long instead of 8") && reason.contains("delete"), "{reason}");
    let report = error.report();
    assert!(report.starts_with("job 7 failed in attempt 1 and is not tried again: fix"), "{report}");
    assert!(report.contains(r#"the key "text" of the table "sums""#), "{report}");
    let status = handle.status();
    assert_eq!((status.done, status.failed, status.retries, status.saves), (COUNT - 1, 1, 0, 2), "{status:#?}");
    assert_eq!((status.state, status.last_processed), (State::Halted, Some(6)));
    assert_eq!((status.done_ahead, status.unsaved), (COUNT - 8, 0));
    assert!(
        matches!(&status.blocked, Blocked::Halted { index: 7, error } if error.contains("\"text\"")),
        "{status:#?}"
    );
    assert_eq!(confirmed.lock().len() as u64, COUNT, "`on_job_done` comes before anything is written");
    assert_eq!(rows.done(COUNT), all_but(COUNT, &[7]));
    assert_eq!(rows.sums.get("text").unwrap().as_deref(), Some(b"abc".as_slice()));
    assert_eq!(rows.rows.get("of the bad job").unwrap(), None);
    // Once the cause is fixed, only that job runs.
    rows.sums.delete("text").unwrap();
    let mended = rows.clone();
    let ran = run_all(&store, COUNT, move |index, effects| {
        mended.write(index, effects)?;
        effects.add(&mended.sums, "text", 1)
    });
    assert_eq!(ran, [7]);
    assert_eq!(rows.done(COUNT), all_but(COUNT, &[]));
    assert_eq!(rows.sums.counter("text").unwrap(), 1);
    assert_eq!(store.progress("p").last_processed().unwrap(), Some(COUNT - 1));
}

#[test]
fn another_consumer_in_the_same_write_goes_on() {
    let faulty = faulty();
    let store = faulty.store();
    let rows = Rows::of(&store);
    rows.prepare(0);
    faulty.fail(..);
    let (open, closed) = latch();
    let wanted = rows.clone();
    let bad = consumer(&store, 1)
        .start_transactional(move |_, effects| {
            wait(&closed);
            Ok(effects.add(&wanted.sums, "text", 1)?)
        })
        .unwrap();
    let counted = rows.clone();
    let source = numbers(50);
    let other = Consumer::builder(source.clone(), store.progress("other"))
        .start_transactional(move |job, effects| Ok(effects.add(&counted.sums, "other", job.payload as i64)?))
        .unwrap();
    let handle = other.handle();
    until(&handle, "all jobs of the other one", |s| s.done == 50);
    drop(open);
    until(&bad.handle(), "the halt, though nothing can be written", |s| s.state == State::Halted);
    assert_eq!((handle.status().state, handle.status().failed), (State::Running, 0));
    faulty.heal();
    assert_eq!(refused(&bad.join().unwrap_err()).0, 0);
    assert!(handle.wait_for(49, LONG), "{:?}", handle.status());
    assert_eq!(rows.sums.counter("other").unwrap(), 49 * 50 / 2);
    source.push(7);
    assert!(handle.wait_for(50, LONG), "{:?}", handle.status());
    other.stop().unwrap();
}

#[test]
fn refusals_of_the_last_save_are_parked() {
    let store = Store::in_memory();
    let table = store.table("sums").unwrap();
    table.put("text", "abc").unwrap();
    let t = table.clone();
    // They end together, so mostly their first save is the last one, too.
    let (together, begun) = (std::sync::Barrier::new(4), AtomicUsize::new(0));
    let consumer = consumer(&store, 4)
        .on_exhausted(OnExhausted::Park { budget: 9 })
        .start_transactional(move |job, effects| {
            if begun.fetch_add(1, Ordering::SeqCst) < 4 {
                together.wait();
            }
            Ok(effects.add(&t, if job.index == 0 { "sum" } else { "text" }, 1)?)
        })
        .unwrap();
    let handle = consumer.handle();
    consumer.join().unwrap();
    assert_eq!((handle.last_processed_index(), table.counter("sum").unwrap()), (Some(3), 1));
    assert_eq!(store.parked("p").unwrap().iter().map(|job| job.index).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn a_redrive_with_a_refused_add_stays_parked() {
    let store = Store::in_memory();
    let table = store.table("sums").unwrap();
    table.put("text", "abc").unwrap();
    let (open, closed) = latch();
    let (t, runs) = (table.clone(), AtomicUsize::new(0));
    let consumer = consumer(&store, 3)
        .on_exhausted(OnExhausted::Park { budget: 1 })
        .start_transactional(move |job, effects| match job.index {
            0 => {
                wait(&closed);
                Ok(())
            }
            1 if runs.fetch_add(1, Ordering::SeqCst) == 0 => Err(Failure::permanent("not now").into()),
            1 => Ok(effects.add(&t, "text", 1)?),
            _ => Ok(effects.add(&t, "sum", 1)?),
        })
        .unwrap();
    let handle = consumer.handle();
    until(&handle, "the parked job", |s| s.parked == 1 && s.done == 1);
    handle.redrive(1).unwrap();
    until(&handle, "the refusal", |s| s.failed == 2);
    let status = handle.status();
    assert_eq!((status.state, status.parked, status.done), (State::Running, 1, 1), "{status:#?}");
    drop(open);
    consumer.join().unwrap();
    assert_eq!((handle.last_processed_index(), table.counter("sum").unwrap()), (Some(2), 1));
    let parked = store.parked("p").unwrap();
    assert!(matches!(&parked[..], [one] if one.index == 1 && one.error.contains("text")), "{parked:?}");
}

#[test]
fn a_counter_overflow_fails_its_job_alone() {
    for (start, by) in [(i64::MAX, 1), (i64::MIN, -1), (1, i64::MAX), (-2, i64::MIN)] {
        let store = Store::in_memory();
        let table = store.table("sums").unwrap();
        table.put("most", start.to_be_bytes()).unwrap();
        let t = table.clone();
        let add = move |index: Index, effects: &mut Effects| {
            effects.add(&t, "jobs", 1)?;
            if index == 3 { effects.add(&t, "most", by) } else { Ok(()) }
        };
        let also = add.clone();
        // All are in flight at once, so each runs in this life.
        let together = std::sync::Barrier::new(6);
        let consumer = consumer(&store, 6).max_processing(6).start_transactional(move |job, effects| {
            together.wait();
            Ok(add(job.index, effects)?)
        });
        let error = consumer.unwrap().join().unwrap_err();
        let (index, attempt, name, key, reason) = refused(&error);
        assert_eq!((index, attempt, name, key), (3, 1, "sums", b"most".as_slice()));
        assert!(reason.contains(&format!("it counts {start}, and {by} more is too much")), "{reason}");
        assert_eq!((table.counter("jobs").unwrap(), table.counter("most").unwrap()), (5, start));
        table.put("most", 0i64.to_be_bytes()).unwrap();
        assert_eq!(run_all(&store, 6, also), [3]);
        assert_eq!((table.counter("jobs").unwrap(), table.counter("most").unwrap()), (6, by));
    }
}

/// Runs a life in which job 5 is bad until it is fixed, and returns the end.
fn life(store: &Store, rows: &Rows, count: u64) -> Result<(), Error> {
    let wanted = rows.clone();
    consumer(store, count)
        .max_search_ahead(3)
        .start_transactional(move |job: Job<u64>, effects: &mut Effects| -> Result<(), BoxError> {
            wanted.write(job.index, effects)?;
            if job.index == 5 {
                effects.add(&wanted.sums, "text", 1)?;
            }
            Ok(())
        })?
        .join()
}

#[test]
fn promise_09_a_refused_add_and_any_fault_keep_effects_once() {
    const COUNT: u64 = 9;
    let prepare = |disk: &mut Arc<FaultyStore>| Rows::of(&disk.store()).prepare(COUNT);
    let halts = |store: &Store, rows: &Rows| assert_eq!(refused(&life(store, rows, COUNT).unwrap_err()).0, 5);
    let live = |trial: &Trial| halts(&trial.store(), &Rows::of(&trial.store()));
    let lives = every_write_after(prepare, &[Stop, PowerLoss, Fail(1), Fail(2)], live, |next, ()| {
        let (store, rows) = (next.store(), Rows::of(&next.store()));
        let done = rows.done(COUNT);
        let below = store.progress("p").last_processed().unwrap().map_or(0, |last| last + 1);
        assert!((0..below).all(|index| done.contains(&index)), "below {below}, of {done:?}");
        assert!(!done.contains(&5), "the bad job is not done");
        halts(&store, &rows);
        rows.sums.delete("text").unwrap();
        life(&store, &rows, COUNT).unwrap();
        assert_eq!(rows.done(COUNT), all_but(COUNT, &[]));
        assert_eq!(rows.sums.counter("text").unwrap(), 1);
    });
    assert!(lives > 2, "there were writes to be lost");
}

/// Runs a consumer whose bad jobs add to a key, and another one that puts a text there after their
/// effects were handed over and before these could be written.
fn spoiled_later(faulty: &FaultyStore, count: u64, is_bad: fn(Index) -> bool) -> (Table, Handle, Error) {
    let store = faulty.store();
    let table = store.table("sums").unwrap();
    let before = faulty.writes();
    faulty.fail(..);
    let (open, closed) = latch();
    let t = table.clone();
    let spoiler = Consumer::builder(numbers(2), store.progress("spoiler"))
        .max_processing(1)
        .stop_at(1)
        .start_transactional(move |job, effects| {
            if job.index == 1 {
                wait(&closed);
                effects.put(&t, "k", "text")?;
            }
            Ok(())
        })
        .unwrap();
    // From now on its save comes first in every write.
    until(&spoiler.handle(), "the second job", |s| s.done == 1 && s.processing == 1);
    eventually("a write of its save", || faulty.writes() > before);
    let t = table.clone();
    let (end, last) = latch();
    let consumer = consumer(&store, count)
        .unlimited_search_ahead()
        .start_transactional(move |job, effects| {
            effects.add(&t, "jobs", 1)?;
            if job.index == count - 1 {
                // Without a running job the end would give the save up.
                wait(&last);
            }
            if is_bad(job.index) { Ok(effects.add(&t, "k", 1)?) } else { Ok(()) }
        })
        .unwrap();
    let handle = consumer.handle();
    until(&handle, "all other jobs", |s| s.done == count - 1);
    let tried = faulty.writes();
    eventually("two more writes, of which one begins now", || faulty.writes() >= tried + 2);
    drop(open);
    until(&handle, "the halt, though nothing can be written", |s| s.state == State::Halted);
    faulty.heal();
    until(&handle, "one save", |s| s.saves == 1);
    drop(end);
    spoiler.join().unwrap();
    let error = consumer.join().unwrap_err();
    (table, handle, error)
}

#[test]
fn a_job_refused_after_a_failed_write_is_left_out() {
    let faulty = faulty();
    let (table, handle, error) = spoiled_later(&faulty, 20, |index| index == 4);
    assert_eq!(refused(&error).0, 4);
    assert_eq!((handle.status().done, handle.status().failed, handle.status().unsaved), (19, 1, 0));
    assert_eq!(table.get("k").unwrap().as_deref(), Some(b"text".as_slice()));
    assert_eq!(table.counter("jobs").unwrap(), 19);
    table.delete("k").unwrap();
    let t = table.clone();
    let ran = run_all(&faulty.store(), 20, move |_, effects| {
        effects.add(&t, "jobs", 1)?;
        effects.add(&t, "k", 1)
    });
    assert_eq!(ran, [4]);
    assert_eq!((table.counter("jobs").unwrap(), table.counter("k").unwrap()), (20, 1));
}

#[test]
fn the_lowest_of_thousands_of_refusals_halts() {
    const COUNT: u64 = 4_001;
    let faulty = faulty();
    let (table, handle, error) = spoiled_later(&faulty, COUNT, |index| index % 2 == 1);
    assert_eq!(refused(&error).0, 1);
    let status = handle.status();
    assert_eq!((status.done, status.failed, status.saves), (COUNT / 2 + 1, COUNT / 2, 2), "{status:#?}");
    assert_eq!((status.last_processed, status.unsaved), (Some(0), 0));
    assert_eq!(table.counter("jobs").unwrap(), COUNT as i64 / 2 + 1);
    table.delete("k").unwrap();
    let t = table.clone();
    let ran = run_all(&faulty.store(), COUNT, move |_, effects| effects.add(&t, "jobs", 1));
    assert!(ran.iter().copied().eq((0..COUNT).filter(|index| index % 2 == 1)), "each bad job, and no other");
    assert_eq!(table.counter("jobs").unwrap(), COUNT as i64);
}

#[test]
fn stop_returns_the_error_of_a_refused_job() {
    let store = Store::in_memory();
    let table = store.table("sums").unwrap();
    table.put("text", "abc").unwrap();
    let (open, closed) = latch();
    let t = table.clone();
    let consumer = consumer(&store, 3)
        .max_processing(1)
        .start_transactional(move |_, effects| {
            wait(&closed);
            Ok(effects.add(&t, "text", 1)?)
        })
        .unwrap();
    let handle = consumer.handle();
    until(&handle, "the first job", |s| s.processing == 1);
    handle.request_stop();
    drop(open);
    assert_eq!(refused(&consumer.stop().unwrap_err()).0, 0);
    assert_eq!((handle.status().done, handle.status().failed), (0, 1));
}

#[test]
fn the_first_of_two_failures_is_returned() {
    let store = Store::in_memory();
    let table = store.table("sums").unwrap();
    table.put("text", "abc").unwrap();
    let (open, closed) = latch();
    let t = table.clone();
    let together = std::sync::Barrier::new(8);
    let consumer = consumer(&store, 8)
        .retry(Retry::none())
        .max_processing(8)
        .start_transactional(move |job, effects| {
            together.wait();
            effects.add(&t, "jobs", 1)?;
            match job.index {
                6 => Err("an ordinary failure".into()),
                2 => {
                    wait(&closed);
                    Ok(effects.add(&t, "text", 1)?)
                }
                _ => {
                    wait(&closed);
                    Ok(())
                }
            }
        })
        .unwrap();
    let handle = consumer.handle();
    until(&handle, "the halt, with all others in flight", |s| s.processing == 7 && s.state == State::Halted);
    drop(open);
    assert!(matches!(consumer.join(), Err(Error::Job { index: 6, .. })));
    assert_eq!((handle.status().done, handle.status().failed), (6, 2));
    assert_eq!(table.counter("jobs").unwrap(), 6);
    let t = table.clone();
    assert_eq!(run_all(&store, 8, move |_, effects| effects.add(&t, "jobs", 1)), [2, 6]);
    assert_eq!(table.counter("jobs").unwrap(), 8);
}

#[test]
fn a_value_that_is_no_counter_is_named_by_its_key() {
    let table = Store::in_memory().table("visits").unwrap();
    table.put("a\0b", [0; 9]).unwrap();
    let error = table.counter("a\0b").unwrap_err();
    let Error::Counter { table, key, .. } = &error else { panic!("{error:?}") };
    assert_eq!((table.as_str(), key.as_slice()), ("visits", b"a\0b".as_slice()));
    let text = error.to_string();
    assert!(text.contains(r#""a\x00b""#) && text.contains("9 bytes long") && !text.contains("backup"), "{text}");
}
