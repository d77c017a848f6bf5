//! Where the files are: one path, or a directory whose names say which files are older.

use super::error::LinesError;
use std::ffi::OsStr;
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
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
            keyed.into_iter().map(|(_, file)| file).collect()
        };
        Self { path, order: Some(Box::new(order)) }
    }

    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        if self.order.is_some() { self.path.join(name) } else { self.path.clone() }
    }

    /// Returns the files of the stream that are there now, the oldest first.
    pub(super) fn list(&self) -> Result<Vec<Found>, LinesError> {
        self.try_list().map_err(|source| LinesError::Io { file: self.path.clone(), source })
    }

    fn try_list(&self) -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        let mut add = |name: &OsStr, meta: io::Result<Metadata>| match meta {
            Ok(meta) if meta.is_dir() && self.order.is_none() => Err(ErrorKind::IsADirectory.into()),
            Ok(meta) => {
                let name = name.to_string_lossy().into_owned();
                // A file that is renamed meanwhile may be listed under both names.
                if meta.is_file() && !found.iter().any(|other: &Found| other.id.is_some() && other.id == id(&meta)) {
                    found.push(Found { name, id: id(&meta), len: meta.len() });
                }
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        };
        let Some(order) = &self.order else {
            add(self.path.file_name().unwrap_or_default(), fs::metadata(&self.path))?;
            return Ok(found);
        };
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            add(&entry.file_name(), entry.metadata())?;
        }
        Ok(order(found))
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
