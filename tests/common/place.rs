//! The store that a test runs on: in memory, or on a disk with the engine of the run.

use crate::engine::{a_directory, engine};
use tempfile::TempDir;
use waterline::fuzzing::Disk;
use waterline::{Engine, Store, StoreOptions, Table};

/// Returns an empty store to test on. Its directory, if any, lives as long as the second value.
pub fn a_store() -> (Store, Place) {
    let place = Place::default();
    (place.open(), place)
}

/// Runs a test on such a store (see [`a_store`]).
pub fn on_store(test: impl Fn(&Store)) {
    let (store, _place) = a_store();
    test(&store);
}

/// A place that keeps a store while it is closed: a directory, or a disk in memory.
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

/// Returns the user's own key space in the store of a [`Place::with_theirs`]: a column family, or a
/// table on an engine without families.
pub fn theirs(store: &Store) -> Table {
    let theirs = if engine() == Some(Engine::Sqlite) { store.table("theirs") } else { store.column_family("theirs") };
    theirs.unwrap()
}

impl Place {
    /// Returns a place with a key space of the user: see [`theirs`].
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
