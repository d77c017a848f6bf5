//! Open queues of a store or a database, and what commands do with them.

use super::{Made, Wanted};
use crate::advice;
use crate::args::QueueChange;
use crate::error::Fault;
use crate::format::{cut, hex};
use crate::rows::{Jobs, OldestReady, Queue as Row, Whole, read};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use waterline_queue::{JobInfo, NewJob, Queue, QueueAdmin, Waits};

/// The longest text of a payload that is shown.
const PAYLOAD: usize = 64 * 1024;

/// How many related jobs are listed at most.
const RELATED: usize = 500;

/// The open queues, by name.
pub(super) struct Handles<Q>(RefCell<BTreeMap<String, Q>>);

impl<Q> Default for Handles<Q> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<Q: Clone> Handles<Q> {
    /// Returns the open queue of this name, or opens it.
    pub(super) fn of(&self, name: &str, open: impl FnOnce() -> Result<Q, Fault>) -> Result<Q, Fault> {
        if let Some(queue) = self.0.borrow().get(name) {
            return Ok(queue.clone());
        }
        let queue = open()?;
        self.0.borrow_mut().insert(name.to_owned(), queue.clone());
        Ok(queue)
    }
}

/// Returns the status of a queue as a row.
pub(super) fn row(queue: &Queue) -> Result<Row, Fault> {
    let status = queue.status()?;
    let oldest = status.oldest_ready.as_ref();
    let mut row = json!({
        "name": status.queue,
        "counts": status.counts,
        "oldest_ready": oldest.map(|(id, age)| OldestReady { id: id.clone(), age_ms: age.as_millis() as u64 }),
        "paused": matches!(status.waits, Waits::Paused { .. }),
    });
    let (first, others) = advice::split(&status.advice());
    advice::put(&mut row, first, others, |reason| advice::of_status(reason, &status));
    read(row)
}

pub(super) fn jobs(queue: &Queue, wanted: Wanted<'_>) -> Result<Jobs, Fault> {
    let mut page = queue.page(wanted.state.of_job(), wanted.behind, wanted.most)?;
    page.jobs.retain(|job| wanted.kind.is_none_or(|kind| kind == job.kind));
    read(page)
}

pub(super) fn job(queue: &Queue, id: &str) -> Result<Option<Whole>, Fault> {
    let Some(job) = queue.get(id)? else { return Ok(None) };
    let related = queue.related(id, RELATED)?;
    let payload = payload(&job);
    Ok(Some(Whole { job: read(job)?, payload, waits_for: related.waits_for, awaited_by: related.awaited_by }))
}

/// Returns a payload as pretty JSON, or in hexadecimal digits.
fn payload(job: &JobInfo) -> String {
    let bytes = &job.payload[..];
    let pretty = serde_json::from_slice::<Value>(bytes).and_then(|value| serde_json::to_string_pretty(&value));
    let text = pretty.unwrap_or_else(|_| hex(bytes));
    if text.len() <= PAYLOAD { text } else { cut(&text, PAYLOAD) + "\n(cut)" }
}

/// Makes a change without the options of the queue, which only its program knows. A job that has
/// left the state `seen` stays as it is.
pub(super) fn change(queue: &QueueAdmin, change: &QueueChange, seen: Option<&str>) -> Result<Made, Fault> {
    let look = queue.look();
    // A job that cannot be read has no state.
    let state = |id: &str| look.state(id).ok().flatten().map(|state| state.to_string());
    let left = |id: &str, seen: &str| {
        let state = state(id).unwrap_or_else(|| "gone".to_owned());
        let queue = look.name();
        Fault::new(format!(
            "nothing was changed, since the job {id:?} of the queue {queue:?} was {seen} and is {state} by now: look again"
        ))
    };
    match change {
        QueueChange::Requeue { id: None, .. } => return Ok(Made::of([("requeued", queue.requeue_dead()?.into())])),
        QueueChange::Requeue { id: Some(id), .. } => {
            if !queue.requeue(id)? {
                return Err(left(id, "dead"));
            }
        }
        QueueChange::RunNow { id, .. } => {
            if !queue.run_now(id)? {
                return Err(left(id, "scheduled"));
            }
        }
        QueueChange::Cancel { id, .. } => {
            let state = state(id);
            // Keep the error of a job that died meanwhile, and a job that runs again.
            if let Some((seen, now)) = seen.zip(state.as_deref())
                && is_over(seen) != is_over(now)
            {
                return Err(left(id, seen));
            }
            queue.remove(id)?;
            return Ok(state.map_or_else(Made::default, |state| Made::of([("state", state.into())])));
        }
        QueueChange::Pause { .. } => queue.pause(None)?,
        QueueChange::Resume { .. } => queue.resume()?,
        QueueChange::Push { kind, payload, id, .. } => {
            let mut job = NewJob::new(kind, payload)?;
            if let Some(id) = id {
                job = job.id(id);
            }
            let pushed = queue.push(job)?;
            return Ok(Made::of([("is_new", pushed.is_new().into()), ("id", pushed.id.into())]));
        }
    }
    Ok(Made::default())
}

/// True for a final state: nothing runs the job any more.
pub(super) fn is_over(state: &str) -> bool {
    ["finished", "dead", "damaged"].contains(&state)
}
