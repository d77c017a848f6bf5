//! The options of a queue and the settings of a job, as the functions of a server take them.

use crate::rules::pushing::Push;
use crate::types::job::Retention;
use crate::types::limit::{Bounds, LimitOf};
use crate::types::options::QueueOptions;
use crate::types::related::OnDead;
use crate::types::unique::{Clash, Until};
use serde_json::{Map, Value, json};
use std::time::Duration;
use waterline::Retry;
use waterline::seam::{Growth, retry_parts};

/// A duration in milliseconds, with its fraction.
fn millis(time: Duration) -> Value {
    let nanos = time.as_nanos();
    match u64::try_from(nanos / 1_000_000) {
        Ok(whole) if nanos.is_multiple_of(1_000_000) => json!(whole),
        _ => json!(time.as_secs_f64() * 1_000.0),
    }
}

/// A duration in whole milliseconds, rounded up so that no time ends too soon.
pub(super) fn whole(time: Duration) -> i64 {
    i64::try_from(time.as_nanos().div_ceil(1_000_000)).map_or(LONGEST, |millis| millis.min(LONGEST))
}

/// More than a million years: beyond it, sums would overflow on the server.
const LONGEST: i64 = 1 << 55;

fn retry(retry: &Retry) -> Value {
    let (first, growth, cap, attempts, jitter) = retry_parts(retry);
    let (growth, factor) = match growth {
        Growth::None => ("fixed", None),
        Growth::Doubling => ("doubling", None),
        Growth::Factor(factor) => ("factor", Some(factor)),
        Growth::Quadratic => ("quadratic", None),
    };
    json!({
        "first_ms": millis(first), "cap_ms": millis(cap), "growth": growth, "factor": factor,
        "attempts": attempts, "jitter": jitter,
    })
}

fn retention(retention: Retention) -> i64 {
    match retention {
        Retention::For(time) => whole(time),
        Retention::Drop => 0,
        _ => -1,
    }
}

fn limit(of: &LimitOf, bounds: &Bounds) -> Value {
    let (of, name) = match of {
        LimitOf::Kind(kind) => ("kind", Some(kind)),
        LimitOf::Key(key) => ("key", Some(key)),
        LimitOf::EachKey => ("each_key", None),
        _ => ("queue", None),
    };
    let rate = bounds.rate.map(|rate| {
        let per = u64::try_from(rate.per.as_nanos()).unwrap_or(u64::MAX);
        json!({ "count": rate.count, "per_ns": per, "burst": rate.burst })
    });
    json!({ "of": of, "name": name, "at_once": bounds.at_once, "rate": rate })
}

pub(super) fn of_queue(options: &QueueOptions) -> String {
    let limits: Vec<_> = options.limits.iter().map(|one| limit(&one.of, &one.bounds)).collect();
    json!({
        "lease_ms": whole(options.lease), "retry": retry(&options.retry), "max_crashes": options.max_crashes,
        "retention_ms": retention(options.retention), "dead_for_ms": whole(options.dead_for),
        "ids_for_ms": whole(options.ids_for), "heal_after_ms": options.heal_after.map(whole),
        "max_waiting": options.max_waiting, "max_payload": options.max_payload, "limits": limits,
    })
    .to_string()
}

/// The settings of a job; `None` if it has none. Times given as durations stay durations, since
/// they count by the server's clock.
pub(super) fn of_job(push: &Push) -> Option<String> {
    let (row, extras) = (&push.row, push.row.extras());
    let mut all = Map::new();
    let mut set = |name: &str, value: Value| drop(all.insert(name.to_owned(), value));
    if push.made.is_none() {
        set("id", json!(push.id));
    }
    if row.due > 0 && push.is_delayed {
        set("delay_ms", json!(row.due.saturating_sub(row.pushed)));
    } else if row.due > 0 {
        set("run_at", json!(row.due));
    }
    if row.priority != Default::default() {
        set("priority", json!(row.priority as u8));
    }
    row.retry.iter().for_each(|own| set("retry", retry(own)));
    row.retention.iter().for_each(|own| set("retention_ms", json!(retention(*own))));
    if let Some(until) = extras.unique {
        let (until, within) = match until {
            Until::Claimed => ("claimed", None),
            Until::Done => ("done", None),
            Until::Time => ("within", Some(push.window)),
        };
        let clash = match push.clash {
            Clash::Replace => "replace",
            Clash::Earliest => "earliest",
            _ => "keep",
        };
        let fingerprint = extras.fingerprint.map(|fingerprint| fingerprint.text());
        set("unique", json!({ "fingerprint": fingerprint, "until": until, "within_ms": within, "clash": clash }));
    }
    if extras.skips_from.is_some() {
        set("skip", json!(extras.fingerprint.map(|fingerprint| fingerprint.text())));
    }
    if let Some(root) = &extras.root {
        set("root", json!({ "signature": root.signature, "at": root.millis(), "leaf": !extras.is_root }));
    }
    if let Some(expires) = extras.expires {
        set("expires_ms", json!(expires.saturating_sub(row.pushed)));
    }
    extras.key.iter().for_each(|key| set("key", json!(key)));
    if extras.cost != 1 {
        set("cost", json!(extras.cost));
    }
    if !push.after.is_empty() {
        set("after", json!(push.after));
    }
    match extras.on_dead {
        OnDead::Die => {}
        OnDead::Run => set("on_dead", json!("run")),
        _ => set("on_dead", json!("hold")),
    }
    if !push.meta.is_empty() {
        set("meta", json!(String::from_utf8_lossy(&push.meta)));
    }
    (!all.is_empty()).then(|| Value::Object(all).to_string())
}

pub(super) fn text(push: &Push) -> String {
    String::from_utf8_lossy(&push.payload).into_owned()
}
