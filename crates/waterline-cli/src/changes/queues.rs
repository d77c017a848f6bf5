//! Plans of changes of queues.

use super::plan::Plan;
use crate::args::{QueueChange, State};
use crate::backend::{Backend, check_queue, consumer, each_job, needs_process};
use crate::error::Fault;
use crate::format::count;
use crate::rows::{Counts, Job};
use serde_json::{Map, Value, json};

pub(super) fn plan(place: &dyn Backend, change: &QueueChange) -> Result<Plan, Fault> {
    let queue = change.queue();
    if let QueueChange::Pause { consumer: true, .. } | QueueChange::Resume { consumer: true, .. } = change {
        return of_consumer(place, queue, matches!(change, QueueChange::Pause { .. }));
    }
    check_queue(place, queue)?;
    let (name, what, mut fields) = match change {
        QueueChange::Requeue { id: None, .. } => {
            let dead = place.queue(queue)?.counts.dead;
            ("requeue", requeues(queue, dead), json!({ "jobs": dead }))
        }
        QueueChange::Requeue { id: Some(id), .. } => {
            let error = in_state(place, queue, id, State::Dead)?.error;
            let error = error.map_or_else(String::new, |error| format!(" ({error})"));
            ("requeue", format!("requeue the dead job {id:?} of the queue {queue:?}{error}"), json!({ "id": id }))
        }
        QueueChange::Cancel { id, .. } => {
            let state = state(place, queue, id)?;
            let fields = json!({ "queue": queue, "id": id, "state": state });
            return Ok(Plan { seen: Some(state.clone()), ..Plan::new("cancel", removes(queue, id, &state), fields) });
        }
        QueueChange::RunNow { id, .. } => {
            in_state(place, queue, id, State::Scheduled)?;
            ("run-now", format!("make the scheduled job {id:?} of the queue {queue:?} due now"), json!({ "id": id }))
        }
        QueueChange::Pause { .. } => {
            ("pause", format!("pause the queue {queue:?} until somebody resumes it"), json!({}))
        }
        QueueChange::Resume { .. } => {
            ("resume", format!("end the pause of the queue {queue:?}, if there is one"), json!({}))
        }
        QueueChange::Push { kind, payload, .. } => {
            let what = format!("push a job of the kind {kind:?} into the queue {queue:?}{}", place.unasked());
            ("push", what, json!({ "kind": kind, "payload": payload }))
        }
    };
    fields["queue"] = queue.into();
    Ok(Plan::new(name, what, fields))
}

pub(super) fn removal(place: &dyn Backend, queue: &str) -> Result<Plan, Fault> {
    if !place.is_database() {
        return Err(Fault::new("a queue is removed from a server alone: use --postgres or --redis"));
    }
    check_queue(place, queue)?;
    let Counts { scheduled, ready, running, waiting, finished, dead, damaged } = place.queue(queue)?.counts;
    let jobs = scheduled + ready + running + waiting + finished + dead + damaged;
    Ok(Plan::new("remove-queue", removes_queue(queue, jobs), json!({ "queue": queue, "jobs": jobs })))
}

pub(super) fn removes_queue(queue: &str, jobs: u64) -> String {
    format!("remove the queue {queue:?} with {}", count(jobs, "job"))
}

fn requeues(queue: &str, dead: u64) -> String {
    format!("requeue {} of the queue {queue:?}", count(dead, "dead job"))
}

fn removes(queue: &str, id: &str, state: &str) -> String {
    format!("remove the {state} job {id:?} of the queue {queue:?}")
}

/// Says what a change did, where that can differ from the plan.
pub(super) fn done(change: &QueueChange, made: &Map<String, Value>) -> Option<String> {
    match change {
        QueueChange::Requeue { queue, id: None, .. } => Some(requeues(queue, made.get("requeued")?.as_u64()?)),
        QueueChange::Cancel { queue, id, .. } => Some(removes(queue, id, made.get("state")?.as_str()?)),
        QueueChange::Push { queue, .. } if !made.get("is_new")?.as_bool()? => {
            Some(format!("the queue {queue:?} has a job of this id already"))
        }
        _ => None,
    }
}

/// Plans to pause or to resume a consumer.
fn of_consumer(place: &dyn Backend, name: &str, pauses: bool) -> Result<Plan, Fault> {
    consumer(place, name)?;
    if !place.has_processes() {
        return Err(needs_process("paused or resumed"));
    }
    let fields = json!({ "consumer": name });
    Ok(if pauses {
        Plan::new("pause", format!("pause the consumer {name:?} until somebody resumes it"), fields)
    } else {
        Plan::new("resume", format!("end the pause of the consumer {name:?}, if there is one"), fields)
    })
}

fn in_state(place: &dyn Backend, queue: &str, id: &str, state: State) -> Result<Job, Fault> {
    let job = place.job(queue, id)?.ok_or_else(|| Fault::no_job(queue, id))?.job;
    let wanted = state.of_job().to_string();
    if job.state == wanted {
        return Ok(job);
    }
    Err(Fault::new(format!("the job {id:?} of the queue {queue:?} is {}, and not {wanted}", job.state)))
}

/// Returns the state of a job. One that cannot be read is damaged, and can be removed.
fn state(place: &dyn Backend, queue: &str, id: &str) -> Result<String, Fault> {
    let fault = match place.job(queue, id) {
        Ok(Some(whole)) => return Ok(whole.job.state),
        Ok(None) => return Err(Fault::no_job(queue, id)),
        Err(fault) => fault,
    };
    let mut is_damaged = false;
    for state in State::ALL {
        each_job(place, queue, state, None, |job| {
            is_damaged |= job.id == id && job.damaged.is_some();
            !is_damaged
        })?;
    }
    if is_damaged { Ok(State::Damaged.of_job().to_string()) } else { Err(fault) }
}
