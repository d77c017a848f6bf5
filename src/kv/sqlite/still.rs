//! A database that no process has open. It is read without the files that SQLite adds.

use rusqlite::{Connection, OpenFlags};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The file of such a database, and its modification time and length when it was found.
#[derive(Debug)]
pub(super) struct Still {
    file: PathBuf,
    state: (SystemTime, u64),
}

impl Still {
    /// Returns the file if no process has it open. One that does, or that crashed, has left a log.
    pub(super) fn of(file: &Path) -> Option<Self> {
        let state = state(file)?;
        Some(Self { file: file.to_owned(), state }).filter(Self::is_alone)
    }

    /// Opens a connection that takes no lock and creates no file.
    pub(super) fn open(&self, flags: OpenFlags) -> rusqlite::Result<Connection> {
        Connection::open_with_flags(immutable(&self.file), flags | OpenFlags::SQLITE_OPEN_URI)
    }

    /// True if the file has not changed. (A process that opens it writes to its log first.)
    pub(super) fn is_unchanged(&self) -> bool {
        state(&self.file) == Some(self.state)
    }

    /// True if no process has opened the database since.
    pub(super) fn holds(&self) -> bool {
        self.is_alone() && self.is_unchanged()
    }

    fn is_alone(&self) -> bool {
        !log_of(&self.file).exists() && !beside(&self.file, "-journal").exists()
    }
}

fn state(file: &Path) -> Option<(SystemTime, u64)> {
    let file = std::fs::metadata(file).ok()?;
    Some((file.modified().ok()?, file.len()))
}

/// Returns the name of a file beside a database.
pub(super) fn beside(file: &Path, ending: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Returns the write-ahead log of a database.
pub(super) fn log_of(file: &Path) -> PathBuf {
    beside(file, "-wal")
}

/// Returns the URI by which SQLite reads a file as one that no process changes.
fn immutable(file: &Path) -> OsString {
    let mut name = OsString::from("file:");
    let escaped: String = file
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => char::from(*byte).to_string(),
            byte => format!("%{byte:02x}"),
        })
        .collect();
    name.push(escaped);
    name.push("?immutable=1");
    name
}
