//! The tables, and their versions.

use crate::error::Error;
use crate::fault::{Fault, of_statement};
use crate::options::quoted;
use postgres::{Client, Transaction};

/// The statements that make each version from the one before.
const VERSIONS: [&str; 1] = [include_str!("../schema/001.sql")];

/// The newest version.
pub(crate) const NEWEST: i64 = VERSIONS.len() as i64;

/// The key of the lock under which one process at a time migrates ("waterln" in bytes).
const LOCK: i64 = 0x77_6174_6572_6c6e;

/// Returns the statements of a version for this schema.
fn statements(version: &str, schema: &str) -> String {
    version.replace("{schema}", &quoted(schema))
}

/// Makes the tables, or brings them to the newest version, in one transaction.
pub(crate) fn migrate(client: &mut Client, schema: &str) -> Result<(), Error> {
    let mut transaction = client.transaction()?;
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK])?;
    let name = quoted(schema);
    transaction.batch_execute(&format!(
        "SET LOCAL client_min_messages = warning;
         CREATE SCHEMA IF NOT EXISTS {name};
         CREATE TABLE IF NOT EXISTS {name}.version (version bigint NOT NULL, made timestamptz NOT NULL DEFAULT now());"
    ))?;
    let found = version(&mut transaction, schema)?;
    check(found, schema)?;
    for (version, text) in (1_i64..).zip(VERSIONS).skip(usize::try_from(found).unwrap_or(0)) {
        transaction.batch_execute(&statements(text, schema))?;
        transaction.execute(&format!("INSERT INTO {name}.version (version) VALUES ($1)"), &[&version])?;
    }
    Ok(transaction.commit()?)
}

/// Reads the version of the tables; 0 if there are none yet.
fn version(transaction: &mut Transaction<'_>, schema: &str) -> Result<i64, Error> {
    let version = format!("SELECT coalesce(max(version), 0) FROM {}.version", quoted(schema));
    Ok(transaction.query_one(&version, &[])?.get::<_, i64>(0))
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
