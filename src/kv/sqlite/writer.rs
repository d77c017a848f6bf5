//! The writer's connection: its transactions, its statements, and the length of its log.

use super::connection::{Connections, LONG_LOG};
use super::{authorizer::Watch, failure::failed, pace::Pace, sql, still::log_of};
use crate::base::sync::{Arc, Mutex};
use crate::base::{BoxError, error::StoreError};
use crate::kv::batch::{Batch, RowChange};
use rusqlite::{CachedStatement, Connection, params};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::thread::ThreadId;
use std::time::Duration;

/// The bytes, about, between two checks of the log's length. Each transaction adds a page.
const LOOK_EVERY: usize = if cfg!(test) { 1 << 16 } else { 1 << 20 };
const PAGE: usize = 4096;

/// How long a log that is to restart waits for its readers.
const PATIENCE: Duration = Duration::from_millis(100);

/// A log that cannot restart.
pub(super) struct LongLog {
    file: PathBuf,
    pub(super) length: u64,
    /// The table of the oldest open scan, and its age.
    pub(super) scan: Option<(&'static str, Duration)>,
}

impl LongLog {
    pub(super) fn tell(self) {
        let (log, megabytes) = (self.file.display(), self.length >> 20);
        match self.scan {
            Some((table, open)) => tracing::warn!(
                %log, megabytes, table, seconds = open.as_secs(),
                "the write-ahead log grows, since a scan of this table is open: read it to its end, or drop it"
            ),
            None => tracing::warn!(
                %log, megabytes,
                "the write-ahead log grows, since a connection outside of the store has a transaction open: end it"
            ),
        }
    }
}

/// The connection, and its log.
pub(super) struct Writer {
    pub(super) connection: Connection,
    pub(super) watch: Arc<Watch>,
    /// True while each commit is flushed.
    synced: Cell<bool>,
    log: Log,
    held_by: Arc<Mutex<Option<ThreadId>>>,
}

/// The write-ahead log, which has to restart from time to time.
pub(super) struct Log {
    file: PathBuf,
    /// The bytes, about, written since its length was last checked.
    unseen: usize,
    /// The length from which it is too long.
    long: u64,
    tell: Arc<Mutex<Option<LongLog>>>,
    pace: Arc<Pace>,
}

impl Log {
    pub(super) fn new(database: &Path, tell: Arc<Mutex<Option<LongLog>>>, pace: Arc<Pace>) -> Self {
        Self { file: log_of(database), unseen: 0, long: LONG_LOG as u64, tell, pace }
    }
}

impl Writer {
    pub(super) fn new(connection: Connection, log: Log, held_by: Arc<Mutex<Option<ThreadId>>>) -> Self {
        let watch = Watch::install(&connection);
        Self { connection, watch, synced: Cell::new(false), log, held_by }
    }

    /// Notes that no thread has a transaction of the user's statements open any more.
    pub(super) fn is_free(&self) {
        *self.held_by.lock() = None;
    }

    /// Checks the length of the log after `bytes` more. SQLite writes the log back by itself, but
    /// the log restarts only when it has no reader at that moment. This waits briefly for such a
    /// moment, and notes which scan is in the way.
    pub(super) fn look(&mut self, bytes: usize, readers: &Connections) {
        let log = &mut self.log;
        log.pace.wrote(bytes);
        log.unseen += bytes + PAGE;
        if log.unseen < LOOK_EVERY {
            return;
        }
        log.unseen = 0;
        let length = std::fs::metadata(&log.file).map_or(0, |log| log.len());
        // A log that restarted is cut to the allowed length.
        if length <= log.long {
            return;
        }
        if self.begin_anew() {
            self.log.long = LONG_LOG as u64;
            return;
        }
        let log = &mut self.log;
        log.long = 2 * length;
        *log.tell.lock() = Some(LongLog { file: log.file.clone(), length, scan: readers.oldest() });
    }

    /// Writes the log back and restarts it. Returns false if it still has a reader.
    fn begin_anew(&self) -> bool {
        let number = |sql: &str| self.connection.query_row(sql, [], |row| row.get::<_, i64>(0));
        let anew = || {
            // The user may have set another timeout.
            let before = Duration::from_millis(number("PRAGMA busy_timeout")?.unsigned_abs());
            self.connection.busy_timeout(PATIENCE)?;
            let busy = number("PRAGMA wal_checkpoint(RESTART)");
            self.connection.busy_timeout(before)?;
            busy.map(|busy| busy == 0)
        };
        anew().unwrap_or(false)
    }
}

/// The end of a transaction. The mark keeps the text apart from a user's: see `sql`.
pub(super) const COMMIT: &str = "/* waterline */ COMMIT";

pub(super) fn begin(writer: &Writer, synced: bool) -> rusqlite::Result<()> {
    let connection = &writer.connection;
    if writer.synced.get() != synced {
        // This cannot be changed within a transaction.
        connection.pragma_update(None, "synchronous", if synced { "FULL" } else { "NORMAL" })?;
        writer.synced.set(synced);
    }
    connection.prepare_cached("/* waterline */ BEGIN IMMEDIATE")?.execute([]).map(drop)
}

pub(super) fn roll_back(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch("ROLLBACK")
}

/// The statements of a batch, each looked up once.
struct Prepared<'c> {
    connection: &'c Connection,
    statements: [Option<CachedStatement<'c>>; 3 * 8],
}

impl<'c> Prepared<'c> {
    fn get(&mut self, record: &RowChange<'_>) -> Result<&mut CachedStatement<'c>, BoxError> {
        let family = record.family();
        let sql = sql::of(family)?;
        let (kind, text) = match record {
            RowChange::Put { .. } => (0, &sql.put),
            RowChange::Delete { .. } => (1, &sql.delete),
            RowChange::DeleteRange { .. } => (2, &sql.delete_range),
        };
        let slot = &mut self.statements[8 * kind + family.0 as usize];
        Ok(match slot {
            Some(statement) => statement,
            None => slot.insert(self.connection.prepare_cached(text)?),
        })
    }
}

/// Makes the changes of a batch.
pub(super) fn apply(connection: &Connection, batch: &Batch) -> Result<(), StoreError> {
    let mut prepared = Prepared { connection, statements: Default::default() };
    let mut count = 0;
    for record in batch.records() {
        count += 1;
        let doing = |source: BoxError| StoreError::new("write".to_owned(), source);
        let statement = prepared.get(&record).map_err(doing)?;
        let done = match record {
            RowChange::Put { key, value, .. } => statement.execute(params![key, value]),
            RowChange::Delete { key, .. } => statement.execute(params![key]),
            RowChange::DeleteRange { from, to, .. } => statement.execute(params![from, to]),
        };
        done.map_err(failed("write"))?;
    }
    if count != batch.count() {
        return Err(StoreError::new("write".to_owned(), "the batch has a wrong count".into()));
    }
    Ok(())
}
