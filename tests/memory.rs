//! What a consumer costs in memory and threads, and that both are given back. One test, since the allocator counts for the
//! whole process.

mod common;

use cap::Cap;
use common::*;
use crossbeam_channel::bounded;
use parking_lot::Mutex;
use std::alloc::System;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;
use waterline::{BoxError, Consumer, Done, Handle, Index, Jobs, MemoryJobs, MemoryProgress, Retry, Store};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// What is not counted exactly: the test's own words, a thread that is about to go, the slack of small tables.
const SLACK: usize = 16 * 1024;

fn live_bytes() -> usize {
    ALLOCATOR.allocated()
}

/// All threads of this process, whoever started them; 0 where the system does not tell.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// 0, 1, 2, … up to and without this one, without memory.
struct Counting(u64);

impl Jobs for Counting {
    type Job = Index;

    fn head(&self) -> Result<Option<Index>, BoxError> {
        Ok(self.0.checked_sub(1))
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        Ok((index < self.0).then_some(index))
    }
}

/// A life with everything in it: out of order, failures, retries, callbacks, changed limits, a stop midway.
fn full_life(store: &Store, life: u64) {
    let progress = store.progress("full life");
    let consumer = Consumer::builder(Counting(life * 500 + 500), progress)
        .max_processing(8)
        .max_search_ahead(300)
        .retry(Retry::fixed(Duration::from_micros(50)))
        .on_job_done(|_| ())
        .on_processed(|_| ())
        .start(move |job| {
            (0..job.index % 5).for_each(|_| std::thread::yield_now());
            if (job.index + life).is_multiple_of(11) && job.attempt == 1 { Err("once".into()) } else { Ok(()) }
        })
        .unwrap();
    let handle = consumer.handle();
    handle.set_max_processing(1 + life as usize % 12).unwrap();
    let last = life * 500 + if life.is_multiple_of(2) { 499 } else { 100 };
    assert!(handle.wait_for(last, LONG), "{:#?}", handle.status());
    consumer.stop().unwrap();
}

/// Threads and memory return to where they began.
fn lives_leave_nothing_behind() {
    let lives = |lives: std::ops::Range<u64>| {
        let store = Store::in_memory();
        lives.for_each(|life| full_life(&store, life));
    };
    lives(0..20);
    eventually("no thread of ours is left", || own_threads() == 0);
    let (bytes, tasks) = (live_bytes(), threads());
    lives(0..100);
    eventually("the threads are gone", || threads() == tasks);
    let grown = live_bytes().saturating_sub(bytes);
    println!("left behind by 100 lives: {grown} bytes");
    assert!(grown <= 1024, "100 lives left {grown} bytes behind");
}

/// A finished job above a stuck one is a bit or two, at any time, and is forgotten once the stuck one has finished.
fn a_wide_window_is_bits() {
    // Just above a power of two, where a table that doubles is at its emptiest.
    const WIDE: u64 = (1 << 20) + 1000;
    let (release, stuck) = bounded::<()>(0);
    let consumer = Consumer::builder(Counting(WIDE), MemoryProgress::new())
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
    // Dropped before the consumer, which would wait for the stuck job if this test failed.
    let release = release;
    let handle = consumer.handle();
    let begun = until(&handle, "the first jobs", |s| s.done_ahead >= 1000).next;
    let before = live_bytes();
    let most = Cell::new(0);
    until(&handle, "all but one", |status| {
        let grown = live_bytes().saturating_sub(before);
        // Taken later, so it is never less than what the bytes are for.
        let wide = handle.status().next;
        assert!(grown as u64 * 8 <= 3 * (wide - begun) + 8 * SLACK as u64, "{grown} bytes at {wide}");
        most.set(most.get().max(grown));
        status.done_ahead == WIDE - 1
    });
    println!("a million jobs done ahead: {:.2} bits each", most.get() as f64 * 8.0 / WIDE as f64);
    drop(release);
    assert!(handle.wait_for(WIDE - 1, LONG), "{:#?}", handle.status());
    eventually("the bits are given back", || live_bytes() <= before + SLACK);
    consumer.join().unwrap();
}

/// Lets go of the tokens before the consumer is dropped, which waits for them, also when the test fails.
struct Held(Arc<Mutex<Vec<Done>>>);

impl Drop for Held {
    fn drop(&mut self) {
        let tokens = std::mem::take(&mut *self.0.lock());
        drop(tokens);
    }
}

/// Thousands of jobs in flight, each of which is a token in the test's hands.
fn a_job_in_flight_is_small(in_flight: usize) {
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
    // Once there and back, so that the threads and their notes are no part of it.
    source.push(());
    eventually("the first token", || !tokens.lock().is_empty());
    tokens.lock().drain(..).for_each(Done::complete);
    assert!(handle.wait_for(0, LONG));
    let more: Vec<()> = vec![(); 3 * in_flight];
    let before = live_bytes();
    // Payloads of no size: what is read ahead beside those in flight is not in the figure, nor is the source itself.
    more.into_iter().for_each(|job| assert!(source.push(job) > 0));
    until(&handle, "all in flight", |s| s.processing == in_flight);
    let each = live_bytes().saturating_sub(before) as f64 / in_flight as f64 + size_of::<Done>() as f64;
    println!("{in_flight} jobs in flight: {each:.1} bytes each, of which {} are its token", size_of::<Done>());
    assert!(each <= 200.0, "{each:.1} bytes for each job in flight");
    handle.pause();
    std::mem::take(&mut *tokens.lock()).into_iter().for_each(Done::complete);
    consumer.stop().unwrap();
}

/// A consumer that waits for jobs: a reader, a worker and a notifier.
fn an_idle_consumer_is_small() {
    const MANY: usize = 200;
    let store = Store::in_memory();
    let idle = |range: std::ops::Range<usize>| -> Vec<(MemoryJobs<u64>, Consumer)> {
        let start = |number: usize| {
            let jobs = numbers(1);
            let consumer = Consumer::builder(jobs.clone(), store.progress(format!("idle {number}")))
                .max_processing(1)
                .on_processed(|_| ())
                .start(|_| Ok(()))
                .unwrap();
            (jobs, consumer)
        };
        let started: Vec<_> = range.map(start).collect();
        started.iter().for_each(|(_, consumer)| assert!(consumer.handle().wait_for(0, LONG)));
        started
    };
    // Twice as many first: tables that only grow are then as large as they get.
    drop(idle(0..2 * MANY));
    let (bytes, tasks) = (live_bytes(), threads());
    let consumers = idle(0..MANY);
    let handles: Vec<Handle> = consumers.iter().map(|(_, consumer)| consumer.handle()).collect();
    let each = live_bytes().saturating_sub(bytes) / MANY;
    println!("an idle consumer: {each} bytes of heap, {} threads", threads().saturating_sub(tasks) / MANY);
    assert!(each <= 4 * 1024, "{each} bytes for an idle consumer");
    drop((consumers, handles));
    eventually("the threads are gone", || threads() == tasks);
    let grown = live_bytes().saturating_sub(bytes);
    assert!(grown <= SLACK, "{MANY} consumers left {grown} bytes behind");
}

#[test]
fn memory_and_threads_are_bounded_and_given_back() {
    lives_leave_nothing_behind();
    a_wide_window_is_bits();
    [1000, 4096, 5000].into_iter().for_each(a_job_in_flight_is_small);
    an_idle_consumer_is_small();
    eventually("no thread of ours is left", || own_threads() == 0);
}
