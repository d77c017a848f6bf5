//! Pushes that wait for room in a full queue.

use crate::bench::{bench, job};
use std::time::Duration;
use waterline_queue::{Accept, PushOutcome, QueueOptions};
use waterline_redis::RedisStore;

/// Whoever waits asks the server what there is, and tells it about this process.
#[test]
fn room_that_another_process_makes_is_found() {
    common::watch();
    let (server, options) = bench();
    let full = || QueueOptions::default().max_waiting(1);
    let [queue, other] = [(); 2].map(|()| {
        let store = RedisStore::connect(server.url(), options.clone()).unwrap();
        store.queue("q", full()).unwrap()
    });
    queue.push(job("first")).unwrap();
    let hour = Duration::from_secs(3600);
    let thread = std::thread::spawn({
        let queue = queue.clone();
        move || queue.push_within(job("by a thread"), hour)
    });
    let task = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(queue.push_within_async(job("by a task"), hour))
    });
    let mut taken = 0;
    common::eventually("both pushes", || {
        if let Some(mut lease) = other.accept(Accept::new()).unwrap() {
            taken += 1;
            lease.finish(None).unwrap();
        }
        taken == 3
    });
    for waited in [thread, task] {
        assert_eq!(waited.join().unwrap().unwrap().outcome, PushOutcome::Added);
    }
}
