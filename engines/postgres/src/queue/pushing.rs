//! Pushes of jobs.

use super::answers::{Answer, happened, untold};
use super::faults::queue_error;
use super::joining::{FEW, Joined, MOST, PlainPush};
use super::opened::{Opened, WorkCount};
use super::queues::Queues;
use super::settings::{of_job, text};
use crate::error::Error;
use crate::sql::Value;
use postgres::types::Type;
use std::sync::Arc;
use waterline_queue::engine_api::{Event, JobId, JobPush, PushOutcome, QueueNo, options_of, pushed};
use waterline_queue::{JobState, Pushed, QueueError};

pub(super) const PUSH: &str = "push jobs";

/// The most jobs with settings whose outcomes fit into an answer of 8 kB, which the server keeps
/// until the commit, so no caller keeps the transaction open. Larger pushes commit before they
/// answer.
const ANSWERED: usize = 8;

pub(super) struct Pushing {
    pub(super) queue: Arc<Opened>,
    kinds: Vec<String>,
    payloads: Vec<String>,
    settings: Vec<Option<String>>,
    is_batch: bool,
}

impl Pushing {
    pub(super) fn new(queue: Arc<Opened>, pushes: &[JobPush]) -> Self {
        Self {
            queue,
            kinds: pushes.iter().map(|push| push.row.kind.clone()).collect(),
            payloads: pushes.iter().map(text).collect(),
            settings: pushes.iter().map(of_job).collect(),
            is_batch: pushes.iter().any(|push| push.awaited_by.is_some()),
        }
    }

    pub(super) fn values(&self) -> [Value<'_>; 5] {
        [
            (&self.queue.shared.name, Type::TEXT),
            (&self.kinds, Type::TEXT_ARRAY),
            (&self.payloads, Type::TEXT_ARRAY),
            (&self.settings, Type::TEXT_ARRAY),
            (&self.is_batch, Type::BOOL),
        ]
    }
}

pub(super) fn outcome_of(name: &str, id: JobId) -> PushOutcome {
    match name {
        "added" => PushOutcome::Added,
        "rescheduled" => PushOutcome::Rescheduled,
        "resubmit" => PushOutcome::Resubmit,
        _ => PushOutcome::Duplicate(id),
    }
}

/// Returns the queue of an error of a push into several queues: the server sends it as the table.
fn queue_at_fault(error: &Error, queues: &[&str]) -> String {
    let named = match error {
        Error::Database(error) => error.as_db_error().and_then(|answer| answer.table()),
        _ => None,
    };
    named.or(queues.first().copied()).unwrap_or_default().to_owned()
}

impl Queues {
    pub(super) fn push_sql(&self) -> String {
        let call = self.sql_of("push_jobs", 5);
        call.replacen("SELECT * FROM ", "SELECT a.* FROM unnest(", 1) + ") a"
    }

    /// Pushes jobs into their queues: all or none.
    pub(super) fn push_all(&self, pushes: &[(QueueNo, Vec<JobPush>)]) -> Result<Vec<Pushed>, QueueError> {
        if let [(queue, jobs)] = pushes
            && let Some(pushed) = self.push_plain(&self.of(*queue), jobs)?
        {
            return Ok(pushed);
        }
        let pushes: Vec<_> = pushes.iter().map(|(queue, pushes)| Pushing::new(self.of(*queue), pushes)).collect();
        let Some(first) = pushes.first() else { return Ok(Vec::new()) };
        let made = if pushes.len() > 1 {
            self.push_across(&pushes)
        } else {
            self.push_into(first).map(|answers| vec![answers])
        };
        let all = made.inspect_err(|_| pushes.iter().for_each(|push| push.queue.forget_peek()))?;
        let mut outcomes = Vec::new();
        for (Pushing { queue, .. }, answers) in pushes.iter().zip(all) {
            let mut told = happened(&answers);
            let before = outcomes.len();
            for answer in answers.iter().filter(|answer| answer.what == "pushed") {
                let outcome = answer.outcome.as_deref().unwrap_or_default();
                if let Some(state) = answer.state().filter(|state| *state != JobState::Dead) {
                    told.push(Event::Seen { id: answer.id(), state: Some(state), data: Some(None), error: None });
                }
                outcomes.push(pushed(answer.id(), outcome_of(outcome, answer.id())));
            }
            WorkCount::add(&queue.work.pushed, outcomes[before..].iter().filter(|pushed| pushed.is_new()).count());
            self.tell(queue, told, untold(&answers));
        }
        Ok(outcomes)
    }

    fn push_into(&self, pushing: &Pushing) -> Result<Vec<Answer>, QueueError> {
        let (queue, values) = (&pushing.queue, pushing.values());
        if pushing.kinds.len() > ANSWERED {
            return self.committed(queue, PUSH, "push_and_commit", &values);
        }
        let sql = self.push_sql();
        let rows = self.with(queue.test_clock(), |client, _| Ok(client.query_typed(&sql, &values)?));
        rows.and_then(|rows| Ok(Answer::each_of(&rows)?)).map_err(|error| queue_error(queue.name(), PUSH, error))
    }

    /// Pushes jobs into several queues by one call, which commits before it answers: if this
    /// process froze between several calls, it would block others from all of these queues.
    fn push_across(&self, pushes: &[Pushing]) -> Result<Vec<Vec<Answer>>, QueueError> {
        let queues: Vec<_> = pushes.iter().map(|push| push.queue.name()).collect();
        let counts: Vec<_> = pushes.iter().map(|push| i32::try_from(push.kinds.len()).unwrap_or(i32::MAX)).collect();
        let kinds: Vec<_> = pushes.iter().flat_map(|push| &push.kinds).collect();
        let payloads: Vec<_> = pushes.iter().flat_map(|push| &push.payloads).collect();
        let settings: Vec<_> = pushes.iter().flat_map(|push| &push.settings).collect();
        let batches: Vec<_> = pushes.iter().map(|push| push.is_batch).collect();
        let values: [Value<'_>; 6] = [
            (&queues, Type::TEXT_ARRAY),
            (&counts, Type::INT4_ARRAY),
            (&kinds, Type::TEXT_ARRAY),
            (&payloads, Type::TEXT_ARRAY),
            (&settings, Type::TEXT_ARRAY),
            (&batches, Type::BOOL_ARRAY),
        ];
        let call = self.call_of("push_across_and_commit", values.len(), 2);
        let clock = pushes.first().and_then(|push| push.queue.test_clock());
        let made = self.with_level(clock, true, |client, _| Ok(Answer::all_of(&client.query_typed(&call, &values)?)?));
        let answers = made.map_err(|error| queue_error(&queue_at_fault(&error, &queues), PUSH, error))?;
        Ok(answers.split(|answer| answer.what == "next").map(<[_]>::to_vec).collect())
    }

    /// Pushes jobs without settings, which may join those of other threads. Returns `None` if some
    /// have settings, or if only the rules of the queue can decide.
    fn push_plain(&self, queue: &Arc<Opened>, jobs: &[JobPush]) -> Result<Option<Vec<Pushed>>, QueueError> {
        let is_plain = |push: &JobPush| push.awaited_by.is_none() && of_job(push).is_none();
        if options_of(&queue.shared.options).max_waiting.is_some() || !jobs.iter().all(is_plain) {
            return Ok(None);
        }
        let (function, procedure) = (self.sql_of("push_plain", 3), self.call_of("push_plain_and_commit", 3, 1));
        let call = |PlainPush { kinds, payloads }: &PlainPush| {
            let values: [Value<'_>; 3] =
                [(&queue.name(), Type::TEXT), (kinds, Type::TEXT_ARRAY), (payloads, Type::TEXT_ARRAY)];
            let is_long = kinds.len() > MOST;
            let sql = if is_long { &procedure } else { &function };
            self.with_level(queue.test_clock(), is_long, |client, statements| {
                let rows = statements.query(client, sql, &values)?;
                Ok(rows.first().map_or(Ok(None), |row| row.try_get::<_, Option<Vec<i64>>>(0))?)
            })
        };
        let plain = PlainPush {
            kinds: jobs.iter().map(|push| push.row.kind.clone()).collect(),
            payloads: jobs.iter().map(text).collect(),
        };
        let joined = if jobs.len() <= FEW {
            queue.joining.push(plain, call)
        } else {
            match call(&plain) {
                Ok(numbers) => numbers.map_or(Joined::Alone, Joined::Pushed),
                Err(error) => Joined::Failed(error),
            }
        };
        let numbers = match joined {
            Joined::Pushed(numbers) => numbers,
            Joined::Alone => return Ok(None),
            Joined::Failed(error) => return Err(queue_error(queue.name(), PUSH, error)),
        };
        WorkCount::add(&queue.work.pushed, numbers.len());
        let ids: Vec<JobId> = numbers.into_iter().map(|number| format!("~{number}")).collect();
        let seen =
            |id: &JobId| Event::Seen { id: id.clone(), state: Some(JobState::Ready), data: Some(None), error: None };
        self.tell(queue, ids.iter().map(seen).collect(), 0);
        Ok(Some(ids.into_iter().map(|id| pushed(id, PushOutcome::Added)).collect()))
    }
}
