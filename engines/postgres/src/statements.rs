//! The statements that a connection has prepared, which the server parses and plans once.
//!
//! Behind a pooler in transaction mode (PgBouncer before 1.21), a connection may know none of them,
//! or those of another client. So they are used only on a connection to the server itself: the
//! process that it was told of when it began is the one that answers.

#![cfg_attr(not(feature = "queue"), allow(dead_code, reason = "a stream alone prepares nothing"))]

use crate::sql::Value;
use postgres::error::SqlState;
use postgres::types::{ToSql, Type};
use postgres::{Client, Error, Row, Statement};
use std::collections::HashMap;

#[derive(Default)]
pub(crate) struct Statements {
    /// True if it leads to the server itself.
    is_direct: bool,
    prepared: HashMap<String, Statement>,
}

impl Statements {
    /// Asks which process answers on a new connection that was told of `told` (0: of none). If it
    /// is the same, the session is this connection's own, and gets the isolation level that the
    /// functions need: a database or a role may have another default.
    pub(crate) fn of(client: &mut Client, told: i32) -> Result<Self, Error> {
        let asked = "SELECT pg_backend_pid(), current_setting('default_transaction_isolation')";
        let answer = client.query_typed_one(asked, &[])?;
        let (process, level): (i32, String) = (answer.try_get(0)?, answer.try_get(1)?);
        let is_direct = process == told;
        if is_direct && level != "read committed" {
            client.batch_execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED")?;
        }
        Ok(Self { is_direct, prepared: HashMap::new() })
    }

    /// True if the connection leads to the server itself, and not to a pooler.
    pub(crate) fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Runs a statement, outside a transaction.
    pub(crate) fn query(&mut self, client: &mut Client, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, Error> {
        if !self.is_direct {
            return client.query_typed(sql, values);
        }
        let statement = match self.prepared.get(sql) {
            Some(statement) => statement.clone(),
            None => {
                let types: Vec<Type> = values.iter().map(|(_, of)| of.clone()).collect();
                let statement = client.prepare_typed(sql, &types)?;
                self.prepared.insert(sql.to_owned(), statement.clone());
                statement
            }
        };
        let values_only: Vec<&(dyn ToSql + Sync)> = values.iter().map(|(value, _)| *value).collect();
        match client.query(&statement, &values_only) {
            Err(error) if is_outdated(&error) => {
                // Nothing was done. The next call prepares it anew.
                self.prepared.remove(sql);
                client.query_typed(sql, values)
            }
            answer => answer,
        }
    }
}

/// Whether the server has forgotten the statement (`DISCARD ALL`), or its answer has changed.
fn is_outdated(error: &Error) -> bool {
    // (Of a changed answer the server says, in its own language, that it does not support that.)
    let codes = [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::FEATURE_NOT_SUPPORTED];
    error.as_db_error().is_some_and(|error| codes.contains(error.code()))
}
