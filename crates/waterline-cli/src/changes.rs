//! Changes: each is planned by a look, and made only with `--yes`.

use crate::args::Change;
use crate::fault::Fault;
use crate::place::Place;
use crate::print::{Cell, Report};
use serde_json::{Map, Value};

mod queues;
mod streams;

/// A change that is planned.
struct Plan {
    /// The command.
    change: &'static str,
    /// The change in words, behind "would": `redrive job 3 of "blocks"`.
    what: String,
    /// The fields of its record, beside those that each change has.
    fields: Map<String, Value>,
}

impl Plan {
    fn new(change: &'static str, what: String, fields: Value) -> Self {
        let fields = if let Value::Object(fields) = fields { fields } else { Map::new() };
        Self { change, what, fields }
    }
}

/// Makes a change, or says what it would do.
pub(crate) fn change(place: Box<dyn Place>, change: &Change) -> Result<Report, Fault> {
    let plan = match change {
        Change::OfQueue(change) => queues::plan(&*place, change),
        change => streams::plan(&*place, change),
    }?;
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
        let made = place.change(change)?;
        report.line(Cell::from(format!("Done: {}.", plan.what)).good());
        for (field, value) in made {
            report.line(format!("{field}: {value}"));
            record.insert(field, value);
        }
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
