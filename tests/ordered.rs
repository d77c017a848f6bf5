//! Results in order, whatever the order in which the jobs finish.

mod common;

use common::*;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;
use waterline::{Error, Index, MemoryProgress, Retry, State};

#[test]
fn a_result_that_waits_holds_no_slot_that_the_one_before_it_needs() {
    // All slots are free when the first job is tried again, though everything behind it has finished.
    let taken = Arc::new(Mutex::new(Vec::new()));
    let sink = taken.clone();
    let consumer = builder(numbers(100), &MemoryProgress::new())
        .max_processing(2)
        .max_search_ahead(20)
        .retry(Retry::fixed(Duration::from_millis(20)))
        .stop_at(99)
        .start_ordered(
            |job| if job.index == 0 && job.attempt < 3 { Err("not yet".into()) } else { Ok(job.payload) },
            move |index, result| {
                assert_eq!(index, result);
                sink.lock().push(index);
                Ok(())
            },
        )
        .unwrap();
    let handle = consumer.handle();
    assert!(handle.wait_for(99, LONG), "{:#?}", handle.status());
    consumer.join().unwrap();
    assert_eq!(*taken.lock(), (0..100).collect::<Vec<_>>());
}

#[test]
fn promise_6_results_that_will_have_no_turn_are_not_awaited() {
    let consumer = builder(numbers(10), &MemoryProgress::new())
        .retry(Retry::fixed(HOUR))
        .start_ordered(|job| if job.index == 3 { Err("no".into()) } else { Ok(()) }, |_, ()| Ok(()))
        .unwrap();
    let handle = consumer.handle();
    until(&handle, "what waits", |status| (status.processing, status.next) == (0, 10));
    assert!(handle.wait_for(2, LONG));
    consumer.stop().unwrap();
    assert_eq!((handle.last_processed_index(), handle.status().state), (Some(2), State::Finished));
}

#[test]
fn promise_5_a_sink_that_panics_fails_the_job() {
    let taken = Arc::new(Mutex::new(Vec::new()));
    let sink = taken.clone();
    let error = builder(numbers(10), &MemoryProgress::new())
        .start_ordered(
            |job| Ok(job.payload),
            move |index, _| {
                assert!(index < 4, "the sink is full");
                sink.lock().push(index);
                Ok(())
            },
        )
        .unwrap()
        .join()
        .unwrap_err();
    assert!(matches!(error, Error::Job { index: 4, attempt: 1, .. }), "{error:?}");
    assert!(error.report().contains("the sink is full"));
    assert_eq!(*taken.lock(), [0, 1, 2, 3]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_sink_is_given_every_index_in_order_over_failures_and_restarts(
        seed in any::<u64>(),
        processing in 1..6usize,
        ahead in 1..30u64,
        ends in proptest::collection::vec(0..120u64, 0..4),
    ) {
        const JOBS: u64 = 120;
        let progress = waterline::Store::in_memory();
        let mut next = 0;
        for end in ends.into_iter().chain([JOBS - 1]) {
            let taken = Arc::new(Mutex::new(Vec::new()));
            let (sink, rolls) = (taken.clone(), Mutex::new(fastrand::Rng::with_seed(seed ^ end)));
            let sinks = Mutex::new(fastrand::Rng::with_seed(seed.wrapping_add(end)));
            let consumer = waterline::Consumer::builder(numbers(JOBS), progress.progress("p"))
                .max_processing(processing)
                .max_search_ahead(ahead)
                .retry(Retry::fixed(Duration::ZERO))
                .stop_at(JOBS - 1)
                .start_ordered(
                    move |job| {
                        let roll = rolls.lock().u8(..);
                        (0..roll % 8).for_each(|_| std::thread::yield_now());
                        if roll < 30 { Err("now and then".into()) } else { Ok(job.payload) }
                    },
                    move |index, result| {
                        let ok = index == result && sinks.lock().u8(..) > 20;
                        sink.lock().push((index, ok));
                        if ok { Ok(()) } else { Err("no room".into()) }
                    },
                )
                .unwrap();
            let handle = consumer.handle();
            prop_assert!(handle.wait_for(end, LONG), "{:#?}", handle.status());
            consumer.stop().unwrap();
            let mut expected: Index = next;
            for (index, ok) in taken.lock().iter() {
                prop_assert_eq!(*index, expected);
                expected += u64::from(*ok);
            }
            next = handle.last_processed_index().map_or(0, |last| last + 1);
            prop_assert_eq!(expected, next, "what was taken is saved by the stop");
        }
        prop_assert_eq!(next, JOBS);
    }
}
