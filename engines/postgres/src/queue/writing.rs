//! Runners whose jobs write rows: the rows and the ends of many jobs are one transaction.

use super::Queues;
use super::answers::{ended, happened};
use super::within::queues_of;
use crate::connection::Connection;
use crate::error::Error;
use crate::fault::{Fault, fault_of, of_statement};
use postgres::{Client, IsolationLevel, Transaction};
use std::time::{Duration, Instant};
use waterline::BoxError;
use waterline::engine::{Held, OwnEnd, running_parts, take_end};
use waterline::queue::{Finisher, JobState, Outcome, RunnerBuilder, Running};

mod batches;

pub use batches::RunnerExt;

/// The number of times that a transaction is made again at once, after a deadlock.
const AGAIN: u32 = 5;
/// The time for which a commit whose answer was lost is looked for, and for which a server that is
/// not there is waited for. Then nobody knows.
const OUTAGE: Duration = Duration::from_secs(60);

/// The end of a transaction.
enum Wrote {
    /// The state of each job then; `None`: nothing of it is kept.
    Written(Vec<Option<JobState>>),
    /// Nothing is written, since these jobs are no longer this worker's.
    Lost(Vec<usize>),
    /// Nothing is written.
    Failed(BoxError),
    Unknown(String),
}

/// The end of one try.
enum Tried {
    Done(Wrote),
    Again(BoxError),
    /// The server is not there, which is no fault of a job.
    Away(BoxError),
    /// The answer of the COMMIT of this transaction was lost.
    InDoubt {
        transaction: String,
        states: Vec<Option<JobState>>,
        error: String,
    },
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

impl Queues {
    /// Makes one transaction of the user's statements and the ends of jobs.
    fn write_with(&self, jobs: &[Held], write: &mut Write<'_>) -> Wrote {
        let idle = self.idle.lock().pop();
        let mut connection: Connection = idle.unwrap_or_else(|| self.store.connection());
        let (mut tries, mut pauses) = (0, Pauses::new());
        let tried = loop {
            let tried = connection.with(|client| match client {
                Ok(client) => self.try_to_write(client, jobs, write),
                Err(error) => Tried::Away(error.into()),
            });
            match tried {
                Tried::Again(_) if tries < AGAIN => tries += 1,
                Tried::Away(_) if pauses.pause() => connection.close(),
                tried => break tried,
            }
        };
        let wrote = match tried {
            Tried::Done(wrote) => wrote,
            Tried::Again(error) => Wrote::Failed(error),
            Tried::Away(error) => Wrote::Unknown(error.to_string()),
            Tried::InDoubt { transaction, states, error } => {
                connection.close();
                match was_committed(&mut connection, &transaction) {
                    Ok(Some(true)) => Wrote::Written(states),
                    Ok(Some(false)) => Wrote::Failed(error.into()),
                    Ok(None) => Wrote::Unknown(format!("{error}; the server does not know the transaction")),
                    Err(now) => Wrote::Unknown(format!("{error}; {}", now.in_full())),
                }
            }
        };
        // A lease that stays would be renewed for ever, and the job would never run again.
        match &wrote {
            Wrote::Written(_) | Wrote::Unknown(_) => jobs.iter().for_each(|job| self.leases.remove(job)),
            Wrote::Lost(lost) => lost.iter().for_each(|at| self.leases.remove(&jobs[*at])),
            Wrote::Failed(_) => {}
        }
        self.idle.lock().push(connection);
        wrote
    }

    fn try_to_write(&self, client: &mut Client, jobs: &[Held], write: &mut Write<'_>) -> Tried {
        let begun = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).read_only(false).start();
        let mut transaction = match begun {
            Ok(transaction) => transaction,
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
        // The answers have ids, which are those of one queue.
        let mut queues: Vec<_> = jobs.iter().map(|job| job.queue).collect();
        queues.sort_unstable();
        queues.dedup();
        for queue in queues {
            let places: Vec<_> = (0..jobs.len()).filter(|at| jobs[*at].queue == queue).collect();
            let own: Vec<_> = places.iter().map(|at| jobs[*at].clone()).collect();
            let answers = match self.end_in(&mut transaction, &own, &vec![None; own.len()], false) {
                Ok(answers) => answers,
                Err(Error::Database(error)) => return error.into(),
                Err(error) => return Tried::Done(Wrote::Failed(error.into())),
            };
            let ended = ended(&answers);
            for at in places {
                match ended.get(&self.leases.key(&jobs[at])) {
                    Some(answer) if answer.is_counted() => states[at] = answer.state(),
                    _ => lost.push(at),
                }
            }
            told.push((queue, happened(&answers)));
        }
        if !lost.is_empty() {
            lost.sort_unstable();
            return Tried::Done(Wrote::Lost(lost));
        }
        let number = transaction.query_typed("SELECT pg_current_xact_id()::text", &[]);
        let number = match number.and_then(|rows| rows.first().map_or(Ok(String::new()), |row| row.try_get(0))) {
            Ok(number) => number,
            Err(error) => return error.into(),
        };
        match transaction.commit() {
            Ok(()) => {
                told.into_iter().for_each(|(queue, told)| self.tell(&self.of(queue), told));
                Tried::Done(Wrote::Written(states))
            }
            Err(error) => match error.as_db_error().map(|_| of_statement(&error)) {
                Some(Fault::Again) => Tried::Again(error.into()),
                Some(Fault::OfUser) => Tried::Done(Wrote::Failed(error.into())),
                // Only an answer of the server says what has become of it.
                _ => Tried::InDoubt { transaction: number, states, error: Error::from(error).in_full() },
            },
        }
    }
}

/// Asks what has become of a transaction until it has ended. `None`: the server does not know.
fn was_committed(connection: &mut Connection, transaction: &str) -> Result<Option<bool>, Error> {
    let mut pauses = Pauses::new();
    let ask = "SELECT pg_xact_status($1::text::xid8)";
    loop {
        let status = connection.call(|client| {
            let rows = client.query_typed(ask, &[(&transaction, postgres::types::Type::TEXT)])?;
            Ok(rows.first().map_or(Ok(None), |row| row.try_get::<_, Option<String>>(0))?)
        });
        match status {
            Ok(Some(status)) if status == "committed" => return Ok(Some(true)),
            Ok(Some(status)) if status == "aborted" => return Ok(Some(false)),
            Ok(None) => return Ok(None),
            _ if pauses.pause() => {}
            Ok(Some(_)) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

/// The pauses before a call is made again while the server is away.
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
