//! Pushes of jobs.

use super::Queues;
use super::answers::{Answer, happened};
use super::faults::queue_error;
use super::opened::Opened;
use super::periodics::text;
use super::settings::of_job;
use crate::fault::{Fault, of_statement};
use crate::sql::Value;
use postgres::GenericClient;
use postgres::types::Type;
use std::sync::Arc;
use waterline::engine::{Happened, JobId, JobPush, PushOutcome, QueueNo, pushed};
use waterline::queue::{JobState, Pushed, QueueError};

const PUSH: &str = "push jobs";

/// Jobs that go together into one queue.
struct Pushing {
    queue: Arc<Opened>,
    kinds: Vec<String>,
    payloads: Vec<String>,
    settings: Vec<Option<String>>,
    is_batch: bool,
}

impl Pushing {
    fn new(queue: Arc<Opened>, pushes: &[JobPush]) -> Self {
        Self {
            queue,
            kinds: pushes.iter().map(|push| push.row.kind.clone()).collect(),
            payloads: pushes.iter().map(text).collect(),
            settings: pushes.iter().map(of_job).collect(),
            is_batch: pushes.iter().any(|push| push.awaited_by.is_some()),
        }
    }
}

/// The answers for each queue, or the error of one, with its name.
type Made = Result<Vec<Vec<Answer>>, (String, crate::Error)>;

/// Pushes jobs on this connection or in this transaction. An error of the functions comes with the
/// name of its queue.
fn push_on(client: &mut impl GenericClient, sql: &str, pushes: &[Pushing]) -> Result<Made, crate::Error> {
    let mut all = Vec::new();
    for Pushing { queue, kinds, payloads, settings, is_batch } in pushes {
        let values: [Value<'_>; 6] = [
            (&queue.name(), Type::TEXT),
            (kinds, Type::TEXT_ARRAY),
            (payloads, Type::TEXT_ARRAY),
            (settings, Type::TEXT_ARRAY),
            (is_batch, Type::BOOL),
            (&true, Type::BOOL),
        ];
        match client.query_typed(sql, &values) {
            Ok(rows) => all.push(rows.iter().map(Answer::of).collect::<Result<Vec<_>, _>>()?),
            Err(error) if of_statement(&error) == Fault::Again => return Err(error.into()),
            Err(error) => return Ok(Err((queue.name().to_owned(), error.into()))),
        }
    }
    Ok(Ok(all))
}

fn outcome_of(name: &str, id: JobId) -> PushOutcome {
    match name {
        "added" => PushOutcome::Added,
        "rescheduled" => PushOutcome::Rescheduled,
        "resubmit" => PushOutcome::Resubmit,
        _ => PushOutcome::Duplicate(id),
    }
}

impl Queues {
    fn push_sql(&self) -> String {
        let call = self.sql_of("push_jobs", 6);
        call.replacen("SELECT * FROM ", "SELECT a.* FROM unnest(", 1) + ") a"
    }

    /// Pushes jobs into their queues: all or none.
    pub(super) fn push_all(&self, pushes: &[(QueueNo, Vec<JobPush>)]) -> Result<Vec<Pushed>, QueueError> {
        let pushes: Vec<_> = pushes.iter().map(|(queue, pushes)| Pushing::new(self.of(*queue), pushes)).collect();
        let Some(first) = pushes.first() else { return Ok(Vec::new()) };
        let sql = self.push_sql();
        let made = self.with(first.queue.test_clock(), |client| {
            if pushes.len() == 1 {
                // One call is one transaction by itself.
                return push_on(client, &sql, &pushes);
            }
            let mut transaction = client.transaction()?;
            let made = push_on(&mut transaction, &sql, &pushes)?;
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
            for answer in answers.iter().filter(|answer| answer.what == "pushed") {
                let outcome = answer.outcome.as_deref().unwrap_or_default();
                if let Some(state) = answer.state().filter(|state| *state != JobState::Dead) {
                    told.push(Happened::Seen { id: answer.id(), state: Some(state), data: Some(None), error: None });
                }
                outcomes.push(pushed(answer.id(), outcome_of(outcome, answer.id())));
            }
            self.tell(queue, told);
        }
        Ok(outcomes)
    }
}
