//! Calls of the schema's functions, each on a connection that no other call uses meanwhile.

use super::answers::{all_of, each_of};
use super::faults::{Failed, is_of_level};
use super::idle::Idle;
use crate::connection::{Connection, has_stood_still, in_transaction};
use crate::error::Error;
use crate::error_class::{Fault, of_statement};
use crate::options::quoted;
use crate::sql::Value;
use crate::statements::Statements;
use crate::store::PgStore;
use postgres::{Client, Row};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use waterline_queue::remote::{Answers, At};

/// How often a call is made that conflicts with another one in the database.
const TRIES: u32 = 8;

/// The values of a call, each behind its type.
macro_rules! values {
    ($($of:ident $value:expr),+ $(,)?) => {
        [$((&$value as &(dyn postgres::types::ToSql + Sync), postgres::types::Type::$of)),+]
    };
}
pub(super) use values;

/// The database of queues.
pub(crate) struct Database {
    pub(super) store: PgStore,
    /// A pooler gives the calls sessions of another isolation level than they need.
    says_level: AtomicBool,
    pub(super) idle: Idle<Connection>,
}

impl Database {
    pub(super) fn new(store: PgStore) -> Self {
        let idle = Idle::new(store.options().idle);
        Self { store, says_level: AtomicBool::default(), idle }
    }

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
    pub(super) fn rows(&self, at: At<'_>, function: &str, values: &[Value<'_>]) -> Result<Vec<Row>, Error> {
        let sql = self.sql_of(function, values.len());
        self.with(at.clock, |client, statements| Ok(statements.query(client, &sql, values)?))
    }

    /// Does the same, and reads each row.
    pub(super) fn read<T>(
        &self,
        at: At<'_>,
        function: &str,
        values: &[Value<'_>],
        read: impl Fn(&Row) -> Result<T, postgres::Error>,
    ) -> Result<Vec<T>, Failed> {
        self.rows(at, function, values)?.iter().map(|row| read(row).map_err(Failed::misread)).collect()
    }

    /// Calls a function whose rows are answers.
    pub(super) fn answers(&self, at: At<'_>, function: &str, values: &[Value<'_>]) -> Answers<Failed> {
        Ok(each_of(&self.rows(at, function, values)?)?)
    }

    /// Calls a procedure, which states its level and commits before it answers.
    pub(super) fn committed(&self, at: At<'_>, procedure: &str, values: &[Value<'_>]) -> Answers<Failed> {
        let sql = self.call_of(procedure, values.len(), 2);
        let rows = self.with_level(at.clock, true, |client, statements| Ok(statements.query(client, &sql, values)?));
        Ok(all_of(&rows?)?)
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
