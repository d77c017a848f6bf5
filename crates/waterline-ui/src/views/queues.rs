//! The views of queues.

use super::query::{Query, wanted};
use crate::advice;
use crate::failure::Failure;
use crate::shared::{QueueRow, Shared};
use axum::http::StatusCode;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use waterline::Verdict;
use waterline_queue::{Counts, LimitUse, QueueError, QueueStatus, RunTimes, Waits};

pub(super) fn named(shared: &Shared, query: &Query) -> Result<Arc<QueueRow>, Failure> {
    let name = query.get("queue").map_or_else(|| wanted(query, "name"), |name| Ok(name))?;
    of_name(shared, name)
}

/// Returns the queue of this name on the page, or why it cannot be opened.
pub(crate) fn of_name(shared: &Shared, name: &str) -> Result<Arc<QueueRow>, Failure> {
    let missing = || match shared.unopened.lock().get(name) {
        Some(why) => Failure { status: StatusCode::INTERNAL_SERVER_ERROR, text: unreadable(name, why) },
        None => Failure::not_found(format!("this page shows no queue {name:?}")),
    };
    shared.queue(name).ok_or_else(missing)
}

fn unreadable(name: &str, why: &str) -> String {
    format!("the queue {name:?} cannot be read: {why}")
}

fn long(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the rows of all queues.
pub(super) fn rows(shared: &Shared) -> Vec<Value> {
    let queues = shared.queues();
    let statuses = shared.statuses(&queues);
    let mut rows: Vec<_> = queues.iter().zip(statuses).map(|(row, status)| row_with(shared, row, status)).collect();
    // Lock only now: the rows above read the store, and the sampling thread must not wait for that.
    rows.extend(shared.unopened.lock().iter().map(|(name, why)| {
        let mut view = json!({ "name": name });
        fails(&mut view, name, Counts::default(), why);
        view
    }));
    rows
}

/// Says in a row that its queue cannot be read.
fn fails(view: &mut Value, name: &str, counts: Counts, why: &str) {
    let sentence = unreadable(name, why);
    view["status"] = json!({"counts": counts, "waits": "store_fails", "text": sentence});
    let help = "Make room on the disk, or repair the database.";
    (view["verdict"], view["also"]) = (json!(Verdict::NeedsYou), json!([]));
    let (reason, action) = ("store_fails", Value::Null);
    view["advice"] =
        json!({"reason": reason, "verdict": Verdict::NeedsYou, "sentence": sentence, "help": help, "action": action});
}

/// Returns the row of a queue. If its store fails, the sentence says so.
fn row_with(shared: &Shared, row: &QueueRow, status: Result<QueueStatus, QueueError>) -> Value {
    let rates = row.samples.lock().rates();
    let mut view = json!({
        "name": row.name,
        "group": row.group,
        "pushes_per_second": rates[0],
        "starts_per_second": rates[1],
        "ends_per_second": rates[2],
        "of_this_process": row.is_shared(),
    });
    match status {
        Ok(status) => {
            view["status"] = json!(status);
            view["paused"] = json!(matches!(status.waits, Waits::Paused { .. }));
            if let Waits::Paused { left } = status.waits {
                view["pause_left"] = json!(left.map(long));
            }
            advice::of_queue(&mut view, &row.name, &status, |id| shared.home_of(row, id));
        }
        Err(error) => fails(&mut view, &row.name, row.queue.counts(), &error.report()),
    }
    view
}

/// One queue: its row, its limits, its runner and its run times.
pub(super) fn queue(shared: &Shared, query: &Query) -> Result<Value, Failure> {
    let row = &*named(shared, query)?;
    let mut view = row_with(shared, row, shared.status_of(row));
    let activity = row.queue.activity();
    view["pushed"] = json!(activity.pushed);
    view["started"] = json!(activity.started);
    view["ended"] = json!(activity.ended);
    view["slots"] = json!(activity.slots);
    view["can_resize"] = json!(shared.runner_of(row).is_some());
    view["gate"] = json!(activity.closed_gate.map(|(name, since)| json!({"name": name, "closed_for": long(since)})));
    view["limits"] = row.queue.limits()?.iter().map(limit).collect();
    let durations = row.queue.durations();
    let kinds = durations.iter().map(|(kind, durations)| {
        let none = RunTimes::default();
        let new = activity.run_times.get(kind).map(|times| times.since(row.before.get(kind).unwrap_or(&none)));
        let part = |part| new.as_ref().and_then(|times| times.percentile(part)).map(|took| took.as_secs_f64() * 1e3);
        json!({
            "kind": kind,
            "count": durations.count,
            "mean_ms": durations.mean.as_secs_f64() * 1e3,
            "last_ms": durations.last.as_secs_f64() * 1e3,
            "p50_ms": part(0.5),
            "p99_ms": part(0.99),
        })
    });
    view["kinds"] = kinds.collect();
    Ok(view)
}

fn limit(limit: &LimitUse) -> Value {
    json!({
        "limit": limit.limit,
        "at_once": limit.at_once,
        "running": limit.running,
        "rate": limit.rate.map(|(count, per)| json!({"count": count, "per_ms": long(per)})),
        "burst": limit.burst,
        "tokens": limit.tokens.map(|tokens| (tokens * 100.0).floor() / 100.0),
        "held": limit.held,
    })
}

pub(super) fn schedules(shared: &Shared, query: &Query) -> Result<Value, Failure> {
    let row = named(shared, query)?;
    Ok(json!({"schedules": row.queue.periodics()?}))
}
