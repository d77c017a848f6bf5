//! The store, the writer and a consumer on it, over a key-value store that fails and freezes.

use super::*;
use crate::base::sync::RwLock;
use crate::commit::counter_cache::CounterCache;
use crate::kv::double::Double;
use crate::{Consumer, Error, MemoryJobs, Progress};
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

fn synced(kv: &Arc<MemoryKv>) -> Store {
    Store::on(kv.clone(), &Store::options().durability(Durability::Synced), &"memory").unwrap()
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
        let store = synced(&kv);
        kv.freeze_at(freeze_at);
        rows(&store, COUNT).join().unwrap();
        // A write is acknowledged only when it is on the disk.
        assert_eq!(nothing_is_skipped(kv.after_power_loss()), nothing_is_skipped(kv.after_crash()));
        let left = |kv: MemoryKv| on(&Arc::new(kv)).table("rows").unwrap().iter().count();
        assert_eq!(left(kv.after_power_loss()), left(kv.after_crash()));
    }
    // While it runs, what a handle shows is already on the disk.
    let kv = Arc::new(MemoryKv::default());
    let consumer = rows(&synced(&kv), 2 * COUNT);
    let handle = consumer.handle();
    for index in 0..2 * COUNT {
        assert!(handle.wait_for(index, LONG));
        let shown = handle.last_processed_index();
        assert!(nothing_is_skipped(kv.after_power_loss()) >= shown);
    }
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
