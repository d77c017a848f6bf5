//! Pushes of jobs.

use super::Queues;
use super::answers::{Answer, happened, untold};
use super::calls::is_of_level;
use super::faults::queue_error;
use super::joining::{FEW, Joined, MOST, Plain};
use super::opened::{Opened, Work};
use super::periodics::text;
use super::settings::of_job;
use crate::fault::{Fault, of_statement};
use crate::sql::Value;
use postgres::types::Type;
use postgres::{GenericClient, IsolationLevel, Row};
use std::sync::Arc;
use waterline::engine::{Happened, JobId, JobPush, PushOutcome, QueueNo, options_of, pushed};
use waterline::queue::{JobState, Pushed, QueueError};

pub(super) const PUSH: &str = "push jobs";

/// The most jobs with settings whose outcomes are answered within the transaction: with 8 kB at
/// most, so no caller keeps it open. A push of others is committed before.
const ANSWERED: usize = 8;

/// Jobs that go together into one queue.
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

/// The answers for each queue, or the error of one, with its name.
type Made = Result<Vec<Vec<Answer>>, (String, crate::Error)>;

/// Pushes jobs on this connection or in this transaction, by this statement, whose answer the
/// function reads. An error of the functions comes with the name of its queue.
fn push_on(
    client: &mut impl GenericClient,
    sql: &str,
    read: fn(&[Row]) -> Result<Vec<Answer>, postgres::Error>,
    pushes: &[Pushing],
) -> Result<Made, crate::Error> {
    let mut all = Vec::new();
    for pushing in pushes {
        match client.query_typed(sql, &pushing.values()) {
            Ok(rows) => all.push(read(&rows)?),
            Err(error) if of_statement(&error) == Fault::Again || is_of_level(&error) => return Err(error.into()),
            Err(error) => return Ok(Err((pushing.queue.name().to_owned(), error.into()))),
        }
    }
    Ok(Ok(all))
}

pub(super) fn outcome_of(name: &str, id: JobId) -> PushOutcome {
    match name {
        "added" => PushOutcome::Added,
        "rescheduled" => PushOutcome::Rescheduled,
        "resubmit" => PushOutcome::Resubmit,
        _ => PushOutcome::Duplicate(id),
    }
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
        let (sql, call) = (self.push_sql(), self.call_of("push_and_commit", 5, 2));
        let (are_many, is_long) = (pushes.len() > 1, first.kinds.len() > ANSWERED);
        let made = self.with_level(first.queue.test_clock(), are_many || is_long, |client, _| {
            // One call is one transaction by itself.
            match (are_many, is_long) {
                (false, false) => return push_on(client, &sql, Answer::each_of, &pushes),
                (false, true) => return push_on(client, &call, Answer::all_of, &pushes),
                (true, _) => {}
            }
            let mut transaction = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start()?;
            let made = push_on(&mut transaction, &sql, Answer::each_of, &pushes)?;
            if made.is_ok() {
                transaction.commit()?;
            }
            Ok(made)
        });
        let all = match made {
            Ok(Ok(all)) => all,
            Ok(Err((queue, error))) => {
                pushes.iter().for_each(|push| push.queue.forget_glance());
                return Err(queue_error(&queue, PUSH, error));
            }
            Err(error) => return Err(queue_error(first.queue.name(), PUSH, error)),
        };
        let mut outcomes = Vec::new();
        for (Pushing { queue, .. }, answers) in pushes.iter().zip(all) {
            let mut told = happened(&answers);
            let before = outcomes.len();
            for answer in answers.iter().filter(|answer| answer.what == "pushed") {
                let outcome = answer.outcome.as_deref().unwrap_or_default();
                if let Some(state) = answer.state().filter(|state| *state != JobState::Dead) {
                    told.push(Happened::Seen { id: answer.id(), state: Some(state), data: Some(None), error: None });
                }
                outcomes.push(pushed(answer.id(), outcome_of(outcome, answer.id())));
            }
            Work::add(&queue.work.pushed, outcomes[before..].iter().filter(|pushed| pushed.is_new()).count());
            self.tell(queue, told, untold(&answers));
        }
        Ok(outcomes)
    }

    /// Pushes jobs without settings, which may go together with those of other threads. Returns
    /// `None` if some have settings, or only the rules of the queue can say what becomes of them.
    fn push_plain(&self, queue: &Arc<Opened>, jobs: &[JobPush]) -> Result<Option<Vec<Pushed>>, QueueError> {
        let is_plain = |push: &JobPush| push.awaited_by.is_none() && of_job(push).is_none();
        if options_of(&queue.shared.options).max_waiting.is_some() || !jobs.iter().all(is_plain) {
            return Ok(None);
        }
        let (function, procedure) = (self.sql_of("push_plain", 3), self.call_of("push_plain_and_commit", 3, 1));
        let call = |Plain { kinds, payloads }: &Plain| {
            let values: [Value<'_>; 3] =
                [(&queue.name(), Type::TEXT), (kinds, Type::TEXT_ARRAY), (payloads, Type::TEXT_ARRAY)];
            let is_long = kinds.len() > MOST;
            let sql = if is_long { &procedure } else { &function };
            self.with_level(queue.test_clock(), is_long, |client, statements| {
                let rows = statements.query(client, sql, &values)?;
                Ok(rows.first().map_or(Ok(None), |row| row.try_get::<_, Option<Vec<i64>>>(0))?)
            })
        };
        let plain = Plain {
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
        Work::add(&queue.work.pushed, numbers.len());
        let ids: Vec<JobId> = numbers.into_iter().map(|number| format!("~{number}")).collect();
        let seen =
            |id: &JobId| Happened::Seen { id: id.clone(), state: Some(JobState::Ready), data: Some(None), error: None };
        self.tell(queue, ids.iter().map(seen).collect(), 0);
        Ok(Some(ids.into_iter().map(|id| pushed(id, PushOutcome::Added)).collect()))
    }
}
