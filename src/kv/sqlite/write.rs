//! The side that writes: one connection. The batches that several threads write at a time go into
//! one transaction.

use super::authorizer::Watch;
use super::connection::{Connections, LONG_LOG, log_of};
use super::failure::{failed, is_locked};
use super::pace::Pace;
use super::transaction::Begun;
use super::{no_family, sql};
use crate::base::error::StoreError;
use crate::base::index::BoxError;
use crate::base::sync::{Arc, Mutex, MutexGuard};
use crate::kv::batch::{Batch, Record};
use rusqlite::{CachedStatement, Connection, params};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::thread::ThreadId;
use std::time::Duration;

/// The bytes, about, after which somebody looks at the length of the log. Each transaction counts
/// for a page at least.
const LOOK_EVERY: usize = if cfg!(test) { 1 << 16 } else { 1 << 20 };
const PAGE: usize = 4096;

/// The time for which a log that is to begin anew waits for those who read it.
const PATIENCE: Duration = Duration::from_millis(100);

pub(super) struct Writing {
    pub(super) connection: Mutex<Writer>,
    /// The thread that has a transaction of its own open.
    held_by: Arc<Mutex<Option<ThreadId>>>,
    /// The batches of the threads that wait for the connection.
    pub(super) waiting: Mutex<Vec<Arc<Waiting>>>,
    /// The last state of the log that somebody should hear of.
    long_log: Arc<Mutex<Option<LongLog>>>,
    pace: Arc<Pace>,
}

/// A log that cannot begin anew.
struct LongLog {
    file: PathBuf,
    length: u64,
    /// The table of the oldest scan that is open, and the time for which it is.
    scan: Option<(&'static str, Duration)>,
}

impl LongLog {
    fn tell(self) {
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

/// A batch whose thread waits for the connection. The thread that has it writes this one too.
pub(super) struct Waiting {
    batch: Batch,
    synced: bool,
    told: Mutex<Option<Result<(), StoreError>>>,
}

impl Writing {
    pub(super) fn new(connection: Connection, file: &Path) -> Self {
        let (long_log, pace) = (Arc::default(), Arc::new(Pace::new(log_of(file))));
        let log = Log {
            file: log_of(file),
            unseen: 0,
            long: LONG_LOG as u64,
            tell: Arc::clone(&long_log),
            pace: Arc::clone(&pace),
        };
        let (watch, held_by) = (Watch::install(&connection), Arc::default());
        let writer = Writer { connection, watch, synced: Cell::new(false), log, held_by: Arc::clone(&held_by) };
        Self { connection: Mutex::new(writer), held_by, waiting: Mutex::default(), long_log, pace }
    }

    /// Begins a transaction for statements of the user. Nobody else writes until it ends.
    pub(super) fn begin<'a>(
        &'a self,
        readers: &'a Connections,
        synced: bool,
        careful: bool,
    ) -> Result<Begun<'a>, StoreError> {
        self.refuse_myself()?;
        let writer = self.connection.lock();
        *self.held_by.lock() = Some(std::thread::current().id());
        Begun::new(writer, readers, synced, careful)
    }

    /// A thread that waits for itself would wait for ever.
    fn refuse_myself(&self) -> Result<(), StoreError> {
        if *self.held_by.lock() == Some(std::thread::current().id()) {
            let source = "this thread has a transaction of the store open: try it again after it".into();
            return Err(StoreError::new("write".to_owned(), source));
        }
        Ok(())
    }

    /// True once when the log is to be written back, or when something is to be said of it.
    pub(super) fn is_untidy(&self) -> bool {
        self.pace.is_due() || self.long_log.lock().is_some()
    }

    /// Writes the log back, and says what is to be said of it.
    pub(super) fn tidy(&self, readers: &Connections) {
        self.pace.write_back(readers);
        let long_log = self.long_log.lock().take();
        if let Some(long_log) = long_log {
            long_log.tell();
        }
    }

    #[cfg(test)]
    pub(super) fn long_log(&self) -> Option<(u64, Option<&'static str>)> {
        self.long_log.lock().take().map(|log| (log.length, log.scan.map(|(table, _)| table)))
    }

    /// Returns the connection, if nobody uses it now.
    pub(super) fn idle(&self) -> Option<MutexGuard<'_, Writer>> {
        self.connection.try_lock()
    }

    /// Calls this with the connection.
    pub(super) fn with<R>(&self, call: impl FnOnce(&Connection) -> R) -> R {
        call(&self.connection.lock().connection)
    }

    pub(super) fn write(&self, batch: &Batch, synced: bool, readers: &Connections) -> Result<(), StoreError> {
        if batch.is_empty() {
            return Ok(());
        }
        if let Some(mut writer) = self.connection.try_lock() {
            let written = transaction(&writer, synced, |connection| apply(connection, batch));
            writer.look(batch.len(), readers);
            return written;
        }
        self.refuse_myself()?;
        let mine = Arc::new(Waiting { batch: batch.clone(), synced, told: Mutex::default() });
        self.waiting.lock().push(mine.clone());
        let mut writer = self.connection.lock();
        if let Some(told) = mine.told.lock().take() {
            return told;
        }
        let all = std::mem::take(&mut *self.waiting.lock());
        write_all(&writer, &all);
        writer.look(all.iter().map(|waiting| waiting.batch.len()).sum(), readers);
        mine.told.lock().take().unwrap_or_else(|| unreachable!("each batch on the list is written"))
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

/// The write-ahead log, which has to begin anew from time to time.
struct Log {
    file: PathBuf,
    /// About as many bytes as were written since somebody looked at its length.
    unseen: usize,
    /// The length from which it is too long.
    long: u64,
    tell: Arc<Mutex<Option<LongLog>>>,
    pace: Arc<Pace>,
}

impl Writer {
    /// Notes that the thread which had a transaction open has it no more.
    pub(super) fn is_free(&self) {
        *self.held_by.lock() = None;
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Looks at the length of the log after about so many more bytes. SQLite writes the log back by
    /// itself; it begins anew when nobody reads it at that moment. This waits for such a moment,
    /// for a short time, and notes who is in the way.
    pub(super) fn look(&mut self, bytes: usize, readers: &Connections) {
        let log = &mut self.log;
        log.pace.wrote(bytes);
        log.unseen += bytes + PAGE;
        if log.unseen < LOOK_EVERY {
            return;
        }
        log.unseen = 0;
        let length = std::fs::metadata(&log.file).map_or(0, |log| log.len());
        // A log that began anew is cut to the length that is long enough.
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

    /// Writes the log back, and lets it begin anew. Returns false if somebody still reads it.
    fn begin_anew(&self) -> bool {
        let number = |sql: &str| self.connection.query_row(sql, [], |row| row.get::<_, i64>(0));
        let anew = || {
            // The user may have set another one.
            let before = Duration::from_millis(number("PRAGMA busy_timeout")?.unsigned_abs());
            self.connection.busy_timeout(PATIENCE)?;
            let busy = number("PRAGMA wal_checkpoint(RESTART)");
            self.connection.busy_timeout(before)?;
            busy.map(|busy| busy == 0)
        };
        anew().unwrap_or(false)
    }
}

/// Writes these batches in one transaction. If that fails, each gets one of its own: only the
/// guilty one fails. If the file is locked, none is guilty, and nobody waits for it once more.
fn write_all(writer: &Writer, all: &[Arc<Waiting>]) {
    let synced = all.iter().any(|waiting| waiting.synced);
    let together =
        transaction(writer, synced, |connection| all.iter().try_for_each(|waiting| apply(connection, &waiting.batch)));
    match together {
        Err(error) if is_locked(&error) => {
            for waiting in all {
                let (doing, source) = (error.doing.clone(), error.source.to_string().into());
                *waiting.told.lock() = Some(Err(StoreError::new(doing, source)));
            }
        }
        Err(_) if all.len() > 1 => {
            for waiting in all {
                let written = transaction(writer, waiting.synced, |connection| apply(connection, &waiting.batch));
                *waiting.told.lock() = Some(written);
            }
        }
        mut together => {
            for waiting in all {
                *waiting.told.lock() = Some(std::mem::replace(&mut together, Ok(())));
            }
        }
    }
}

/// Runs this in a transaction: all of it is written, or nothing.
fn transaction(
    writer: &Writer,
    synced: bool,
    run: impl FnOnce(&Connection) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let begun = Open::begin(writer, synced).map_err(failed("write"))?;
    run(begun.0)?;
    begun.commit().map_err(failed("write"))
}

/// A transaction. It is rolled back when this is dropped.
struct Open<'a>(&'a Connection);

impl<'a> Open<'a> {
    fn begin(writer: &'a Writer, synced: bool) -> rusqlite::Result<Self> {
        begin(writer, synced)?;
        let connection = &writer.connection;
        Ok(Self(connection))
    }

    fn commit(self) -> rusqlite::Result<()> {
        self.0.prepare_cached(COMMIT)?.execute([]).map(drop)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.0.is_autocommit() {
            // After most errors SQLite has rolled back by itself. If this fails too, the next BEGIN
            // does, and says why.
            let _ = roll_back(self.0);
        }
    }
}

/// The end of a transaction. The text differs from that of a user: statements are kept by their
/// texts.
pub(super) const COMMIT: &str = "/* waterline */ COMMIT";

/// Begins a transaction.
pub(super) fn begin(writer: &Writer, synced: bool) -> rusqlite::Result<()> {
    let connection = &writer.connection;
    if writer.synced.get() != synced {
        // It cannot be changed within a transaction.
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
    fn get(&mut self, record: &Record<'_>) -> Result<&mut CachedStatement<'c>, BoxError> {
        let family = record.family();
        let sql = sql::of(family).ok_or_else(|| no_family(family))?;
        let (kind, text) = match record {
            Record::Put { .. } => (0, &sql.put),
            Record::Delete { .. } => (1, &sql.delete),
            Record::DeleteRange { .. } => (2, &sql.delete_range),
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
            Record::Put { key, value, .. } => statement.execute(params![key, value]),
            Record::Delete { key, .. } => statement.execute(params![key]),
            Record::DeleteRange { from, to, .. } => statement.execute(params![from, to]),
        };
        done.map_err(failed("write"))?;
    }
    if count != batch.count() {
        return Err(StoreError::new("write".to_owned(), "the batch has a wrong count".into()));
    }
    Ok(())
}
