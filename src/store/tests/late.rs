//! Saves while the writer thread gets no core: workers make them.

use super::*;
use crate::{BoxError, Index, Jobs};

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

#[test]
fn workers_save_while_the_writer_gets_no_core() {
    let store = on(&Arc::default());
    let (core, none_yet) = crossbeam_channel::bounded(0);
    store.writer().start_without_a_core(none_yet);
    let consumer = Consumer::builder(Endless, store.progress("p")).max_processing(3).unlimited_search_ahead();
    let consumer = consumer.start(|_| {
        std::thread::yield_now();
        Ok(())
    });
    // A consumer that is dropped waits for the writer thread, which must have its core by then.
    let (consumer, core) = (consumer.unwrap(), core);
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
