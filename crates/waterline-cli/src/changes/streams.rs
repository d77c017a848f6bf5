//! Plans of changes of consumers.

use super::plan::Plan;
use crate::args::Parked;
use crate::backend::{Backend, consumer, needs_process};
use crate::error::Fault;
use crate::format::{count, cut};
use crate::rows;
use serde_json::json;
use waterline::Error;

/// The longest error in a sentence.
const ERROR: usize = 80;

pub(super) fn redrive(place: &dyn Backend, name: &str, index: Option<u64>) -> Result<Plan, Fault> {
    consumer(place, name)?;
    let parked = place.parked(name)?;
    let (jobs, what) = match index {
        Some(index) => {
            let job = find(&parked, name, index)?;
            (vec![index], format!("redrive job {index} of {name:?} ({})", cut(&job.error, ERROR)))
        }
        None => {
            let jobs: Vec<_> = parked.iter().map(|job| job.index).collect();
            let what = redrives(name, jobs.len() as u64);
            (jobs, what)
        }
    };
    Ok(Plan::new("redrive", what, json!({ "consumer": name, "indices": jobs })))
}

/// Describes the redrive of this many parked jobs.
pub(super) fn redrives(name: &str, many: u64) -> String {
    format!("redrive {} of {name:?}", count(many, "parked job"))
}

pub(super) fn discard(place: &dyn Backend, name: &str, index: u64) -> Result<Plan, Fault> {
    let of = consumer(place, name)?;
    let error = match place.parked(name) {
        Ok(parked) => cut(&find(&parked, name, index)?.error, ERROR),
        // The unreadable record may be this one. If it is another, the change finds out.
        Err(fault) if fault.is_damage || of.unreadable.is_some() => fault.to_string(),
        Err(fault) => return Err(fault),
    };
    let what = format!("discard job {index} of {name:?}, so that nothing runs it any more ({error})");
    Ok(Plan::new("discard", what, json!({ "consumer": name, "index": index })))
}

pub(super) fn discard_all(place: &dyn Backend, name: &str, which: Parked) -> Result<Plan, Fault> {
    consumer(place, name)?;
    let range = which.range();
    let jobs: Vec<_> = place.parked(name)?.iter().map(|job| job.index).filter(|index| range.contains(index)).collect();
    let what = discards(name, jobs.len() as u64);
    Ok(Plan::new("discard", what, json!({ "consumer": name, "indices": jobs })))
}

/// Describes the discard of this many parked jobs.
pub(super) fn discards(name: &str, many: u64) -> String {
    format!("discard {} of {name:?}, so that nothing runs them any more", count(many, "parked job"))
}

fn find<'p>(parked: &'p [rows::ParkedRow], name: &str, index: u64) -> Result<&'p rows::ParkedRow, Fault> {
    let job = parked.iter().find(|job| job.index == index);
    job.ok_or_else(|| Error::NotParked { name: name.to_owned(), index }.into())
}

pub(super) fn skip(place: &dyn Backend, name: &str, index: u64) -> Result<Plan, Fault> {
    let next = consumer(place, name)?.next.ok_or_else(|| Error::NothingSaved { name: name.to_owned() })?;
    if index < next {
        return Err(Error::AlreadyDone { name: name.to_owned(), index }.into());
    }
    let what = format!("skip job {index} of {name:?}, so that no consumer runs it; it counts as parked from then on");
    Ok(Plan::new("skip", what, json!({ "consumer": name, "index": index })))
}

/// Plans the first job of a consumer that has nothing saved.
pub(super) fn seek_new(place: &dyn Backend, name: &str, next: u64) -> Result<Plan, Fault> {
    if place.consumer(name)?.is_some() {
        return Err(Fault::new(format!("there is a consumer {name:?}: seek it without --new")));
    }
    let what = format!("make {next} the first job of {name:?}, of which nothing is saved ({UNKNOWN})");
    Ok(Plan::new("seek", what, json!({ "consumer": name, "from": null, "to": next })))
}

pub(super) fn seek(place: &dyn Backend, name: &str, next: u64) -> Result<Plan, Fault> {
    let consumer = consumer(place, name).map_err(|fault| fault.or("--new seeks a name of which nothing is saved"))?;
    let from = consumer.next;
    let effect = match from {
        Some(from) if next < from => format!("jobs {next} to {} run once more ({TWICE})", from - 1),
        Some(from) if next > from => format!("jobs {from} to {} are passed, those that are not done too", next - 1),
        _ => format!("what is done above it runs once more ({TWICE})"),
    };
    let was = from.map_or_else(|| "unknown".to_owned(), |from| from.to_string());
    let source = there(place, consumer.log.as_deref(), next)?;
    let what = format!("make {next} the next job of {name:?}, where it is {was} now: {effect}; {source}");
    Ok(Plan::new("seek", what, json!({ "consumer": name, "from": from, "to": next, "log": consumer.log })))
}

/// The caveat for a source that is no log of this place.
const UNKNOWN: &str = "its source is not known here: if it begins above this job, the consumer does not start";

/// The caveat for jobs that run again.
const TWICE: &str = "a transactional consumer makes their effects twice; to make them anew, remove them with the \
                     progress in one write: StoreProgress::remove_with";

/// Says which items the source has, if it is a log. Fails if they begin above the next job.
fn there(place: &dyn Backend, log: Option<&str>, next: u64) -> Result<String, Fault> {
    let Some(log) = log else { return Ok(UNKNOWN.to_owned()) };
    let logs = place.logs()?;
    let Some(found) = logs.iter().find(|found| found.name == log && found.unreadable.is_none()) else {
        return Ok(format!("its log {log:?} cannot be read, so it is not known where that begins"));
    };
    let rows::Log { first, head, .. } = *found;
    let items = match head.filter(|head| *head >= first) {
        Some(head) => format!("its log {log:?} has the items {first} to {head}"),
        None => format!("its log {log:?} has no item, and goes on with {first}"),
    };
    if next < first {
        return Err(Fault::new(format!("job {next} is gone: {items}; seek to {first} or above")));
    }
    match head.unwrap_or(0) < next {
        true => Ok(format!("{items}, so it waits for item {next}")),
        false => Ok(items),
    }
}

/// Says how far a consumer is.
fn done(consumer: &rows::Consumer) -> String {
    match (&consumer.unreadable, consumer.last_processed) {
        (Some(_), _) => "which cannot be read".to_owned(),
        (None, Some(last)) => format!("which has processed jobs up to {last}"),
        (None, None) => "which has no watermark so far".to_owned(),
    }
}

/// Says what there is of a consumer, and how far it is.
fn whole(consumer: &rows::Consumer) -> String {
    let (name, parked) = (&consumer.name, count(consumer.parked, "parked job"));
    let owns = if consumer.owns.is_empty() { String::new() } else { format!(" and {}", rows::owned(&consumer.owns)) };
    format!("{name:?}, {}, with {parked}, its history{owns}", done(consumer))
}

pub(super) fn replace(place: &dyn Backend, from: &str, to: &str) -> Result<Plan, Fault> {
    let comes = consumer(place, from)?;
    let goes = place.consumer(to)?;
    let fields = json!({ "from": from, "to": to, "comes": comes.last_processed, "owns": comes.owns,
        "goes": goes.as_ref().and_then(|goes| goes.last_processed) });
    let gone = goes.map_or_else(|| "nothing, since nothing is saved under it".to_owned(), |goes| whole(&goes));
    let what = format!("give {from:?} the name {to:?}: what comes is {}; what goes is {gone}", whole(&comes));
    Ok(Plan::new("replace", what, fields))
}

pub(super) fn remove(place: &dyn Backend, name: &str) -> Result<Plan, Fault> {
    let consumer = consumer(place, name)?;
    let effects = match &consumer.owns[..] {
        [] => "what its jobs have written stays".to_owned(),
        owns => format!(
            "{} {} cleared, and what else its jobs have written stays",
            rows::owned(owns),
            if owns.len() == 1 { "is" } else { "are" }
        ),
    };
    let what = format!(
        "remove the progress {name:?}, {}, with {} and its history; its consumer then starts anew, and {effects}",
        done(&consumer),
        count(consumer.parked, "parked job")
    );
    Ok(Plan::new("remove", what, json!({ "consumer": name, "last_processed": consumer.last_processed })))
}

pub(super) fn check(place: &dyn Backend, name: &str) -> Result<Plan, Fault> {
    consumer(place, name)?;
    if !place.has_processes() {
        return Err(needs_process("told to look at its source"));
    }
    Ok(Plan::new("check", format!("make {name:?} look at its source now"), json!({ "consumer": name })))
}
