//! The connections: how each is set up, and the pool of those that read.

use super::Site;
use super::failure::failed;
use crate::base::error::StoreError;
use crate::base::index::BoxError;
use crate::base::sync::{Arc, Mutex};
use crate::base::time;
use rusqlite::{Connection, OpenFlags};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The time for which a connection waits for the lock of the file. Somebody else has it only where
/// the file is the user's own one, during a transaction of the user's.
pub(crate) const BUSY: Duration = Duration::from_secs(5);

/// The statements of a connection that stay prepared: all that there are for all families.
const STATEMENTS: usize = 96;

/// The connections that stay open while nobody reads with them. A few threads read at a time.
const IDLE: usize = 16;

/// The pages after which the log is written back: 16 MiB. Each time costs two flushes, and a page
/// that was changed many times is written back once. SQLite's own 4 MiB makes four times as many
/// flushes; more would be read again after a crash.
const CHECKPOINT: u32 = 4_000;

/// The length of the log, in bytes, from which it is made to begin anew: otherwise readers that
/// take turns could let it grow for ever. A longer file is cut to this length then.
pub(super) const LONG_LOG: i64 = 64 << 20;

/// The cache of the connection that writes, in KiB. Nobody else's writes make it forget its pages,
/// as long as all writes come from here; a connection that reads forgets its own at each of them.
const WRITER_CACHE: u32 = 32 << 10;

/// A closure of the user that sets up a new connection.
type SetUp = dyn Fn(&Connection) -> rusqlite::Result<()> + Send + Sync;

/// The closure, if there is one.
#[derive(Clone, Default)]
pub(crate) struct OnConnect(pub(crate) Option<Arc<SetUp>>);

impl fmt::Debug for OnConnect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "a closure" } else { "nothing" })
    }
}

/// The use of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Writer,
    /// It reads, in the process that writes.
    Reader,
    /// It reads from beside, and makes nothing.
    Look,
}

/// Opens a connection.
pub(super) fn open(site: &Site, mode: Mode) -> rusqlite::Result<Connection> {
    let file = &site.file;
    let connection = match mode {
        Mode::Writer => Connection::open_with_flags(
            file,
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )?,
        Mode::Reader => {
            Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?
        }
        Mode::Look => look(file)?,
    };
    connection.busy_timeout(BUSY)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    if let Some(on_connect) = &site.on_connect.0 {
        on_connect(&connection)?;
    }
    match mode {
        Mode::Writer => {
            connection.pragma_update(None, "foreign_keys", true)?;
            connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT)?;
            connection.pragma_update(None, "journal_size_limit", LONG_LOG)?;
            connection.pragma_update(None, "cache_size", -i64::from(WRITER_CACHE))?;
            connection.pragma_update(None, "synchronous", "NORMAL")?;
        }
        Mode::Reader | Mode::Look => connection.pragma_update(None, "query_only", true)?,
    }
    Ok(connection)
}

/// Opens a connection that makes no file. The log of a database in use is read with the memory
/// that its processes share. Where a directory is read-only and nobody has the database open, there
/// is no log, and the file itself says all.
fn look(file: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags)?;
    let read = |connection: &Connection| connection.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(()));
    match read(&connection) {
        Err(error) if is_unopened(&error) && !log_of(file).exists() => {}
        read => return read.map(|()| connection),
    }
    let connection = Connection::open_with_flags(immutable(file), flags | OpenFlags::SQLITE_OPEN_URI)?;
    read(&connection).map(|()| connection)
}

fn is_unopened(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(rusqlite::ErrorCode::CannotOpen | rusqlite::ErrorCode::ReadOnly))
}

/// Returns the write-ahead log of a database.
pub(super) fn log_of(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

/// Returns the name of a file that nobody changes, as SQLite reads it.
fn immutable(file: &Path) -> OsString {
    let mut name = OsString::from("file:");
    let escaped: String = file
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => char::from(*byte).to_string(),
            byte => format!("%{byte:02x}"),
        })
        .collect();
    name.push(escaped);
    name.push("?immutable=1");
    name
}

/// Turns the write-ahead log on.
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

/// The connections that read, and those of them that nobody uses now.
pub(super) struct Connections {
    site: Site,
    mode: Mode,
    idle: Mutex<Vec<Connection>>,
    scans: Mutex<Scans>,
}

/// The scans that keep a transaction open, and with it the log of the database.
#[derive(Default)]
struct Scans {
    next: u64,
    /// The times at which they began, and their tables. The first one is the oldest.
    open: BTreeMap<u64, (Instant, &'static str)>,
}

impl Connections {
    pub(super) fn new(site: Site, mode: Mode) -> Self {
        Self { site, mode, idle: Mutex::default(), scans: Mutex::default() }
    }

    /// Notes that a scan of this table keeps a transaction open. Returns its number.
    pub(super) fn keeps(&self, table: &'static str) -> u64 {
        let mut scans = self.scans.lock();
        let number = scans.next;
        scans.next += 1;
        scans.open.insert(number, (time::now(), table));
        number
    }

    /// Notes that a scan has ended.
    pub(super) fn ended(&self, scan: u64) {
        self.scans.lock().open.remove(&scan);
    }

    /// Returns the table of the scan that is open for the longest time, and that time.
    pub(super) fn oldest(&self) -> Option<(&'static str, Duration)> {
        let scans = self.scans.lock();
        let (begun, table) = scans.open.values().next()?;
        Some((table, time::now().saturating_duration_since(*begun)))
    }

    /// The file of the database.
    pub(super) fn file(&self) -> &Path {
        &self.site.file
    }

    /// Takes a connection that nobody uses, or opens one. It never waits.
    pub(super) fn lend(&self) -> rusqlite::Result<Lent<'_>> {
        let idle = self.idle.lock().pop();
        let connection = idle.map_or_else(|| open(&self.site, self.mode), Ok)?;
        Ok(Lent { from: self, connection: Some(connection) })
    }

    /// The number of connections that nobody uses now.
    #[cfg(test)]
    pub(super) fn idle(&self) -> usize {
        self.idle.lock().len()
    }

    /// Reads with a connection.
    pub(super) fn with<R>(
        &self,
        doing: impl Into<String>,
        read: impl FnOnce(&Connection) -> rusqlite::Result<R>,
    ) -> Result<R, StoreError> {
        self.lend().and_then(|connection| read(&connection)).map_err(failed(doing))
    }
}

/// A connection that is in use. It is free again when this is dropped.
pub(super) struct Lent<'a> {
    from: &'a Connections,
    connection: Option<Connection>,
}

impl Deref for Lent<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection.as_ref().unwrap_or_else(|| unreachable!("it is taken when this is dropped"))
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        // One that still is in a transaction would show the past for ever.
        if !connection.is_autocommit() {
            return;
        }
        let mut idle = self.from.idle.lock();
        if idle.len() < IDLE {
            idle.push(connection);
        }
    }
}
