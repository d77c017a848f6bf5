//! The store, the writer and a consumer on it, over a key-value store that fails and freezes.

use super::*;
use crate::base::sync::RwLock;
use crate::commit::counter_cache::CounterCache;
use crate::kv::double::Double;
use crate::{Blocked, Checkpoint, Consumer, Error, MemoryJobs, Progress};
use std::time::{Duration, Instant};

mod counters;
mod late;
mod read_only;

const LONG: Duration = Duration::from_secs(60);

fn on(kv: &Arc<MemoryKv>) -> Store {
    Store::on(kv.clone(), &Store::options(), &"memory").unwrap()
}

fn numbers(n: u64) -> MemoryJobs<u64> {
    (0..n).collect()
}

/// A consumer on this store whose jobs each write a row.
fn rows(store: &Store, count: u64) -> Consumer {
    let table = store.table("rows").unwrap();
    Consumer::builder(numbers(count), store.progress("p"))
        .max_processing(4)
        .max_search_ahead(16)
        .stop_at(count - 1)
        .start(move |job| Ok(table.put(job.index.to_be_bytes(), "done")?))
        .unwrap()
}

fn watermark(store: &Store) -> Option<u64> {
    store.progress("p").acquire().unwrap().map(|checkpoint| checkpoint.last_processed)
}

#[test]
fn consumers_of_one_store_share_writes() {
    let kv = Arc::new(MemoryKv::default());
    let store = on(&kv);
    // Numbers are reserved by now; a save that waits for one retries by itself.
    rows(&store, 1).join().unwrap();
    // A failing store gathers all saves, and then writes them together.
    kv.fail(0..u64::MAX);
    let consumers: Vec<_> = (0..20)
        .map(|n| Consumer::builder(numbers(50), store.progress(format!("p{n}"))).start(|_| Ok(())).unwrap())
        .collect();
    let deadline = Instant::now() + LONG;
    while !consumers.iter().all(|c| c.handle().status().done == 50) {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    kv.fail(0..0);
    let before = kv.writes();
    for consumer in consumers {
        assert!(consumer.handle().wait_for(49, LONG));
        consumer.stop().unwrap();
    }
    assert!(kv.writes() - before <= 10, "{} writes for 20 consumers", kv.writes() - before);
}

#[test]
fn a_store_closes_after_its_consumers() {
    let kv = Arc::new(MemoryKv::default());
    let store = on(&kv);
    let consumer = rows(&store, 100);
    drop(store);
    consumer.join().unwrap();
    assert_eq!(Arc::strong_count(&kv), 1, "nothing of the store is left");
    assert_eq!(watermark(&on(&kv)), Some(99));
}

#[test]
fn a_store_closes_while_a_log_checks_what_to_trim() {
    let kv = Arc::new(MemoryKv::default());
    let store = on(&kv);
    let log = store.log::<u64>("log").unwrap();
    log.push_all(&[1, 2]).unwrap();
    let watermark = crate::Watermark::new();
    log.retain([&watermark]);
    let state = log.state().clone();
    // The log and this test have it. The writer thread may hold the push for a moment longer.
    const OWNERS: usize = 2;
    while Arc::strong_count(&state) > OWNERS {
        std::thread::yield_now();
    }
    std::thread::scope(|scope| {
        state.while_retained_is_locked(|| {
            scope.spawn(|| {
                watermark.publish(1);
                watermark.announce();
            });
            while Arc::strong_count(&state) == OWNERS {
                std::thread::yield_now();
            }
            drop((log, store));
            assert_eq!(Arc::strong_count(&kv), 1, "it can be opened again");
        });
    });
}

#[test]
fn a_progress_saves_without_a_consumer() {
    let kv = Arc::new(MemoryKv::default());
    let store = on(&kv);
    let mut progress = store.progress("p");
    assert_eq!(progress.acquire().unwrap(), None);
    progress.save(&Checkpoint::new(7)).unwrap();
    assert!(matches!(store.progress("p").acquire(), Err(Error::InUse { .. })));
    drop(progress);
    assert_eq!(watermark(&store), Some(7));
}

/// A handle to the same store with this durability.
fn as_durable(store: &Store, durability: Durability) -> Store {
    store.with(&Store::options().durability(durability))
}

/// Checks that nothing at or below the watermark is missing; returns the watermark.
#[track_caller]
fn nothing_is_skipped(kv: MemoryKv) -> Option<u64> {
    let store = on(&Arc::new(kv));
    let (table, watermark) = (store.table("rows").unwrap(), watermark(&store));
    for index in 0..watermark.map_or(0, |last| last + 1) {
        assert!(table.get(index.to_be_bytes()).unwrap().is_some(), "{index} is skipped below {watermark:?}");
    }
    watermark
}

#[test]
fn promise_01_power_loss_takes_nothing_from_a_synced_store() {
    const COUNT: u64 = 40;
    for freeze_at in 0..60 {
        let kv = Arc::new(MemoryKv::default());
        let store = as_durable(&on(&kv), Durability::Synced);
        kv.freeze_at(freeze_at);
        rows(&store, COUNT).join().unwrap();
        // A write is acknowledged only when it is on the disk.
        assert_eq!(nothing_is_skipped(kv.after_power_loss()), nothing_is_skipped(kv.after_crash()));
        let left = |kv: MemoryKv| on(&Arc::new(kv)).table("rows").unwrap().iter().count();
        assert_eq!(left(kv.after_power_loss()), left(kv.after_crash()));
    }
    // While it runs, what a handle shows is already on the disk.
    let kv = Arc::new(MemoryKv::default());
    let consumer = rows(&as_durable(&on(&kv), Durability::Synced), 2 * COUNT);
    let handle = consumer.handle();
    for index in 0..2 * COUNT {
        assert!(handle.wait_for(index, LONG));
        let shown = handle.last_processed_index();
        assert!(nothing_is_skipped(kv.after_power_loss()) >= shown);
    }
}

#[test]
fn promise_01_power_loss_takes_only_the_end_of_a_buffered_store() {
    const COUNT: u64 = 40;
    let mut lost = 0;
    for freeze_at in 0..60 {
        let kv = Arc::new(MemoryKv::default());
        let buffered = on(&kv);
        let synced = as_durable(&buffered, Durability::Synced);
        kv.freeze_at(freeze_at);
        // Synced saves of another consumer also flush what was written before, and only that. In
        // every second round it starts when everything else is written, but not flushed.
        let mine = rows(&buffered, COUNT);
        let mine = if freeze_at % 2 == 0 { Some(mine) } else { mine.join().map(|()| None).unwrap() };
        let other = Consumer::builder(numbers(COUNT), synced.progress("other"))
            .max_search_ahead(1)
            .stop_at(COUNT - 1)
            .start(|_| Ok(()))
            .unwrap();
        mine.into_iter().for_each(|mine| mine.join().unwrap());
        other.join().unwrap();
        let (left, whole) = (kv.after_power_loss(), kv.after_crash());
        let others = |kv: MemoryKv| on(&Arc::new(kv)).progress("other").last_processed().unwrap();
        assert_eq!(others(kv.after_power_loss()), others(kv.after_crash()), "a synced save was lost");
        let (left, whole) = (nothing_is_skipped(left), nothing_is_skipped(whole));
        assert!(left <= whole);
        lost += u64::from(left < whole);
        // The lost jobs run again.
        let store = on(&Arc::new(kv.after_power_loss()));
        rows(&store, COUNT).join().unwrap();
        assert_eq!((store.table("rows").unwrap().iter().count() as u64, watermark(&store)), (COUNT, Some(COUNT - 1)));
    }
    assert!(lost > 0, "the power was lost and took nothing: the test sees nothing");
}

/// Jobs that each put a row, add to two counters, sometimes fail at first, and finish out of order.
fn effects(store: &Store, count: u64) -> (Consumer, Arc<Mutex<Vec<u64>>>) {
    let (each, sums) = (store.table("each").unwrap(), store.table("sums").unwrap());
    let ran = Arc::new(Mutex::new(Vec::new()));
    let log = ran.clone();
    let consumer = Consumer::builder(numbers(count), store.progress("p"))
        .max_processing(3)
        .max_search_ahead(8)
        .retry(crate::Retry::fixed(Duration::ZERO))
        .stop_at(count - 1)
        .start_transactional(move |job, effects| {
            (0..job.index * 7 % 5).for_each(|_| std::thread::yield_now());
            effects.add(&each, job.index.to_be_bytes(), 1)?;
            effects.put(&sums, job.index.to_be_bytes(), "row")?;
            effects.add(&sums, "jobs", 1)?;
            if job.index % 5 == 3 && job.attempt == 1 {
                return Err("the first attempt fails".into());
            }
            log.lock().push(job.index);
            Ok(())
        })
        .unwrap();
    (consumer, ran)
}

/// Checks that each job is stored whole or not at all, and that nothing at or below the watermark
/// is missing; returns the stored jobs.
#[track_caller]
fn whole_jobs(store: &Store, what: &str) -> Vec<u64> {
    let (each, sums) = (store.table("each").unwrap(), store.table("sums").unwrap());
    let number = |key: Vec<u8>| u64::from_be_bytes(key.try_into().unwrap());
    let done: Vec<u64> = each.iter().map(|row| number(row.unwrap().0)).collect();
    assert!(done.iter().all(|index| each.counter(index.to_be_bytes()).unwrap() == 1), "{what}: a job counts twice");
    let rows = sums.iter().map(Result::unwrap).filter(|(key, _)| key != b"jobs").map(|(key, _)| number(key));
    assert_eq!(rows.collect::<Vec<_>>(), done, "{what}: half a job");
    assert_eq!(sums.counter("jobs").unwrap(), done.len() as i64, "{what}: half a job");
    let below = watermark(store).map_or(0, |last| last + 1);
    assert!((0..below).all(|index| done.contains(&index)), "{what}: skipped below {below}, of {done:?}");
    done
}

/// Runs another consumer: exactly the jobs that are not stored run.
#[track_caller]
fn the_others_run(kv: MemoryKv, count: u64, what: &str) {
    let store = on(&Arc::new(kv));
    let done = whole_jobs(&store, what);
    let (consumer, ran) = effects(&store, count);
    consumer.join().unwrap();
    let mut all = ran.lock().clone();
    all.extend(done);
    all.sort_unstable();
    assert_eq!(all, (0..count).collect::<Vec<_>>(), "{what}: what ran, and what was in");
    assert_eq!(whole_jobs(&store, what).len() as u64, count);
}

#[test]
fn promise_09_any_write_may_fail_and_each_effect_counts_once() {
    const COUNT: u64 = 40;
    for failing in 0..30 {
        // Two in a row, so that the writer has to retry a retry.
        for length in [1, 2] {
            let what = format!("{length} writes fail from {failing} on");
            let kv = Arc::new(MemoryKv::default());
            let store = on(&kv);
            kv.fail(failing..failing + length);
            let (consumer, ran) = effects(&store, COUNT);
            consumer.join().unwrap();
            assert_eq!(ran.lock().len() as u64, COUNT, "{what}: no job runs again because a write failed");
            assert_eq!(whole_jobs(&store, &what).len() as u64, COUNT, "{what}");
            assert_eq!(watermark(&store), Some(COUNT - 1), "{what}");
        }
    }
}

#[test]
fn promise_09_wherever_the_disk_stops_jobs_are_whole() {
    const COUNT: u64 = 40;
    let (mut partly, mut ahead) = (0, 0);
    // On a busy machine the jobs of a round may finish in order, which proves nothing.
    for round in 0..400 {
        let freeze_at = round % 40;
        if freeze_at == 0 && partly > 0 && ahead > 0 {
            break;
        }
        for durability in [Durability::Buffered, Durability::Synced] {
            let kv = Arc::new(MemoryKv::default());
            let store = as_durable(&on(&kv), durability);
            kv.freeze_at(freeze_at);
            effects(&store, COUNT).0.join().unwrap();
            let left = on(&Arc::new(kv.after_crash()));
            let done = whole_jobs(&left, "a crash").len() as u64;
            partly += u64::from(0 < done && done < COUNT);
            ahead += done - watermark(&left).map_or(0, |last| last + 1);
            the_others_run(kv.after_crash(), COUNT, "a crash");
            the_others_run(kv.after_power_loss(), COUNT, "the loss of power");
            if durability == Durability::Synced {
                let after = on(&Arc::new(kv.after_power_loss()));
                assert_eq!(whole_jobs(&after, "the loss of power").len() as u64, done, "a synced effect was lost");
            }
        }
    }
    assert!(partly > 0 && ahead > 0, "nothing was cut: {partly} in part, {ahead} done ahead");
}

#[test]
fn promise_09_power_loss_takes_whole_jobs_from_the_end() {
    const COUNT: u64 = 40;
    let mut lost = 0;
    for round in 0..20 {
        let kv = Arc::new(MemoryKv::default());
        let buffered = on(&kv);
        let synced = as_durable(&buffered, Durability::Synced);
        // Synced saves of another consumer also flush what was written before. In every second
        // round it has ended by then, and nothing of the jobs is flushed.
        let other = Consumer::builder(numbers(5), synced.progress("other")).stop_at(4).start(|_| Ok(())).unwrap();
        let other = if round % 2 == 0 { Some(other) } else { other.join().map(|()| None).unwrap() };
        effects(&buffered, COUNT).0.join().unwrap();
        other.into_iter().for_each(|other| other.join().unwrap());
        lost += COUNT - whole_jobs(&on(&Arc::new(kv.after_power_loss())), "the loss of power").len() as u64;
        the_others_run(kv.after_power_loss(), COUNT, "the loss of power");
    }
    assert!(lost > 0, "the power was lost and took nothing: the test sees nothing");
}

/// A store in memory that checks, at each write, whether the writer could lock rows.
#[derive(Default)]
struct Watched {
    kv: MemoryKv,
    rows: std::sync::OnceLock<Arc<RwLock<CounterCache>>>,
    shut_out: Mutex<Vec<bool>>,
}

impl Double for Watched {
    fn memory(&self) -> &MemoryKv {
        &self.kv
    }

    fn write(&self, batch: &Batch, synced: bool) -> Result<(), StoreError> {
        self.shut_out
            .lock()
            .extend(self.rows.get().map(|rows| rows.try_write().is_none() && rows.try_read().is_some()));
        self.kv.write(batch, synced)
    }
}

#[test]
fn a_row_change_locks_out_only_the_writers_update() {
    let kv = Arc::new(Watched::default());
    let store = Store::on(kv.clone(), &Store::options(), &"memory").unwrap();
    kv.rows.set(store.writer().rows().clone()).unwrap();
    let table = store.table("rows").unwrap();
    table.put("k", "v").unwrap();
    table.delete("k").unwrap();
    assert_eq!(*kv.shut_out.lock(), [true, true]);
    assert!(store.writer().rows().try_write().is_some(), "and only meanwhile");
}

#[test]
fn a_missing_family_is_refused_with_the_reason() {
    // A database in memory creates every family but the one without a name.
    let error = on(&Arc::default()).family("").unwrap_err();
    assert!(matches!(&error, Error::Config(ConfigError::Family { fault: "missing", name, .. }) if name.is_empty()));
    let text = "the database has no column family \"\": open it with the families of `Store::column_families()` and your own, \
                and with `create_missing_column_families(true)`";
    assert_eq!(error.to_string(), text);
}
