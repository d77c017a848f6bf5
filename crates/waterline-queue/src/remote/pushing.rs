//! Pushes of jobs.

use super::answers::{Answer, happened, untold};
use super::faults::{CallError, queue_error};
use super::joining::{FEW, Joined};
use super::opened::{Opened, WorkCount};
use super::queues::Remote;
use super::server::{PlainPush, PushCall, Server};
use super::settings::{of_job, text};
use crate::engine::QueueNo;
use crate::rules::pushing::Push;
use crate::types::error::QueueError;
use crate::types::events::Event;
use crate::types::job::{JobId, JobState, PushOutcome, Pushed};
use std::sync::Arc;

const PUSH: &str = "push jobs";

impl PushCall {
    pub fn new(pushes: &[Push]) -> Self {
        Self {
            kinds: pushes.iter().map(|push| push.row.kind.clone()).collect(),
            payloads: pushes.iter().map(text).collect(),
            settings: pushes.iter().map(of_job).collect(),
            is_batch: pushes.iter().any(|push| push.awaited_by.is_some()),
        }
    }
}

/// Returns what became of the pushed jobs, in their order.
pub fn pushed(answers: &[Answer]) -> impl Iterator<Item = Pushed> {
    let pushed = answers.iter().filter(|answer| answer.what == "pushed");
    pushed.map(|answer| Pushed { id: answer.id(), outcome: outcome_of(answer) })
}

fn outcome_of(answer: &Answer) -> PushOutcome {
    match answer.outcome.as_deref().unwrap_or_default() {
        "added" => PushOutcome::Added,
        "rescheduled" => PushOutcome::Rescheduled,
        "resubmit" => PushOutcome::Resubmit,
        _ => PushOutcome::Duplicate(answer.id()),
    }
}

impl<S: Server> Remote<S> {
    /// Pushes jobs into their queues: all or none.
    pub(super) fn push_all(&self, pushes: &[(QueueNo, Vec<Push>)]) -> Result<Vec<Pushed>, QueueError> {
        if let [(queue, jobs)] = pushes
            && let Some(pushed) = self.push_plain(&self.of(*queue), jobs)?
        {
            return Ok(pushed);
        }
        let pushes: Vec<_> = pushes.iter().map(|(queue, jobs)| (self.of(*queue), PushCall::new(jobs))).collect();
        let made = match &pushes[..] {
            [] => return Ok(Vec::new()),
            [(queue, jobs)] => queue.explained(PUSH, self.server.push(queue.at(), jobs)).map(|answers| vec![answers]),
            _ => self.push_across(&pushes),
        };
        let all = made.inspect_err(|_| pushes.iter().for_each(|(queue, _)| queue.forget_peek()))?;
        let mut outcomes = Vec::new();
        for ((queue, _), answers) in pushes.iter().zip(all) {
            let mut told = happened(&answers);
            for answer in answers.iter().filter(|answer| answer.what == "pushed") {
                if let Some(state) = answer.state().filter(|state| *state != JobState::Dead) {
                    told.push(Event::Seen { id: answer.id(), state: Some(state), data: Some(None), error: None });
                }
            }
            let before = outcomes.len();
            outcomes.extend(pushed(&answers));
            WorkCount::add(&queue.work.pushed, outcomes[before..].iter().filter(|pushed| pushed.is_new()).count());
            self.tell(queue, told, untold(&answers));
        }
        Ok(outcomes)
    }

    fn push_across(&self, pushes: &[(Arc<Opened>, PushCall)]) -> Result<Vec<Vec<Answer>>, QueueError> {
        let calls: Vec<_> = pushes.iter().map(|(queue, jobs)| (queue.at(), jobs)).collect();
        self.server.push_across(&calls).map_err(|error| {
            let first = calls.first().map_or("", |(at, _)| at.queue);
            let queue = error.queue().unwrap_or(first).to_owned();
            queue_error(&queue, PUSH, error)
        })
    }

    /// Pushes jobs without settings, which may join those of other threads. Returns `None` if some
    /// have settings, or if only the rules of the queue can decide.
    fn push_plain(&self, queue: &Arc<Opened>, jobs: &[Push]) -> Result<Option<Vec<Pushed>>, QueueError> {
        let is_plain = |push: &Push| push.awaited_by.is_none() && of_job(push).is_none();
        if queue.shared.options.max_waiting.is_some() || !jobs.iter().all(is_plain) {
            return Ok(None);
        }
        let call = |plain: &PlainPush| self.server.push_plain(queue.at(), plain);
        let explain = |error| queue_error(queue.name(), PUSH, error);
        let plain = PlainPush {
            kinds: jobs.iter().map(|push| push.row.kind.clone()).collect(),
            payloads: jobs.iter().map(text).collect(),
        };
        let joined = if jobs.len() <= FEW {
            queue.joining.push(plain, S::JOINED, call, explain)
        } else {
            match call(&plain) {
                Ok(numbers) => numbers.map_or(Joined::Alone, Joined::Pushed),
                Err(error) => Joined::Failed(explain(error)),
            }
        };
        let numbers = match joined {
            Joined::Pushed(numbers) => numbers,
            Joined::Alone => return Ok(None),
            Joined::Failed(error) => return Err(error),
        };
        WorkCount::add(&queue.work.pushed, numbers.len());
        let ids: Vec<JobId> = numbers.into_iter().map(|number| format!("~{number}")).collect();
        let seen =
            |id: &JobId| Event::Seen { id: id.clone(), state: Some(JobState::Ready), data: Some(None), error: None };
        self.tell(queue, ids.iter().map(seen).collect(), 0);
        Ok(Some(ids.into_iter().map(|id| Pushed { id, outcome: PushOutcome::Added }).collect()))
    }
}
