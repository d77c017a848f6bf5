//! Changes: each is planned by a look, and made only with `--yes`.

use crate::args::{Change, Parked};
use crate::backend::{Backend, Made};
use crate::error::Fault;
use crate::print::{Cell, Report};
use plan::Plan;
use serde_json::{Map, Value};

mod plan;
mod queues;
mod streams;

/// Makes a change, or says what it would do.
pub(crate) fn change(place: Box<dyn Backend>, change: &Change) -> Result<Report, Fault> {
    let plan = plan(&*place, change)?;
    let (is_sure, reason) = change.how();
    let mut record = plan.fields;
    record.insert("type".to_owned(), "change".into());
    record.insert("change".to_owned(), plan.change.into());
    record.insert("what".to_owned(), plan.what.as_str().into());
    record.insert("made".to_owned(), is_sure.into());
    if let Some(reason) = reason {
        record.insert("reason".to_owned(), reason.into());
    }
    let mut report = Report::default();
    if is_sure {
        let Made { fields, failed } = place.change(change, plan.seen.as_deref())?;
        let what = done(change, &fields).unwrap_or(plan.what);
        let is_new = fields.get("is_new") != Some(&Value::Bool(false));
        let line = format!("{}: {what}.", if is_new { "Done" } else { "Nothing was changed" });
        report.line(if is_new { Cell::from(line).good() } else { line.into() });
        for (field, value) in ["id", "said"].iter().filter_map(|field| Some((field, fields.get(*field)?))) {
            report.line(format!("{field}: {value}"));
        }
        record.insert("what".to_owned(), what.into());
        record.insert("made".to_owned(), is_new.into());
        record.extend(fields.into_iter().filter(|(field, _)| field != "is_new"));
        report.failed = failed;
    } else {
        report.line(format!("Would {}.", plan.what));
        report.line(Cell::from("Nothing was changed. Add --yes to do it.").faint());
        if let Some(hindrance) = place.hindrance()? {
            report.line(Cell::from(hindrance).bad());
        }
    }
    report.record(Value::Object(record));
    Ok(report)
}

fn plan(place: &dyn Backend, change: &Change) -> Result<Plan, Fault> {
    match change {
        Change::Redrive { name, index, .. } => streams::redrive(place, name, *index),
        Change::Discard { name, which: Parked { index: Some(index), .. }, .. } => streams::discard(place, name, *index),
        Change::Discard { name, which, .. } => streams::discard_all(place, name, *which),
        Change::Skip { name, index, .. } => streams::skip(place, name, *index),
        Change::Seek { name, next, new: false, .. } => streams::seek(place, name, *next),
        Change::Seek { name, next, new: true, .. } => streams::seek_new(place, name, *next),
        Change::Replace { from, to, .. } => streams::replace(place, from, to),
        Change::Remove { name, .. } => streams::remove(place, name),
        Change::Check { name, .. } => streams::check(place, name),
        Change::RemoveQueue { queue, .. } => queues::removal(place, queue),
        Change::OfQueue(change) => queues::plan(place, change),
    }
}

/// Says what a change did, where that can differ from the plan.
fn done(change: &Change, made: &Map<String, Value>) -> Option<String> {
    match change {
        Change::Redrive { name, index: None, .. } => {
            Some(streams::redrives(name, made.get("indices")?.as_array()?.len() as u64))
        }
        Change::Discard { name, which, .. } if which.index.is_none() => {
            Some(streams::discards(name, made.get("discarded")?.as_u64()?))
        }
        Change::OfQueue(change) => queues::done(change, made),
        Change::RemoveQueue { queue, .. } => Some(queues::removes_queue(queue, made.get("jobs")?.as_u64()?)),
        _ => None,
    }
}
