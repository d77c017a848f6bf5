//! All files of a stream: which are there, which are new, and how many lines they have.

use super::error::{LinesError, LinesFault};
use super::known::{Known, START, beginning};
use super::place::{Found, Place};
use crate::base::{Error, Index, sync::Arc};
use crate::store::Table;
use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader};

/// How many lines lie between two offsets that are kept.
const MARK: u64 = 4096;

/// How many bytes are read at once.
pub(super) const BLOCK: usize = 64 << 10;

/// The first byte of a key: the row of a file, by the index of its first line, and the offset of a
/// line.
const FILE: u8 = b'f';
const LINE: u8 = b'l';

pub(super) struct Files {
    place: Arc<Place>,
    table: Table,
    /// In the order of their lines.
    pub(super) all: Vec<Arc<Known>>,
}

impl Files {
    /// Reads what an earlier process knew.
    pub(super) fn load(place: Arc<Place>, table: Table) -> Result<Self, Error> {
        let mut files = Self { place, table, all: Vec::new() };
        for row in files.table.prefix([FILE]) {
            let (at, row) = row?;
            let known =
                Known::from_row(&row).filter(|known| at == key(FILE, known.first) && files.next() == known.first);
            files.all.push(Arc::new(known.ok_or_else(|| corrupt(&files.table, &at))?));
        }
        Ok(files)
    }

    /// Returns one past the index of the last counted line.
    pub(super) fn next(&self) -> Index {
        self.all.last().map_or(0, |known| known.next)
    }

    /// Counts what is new, and returns why the newest bytes are no line yet.
    pub(super) fn look(&mut self) -> Result<Option<String>, LinesError> {
        let found = self.list()?;
        let mut new = self.survey(&found)?;
        // A list that is made during a rename may lack a file that is older than a new one.
        let place = |file: &Found| (file.name.clone(), file.id);
        if !new.is_empty() && !self.list()?.iter().map(place).eq(found.iter().map(place)) {
            new.clear();
        }
        // The old newest file is counted after the new one was seen: its writer has left it.
        let newest = self.all.last().filter(|known| !known.closed).map(|known| Known::clone(known));
        let (mut files, mut torn) = (newest.into_iter().chain(new).peekable(), 0);
        while let Some(mut known) = files.next() {
            let counted = self.count(&mut known, files.peek().is_some());
            torn = counted.map_err(|fault| self.fault(&known.name, fault))?;
            // Otherwise it was emptied since it was listed.
            if known.start.0 > 0 {
                self.keep(known)?;
            }
        }
        let path = self.place.path_of(self.all.last().map_or("", |known| &known.name));
        Ok(match torn {
            _ if self.all.is_empty() => Some(format!("{path:?} is not there yet, or has no line: see who writes it")),
            0 => None,
            torn => Some(format!("the last {torn} bytes of {path:?} have no line feed yet: see who writes them")),
        })
    }

    /// Finds the known files among those that are there, and returns the new ones.
    fn survey(&mut self, found: &[Found]) -> Result<Vec<Known>, LinesError> {
        let homes = self.homes(found);
        for (at, home) in homes.iter().enumerate() {
            let mut known = Known { is_there: home.is_some(), ..Known::clone(&self.all[at]) };
            // If the newest one is not there, the count fails.
            if let Some(file) = home.map(|nth| &found[nth]) {
                if known.closed && file.len > known.end {
                    return Err(self.fault(&file.name, LinesFault::Grown));
                }
                (known.name, known.id) = (file.name.clone(), file.id);
            }
            self.keep(known)?;
        }
        let taken: HashSet<usize> = homes.iter().copied().flatten().collect();
        let (newest, mut new) = (taken.iter().max(), Vec::new());
        for (nth, Found { name, id, len }) in found.iter().enumerate() {
            if *len == 0 || taken.contains(&nth) {
                continue;
            }
            if newest.is_some_and(|newest| nth < *newest) {
                return Err(self.fault(name, LinesFault::OutOfOrder));
            }
            new.push(Known { name: name.clone(), id: *id, is_there: true, ..Known::default() });
        }
        Ok(new)
    }

    /// Returns where each known file is among those found: by its inode, otherwise by its name.
    fn homes(&self, found: &[Found]) -> Vec<Option<usize>> {
        let by_id: HashMap<_, _> = (0..found.len()).filter_map(|nth| Some((found[nth].id?, nth))).collect();
        let by_name: HashMap<_, _> = (0..found.len()).map(|nth| (&found[nth].name[..], nth)).collect();
        let (mut homes, mut is_free) = (vec![None; self.all.len()], vec![true; found.len()]);
        for looks_for_id in [true, false] {
            for (at, known) in self.all.iter().enumerate().rev() {
                let place =
                    if looks_for_id { known.id.and_then(|id| by_id.get(&id)) } else { by_name.get(&known.name[..]) };
                let is_home = |nth: &usize| known.is(&found[*nth], &self.place.path_of(&found[*nth].name));
                let home = place.copied().filter(|nth| homes[at].is_none() && is_free[*nth]).filter(is_home);
                if let Some(nth) = home {
                    (homes[at], is_free[nth]) = (home, false);
                }
            }
        }
        homes
    }

    /// Counts the lines that a file has got, and returns how many bytes are no line yet. If it
    /// `closes`, these are its last line.
    fn count(&self, known: &mut Known, closes: bool) -> Result<u64, LinesFault> {
        if known.start.0 == 0 {
            (known.first, known.next) = (self.next(), self.next());
        }
        let file = known.open(&self.place.path_of(&known.name), known.end)?;
        let mut file = BufReader::with_capacity(BLOCK, file);
        let mut at = known.end;
        while let bytes = file.fill_buf()?
            && !bytes.is_empty()
        {
            let ends =
                || bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(nth, _)| at + nth as u64 + 1);
            let feeds = bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
            let before = MARK - 1 - known.next % MARK;
            let marks = (known.next + before + 1..=known.next + feeds).step_by(MARK as usize);
            for (line, end) in marks.zip(ends().skip(before as usize).step_by(MARK as usize)) {
                self.table.put(key(LINE, line), end.to_be_bytes())?;
            }
            (known.next, known.end) = (known.next + feeds, ends().next_back().unwrap_or(known.end));
            let read = bytes.len();
            at += read as u64;
            file.consume(read);
        }
        let mut torn = at - known.end;
        if closes {
            known.next += u64::from(torn > 0);
            known.end += std::mem::take(&mut torn);
            known.closed = true;
        }
        if known.start.0 < START {
            known.start = beginning(file.get_ref(), START)?;
        }
        Ok(torn)
    }

    /// Gives up the newest file: what is under its name now is new.
    pub(super) fn forget(&mut self, name: &str) -> Result<Index, LinesError> {
        let newest = self.all.last().filter(|newest| newest.name == name);
        let newest = newest.ok_or_else(|| self.fault(name, LinesFault::NotNewest))?;
        self.keep(Known { closed: true, start: (0, 0), is_there: false, ..Known::clone(newest) })?;
        Ok(self.next())
    }

    fn keep(&mut self, known: Known) -> Result<(), LinesError> {
        // A file that was given up before it had a line has the index of the next one.
        let at = self.all.binary_search_by_key(&known.first, |other| other.first);
        if at.is_ok_and(|at| *self.all[at] == known) {
            return Ok(());
        }
        let put = self.table.put(key(FILE, known.first), known.to_row());
        put.map_err(|error| self.fault(&known.name, error.into()))?;
        let at = at.unwrap_or_else(|at| at);
        self.all.splice(at..self.all.len().min(at + 1), [Arc::new(known)]);
        Ok(())
    }

    fn list(&self) -> Result<Vec<Found>, LinesError> {
        self.place.list().map_err(|error| self.fault("", LinesFault::Io(error)))
    }

    fn fault(&self, name: &str, fault: LinesFault) -> LinesError {
        LinesError { file: self.place.path_of(name), index: self.next(), fault }
    }
}

/// Returns the nearest line of a file at or below this one whose offset is kept, and the offset.
pub(super) fn nearest(table: &Table, known: &Known, index: Index) -> Result<(Index, u64), Error> {
    let line = index - index % MARK;
    // The line at which a file begins may have the offset at which the file before it ended.
    if line <= known.first {
        return Ok((known.first, 0));
    }
    let row = table.get(key(LINE, line))?;
    let offset = row.and_then(|row| Some(u64::from_be_bytes(row.try_into().ok()?)));
    Ok((line, offset.ok_or_else(|| corrupt(table, &key(LINE, line)))?))
}

fn key(kind: u8, number: u64) -> Vec<u8> {
    [&[kind][..], &number.to_be_bytes()].concat()
}

fn corrupt(table: &Table, key: &[u8]) -> Error {
    let reason = format!("the row {key:?} is missing, or has other contents: take a table for the source alone");
    Error::Corrupt { name: table.name().to_string(), reason }
}
