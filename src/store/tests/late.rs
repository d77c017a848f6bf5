//! Saves while the writer thread gets no core: workers make them.

use super::*;
use crate::{BoxError, Index, Job, Jobs};
use crossbeam_channel::{Sender, bounded};

/// An endless source, whose job at an index is the index.
struct Endless;

impl Jobs for Endless {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(Some(Index::MAX - 1))
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        Ok(Some(index))
    }
}

/// A store whose writer thread gets no core until the sender is dropped.
fn without_a_core(kv: &Arc<MemoryKv>, durability: Durability) -> (Store, Sender<()>) {
    let store = Store::on(kv.clone(), &Store::options().durability(durability), &"memory").unwrap();
    let (core, none_yet) = bounded(0);
    store.writer().start_without_a_core(none_yet);
    (store, core)
}

/// Runs endless jobs. (Its drop waits for the writer thread, which must have its core by then.)
fn busy(store: &Store) -> Consumer {
    let run = |_: Job<Index>| {
        std::thread::yield_now();
        Ok(())
    };
    Consumer::builder(Endless, store.progress("p")).max_processing(3).unlimited_search_ahead().start(run).unwrap()
}

/// Waits until many jobs have finished, and several times as long as workers wait before they save.
fn run_on(consumer: &Consumer) {
    const JOBS: u64 = 2_000;
    let (begun, handle) = (Instant::now(), consumer.handle());
    let done = handle.status().done;
    while begun.elapsed() < Duration::from_millis(30) || handle.status().done < done + JOBS {
        assert!(begun.elapsed() < LONG, "no job runs");
        std::thread::yield_now();
    }
}

#[test]
fn workers_save_while_the_writer_gets_no_core() {
    let kv = Arc::new(MemoryKv::default());
    let (store, core) = without_a_core(&kv, Durability::Buffered);
    let (consumer, core) = (busy(&store), core);
    let handle = consumer.handle();
    for _ in 0..5 {
        let saves = handle.status().saves;
        let done = handle.status().next;
        assert!(handle.wait_for(done, LONG), "nobody saves: {:?}", handle.status());
        assert!(handle.status().saves > saves);
    }
    drop(core);
    consumer.stop().unwrap();
    assert_eq!(handle.status().unsaved, 0);
    assert_eq!(watermark(&store), handle.last_processed_index());
}

#[test]
fn workers_leave_synced_saves_to_the_writer() {
    let kv = Arc::new(MemoryKv::default());
    let (store, core) = without_a_core(&kv, Durability::Synced);
    let (consumer, core) = (busy(&store), core);
    let handle = consumer.handle();
    run_on(&consumer);
    assert_eq!(handle.status().saves, 0, "a job had to wait for a flush");
    drop(core);
    assert!(handle.wait_for(0, LONG));
    consumer.stop().unwrap();
}

#[test]
fn workers_leave_a_failing_store_to_the_writer() {
    let kv = Arc::new(MemoryKv::default());
    let (store, core) = without_a_core(&kv, Durability::Buffered);
    let writes = kv.writes();
    kv.fail(0..u64::MAX);
    let (consumer, core) = (busy(&store), core);
    let handle = consumer.handle();
    // The lack of saves may be reported before the first one is attempted.
    let is_named = |blocked| matches!(blocked, Blocked::Progress { error } if error.contains("no space left"));
    while !is_named(handle.status().blocked) {
        std::thread::yield_now();
    }
    run_on(&consumer);
    assert_eq!(kv.writes(), writes + 1, "its back-off is not waited for");
    drop(core);
    kv.fail(0..0);
    assert!(handle.wait_for(0, LONG), "the writer's thread does not know of it");
    consumer.stop().unwrap();
}
