//! Changes of queues. None of them needs the options of a queue, which only its program knows.

use super::Plan;
use crate::fault::Fault;
use crate::queues::look as open;
use crate::words::count;
use serde_json::{Map, Value, json};
use waterline::Store;
use waterline::queue::{JobInfo, JobState, NewJob, Queue, QueueByHand, QueueError};

pub(super) fn requeue(look: &Store, queue: &str, id: Option<&str>) -> Result<Plan, Fault> {
    let opened = open(look, queue)?;
    let Some(id) = id else {
        let dead = opened.counts().dead;
        let what = format!("requeue {} of the queue {queue:?}", count(dead, "dead job"));
        return Ok(plan(queue, what, json!({ "jobs": dead }), |by_hand| {
            Ok(Map::from_iter([("requeued".to_owned(), by_hand.requeue_dead()?.into())]))
        }));
    };
    let job = in_state(&opened, id, JobState::Dead)?;
    let error = job.error.map_or_else(String::new, |error| format!(" ({error})"));
    let what = format!("requeue the dead job {id:?} of the queue {queue:?}{error}");
    let id = id.to_owned();
    Ok(plan(queue, what, json!({ "id": id }), move |by_hand| {
        by_hand.requeue(id)?;
        Ok(Map::new())
    }))
}

pub(super) fn cancel(look: &Store, queue: &str, id: &str) -> Result<Plan, Fault> {
    let opened = open(look, queue)?;
    let state = match opened.get(id) {
        Ok(Some(job)) => job.state.to_string(),
        Ok(None) => return Err(not_there(queue, id)),
        // It is removed all the same.
        Err(QueueError::Store(waterline::Error::Corrupt { .. })) => "damaged".to_owned(),
        Err(error) => return Err(error.into()),
    };
    let what = format!("remove the {state} job {id:?} of the queue {queue:?}");
    let id = id.to_owned();
    Ok(plan(queue, what, json!({ "id": id, "state": state }), move |by_hand| {
        by_hand.remove(id)?;
        Ok(Map::new())
    }))
}

pub(super) fn run_now(look: &Store, queue: &str, id: &str) -> Result<Plan, Fault> {
    in_state(&open(look, queue)?, id, JobState::Scheduled)?;
    let what = format!("make the scheduled job {id:?} of the queue {queue:?} due now");
    let id = id.to_owned();
    Ok(plan(queue, what, json!({ "id": id }), move |by_hand| {
        by_hand.run_now(id)?;
        Ok(Map::new())
    }))
}

pub(super) fn pause(look: &Store, queue: &str) -> Result<Plan, Fault> {
    open(look, queue)?;
    let what = format!("pause the queue {queue:?} until somebody resumes it");
    Ok(plan(queue, what, json!({}), |by_hand| {
        by_hand.pause(None)?;
        Ok(Map::new())
    }))
}

pub(super) fn resume(look: &Store, queue: &str) -> Result<Plan, Fault> {
    open(look, queue)?;
    let what = format!("end the pause of the queue {queue:?}, if there is one");
    Ok(plan(queue, what, json!({}), |by_hand| {
        by_hand.resume()?;
        Ok(Map::new())
    }))
}

pub(super) fn push(look: &Store, queue: &str, kind: &str, payload: &Value, id: Option<&str>) -> Result<Plan, Fault> {
    open(look, queue)?;
    let mut job = NewJob::new(kind, payload)?;
    if let Some(id) = id {
        job = job.id(id);
    }
    let what = format!("push a job of the kind {kind:?} into the queue {queue:?}, whose hook and bound are not asked");
    let fields = json!({ "kind": kind, "payload": payload });
    Ok(plan(queue, what, fields, move |by_hand| {
        let pushed = by_hand.push(job)?;
        Ok(Map::from_iter([("id".to_owned(), pushed.id.into())]))
    }))
}

/// Plans a change of a queue that is opened by hand for it.
fn plan(
    queue: &str,
    what: String,
    mut fields: Value,
    make: impl FnOnce(&QueueByHand) -> Result<Map<String, Value>, QueueError> + 'static,
) -> Plan {
    fields["queue"] = queue.into();
    let queue = queue.to_owned();
    Plan::new(what, fields, move |store| Ok(make(&Queue::by_hand(store, queue)?)?))
}

fn in_state(queue: &Queue, id: &str, state: JobState) -> Result<JobInfo, Fault> {
    let job = queue.get(id)?.ok_or_else(|| not_there(queue.name(), id))?;
    if job.state == state {
        return Ok(job);
    }
    Err(Fault::new(format!("the job {id:?} of the queue {:?} is {}, and not {state}", queue.name(), job.state)))
}

fn not_there(queue: &str, id: &str) -> Fault {
    Fault::new(format!(
        "the queue {queue:?} has no job {id:?}: it was never pushed, was removed, or ended longer ago than it is kept"
    ))
}
