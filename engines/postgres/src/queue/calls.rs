//! Calls of the functions of the schema, each on a connection of its own for that time.

use super::Queues;
use super::answers::Answer;
use super::faults::queue_error;
use super::opened::Opened;
use crate::error::Error;
use crate::fault::{Fault, of_statement};
use crate::options::quoted;
use crate::sql::Value;
use crate::statements::Statements;
use postgres::{Client, Row};
use std::time::Instant;
use waterline::queue::QueueError;

/// The most times that a call is made which met another one in the database.
const TRIES: u32 = 8;

impl Queues {
    /// Makes a call with a connection that is nobody else's meanwhile.
    pub(super) fn with<R: Send>(
        &self,
        clock: Option<u64>,
        call: impl Fn(&mut Client, &mut Statements) -> Result<R, Error> + Send + Sync,
    ) -> Result<R, Error> {
        let mut connection = self.idle.take().unwrap_or_else(|| self.store.connection());
        let mut tries = 0;
        let answer = loop {
            let answer = connection.ask(|client, statements| {
                if let Some(wall) = clock {
                    // Only a test moves a clock: its database reads this setting.
                    client.batch_execute(&format!("SELECT set_config('waterline.now', '{wall}', false)"))?;
                }
                call(client, statements)
            });
            tries += 1;
            match &answer {
                // The whole call is one transaction, which is gone.
                Err(Error::Database(error)) if of_statement(error) == Fault::Again && tries < TRIES => {}
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
        let answers: Result<Vec<_>, _> = rows.iter().map(Answer::of).collect();
        answers.map_err(|error| queue_error(queue.name(), doing, error.into()))
    }

    /// The call of a function in the schema.
    pub(super) fn sql_of(&self, function: &str, values: usize) -> String {
        let list: Vec<_> = (1..=values).map(|number| format!("${number}")).collect();
        format!("SELECT * FROM {}.{function}({})", quoted(&self.store.options().schema), list.join(", "))
    }
}
