//! The statements of a look, and who it waits for.

use super::looks::{Holder, Lsn, Seen};
use super::table::Stream;
use crate::error::Error;
use crate::options::quoted;
use postgres::types::{PgLsn, Type};
use postgres::{Client, Row, Statement};
use std::time::Duration;

/// The statements about one table on one connection.
pub(crate) struct Statements {
    look: Statement,
    /// The names of the table and of its sequence.
    names: [String; 2],
    rows: String,
    begin: String,
    flush: String,
}

/// The server, as a look has seen it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Server {
    /// The time at which it was started.
    pub(crate) started: f64,
    pub(crate) timeline: String,
}

/// The transaction that a look waits for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Writer {
    Session { process: i32, application: String, state: String, age: Option<Duration> },
    Prepared { name: String, age: Option<Duration> },
}

impl Statements {
    pub(crate) fn new(client: &mut Client, stream: &Stream, ttl: Duration) -> Result<Self, Error> {
        let (id, settings) = (quoted(&stream.id), settings(ttl));
        let table = &stream.table;
        let rows = format!("SELECT * FROM {table} WHERE {id} >= $1 AND {id} <= $2 ORDER BY {id} LIMIT $3");
        let begin = format!("BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY; {settings}");
        // A commit flushes the log if the transaction has written to it.
        let flush = format!(
            "BEGIN READ WRITE; {settings}; SET LOCAL synchronous_commit = local;
             SELECT pg_logical_emit_message(true, 'waterline', ''); COMMIT"
        );
        let names = [table.clone(), stream.sequence.clone()];
        Ok(Self { look: client.prepare(&look(stream))?, names, rows, begin, flush })
    }

    /// Looks at the table. `None` if another table or sequence has the name now, or if the sequence
    /// has other options than before: the table has to be found anew.
    pub(crate) fn look(&self, client: &mut Client) -> Result<Option<(Seen, Server)>, Error> {
        let [table, sequence] = &self.names;
        let row = client.query_one(&self.look, &[table, sequence])?;
        if !row.try_get(7)? {
            return Ok(None);
        }
        let (ids, prepared): (Vec<String>, Vec<bool>) = (row.try_get(1)?, row.try_get(2)?);
        let mut holders = Vec::with_capacity(ids.len());
        for (id, prepared) in ids.into_iter().zip(prepared) {
            // One that inserts into partitions has several locks.
            if holders.iter().all(|holder: &Holder| holder.id != id) {
                holders.push(Holder { id, prepared });
            }
        }
        let position = |at| Ok::<_, Error>(Lsn(row.try_get::<_, PgLsn>(at)?.into()));
        let seen = Seen { last: row.try_get(0)?, holders, inserted: position(3)?, flushed: position(4)? };
        Ok(Some((seen, Server { started: row.try_get(5)?, timeline: row.try_get(6)? })))
    }

    /// Reads at most so many rows with these ids, in their order.
    pub(crate) fn rows(&self, client: &mut Client, first: i64, last: i64, most: usize) -> Result<Vec<Row>, Error> {
        let limit = i64::try_from(most).unwrap_or(i64::MAX);
        client.batch_execute(&self.begin)?;
        // The driver asks the server for a type that it does not know. Its question has to come
        // before the rows: its answer would wait behind them, and they wait for the driver.
        let rows = client
            .prepare_typed(&self.rows, &[Type::INT8, Type::INT8, Type::INT8])
            .and_then(|rows| client.query(&rows, &[&first, &last, &limit]));
        let ended = client.batch_execute(if rows.is_ok() { "COMMIT" } else { "ROLLBACK" });
        let rows = rows?;
        ended?;
        Ok(rows)
    }

    /// Makes the server flush its log, and returns how far it is flushed. A log into which nobody
    /// commits anything would wait for that.
    pub(crate) fn flush(&self, client: &mut Client) -> Result<Lsn, Error> {
        client.batch_execute(&self.flush).or_else(|error| {
            _ = client.batch_execute("ROLLBACK");
            // A user who may not do that waits until the server does it by itself.
            if error.as_db_error().is_some() { Ok(()) } else { Err(error) }
        })?;
        self.flushed(client)
    }

    /// Asks how far the log is flushed.
    pub(crate) fn flushed(&self, client: &mut Client) -> Result<Lsn, Error> {
        let flushed = client.query_typed_one("SELECT pg_current_wal_flush_lsn()", &[])?;
        Ok(Lsn(flushed.try_get::<_, PgLsn>(0)?.into()))
    }

    /// Returns the one of these transactions that began first.
    pub(crate) fn oldest(&self, client: &mut Client, holders: &[Holder]) -> Result<Option<Writer>, Error> {
        let ids: Vec<&str> = holders.iter().map(|holder| &*holder.id).collect();
        let row = client.query_typed_opt(OLDEST, &[(&ids, Type::TEXT_ARRAY)])?;
        row.as_ref().map(Writer::try_from).transpose().map_err(Error::from)
    }
}

/// Returns the statement of a look. The order of its parts is the rule: the value, then the
/// holders, then the position. So each part needs the one before: the holders are counted for the
/// value, and the position is asked for with their count.
///
/// The value is asked for by a function, which takes the lock under which the server counts up. A
/// plain read of the sequence may see a higher value, which the server writes to its log first. The
/// function also has the sequence's lock to the end, so its options are those of the value.
fn look(stream: &Stream) -> String {
    let Stream { origin, database, .. } = stream;
    let (oid, sequence) = (origin.table, origin.sequence);
    // Partitions are looked up at each look, since a writer may have found a new one.
    let is_locked = if stream.has_parts {
        format!(
            "l.relation IN (
                 WITH RECURSIVE part AS (
                     SELECT {oid}::oid AS oid
                     UNION SELECT i.inhrelid FROM part p JOIN pg_inherits i ON i.inhparent = p.oid)
                 SELECT oid FROM part)"
        )
    } else {
        format!("l.relation = {oid}")
    };
    format!(
        "SELECT s.value, h.ids, h.prepared,
             CASE WHEN h.number >= 0 THEN pg_current_wal_insert_lsn() END,
             CASE WHEN h.number >= 0 THEN pg_current_wal_flush_lsn() END,
             extract(epoch FROM pg_postmaster_start_time())::float8,
             substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8),
             CASE WHEN to_regclass($1)::oid = {oid} AND to_regclass($2)::oid = {sequence} THEN (
                 SELECT q.cache_size = 1 AND NOT q.cycle_option AND q.increment > 0
                 FROM pg_sequence_parameters({sequence}) q) ELSE false END
         FROM (
             SELECT CASE WHEN to_regclass($2)::oid = {sequence} THEN
                 pg_sequence_last_value({sequence}::oid::regclass) END AS value
             OFFSET 0
         ) s
         CROSS JOIN LATERAL (
             SELECT count(*) AS number, coalesce(array_agg(l.virtualtransaction), '{{}}') AS ids,
                 coalesce(array_agg(l.pid IS NULL), '{{}}') AS prepared
             FROM pg_locks l
             WHERE l.locktype = 'relation' AND l.mode = 'RowExclusiveLock' AND l.granted
                 AND l.database = {database} AND {is_locked} AND coalesce(s.value, 0) >= 0
         ) h"
    )
}

/// Reads the id of a row, which may be of each type that a sequence has.
pub(crate) fn id_of(row: &Row, column: &str) -> Result<i64, Error> {
    let at = row.columns().iter().position(|other| other.name() == column).ok_or(Error::Closed)?;
    Ok(match *row.columns()[at].type_() {
        Type::INT2 => row.try_get::<_, i16>(at)?.into(),
        Type::INT4 => row.try_get::<_, i32>(at)?.into(),
        _ => row.try_get(at)?,
    })
}

/// Returns the settings of a transaction: a statement ends within the time.
pub(crate) fn settings(ttl: Duration) -> String {
    format!("SET LOCAL statement_timeout = {}", ttl.as_millis())
}

const OLDEST: &str = "
    SELECT a.pid, a.application_name, a.state, extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS age, NULL AS gid
    FROM pg_stat_activity a
    WHERE a.pid IN (SELECT l.pid FROM pg_locks l WHERE l.virtualtransaction = ANY ($1))
    UNION ALL
    SELECT NULL, NULL, NULL, extract(epoch FROM clock_timestamp() - p.prepared)::float8, p.gid
    FROM pg_prepared_xacts p
    JOIN pg_locks l ON l.locktype = 'transactionid' AND l.transactionid = p.transaction AND l.pid IS NULL
    WHERE l.virtualtransaction = ANY ($1)
    ORDER BY age DESC NULLS LAST
    LIMIT 1";

impl TryFrom<&Row> for Writer {
    type Error = postgres::Error;

    /// Reads the answer of [`OLDEST`].
    fn try_from(row: &Row) -> Result<Self, postgres::Error> {
        let seconds: Option<f64> = row.try_get(3)?;
        let age = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        if let Some(name) = row.try_get(4)? {
            return Ok(Self::Prepared { name, age });
        }
        // Of another user's session a user without rights sees no state.
        let text = |at| row.try_get(at).map(Option::<String>::unwrap_or_default);
        Ok(Self::Session { process: row.try_get(0)?, application: text(1)?, state: text(2)?, age })
    }
}

impl Writer {
    /// Says what this transaction does to readers of the table, and what to do about it.
    pub(crate) fn explain(&self, table: &str) -> String {
        let age = |age: &Option<Duration>| age.map_or("a while".to_owned(), |age| format!("{age:.1?}"));
        match self {
            Self::Session { process, application, state, age: begun } => format!(
                "process {process} of the server (application {application:?}, {}) has written to {table} in a transaction that it \
                 began {} ago: end that transaction there, or with SELECT pg_terminate_backend({process})",
                if state.is_empty() { "in a state that this user may not see" } else { state },
                age(begun)
            ),
            Self::Prepared { name, age: prepared } => format!(
                "the prepared transaction {name:?} has written to {table}, and waits since {}: COMMIT PREPARED or ROLLBACK \
                 PREPARED ends it",
                age(prepared)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_that_is_awaited_is_named_with_what_ends_it() {
        let session = Writer::Session {
            process: 7,
            application: "psql".to_owned(),
            state: "idle in transaction".to_owned(),
            age: Some(Duration::from_secs(3)),
        };
        let text = session.explain("events");
        assert!(text.contains("process 7 ") && text.contains("pg_terminate_backend(7)"), "{text}");
        assert!(
            text.contains(
                "\"psql\", idle in transaction) has written to events in a transaction that it began 3.0s ago"
            ),
            "{text}"
        );
        let prepared = Writer::Prepared { name: "gid".to_owned(), age: None };
        assert!(prepared.explain("events").contains("\"gid\" has written to events"));
        assert!(prepared.explain("events").ends_with("ROLLBACK PREPARED ends it"));
    }
}
