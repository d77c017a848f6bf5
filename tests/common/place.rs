//! The store that a test runs on: one in memory, or one on an engine, on a disk.
//!
//! The variable `WATERLINE_STORE` names it, so one program runs on each of them. Without it the
//! store is on RocksDB if that is compiled in, else on SQLite if that is, else in memory.

#[cfg(feature = "_disk")]
use std::path::Path;
use std::sync::OnceLock;
use tempfile::TempDir;
#[cfg(feature = "_disk")]
use waterline::Error;
use waterline::fuzzing::Disk;
use waterline::{Engine, Store, StoreOptions, Table};

/// Returns the engine of the stores on a disk; `None` if the tests run in memory.
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

/// Returns a directory for a test of this engine alone.
#[must_use]
pub fn a_directory_of(wanted: Engine) -> Option<TempDir> {
    a_directory().filter(|_| engine() == Some(wanted))
}

/// Returns the options of a store on the engine of the tests.
pub fn on_engine() -> StoreOptions {
    engine().into_iter().fold(Store::options(), StoreOptions::engine)
}

/// Opens the store in this directory, on the engine of the tests.
///
/// # Errors
/// Those of [`StoreOptions::open`].
#[cfg(feature = "_disk")]
pub fn open_in(path: impl AsRef<Path>) -> Result<Store, Error> {
    on_engine().open(path)
}

/// Makes an empty store in this directory, on the engine of the tests. A process that opens it goes
/// by its files.
///
/// # Panics
/// If it cannot be made.
#[cfg(feature = "_disk")]
pub fn make_in(path: impl AsRef<Path>) {
    drop(open_in(path).unwrap());
}

/// Returns the store to test on, which is empty. Its directory, if it has one, lives as long as the
/// second value.
pub fn a_store() -> (Store, Place) {
    let place = Place::default();
    (place.open(), place)
}

/// Runs a test on the store to test on (see [`a_store`]).
pub fn on_store(test: impl Fn(&Store)) {
    let (store, _place) = a_store();
    test(&store);
}

/// A place where a store lives on while it is closed: a directory, or a disk in memory.
#[derive(Debug)]
pub enum Place {
    Memory(Disk),
    Directory(TempDir),
}

impl Default for Place {
    fn default() -> Self {
        a_directory().map_or_else(|| Self::Memory(Disk::default()), Self::Directory)
    }
}

/// Returns a key space of the user's own in the store of a [`Place::with_theirs`]: a column family,
/// or a table on an engine that has none.
pub fn theirs(store: &Store) -> Table {
    let theirs = if engine() == Some(Engine::Sqlite) { store.table("theirs") } else { store.column_family("theirs") };
    theirs.unwrap()
}

impl Place {
    /// Returns a place with a key space of the user's own: see [`theirs`].
    #[must_use]
    pub fn with_theirs() -> Self {
        let place = Self::default();
        #[cfg(feature = "rocksdb")]
        if let (Self::Directory(directory), Some(Engine::RocksDb)) = (&place, engine()) {
            drop(crate::raw::Raw::make(directory.path(), &["theirs"]));
        }
        place
    }

    pub fn open(&self) -> Store {
        self.open_with(&Store::options())
    }

    pub fn open_with(&self, options: &StoreOptions) -> Store {
        match self {
            Self::Memory(disk) => disk.open(options).unwrap(),
            #[cfg(feature = "_disk")]
            Self::Directory(directory) => {
                engine().into_iter().fold(options.clone(), StoreOptions::engine).open(directory.path()).unwrap()
            }
            #[cfg(not(feature = "_disk"))]
            Self::Directory(_) => unreachable!("no engine is compiled in"),
        }
    }
}
