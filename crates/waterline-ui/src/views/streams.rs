//! The views of consumers and of pipelines.

use super::query::{Query, limit, number, wanted};
use crate::advice;
use crate::failure::Failure;
use crate::shared::{Shared, Stream};
use serde_json::{Value, json};
use waterline::{Blocked, ConsumerInfo, State, Status, Verdict};

/// The maximum number of cells of a strip: a screen has room for no more.
const CELLS: usize = 1_000;

pub(super) fn named<'s>(shared: &'s Shared, query: &Query) -> Result<&'s Stream, Failure> {
    let name = query.get("stream").map_or_else(|| wanted(query, "name"), |name| Ok(name))?;
    shared.stream(name).ok_or_else(|| Failure::not_found(format!("this page shows no consumer {name:?}")))
}

/// Returns the names on the page of the consumers upstream of this one.
fn upstreams<'s>(shared: &'s Shared, stream: &Stream) -> Vec<&'s str> {
    let upstreams = stream.handle.upstreams();
    let is_upstream = |other: &&Stream| upstreams.iter().any(|upstream| upstream.is_same(other.handle.as_ref()));
    shared.streams.iter().filter(is_upstream).map(|other| other.name.as_str()).collect()
}

pub(super) fn row(shared: &Shared, stream: &Stream) -> Value {
    row_with(shared, stream, &stream.handle.status())
}

fn row_with(shared: &Shared, stream: &Stream, status: &Status) -> Value {
    let before = upstreams(shared, stream);
    let holds = match &status.blocked {
        Blocked::LogFull { behind, .. } => {
            shared.streams.iter().find(|other| behind.is_some() && other.handle.name() == *behind)
        }
        // The lowest upstream holds the gate.
        _ => {
            before.iter().filter_map(|name| shared.stream(name)).min_by_key(|other| other.handle.last_processed_index())
        }
    };
    let samples = stream.samples.lock();
    let behind = samples.behind();
    let mut row = json!({
        "name": stream.name,
        "progress": stream.handle.name(),
        "pipeline": stream.pipeline,
        "upstreams": before,
        "status": status,
        "jobs_per_second": samples.rate(|sample| Some(sample.done)),
        "behind_seconds": behind.map(|behind| behind.0),
        "behind_at_least": behind.is_some_and(|behind| behind.1),
        // The speed of the last minute does not tell when an operator will act.
        "seconds_left": samples.left().filter(|_| status.verdict() != Verdict::NeedsYou),
    });
    advice::of_stream(&mut row, &stream.name, status, holds.map(|other| other.name.as_str()));
    row
}

/// Returns the pipelines with their stages, and the slowest stage of each.
pub(super) fn pipelines(shared: &Shared) -> Vec<Value> {
    let pipeline = |(place, pipeline): (usize, &waterline::PipelineHandle)| {
        let status = pipeline.status();
        // A stage that waits for another is not the slow one. Of the others, the slowest takes
        // longest to reach its head.
        let slow = status.stages.iter().filter(|stage| stage.status.lag() > 0);
        let slow = slow.filter(|stage| stage.status.state == State::Running);
        let waits = |blocked: &Blocked| matches!(blocked, Blocked::Upstream { .. } | Blocked::LogFull { .. });
        let slow = slow.filter(|stage| !waits(&stage.status.blocked));
        let slowest = slow.max_by_key(|stage| (stage.time_left.is_none(), stage.time_left, stage.status.lag()));
        json!({
            "stages": shared.streams.iter().filter(|stream| stream.pipeline == Some(place)).map(|stream| &stream.name)
                .collect::<Vec<_>>(),
            "slowest": slowest.map(|stage| &stage.name),
        })
    };
    shared.pipelines.iter().enumerate().map(pipeline).collect()
}

/// One consumer: its row, its window, its retries, and the halt of the last life.
pub(super) fn stream(shared: &Shared, query: &Query) -> Result<Value, Failure> {
    let stream = named(shared, query)?;
    let mut view = row(shared, stream);
    view["strip"] = json!(stream.handle.strip(CELLS));
    let saved = saved_of(shared, stream);
    view["owns"] = json!(saved.as_ref().map_or(&[][..], |saved| &saved.owns));
    view["last_halt"] = json!(saved.and_then(|saved| saved.last_halt));
    Ok(view)
}

/// All consumers and logs of the store as they are saved, also those that are not on the page.
pub(super) fn saved(shared: &Shared) -> Result<Value, Failure> {
    let consumer = |consumer: &ConsumerInfo| {
        let mut row = json!(consumer);
        advice::of_saved(&mut row, consumer);
        row
    };
    let consumers: Value = shared.saved()?.iter().map(consumer).collect();
    let logs = shared.store().map_or_else(|_| Ok(Vec::new()), |store| store.logs())?;
    Ok(json!({"consumers": consumers, "logs": logs}))
}

/// Returns what is saved of a consumer; `None` also if the store cannot be read, which the sentence
/// says.
fn saved_of(shared: &Shared, stream: &Stream) -> Option<ConsumerInfo> {
    let name = stream.handle.name()?;
    shared.saved().ok()?.into_iter().find(|consumer| consumer.name == name)
}

/// Returns the name of a progress with records in the store, of a consumer on the page or not.
fn progress(shared: &Shared, query: &Query) -> Result<String, Failure> {
    let unknown = match named(shared, query) {
        Ok(stream) => {
            let none = || format!("the progress of {:?} has no name, so no record of it is kept", stream.name);
            return stream.handle.name().ok_or_else(|| Failure::not_found(none()));
        }
        Err(unknown) => unknown,
    };
    let name = query.get("stream");
    let mut saved = shared.saved()?.into_iter().map(|consumer| consumer.name);
    saved.find(|saved| Some(saved) == name).ok_or(unknown)
}

/// A page of parked jobs, from an index on.
pub(super) fn parked(shared: &Shared, query: &Query) -> Result<Value, Failure> {
    let (limit, from) = (limit(query)?, number(query, "from", 0_u64)?);
    let all = shared.store()?.parked(progress(shared, query)?)?;
    let count = all.len();
    let mut rest = all.into_iter().skip_while(|job| job.index < from);
    let jobs: Vec<_> = rest.by_ref().take(limit).collect();
    Ok(json!({"jobs": jobs, "count": count, "next": rest.next().map(|job| job.index)}))
}

/// The moves by an operator, newest first.
pub(super) fn history(shared: &Shared, query: &Query) -> Result<Value, Failure> {
    let (limit, skip) = (limit(query)?, number(query, "skip", 0_usize)?);
    let all = shared.store()?.progress(progress(shared, query)?).history()?;
    let count = all.len();
    let moves: Vec<_> = all.iter().rev().skip(skip).take(limit).collect();
    let next = Some(skip + moves.len()).filter(|next| *next < count);
    Ok(json!({"moves": moves, "count": count, "next": next}))
}
