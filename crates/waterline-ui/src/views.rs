//! The views of a page as JSON. Each is a `GET` below `api/`, and can be followed.

use crate::guard::Guard;
use crate::shared::Shared;
use axum::http::StatusCode;
use serde_json::{Value, json};
use std::collections::HashMap;
use waterline::queue::QueueError;
use waterline::{Error, Verdict};

mod filter;
mod jobs;
mod queues;
mod stored;
mod streams;
mod workers;

pub(crate) use filter::{Filter, MOST_READ};
pub(crate) use queues::of_name as queue_of_name;

/// The parameters behind the `?` of an address.
pub(crate) type Query = HashMap<String, String>;

/// A request that cannot be answered, in words for a person.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn bad(text: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, text: text.into() }
    }

    pub(crate) fn not_found(text: impl Into<String>) -> Self {
        Self { status: StatusCode::NOT_FOUND, text: text.into() }
    }

    pub(crate) fn json(&self) -> Value {
        json!({ "error": self.text })
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::NotParked { .. } | Error::NotFound { .. } => StatusCode::NOT_FOUND,
            Error::InUse { .. } | Error::Stopped | Error::AlreadyDone { .. } | Error::NothingSaved { .. } => {
                StatusCode::CONFLICT
            }
            Error::Config(_) => StatusCode::BAD_REQUEST,
            Error::ReadOnly => StatusCode::FORBIDDEN,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self { status, text: error.report() }
    }
}

impl From<QueueError> for Failure {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::Store(error) => error.into(),
            error => {
                let status = match &error {
                    QueueError::NotFound { .. } => StatusCode::NOT_FOUND,
                    QueueError::Config(_) => StatusCode::BAD_REQUEST,
                    _ => StatusCode::CONFLICT,
                };
                Self { status, text: error.report() }
            }
        }
    }
}

/// Returns a view as JSON.
///
/// # Errors
/// [`Failure`] says what is wrong with the request, or with the store.
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

/// The views, for a person who looks at the API.
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

/// The worst verdict of all that the page shows, and what needs an operator.
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

/// Returns a parameter that has to be there.
pub(crate) fn wanted<'q>(query: &'q Query, name: &str) -> Result<&'q str, Failure> {
    query.get(name).map(String::as_str).ok_or_else(|| Failure::bad(format!("the parameter {name:?} is missing")))
}

/// Returns a parameter that is a number, or this one if it is not there.
fn number<T: std::str::FromStr>(query: &Query, name: &str, without: T) -> Result<T, Failure> {
    let wrong = |text: &String| Failure::bad(format!("the parameter {name:?} is a number, and not {text:?}"));
    query.get(name).map_or(Ok(without), |text| text.parse().map_err(|_| wrong(text)))
}

/// Returns the number of rows of a page of a list.
fn limit(query: &Query) -> Result<usize, Failure> {
    Ok(number(query, "limit", 50_usize)?.clamp(1, 500))
}
