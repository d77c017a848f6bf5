//! A file whose lines are counted: the row that keeps it, and how it is recognised.

use super::error::LinesFault;
use super::place::{Found, Id, id};
use crate::base::Index;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// How many of its first bytes tell a file from another one. Two files of a directory may share a
/// heading, so it is longer than most.
pub(super) const START: u64 = 1024;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) name: String,
    pub(super) id: Option<Id>,
    /// The index of its first line, and one past that of its last counted one, which ends at `end`.
    pub(super) first: Index,
    pub(super) next: Index,
    pub(super) end: u64,
    /// True if it is final: a newer one has begun, or the user has given it up.
    pub(super) closed: bool,
    /// How many of its first bytes are known, at most `START`, and their checksum. A file that is
    /// new, or given up, has none by which it is recognised.
    pub(super) start: (u64, u32),
    /// True if this process has found it at its last look.
    pub(super) is_there: bool,
}

impl Known {
    /// Opens the file where a line begins, and checks that it is the one that was counted.
    pub(super) fn open(&self, path: &Path, offset: u64) -> Result<File, LinesFault> {
        let file = File::open(path)?;
        let meta = file.metadata()?;
        if id(&meta) == self.id && meta.len() < self.end {
            return Err(LinesFault::Cut);
        }
        let feed = offset.min(1);
        let is_it = id(&meta) == self.id
            && beginning(&file, self.start.0)? == self.start
            && read_at(&file, offset - feed, feed)? == b"\n"[..feed as usize];
        if is_it { Ok(file) } else { Err(LinesFault::Replaced) }
    }

    /// Returns whether a file that was found at this path begins as this one did.
    pub(super) fn is(&self, found: &Found, path: &Path) -> bool {
        let is_unchanged = self.is_there && self.name == found.name && self.id == found.id;
        let begins = || beginning(&File::open(path)?, self.start.0);
        self.start.0 > 0 && (is_unchanged || begins().is_ok_and(|start| start == self.start))
    }

    pub(super) fn to_row(&self) -> Vec<u8> {
        let lines = [self.first, self.next, self.end];
        serde_json::to_vec(&(&self.name, self.id, lines, self.closed, self.start)).unwrap_or_default()
    }

    pub(super) fn from_row(row: &[u8]) -> Option<Self> {
        let (name, id, [first, next, end], closed, start) = serde_json::from_slice(row).ok()?;
        Some(Self { name, id, first, next, end, closed, start, is_there: false })
    }
}

/// Returns how many bytes a file begins with, at most this many, and their checksum.
pub(super) fn beginning(file: &File, most: u64) -> io::Result<(u64, u32)> {
    let bytes = read_at(file, 0, most)?;
    Ok((bytes.len() as u64, crc32fast::hash(&bytes)))
}

fn read_at(mut file: &File, offset: u64, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(offset))?;
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}
