//! The suite that each database of queues has to pass.

use crate::bench::{Bench, bench};
use waterline::testing::QueueSuite;

fn suite() -> QueueSuite<'static> {
    common::watch();
    QueueSuite::new(|| {
        let Bench { store, .. } = bench();
        move |name: &str, options| store.queue(name, options)
    })
}

waterline::queue_suite!(suite());
