//! What is wrong with a file of lines.

use crate::base::{Error, Index};
use std::io::{self, ErrorKind};
use std::path::PathBuf;

/// An error of [`Lines`](crate::Lines): in which file, at which line, what happened, and what to
/// do. No line was skipped, and none has got another index.
#[derive(Debug, thiserror::Error)]
#[error("{file:?}, line {index}: {fault}")]
#[non_exhaustive]
pub struct LinesError {
    /// The file, by the name that it had last, or the directory.
    pub file: PathBuf,
    /// The index of the line that was to be read, or of the next one to be counted.
    pub index: Index,
    /// What happened.
    pub fault: LinesFault,
}

/// What is wrong in a [`LinesError`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinesFault {
    /// The system does not list, open or read it.
    #[error("it cannot be read ({0}): see that it is there, and that this program may read it")]
    Io(io::Error),
    /// The file is shorter than what was counted of it.
    #[error("the file was cut: restore it, or give it up with `Lines::forget`; never rotate by `copytruncate`")]
    Cut,
    /// The file is no longer there. It has this line, or it may have had lines after it.
    #[error("the file was removed: restore it, or give it up with `Lines::forget` if it was the newest")]
    Removed,
    /// It is not the file that was counted under this name.
    #[error("it is another file: restore the old one, or see `Lines::forget`, and `directory_by` for renames")]
    Replaced,
    /// The file has grown after a newer one had begun. What was added would need numbers that the
    /// lines of the newer one have.
    #[error("the file has grown after a newer one had begun: append that to the newest file, and remove this one")]
    Grown,
    /// The file was not counted, and its name says that it is older than one that was.
    #[error("a new file has an older name: remove it, or restore the one of its name, or see `directory_by`")]
    OutOfOrder,
    /// The line is longer than this limit in bytes.
    #[error("the line has more than {0} bytes: raise `Lines::max_line`, or see who wrote it")]
    TooLong(usize),
    /// The name for [`Lines::forget`](crate::Lines::forget) is not that of the newest file.
    #[error("only the newest file that was counted can be given up: take its name from the error")]
    NotNewest,
    /// The table of offsets failed, or has a row that cannot be read ([`Error::Corrupt`]).
    #[error("the table of offsets: {0}")]
    Store(#[from] Error),
}

impl From<io::Error> for LinesFault {
    fn from(error: io::Error) -> Self {
        if error.kind() == ErrorKind::NotFound { Self::Removed } else { Self::Io(error) }
    }
}
