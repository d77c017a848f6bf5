//! Where the files are: one path, or a directory whose names say which files are older.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::path::PathBuf;

/// Puts files in order, older ones first, and leaves out those that are none of the stream.
type Order = Box<dyn Fn(Vec<Found>) -> Vec<Found> + Send + Sync>;

pub(super) struct Place {
    pub(super) path: PathBuf,
    /// `None` for a single file.
    order: Option<Order>,
}

/// The device and the inode of a file, which stay the same when it is renamed.
pub(super) type Id = (u64, u64);

/// A file as it was listed.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Found {
    pub(super) name: String,
    pub(super) id: Option<Id>,
    pub(super) len: u64,
}

impl Place {
    pub(super) fn file(path: PathBuf) -> Self {
        Self { path, order: None }
    }

    pub(super) fn directory<K: Ord>(path: PathBuf, age: impl Fn(&str) -> Option<K> + Send + Sync + 'static) -> Self {
        let order = move |found: Vec<Found>| {
            let mut keyed: Vec<_> = found.into_iter().filter_map(|file| Some((age(&file.name)?, file))).collect();
            // By the key, then by the name.
            keyed.sort();
            // A file that is renamed meanwhile may be listed under both names.
            let mut ids = BTreeSet::new();
            keyed.retain(|(_, file)| file.id.is_none_or(|id| ids.insert(id)));
            keyed.into_iter().map(|(_, file)| file).collect()
        };
        Self { path, order: Some(Box::new(order)) }
    }

    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        if self.order.is_some() { self.path.join(name) } else { self.path.clone() }
    }

    /// Returns the files of the stream that are there now, the oldest first.
    pub(super) fn list(&self) -> io::Result<Vec<Found>> {
        let found = |name: &std::ffi::OsStr, meta: io::Result<Metadata>| match meta {
            Ok(meta) if meta.is_file() => {
                Ok(Some(Found { name: name.to_string_lossy().into_owned(), id: id(&meta), len: meta.len() }))
            }
            Ok(_) if self.order.is_none() => Err(io::Error::other("it is no file")),
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(None),
        };
        let Some(order) = &self.order else {
            let name = self.path.file_name().unwrap_or_default();
            return Ok(found(name, fs::metadata(&self.path))?.into_iter().collect());
        };
        let entries =
            fs::read_dir(&self.path)?.map(|entry| entry.and_then(|entry| found(&entry.file_name(), entry.metadata())));
        Ok(order(entries.filter_map(Result::transpose).collect::<io::Result<_>>()?))
    }
}

#[cfg(unix)]
#[expect(clippy::unnecessary_wraps, reason = "other systems have none")]
pub(super) fn id(meta: &Metadata) -> Option<Id> {
    use std::os::unix::fs::MetadataExt;
    Some((meta.dev(), meta.ino()))
}

#[cfg(not(unix))]
pub(super) fn id(_: &Metadata) -> Option<Id> {
    None
}
