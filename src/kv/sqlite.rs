//! The seam on SQLite: a table per family, in a file of ours or beside the user's tables.
//!
//! One connection writes. Each read has a connection of its own, from a pool. The file has a
//! write-ahead log (*WAL*), so readers do not wait for the writer, nor the writer for readers.

use super::batch::{Batch, FamilyId};
use super::place::{Place, no_store, opening};
use super::{Deletion, Each, Family, KeyRange, Kv, Order, SYSTEM, Scan, statement::Transaction};
use crate::base::{Error, error::StoreError};
pub(crate) use connection::Site;
use connection::{Connections, Usage};
use lock::Lock;
use rusqlite::{Connection, OptionalExtension as _, params};
use scan::Pages;
use sql::Sql;
use std::ops::Range;
use std::path::Path;
use write::PendingWrite;

mod authorizer;
pub(crate) mod connection;
mod failure;
mod lock;
mod pace;
mod scan;
mod sql;
mod still;
#[cfg(test)]
mod tests;
mod transaction;
mod write;
mod writer;

use failure::failed;

/// The database in a directory of ours.
pub(crate) const FILE: &str = "waterline.sqlite";

pub(crate) struct SqliteKv {
    /// The writing side; `None` in a store that is only read.
    writing: Option<PendingWrite>,
    readers: Connections,
    /// After the connections: the next holder of the lock finds them closed.
    _lock: Option<Lock>,
    /// After everything else.
    place: Option<Place>,
}

impl SqliteKv {
    /// Opens the database, without creating the tables. `create` makes a missing database.
    pub(crate) fn open(directory: Option<&Path>, site: Site, create: bool) -> Result<Self, Error> {
        let path = directory.unwrap_or(&site.file);
        if !create {
            // Without a store, not even a lock file is made.
            Self::look(path, site.clone())?;
        }
        let mut place = match directory {
            Some(directory) => Place::directory(directory, create)?,
            None => Place::file(path)?,
        };
        let file = if directory.is_some() { place.path().join(FILE) } else { place.path().to_owned() };
        let lock = Lock::take(&file, path)?;
        let ends = Ends::of(&file);
        let site = Site { file, ..site };
        let (connection, _) = connection::open(&site, Usage::Writer).map_err(failed(opening(path)))?;
        ends.within_a_page(&connection, path)?;
        let readers = Connections::new(site, Usage::Reader);
        connection::use_wal(&connection).map_err(|source| StoreError::new(opening(path), source))?;
        place.opened = true;
        let writing = Some(PendingWrite::new(connection, readers.file()));
        Ok(Self { writing, readers, _lock: Some(lock), place: Some(place) })
    }

    /// Opens the database for reading, beside its owner. It creates nothing, and needs no lock.
    pub(crate) fn look(path: &Path, site: Site) -> Result<Self, Error> {
        if !has_file(&site.file)? {
            return Err(no_store(path));
        }
        let ends = Ends::of(&site.file);
        let readers = Connections::new(site, Usage::Look);
        let is_there = readers.with(opening(path), has_store)?;
        ends.within_a_page(&*readers.lend().map_err(failed(opening(path)))?, path)?;
        if !is_there {
            return Err(no_store(path));
        }
        Ok(Self { writing: None, readers, _lock: None, place: None })
    }

    /// True if the database has, or once had, a store.
    pub(crate) fn has_tables(&self) -> Result<bool, StoreError> {
        self.readers.with("read", has_store)
    }

    /// Creates the tables of a store that the database lacks.
    pub(crate) fn make_families(&self) -> Result<(), StoreError> {
        let writing = self.writing.as_ref().ok_or_else(read_only)?;
        writing.with(|connection| connection.execute_batch(&sql::create())).map_err(failed("make its tables"))
    }

    /// Runs a short read, on the writer's connection if it is idle: its cache has the latest pages,
    /// while other connections lose theirs with each write.
    fn read<R>(&self, read: impl FnOnce(&Connection) -> rusqlite::Result<R>) -> Result<R, StoreError> {
        match self.writing.as_ref().and_then(PendingWrite::idle) {
            Some(writer) => read(&writer.connection).map_err(failed("read")),
            None => self.readers.with("read", read),
        }
    }
}

fn read_only() -> StoreError {
    StoreError::new("write".to_owned(), Error::ReadOnly.into())
}

/// The length of a file before it is opened; 0 if a log may complete it.
struct Ends(u64);

impl Ends {
    fn of(file: &Path) -> Self {
        let length = |file: &Path| std::fs::metadata(file).map_or(0, |file| file.len());
        Self(if length(&still::log_of(file)) > 0 { 0 } else { length(file) })
    }

    /// Returns an error if the file ends within a page. SQLite would read zeros behind it.
    fn within_a_page(&self, connection: &Connection, path: &Path) -> Result<(), StoreError> {
        let page: i64 =
            connection.query_row("PRAGMA page_size", [], |row| row.get(0)).map_err(failed(opening(path)))?;
        if self.0.is_multiple_of(page.unsigned_abs()) {
            return Ok(());
        }
        let why = format!("the file ends after {} bytes, within a page: restore it from a backup", self.0);
        Err(StoreError::new(opening(path), why.into()))
    }
}

/// True if the file exists. (It is not opened: closing it would drop SQLite's locks.)
fn has_file(file: &Path) -> Result<bool, StoreError> {
    file.try_exists().map_err(|e| StoreError::new(opening(file), e.into()))
}

/// True if the database has, or once had, a store.
fn has_store(connection: &Connection) -> rusqlite::Result<bool> {
    let table = "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?1)";
    connection.query_row(table, [sql::table(SYSTEM)], |row| row.get(0))
}

fn value(connection: &Connection, sql: &Sql, key: &[u8]) -> rusqlite::Result<Option<Vec<u8>>> {
    let mut get = connection.prepare_cached(&sql.get)?;
    get.query_row([key], |row| row.get(0)).optional()
}

impl Kv for SqliteKv {
    fn closes(&self) {
        if let Some(place) = &self.place {
            place.closes();
        }
    }

    fn family(&self, name: &str) -> Result<Option<FamilyId>, StoreError> {
        Ok(sql::family(name))
    }

    fn get(&self, family: &Family, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let sql = sql::of(family.id)?;
        self.read(|connection| value(connection, sql, key))
    }

    fn multi_get(&self, family: &Family, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let sql = sql::of(family.id)?;
        self.read(|connection| {
            // One snapshot for all of them, which ends on drop.
            let moment = connection.unchecked_transaction()?;
            keys.iter().map(|key| value(&moment, sql, key)).collect()
        })
    }

    fn rows(&self, family: &Family, keys: KeyRange, order: Order) -> Scan<'_> {
        if keys.is_empty() {
            return Box::new(std::iter::empty());
        }
        match sql::of(family.id).and_then(|sql| Pages::open(&self.readers, sql, keys, order)) {
            Ok(pages) => Box::new(pages),
            Err(error) => Box::new(std::iter::once(Err(error))),
        }
    }

    fn range(&self, family: &Family, keys: Range<&[u8]>, each: Each<'_>) -> Result<(), StoreError> {
        let sql = sql::of(family.id)?;
        if keys.start >= keys.end {
            return Ok(());
        }
        self.readers.with("read", |connection| {
            let mut rows = connection.prepare_cached(&sql.range)?;
            let mut rows = rows.query(params![keys.start, keys.end])?;
            while let Some(row) = rows.next()? {
                if !each(row.get_ref(0)?.as_blob()?, row.get_ref(1)?.as_blob()?) {
                    break;
                }
            }
            Ok(())
        })
    }

    fn last(&self, family: &Family, prefix: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let sql = sql::of(family.id)?;
        self.read(|connection| {
            let key = |row: &rusqlite::Row<'_>| row.get(0);
            match super::prefix_end(prefix) {
                Some(end) => connection.prepare_cached(&sql.last)?.query_row([prefix, &end], key),
                None => connection.prepare_cached(&sql.last_open)?.query_row([prefix], key),
            }
            .optional()
        })
    }

    fn write(&self, batch: &Batch, synced: bool) -> Result<(), StoreError> {
        self.writing.as_ref().ok_or_else(read_only)?.write(batch, synced, &self.readers)
    }

    fn is_untidy(&self) -> bool {
        self.writing.as_ref().is_some_and(PendingWrite::is_untidy)
    }

    fn tidy(&self) {
        if let Some(writing) = &self.writing {
            writing.tidy(&self.readers);
        }
    }

    fn takes_sql(&self) -> bool {
        self.writing.is_some()
    }

    fn begin(&self, synced: bool, careful: bool) -> Result<Box<dyn Transaction + '_>, StoreError> {
        let writing = self.writing.as_ref().ok_or_else(read_only)?;
        Ok(Box::new(writing.begin(&self.readers, synced, careful)?))
    }

    /// Does nothing: freed pages are reused, and the file keeps its length.
    fn reclaim(&self, _family: &Family, _keys: Range<&[u8]>) -> Result<(), StoreError> {
        Ok(())
    }

    fn deletion(&self) -> Deletion {
        // Each deleted row costs a microsecond or two, and each page of a long value about one.
        Deletion { rows: 1_000, bytes: 4 << 20, reclaims: false }
    }
}
