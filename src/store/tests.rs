//! The store, the writer and a consumer on it, over a key-value store that fails and freezes.

use super::*;
use crate::{Blocked, Checkpoint, Consumer, Error, MemoryJobs, Progress};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(20);

fn on(kv: &Arc<MemoryKv>) -> Store {
    Store::on(kv.clone(), Durability::Buffered).unwrap()
}

fn numbers(n: u64) -> MemoryJobs<u64> {
    (0..n).collect()
}

/// Jobs that each write a row, on this store; the consumer.
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
fn promise_1_wherever_the_disk_stops_taking_writes_nothing_at_or_below_the_watermark_is_missing() {
    const COUNT: u64 = 40;
    for freeze_at in 0..60 {
        let kv = Arc::new(MemoryKv::default());
        let store = on(&kv);
        kv.freeze_at(freeze_at);
        rows(&store, COUNT).join().unwrap();
        drop(store);
        let kv = Arc::new(kv.after_crash());
        let store = on(&kv);
        let table = store.table("rows").unwrap();
        for index in 0..watermark(&store).map_or(0, |last| last + 1) {
            assert!(table.get(index.to_be_bytes()).unwrap().is_some(), "{index} is skipped, frozen at {freeze_at}");
        }
        rows(&store, COUNT).join().unwrap();
        assert_eq!((table.iter().count() as u64, watermark(&store)), (COUNT, Some(COUNT - 1)));
    }
}

#[test]
fn promise_4_every_single_write_may_fail_and_the_stream_still_ends() {
    const COUNT: u64 = 30;
    for failing in 0..40 {
        let kv = Arc::new(MemoryKv::default());
        let store = on(&kv);
        kv.fail(failing..failing + 1);
        let table = store.table("rows").unwrap();
        let consumer = Consumer::builder(numbers(COUNT), store.progress("p"))
            .max_search_ahead(4)
            .retry(crate::Retry::fixed(Duration::ZERO))
            .stop_at(COUNT - 1)
            .start(move |job| Ok(table.put(job.index.to_be_bytes(), "done")?))
            .unwrap();
        consumer.join().unwrap();
        assert_eq!(store.table("rows").unwrap().iter().count() as u64, COUNT);
        assert_eq!(watermark(&store), Some(COUNT - 1));
    }
}

#[test]
fn promise_4_a_store_that_fails_for_long_is_named_and_nothing_moves() {
    let kv = Arc::new(MemoryKv::default());
    let store = on(&kv);
    kv.fail(0..u64::MAX);
    let consumer = Consumer::builder(numbers(5), store.progress("p")).start(|_| Ok(())).unwrap();
    let handle = consumer.handle();
    let deadline = Instant::now() + LONG;
    let error = loop {
        if let Blocked::Progress { error } = handle.status().blocked {
            break error;
        }
        assert!(Instant::now() < deadline, "{:?}", handle.status());
        std::thread::yield_now();
    };
    assert!(error.contains("no space left"), "{error}");
    assert_eq!((handle.last_processed_index(), handle.status().saves), (None, 0));
    kv.fail(0..0);
    assert!(handle.wait_for(4, LONG));
    consumer.stop().unwrap();
    assert_eq!(watermark(&store), Some(4));
}

#[test]
fn a_last_save_that_fails_is_the_error_of_stop_and_the_store_lives_on() {
    let kv = Arc::new(MemoryKv::default());
    let store = on(&kv);
    let other = Consumer::builder(numbers(3), store.progress("other")).start(|_| Ok(())).unwrap();
    assert!(other.handle().wait_for(2, LONG));
    kv.fail(0..u64::MAX);
    let consumer = Consumer::builder(numbers(5), store.progress("p")).start(|_| Ok(())).unwrap();
    let error = loop {
        if consumer.handle().status().done == 5 {
            break consumer.stop().unwrap_err();
        }
        std::thread::yield_now();
    };
    assert!(matches!(error, Error::Progress { .. }), "{error:?}");
    kv.fail(0..0);
    other.stop().unwrap();
    rows(&store, 5).join().unwrap();
}

#[test]
fn consumers_of_one_store_share_writes() {
    let kv = Arc::new(MemoryKv::default());
    let store = on(&kv);
    // A failing store gathers the saves of all of them, and then writes them together.
    kv.fail(0..u64::MAX);
    let consumers: Vec<_> = (0..20)
        .map(|n| Consumer::builder(numbers(50), store.progress(format!("p{n}"))).start(|_| Ok(())).unwrap())
        .collect();
    let deadline = Instant::now() + LONG;
    while !consumers.iter().all(|c| c.handle().status().done == 50) {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    let before = kv.writes();
    kv.fail(0..0);
    for consumer in consumers {
        assert!(consumer.handle().wait_for(49, LONG));
        consumer.stop().unwrap();
    }
    assert!(kv.writes() - before <= 10, "{} writes for 20 consumers", kv.writes() - before);
}

#[test]
fn a_store_that_is_dropped_first_is_closed_last() {
    let kv = Arc::new(MemoryKv::default());
    let store = on(&kv);
    let consumer = rows(&store, 100);
    drop(store);
    consumer.join().unwrap();
    assert_eq!(Arc::strong_count(&kv), 1, "nothing of the store is left");
    assert_eq!(watermark(&on(&kv)), Some(99));
}

#[test]
fn a_progress_saves_by_itself_too() {
    let kv = Arc::new(MemoryKv::default());
    let store = on(&kv);
    let mut progress = store.progress("p");
    assert_eq!(progress.acquire().unwrap(), None);
    progress.save(&Checkpoint::new(7)).unwrap();
    assert!(matches!(store.progress("p").acquire(), Err(Error::InUse { .. })));
    drop(progress);
    assert_eq!(watermark(&store), Some(7));
}
