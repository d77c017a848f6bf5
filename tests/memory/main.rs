//! The memory and threads of a consumer, and that it frees both. It is one test, since the
//! allocator counts for the whole process.

mod measures;

use cap::Cap;
use common::*;
use measures::{Counting, SLACK, bits_done_ahead, bytes_in_flight};
use std::alloc::System;
use std::time::Duration;
use waterline::testing::FaultyStore;
use waterline::{Consumer, Handle, MemoryJobs, MemoryProgress, Retry, Store};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// The slack with the two lists of new indices since the last save.
const LISTS: usize = SLACK + 128 * 1024;

fn live_bytes() -> usize {
    ALLOCATOR.allocated()
}

/// Returns the number of threads of this process, or 0 where the system does not tell.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// Runs a life with everything in it: jobs out of order, failures, retries, callbacks, changed
/// limits and a stop midway.
fn full_life(store: &Store, life: u64) {
    let progress = store.progress("full life");
    let consumer = Consumer::builder(Counting(life * 500 + 500), progress)
        .max_processing(8)
        .max_search_ahead(300)
        .retry(Retry::fixed(Duration::from_micros(50)))
        .on_job_done(|_| ())
        .on_processed(|_| ())
        .start(move |job| {
            // Rarely, since each yield waits for another process on a busy machine.
            if job.index.is_multiple_of(32) {
                std::thread::yield_now();
            }
            if (job.index + life).is_multiple_of(11) && job.attempt == 1 { Err("once".into()) } else { Ok(()) }
        })
        .unwrap();
    let handle = consumer.handle();
    handle.set_max_processing(1 + life as usize % 12).unwrap();
    let last = life * 500 + if life.is_multiple_of(2) { 499 } else { 100 };
    assert!(handle.wait_for(last, LONG), "{:#?}", handle.status());
    consumer.stop().unwrap();
}

/// Checks that threads and memory return to what they were at the beginning.
fn lives_leave_nothing_behind() {
    let lives = |lives: std::ops::Range<u64>| {
        let store = Store::in_memory();
        lives.for_each(|life| full_life(&store, life));
    };
    lives(0..20);
    eventually("no thread of ours is left", || own_threads() == 0);
    let tasks = threads();
    let grown = || {
        let bytes = live_bytes();
        lives(0..100);
        eventually("the threads are gone", || threads() == tasks);
        live_bytes().saturating_sub(bytes)
    };
    // A leak grows each time; a table of the process that grows with its threads grows once.
    let grown = (0..3).map(|_| grown()).min().unwrap();
    println!("left behind by 100 lives: {grown} bytes");
    assert!(grown <= 1024, "100 lives left {grown} bytes behind");
}

const MANY: usize = 200;
/// The threads of an idle consumer: a reader, a worker and a notifier.
const THREADS: usize = 3;

/// Measures the bytes that the standard library needs for the threads of one consumer. Some are in
/// a tree of all threads, and depend on the order in which they start.
fn bytes_of_bare_threads() -> usize {
    let (release, released) = crossbeam_channel::bounded::<()>(0);
    let (begin, begun) = crossbeam_channel::unbounded();
    let (before, mut threads) = (live_bytes(), Vec::with_capacity(THREADS * MANY));
    for _ in 0..THREADS * MANY {
        let (released, begin) = (released.clone(), begin.clone());
        let thread = std::thread::Builder::new().name("bare-thread".to_owned()).spawn(move || {
            begin.send(()).unwrap();
            drop(begin);
            let _ = released.recv();
        });
        threads.push(thread.unwrap());
    }
    begun.iter().take(threads.len()).for_each(drop);
    let bytes = live_bytes().saturating_sub(before + size_of_val(&threads[..]));
    drop(release);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    bytes / MANY
}

/// Measures consumers that wait for jobs, without their bare threads.
fn an_idle_consumer_is_small() {
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
    // Twice as many first, so that tables that only grow have their largest size.
    drop(idle(0..2 * MANY));
    // On a busy machine some are still at work when they are measured.
    let each = (0..3).map(|_| {
        let (bytes, tasks) = (live_bytes(), threads());
        let consumers = idle(0..MANY);
        let handles: Vec<Handle> = consumers.iter().map(|(_, consumer)| consumer.handle()).collect();
        let each = live_bytes().saturating_sub(bytes) / MANY;
        let threads_alive = threads().saturating_sub(tasks) / MANY;
        println!("an idle consumer: {each} bytes of heap, {threads_alive} threads");
        drop((consumers, handles));
        eventually("the threads are gone", || threads() == tasks);
        let grown = live_bytes().saturating_sub(bytes);
        assert!(grown <= SLACK, "{MANY} consumers left {grown} bytes behind");
        each
    });
    let each = each.min().unwrap();
    let bare = (0..3).map(|_| bytes_of_bare_threads()).min().unwrap();
    println!("the bare threads of a consumer: {bare} bytes");
    // The tree of threads takes 820 to 960 bytes for each consumer, depending on the order in which
    // they start, so the bound is 150 above what was measured.
    assert!(each <= bare + 4000, "{each} bytes for an idle consumer, {bare} of them for its threads");
}

/// Checks that a job done ahead costs bits, also if it is saved, and if saves fail for long.
fn done_ahead_is_bits() {
    let bits = bits_done_ahead(MemoryProgress::new(), SLACK, || (), live_bytes);
    assert!(bits <= 3.0, "a job done ahead is {bits:.2} bits");
    let faulty = FaultyStore::new().unwrap();
    faulty.fail(..);
    let bits = bits_done_ahead(faulty.store().progress("fails"), LISTS, || faulty.heal(), live_bytes);
    println!("a job done ahead while saves fail: {bits:.2} bits");
    assert!(bits <= 3.0, "a job done ahead while saves fail is {bits:.2} bits");
    // The database's own memory is not in this figure.
    if engine().is_some() {
        let (store, _place) = a_store();
        let bits = bits_done_ahead(store.progress("saved"), LISTS, || (), live_bytes);
        println!("a job done ahead that is saved: {bits:.2} bits");
        assert!(bits <= 3.0, "a job done ahead that is saved is {bits:.2} bits");
    }
}

/// Checks that a job that waits for its retry keeps at most 4 KiB of its error text.
fn texts_of_failed_jobs_are_bounded() {
    const FAILED: u64 = 2_000;
    let text = "x".repeat(50_000);
    let before = live_bytes();
    let consumer = Consumer::builder(Counting(FAILED), MemoryProgress::new())
        .max_processing(2)
        .retry(Retry::fixed(HOUR))
        .start(move |_| Err(text.clone().into()))
        .unwrap();
    until(&consumer.handle(), "all to fail", |status| status.failed == FAILED && status.processing == 0);
    let each = live_bytes().saturating_sub(before) / FAILED as usize;
    println!("a failed job with an error of 50 kB: {each} bytes");
    assert!(each < 8 * 1024, "each of {FAILED} failed jobs keeps {each} bytes");
    consumer.stop().unwrap();
}

#[test]
fn memory_and_threads_are_bounded_and_freed() {
    // The part with the most threads comes first, since parking_lot's table of threads only grows.
    an_idle_consumer_is_small();
    lives_leave_nothing_behind();
    done_ahead_is_bits();
    texts_of_failed_jobs_are_bounded();
    for in_flight in [1000, 4096, 5000] {
        let bytes = bytes_in_flight(in_flight, live_bytes);
        assert!(bytes <= 200.0, "{bytes:.1} bytes for each of {in_flight} jobs in flight");
    }
    eventually("no thread of ours is left", || own_threads() == 0);
}
