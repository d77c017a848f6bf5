//! The tables, and their versions.

use crate::connection::STANDS;
use crate::error::Error;
use crate::error_class::{Fault, of_statement};
use crate::options::quoted;
use crate::sql::version_sql;
use postgres::{Client, IsolationLevel, Row, Transaction};
use std::time::Duration;

/// The longest wait for a table, behind which other calls wait meanwhile.
const SHORT: Duration = Duration::from_secs(3);

/// The version of the tables, and the oldest version of a program that they serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) found: i64,
    pub(crate) serves: i64,
}

impl Version {
    /// Reads both. Without a row, there are no tables yet.
    pub(crate) fn of(row: Option<&Row>) -> Result<Self, postgres::Error> {
        row.map_or(Ok(Self::default()), |row| Ok(Self { found: row.try_get(0)?, serves: row.try_get(1)? }))
    }
}

/// The statements that make the tables and the functions, by subject.
pub(crate) const ALL: &str = concat!(
    include_str!("../schema/progress.sql"),
    include_str!("../schema/queue/tables.sql"),
    include_str!("../schema/queue/checks.sql"),
    include_str!("../schema/queue/edges.sql"),
    include_str!("../schema/queue/ends.sql"),
    include_str!("../schema/queue/finish.sql"),
    include_str!("../schema/queue/place.sql"),
    include_str!("../schema/queue/push.sql"),
    include_str!("../schema/queue/limits.sql"),
    include_str!("../schema/queue/claim.sql"),
    include_str!("../schema/queue/limited.sql"),
    include_str!("../schema/queue/clock.sql"),
    include_str!("../schema/queue/tick.sql"),
    include_str!("../schema/queue/turn.sql"),
    include_str!("../schema/queue/requeue.sql"),
    include_str!("../schema/queue/steer.sql"),
    include_str!("../schema/queue/remove.sql"),
    include_str!("../schema/queue/workers.sql"),
    include_str!("../schema/queue/look.sql"),
    include_str!("../schema/queue/work.sql"),
    include_str!("../schema/queue/answers.sql"),
    include_str!("../schema/queue/grants.sql"),
);

/// The statements that make each version from the one before.
const VERSIONS: [&str; 1] = [ALL];

pub(crate) const NEWEST: i64 = VERSIONS.len() as i64;

/// The key of the lock under which one process at a time migrates ("waterln" in bytes).
const LOCK: i64 = 0x77_6174_6572_6c6e;

fn statements(version: &str, schema: &str) -> String {
    version.replace("{schema}", &quoted(schema))
}

/// Makes the tables, or upgrades them to the newest version, in one transaction. If they have it,
/// the caller needs to read only. It waits for others for `patience` at most.
pub(crate) fn migrate(client: &mut Client, schema: &str, patience: Duration) -> Result<(), Error> {
    let transaction = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).read_only(false);
    let mut transaction = transaction.start()?;
    // Other processes that start wait for this lock, so a frozen one loses it.
    transaction.batch_execute(&format!(
        "SET LOCAL lock_timeout = {}; SET LOCAL idle_in_transaction_session_timeout = {}",
        patience.as_millis(),
        STANDS.as_millis()
    ))?;
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK])?;
    let version = version(&mut transaction, schema)?;
    check(version, schema)?;
    transaction.batch_execute(&format!("SET LOCAL lock_timeout = {}", patience.min(SHORT).as_millis()))?;
    for text in VERSIONS.into_iter().skip(usize::try_from(version.found).unwrap_or(0)) {
        transaction.batch_execute(&statements(text, schema))?;
    }
    Ok(transaction.commit()?)
}

fn version(transaction: &mut Transaction<'_>, schema: &str) -> Result<Version, Error> {
    let table = format!("{}.version", quoted(schema));
    let is_there = transaction.query_one("SELECT to_regclass($1) IS NOT NULL", &[&table])?;
    if !is_there.get::<_, bool>(0) {
        return Ok(Version::default());
    }
    Ok(Version::of(transaction.query_opt(&version_sql(schema), &[])?.as_ref())?)
}

/// Refuses tables that are older than this program, or no longer serve it.
pub(crate) fn fits(version: Version, schema: &str) -> Result<(), Error> {
    if version.found < NEWEST {
        let what = format!("they have version {}, and this program needs {NEWEST}", version.found);
        return Err(Error::Schema { schema: schema.to_owned(), what });
    }
    check(version, schema)
}

/// Names the missing table or column, if the error is about one.
pub(crate) fn explained(error: postgres::Error, schema: &str) -> Error {
    match (of_statement(&error), error.as_db_error()) {
        (Fault::OfTables, Some(answer)) => {
            Error::Schema { schema: schema.to_owned(), what: answer.message().to_owned() }
        }
        _ => error.into(),
    }
}

/// Refuses tables of a newer version that does not serve this program.
fn check(version: Version, schema: &str) -> Result<(), Error> {
    if version.found > NEWEST && version.serves > NEWEST {
        return Err(Error::NewerSchema { schema: schema.to_owned(), found: version.found, known: NEWEST });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_fit_the_programs_that_they_serve() {
        let version = |found, serves| Version { found, serves };
        let fits = |found, serves| fits(version(found, serves), "s").is_ok();
        let found = [NEWEST - 1, NEWEST, NEWEST + 1, NEWEST + 5];
        assert_eq!(found.map(|found| fits(found, found)), [false, true, false, false], "those alone");
        assert_eq!(found.map(|found| fits(found, NEWEST)), [false, true, true, true], "and this one");
        // An older program goes on, and makes nothing that a newer one has left out.
        assert!(check(version(NEWEST - 1, 1), "s").is_ok() && check(version(NEWEST + 1, NEWEST), "s").is_ok());
    }

    #[test]
    fn no_comment_has_the_name_of_the_schema() {
        for text in VERSIONS {
            let comments = text.lines().filter_map(|line| line.split_once("--"));
            let named: Vec<_> = comments.filter(|(_, comment)| comment.contains("{schema}")).collect();
            assert!(named.is_empty(), "{named:?}");
        }
        assert_eq!(statements("DROP SCHEMA {schema}", "a\nb\"c"), "DROP SCHEMA \"a\nb\"\"c\"");
    }
}
