//! Calls of the schema's functions, each on a connection that no other call uses meanwhile.

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

/// How often a call is made that conflicts with another one in the database.
const TRIES: u32 = 8;

impl Queues {
    /// Makes a call, as one transaction, on a connection of its own.
    ///
    /// Behind a pooler this crate cannot set the isolation level of a session. If it is not the one
    /// that the functions need, this call and all later ones run in a transaction that states its
    /// level.
    pub(super) fn with<R: Send>(
        &self,
        clock: Option<u64>,
        call: impl Fn(&mut Client, &mut Statements) -> Result<R, Error> + Send + Sync,
    ) -> Result<R, Error> {
        self.with_level(clock, false, call)
    }

    /// Like [`with`](Self::with); `is_said`: the call itself begins a transaction and states its
    /// level.
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
                // The whole call was one transaction, which is rolled back.
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

    /// Calls a procedure, which states its level and commits before it answers.
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

    /// Returns the call of a procedure that answers with `answers` values.
    pub(super) fn call_of(&self, procedure: &str, values: usize, answers: usize) -> String {
        let mut list: Vec<_> = (1..=values).map(|number| format!("${number}")).collect();
        list.extend((0..answers).map(|_| "NULL".to_owned()));
        format!("CALL {}.{procedure}({})", quoted(&self.store.options().schema), list.join(", "))
    }

    pub(super) fn sql_of(&self, function: &str, values: usize) -> String {
        let list: Vec<_> = (1..=values).map(|number| format!("${number}")).collect();
        format!("SELECT * FROM {}.{function}({})", quoted(&self.store.options().schema), list.join(", "))
    }
}
