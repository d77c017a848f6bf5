//! Opens a store in a directory, on its engine.

use super::engine::Engine;
#[cfg(feature = "rocksdb")]
use super::rocksdb;
#[cfg(feature = "sqlite-system")]
use super::sqlite;
use super::{Store, StoreOptions, locked};
#[cfg(not(all(feature = "rocksdb", feature = "sqlite-system")))]
use crate::base::config::ConfigError;
use crate::base::{Error, time};
use crate::kv::place::wait_closed;
use std::path::Path;
use std::time::Duration;

impl StoreOptions {
    /// Opens the database in this directory, or creates it, unless [`create`](Self::create) is
    /// `false` or the store is [read-only](Self::read_only).
    ///
    /// # Errors
    /// * [`Error::Locked`] if the database is open elsewhere. A read-only store needs no lock.
    /// * [`Error::NotFound`] if there is none and it is not to be created.
    /// * [`Error::Format`] if a newer version of this library has made the store. Nothing is
    ///   changed then.
    /// * [`Error::Corrupt`] if the record of the version is damaged.
    /// * [`Error::Store`] for any other error of the database. For a read-only store also if the
    ///   application replaced its files for 10 seconds in each attempt to read them.
    pub fn open(self, path: impl AsRef<Path>) -> Result<Store, Error> {
        open(&self, path.as_ref(), false)
    }

    /// Opens the database like [`open`](Self::open), and retries while it is
    /// [locked](Error::Locked), for at most this long. Use it for a program that is replaced while
    /// it runs: the new process starts while the old one still saves and closes.
    ///
    /// Between two attempts the thread sleeps 5 ms at first, then twice as long each time, at most
    /// 200 ms. A store that this process closes wakes it. Any other error is returned at once.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use waterline::Store;
    ///
    /// let store = Store::options().open_within("data", Duration::from_secs(30))?;
    /// # Ok::<(), waterline::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`open`](Self::open); [`Error::Locked`] if it is still locked at the timeout.
    pub fn open_within(self, path: impl AsRef<Path>, timeout: Duration) -> Result<Store, Error> {
        let (path, begun, mut tried) = (path.as_ref(), time::now(), false);
        let again = || open(&self, path, std::mem::replace(&mut tried, true));
        locked::retry(timeout, || time::now().saturating_duration_since(begun), wait_closed, again)
    }
}

/// Opens the store in this directory. `again` means that it was locked a moment ago.
fn open(options: &StoreOptions, path: &Path, again: bool) -> Result<Store, Error> {
    match Engine::of(path, options.engine)? {
        #[cfg(feature = "rocksdb")]
        Engine::RocksDb => rocksdb::open(options, path, again),
        #[cfg(feature = "sqlite-system")]
        Engine::Sqlite => {
            // An attempt leaves nothing behind.
            let _first_or_again = again;
            sqlite::open(options, path)
        }
        #[cfg(not(all(feature = "rocksdb", feature = "sqlite-system")))]
        engine => Err(ConfigError::Engine { why: engine.missing(path) }.into()),
    }
}
