//! Changes: each is planned by a look, and made only with `--yes`, while nobody else has the store
//! open.

use crate::args::Change;
use crate::fault::Fault;
use crate::place::{Holders, Place};
use crate::print::{Cell, Report};
use serde_json::{Map, Value};
use waterline::Store;

mod queues;
mod streams;

/// The call that makes a change. It returns fields that are known only then.
type Make = dyn FnOnce(&Store) -> Result<Map<String, Value>, Fault>;

/// A change that is planned.
struct Plan {
    /// The change in words, behind "would": `redrive job 3 of "blocks"`.
    what: String,
    /// The fields of its record, beside those that each change has.
    fields: Map<String, Value>,
    make: Box<Make>,
}

impl Plan {
    fn new(
        what: String,
        fields: Value,
        make: impl FnOnce(&Store) -> Result<Map<String, Value>, Fault> + 'static,
    ) -> Self {
        let fields = if let Value::Object(fields) = fields { fields } else { Map::new() };
        Self { what, fields, make: Box::new(make) }
    }
}

/// Makes a change, or says what it would do.
pub(crate) fn change(place: &Place, change: &Change) -> Result<Report, Fault> {
    let (name, plan) = planned(&place.look()?, change)?;
    let (is_sure, reason) = how(change);
    let mut record = plan.fields;
    record.insert("type".to_owned(), "change".into());
    record.insert("change".to_owned(), name.into());
    record.insert("what".to_owned(), plan.what.as_str().into());
    record.insert("made".to_owned(), is_sure.into());
    if let Some(reason) = reason {
        record.insert("reason".to_owned(), reason.into());
    }
    let mut report = Report::default();
    if is_sure {
        // The look is closed by now, so the store is open once.
        let made = (plan.make)(&place.change()?)?;
        report.line(Cell::from(format!("Done: {}.", plan.what)).good());
        for (field, value) in made {
            report.line(format!("{field}: {value}"));
            record.insert(field, value);
        }
    } else {
        report.line(format!("Would {}.", plan.what));
        report.line(Cell::from("Nothing was changed. Add --yes to do it.").faint());
        if let Holders::One(holder) = place.holders() {
            let text = format!("The process {holder} has the store open, so it has to be stopped before.");
            report.line(Cell::from(text).bad());
        }
    }
    report.record(Value::Object(record));
    Ok(report)
}

/// Plans a change, by a look at the store.
fn planned(look: &Store, change: &Change) -> Result<(&'static str, Plan), Fault> {
    Ok(match change {
        Change::Redrive { name, index, .. } => ("redrive", streams::redrive(look, name, *index)?),
        Change::Discard { name, index, .. } => ("discard", streams::discard(look, name, *index)?),
        Change::Skip { name, index, how } => ("skip", streams::skip(look, name, *index, &how.reason)?),
        Change::Seek { name, next, how } => ("seek", streams::seek(look, name, *next, &how.reason)?),
        Change::Remove { name, .. } => ("remove", streams::remove(look, name)?),
        Change::Requeue { queue, id, .. } => ("requeue", queues::requeue(look, queue, id.as_deref())?),
        Change::Cancel { queue, id, .. } => ("cancel", queues::cancel(look, queue, id)?),
        Change::RunNow { queue, id, .. } => ("run-now", queues::run_now(look, queue, id)?),
        Change::Pause { queue, .. } => ("pause", queues::pause(look, queue)?),
        Change::Resume { queue, .. } => ("resume", queues::resume(look, queue)?),
        Change::Push { queue, kind, payload, id, .. } => {
            ("push", queues::push(look, queue, kind, payload, id.as_deref())?)
        }
    })
}

/// Returns true if the change is to be made, and the reason that was given.
fn how(change: &Change) -> (bool, Option<&str>) {
    match change {
        Change::Redrive { how, .. } | Change::Discard { how, .. } | Change::Remove { how, .. } => {
            (how.sure.yes, how.reason.as_deref())
        }
        Change::Skip { how, .. } | Change::Seek { how, .. } => (how.sure.yes, Some(&how.reason)),
        Change::Requeue { how, .. }
        | Change::Cancel { how, .. }
        | Change::RunNow { how, .. }
        | Change::Pause { how, .. }
        | Change::Resume { how, .. }
        | Change::Push { how, .. } => (how.yes, None),
    }
}
