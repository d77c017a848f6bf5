//! Looks at the consumers: their progress, their parked jobs, and their moves.

use crate::content::{log_record, log_rows};
use crate::fault::Fault;
use crate::print::{Cell, Report};
use crate::words::{age, count, cut, millis, moment};
use serde_json::{Value, json};
use std::time::SystemTime;
use waterline::{ConsumerInfo, LastHalt, Move, MoveKind, Parked, Store};

/// The longest error in a table.
const ERROR: usize = 100;

/// Lists the consumers and the logs.
pub(crate) fn list(store: &Store) -> Result<Report, Fault> {
    let (consumers, logs, now) = (store.consumers()?, store.logs()?, SystemTime::now());
    let mut report = Report::default();
    if consumers.is_empty() {
        report.line("No consumer has saved anything.");
    } else {
        let rows = consumers.iter().map(|info| consumer_row(info, now)).collect();
        report.table(&["CONSUMER", "PROCESSED", "NEXT", "DONE AHEAD", "PARKED", "MOVED", "STATE"], rows);
    }
    if !logs.is_empty() {
        report.line("");
        report.table(&["LOG", "FIRST", "HEAD", "ITEMS", "CODEC"], log_rows(&logs));
    }
    consumers.iter().for_each(|info| report.record(consumer_record(info)));
    logs.iter().for_each(|log| report.record(log_record(log)));
    Ok(report)
}

/// Shows one consumer, or one log if there is no consumer of that name.
pub(crate) fn show(store: &Store, name: &str) -> Result<Report, Fault> {
    let (consumers, logs, now) = (store.consumers()?, store.logs()?, SystemTime::now());
    let mut report = Report::default();
    let Some(info) = consumers.iter().find(|info| info.name == name) else {
        let Some(log) = logs.iter().find(|log| log.name == name) else {
            let consumers = consumers.into_iter().map(|info| info.name);
            let known: Vec<_> = consumers.chain(logs.into_iter().map(|log| log.name)).collect();
            return Err(Fault::unknown("consumer or log", name, &known));
        };
        report.table(&["LOG", "FIRST", "HEAD", "ITEMS", "CODEC"], log_rows(std::slice::from_ref(log)));
        report.record(log_record(log));
        return Ok(report);
    };
    report.record(consumer_record(info));
    if let Some(reason) = &info.unreadable {
        report.line(Cell::from(reason.as_str()).bad());
        return Ok(report);
    }
    let (parked, moves) = (store.parked(name)?, store.progress(name).history()?);
    report.pairs(vec![
        ("consumer", name.into()),
        ("processed", index(info.last_processed, "nothing is saved")),
        ("next", index(info.next, "unknown: nothing is done")),
        ("done ahead", count(info.done_ahead, "job").into()),
        ("parked", if parked.is_empty() { "no job".into() } else { Cell::from(count(info.parked, "job")).bad() }),
        ("moved", info.moved_at.map_or_else(|| "unknown".into(), |at| moment(at, now).into())),
        ("life", life(info).into()),
        ("last halt", info.last_halt.as_ref().map_or_else(|| "none".into(), |halt| halt_cell(info, halt, now))),
        ("moves by hand", count(moves.len() as u64, "move").into()),
    ]);
    if !parked.is_empty() {
        report.line("");
        report.table(PARKED, parked.iter().map(|job| parked_row(job, now)).collect());
    }
    Ok(report)
}

fn index(index: Option<u64>, none: &str) -> Cell {
    index.map_or_else(|| none.into(), |index| crate::words::number(index).into())
}

fn life(info: &ConsumerInfo) -> &'static str {
    match info.life_open {
        Some(true) => "open: a consumer has the name, or its process died; only the process knows which",
        Some(false) => "ended",
        None => "unknown: it counts no crashes, so none is noted",
    }
}

fn halt_cell(info: &ConsumerInfo, halt: &LastHalt, now: SystemTime) -> Cell {
    let text = format!("at job {}, {}: {}", halt.index, moment(halt.at, now), halt.error);
    if standing_halt(info).is_some() { Cell::from(text).bad() } else { Cell::from(text + " (passed since)").faint() }
}

/// Returns the last halt, if the job at which it halted is not done.
pub(crate) fn standing_halt(info: &ConsumerInfo) -> Option<&LastHalt> {
    info.last_halt.as_ref().filter(|halt| info.next.is_none_or(|next| next <= halt.index))
}

fn consumer_row(info: &ConsumerInfo, now: SystemTime) -> Vec<Cell> {
    let state = if let Some(reason) = &info.unreadable {
        Cell::from(format!("damaged: {}", cut(reason, ERROR))).bad()
    } else if let Some(halt) = standing_halt(info) {
        Cell::from(format!("halted at {}: {}", halt.index, cut(&halt.error, ERROR))).bad()
    } else {
        match info.life_open {
            Some(true) => Cell::from("life open").good(),
            Some(false) => Cell::from("ended").faint(),
            None => Cell::from("").faint(),
        }
    };
    vec![
        info.name.as_str().into(),
        Cell::maybe(info.last_processed),
        Cell::maybe(info.next),
        Cell::number(info.done_ahead),
        Cell::bad_number(info.parked),
        info.moved_at.map_or_else(|| "-".into(), |at| age(at, now).into()),
        state,
    ]
}

fn consumer_record(info: &ConsumerInfo) -> Value {
    let halt = info.last_halt.as_ref();
    json!({
        "type": "consumer",
        "name": info.name,
        "last_processed": info.last_processed,
        "next": info.next,
        "done_ahead": info.done_ahead,
        "parked": info.parked,
        "moved_at": info.moved_at.map(millis),
        "life_open": info.life_open,
        "last_halt": halt.map(|halt| json!({ "index": halt.index, "error": halt.error, "at": millis(halt.at) })),
        "halted": standing_halt(info).is_some(),
        "unreadable": info.unreadable,
    })
}

/// Returns the consumer of this name, or the fault that names the nearest one.
pub(crate) fn consumer(store: &Store, name: &str) -> Result<ConsumerInfo, Fault> {
    let consumers = store.consumers()?;
    if let Some(info) = consumers.iter().find(|info| info.name == name) {
        return Ok(info.clone());
    }
    let known: Vec<_> = consumers.into_iter().map(|info| info.name).collect();
    Err(Fault::unknown("consumer", name, &known))
}

const PARKED: &[&str] = &["INDEX", "ATTEMPTS", "CRASHES", "PARKED", "REDRIVE", "ERROR"];

/// Lists the parked jobs of a consumer.
pub(crate) fn parked(store: &Store, name: &str) -> Result<Report, Fault> {
    consumer(store, name)?;
    let (jobs, now) = (store.parked(name)?, SystemTime::now());
    let mut report = Report::default();
    if jobs.is_empty() {
        report.line(format!("No job of {name:?} is parked."));
    } else {
        report.table(PARKED, jobs.iter().map(|job| parked_row(job, now)).collect());
    }
    for job in &jobs {
        report.record(json!({
            "type": "parked",
            "consumer": name,
            "index": job.index,
            "attempts": job.attempts,
            "crashes": job.crashes,
            "error": job.error,
            "first_failed_at": millis(job.first_failed_at),
            "last_failed_at": millis(job.last_failed_at),
            "parked_at": millis(job.parked_at),
            "redrive_wanted": job.redrive_wanted,
        }));
    }
    Ok(report)
}

fn parked_row(job: &Parked, now: SystemTime) -> Vec<Cell> {
    vec![
        Cell::number(job.index),
        Cell::number(job.attempts.into()),
        Cell::bad_number(job.crashes.into()),
        age(job.parked_at, now).into(),
        if job.redrive_wanted { "wanted" } else { "-" }.into(),
        cut(&job.error, ERROR).into(),
    ]
}

/// Lists the moves of a consumer that were made on purpose.
pub(crate) fn history(store: &Store, name: &str) -> Result<Report, Fault> {
    consumer(store, name)?;
    let (moves, now) = (store.progress(name).history()?, SystemTime::now());
    let mut report = Report::default();
    if moves.is_empty() {
        report.line(format!("Nobody has moved {name:?} by hand."));
    } else {
        report.table(&["TIME", "MOVE", "FROM", "TO", "REASON"], moves.iter().map(|made| move_row(made, now)).collect());
    }
    for made in &moves {
        report.record(json!({
            "type": "move",
            "consumer": name,
            "at": millis(made.at),
            "move": kind(made.kind),
            "from": made.from,
            "to": made.to,
            "reason": made.reason,
        }));
    }
    Ok(report)
}

fn move_row(made: &Move, now: SystemTime) -> Vec<Cell> {
    vec![
        moment(made.at, now).into(),
        kind(made.kind).into(),
        Cell::maybe(made.from),
        Cell::number(made.to),
        made.reason.as_str().into(),
    ]
}

fn kind(kind: MoveKind) -> &'static str {
    match kind {
        MoveKind::Seek => "seek",
        MoveKind::Skip => "skip",
        _ => "move",
    }
}
