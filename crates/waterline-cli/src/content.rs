//! Looks at logs and tables.

use crate::backend::{Backend, needs_files};
use crate::error::Fault;
use crate::format::{bytes_of, count, cut, hex, readable};
use crate::print::{Cell, Report, record};
use crate::rows::Log;
use serde_json::{Value, json};
use waterline::{Bytes, JobLog, Jobs, LogInfo, Store, Table};

/// The longest value in a table.
const VALUE: usize = 100;

/// How many items are read at a time.
const CHUNK: u64 = 1_000;

pub(crate) const LOGS: &[&str] = &["LOG", "FIRST", "HEAD", "ITEMS", "PARKED", "CODEC"];

pub(crate) fn log_rows(logs: &[Log]) -> Vec<Vec<Cell>> {
    let row = |log: &Log| {
        let codec = match &log.unreadable {
            Some(reason) => Cell::from(format!("damaged: {}", cut(reason, VALUE))).bad(),
            None => log.codec.as_str().into(),
        };
        let (first, head) = (Cell::number(log.first), Cell::maybe(log.head));
        vec![log.name.as_str().into(), first, head, Cell::number(log.items()), Cell::number(log.parked), codec]
    };
    logs.iter().map(row).collect()
}

pub(crate) fn log_record(log: &Log) -> Value {
    record("log", log, [("items", log.items().into())])
}

/// A log whose items are read as the stored bytes.
pub(crate) struct Items {
    log: JobLog<Vec<u8>, Bytes>,
    pub(crate) info: LogInfo,
}

impl Items {
    pub(crate) fn open(store: &Store, name: &str) -> Result<Self, Fault> {
        let logs = store.logs()?;
        let Some(info) = logs.iter().find(|log| log.name == name).cloned() else {
            let known: Vec<_> = logs.into_iter().map(|log| log.name).collect();
            return Err(Fault::unknown("log", name, &known));
        };
        Ok(Self { log: store.log_with(name, Bytes)?, info })
    }

    /// Calls `item` with each item from an index on, until it returns false. The error is the index
    /// of the first item that is missing or unreadable, with the reason.
    pub(crate) fn each(&self, from: u64, mut item: impl FnMut(u64, &[u8]) -> bool) -> Result<(), (u64, String)> {
        let Some(head) = self.info.head else { return Ok(()) };
        let mut next = from.max(self.info.first);
        while next <= head {
            let mut read = Vec::new();
            let run = next..=head.min(next.saturating_add(CHUNK - 1));
            let failed = self.log.read(run, &mut read).err();
            for bytes in &read {
                if !item(next, bytes) {
                    return Ok(());
                }
                next += 1;
            }
            match failed {
                Some(error) => return Err((next, error.to_string())),
                None if read.is_empty() => return Err((next, "the item is missing".to_owned())),
                None => {}
            }
        }
        Ok(())
    }

    /// Returns an item as JSON, if that is its codec.
    pub(crate) fn json(&self, bytes: &[u8]) -> Option<Result<Value, serde_json::Error>> {
        (self.info.codec == "json").then(|| serde_json::from_slice(bytes))
    }
}

pub(crate) fn peek(place: &dyn Backend, name: &str, from: Option<u64>, most: usize) -> Result<Report, Fault> {
    let store = place.store().ok_or_else(|| needs_files("the items of a log"))?;
    let items = Items::open(store, name)?;
    if let Some(reason) = &items.info.unreadable {
        return Err(Fault::new(reason.as_str()));
    }
    let (mut report, mut rows) = (Report::default(), Vec::new());
    let ended = items.each(from.unwrap_or(0), |index, bytes| {
        if rows.len() == most {
            return false;
        }
        let item = items.json(bytes).and_then(Result::ok);
        let text = item.as_ref().map_or_else(|| readable(bytes), Value::to_string);
        rows.push(vec![Cell::number(index), Cell::number(bytes.len() as u64), cut(&text, VALUE).into()]);
        report.record(json!({ "type": "item", "log": name, "index": index, "item": item, "hex": hex(bytes) }));
        true
    });
    if let Err((index, reason)) = ended {
        return Err(Fault::new(format!("the item {index} of the log {name:?} cannot be read: {reason}")));
    }
    if !rows.is_empty() {
        report.table(&["INDEX", "BYTES", "ITEM"], rows);
    }
    report.line(Cell::from(items.info.to_string()).faint());
    Ok(report)
}

pub(crate) fn tables(place: &dyn Backend) -> Result<Report, Fault> {
    let store = place.store().ok_or_else(|| needs_files("tables"))?;
    let (names, mut report) = (store.tables()?, Report::default());
    if names.is_empty() {
        report.line("No table has a row.");
    } else {
        report.table(&["TABLE"], names.iter().map(|name| vec![name.as_str().into()]).collect());
    }
    names.iter().for_each(|name| report.record(json!({ "type": "table", "name": name })));
    Ok(report)
}

pub(crate) fn table(place: &dyn Backend, name: &str, prefix: Option<&str>, most: usize) -> Result<Report, Fault> {
    let store = place.store().ok_or_else(|| needs_files("the rows of a table"))?;
    let prefix = bytes_of(prefix.unwrap_or_default()).ok_or_else(|| {
        Fault::new("the prefix begins with 0x, and has no even number of hexadecimal digits behind it")
    })?;
    let table = open_table(store, name)?;
    let (mut report, mut rows, mut has_more) = (Report::default(), Vec::new(), false);
    for row in table.prefix(&prefix) {
        let (key, value) = row?;
        if rows.len() == most {
            has_more = true;
            break;
        }
        let counter = <[u8; 8]>::try_from(&value[..]).ok().map(i64::from_be_bytes);
        let mut shown = cut(&readable(&value), VALUE);
        if let Some(counter) = counter.filter(|_| shown.starts_with("0x")) {
            shown += &format!("  (as a counter: {counter})");
        }
        rows.push(vec![readable(&key).into(), Cell::number(value.len() as u64), shown.into()]);
        report.record(json!({
            "type": "row",
            "table": name,
            "key": std::str::from_utf8(&key).ok(),
            "key_hex": hex(&key),
            "value": std::str::from_utf8(&value).ok(),
            "value_hex": hex(&value),
            "counter": counter,
        }));
    }
    if rows.is_empty() {
        report.line("No row has such a key.");
    } else {
        let shown = count(rows.len() as u64, "row");
        report.table(&["KEY", "BYTES", "VALUE"], rows);
        if has_more {
            report.line(Cell::from(format!("{shown}, and there are more: --limit 0 shows all")).faint());
        }
    }
    Ok(report)
}

fn open_table(store: &Store, name: &str) -> Result<Table, Fault> {
    let known = store.tables()?;
    if known.iter().any(|known| known == name) {
        return Ok(store.table(name)?);
    }
    Err(Fault::unknown("table", name, &known))
}
