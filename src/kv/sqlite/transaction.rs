//! A transaction with the user's statements, before our own rows are written in it.
//!
//! A failing statement may leave a part of its changes (`OR FAIL`), or roll back everything (`OR
//! ROLLBACK`). So there is one savepoint, which advances with the marks, and a list of the
//! statements that have run: those that are lost run again.

use super::writer::{COMMIT, Writer, apply, begin, roll_back};
use super::{authorizer::count_ours, connection::Connections, failure::failed, sql::MARK};
use crate::base::{BoxError, error::StoreError, sync::MutexGuard};
use crate::kv::batch::Batch;
use crate::kv::statement::{NotCommitted, NotRun, Statement, Transaction, Value};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, Error, ErrorCode, ToSql, ffi, params_from_iter};

pub(super) struct Begun<'a> {
    writer: MutexGuard<'a, Writer>,
    readers: &'a Connections,
    synced: bool,
    /// The statements that have run and count.
    run: Vec<Vec<u8>>,
    /// How many of them ran before the savepoint.
    saved: usize,
    /// True if the savepoint advances before the next statement.
    moves_on: bool,
    /// True if the database differs from what the statements in `run` have made of it.
    is_off: bool,
    /// Why nothing can be committed.
    broken: Option<StoreError>,
    /// The number of rows with a broken foreign key when the transaction began.
    orphans: Option<i64>,
}

impl<'a> Begun<'a> {
    pub(super) fn new(
        writer: MutexGuard<'a, Writer>,
        readers: &'a Connections,
        synced: bool,
        careful: bool,
    ) -> Result<Self, StoreError> {
        let mut begun = Self {
            writer,
            readers,
            synced,
            run: Vec::new(),
            saved: 0,
            moves_on: false,
            is_off: false,
            broken: None,
            orphans: None,
        };
        begun.begin().map_err(failed("begin a transaction"))?;
        if careful {
            begun.orphans = Some(begun.count_orphans()?);
        }
        Ok(begun)
    }

    fn connection(&self) -> &Connection {
        &self.writer.connection
    }

    fn begin(&mut self) -> rusqlite::Result<()> {
        begin(&self.writer, self.synced)?;
        self.call(SAVE)?;
        self.saved = 0;
        Ok(())
    }

    fn call(&self, sql: &str) -> rusqlite::Result<()> {
        self.connection().prepare_cached(sql)?.execute([]).map(drop)
    }

    /// Counts the rows that break a foreign key, in the tables with a deferred one: each statement
    /// checks all other keys. A table whose keys cannot be checked takes no new rows.
    fn count_orphans(&self) -> Result<i64, StoreError> {
        let count = |connection: &Connection| {
            let mut tables = connection.prepare_cached(CHILDREN)?;
            let tables: Vec<String> = tables.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
            let mut orphans = connection.prepare_cached(ORPHANS)?;
            let mut count = |table: &String| match orphans.query_row([table], |row| row.get(0)) {
                Err(error) if error.sqlite_error_code() == Some(ErrorCode::Unknown) => Ok(0),
                count => count,
            };
            tables.iter().try_fold(0, |sum, table| Ok(sum + count(table)?))
        };
        count(self.connection()).map_err(failed("look for rows that break a foreign key"))
    }

    /// Restores the state after the first `count` statements.
    fn restore(&mut self, count: usize) -> Result<(), StoreError> {
        if self.connection().is_autocommit() {
            self.begin().map_err(failed("begin a transaction again"))?;
        } else if count >= self.saved {
            self.call(BACK).map_err(failed("take back a statement"))?;
        } else {
            roll_back(self.connection()).map_err(failed("roll back"))?;
            self.begin().map_err(failed("begin a transaction again"))?;
        }
        self.run.truncate(count);
        self.is_off = false;
        for statement in &self.run[self.saved..] {
            self.writer.run(statement).map_err(|not_run| match not_run {
                NotRun::Store(error) => error,
                NotRun::Refused(source) => StoreError::new("run a statement once more".to_owned(), source),
            })?;
        }
        Ok(())
    }

    /// Restores the state after all statements that count.
    fn settle(&mut self) -> Result<(), StoreError> {
        if let Some(error) = self.broken.take() {
            return Err(error);
        }
        if self.is_off { self.restore(self.run.len()) } else { Ok(()) }
    }
}

/// The savepoint. The marks keep the texts apart from a user's, as statements are cached by text.
const SAVE: &str = "/* waterline */ SAVEPOINT waterline";
const BACK: &str = "/* waterline */ ROLLBACK TO waterline";
const RELEASE: &str = "/* waterline */ RELEASE waterline";
const CHANGES: &str = "/* waterline */ SELECT total_changes()";
const CHILDREN: &str = "/* waterline */ SELECT DISTINCT child.name FROM main.sqlite_master AS child, \
                        pragma_foreign_key_list(child.name) \
                        WHERE child.type = 'table' AND instr(lower(child.sql), 'deferred')";
const ORPHANS: &str = "/* waterline */ SELECT count(*) FROM pragma_foreign_key_check(?1)";

impl Transaction for Begun<'_> {
    fn execute(&mut self, statement: &[u8]) -> Result<(), NotRun> {
        self.settle().map_err(NotRun::Store)?;
        if std::mem::take(&mut self.moves_on) {
            let moved = self.call(RELEASE).and_then(|()| self.call(SAVE));
            moved.map_err(|e| NotRun::Store(failed("set a savepoint")(e)))?;
            self.saved = self.run.len();
        }
        let run = self.writer.run(statement);
        match run {
            Ok(()) => self.run.push(statement.to_vec()),
            Err(_) => self.is_off = true,
        }
        run
    }

    fn mark(&mut self) -> usize {
        self.moves_on = self.run.len() > self.saved;
        self.run.len()
    }

    fn go_back(&mut self, mark: usize) {
        if self.broken.is_none() && (self.is_off || mark < self.run.len()) {
            self.broken = self.restore(mark).err();
        }
    }

    fn has_late_rules(&mut self) -> Result<bool, StoreError> {
        let has = |connection: &Connection| connection.prepare_cached(CHILDREN)?.exists([]);
        has(self.connection()).map_err(failed("look for deferred foreign keys"))
    }

    fn keeps_the_rules(&mut self) -> Result<bool, StoreError> {
        self.settle()?;
        Ok(self.count_orphans()? <= self.orphans.unwrap_or_default())
    }

    fn commit(mut self: Box<Self>, batch: &Batch) -> Result<(), NotCommitted> {
        self.settle().map_err(NotCommitted::Store)?;
        apply(self.connection(), batch).map_err(NotCommitted::Store)?;
        self.call(COMMIT).map_err(|error| {
            let is_refused = error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation);
            let error = failed("write")(error);
            if is_refused { NotCommitted::Refused(error) } else { NotCommitted::Store(error) }
        })?;
        let bytes = batch.len() + self.run.iter().map(Vec::len).sum::<usize>();
        let readers = self.readers;
        self.writer.look(bytes, readers);
        Ok(())
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.writer.is_free();
        if !self.connection().is_autocommit() {
            // If this fails, so does the next BEGIN, which reports why.
            let _ = roll_back(self.connection());
        }
    }
}

impl Writer {
    /// The number of rows changed since the connection was opened.
    fn changes_so_far(&self) -> rusqlite::Result<i64> {
        self.connection.prepare_cached(CHANGES)?.query_row([], |row| row.get(0))
    }

    /// Runs a statement of the user.
    fn run(&self, statement: &[u8]) -> Result<(), NotRun> {
        let refused = |reason: &str| NotRun::Refused(reason.into());
        let Some(Statement { sql, values, rows }) = Statement::decode(statement) else {
            return Err(refused("it cannot be read"));
        };
        // A cached statement of ours was prepared without the authorizer's check.
        if sql.trim_start().starts_with(MARK) {
            return Err(refused("its text begins as those of the store do"));
        }
        if sql.contains('\0') {
            return Err(refused("its text has a byte of zero in it, where SQLite would cut it off"));
        }
        let run = || -> rusqlite::Result<usize> {
            let mut statement = self.watch.user(|| self.connection.prepare_cached(sql))?;
            let ours = self.watch.makes().then(|| count_ours(&self.connection)).transpose()?;
            let before = rows.map(|_| self.changes_so_far()).transpose()?;
            let changed = self.watch.user(|| statement.execute(params_from_iter(values.iter().map(BoundValue))))?;
            if let Some(ours) = ours {
                // The authorizer checks it when it is prepared, so it is not cached.
                statement.discard();
                if count_ours(&self.connection)? > ours {
                    return Err(not_authorized());
                }
            }
            // A statement that cannot change rows leaves the previous count.
            let is_count = before.is_none() || before != Some(self.changes_so_far()?);
            Ok(if is_count { changed } else { 0 })
        };
        match run() {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::ApiMisuse) => {
                Err(refused("there is no statement in the text"))
            }
            Err(error) if is_of_the_statement(&error) => Err(NotRun::Refused(BoxError::from(error))),
            Err(error) => Err(NotRun::Store(failed("run a statement")(error))),
            Ok(changed) => match rows {
                Some(rows) if rows != changed as u64 => {
                    Err(refused(&format!("it changed {changed} rows, and must change {rows}")))
                }
                _ => Ok(()),
            },
        }
    }
}

/// The error of a statement that creates something that affects our tables.
fn not_authorized() -> Error {
    let text = "not authorized: names that begin with waterline_ are those of the store";
    Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_AUTH), Some(text.to_owned()))
}

/// True if the statement, or what it meets, is at fault. All other errors are the database's.
fn is_of_the_statement(error: &Error) -> bool {
    match error {
        Error::SqliteFailure(error, _) => matches!(
            error.code,
            ErrorCode::ConstraintViolation
                | ErrorCode::TypeMismatch
                | ErrorCode::AuthorizationForStatementDenied
                | ErrorCode::ParameterOutOfRange
                | ErrorCode::TooBig
                | ErrorCode::Unknown
        ),
        // All others come from rusqlite: a wrong number of values, two statements, returned rows.
        _ => true,
    }
}

struct BoundValue<'a>(&'a Value<'a>);

impl ToSql for BoundValue<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match *self.0 {
            Value::Null => ValueRef::Null,
            Value::Integer(number) => ValueRef::Integer(number),
            Value::Real(number) => ValueRef::Real(number),
            Value::Text(text) => ValueRef::Text(text.as_bytes()),
            Value::Blob(blob) => ValueRef::Blob(blob),
        }))
    }
}
