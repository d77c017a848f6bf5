//! The engines of stores on disk. Nothing else above `kv` names one.

use std::fmt;
#[cfg(any(feature = "rocksdb", feature = "sqlite-system"))]
use {crate::base::config::ConfigError, crate::base::error::Error, crate::kv::place::failed, std::path::Path};

/// The database of a [`Store`](crate::Store) on disk. Each is a feature of this crate.
///
/// A program that reopens a store need not know the engine, which the files in the directory tell.
/// In a new directory it is RocksDB if both are compiled in, unless
/// [`StoreOptions::engine`](crate::StoreOptions::engine) is set.
///
/// | | RocksDB | SQLite |
/// |---|---|---|
/// | feature | `rocksdb` (the default) | `sqlite`, or `sqlite-system` |
/// | to compile it | 20 minutes on two cores, a C++ compiler and libclang | half a minute, a C compiler |
/// | in a directory of ours | many files; `CURRENT` names the others | `waterline.sqlite` |
/// | in a database of yours | `Store::attach` | `Store::attach_sqlite` |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Engine {
    /// RocksDB: faster for many jobs, and with smaller files.
    RocksDb,
    /// SQLite: compiles in half a minute, and many programs have it already.
    Sqlite,
}

#[cfg(any(feature = "rocksdb", feature = "sqlite-system"))]
impl Engine {
    const ALL: [Self; 2] = [Self::RocksDb, Self::Sqlite];

    /// The file that identifies its directory.
    fn file(self) -> &'static str {
        match self {
            Self::RocksDb => "CURRENT",
            Self::Sqlite => "waterline.sqlite",
        }
    }

    /// The feature of this crate for it.
    fn feature(self) -> &'static str {
        match self {
            Self::RocksDb => "rocksdb",
            Self::Sqlite => "sqlite",
        }
    }

    fn is_compiled_in(self) -> bool {
        match self {
            Self::RocksDb => cfg!(feature = "rocksdb"),
            Self::Sqlite => cfg!(feature = "sqlite-system"),
        }
    }

    /// Returns the engine of the store in this directory, or of one created there.
    pub(super) fn of(path: &Path, wanted: Option<Self>) -> Result<Self, Error> {
        let mut there = Vec::new();
        for engine in Self::ALL {
            if path.join(engine.file()).try_exists().map_err(|e| failed(path, e))? {
                there.push(engine);
            }
        }
        let at = path.display();
        let engine = match (wanted, &there[..]) {
            (Some(wanted), []) => Ok(wanted),
            (Some(wanted), there) if there.contains(&wanted) => Ok(wanted),
            (Some(wanted), [found, ..]) => Err(format!(
                "the store at {at} is one of {found}, and `engine` says {wanted}: leave `engine` out, or give another directory"
            )),
            (None, []) => Ok(Self::ALL.into_iter().find(|engine| engine.is_compiled_in()).unwrap_or(Self::RocksDb)),
            (None, [found]) => Ok(*found),
            (None, _) => {
                Err(format!("there are a store of RocksDB and one of SQLite at {at}: say which one with `engine`"))
            }
        };
        let engine =
            engine.and_then(|engine| if engine.is_compiled_in() { Ok(engine) } else { Err(engine.missing(path)) });
        Ok(engine.map_err(|why| ConfigError::Engine { why })?)
    }

    /// Returns the reason why this engine cannot be used: it is not compiled in.
    pub(super) fn missing(self, path: &Path) -> String {
        format!(
            "the store at {} is one of {self}: compile this crate with its feature `{}`, or give another directory",
            path.display(),
            self.feature()
        )
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RocksDb => "RocksDB",
            Self::Sqlite => "SQLite",
        })
    }
}
