//! The changes that people make: `POST api/change`, with the change as JSON.

use crate::failure::Failure;
use crate::shared::{QueueRow, Shared, Stream};
use crate::views::{Filter, MOST_READ, Query, queue_of_name};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use std::time::Duration;
use waterline::Error;
use waterline_queue::{JobState, NewJob, Queue};

/// A change, as the page sends it. The fields that it needs depend on the action.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Change {
    action: String,
    stream: Option<String>,
    queue: Option<String>,
    index: Option<Number>,
    id: Option<String>,
    value: Option<Number>,
    seconds: Option<u64>,
    reason: Option<String>,
    /// The filter of a change of many jobs.
    state: Option<String>,
    kind: Option<String>,
    key: Option<String>,
    /// How many jobs the caller has seen.
    count: Option<usize>,
    name: Option<String>,
    /// The payload of a job, which may be `null`.
    #[serde(default, deserialize_with = "some")]
    payload: Option<Value>,
}

fn some<'d, D: Deserializer<'d>>(from: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

/// A number, or its digits: a browser rounds a number above 2^53.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Number {
    Number(u64),
    Digits(String),
}

impl Number {
    fn get(&self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Digits(digits) => digits.parse().ok(),
        }
    }
}

fn needs<T>(field: Option<T>, name: &str, action: &str) -> Result<T, Failure> {
    field.ok_or_else(|| Failure::bad(format!("the change {action:?} needs {name:?}")))
}

impl Change {
    fn index(&self) -> Result<u64, Failure> {
        needs(self.index.as_ref().and_then(Number::get), "index", &self.action)
    }

    fn value(&self) -> Result<u64, Failure> {
        needs(self.value.as_ref().and_then(Number::get), "value", &self.action)
    }

    fn id(&self) -> Result<&str, Failure> {
        needs(self.id.as_deref(), "id", &self.action)
    }

    /// Makes the change. The answer says in a sentence what was done.
    ///
    /// # Errors
    /// [`Failure`] says why nothing was changed.
    pub(crate) fn make(&self, shared: &Shared) -> Result<Value, Failure> {
        let said = match (&self.stream, &self.queue) {
            (Some(name), None) => {
                let unknown = || Failure::not_found(format!("this page shows no consumer {name:?}"));
                self.make_in_stream(shared, shared.stream(name).ok_or_else(unknown)?)
            }
            (None, Some(name)) => self.make_in_queue(shared, &*queue_of_name(shared, name)?),
            _ => Err(Failure::bad("a change names either a \"stream\" or a \"queue\"")),
        }?;
        tracing::info!(target: "waterline", action = self.action, stream = self.stream, queue = self.queue, index = ?self.index, id = self.id,
            "somebody made a change at the page");
        Ok(said)
    }

    fn unknown(&self) -> Failure {
        Failure::bad(format!("there is no change {:?} of that", self.action))
    }

    fn make_in_stream(&self, shared: &Shared, stream: &Stream) -> Result<Value, Failure> {
        let handle = &stream.handle;
        let progress = || {
            let none = || Failure::not_found(format!("the progress of {:?} has no name", stream.name));
            handle.name().ok_or_else(none)
        };
        match self.action.as_str() {
            "pause" => handle.pause(),
            "resume" => handle.resume(),
            "check" => handle.check(),
            "redrive" => {
                let index = self.index()?;
                match handle.redrive(index) {
                    // The next consumer of that name runs it.
                    Err(Error::Stopped) => shared.store()?.redrive(progress()?, index)?,
                    redriven => redriven?,
                }
                return said(format!("job {index} runs once more"));
            }
            "redrive_all" => {
                let count = handle.redrive_all()?;
                return said(format!("{count} jobs run once more"));
            }
            "discard" => {
                let index = self.index()?;
                shared.store()?.discard(progress()?, index)?;
                return said(format!("job {index} is given up"));
            }
            "skip" => {
                let index = self.index()?;
                shared.store()?.progress(progress()?).skip(index, self.reason.as_deref().unwrap_or_default())?;
                return said(format!("job {index} is skipped: start the consumer again"));
            }
            "seek" => {
                let next = self.index()?;
                shared.store()?.progress(progress()?).seek(next, self.reason.as_deref().unwrap_or_default())?;
                return said(format!("the next job is {next}: start the consumer again"));
            }
            "replace" => {
                let (from, to) = (progress()?, needs(self.name.as_deref(), "name", &self.action)?);
                shared.store()?.replace(&[(&from, to)])?;
                return said(format!("{from:?} has the name {to:?} now: start the consumer of that name"));
            }
            "remove" => {
                // What belongs to it is cleared in the same write.
                shared.store()?.progress(progress()?).remove_with(|_| Ok(()))?;
                return said("the progress is removed: the consumer begins anew when it is started again".to_owned());
            }
            "set_max_processing" => {
                handle.set_max_processing(usize::try_from(self.value()?).unwrap_or(usize::MAX))?;
            }
            "set_max_search_ahead" => handle.set_max_search_ahead(self.value()?)?,
            _ => return Err(self.unknown()),
        }
        said(format!("{}: {}", stream.name, handle.status().state))
    }

    fn make_in_queue(&self, shared: &Shared, row: &QueueRow) -> Result<Value, Failure> {
        let queue = &row.queue;
        match self.action.as_str() {
            "pause" => {
                queue.pause(self.seconds.map(Duration::from_secs))?;
                said("the queue is paused: jobs that run go on, and no other one starts".to_owned())
            }
            "resume" => {
                queue.resume()?;
                said("the queue goes on".to_owned())
            }
            "requeue_dead" => {
                let count = queue.requeue_dead()?;
                Ok(json!({ "said": format!("{count} dead jobs are requeued"), "requeued": count }))
            }
            "requeue" | "cancel" | "remove" | "run_now" => {
                let id = self.id()?;
                one(queue, &self.action, id)?;
                said(format!("the job {id:?} is {}", done(&self.action)))
            }
            "push" => self.push(queue),
            "requeue_all" | "cancel_all" | "remove_all" | "run_all_now" => self.make_for_all(queue),
            "set_max_processing" => {
                let slots = usize::try_from(self.value()?).unwrap_or(usize::MAX);
                let none =
                    || Failure::bad("the program has not put the runner of this queue on the page: Page::runner");
                shared.runner_of(row).ok_or_else(none)?.set_max_processing(slots)?;
                said(format!("the runner runs up to {slots} jobs at once"))
            }
            "remove_schedule" => {
                let name = needs(self.name.as_deref(), "name", &self.action)?;
                let was_there = queue.remove_periodic(name)?;
                let missing = || Failure::not_found(format!("the queue has no schedule {name:?}"));
                if was_there { said(format!("the schedule {name:?} is removed")) } else { Err(missing()) }
            }
            _ => Err(self.unknown()),
        }
    }

    /// Pushes a job as the program does: the hook and the bound of the queue apply.
    fn push(&self, queue: &Queue) -> Result<Value, Failure> {
        let kind = needs(self.kind.as_deref(), "kind", &self.action)?;
        let mut job = NewJob::new(kind, needs(self.payload.as_ref(), "payload", &self.action)?)?;
        if let Some(id) = &self.id {
            job = job.id(id);
        }
        let pushed = queue.push(job)?;
        let has = if pushed.is_new() { "is pushed" } else { "was there before" };
        Ok(json!({ "said": format!("the job {:?} {has}", pushed.id), "id": pushed.id, "is_new": pushed.is_new() }))
    }

    /// Changes the jobs that the filter matches, but no more than the caller has seen.
    fn make_for_all(&self, queue: &Queue) -> Result<Value, Failure> {
        let fields = [("state", &self.state), ("kind", &self.kind), ("key", &self.key)];
        let query: Query =
            fields.iter().filter_map(|(name, value)| Some(((*name).to_owned(), (*value).clone()?))).collect();
        let filter = Filter::of(&query)?;
        let (action, fits): (_, &[JobState]) = match self.action.as_str() {
            "requeue_all" => ("requeue", &[JobState::Dead]),
            "run_all_now" => ("run_now", &[JobState::Scheduled]),
            "remove_all" => ("remove", &[JobState::Finished, JobState::Dead, JobState::Damaged]),
            _ => ("cancel", &[JobState::Ready, JobState::Running, JobState::Scheduled, JobState::Waiting]),
        };
        if !fits.contains(&filter.state) {
            return Err(Failure::bad(format!("{} jobs cannot be {}", filter.state, done(action))));
        }
        let count = needs(self.count, "count", &self.action)?.min(MOST_READ);
        if count == 0 {
            return said(format!("no job is {}", done(action)));
        }
        let found = filter.find(queue, None, count)?;
        if action == "requeue" {
            // Jobs that others waited for come first.
            let all = found.jobs.len() as u64;
            let changed = queue.requeue_all(found.jobs.into_iter().map(|job| job.id))?;
            let rest = if changed < all { "; others are not: they are not dead by now" } else { "" };
            return said(format!("{changed} jobs are {}{rest}", done(action)));
        }
        let (mut changed, mut failed) = (0, None);
        for job in found.jobs {
            match one(queue, action, &job.id) {
                Ok(()) => changed += 1,
                // The job has ended, or left its state, since it was read.
                Err(failure) => failed = Some(failure.text),
            }
        }
        let rest = failed.map(|text| format!("; others are not: {text}"));
        said(format!("{changed} jobs are {}{}", done(action), rest.unwrap_or_default()))
    }
}

fn said(text: String) -> Result<Value, Failure> {
    Ok(json!({ "said": text }))
}

fn done(action: &str) -> &'static str {
    match action {
        "requeue" => "requeued",
        "run_now" => "due now",
        _ => "removed",
    }
}

fn one(queue: &Queue, action: &str, id: &str) -> Result<(), Failure> {
    let changed = match action {
        "requeue" => queue.requeue(id)?,
        "run_now" => queue.run_now(id)?,
        _ => {
            // Keep the error of a job that died meanwhile, and a job that runs again.
            let is_over = |state| matches!(state, JobState::Finished | JobState::Dead | JobState::Damaged);
            let fits = !matches!(queue.state(id), Ok(Some(state)) if is_over(state) == (action == "cancel"));
            if fits {
                queue.remove(id)?;
            }
            fits
        }
    };
    let state = || queue.state(id).ok().flatten().map_or_else(|| "gone".to_owned(), |state| state.to_string());
    let unfit =
        || Failure { status: axum::http::StatusCode::CONFLICT, text: format!("the job {id:?} is {} by now", state()) };
    if changed { Ok(()) } else { Err(unfit()) }
}
