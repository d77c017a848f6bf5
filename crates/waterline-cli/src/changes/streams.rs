//! Changes of consumers.

use super::Plan;
use crate::fault::Fault;
use crate::streams::consumer;
use crate::words::{count, cut};
use serde_json::{Map, json};
use waterline::{Error, Parked, Store};

/// The longest error in a sentence.
const ERROR: usize = 80;

pub(super) fn redrive(look: &Store, name: &str, index: Option<u64>) -> Result<Plan, Fault> {
    consumer(look, name)?;
    let parked = look.parked(name)?;
    let (jobs, what) = match index {
        Some(index) => {
            let job = find(&parked, name, index)?;
            (vec![index], format!("redrive job {index} of {name:?} ({})", cut(&job.error, ERROR)))
        }
        None => {
            let jobs: Vec<_> = parked.iter().map(|job| job.index).collect();
            let what = format!("redrive {} of {name:?}", count(jobs.len() as u64, "parked job"));
            (jobs, what)
        }
    };
    let (fields, name) = (json!({ "consumer": name, "indices": jobs }), name.to_owned());
    Ok(Plan::new(what, fields, move |store| {
        jobs.iter().try_for_each(|index| store.redrive(&name, *index))?;
        Ok(Map::new())
    }))
}

pub(super) fn discard(look: &Store, name: &str, index: u64) -> Result<Plan, Fault> {
    consumer(look, name)?;
    let parked = look.parked(name)?;
    let job = find(&parked, name, index)?;
    let what =
        format!("discard job {index} of {name:?}, so that nothing runs it any more ({})", cut(&job.error, ERROR));
    let (fields, name) = (json!({ "consumer": name, "index": index }), name.to_owned());
    Ok(Plan::new(what, fields, move |store| {
        store.discard(&name, index)?;
        Ok(Map::new())
    }))
}

fn find<'p>(parked: &'p [Parked], name: &str, index: u64) -> Result<&'p Parked, Fault> {
    let job = parked.iter().find(|job| job.index == index);
    job.ok_or_else(|| Error::NotParked { name: name.to_owned(), index }.into())
}

pub(super) fn skip(look: &Store, name: &str, index: u64, reason: &str) -> Result<Plan, Fault> {
    let info = consumer(look, name)?;
    let next = info.next.ok_or_else(|| Error::NothingSaved { name: name.to_owned() })?;
    if index < next {
        return Err(Error::AlreadyDone { name: name.to_owned(), index }.into());
    }
    let what = format!("skip job {index} of {name:?}, so that no consumer runs it; it counts as parked from then on");
    let fields = json!({ "consumer": name, "index": index });
    let (name, reason) = (name.to_owned(), reason.to_owned());
    Ok(Plan::new(what, fields, move |store| {
        store.progress(&name).skip(index, &reason)?;
        Ok(Map::new())
    }))
}

pub(super) fn seek(look: &Store, name: &str, next: u64, reason: &str) -> Result<Plan, Fault> {
    let from = consumer(look, name)?.next;
    let effect = match from {
        Some(from) if next < from => format!("jobs {next} to {} run once more", from - 1),
        Some(from) if next > from => format!("jobs {from} to {} are passed, those that are not done too", next - 1),
        _ => "what is done above it runs once more".to_owned(),
    };
    let was = from.map_or_else(|| "unknown".to_owned(), |from| from.to_string());
    let what = format!("make {next} the next job of {name:?}, where it is {was} now: {effect}");
    let fields = json!({ "consumer": name, "from": from, "to": next });
    let (name, reason) = (name.to_owned(), reason.to_owned());
    Ok(Plan::new(what, fields, move |store| {
        store.progress(&name).seek(next, &reason)?;
        Ok(Map::new())
    }))
}

pub(super) fn remove(look: &Store, name: &str) -> Result<Plan, Fault> {
    let info = consumer(look, name)?;
    let done = match (&info.unreadable, info.last_processed) {
        (Some(_), _) => "which cannot be read".to_owned(),
        (None, Some(last)) => format!("which has processed jobs up to {last}"),
        (None, None) => "which has no watermark so far".to_owned(),
    };
    let what = format!(
        "remove the progress {name:?}, {done}, with {} and its history; its consumer then starts anew, and what its jobs have \
         written stays",
        count(info.parked, "parked job")
    );
    let (fields, name) = (json!({ "consumer": name, "last_processed": info.last_processed }), name.to_owned());
    Ok(Plan::new(what, fields, move |store| {
        store.progress(&name).remove()?;
        Ok(Map::new())
    }))
}
