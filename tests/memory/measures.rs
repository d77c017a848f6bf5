//! The memory of jobs as the caller's allocator counts it: for the test that bounds it, and for the
//! table of figures.

use common::*;
use crossbeam_channel::bounded;
use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::Arc;
use waterline::{BoxError, Consumer, Done, Index, Jobs, MemoryJobs, MemoryProgress, Progress};

/// What is not counted exactly: the test's own values, a thread that is about to end, spare room in
/// small tables.
pub const SLACK: usize = 16 * 1024;

/// A source of the jobs below this number, which needs no memory.
pub struct Counting(pub u64);

impl Jobs for Counting {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(self.0.checked_sub(1))
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        Ok((index < self.0).then_some(index))
    }
}

/// Measures that a job done above a stuck one costs a bit or two, and nothing once the stuck job
/// has finished.
///
/// Returns the most bits for a job. `slack` bytes more are allowed for a window of any width.
/// `heal` is called before the end.
pub fn bits_done_ahead(
    progress: impl Progress,
    slack: usize,
    heal: impl FnOnce(),
    live_bytes: impl Fn() -> usize,
) -> f64 {
    // Just above a power of two, where half of a doubling table is empty.
    const WIDE: u64 = (1 << 20) + 1000;
    let (release, stuck) = bounded::<()>(0);
    let consumer = Consumer::builder(Counting(WIDE), progress)
        .max_processing(4)
        .unlimited_search_ahead()
        .stop_at(WIDE - 1)
        .start(move |job| {
            if job.index == 0 {
                let _ = stuck.recv();
            }
            Ok(())
        })
        .unwrap();
    // Dropped before the consumer, which waits for the stuck job, even if the test fails.
    let release = release;
    let handle = consumer.handle();
    let begun = until(&handle, "the first jobs", |s| s.done_ahead >= 1000).next;
    let before = live_bytes();
    let most = Cell::new(0);
    until(&handle, "all but one", |status| {
        let grown = live_bytes().saturating_sub(before);
        // Read later, so it is at least the number of jobs that the bytes are for.
        let wide = handle.status().next;
        assert!(grown as u64 * 8 <= 3 * (wide - begun) + 8 * slack as u64, "{grown} bytes at {wide}");
        most.set(most.get().max(grown));
        status.done_ahead == WIDE - 1
    });
    heal();
    drop(release);
    assert!(handle.wait_for(WIDE - 1, LONG), "{:#?}", handle.status());
    eventually("the bits are given back", || live_bytes() <= before + slack);
    consumer.join().unwrap();
    most.get() as f64 * 8.0 / WIDE as f64
}

/// Drops the tokens before the consumer, which waits for them, even if the test fails.
struct Held(Arc<Mutex<Vec<Done>>>);

impl Drop for Held {
    fn drop(&mut self) {
        let tokens = std::mem::take(&mut *self.0.lock());
        drop(tokens);
    }
}

/// Measures jobs in flight, each a token that the test holds.
///
/// Returns the bytes of each job, without its payload.
pub fn bytes_in_flight(in_flight: usize, live_bytes: impl Fn() -> usize) -> f64 {
    let tokens: Arc<Mutex<Vec<Done>>> = Arc::new(Mutex::new(Vec::with_capacity(in_flight)));
    let source = MemoryJobs::new();
    let consumer = Consumer::builder(source.clone(), MemoryProgress::new())
        .max_processing(in_flight)
        .threads(2)
        .start_deferred({
            let tokens = tokens.clone();
            move |_, done| tokens.lock().push(done)
        })
        .unwrap();
    let _held = Held(tokens.clone());
    let handle = consumer.handle();
    // One job first, so that the threads and their data are not in the figure.
    source.push(());
    eventually("the first token", || !tokens.lock().is_empty());
    tokens.lock().drain(..).for_each(Done::complete);
    assert!(handle.wait_for(0, LONG));
    let more: Vec<()> = vec![(); 3 * in_flight];
    let before = live_bytes();
    // Payloads of no size keep the read-ahead and the source out of the figure.
    more.into_iter().for_each(|job| assert!(source.push(job) > 0));
    eventually("all in flight", || tokens.lock().len() == in_flight);
    let each = live_bytes().saturating_sub(before) as f64 / in_flight as f64 + size_of::<Done>() as f64;
    handle.pause();
    std::mem::take(&mut *tokens.lock()).into_iter().for_each(Done::complete);
    consumer.stop().unwrap();
    each
}
