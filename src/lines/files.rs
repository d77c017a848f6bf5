//! All files of a stream: which are there, which are new, and how many lines they have.

use super::error::LinesError;
use super::known::Known;
use super::place::{Found, Place};
use crate::base::{Error, Index, sync::Arc};
use crate::store::Table;
use std::fs::File;
use std::io::Read;

/// How many lines lie between two offsets that are kept.
pub(super) const MARK: u64 = 4096;

/// The first byte of a key: the row of a file, and the offset of a line.
const FILE: u8 = b'f';
const LINE: u8 = b'l';

/// How much is read at once to count lines.
const BLOCK: usize = 64 << 10;

pub(super) struct Files {
    place: Arc<Place>,
    table: Table,
    /// In the order of their lines.
    pub(super) all: Vec<Arc<Known>>,
}

impl Files {
    /// Reads what an earlier process knew.
    pub(super) fn load(place: Arc<Place>, table: Table) -> Result<Self, Error> {
        let mut all = Vec::new();
        for row in table.prefix([FILE]) {
            let (key, row) = row?;
            let number = key[1..].try_into().ok().map(u64::from_be_bytes);
            let known = number.and_then(|number| Known::from_row(number, &row));
            all.push(Arc::new(known.ok_or_else(|| corrupt(&table, &format!("the row {key:?} is none of a file")))?));
        }
        if all.windows(2).any(|two| two[0].next != two[1].first) {
            return Err(corrupt(&table, "the lines of two files do not follow each other"));
        }
        Ok(Self { place, table, all })
    }

    /// Returns one past the index of the last counted line.
    pub(super) fn next(&self) -> Index {
        self.all.last().map_or(0, |known| known.next)
    }

    /// Counts what is new, and returns why the newest bytes are no line yet.
    pub(super) fn look(&mut self) -> Result<Option<String>, LinesError> {
        match self.look_once() {
            Err(error) if error.may_be_a_rename() => self.look_once(),
            answer => answer,
        }
    }

    fn look_once(&mut self) -> Result<Option<String>, LinesError> {
        let found = self.place.list()?;
        let new = self.survey(&found)?;
        // The old newest file is counted after the new one was seen: its writer has left it.
        let mut torn = self.count_newest(!new.is_empty())?;
        for (nth, file) in new.iter().enumerate() {
            let number = self.all.last().map_or(0, |known| known.number + 1);
            self.all.push(Arc::new(Known::begin(file, number, self.next())));
            let counted = self.count_newest(nth + 1 < new.len());
            if self.all.last().is_some_and(|known| known.is_uncounted()) {
                // It was renamed since it was listed, or cannot be read: the next look tries again.
                self.all.pop();
            }
            torn = counted?;
        }
        let path = self.all.last().map_or(self.place.path.clone(), |known| self.place.path_of(&known.name));
        Ok(match torn {
            _ if self.all.is_empty() => Some(format!("{path:?} is not there yet, or has no line: see who writes it")),
            0 => None,
            torn => Some(format!("the last {torn} bytes of {path:?} have no line feed yet: see who writes them")),
        })
    }

    /// Finds the known files among those that are there, and returns the new ones.
    fn survey(&mut self, found: &[Found]) -> Result<Vec<Found>, LinesError> {
        let homes = self.homes(found);
        let path = |name: &str| self.place.path_of(name);
        let mut known: Vec<_> = self.all.iter().map(|known| Known::clone(known)).collect();
        for (known, home) in known.iter_mut().zip(&homes) {
            known.is_there = home.is_some();
            match home.map(|nth| &found[nth]) {
                Some(file) if known.closed && file.len > known.end => {
                    return Err(LinesError::Grown { file: path(&file.name), index: known.next });
                }
                Some(file) => (known.name, known.id) = (file.name.clone(), file.id),
                // If it is the newest one, the count fails.
                None => {}
            }
        }
        let newest = homes.iter().flatten().max();
        let is_new = |(nth, file): &(usize, &Found)| file.len > 0 && !homes.contains(&Some(*nth));
        let new: Vec<_> = found.iter().enumerate().filter(is_new).collect();
        if let Some((_, file)) = new.iter().find(|(nth, _)| newest.is_some_and(|newest| nth < newest)) {
            let of_its_name = known.iter().rev().find(|known| known.name == file.name && !known.forgotten);
            let too_old = || LinesError::OutOfOrder { file: path(&file.name), index: self.next().saturating_sub(1) };
            return Err(of_its_name.map_or_else(too_old, |known| known.replaced(&self.place)));
        }
        // A list that is made during a rename may lack a file that is older than a new one.
        let names = |found: &[Found]| found.iter().map(|file| (file.name.clone(), file.id)).collect::<Vec<_>>();
        let is_whole = new.is_empty() || names(&self.place.list()?) == names(found);
        let new = new.into_iter().filter(|_| is_whole).map(|(_, file)| file.clone()).collect();
        known.into_iter().enumerate().try_for_each(|(at, known)| self.replace(at, known))?;
        Ok(new)
    }

    /// Returns where each known file is among those found: by its inode, otherwise by its name.
    fn homes(&self, found: &[Found]) -> Vec<Option<usize>> {
        let mut homes = vec![None; self.all.len()];
        for by_id in [true, false] {
            for (at, known) in self.all.iter().enumerate().rev().filter(|(_, known)| !known.forgotten) {
                let is_it = |file: &Found| {
                    if by_id { known.id.is_some() && file.id == known.id } else { file.name == known.name }
                };
                let Some(nth) = found.iter().position(is_it) else { continue };
                let (file, is_free) = (&found[nth], homes[at].is_none() && !homes.contains(&Some(nth)));
                let is_unchanged = known.is_there && known.name == file.name && known.id == file.id;
                if is_free && (is_unchanged || known.is(&self.place, file)) {
                    homes[at] = Some(nth);
                }
            }
        }
        homes
    }

    /// Counts the lines that the newest file has got, and returns how many bytes are no line yet.
    /// If it `closes`, these are its last line.
    fn count_newest(&mut self, closes: bool) -> Result<u64, LinesError> {
        let Some(at) = self.all.len().checked_sub(1) else { return Ok(0) };
        let mut known = Known::clone(&self.all[at]);
        if known.closed {
            return Ok(0);
        }
        let mut file = known.open(&self.place)?;
        known.seek(&self.place, &file, known.end)?;
        let mut torn = self.count(&mut known, &mut file)?;
        if closes {
            known.next += u64::from(torn > 0);
            known.end += std::mem::take(&mut torn);
            known.closed = true;
        }
        known.extend_start(&file).map_err(|source| known.io(&self.place, source))?;
        self.replace(at, known)?;
        Ok(torn)
    }

    /// Counts from here to the end, and returns how many bytes follow the last line feed.
    fn count(&self, known: &mut Known, file: &mut File) -> Result<u64, LinesError> {
        let (mut block, mut at) = (vec![0; BLOCK], known.end);
        loop {
            let read = file.read(&mut block).map_err(|source| known.io(&self.place, source))?;
            let bytes = &block[..read];
            if read == 0 {
                return Ok(at - known.end);
            }
            let lines = bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
            if known.next % MARK + lines < MARK {
                let last = bytes.iter().rposition(|byte| *byte == b'\n');
                (known.next, known.end) = (known.next + lines, last.map_or(known.end, |last| at + last as u64 + 1));
            } else {
                for (nth, _) in bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
                    (known.next, known.end) = (known.next + 1, at + nth as u64 + 1);
                    if known.next.is_multiple_of(MARK) {
                        self.table
                            .put(key(LINE, known.next), [known.number, known.end].map(u64::to_be_bytes).concat())?;
                    }
                }
            }
            at += read as u64;
        }
    }

    /// Gives up the newest file: what is under its name now is new.
    pub(super) fn forget(&mut self, name: &str) -> Result<Index, LinesError> {
        match self.all.last() {
            Some(newest) if newest.name == name => {
                let mut known = Known::clone(newest);
                (known.closed, known.forgotten, known.is_there) = (true, true, false);
                self.replace(self.all.len() - 1, known)?;
                Ok(self.next())
            }
            _ => Err(LinesError::NotNewest { file: self.place.path_of(name) }),
        }
    }

    fn replace(&mut self, at: usize, known: Known) -> Result<(), Error> {
        if *self.all[at] != known {
            self.table.put(key(FILE, known.number), known.to_row())?;
            self.all[at] = Arc::new(known);
        }
        Ok(())
    }
}

/// Returns the nearest line of a file at or below this one whose offset is kept, and the offset.
pub(super) fn nearest(table: &Table, known: &Known, index: Index) -> Result<(Index, u64), Error> {
    let Some(row) = table.range_rev(key(LINE, known.first)..=key(LINE, index)).next() else {
        return Ok((known.first, 0));
    };
    let (key, row) = row?;
    let number = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_be_bytes);
    let mark = || Some((number(&key[1..])?, number(row.get(..8)?)?, number(row.get(8..)?)?));
    let (line, file, offset) = mark().ok_or_else(|| corrupt(table, &format!("the row {key:?} is no offset")))?;
    // The line at which a file begins may have the offset at which the file before it ended.
    Ok(if file == known.number { (line, offset) } else { (known.first, 0) })
}

fn key(kind: u8, number: u64) -> Vec<u8> {
    [&[kind][..], &number.to_be_bytes()].concat()
}

fn corrupt(table: &Table, reason: &str) -> Error {
    Error::Corrupt { name: table.name().to_string(), reason: reason.to_owned() }
}
