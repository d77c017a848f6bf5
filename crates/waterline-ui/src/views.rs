//! The views of a page as JSON. Each is a `GET` below `api/`, and can be followed.

use crate::failure::Failure;
use crate::guard::Guard;
use crate::shared::Shared;
use serde_json::{Value, json};
use waterline::Verdict;

mod filter;
mod jobs;
mod query;
mod queues;
mod stored;
mod streams;
mod workers;

pub(crate) use filter::{Filter, MOST_READ};
pub(crate) use query::Query;
pub(crate) use queues::of_name as queue_of_name;

/// Returns a view as JSON. [`Failure`] says what is wrong with the request, or with the store.
pub(crate) fn view(shared: &Shared, guard: &Guard, name: &str, query: &Query) -> Result<Value, Failure> {
    match name {
        "overview" => overview(shared, guard),
        "health" => health(shared, guard),
        "saved" => streams::saved(shared),
        "stream" => streams::stream(shared, query),
        "stored" => stored::stored(shared, query),
        "parked" => streams::parked(shared, query),
        "history" => streams::history(shared, query),
        "plots" => plots(shared, query),
        "queue" => queues::queue(shared, query),
        "schedules" => queues::schedules(shared, query),
        "workers" => workers::workers(shared, query),
        "jobs" => jobs::jobs(shared, query),
        "count" => jobs::count(shared, query),
        "job" => jobs::job(shared, query),
        _ => Err(Failure::not_found(format!("there is no view {name:?}: GET api/ lists them"))),
    }
}

/// The names of the views, which the API lists.
pub(crate) const VIEWS: &[&str] = &[
    "overview",
    "health",
    "saved",
    "stream",
    "stored",
    "parked",
    "history",
    "plots",
    "queue",
    "schedules",
    "workers",
    "jobs",
    "count",
    "job",
];

fn overview(shared: &Shared, guard: &Guard) -> Result<Value, Failure> {
    Ok(json!({
        "title": shared.title,
        "writes": guard.why_read_only().is_none(),
        "why_read_only": guard.why_read_only().map(|why| why.text()),
        "has_token": guard.token().is_some(),
        "streams": shared.streams.iter().map(|stream| streams::row(shared, stream)).collect::<Vec<_>>(),
        "stored": stored::rows(shared)?,
        "pipelines": streams::pipelines(shared),
        "queues": queues::rows(shared),
    }))
}

/// The worst verdict of all rows, and what needs an operator.
fn health(shared: &Shared, guard: &Guard) -> Result<Value, Failure> {
    let overview = overview(shared, guard)?;
    let rows = ["streams", "stored", "queues"].iter().filter_map(|list| overview[list].as_array()).flatten();
    let is_one = |advice: &&Value| advice["verdict"] == json!(Verdict::NeedsYou);
    let (mut verdict, mut needs_you) = (Verdict::GoesWell, Vec::new());
    for row in rows {
        let found = [Verdict::Waits, Verdict::NeedsYou].into_iter().find(|known| row["verdict"] == json!(known));
        verdict = verdict.max(found.unwrap_or_default());
        let all = std::iter::once(&row["advice"]).chain(row["also"].as_array().into_iter().flatten());
        needs_you.extend(all.filter(is_one).map(|advice| {
            json!({"name": row["name"], "reason": advice["reason"], "sentence": advice["sentence"], "help": advice["help"]})
        }));
    }
    Ok(json!({"verdict": verdict, "needs_you": needs_you}))
}

/// The plots of a consumer or a queue, over the last minute or hour.
fn plots(shared: &Shared, query: &Query) -> Result<Value, Failure> {
    let seconds = match query.get("span").map(String::as_str) {
        None | Some("minute") => 60,
        Some("hour") => 3_600,
        Some(other) => return Err(Failure::bad(format!("the span is minute or hour, and not {other:?}"))),
    };
    match query.get("queue") {
        Some(_) => Ok(queues::named(shared, query)?.samples.lock().plots(seconds)),
        None => Ok(streams::named(shared, query)?.samples.lock().plots(seconds)),
    }
}
