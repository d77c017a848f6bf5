//! Looks at the queues: their counts, their jobs, and their schedules.

use crate::args::State;
use crate::backend::{Backend, check_queue, each_job};
use crate::error::Fault;
use crate::format::{At, count, cut, number};
use crate::print::{Cell, Report, record};
use crate::rows::{Counts, Job, Periodic, Queue};
use serde_json::{Value, json};

/// The longest text in a table.
const TEXT: usize = 100;

pub(crate) fn queues(place: &dyn Backend) -> Result<Report, Fault> {
    let (mut report, mut rows) = (Report::default(), Vec::new());
    for queue in place.queues()? {
        rows.push(row(&queue));
        report.record(record("queue", &queue, []));
    }
    if rows.is_empty() {
        report.line("There is no queue.");
    } else {
        let head = ["QUEUE", "READY", "RUNNING", "SCHEDULED", "WAITING", "DEAD", "FINISHED", "DAMAGED", "STATE"];
        report.table(&head, rows);
    }
    Ok(report)
}

fn row(queue: &Queue) -> Vec<Cell> {
    let Counts { ready, running, scheduled, waiting, dead, finished, damaged } = queue.counts;
    let sentence = Cell::from(queue.advice.sentence.as_str());
    vec![
        queue.name.as_str().into(),
        Cell::number(ready),
        Cell::number(running),
        Cell::number(scheduled),
        Cell::number(waiting),
        Cell::bad_number(dead),
        Cell::number(finished),
        Cell::bad_number(damaged),
        if queue.needs_you() { sentence.bad() } else { sentence },
    ]
}

pub(crate) fn jobs(
    place: &dyn Backend,
    name: &str,
    state: Option<State>,
    kind: Option<&str>,
    most: usize,
) -> Result<Report, Fault> {
    check_queue(place, name)?;
    let now = At::now();
    let (mut report, mut rows, mut has_more) = (Report::default(), Vec::new(), false);
    let states = state.map_or_else(|| State::ALL.to_vec(), |state| vec![state]);
    for state in states {
        each_job(place, name, state, kind, |job| {
            if rows.len() == most {
                has_more = true;
                return false;
            }
            rows.push(job_row(&job, now));
            report.record(record("job", &job, [("queue", name.into())]));
            true
        })?;
    }
    if rows.is_empty() {
        report.line(format!("The queue {name:?} has no such job."));
        return Ok(report);
    }
    let shown = count(rows.len() as u64, "job");
    report.table(&["ID", "KIND", "STATE", "SINCE", "FAILURES", "CRASHES", "NEXT", "ERROR"], rows);
    if has_more {
        report.line(Cell::from(format!("{shown}, and there are more: --limit 0 shows all")).faint());
    }
    Ok(report)
}

fn job_row(job: &Job, now: At) -> Vec<Cell> {
    let state = Cell::from(job.state.as_str());
    let is_bad = matches!(job.state.as_str(), "dead" | "damaged");
    let next = match (job.state.as_str(), job.run_at) {
        ("scheduled", Some(at)) => at.age(now),
        ("waiting", _) => format!("after {}", count(job.waits_for, "job")),
        ("ready", _) => job.held_by.as_ref().map_or_else(|| "-".to_owned(), |limit| format!("held by {limit}")),
        _ => "-".to_owned(),
    };
    let error = job.damaged.as_ref().or(job.error.as_ref());
    vec![
        job.id.as_str().into(),
        job.kind.as_str().into(),
        if is_bad { state.bad() } else { state },
        job.since.age(now).into(),
        Cell::number(job.failures),
        Cell::bad_number(job.crashes),
        next.into(),
        error.map_or_else(|| "".into(), |error| cut(error, TEXT).into()),
    ]
}

pub(crate) fn job(place: &dyn Backend, name: &str, id: &str) -> Result<Report, Fault> {
    check_queue(place, name)?;
    let now = At::now();
    let whole = place.job(name, id)?.ok_or_else(|| Fault::no_job(name, id))?;
    let job = &whole.job;
    let mut report = Report::default();
    let time = |time: Option<At>| time.map(|time| time.moment(now));
    let mut pairs: Vec<(&'static str, Cell)> = vec![
        ("job", job.id.as_str().into()),
        ("queue", name.into()),
        ("kind", job.kind.as_str().into()),
        ("state", format!("{}, since {}", job.state, job.since.moment(now)).into()),
        ("pushed", job.pushed_at.moment(now).into()),
        ("failures", number(job.failures).into()),
        ("crashes", number(job.crashes).into()),
    ];
    let more = [
        ("runs from", time(job.run_at)),
        ("expires", time(job.expires_at)),
        ("kept until", time(job.kept_until)),
        ("key", job.key.clone()),
        ("held by", job.held_by.clone()),
        ("waits for", some_of(&whole.waits_for)),
        ("awaited by", some_of(&whole.awaited_by)),
        ("error", job.error.clone()),
        ("data", job.data.as_ref().map(Value::to_string)),
        ("progress", job.progress.as_ref().map(|shown| format!("{:.0} % {}", 100.0 * shown.fraction, shown.note))),
    ];
    pairs.extend(more.into_iter().filter_map(|(name, value)| Some((name, value?.into()))));
    pairs.extend(job.runs_alone.then(|| ("runs alone", "yes: its process died more than once while it ran".into())));
    report.pairs(pairs);
    for (key, value) in &job.meta {
        report.line(format!("meta {key}: {value}"));
    }
    report.line(Cell::from("payload").faint());
    report.text(&whole.payload);
    let related = [("waits_for_ids", json!(whole.waits_for)), ("awaited_by_ids", json!(whole.awaited_by))];
    report.record(record("job", job, [("queue", name.into())].into_iter().chain(related)));
    Ok(report)
}

fn some_of(ids: &[String]) -> Option<String> {
    (!ids.is_empty()).then(|| ids.join(", "))
}

pub(crate) fn schedules(place: &dyn Backend, name: &str) -> Result<Report, Fault> {
    check_queue(place, name)?;
    let (periodics, now, mut report) = (place.periodics(name)?, At::now(), Report::default());
    if periodics.is_empty() {
        report.line(format!("The queue {name:?} has no periodic job."));
        return Ok(report);
    }
    let rows = periodics.iter().map(|periodic| periodic_row(periodic, now)).collect();
    report.table(&["PERIODIC", "SCHEDULE", "LAST TICK", "NEXT TICK", "LAST RUN", "SKIPPED", "DAMAGE"], rows);
    // Databases and pages know the schedules.
    if place.store().is_some() {
        report.line(Cell::from("Only its process knows the schedule and the next tick of each.").faint());
    }
    periodics.iter().for_each(|periodic| report.record(record("periodic", periodic, [("queue", name.into())])));
    Ok(report)
}

fn periodic_row(periodic: &Periodic, now: At) -> Vec<Cell> {
    let text = |text: Option<&str>| Cell::from(text.unwrap_or("-"));
    vec![
        periodic.name.as_str().into(),
        text(periodic.schedule.as_deref()),
        text(periodic.last_tick.filter(|_| periodic.damaged.is_none()).map(|at| at.moment(now)).as_deref()),
        text(periodic.next_tick.map(|at| at.age(now)).as_deref()),
        text(periodic.last_run.as_deref()),
        Cell::number(periodic.skipped),
        periodic.damaged.as_deref().map_or_else(|| "".into(), |reason| Cell::from(cut(reason, TEXT)).bad()),
    ]
}
