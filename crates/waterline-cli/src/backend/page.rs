//! The page of an application: it shows what the process knows, and makes the changes itself.

use super::handles::is_over;
use super::http::{Client, Refused};
use super::{Backend, Holders, Made, NotDone, Wanted, discard_each, redrive_each};
use crate::advice;
use crate::args::{self, Change, QueueChange};
use crate::error::Fault;
use crate::format::At;
use crate::rows::{
    self, Consumer, Counts, Job, Jobs, Live, Log, Move, OldestReady, ParkedRow, Periodic, Whole, Worker, read,
};
use serde_json::{Value, json};
use ureq::http::StatusCode;

/// Rows per request: the most that a page returns.
const CHUNK: &str = "500";

pub(crate) struct Page {
    client: Client,
}

impl Page {
    /// Reads the address and the variables. Whether there is a page shows at the first request.
    pub(crate) fn new(url: &str) -> Result<Self, Fault> {
        Ok(Self { client: Client::new(url)? })
    }

    fn overview(&self) -> Result<Value, Fault> {
        let overview = self.client.get("overview", &[])?;
        if overview["streams"].is_array() && overview["queues"].is_array() {
            return Ok(overview);
        }
        Err(Fault::new(format!(
            "there is no page of waterline-ui at {}: its answer has another form",
            self.client.base
        )))
    }

    /// Returns all rows of a paged list of a consumer.
    fn all_of(&self, view: &str, consumer: &str, rows: &str, next: &str) -> Result<Vec<Value>, Fault> {
        match self.all(view, ("stream", consumer), rows, next) {
            Err(Refused { status: StatusCode::NOT_FOUND, .. }) if self.is_unnamed(consumer)? => Ok(Vec::new()),
            all => Ok(all?),
        }
    }

    /// Returns all rows of a paged list.
    fn all(&self, view: &str, of: (&str, &str), rows: &str, next: &str) -> Result<Vec<Value>, Refused> {
        let (mut all, mut from) = (Vec::new(), 0);
        loop {
            let begin = from.to_string();
            let mut page = self.client.get(view, &[of, (next, begin.as_str()), ("limit", CHUNK)])?;
            let Value::Array(more) = page[rows].take() else { return Err(self.odd(view).into()) };
            all.extend(more);
            let behind: Option<u64> = match &page["next"] {
                Value::Null => return Ok(all),
                Value::String(next) => next.parse().ok(),
                next => next.as_u64(),
            };
            // A list that goes backwards would never end.
            from = behind.filter(|behind| *behind > from).ok_or_else(|| self.odd(view))?;
        }
    }

    /// True if a consumer's progress has no name, so that no records of it are kept.
    fn is_unnamed(&self, consumer: &str) -> Result<bool, Fault> {
        let overview = self.overview()?;
        let mut rows = overview["streams"].as_array().into_iter().flatten();
        Ok(rows.any(|row| row["name"] == consumer && row["progress"].is_null()))
    }

    fn odd(&self, view: &str) -> Fault {
        Fault::new(format!("the page at {} answers in another form than this tool knows: {view}", self.client.base))
    }

    /// Returns the request for a change. `seen` is the state of its job when it was planned.
    fn request(change: &Change, seen: Option<&str>) -> Value {
        match change {
            Change::Redrive { name, index, .. } => json!({"action": "redrive", "stream": name, "index": index}),
            Change::Discard { name, which, .. } => {
                json!({"action": "discard", "stream": name, "index": which.index})
            }
            Change::Skip { name, index, how } => {
                json!({"action": "skip", "stream": name, "index": index, "reason": how.reason})
            }
            Change::Seek { name, next, how, .. } => {
                json!({"action": "seek", "stream": name, "index": next, "reason": how.reason})
            }
            Change::Replace { from, to, .. } => json!({"action": "replace", "stream": from, "name": to}),
            Change::Remove { name, .. } => json!({"action": "remove", "stream": name}),
            Change::Check { name, .. } => json!({"action": "check", "stream": name}),
            Change::RemoveQueue { queue, .. } => json!({"action": "remove_queue", "queue": queue}),
            Change::OfQueue(change) => Self::request_of_queue(change, seen),
        }
    }

    fn request_of_queue(change: &QueueChange, seen: Option<&str>) -> Value {
        let queue = change.queue();
        match change {
            QueueChange::Requeue { id: None, .. } => json!({"action": "requeue_dead", "queue": queue}),
            QueueChange::Requeue { id: Some(id), .. } => json!({"action": "requeue", "queue": queue, "id": id}),
            QueueChange::RunNow { id, .. } => json!({"action": "run_now", "queue": queue, "id": id}),
            QueueChange::Pause { consumer: true, .. } => json!({"action": "pause", "stream": queue}),
            QueueChange::Resume { consumer: true, .. } => json!({"action": "resume", "stream": queue}),
            QueueChange::Pause { .. } => json!({"action": "pause", "queue": queue}),
            QueueChange::Resume { .. } => json!({"action": "resume", "queue": queue}),
            QueueChange::Push { kind, payload, id, .. } => {
                json!({"action": "push", "queue": queue, "kind": kind, "payload": payload, "id": id})
            }
            QueueChange::Cancel { id, .. } => {
                // Only `remove` takes an ended job, so `cancel` keeps the error of one that died
                // since the plan.
                let action = if seen.is_some_and(is_over) { "remove" } else { "cancel" };
                json!({"action": action, "queue": queue, "id": id})
            }
        }
    }

    /// Redrives one by one, since a consumer that has ended redrives nothing itself.
    fn redrive_all(&self, name: &str) -> Result<Made, Fault> {
        let parked: Vec<_> = self.parked(name)?.iter().map(|job| job.index).collect();
        Ok(redrive_each(name, &parked, |index| self.change_parked("redrive", name, index)))
    }

    fn discard_all(&self, name: &str, which: args::Parked) -> Result<Made, Fault> {
        let parked: Vec<_> = self.parked(name)?.iter().map(|job| job.index).collect();
        Ok(discard_each(name, &parked, &which.range(), |index| self.change_parked("discard", name, index)))
    }

    /// Changes one of several parked jobs.
    fn change_parked(&self, action: &str, name: &str, index: u64) -> Result<(), NotDone> {
        let refused = match self.client.change(&json!({"action": action, "stream": name, "index": index})) {
            Ok(_said) => return Ok(()),
            Err(refused) => refused,
        };
        Err(match refused.status {
            // The consumer may be what was not found.
            StatusCode::NOT_FOUND if self.parked(name)?.iter().all(|job| job.index != index) => NotDone::Gone,
            StatusCode::NOT_FOUND | StatusCode::CONFLICT => NotDone::This(refused.fault),
            _ => NotDone::All(refused.fault),
        })
    }
}

impl Backend for Page {
    fn consumers(&self) -> Result<Vec<Consumer>, Fault> {
        let (mut overview, mut saved) = (self.overview()?, self.client.get("saved", &[])?);
        let saved: Vec<Value> = read(saved["consumers"].take())?;
        let mut saved = saved.into_iter().map(saved_consumer).collect::<Result<Vec<Consumer>, Fault>>()?;
        let Value::Array(rows) = overview["streams"].take() else { return Err(self.odd("overview")) };
        let mut consumers = Vec::new();
        for row in rows {
            let progress = row["progress"].as_str();
            let known = saved.iter().position(|saved| Some(saved.name.as_str()) == progress);
            consumers.push(consumer(known.map(|at| saved.remove(at)).unwrap_or_default(), row)?);
        }
        consumers.extend(saved);
        Ok(consumers)
    }

    fn consumer(&self, name: &str) -> Result<Option<Consumer>, Fault> {
        let Some(mut found) = self.consumers()?.into_iter().find(|consumer| consumer.name == name) else {
            return Ok(None);
        };
        if let Some(live) = &mut found.live {
            let mut view = self.client.get("stream", &[("name", name)])?;
            live.retrying = read(view["strip"]["retries"].take())?;
        }
        Ok(Some(found))
    }

    fn logs(&self) -> Result<Vec<Log>, Fault> {
        read(self.client.get("saved", &[])?["logs"].take())
    }

    fn parked(&self, consumer: &str) -> Result<Vec<ParkedRow>, Fault> {
        read(self.all_of("parked", consumer, "jobs", "from")?)
    }

    fn history(&self, consumer: &str) -> Result<Vec<Move>, Fault> {
        let mut moves: Vec<Move> = read(self.all_of("history", consumer, "moves", "skip")?)?;
        moves.reverse();
        Ok(moves)
    }

    fn queue_names(&self) -> Result<Vec<String>, Fault> {
        Ok(self.queues()?.into_iter().map(|queue| queue.name).collect())
    }

    fn queues(&self) -> Result<Vec<rows::Queue>, Fault> {
        let Value::Array(rows) = self.overview()?["queues"].take() else { return Err(self.odd("overview")) };
        rows.into_iter().map(queue).collect()
    }

    fn queue(&self, name: &str) -> Result<rows::Queue, Fault> {
        queue(self.client.get("queue", &[("name", name)])?)
    }

    fn jobs(&self, queue: &str, wanted: Wanted<'_>) -> Result<Jobs, Fault> {
        let (state, most) = (wanted.state.of_job().to_string(), wanted.most.to_string());
        let mut query = vec![("queue", queue), ("state", &state), ("limit", &most)];
        query.extend(wanted.kind.map(|kind| ("kind", kind)));
        query.extend(wanted.behind.map(|behind| ("cursor", behind)));
        read(self.client.get("jobs", &query)?)
    }

    fn job(&self, queue: &str, id: &str) -> Result<Option<Whole>, Fault> {
        match self.client.get("job", &[("queue", queue), ("id", id)]) {
            Ok(view) => job(view).map(Some),
            Err(Refused { status: StatusCode::NOT_FOUND, .. }) => Ok(None),
            Err(refused) => Err(refused.into()),
        }
    }

    fn periodics(&self, queue: &str) -> Result<Vec<Periodic>, Fault> {
        read(self.client.get("schedules", &[("queue", queue)])?["schedules"].take())
    }

    fn workers(&self, queue: &str) -> Result<Vec<Worker>, Fault> {
        read(self.all("workers", ("queue", queue), "workers", "skip")?)
    }

    fn has_processes(&self) -> bool {
        true
    }

    fn freshness(&self) -> String {
        format!("said by the application at {}, {}", self.client.base, At::now().clock())
    }

    fn holders(&self) -> Holders {
        Holders::Unknown
    }

    fn hindrance(&self) -> Result<Option<String>, Fault> {
        Ok(self.overview()?["why_read_only"].as_str().map(|why| format!("It would be refused: {why}")))
    }

    fn change(self: Box<Self>, change: &Change, seen: Option<&str>) -> Result<Made, Fault> {
        if let Change::Redrive { name, index: None, .. } = change {
            return self.redrive_all(name);
        }
        if let Change::Discard { name, which, .. } = change
            && which.index.is_none()
        {
            return self.discard_all(name, *which);
        }
        match self.client.change(&Self::request(change, seen))? {
            Value::Object(fields) => Ok(Made { fields, failed: None }),
            _ => Err(self.odd("change")),
        }
    }
}

/// Reads a consumer that the page's store has, but that the page may not show.
fn saved_consumer(mut row: Value) -> Result<Consumer, Fault> {
    let name: String = read(&row["name"])?;
    said(&mut row, |reason| advice::of_stream(reason, &name));
    read(row)
}

/// Merges the saved record of a consumer with its row on the page.
fn consumer(saved: Consumer, mut row: Value) -> Result<Consumer, Fault> {
    let mut live = row["status"].take();
    for field in ["jobs_per_second", "behind_seconds", "seconds_left"] {
        live[field] = row[field].take();
    }
    let name: String = read(row["name"].take())?;
    said(&mut row, |reason| advice::of_stream(reason, &name));
    for field in ["reason", "sentence", "verdict", "help", "command", "also"] {
        live[field] = row[field].take();
    }
    let known: Consumer = read(&live)?;
    Ok(Consumer {
        name,
        last_processed: known.last_processed,
        next: known.last_processed.map(|last| last.saturating_add(1)).or(saved.next),
        done_ahead: known.done_ahead,
        parked: known.parked,
        advice: known.advice,
        also: known.also,
        live: Some(read::<Live>(live)?),
        ..saved
    })
}

fn queue(mut row: Value) -> Result<rows::Queue, Fault> {
    let mut status = row["status"].take();
    let counts: Counts = read(status["counts"].take())?;
    let oldest = (read::<Option<String>>(status["oldest_ready"].take())?, status["oldest_ready_for"].as_u64());
    row["counts"] = json!(counts);
    row["oldest_ready"] = json!(oldest.0.zip(oldest.1).map(|(id, age_ms)| OldestReady { id, age_ms }));
    row["paused"] = row["paused"].as_bool().unwrap_or_default().into();
    let name = row["name"].as_str().unwrap_or_default().to_owned();
    said(&mut row, |reason| advice::of_queue(reason, &name));
    read(row)
}

/// Puts the advice of a row of the page into its fields.
fn said(row: &mut Value, of_reason: impl Fn(&str) -> Option<String>) {
    let (first, others) = (row["advice"].take(), row["also"].take());
    advice::put(row, first, others, of_reason);
}

fn job(mut view: Value) -> Result<Whole, Fault> {
    let payload = view["payload"].take();
    let mut text: String = read(&payload["text"])?;
    if payload["form"] == "json" && payload["is_cut"] == false {
        // The record keeps the JSON value; the text is for people.
        view["payload"] = serde_json::from_str(&text).unwrap_or_default();
    }
    if payload["is_cut"] == true {
        text += "\n(cut)";
    }
    let (waits_for, awaited_by) = (read(view["after"].take())?, read(view["before"].take())?);
    if let Some(fields) = view.as_object_mut() {
        ["after", "before", "actions", "related_most"].into_iter().for_each(|name| drop(fields.remove(name)));
    }
    Ok(Whole { job: read::<Job>(view)?, payload: text, waits_for, awaited_by })
}
