//! The suite that each database of queues has to pass.

use crate::bench::{Bench, bench};
use crate::size;
use postgres::NoTls;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use waterline_postgres::{PgOptions, PgStore};
use waterline_queue_suite::QueueSuite;

/// A process of this suite dies without a word: its leases end by their time.
fn suite() -> QueueSuite<'static> {
    common::watch();
    let suite = QueueSuite::mortal(|| {
        let (Bench { config, .. }, processes) = (bench(), AtomicU32::default());
        move || {
            let holder = format!("process {}", processes.fetch_add(1, Ordering::Relaxed));
            let options = PgOptions::new().ttl(Duration::from_secs(60)).holder(holder);
            let store = PgStore::connect(config.clone(), NoTls, options).unwrap();
            move |name: &str, options| store.queue(name, options)
        }
    });
    suite.random_calls(size(600, 50_000), common::seed())
}

waterline_queue_suite::queue_suite!(suite());
