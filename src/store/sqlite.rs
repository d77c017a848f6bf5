//! A store on SQLite: in a directory of ours, or in a user's file.

use crate::base::{Error, sync::Arc};
use crate::kv::sqlite::connection::OnConnect;
use crate::kv::sqlite::{FILE, Site, SqliteKv};
use crate::store::{Engine, Store, StoreOptions, format};
use rusqlite::Connection;
use std::path::Path;

pub(super) fn open(options: &StoreOptions, path: &Path) -> Result<Store, Error> {
    open_file(options, Some(path), &path.join(FILE))
}

fn open_file(options: &StoreOptions, directory: Option<&Path>, file: &Path) -> Result<Store, Error> {
    let path = directory.unwrap_or(file);
    let site = Site { file: file.to_owned(), on_connect: options.on_connect.clone() };
    let place = path.display();
    let kv = if options.read_only {
        SqliteKv::look(path, site)?
    } else {
        let kv = SqliteKv::open(directory, site, options.create)?;
        // Check before anything is created, so that a refused store keeps its tables.
        if kv.has_tables()? {
            format::check(&kv, options.create, &place)?;
        }
        kv.make_families()?;
        kv
    };
    Ok(Store { engine: Some(Engine::Sqlite), ..Store::on(Arc::new(kv), options, &place)? })
}

impl StoreOptions {
    /// Calls this with each connection that the store opens, before the store uses it: to add SQL
    /// functions, or to set the key of an encrypted database. Its error is an [`Error::Store`] of
    /// the call that needs the connection.
    ///
    /// Afterwards the store sets `foreign_keys` to on, `synchronous`, `wal_autocheckpoint`,
    /// `journal_size_limit` and `cache_size`, and its own authorizer on the connection that writes.
    ///
    /// ```no_run
    /// use waterline::Store;
    ///
    /// let options = Store::options().on_connect(|connection| connection.pragma_update(None, "key", "secret"));
    /// let store = options.attach_sqlite("app.db")?;
    /// # Ok::<(), waterline::Error>(())
    /// ```
    pub fn on_connect<F>(mut self, set_up: F) -> Self
    where
        F: Fn(&Connection) -> rusqlite::Result<()> + Send + Sync + 'static,
    {
        self.on_connect = OnConnect(Some(Arc::new(set_up)));
        self
    }

    /// Returns the store in a file of yours, as [`Store::attach_sqlite`] does, with these options.
    ///
    /// # Errors
    /// The errors of [`Store::attach_sqlite`], and [`Error::NotFound`] if there is no store in the
    /// file and [`create`](Self::create) is `false`.
    pub fn attach_sqlite(self, file: impl AsRef<Path>) -> Result<Store, Error> {
        open_file(&self, None, file.as_ref())
    }
}

impl Store {
    /// Returns a store in an SQLite file of yours, beside your own tables. Its tables have names
    /// that begin with `waterline_`: leave them alone. A missing file is created. Writes are
    /// [`Durability::Buffered`](crate::Durability::Buffered) by default.
    ///
    /// Your own connections read and write the file as before, in this process and in others. The
    /// store turns on the file's write-ahead log, which stays on.
    ///
    /// * Readers never wait. Writers take turns: your transaction waits for a save of the store,
    ///   for milliseconds at most, so set a `busy_timeout` of some seconds. A save waits for your
    ///   transaction, for 5 seconds at most: then it is an [`Error::Store`], and a consumer retries
    ///   it.
    /// * A job that pushes or writes to the store while a transaction of its own has written
    ///   something waits for itself. After the 5 seconds the push is an [`Error::Store`]. Commit
    ///   first, or let the store make your change, too.
    ///
    /// The store is for one process at a time. It holds the lock of the file `<file>-lock` until it
    /// is dropped. (`:memory:` is a file like any other here: see [`Store::in_memory`].)
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let file = directory.path().join("app.db");
    /// use waterline::{Consumer, MemoryJobs, Store};
    ///
    /// let mine = rusqlite::Connection::open(&file)?;
    /// mine.execute_batch("CREATE TABLE heights (name TEXT PRIMARY KEY, metres INTEGER)")?;
    ///
    /// let store = Store::attach_sqlite(&file)?;
    /// let jobs: MemoryJobs<_> = (0..10u64).collect();
    /// Consumer::builder(jobs, store.progress("heights")).stop_at(9).start(|_| Ok(()))?.join()?;
    /// mine.execute("INSERT INTO heights VALUES ('k2', 8611)", [])?;    // as before
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// * [`Error::Locked`] if another store has the file, in this process or another one.
    /// * [`Error::Format`] if a newer version of this library has made the store. Nothing is
    ///   changed then.
    /// * [`Error::Corrupt`] if the record of the version is damaged.
    /// * [`Error::Store`] for any other error of SQLite.
    pub fn attach_sqlite(file: impl AsRef<Path>) -> Result<Self, Error> {
        Self::options().attach_sqlite(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Engine, JobLog, Jobs as _};

    fn opened() -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::options().engine(Engine::Sqlite).open(directory.path()).unwrap();
        (directory, store)
    }

    fn rows(directory: &tempfile::TempDir, table: &str) -> i64 {
        let connection = Connection::open(directory.path().join(FILE)).unwrap();
        connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn trims_delete_a_log_in_pieces_faster_than_it_grows() {
        let (directory, store) = opened();
        let log: JobLog<u64> = store.log("l").unwrap();
        log.push_all(&(1..=4_000).collect::<Vec<_>>()).unwrap();
        let mut counts = Vec::new();
        for last in 3_500..3_504 {
            log.trim(..=last).unwrap();
            assert_eq!(log.first().unwrap(), last + 1);
            assert_eq!(log.at_index(last + 1).unwrap(), Some(last + 1));
            counts.push(rows(&directory, "waterline_logs"));
        }
        // The last part is too small, and is deleted with the next piece.
        assert_eq!(counts, [3_000, 2_000, 1_000, 1_000]);
        for last in (4_000..9_000u64).step_by(100) {
            log.push_all(&(last + 1..=last + 100).collect::<Vec<_>>()).unwrap();
            log.trim(..=last).unwrap();
            assert!(rows(&directory, "waterline_logs") <= 1_200);
        }
    }
}
