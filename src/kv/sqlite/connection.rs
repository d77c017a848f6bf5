//! The connections: how each is set up, and the pool of readers.

use super::{failure::failed, still::Still};
use crate::base::sync::{Arc, Mutex};
use crate::base::{BoxError, error::StoreError, time};
use rusqlite::{Connection, OpenFlags};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a connection waits for the file lock. Others hold it only where the file is the user's
/// own one, during a transaction of the user's.
const BUSY: Duration = Duration::from_secs(5);

/// The statements that stay prepared in a connection: enough for all families.
const STATEMENTS: usize = 96;

/// The idle readers that stay open. Few threads read at a time.
const IDLE: usize = 16;

/// The pages in the log after which a commit writes it back: 16 MiB. Each checkpoint costs two
/// flushes, and writes a page once, however often it changed. SQLite's default of 4 MiB causes four
/// times as many flushes; more would be read again after a crash.
pub(super) const CHECKPOINT: u32 = 4_000;

/// The length of the log, in bytes, from which it is made to restart: otherwise overlapping readers
/// could let it grow for ever. A longer file is then cut to this length.
pub(super) const LONG_LOG: i64 = if cfg!(test) { 1 << 20 } else { 64 << 20 };

/// The cache of the writer's connection, in KiB. It stays valid, as all writes come from here; each
/// of them invalidates the caches of the readers.
const WRITER_CACHE: u32 = 32 << 10;

/// A closure of the user that sets up a new connection.
type SetUp = dyn Fn(&Connection) -> rusqlite::Result<()> + Send + Sync;

#[derive(Clone, Default)]
pub(crate) struct OnConnect(pub(crate) Option<Arc<SetUp>>);

impl fmt::Debug for OnConnect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "a closure" } else { "nothing" })
    }
}

/// Where the database is, and how a connection to it is set up.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) file: PathBuf,
    /// Called with each new connection.
    pub(crate) on_connect: OnConnect,
}

/// What a connection is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Usage {
    Writer,
    /// Reads, in the process that writes.
    Reader,
    /// Reads in another process, and creates nothing.
    Look,
}

/// Opens a connection, with the state of the file if no process has it open.
pub(super) fn open(site: &Site, mode: Usage) -> rusqlite::Result<(Connection, Option<Still>)> {
    let (file, flags) = (&site.file, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX);
    let (connection, still) = match mode {
        Usage::Writer => (Connection::open_with_flags(file, flags | OpenFlags::SQLITE_OPEN_CREATE)?, None),
        Usage::Reader => (Connection::open_with_flags(file, flags)?, None),
        Usage::Look => look(file)?,
    };
    connection.busy_timeout(BUSY)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    if let Some(on_connect) = &site.on_connect.0 {
        on_connect(&connection)?;
    }
    match mode {
        Usage::Writer => {
            connection.pragma_update(None, "foreign_keys", true)?;
            connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT)?;
            connection.pragma_update(None, "journal_size_limit", LONG_LOG)?;
            connection.pragma_update(None, "cache_size", -i64::from(WRITER_CACHE))?;
            connection.pragma_update(None, "synchronous", "NORMAL")?;
        }
        Usage::Reader => {
            connection.pragma_update(None, "query_only", true)?;
            // It may run checkpoints.
            connection.pragma_update(None, "synchronous", "NORMAL")?;
        }
        Usage::Look => connection.pragma_update(None, "query_only", true)?,
    }
    Ok((connection, still))
}

/// Opens a connection that creates no file. The log of a database in use is read by the memory that
/// its processes share. A database that no process has open has no log, and its file is complete.
fn look(file: &Path) -> rusqlite::Result<(Connection, Option<Still>)> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let read = |connection: &Connection| connection.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(()));
    let open_still = |still: Still| {
        let connection = still.open(flags)?;
        read(&connection).map(|()| (connection, Some(still)))
    };
    if let Some(still) = Still::of(file) {
        return open_still(still);
    }
    let connection = Connection::open_with_flags(file, flags)?;
    match (read(&connection), Still::of(file)) {
        // It was closed just now, and the directory is read-only.
        (Err(error), Some(still)) if is_unopened(&error) => open_still(still),
        (read, _) => read.map(|()| (connection, None)),
    }
}

fn is_unopened(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(rusqlite::ErrorCode::CannotOpen | rusqlite::ErrorCode::ReadOnly))
}

/// Turns on the write-ahead log.
pub(super) fn use_wal(connection: &Connection) -> Result<(), BoxError> {
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode.eq_ignore_ascii_case("wal") {
        return Ok(());
    }
    Err(format!(
        "its journal mode stays {mode:?}: a write-ahead log needs a file on a local disk, and memory that processes \
         share; put it on such a disk"
    )
    .into())
}

/// The pool of connections that read.
pub(super) struct Connections {
    site: Site,
    mode: Usage,
    pub(super) idle: Mutex<Vec<(Connection, Option<Still>)>>,
    scans: Mutex<Scans>,
}

/// The scans that keep a transaction open, which keeps the log from restarting.
#[derive(Default)]
struct Scans {
    next: u64,
    /// When each began, and its table. The first is the oldest.
    open: BTreeMap<u64, (Instant, &'static str)>,
}

impl Connections {
    pub(super) fn new(site: Site, mode: Usage) -> Self {
        Self { site, mode, idle: Mutex::default(), scans: Mutex::default() }
    }

    /// Notes that a scan of this table keeps a transaction open, and returns its number.
    pub(super) fn keeps(&self, table: &'static str) -> u64 {
        let mut scans = self.scans.lock();
        let number = scans.next;
        scans.next += 1;
        scans.open.insert(number, (time::now(), table));
        number
    }

    pub(super) fn ended(&self, scan: u64) {
        self.scans.lock().open.remove(&scan);
    }

    /// Returns the table and the age of the oldest scan that is open.
    pub(super) fn oldest(&self) -> Option<(&'static str, Duration)> {
        let scans = self.scans.lock();
        let (begun, table) = scans.open.values().next()?;
        Some((table, time::now().saturating_duration_since(*begun)))
    }

    pub(super) fn file(&self) -> &Path {
        &self.site.file
    }

    /// Takes an idle connection, or opens one. It never waits.
    pub(super) fn lend(&self) -> rusqlite::Result<LentConnection<'_>> {
        let idle = self.idle.lock().pop();
        // After the lock is released: this may access the file system.
        let idle = idle.filter(|(_, still)| still.as_ref().is_none_or(Still::holds));
        let connection = idle.map_or_else(|| open(&self.site, self.mode), Ok)?;
        Ok(LentConnection { from: self, connection: Some(connection) })
    }

    pub(super) fn with<R>(
        &self,
        doing: impl Into<String>,
        read: impl FnOnce(&Connection) -> rusqlite::Result<R>,
    ) -> Result<R, StoreError> {
        let connection = self.lend();
        let read = connection.and_then(|connection| {
            let read = read(&connection);
            connection.is_sound()?;
            read
        });
        read.map_err(failed(doing))
    }
}

/// A connection that is in use. Dropping it returns it to the pool.
pub(super) struct LentConnection<'a> {
    from: &'a Connections,
    connection: Option<(Connection, Option<Still>)>,
}

impl LentConnection<'_> {
    /// Returns an error if a file that is read without a lock has changed meanwhile.
    pub(super) fn is_sound(&self) -> rusqlite::Result<()> {
        match &self.connection {
            Some((_, Some(still))) if !still.is_unchanged() => Err(rusqlite::Error::SqliteFailure(
                rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_ABORT),
                Some("an application has opened the database and changed it meanwhile: read once more".to_owned()),
            )),
            _ => Ok(()),
        }
    }
}

impl Deref for LentConnection<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        let lent = self.connection.as_ref();
        lent.map(|(connection, _)| connection).unwrap_or_else(|| unreachable!("it is taken when this is dropped"))
    }
}

impl Drop for LentConnection<'_> {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        // One that is still in a transaction would show the past for ever.
        if !connection.0.is_autocommit() {
            return;
        }
        let mut idle = self.from.idle.lock();
        if idle.len() < IDLE {
            idle.push(connection);
        }
    }
}
