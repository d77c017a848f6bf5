//! Runners whose jobs write rows: the rows and the ends of many jobs are one transaction.

use super::Queues;
use super::calls::values;
use super::server::known;
use super::within::{end_in, queues_of};
use crate::connection::Connection;
use crate::error::Error;
use crate::error_class::{Fault, fault_of, of_statement};
use crate::sql::TIMELINE;
use postgres::{Client, IsolationLevel, Transaction};
use std::time::{Duration, Instant};
use waterline::BoxError;
use waterline_queue::engine_api::{Held, OwnEnd, running_parts, take_end};
use waterline_queue::remote::ended;
use waterline_queue::{Finisher, JobState, Outcome, RunnerBuilder, Running};

mod batches;
mod handlers;

pub use handlers::RunnerExt;

/// How often a transaction is retried at once after a deadlock.
const AGAIN: u32 = 5;
/// How long a commit whose answer was lost is looked for, and an absent server is waited for,
/// before the outcome counts as unknown.
const OUTAGE: Duration = Duration::from_secs(60);
/// The longest time that a setting of the server can have.
const MOST_MILLIS: u128 = i32::MAX as u128;

enum Wrote {
    /// The state of each job afterwards; `None`: it is not kept.
    Written(Vec<Option<JobState>>),
    /// Nothing is written, since this worker no longer has these jobs.
    Lost(Vec<usize>),
    /// Nothing is written.
    Failed(BoxError),
    Unknown(String),
}

enum Tried {
    Done(Wrote),
    Again(BoxError),
    /// The server cannot be reached, which is no fault of a job.
    Away(BoxError),
    /// The answer to the COMMIT of this transaction was lost.
    InDoubt {
        transaction: Id,
        states: Vec<Option<JobState>>,
        error: String,
    },
}

/// A transaction, and the timeline of the server that knows it. A promoted replica may give the
/// same number to another one.
struct Id {
    number: String,
    timeline: i64,
}

impl From<postgres::Error> for Tried {
    fn from(error: postgres::Error) -> Self {
        match of_statement(&error) {
            Fault::Again => Self::Again(error.into()),
            Fault::OfServer => Self::Away(error.into()),
            _ => Self::Done(Wrote::Failed(error.into())),
        }
    }
}

type Write<'a> = dyn FnMut(&mut Transaction<'_>) -> Result<(), BoxError> + Send + 'a;

/// Runs the user's statements and the ends of jobs in one transaction.
fn write_with(queues: &Queues, jobs: &[Held], write: &mut Write<'_>) -> Wrote {
    let mut connection = queues.server().idle.take().unwrap_or_else(|| queues.server().store.connection());
    let (mut tries, mut pauses) = (0, Pauses::new());
    let wrote = loop {
        let tried = connection.with(|client| match client {
            Ok(client) => try_to_write(queues, client, jobs, write),
            Err(error) => Tried::Away(error.into()),
        });
        match tried {
            Tried::Again(_) if tries < AGAIN => tries += 1,
            Tried::Away(_) if pauses.pause() => connection.close(),
            Tried::InDoubt { transaction, states, error } => {
                connection.close();
                match was_committed(queues, &mut connection, &transaction, jobs) {
                    Ok(Some(true)) => break Wrote::Written(states),
                    // The server failed, and not a job.
                    Ok(Some(false)) if pauses.pause() => {}
                    Ok(Some(false)) => break Wrote::Failed(error.into()),
                    Ok(None) => break Wrote::Unknown(format!("{error}; the server does not know the transaction")),
                    Err(now) => break Wrote::Unknown(format!("{error}; {}", now.in_full())),
                }
            }
            Tried::Done(wrote) => break wrote,
            Tried::Again(error) => break Wrote::Failed(error),
            Tried::Away(error) => break Wrote::Unknown(error.to_string()),
        }
    };
    // A lease that stays would be renewed for ever, and the job would never run again.
    match &wrote {
        Wrote::Written(_) | Wrote::Unknown(_) => jobs.iter().for_each(|job| queues.forget(job)),
        Wrote::Lost(lost) => lost.iter().for_each(|at| queues.forget(&jobs[*at])),
        Wrote::Failed(_) => {}
    }
    queues.server().idle.give(connection, Instant::now());
    wrote
}

fn try_to_write(queues: &Queues, client: &mut Client, jobs: &[Held], write: &mut Write<'_>) -> Tried {
    let begun = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start();
    let mut transaction = match begun {
        Ok(transaction) => transaction,
        Err(error) => return error.into(),
    };
    let leases = jobs.iter().map(|job| queues.lease(job.queue));
    let id = match begin(&mut transaction, leases.min().unwrap_or_default()) {
        Ok(id) => id,
        Err(error) => return error.into(),
    };
    if let Err(error) = write(&mut transaction) {
        return match fault_of(&*error) {
            Fault::Again => Tried::Again(error),
            Fault::OfServer => Tried::Away(error),
            _ => Tried::Done(Wrote::Failed(error)),
        };
    }
    let (mut states, mut lost, mut told) = (vec![None; jobs.len()], Vec::new(), Vec::new());
    // The answers have ids, which are unique within one queue only.
    let mut own: Vec<_> = jobs.iter().map(|job| job.queue).collect();
    own.sort_unstable();
    own.dedup();
    for queue in own {
        let places: Vec<_> = (0..jobs.len()).filter(|at| jobs[*at].queue == queue).collect();
        let own: Vec<_> = places.iter().map(|at| jobs[*at].clone()).collect();
        let answers = match end_in(queues, &mut transaction, &own, &vec![None; own.len()], false) {
            Ok(answers) => answers,
            Err(Error::Database(error)) => return error.into(),
            Err(error) => return Tried::Done(Wrote::Failed(error.into())),
        };
        let (ended, runs) = (ended(&answers), queues.runs(&own));
        for (own, at) in places.into_iter().enumerate() {
            match ended.get(&(runs.numbers[own], runs.tokens[own])) {
                Some(answer) if answer.is_counted() => states[at] = answer.state(),
                _ => lost.push(at),
            }
        }
        told.push((queue, answers));
    }
    if !lost.is_empty() {
        lost.sort_unstable();
        return Tried::Done(Wrote::Lost(lost));
    }
    match transaction.commit() {
        Ok(()) => {
            told.iter().for_each(|(queue, answers)| queues.tell_of(*queue, answers));
            Tried::Done(Wrote::Written(states))
        }
        Err(error) => match error.as_db_error().map(|_| of_statement(&error)) {
            Some(Fault::Again) => Tried::Again(error.into()),
            Some(Fault::OfUser) => Tried::Done(Wrote::Failed(error.into())),
            // Only an answer of the server tells what became of it.
            _ => Tried::InDoubt { transaction: id, states, error: Error::from(error).in_full() },
        },
    }
}

/// Returns three quarters of a lease, in milliseconds, as a setting of the server.
fn idle_millis(lease: Duration) -> u128 {
    (lease / 4 * 3).as_millis().clamp(1, MOST_MILLIS)
}

/// Returns the id of a transaction, and bounds its idle time: a process that is stopped within it
/// locks the user's rows and, once their ends are written, the jobs.
fn begin(transaction: &mut Transaction<'_>, lease: Duration) -> Result<Id, postgres::Error> {
    let most = idle_millis(lease);
    let sql = format!(
        "SELECT pg_current_xact_id()::text, {TIMELINE}, set_config('idle_in_transaction_session_timeout', '{most}', true)"
    );
    let rows = transaction.query_typed(&sql, &[])?;
    let none = Id { number: String::new(), timeline: 0 };
    rows.first().map_or(Ok(none), |row| Ok(Id { number: row.try_get(0)?, timeline: row.try_get(1)? }))
}

/// Asks what became of a transaction with the ends of these jobs, until it has ended. `None`:
/// the server does not know.
fn was_committed(queues: &Queues, connection: &mut Connection, of: &Id, jobs: &[Held]) -> Result<Option<bool>, Error> {
    let mut pauses = Pauses::new();
    // Another timeline answers for its own transactions only.
    let ask = format!("SELECT CASE WHEN {TIMELINE} = $2 THEN pg_xact_status($1::text::xid8) ELSE 'other' END");
    loop {
        let status = connection.call(|client| {
            let values = values![TEXT of.number, INT8 of.timeline];
            let rows = client.query_typed(&ask, &values)?;
            let status = rows.first().map_or(Ok(None), |row| row.try_get::<_, Option<String>>(0))?;
            Ok((status.unwrap_or_default(), have_ended(queues, client, jobs)?))
        });
        match status {
            // After a crash, a server gives the number of a lost transaction to another one.
            Ok((status, known)) if status == "committed" => return Ok(Some(known.unwrap_or(true))),
            Ok((status, _)) if status == "aborted" => return Ok(Some(false)),
            Ok((status, known)) if status.is_empty() || status == "other" => return Ok(known),
            _ if pauses.pause() => {}
            Ok((_, known)) => return Ok(known),
            Err(error) => return Err(error),
        }
    }
}

/// Returns whether a transaction has ended these jobs, by their rows. `None`: all are gone,
/// which a third transaction may have done.
fn have_ended(queues: &Queues, client: &mut Client, jobs: &[Held]) -> Result<Option<bool>, Error> {
    let runs = queues.runs(jobs);
    let values = values![INT8_ARRAY runs.numbers, INT8_ARRAY runs.tokens];
    let rows = client.query_typed(&queues.server().sql_of("ended_by", 2), &values)?;
    let mut have_ended = None;
    for (outcome, state) in rows.first().map_or(Ok(Vec::new()), known)? {
        match (&*outcome, state) {
            ("counted", _) => return Ok(Some(true)),
            // It runs by this claim; or it waits, runs or has ended by another one.
            ("held", _) | (_, Some(_)) => have_ended = Some(false),
            _ => {}
        }
    }
    Ok(have_ended)
}

/// The pauses between retries while the server is away.
struct Pauses {
    until: Instant,
    next: Duration,
}

impl Pauses {
    fn new() -> Self {
        Self { until: Instant::now() + OUTAGE, next: Duration::from_millis(5) }
    }

    /// Waits. Returns false once it has waited for long enough.
    fn pause(&mut self) -> bool {
        if Instant::now() >= self.until {
            return false;
        }
        std::thread::park_timeout(self.next);
        self.next = (self.next * 2).min(Duration::from_millis(500));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_of_any_length_bounds_a_transaction() {
        let millis = [Duration::ZERO, Duration::from_millis(1), Duration::from_secs(2), Duration::MAX].map(idle_millis);
        assert_eq!(millis, [1, 1, 1_500, MOST_MILLIS]);
    }
}
