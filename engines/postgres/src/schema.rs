//! The tables, and their versions.

use crate::error::Error;
use crate::fault::{Fault, of_statement};
use crate::options::quoted;
use postgres::{Client, IsolationLevel, Transaction};
use std::time::Duration;

/// The job queue: its tables and its functions, by subject.
macro_rules! queue_sql {
    () => {
        concat!(
            include_str!("../schema/queue/tables.sql"),
            include_str!("../schema/queue/ends.sql"),
            include_str!("../schema/queue/push.sql"),
            include_str!("../schema/queue/claim.sql"),
            include_str!("../schema/queue/tick.sql"),
            include_str!("../schema/queue/steer.sql"),
            include_str!("../schema/queue/look.sql"),
            include_str!("../schema/queue/grants.sql"),
        )
    };
}

/// The statements of all versions.
pub(crate) const ALL: &str = concat!(include_str!("../schema/001.sql"), queue_sql!());

/// The statements that make each version from the one before.
const VERSIONS: [&str; 2] = [include_str!("../schema/001.sql"), queue_sql!()];

/// The newest version.
pub(crate) const NEWEST: i64 = VERSIONS.len() as i64;

/// The key of the lock under which one process at a time migrates ("waterln" in bytes).
const LOCK: i64 = 0x77_6174_6572_6c6e;

/// Returns the statements of a version for this schema.
fn statements(version: &str, schema: &str) -> String {
    version.replace("{schema}", &quoted(schema))
}

/// Makes the tables, or brings them to the newest version, in one transaction. If they have it,
/// this needs no right but to read. It waits for others no longer than this.
pub(crate) fn migrate(client: &mut Client, schema: &str, patience: Duration) -> Result<(), Error> {
    let transaction = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).read_only(false);
    let mut transaction = transaction.start()?;
    transaction.batch_execute(&format!("SET LOCAL lock_timeout = {}", patience.as_millis()))?;
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK])?;
    let found = version(&mut transaction, schema)?;
    check(found, schema)?;
    for text in VERSIONS.into_iter().skip(usize::try_from(found).unwrap_or(0)) {
        transaction.batch_execute(&statements(text, schema))?;
    }
    Ok(transaction.commit()?)
}

/// Reads the version of the tables; 0 if there are none yet.
fn version(transaction: &mut Transaction<'_>, schema: &str) -> Result<i64, Error> {
    let table = format!("{}.version", quoted(schema));
    let is_there = transaction.query_one("SELECT to_regclass($1) IS NOT NULL", &[&table])?;
    if !is_there.get::<_, bool>(0) {
        return Ok(0);
    }
    let version = transaction.query_one(&format!("SELECT coalesce(max(version), 0) FROM {table}"), &[])?;
    Ok(version.get(0))
}

/// Refuses tables of any other version than this program's.
pub(crate) fn fits(found: i64, schema: &str) -> Result<(), Error> {
    if found < NEWEST {
        let what = format!("they have version {found}, and this program needs {NEWEST}");
        return Err(Error::Schema { schema: schema.to_owned(), what });
    }
    check(found, schema)
}

/// Names the table or column that is not there, if this error says so.
pub(crate) fn explained(error: postgres::Error, schema: &str) -> Error {
    match (of_statement(&error), error.as_db_error()) {
        (Fault::OfTables, Some(answer)) => {
            Error::Schema { schema: schema.to_owned(), what: answer.message().to_owned() }
        }
        _ => error.into(),
    }
}

/// Refuses tables of a version that this program does not know.
fn check(found: i64, schema: &str) -> Result<(), Error> {
    if found > NEWEST {
        return Err(Error::NewerSchema { schema: schema.to_owned(), found, known: NEWEST });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_schema_stands_in_no_comment() {
        for text in VERSIONS {
            let comments = text.lines().filter_map(|line| line.split_once("--"));
            let named: Vec<_> = comments.filter(|(_, comment)| comment.contains("{schema}")).collect();
            assert!(named.is_empty(), "{named:?}");
        }
        assert_eq!(statements("DROP SCHEMA {schema}", "a\nb\"c"), "DROP SCHEMA \"a\nb\"\"c\"");
    }
}
