//! The statements that a connection has prepared: the server reads and plans each of them once.
//!
//! A pooler that gives each transaction another connection (PgBouncer before 1.21) knows none of
//! them, or those of somebody else. So they are for a connection that leads to the server itself:
//! the process that it was told of when it began is the one that answers.

use crate::sql::Value;
use postgres::error::SqlState;
use postgres::types::{ToSql, Type};
use postgres::{Client, Error, Row, Statement};
use std::collections::HashMap;

/// The statements of one connection.
pub(crate) struct Statements {
    /// The process of the server that the connection was told of; 0: none.
    process: i32,
    /// True if that process answers. `None`: nobody has asked so far.
    is_direct: Option<bool>,
    prepared: HashMap<String, Statement>,
}

impl Statements {
    pub(crate) fn new(process: i32) -> Self {
        Self { process, is_direct: None, prepared: HashMap::new() }
    }

    /// Runs a statement, outside a transaction.
    pub(crate) fn query(&mut self, client: &mut Client, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, Error> {
        if !self.is_direct(client)? {
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

    fn is_direct(&mut self, client: &mut Client) -> Result<bool, Error> {
        if self.process == 0 {
            return Ok(false);
        }
        if let Some(is_direct) = self.is_direct {
            return Ok(is_direct);
        }
        let answer = client.query_typed("SELECT pg_backend_pid()", &[])?;
        let process = answer.first().map_or(Ok(0), |row| row.try_get::<_, i32>(0))?;
        Ok(*self.is_direct.insert(process == self.process))
    }
}

/// True if the server has forgotten the statement (`DISCARD ALL`), or a migration has changed what
/// it answers with.
fn is_outdated(error: &Error) -> bool {
    // (The server says of a changed answer that it does not support that, in its own language.)
    let codes = [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::FEATURE_NOT_SUPPORTED];
    error.as_db_error().is_some_and(|error| codes.contains(error.code()))
}
