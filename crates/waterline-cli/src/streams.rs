//! Looks at the consumers: their progress, their parked jobs, and their moves.

use crate::backend::{self, Backend};
use crate::content::{LOGS, log_record, log_rows};
use crate::error::Fault;
use crate::format::{At, count, cut, length, number, rate};
use crate::print::{Cell, Report, record};
use crate::rows::{Consumer, Halt, Live, Move, ParkedRow, Retry, Verdict, owned};
use serde_json::Value;
use std::time::Duration;

/// The longest error in a table.
const ERROR: usize = 100;

/// Lists the consumers and the logs.
pub(crate) fn list(place: &dyn Backend) -> Result<Report, Fault> {
    let (consumers, logs, now) = (place.consumers()?, place.logs()?, At::now());
    let mut report = Report::default();
    if consumers.is_empty() {
        report.line("There is no consumer: none has saved anything.");
    } else if place.has_processes() {
        let rows = consumers.iter().map(live_row).collect();
        report.table(&["CONSUMER", "PROCESSED", "HEAD", "LAG", "JOBS/S", "LEFT", "PARKED", "STATE"], rows);
    } else {
        let rows = consumers.iter().map(|consumer| row(consumer, now)).collect();
        report.table(&["CONSUMER", "PROCESSED", "NEXT", "DONE AHEAD", "PARKED", "MOVED", "STATE"], rows);
    }
    if !logs.is_empty() {
        report.line("");
        report.table(LOGS, log_rows(&logs));
    }
    consumers.iter().for_each(|consumer| report.record(consumer_record(consumer)));
    logs.iter().for_each(|log| report.record(log_record(log)));
    Ok(report)
}

/// Shows one consumer, or one log if there is no consumer of that name.
pub(crate) fn show(place: &dyn Backend, name: &str) -> Result<Report, Fault> {
    let (mut report, now) = (Report::default(), At::now());
    let Some(consumer) = place.consumer(name)? else {
        let logs = place.logs()?;
        let Some(log) = logs.iter().find(|log| log.name == name) else {
            let consumers = place.consumers()?.into_iter().map(|consumer| consumer.name);
            let known: Vec<_> = consumers.chain(logs.into_iter().map(|log| log.name)).collect();
            return Err(Fault::unknown("consumer or log", name, &known));
        };
        report.table(LOGS, log_rows(std::slice::from_ref(log)));
        if log.parked > 0 {
            report.line(format!(
                "Parked jobs alone keep {} below the first one: redrive or discard them.",
                count(log.parked, "item")
            ));
        }
        report.record(log_record(log));
        return Ok(report);
    };
    report.record(consumer_record(&consumer));
    if let Some(live) = &consumer.live {
        live_lines(&mut report, &consumer, live);
    }
    if let Some(reason) = &consumer.unreadable {
        report.line(Cell::from(reason.as_str()).bad());
        return Ok(report);
    }
    let (parked, moves) = (place.parked(name)?, place.history(name)?);
    let halt = consumer.last_halt.as_ref();
    report.pairs(vec![
        ("consumer", name.into()),
        ("processed", index(consumer.last_processed, "nothing is saved")),
        ("next", index(consumer.next, "unknown: nothing is done")),
        ("done ahead", count(consumer.done_ahead, "job").into()),
        ("parked", if parked.is_empty() { "no job".into() } else { Cell::from(count(consumer.parked, "job")).bad() }),
        ("moved", consumer.moved_at.map_or_else(|| "unknown".into(), |at| at.moment(now).into())),
        ("life", life(&consumer).into()),
        ("last halt", halt.map_or_else(|| "none".into(), |halt| halt_cell(&consumer, halt, now))),
        ("moves by hand", count(moves.len() as u64, "move").into()),
        ("owns", if consumer.owns.is_empty() { "nothing is said".to_owned() } else { owned(&consumer.owns) }.into()),
    ]);
    if !parked.is_empty() {
        report.line("");
        report.table(PARKED, parked.iter().map(|job| parked_row(job, now)).collect());
    }
    Ok(report)
}

/// Adds what only the process knows.
fn live_lines(report: &mut Report, consumer: &Consumer, live: &Live) {
    for advice in consumer.all_advice() {
        let sentence = Cell::from(advice.sentence.as_str());
        report.line(if advice.needs_you() { sentence.bad() } else { sentence });
        let help = [&advice.help, advice.command.as_deref().unwrap_or_default()];
        help.into_iter().filter(|help| !help.is_empty()).for_each(|help| report.line(format!("    {help}")));
    }
    report.pairs(vec![
        ("state", live.state.as_str().into()),
        ("head", index(live.head, "unknown")),
        ("lag", index(live.lag, "unknown")),
        ("in flight", count(live.processing, "job").into()),
        ("speed", live.jobs_per_second.map_or_else(|| "unknown".into(), |speed| format!("{}/s", rate(speed)).into())),
    ]);
    if !live.retrying.is_empty() {
        report.table(&["RETRIES", "ATTEMPT", "DUE", "ERROR"], live.retrying.iter().map(retry_row).collect());
    }
}

fn retry_row(retry: &Retry) -> Vec<Cell> {
    vec![
        Cell::number(retry.index),
        Cell::number(retry.attempt),
        format!("in {}", length(Duration::from_millis(retry.retry_in))).into(),
        cut(&retry.error, ERROR).into(),
    ]
}

fn index(index: Option<u64>, none: &str) -> Cell {
    index.map_or_else(|| none.into(), |index| number(index).into())
}

fn life(consumer: &Consumer) -> &'static str {
    match (consumer.life_open, &consumer.live) {
        (Some(true), None) => "open: a consumer has the name, or its process died; only the process knows which",
        (Some(true), Some(_)) => "open",
        (Some(false), _) => "ended",
        (None, _) => "unknown: it counts no crashes, so none is noted",
    }
}

fn halt_cell(consumer: &Consumer, halt: &Halt, now: At) -> Cell {
    let text = format!("at job {}, {}: {}", halt.index, halt.at.moment(now), halt.error);
    if consumer.standing_halt().is_some() {
        Cell::from(text).bad()
    } else {
        Cell::from(text + " (passed since)").faint()
    }
}

fn row(consumer: &Consumer, now: At) -> Vec<Cell> {
    let state = if let Some(reason) = &consumer.unreadable {
        Cell::from(format!("damaged: {}", cut(reason, ERROR))).bad()
    } else if let Some(halt) = consumer.standing_halt() {
        Cell::from(format!("halted at {}: {}", halt.index, cut(&halt.error, ERROR))).bad()
    } else {
        match consumer.life_open {
            Some(true) => Cell::from("life open").good(),
            Some(false) => Cell::from("ended").faint(),
            None => Cell::from("").faint(),
        }
    };
    vec![
        consumer.name.as_str().into(),
        Cell::maybe(consumer.last_processed),
        Cell::maybe(consumer.next),
        Cell::number(consumer.done_ahead),
        Cell::bad_number(consumer.parked),
        consumer.moved_at.map_or_else(|| "-".into(), |at| at.age(now).into()),
        state,
    ]
}

/// Returns the row of a consumer on a page, or of one that the page does not show.
fn live_row(consumer: &Consumer) -> Vec<Cell> {
    let live = consumer.live.as_ref();
    let state = live.map_or_else(
        || Cell::from("not on the page").faint(),
        |_| {
            let sentence = Cell::from(cut(&consumer.advice.sentence, ERROR));
            match consumer.advice.verdict {
                Verdict::GoesWell => sentence.good(),
                Verdict::NeedsYou => sentence.bad(),
                Verdict::Waits => sentence,
            }
        },
    );
    let left = live.and_then(|live| live.seconds_left).and_then(|left| Duration::try_from_secs_f64(left).ok());
    vec![
        consumer.name.as_str().into(),
        Cell::maybe(consumer.last_processed),
        Cell::maybe(live.and_then(|live| live.head)),
        Cell::maybe(live.and_then(|live| live.lag)),
        live.and_then(|live| live.jobs_per_second).map_or_else(|| "-".into(), |speed| rate(speed).into()),
        left.map_or_else(|| "-".into(), |left| length(left).into()),
        Cell::bad_number(consumer.parked),
        state,
    ]
}

fn consumer_record(consumer: &Consumer) -> Value {
    let halted = consumer.standing_halt().is_some().into();
    record("consumer", consumer, [("halted", halted)])
}

const PARKED: &[&str] = &["INDEX", "ATTEMPTS", "CRASHES", "PARKED", "REDRIVE", "ERROR"];

pub(crate) fn parked(place: &dyn Backend, name: &str) -> Result<Report, Fault> {
    backend::consumer(place, name)?;
    let (jobs, now) = (place.parked(name)?, At::now());
    let mut report = Report::default();
    if jobs.is_empty() {
        report.line(format!("No job of {name:?} is parked."));
    } else {
        report.table(PARKED, jobs.iter().map(|job| parked_row(job, now)).collect());
    }
    jobs.iter().for_each(|job| report.record(record("parked", job, [("consumer", name.into())])));
    Ok(report)
}

fn parked_row(job: &ParkedRow, now: At) -> Vec<Cell> {
    vec![
        Cell::number(job.index),
        Cell::number(job.attempts),
        Cell::bad_number(job.crashes),
        job.parked_at.age(now).into(),
        if job.redrive_wanted { "wanted" } else { "-" }.into(),
        cut(&job.error, ERROR).into(),
    ]
}

/// Lists the seeks and skips of a consumer.
pub(crate) fn history(place: &dyn Backend, name: &str) -> Result<Report, Fault> {
    backend::consumer(place, name)?;
    let (moves, now) = (place.history(name)?, At::now());
    let mut report = Report::default();
    if moves.is_empty() {
        report.line(format!("Nobody has moved {name:?} by hand."));
    } else {
        report.table(&["TIME", "MOVE", "FROM", "TO", "REASON"], moves.iter().map(|made| move_row(made, now)).collect());
    }
    moves.iter().for_each(|made| report.record(record("move", made, [("consumer", name.into())])));
    Ok(report)
}

fn move_row(made: &Move, now: At) -> Vec<Cell> {
    vec![
        made.at.moment(now).into(),
        made.kind.as_str().into(),
        Cell::maybe(made.from),
        Cell::number(made.to),
        made.reason.as_str().into(),
    ]
}
