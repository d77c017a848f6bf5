//! The engine of the stores of a run, as the variable `WATERLINE_STORE` names it. The default is
//! RocksDB if it is compiled in, else SQLite if that is, else memory.

#[cfg(feature = "_disk")]
use std::path::Path;
use std::sync::OnceLock;
use tempfile::TempDir;
#[cfg(feature = "_disk")]
use waterline::Error;
use waterline::{Engine, Store, StoreOptions};

/// Returns the engine of the stores on a disk, or `None` if the tests run in memory.
#[must_use]
pub fn engine() -> Option<Engine> {
    static ENGINE: OnceLock<Option<Engine>> = OnceLock::new();
    *ENGINE.get_or_init(|| engine_of(std::env::var("WATERLINE_STORE").ok().as_deref()))
}

/// Returns the engine that this value of `WATERLINE_STORE` names.
///
/// # Panics
/// If it names none, or one that is not compiled in.
#[must_use]
pub fn engine_of(name: Option<&str>) -> Option<Engine> {
    match name {
        Some("memory") => None,
        Some("rocksdb") if cfg!(feature = "rocksdb") => Some(Engine::RocksDb),
        Some("sqlite") if cfg!(feature = "sqlite") => Some(Engine::Sqlite),
        Some(name @ ("rocksdb" | "sqlite")) => {
            panic!("WATERLINE_STORE is {name}: compile the tests with `--features {name}`")
        }
        Some(other) => panic!("WATERLINE_STORE is {other:?}: say memory, sqlite or rocksdb"),
        None if cfg!(feature = "rocksdb") => Some(Engine::RocksDb),
        None if cfg!(feature = "sqlite") => Some(Engine::Sqlite),
        None => None,
    }
}

/// Returns a directory for a test that needs a disk. Without an engine there is none, and the test
/// is over.
#[must_use]
pub fn a_directory() -> Option<TempDir> {
    engine().map(|_| tempfile::tempdir().unwrap())
}

/// Returns a directory for a test of only this engine.
#[must_use]
pub fn a_directory_of(wanted: Engine) -> Option<TempDir> {
    a_directory().filter(|_| engine() == Some(wanted))
}

pub fn on_engine() -> StoreOptions {
    engine().into_iter().fold(Store::options(), StoreOptions::engine)
}

/// Opens the store in this directory on the engine of the tests.
///
/// # Errors
/// Those of [`StoreOptions::open`].
#[cfg(feature = "_disk")]
pub fn open_in(path: impl AsRef<Path>) -> Result<Store, Error> {
    on_engine().open(path)
}

/// Makes an empty store in this directory on the engine of the tests, for a process that finds the
/// engine by its files.
///
/// # Panics
/// If it cannot be made.
#[cfg(feature = "_disk")]
pub fn make_in(path: impl AsRef<Path>) {
    drop(open_in(path).unwrap());
}
