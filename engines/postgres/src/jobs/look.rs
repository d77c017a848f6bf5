//! The statements of a look at a table, and the transaction that it waits for.

use super::looks::{Holder, Lsn, Seen};
use super::table::Stream;
use crate::error::Error;
use crate::options::quoted;
use postgres::error::SqlState;
use postgres::types::{PgLsn, Type};
use postgres::{Client, Row, SimpleQueryMessage};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::str::FromStr;
use std::time::Duration;

pub(crate) struct LookStatements {
    look: String,
    /// The same on a connection that has not prepared it.
    first_look: String,
    rows: String,
    begin: String,
    flush: String,
    knows_types: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Server {
    /// When it was started, in microseconds.
    pub(crate) started: i64,
    pub(crate) timeline: String,
}

/// The transaction that a look waits for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum BlockingWriter {
    Session { process: i32, application: String, state: String, age: Option<Duration> },
    Prepared { name: String, age: Option<Duration> },
}

impl LookStatements {
    pub(crate) fn new(stream: &Stream, ttl: Duration) -> Self {
        let (id, settings) = (quoted(&stream.id), settings(ttl));
        let table = &stream.table;
        let rows = format!("SELECT * FROM {table} WHERE {id} >= $1 AND {id} <= $2 ORDER BY {id} LIMIT $3");
        let begin = format!("BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY; {settings}");
        // A commit flushes the log if the transaction has written to it.
        let flush = format!(
            "BEGIN READ WRITE; {settings}; SET LOCAL synchronous_commit = local;
             SELECT pg_logical_emit_message(true, 'waterline', ''); COMMIT"
        );
        let (text, [table, sequence]) = (look(stream), [table, &stream.sequence].map(|name| literal(name)));
        // Planned once on each connection. Its name is a hash of its text: behind a pooler another
        // process may have prepared it, and then it is the same statement.
        let mut hash = DefaultHasher::new();
        text.hash(&mut hash);
        let name = format!("waterline_{:016x}", hash.finish());
        let execute = format!("EXECUTE {name} ({table}, {sequence})");
        Self {
            look: format!("{settings}; {execute}"),
            first_look: format!("{settings}; PREPARE {name} (text, text) AS {text}; {execute}"),
            rows,
            begin,
            flush,
            knows_types: stream.knows_types,
        }
    }

    /// Looks at the table. `None` if it has to be looked up anew: another table or sequence has the
    /// name now, or the sequence or the column has changed.
    pub(crate) fn look(&self, client: &mut Client) -> Result<Option<(Seen, Server)>, Error> {
        // The statements of one message are one transaction, and have one answer.
        let answer = match client.simple_query(&self.look) {
            Err(error) if error.code() == Some(&SqlState::INVALID_SQL_STATEMENT_NAME) => {
                client.simple_query(&self.first_look)?
            }
            answer => answer?,
        };
        let row = answer.iter().find_map(|part| if let SimpleQueryMessage::Row(row) = part { Some(row) } else { None });
        let row = row.ok_or(Error::Closed)?;
        let [last, holders, inserted, flushed, started, timeline, is_same] =
            [0, 1, 2, 3, 4, 5, 6].map(|at| row.get(at));
        if is_same != Some("t") {
            return Ok(None);
        }
        let holder =
            |id: &str| Holder { id: id.trim_end_matches(PREPARED).to_owned(), prepared: id.ends_with(PREPARED) };
        let holders = holders.into_iter().flat_map(|ids| ids.split(',')).map(holder).collect();
        let position = |at: Option<&str>| Ok::<_, Error>(Lsn(read::<PgLsn>(at)?.into()));
        let last = last.map(|last| read(Some(last))).transpose()?;
        let seen = Seen { last, holders, inserted: position(inserted)?, flushed: position(flushed)? };
        Ok(Some((seen, Server { started: read(started)?, timeline: read(timeline)? })))
    }

    /// Reads at most `most` rows with ids from `first` to `last`, in order.
    pub(crate) fn rows(&self, client: &mut Client, first: i64, last: i64, most: usize) -> Result<Vec<Row>, Error> {
        let limit = i64::try_from(most).unwrap_or(i64::MAX);
        client.batch_execute(&self.begin)?;
        let rows = if self.knows_types {
            client.query_typed(&self.rows, &[(&first, Type::INT8), (&last, Type::INT8), (&limit, Type::INT8)])
        } else {
            // The driver asks the server about a type that it does not know. It has to ask before
            // the rows: behind them, the answer would wait until the driver has read them.
            client
                .prepare_typed(&self.rows, &[Type::INT8, Type::INT8, Type::INT8])
                .and_then(|rows| client.query(&rows, &[&first, &last, &limit]))
        };
        let ended = client.batch_execute(if rows.is_ok() { "COMMIT" } else { "ROLLBACK" });
        let rows = rows?;
        ended?;
        Ok(rows)
    }

    /// Makes the server flush its log, and returns how far it is flushed. Without other commits,
    /// the log would wait for a long time.
    pub(crate) fn flush(&self, client: &mut Client) -> Result<Lsn, Error> {
        client.batch_execute(&self.flush).or_else(|error| {
            _ = client.batch_execute("ROLLBACK");
            // Without the right to do that, the source waits until the server flushes by itself.
            if error.as_db_error().is_some() { Ok(()) } else { Err(error) }
        })?;
        self.flushed(client)
    }

    pub(crate) fn flushed(&self, client: &mut Client) -> Result<Lsn, Error> {
        let flushed = client.query_typed_one("SELECT pg_current_wal_flush_lsn()", &[])?;
        Ok(Lsn(flushed.try_get::<_, PgLsn>(0)?.into()))
    }

    /// Returns the one of these transactions that began first.
    pub(crate) fn oldest(&self, client: &mut Client, holders: &[Holder]) -> Result<Option<BlockingWriter>, Error> {
        let ids: Vec<&str> = holders.iter().map(|holder| &*holder.id).collect();
        let row = client.query_typed_opt(OLDEST, &[(&ids, Type::TEXT_ARRAY)])?;
        row.as_ref().map(BlockingWriter::try_from).transpose().map_err(Error::from)
    }
}

/// Reads a value of an answer in text.
fn read<T: FromStr>(value: Option<&str>) -> Result<T, Error> {
    value.and_then(|value| value.parse().ok()).ok_or(Error::Closed)
}

/// Quotes a text as a literal that is valid under each setting of the server.
fn literal(text: &str) -> String {
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

/// Marks a prepared transaction, behind its id.
const PREPARED: char = '*';

/// Returns the statement of a look. Its parts have to be evaluated in this order: the value, the
/// holders, the position. So each part depends on the one before: the holders are counted for the
/// value, and the position is read with their count.
///
/// The value is read by a function, which takes the lock under which the server counts up. A plain
/// read of the sequence may see a higher value that is not in the log yet. The function also holds
/// the sequence's lock to the end, so its options are those of the value.
///
/// A holder is a transaction that may insert into the table. One that takes an id holds the lock of
/// the sequence from before until it ends, even without a lock on the table: it inserts into a
/// partition by name, or into a table that it has just made a part of this one. One that has no
/// such lock on anything else writes nothing: it looks, as this statement does. The locks are
/// listed once, since that is most of what a look costs.
fn look(stream: &Stream) -> String {
    let Stream { origin, database, identity, .. } = stream;
    let (oid, sequence, file, column) = (origin.table, origin.sequence, origin.file, origin.column);
    format!(
        "SELECT s.value, h.ids,
             CASE WHEN h.number >= 0 THEN pg_current_wal_insert_lsn() END,
             CASE WHEN h.number >= 0 THEN pg_current_wal_flush_lsn() END,
             (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
             substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8),
             CASE WHEN to_regclass($1)::oid = {oid} AND to_regclass($2)::oid = {sequence} THEN (
                 SELECT q.cache_size = 1 AND NOT q.cycle_option AND q.increment > 0
                     AND pg_relation_filenode({sequence}) = {file} AND EXISTS (SELECT FROM pg_attribute a
                         WHERE a.attrelid = {oid} AND a.attnum = {column} AND a.attidentity = '{identity}')
                 FROM pg_sequence_parameters({sequence}) q) ELSE false END
         FROM (
             SELECT CASE WHEN to_regclass($2)::oid = {sequence} THEN
                 pg_sequence_last_value({sequence}::oid::regclass) END AS value
             OFFSET 0
         ) s
         CROSS JOIN LATERAL (
             SELECT count(*) AS number, string_agg(w.id, ',') AS ids
             FROM (
                 SELECT l.virtualtransaction || CASE WHEN bool_or(l.pid IS NULL) THEN '{PREPARED}' ELSE '' END AS id
                 FROM pg_locks l
                 WHERE l.locktype = 'relation' AND l.mode = 'RowExclusiveLock' AND l.granted
                     AND l.database = {database} AND l.pid IS DISTINCT FROM pg_backend_pid()
                     AND coalesce(s.value, 0) >= 0
                 GROUP BY l.virtualtransaction
                 HAVING bool_or(l.relation = {oid})
                     OR bool_or(l.relation = {sequence}) AND bool_or(l.relation NOT IN ({oid}, {sequence}))
             ) w
         ) h"
    )
}

/// Reads the id of a row, of any type that a sequence can have.
pub(crate) fn id_of(row: &Row, column: &str) -> Result<i64, Error> {
    let at = row.columns().iter().position(|other| other.name() == column).ok_or(Error::Closed)?;
    Ok(match *row.columns()[at].type_() {
        Type::INT2 => row.try_get::<_, i16>(at)?.into(),
        Type::INT4 => row.try_get::<_, i32>(at)?.into(),
        _ => row.try_get(at)?,
    })
}

/// Returns the settings of a transaction: each statement ends within the TTL.
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

impl TryFrom<&Row> for BlockingWriter {
    type Error = postgres::Error;

    fn try_from(row: &Row) -> Result<Self, postgres::Error> {
        let seconds: Option<f64> = row.try_get(3)?;
        let age = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        if let Some(name) = row.try_get(4)? {
            return Ok(Self::Prepared { name, age });
        }
        // A user without rights sees no state of another user's session.
        let text = |at| row.try_get(at).map(Option::<String>::unwrap_or_default);
        Ok(Self::Session { process: row.try_get(0)?, application: text(1)?, state: text(2)?, age })
    }
}

impl BlockingWriter {
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
    fn any_name_becomes_a_literal() {
        assert_eq!(literal("a'b\\c"), "E'a''b\\\\c'");
    }

    #[test]
    fn an_awaited_transaction_is_named_with_advice() {
        let session = BlockingWriter::Session {
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
        let prepared = BlockingWriter::Prepared { name: "gid".to_owned(), age: None };
        assert!(prepared.explain("events").contains("\"gid\" has written to events"));
        assert!(prepared.explain("events").ends_with("ROLLBACK PREPARED ends it"));
    }
}
