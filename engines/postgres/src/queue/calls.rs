//! Calls of the functions of the schema, each on a connection of its own for that time.

use super::answers::Answer;
use super::faults::{is_of_level, queue_error};
use super::opened::Opened;
use super::queues::Queues;
use crate::connection::{has_stood_still, in_transaction};
use crate::error::Error;
use crate::error_class::{Fault, of_statement};
use crate::options::quoted;
use crate::sql::Value;
use crate::statements::Statements;
use postgres::{Client, Row};
use std::sync::atomic::Ordering;
use std::time::Instant;
use waterline_queue::QueueError;

/// The most times that a call is made which met another one in the database.
const TRIES: u32 = 8;

impl Queues {
    /// Makes a call with a connection that no other call uses meanwhile. It is one transaction.
    ///
    /// Behind a pooler the level of a session is not ours to set. If that is another one than the
    /// functions need, this call and all later ones are made in a transaction that says its level.
    pub(super) fn with<R: Send>(
        &self,
        clock: Option<u64>,
        call: impl Fn(&mut Client, &mut Statements) -> Result<R, Error> + Send + Sync,
    ) -> Result<R, Error> {
        self.with_level(clock, false, call)
    }

    /// The same. `is_said`: the call begins a transaction by itself, and says its level.
    pub(super) fn with_level<R: Send>(
        &self,
        clock: Option<u64>,
        is_said: bool,
        call: impl Fn(&mut Client, &mut Statements) -> Result<R, Error> + Send + Sync,
    ) -> Result<R, Error> {
        let mut connection = self.idle.take().unwrap_or_else(|| self.store.connection());
        let mut tries = 0;
        let answer = loop {
            let says_level = is_said || self.says_level.load(Ordering::Relaxed);
            let answer = connection.ask(|client, statements| {
                if let Some(wall) = clock {
                    // Only a test moves a clock: its database reads this setting.
                    client.batch_execute(&format!("SELECT set_config('waterline.now', '{wall}', false)"))?;
                }
                if is_said || statements.is_direct() || !says_level {
                    return call(client, statements);
                }
                in_transaction(client, |client| call(client, statements))
            });
            tries += 1;
            match &answer {
                // The whole call is one transaction, which is gone.
                Err(Error::Database(error))
                    if tries < TRIES && (of_statement(error) == Fault::Again || has_stood_still(error)) => {}
                Err(Error::Database(error)) if is_of_level(error) && !says_level => {
                    self.says_level.store(true, Ordering::Relaxed);
                }
                _ => break answer,
            }
        };
        self.idle.give(connection, Instant::now());
        answer
    }

    /// Calls a function that answers with rows.
    pub(super) fn rows(
        &self,
        queue: &Opened,
        doing: &str,
        function: &str,
        values: &[Value<'_>],
    ) -> Result<Vec<Row>, QueueError> {
        let sql = self.sql_of(function, values.len());
        let rows = self.with(queue.test_clock(), |client, statements| Ok(statements.query(client, &sql, values)?));
        rows.map_err(|error| queue_error(queue.name(), doing, error))
    }

    /// Calls a function whose rows are answers.
    pub(super) fn answers(
        &self,
        queue: &Opened,
        doing: &str,
        function: &str,
        values: &[Value<'_>],
    ) -> Result<Vec<Answer>, QueueError> {
        let rows = self.rows(queue, doing, function, values)?;
        Answer::each_of(&rows).map_err(|error| queue_error(queue.name(), doing, error.into()))
    }

    /// Calls a procedure, which commits before it answers and says its level. Returns its answers.
    pub(super) fn committed(
        &self,
        queue: &Opened,
        doing: &str,
        procedure: &str,
        values: &[Value<'_>],
    ) -> Result<Vec<Answer>, QueueError> {
        let sql = self.call_of(procedure, values.len(), 2);
        let rows =
            self.with_level(queue.test_clock(), true, |client, statements| Ok(statements.query(client, &sql, values)?));
        let answers = rows.and_then(|rows| Ok(Answer::all_of(&rows)?));
        answers.map_err(|error| queue_error(queue.name(), doing, error))
    }

    /// The call of a procedure in the schema, which answers with so many values.
    pub(super) fn call_of(&self, procedure: &str, values: usize, answers: usize) -> String {
        let mut list: Vec<_> = (1..=values).map(|number| format!("${number}")).collect();
        list.extend((0..answers).map(|_| "NULL".to_owned()));
        format!("CALL {}.{procedure}({})", quoted(&self.store.options().schema), list.join(", "))
    }

    /// The call of a function in the schema.
    pub(super) fn sql_of(&self, function: &str, values: usize) -> String {
        let list: Vec<_> = (1..=values).map(|number| format!("${number}")).collect();
        format!("SELECT * FROM {}.{function}({})", quoted(&self.store.options().schema), list.join(", "))
    }
}
