//! Queues with a manual clock.

use std::sync::Arc;
use waterline::testing::FaultyStore;
use waterline::{Error, Store};
use waterline_queue::testing::QueueModel;
use waterline_queue::{Clock, Queue, QueueError, QueueOptions};
pub use waterline_queue_suite::bench::*;

/// Returns the store of this build: see [`a_store`](crate::a_store).
pub fn built() -> Database {
    crate::watch();
    let (store, place) = crate::a_store();
    Database::Store(store, Some(Arc::new(place)))
}

/// Runs a test in memory, in which the process dies while jobs run.
pub fn in_lives(test: impl Fn(Bench)) {
    crate::watch();
    test(Bench::on_disk(FaultyStore::new().unwrap(), &Clock::manual(noon()), QueueOptions::default()));
}

/// Runs a test that is no case of the suite on the store of this build and on the model.
pub fn on_each(options: &QueueOptions, test: impl Fn(Bench)) {
    for database in [built(), Database::Model(QueueModel::new())] {
        test(Bench::over(database, &Clock::manual(noon()), options.clone()));
    }
}

/// Runs a test that uses the store beside the queue.
pub fn on_store(test: impl Fn(Bench)) {
    on_store_with(QueueOptions::default(), test);
}

pub fn on_store_with(options: QueueOptions, test: impl Fn(Bench)) {
    test(Bench::over(built(), &Clock::manual(noon()), options));
}

/// Returns a queue in this store with a manual clock.
pub fn queue_in(store: &Store, options: QueueOptions) -> (Queue, Clock) {
    crate::watch();
    let clock = Clock::manual(noon());
    let queue = Queue::open(store, "q", options.clock(clock.clone())).unwrap();
    (queue, clock)
}

/// Repeats a call whose write has failed. Counts the failures, of which one is allowed.
pub fn again<T>(failed: &mut u64, mut call: impl FnMut() -> Result<T, QueueError>) -> T {
    loop {
        match call() {
            Ok(answer) => return answer,
            Err(QueueError::Store(Error::Store { .. })) if *failed == 0 => *failed += 1,
            Err(other) => panic!("{other:?}"),
        }
    }
}
