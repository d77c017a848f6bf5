//! A file whose lines are counted, and the row that keeps what is known of it.

use super::error::LinesError;
use super::place::{Found, Id, Place, id};
use crate::base::Index;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};

/// How many of its first bytes tell a file from another one. Two files of a directory may share a
/// heading, so it is longer than most.
const START: u64 = 1024;

/// The version of the rows.
const VERSION: u8 = 1;

/// A row: the version, the name and the inode, the indices and the end, closed and forgotten, and
/// the start.
type Row<S> = (u8, S, Option<Id>, (Index, Index, u64), (bool, bool), (u64, u32));

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) number: u64,
    pub(super) name: String,
    pub(super) id: Option<Id>,
    /// The index of its first line, and one past that of its last counted one, which ends at `end`.
    pub(super) first: Index,
    pub(super) next: Index,
    pub(super) end: u64,
    /// True if it is final: a newer one has begun, or the user has given it up.
    pub(super) closed: bool,
    pub(super) forgotten: bool,
    /// How many of its first bytes are known, at most `START`, and their checksum.
    start: (u64, u32),
    /// True if this process has found it at its last look.
    pub(super) is_there: bool,
}

impl Known {
    /// Begins with a file of which no line was counted.
    pub(super) fn begin(found: &Found, number: u64, first: Index) -> Self {
        let (name, id) = (found.name.clone(), found.id);
        Self { number, name, id, first, next: first, is_there: true, ..Self::default() }
    }

    /// True if nothing is known of what it has.
    pub(super) fn is_uncounted(&self) -> bool {
        self.start.0 == 0
    }

    /// Opens the file, and checks that it is the one that was counted.
    pub(super) fn open(&self, place: &Place) -> Result<File, LinesError> {
        let (file, index) = (place.path_of(&self.name), self.next.saturating_sub(1));
        let failed = |source: io::Error| match source.kind() {
            ErrorKind::NotFound => self.removed(place, self.next),
            _ => self.io(place, source),
        };
        let opened = File::open(&file).map_err(failed)?;
        let meta = opened.metadata().map_err(failed)?;
        if id(&meta) == self.id && meta.len() < self.end {
            return Err(LinesError::Cut { file, index });
        }
        let is_same = id(&meta) == self.id && self.begins(&opened).map_err(failed)?;
        if is_same { Ok(opened) } else { Err(self.replaced(place)) }
    }

    /// Returns whether the file that was found begins as this one did.
    pub(super) fn is(&self, place: &Place, found: &Found) -> bool {
        File::open(place.path_of(&found.name)).and_then(|file| self.begins(&file)).unwrap_or(false)
    }

    fn begins(&self, file: &File) -> io::Result<bool> {
        Ok(beginning(file, self.start.0)? == self.start)
    }

    /// Keeps more of its first bytes, once it has more.
    pub(super) fn extend_start(&mut self, file: &File) -> io::Result<()> {
        if self.start.0 < START {
            self.start = beginning(file, START)?;
        }
        Ok(())
    }

    /// Goes to where a line begins.
    pub(super) fn seek(&self, place: &Place, mut file: &File, offset: u64) -> Result<(), LinesError> {
        let mut before = [b'\n'];
        let sought = file.seek(SeekFrom::Start(offset.saturating_sub(1)));
        let read = sought.and_then(|_| if offset > 0 { file.read_exact(&mut before) } else { Ok(()) });
        read.map_err(|source| self.io(place, source))?;
        if before == [b'\n'] { Ok(()) } else { Err(self.replaced(place)) }
    }

    pub(super) fn io(&self, place: &Place, source: io::Error) -> LinesError {
        LinesError::Io { file: place.path_of(&self.name), source }
    }

    pub(super) fn removed(&self, place: &Place, index: Index) -> LinesError {
        LinesError::Removed { file: place.path_of(&self.name), index }
    }

    pub(super) fn replaced(&self, place: &Place) -> LinesError {
        LinesError::Replaced { file: place.path_of(&self.name), index: self.next.saturating_sub(1) }
    }

    pub(super) fn to_row(&self) -> Vec<u8> {
        let flags = (self.closed, self.forgotten);
        let row: Row<&str> = (VERSION, &self.name, self.id, (self.first, self.next, self.end), flags, self.start);
        serde_json::to_vec(&row).unwrap_or_default()
    }

    pub(super) fn from_row(number: u64, row: &[u8]) -> Option<Self> {
        let (version, name, id, (first, next, end), (closed, forgotten), start): Row<String> =
            serde_json::from_slice(row).ok()?;
        let known = Self { number, name, id, first, next, end, closed, forgotten, start, is_there: false };
        (version == VERSION && first <= next).then_some(known)
    }
}

/// Returns how many bytes a file begins with, at most this many, and their checksum.
fn beginning(mut file: impl Read + Seek, most: u64) -> io::Result<(u64, u32)> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(most).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64, crc32fast::hash(&bytes)))
}
