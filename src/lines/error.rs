//! What is wrong with a file of lines.

use crate::base::{Error, Index};
use std::io;
use std::path::PathBuf;

/// An error of [`Lines`](crate::Lines): what happened, in which file, at which index, and what to
/// do. No line was skipped and none has got another index.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinesError {
    /// A file or a directory that the system does not list, open or read.
    #[error("{file:?} cannot be read: see that it is there, and that this program may read it")]
    Io {
        /// The file or the directory.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file that is shorter than what was counted of it.
    #[error(
        "{file:?} was cut below the end of line {index}: restore it, or take it away and give it up with `Lines::forget`; rotate \
         by a new file, and never cut one in place (as `copytruncate` does)"
    )]
    Cut {
        /// The file.
        file: PathBuf,
        /// The index of its last counted line.
        index: Index,
    },
    /// A file that is no longer there. It has this line, or it was the newest file, so that lines
    /// from this one on may be lost.
    #[error(
        "{file:?} was removed, and may have had line {index}: restore it, or, if it was the newest file, give it up with \
         `Lines::forget`; move the progress past what is lost with `StoreProgress::seek`"
    )]
    Removed {
        /// The file, by the name that it had last.
        file: PathBuf,
        /// The index of the line.
        index: Index,
    },
    /// A file that is not the one which was counted under this name.
    #[error(
        "{file:?} is not the file that was there when line {index} was counted: restore that one, or, if it was the newest file, \
         give it up with `Lines::forget`; files that are renamed when they rotate need `Lines::directory_by`"
    )]
    Replaced {
        /// The file.
        file: PathBuf,
        /// The index of the last line that was counted in it.
        index: Index,
    },
    /// A file that has grown after a newer one had begun. What was added would need numbers that
    /// the lines of the newer one have.
    #[error(
        "{file:?} has grown after a newer file had begun with line {index}: append what was added to the newest file, and take \
         this one away; let its writer end before another one begins a file"
    )]
    Grown {
        /// The older file.
        file: PathBuf,
        /// The index of the first line of the next file.
        index: Index,
    },
    /// A new file whose name says that it is older than one that was counted.
    #[error(
        "{file:?} is new, but by its name it is older than the file that ends with line {index}: take it away, or give it a name \
         that comes last; `Lines::directory_by` says which names are older"
    )]
    OutOfOrder {
        /// The new file.
        file: PathBuf,
        /// The index of the last line that was counted.
        index: Index,
    },
    /// A line that is longer than the limit.
    #[error("line {index}, in {file:?}, has more than {limit} bytes: raise `Lines::max_line`, or see who wrote it")]
    TooLong {
        /// The file.
        file: PathBuf,
        /// The index of the line.
        index: Index,
        /// The limit in bytes.
        limit: usize,
    },
    /// A name for [`Lines::forget`](crate::Lines::forget) that is not that of the newest file.
    #[error("{file:?} is not the newest file that was counted, so it cannot be given up: take its name from the error")]
    NotNewest {
        /// The file.
        file: PathBuf,
    },
    /// The table of offsets failed, or has a row that cannot be read ([`Error::Corrupt`]).
    #[error(transparent)]
    Store(#[from] Error),
}

impl LinesError {
    /// True if a file that is being renamed at this moment looks the same.
    pub(super) fn may_be_a_rename(&self) -> bool {
        matches!(self, Self::Cut { .. } | Self::Removed { .. } | Self::Replaced { .. } | Self::OutOfOrder { .. })
    }
}
