//! Looks at the queues: their counts, their jobs, and their schedules.

use crate::args::State;
use crate::fault::Fault;
use crate::print::{Cell, Report};
use crate::words::{age, count, cut, hex, millis, moment, number};
use serde_json::{Value, json};
use std::time::SystemTime;
use waterline::Store;
use waterline::queue::{Counts, JobInfo, JobState, PeriodicInfo, Queue, QueueOptions, QueueStatus, Waits};

/// The longest text in a table.
const TEXT: usize = 100;

/// The most of a payload that is shown.
const PAYLOAD: usize = 64 * 1024;

/// The jobs that are read at once.
const CHUNK: usize = 500;

/// Opens a queue to look at it. Only a look has options here: they change nothing of it.
pub(crate) fn look(store: &Store, name: &str) -> Result<Queue, Fault> {
    let known = Queue::names(store)?;
    if known.iter().any(|known| known == name) {
        return Ok(Queue::open(store, name, QueueOptions::default())?);
    }
    Err(Fault::unknown("queue", name, &known))
}

/// Lists the queues.
pub(crate) fn queues(store: &Store) -> Result<Report, Fault> {
    let (mut report, mut rows) = (Report::default(), Vec::new());
    for name in Queue::names(store)? {
        let status = look(store, &name)?.status()?;
        let Counts { scheduled, ready, running, finished, dead, waiting, damaged, .. } = status.counts;
        rows.push(vec![
            name.as_str().into(),
            Cell::number(ready),
            Cell::number(running),
            Cell::number(scheduled),
            Cell::number(waiting),
            Cell::bad_number(dead),
            Cell::number(finished),
            Cell::bad_number(damaged),
            sentence(&status).into(),
        ]);
        report.record(queue_record(&status));
    }
    if rows.is_empty() {
        report.line("There is no queue.");
    } else {
        let head = ["QUEUE", "READY", "RUNNING", "SCHEDULED", "WAITING", "DEAD", "FINISHED", "DAMAGED", "STATE"];
        report.table(&head, rows);
    }
    Ok(report)
}

fn queue_record(status: &QueueStatus) -> Value {
    let oldest = status.oldest_ready.as_ref();
    json!({
        "type": "queue",
        "name": status.queue,
        "counts": status.counts,
        "oldest_ready": oldest.map(|(id, age)| json!({ "id": id, "age_ms": age.as_millis() as u64 })),
        "paused": matches!(status.waits, Waits::Paused { .. }),
        "sentence": sentence(status),
    })
}

/// Returns the sentence that says why no job starts, as far as the files prove it.
pub(crate) fn sentence(status: &QueueStatus) -> String {
    match &status.waits {
        Waits::NoWorker => {
            format!("the queue {:?} has jobs that are due; only its process knows if a runner runs", status.queue)
        }
        Waits::No => format!("the queue {:?} has jobs that run, and only its process knows more", status.queue),
        _ => status.sentence(),
    }
}

/// Calls this with each job of a queue in this state, until it returns false.
pub(crate) fn each(queue: &Queue, state: JobState, mut job: impl FnMut(&JobInfo) -> bool) -> Result<(), Fault> {
    let mut cursor = None;
    loop {
        let page = queue.page(state, cursor.as_deref(), CHUNK)?;
        if !page.jobs.iter().all(&mut job) {
            return Ok(());
        }
        cursor = page.next;
        if cursor.is_none() {
            return Ok(());
        }
    }
}

/// Lists jobs of a queue.
pub(crate) fn jobs(
    store: &Store,
    name: &str,
    state: Option<State>,
    kind: Option<&str>,
    most: usize,
) -> Result<Report, Fault> {
    let (queue, now) = (look(store, name)?, SystemTime::now());
    let (mut report, mut rows, mut has_more) = (Report::default(), Vec::new(), false);
    let states = state.map_or_else(|| State::ALL.to_vec(), |state| vec![state]);
    for state in states {
        each(&queue, state.of_job(), |job| {
            if kind.is_some_and(|kind| kind != job.kind) {
                return true;
            }
            if rows.len() == most {
                has_more = true;
                return false;
            }
            rows.push(job_row(job, now));
            report.record(job_record(name, job));
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

fn job_row(job: &JobInfo, now: SystemTime) -> Vec<Cell> {
    let state = Cell::from(job.state.to_string());
    let is_bad = matches!(job.state, JobState::Dead | JobState::Damaged);
    let next = match (job.state, job.run_at) {
        (JobState::Scheduled, Some(at)) => age(at, now),
        (JobState::Waiting, _) => format!("after {}", count(job.waits_for.into(), "job")),
        (JobState::Ready, _) => job.held_by.as_ref().map_or_else(|| "-".to_owned(), |limit| format!("held by {limit}")),
        _ => "-".to_owned(),
    };
    let error = job.damaged.as_ref().or(job.error.as_ref());
    vec![
        job.id.as_str().into(),
        job.kind.as_str().into(),
        if is_bad { state.bad() } else { state },
        age(job.since, now).into(),
        Cell::number(job.failures.into()),
        Cell::bad_number(job.crashes.into()),
        next.into(),
        error.map_or_else(|| "".into(), |error| cut(error, TEXT).into()),
    ]
}

/// Returns a job as the library writes it, with the name of its queue.
fn job_record(queue: &str, job: &JobInfo) -> Value {
    let mut record = serde_json::to_value(job).unwrap_or_else(|_| json!({ "id": job.id }));
    record["type"] = "job".into();
    record["queue"] = queue.into();
    record
}

/// Shows one job of a queue.
pub(crate) fn job(store: &Store, name: &str, id: &str) -> Result<Report, Fault> {
    let (queue, now) = (look(store, name)?, SystemTime::now());
    let Some(job) = queue.get(id)? else {
        return Err(Fault::new(format!(
            "the queue {name:?} has no job {id:?}: it was never pushed, was removed, or ended longer ago than it is kept"
        )));
    };
    let related = queue.related(id, CHUNK)?;
    let mut report = Report::default();
    let time = |time: Option<SystemTime>| time.map(|time| moment(time, now));
    let mut pairs: Vec<(&'static str, Cell)> = vec![
        ("job", job.id.as_str().into()),
        ("queue", name.into()),
        ("kind", job.kind.as_str().into()),
        ("state", format!("{}, since {}", job.state, moment(job.since, now)).into()),
        ("pushed", moment(job.pushed_at, now).into()),
        ("failures", number(job.failures.into()).into()),
        ("crashes", number(job.crashes.into()).into()),
    ];
    let more = [
        ("runs from", time(job.run_at)),
        ("expires", time(job.expires_at)),
        ("kept until", time(job.kept_until)),
        ("key", job.key.clone()),
        ("held by", job.held_by.as_ref().map(ToString::to_string)),
        ("waits for", some_of(&related.waits_for)),
        ("awaited by", some_of(&related.awaited_by)),
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
    report.text(&payload(&job.payload));
    let mut record = job_record(name, &job);
    record["waits_for_ids"] = related.waits_for.into();
    record["awaited_by_ids"] = related.awaited_by.into();
    report.record(record);
    Ok(report)
}

fn some_of(ids: &[String]) -> Option<String> {
    (!ids.is_empty()).then(|| ids.join(", "))
}

/// Returns a payload as pretty JSON, or in hexadecimal digits.
fn payload(bytes: &[u8]) -> String {
    let pretty = serde_json::from_slice::<Value>(bytes).and_then(|value| serde_json::to_string_pretty(&value));
    let text = pretty.unwrap_or_else(|_| hex(bytes));
    if text.len() <= PAYLOAD { text } else { cut(&text, PAYLOAD) + "\n(cut)" }
}

/// Lists the periodic jobs of a queue.
pub(crate) fn schedules(store: &Store, name: &str) -> Result<Report, Fault> {
    let (queue, now) = (look(store, name)?, SystemTime::now());
    let (periodics, mut report) = (queue.periodics()?, Report::default());
    if periodics.is_empty() {
        report.line(format!("The queue {name:?} has no periodic job."));
        return Ok(report);
    }
    let rows = periodics.iter().map(|periodic| periodic_row(periodic, now)).collect();
    report.table(&["PERIODIC", "LAST TICK", "LAST RUN", "SKIPPED", "DAMAGE"], rows);
    report.line(Cell::from("Only its process knows the schedule and the next tick of each.").faint());
    for periodic in &periodics {
        report.record(json!({
            "type": "periodic",
            "queue": name,
            "name": periodic.name,
            "last_tick": millis(periodic.last_tick),
            "last_run": periodic.last_run,
            "skipped": periodic.skipped,
            "damaged": periodic.damaged,
        }));
    }
    Ok(report)
}

fn periodic_row(periodic: &PeriodicInfo, now: SystemTime) -> Vec<Cell> {
    vec![
        periodic.name.as_str().into(),
        if periodic.damaged.is_some() { "-".into() } else { moment(periodic.last_tick, now).into() },
        periodic.last_run.clone().unwrap_or_else(|| "-".to_owned()).into(),
        Cell::number(periodic.skipped),
        periodic.damaged.as_deref().map_or_else(|| "".into(), |reason| Cell::from(cut(reason, TEXT)).bad()),
    ]
}
