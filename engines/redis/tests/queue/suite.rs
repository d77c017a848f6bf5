//! The suite that each database of queues has to pass.

use crate::bench::bench;
use crate::size;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use waterline_queue_suite::QueueSuite;
use waterline_redis::{RedisOptions, RedisStore};

/// A process of this suite dies without a word: its leases end by their time.
pub fn suite_on<C>(connector: impl Fn() -> (RedisOptions, C) + 'static, calls: u64) -> QueueSuite<'static>
where
    C: Fn(RedisOptions) -> RedisStore + Send + Sync + 'static,
{
    common::watch();
    let suite = QueueSuite::mortal(move || {
        let ((options, connect), processes) = (connector(), AtomicU32::default());
        move || {
            let holder = format!("process {}", processes.fetch_add(1, Ordering::Relaxed));
            let store = Arc::new(connect(options.clone().holder(holder)));
            move |name: &str, options| store.queue(name, options)
        }
    });
    suite.random_calls(calls, common::seed())
}

fn suite() -> QueueSuite<'static> {
    let on_bench = || {
        let (server, options) = bench();
        (options, |options| RedisStore::connect(server.url(), options).unwrap())
    };
    suite_on(on_bench, size(1_000, 50_000))
}

waterline_queue_suite::queue_suite!(suite());
