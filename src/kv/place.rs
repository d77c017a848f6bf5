//! The directories and files that this process has open as databases, or is closing.

use crate::base::sync::{Condvar, Mutex};
use crate::base::{Error, error::StoreError, time};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::thread::ThreadId;
use std::time::Duration;

/// The places that are open in this process. RocksDB recognizes an open database by the path that
/// it was given: by another one, it would open it twice, and the two would overwrite each other.
static OPEN: LazyLock<Mutex<HashMap<PathBuf, Use>>> = LazyLock::new(Mutex::default);

/// What this process does with a place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Open,
    /// The last handle of its store was dropped on this thread. A thread of the store, maybe this
    /// one, still has to let go of the database.
    Closes(ThreadId),
}

/// Notified when one of them is closed.
static CLOSED: LazyLock<Condvar> = LazyLock::new(Condvar::default);

/// A directory or file that this process uses, by its canonical path.
pub(super) struct Place {
    path: PathBuf,
    /// Whether the database was opened. Two failed attempts would notify each other for ever.
    pub(super) opened: bool,
}

impl Place {
    /// Reserves a directory. `create` makes it if it is missing.
    pub(super) fn directory(path: &Path, create: bool) -> Result<Self, Error> {
        let made = if create { std::fs::create_dir_all(path) } else { Ok(()) };
        match made.and_then(|()| path.canonicalize()) {
            Err(e) if !create && e.kind() == ErrorKind::NotFound => Err(no_store(path)),
            real => Self::reserve(real.map_err(|e| failed(path, e))?, path),
        }
    }

    /// Reserves a file, which need not exist yet.
    #[cfg(feature = "sqlite-system")]
    pub(super) fn file(path: &Path) -> Result<Self, Error> {
        Self::reserve(real_file(path).map_err(|e| failed(path, e))?, path)
    }

    fn reserve(real: PathBuf, path: &Path) -> Result<Self, Error> {
        let mut open = OPEN.lock();
        loop {
            match open.get(&real) {
                None => break,
                // A thread would wait for itself for ever.
                Some(Use::Closes(by)) if *by != std::thread::current().id() => CLOSED.wait(&mut open),
                Some(_) => return Err(Error::Locked { path: path.to_owned() }),
            }
        }
        open.insert(real.clone(), Use::Open);
        Ok(Self { path: real, opened: false })
    }

    #[cfg(feature = "sqlite-system")]
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Notes that the database closes soon. A call that opens it waits for that.
    pub(super) fn closes(&self) {
        OPEN.lock().insert(self.path.clone(), Use::Closes(std::thread::current().id()));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        OPEN.lock().remove(&self.path);
        if self.opened {
            CLOSED.notify_all();
        }
    }
}

/// Returns the canonical path of a file, which may not exist yet. Its directory must.
#[cfg(feature = "sqlite-system")]
fn real_file(path: &Path) -> std::io::Result<PathBuf> {
    match path.canonicalize() {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let name = path.file_name().unwrap_or_else(|| std::ffi::OsStr::new(""));
            let directory = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
            Ok(directory.canonicalize()?.join(name))
        }
        real => real,
    }
}

/// Waits until this process closes a database, or for `limit`. (Other processes do not tell.)
pub(crate) fn wait_closed(limit: Duration) {
    let mut open = OPEN.lock();
    CLOSED.wait_until(&mut open, time::now() + limit);
}

/// Returns the error for a path without a store.
pub(super) fn no_store(path: &Path) -> Error {
    Error::NotFound { what: "store", name: path.display().to_string() }
}

pub(super) fn opening(path: &Path) -> String {
    format!("open the database at {}", path.display())
}

pub(crate) fn failed(path: &Path, error: std::io::Error) -> StoreError {
    StoreError::new(opening(path), error.into())
}
