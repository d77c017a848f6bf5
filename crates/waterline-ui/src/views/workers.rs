//! The workers of a queue, and the jobs that each of them has.

use super::query::{Query, limit, number};
use super::queues::named;
use crate::failure::Failure;
use crate::shared::Shared;
use serde_json::{Value, json};
use waterline_queue::WorkerInfo;

/// The sort key of a worker: silent ones with jobs come first, silent ones without jobs last.
fn rank(worker: &WorkerInfo) -> u8 {
    match (worker.is_silent, worker.busy) {
        (true, 1..) => 0,
        (false, _) => 1,
        (true, 0) => 2,
    }
}

/// A page of the workers of a queue, and all of them summed up.
pub(super) fn workers(shared: &Shared, query: &Query) -> Result<Value, Failure> {
    let (limit, skip) = (limit(query)?, number(query, "skip", 0_usize)?);
    let mut all = named(shared, query)?.queue.workers()?;
    all.sort_by_key(rank);
    let takers = || all.iter().filter(|worker| !worker.is_silent && !worker.is_stopping);
    let slots: Option<u64> = takers().map(|worker| worker.slots.map(u64::from)).sum();
    let next = skip.saturating_add(limit);
    Ok(json!({
        "workers": all.iter().skip(skip).take(limit).collect::<Vec<_>>(),
        "count": all.len(),
        "next": (next < all.len()).then_some(next),
        "taking": takers().count(),
        "slots": slots,
        "busy": takers().map(|worker| u64::from(worker.busy)).sum::<u64>(),
        "stopping": all.iter().filter(|worker| worker.is_stopping && !worker.is_silent).count(),
        "silent": all.iter().filter(|worker| worker.is_silent).count(),
    }))
}
