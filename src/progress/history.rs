//! The history of a progress: a record of each move by an operator.

use super::life::{stored_time, wall_time};
use crate::base::{Error, Index, error::StoreError};
use crate::commit::{changes::Changes, sealed::Kind};
use crate::kv::{Family, Pair};
use crate::store::{Store, keys};
use std::time::SystemTime;

/// The number of moves that are kept per name, the newest ones.
const KEPT: u64 = 1_000;

/// The stored record: the version, the kind, the time in milliseconds since 1970, 1 or 0 for
/// whether anything was saved, the lowest undone index before the move or 0, the index of the move,
/// and the text of the reason. Its key has the name of the progress and the number of the move.
pub(super) const SEAL: Kind = Kind { label: "move", versions: &[1] };
const FIXED: usize = 1 + 8 + 1 + 8 + 8;

const SEEK: u8 = 0;
const SKIP: u8 = 1;

/// A move of a progress by an operator, as listed by [`StoreProgress::history`].
///
/// With `serde`, its times are in milliseconds since 1970.
///
/// [`StoreProgress::history`]: crate::StoreProgress::history
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Move {
    /// The time of the move, by the wall clock, in whole milliseconds.
    pub at: SystemTime,
    /// The kind of the move.
    pub kind: MoveKind,
    /// The lowest undone index before the move; `None` if nothing was saved.
    pub from: Option<Index>,
    /// The next job to run after a seek, or the job that was skipped.
    pub to: Index,
    /// The reason that was given.
    pub reason: String,
}

/// The kind of a [`Move`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MoveKind {
    /// A [`StoreProgress::seek`](crate::StoreProgress::seek).
    Seek,
    /// A [`StoreProgress::skip`](crate::StoreProgress::skip).
    Skip,
}

impl Move {
    /// Creates the record of a move that an engine has stored.
    #[must_use]
    pub fn new(at: SystemTime, kind: MoveKind, from: Option<Index>, to: Index, reason: &str) -> Self {
        Self { at, kind, from, to, reason: reason.to_owned() }
    }

    pub(super) fn encode(&self, name: &str, number: u64) -> Vec<u8> {
        let kind = match self.kind {
            MoveKind::Seek => SEEK,
            MoveKind::Skip => SKIP,
        };
        let record = SEAL.begin(FIXED + self.reason.len()).byte(kind).number(stored_time(self.at));
        let record = record.byte(u8::from(self.from.is_some())).numbers([self.from.unwrap_or(0), self.to]);
        record.bytes(self.reason.as_bytes()).seal(name, number.to_be_bytes())
    }

    pub(super) fn decode(name: &str, number: u64, bytes: &[u8]) -> Result<Self, String> {
        let mut rest = SEAL.open(name, number.to_be_bytes(), bytes)?;
        let mut fixed = || Some((rest.byte()?, rest.number()?, rest.byte()?, rest.number()?, rest.number()?));
        let (kind, at, has_from, from, to) = fixed().ok_or("it is too short")?;
        Ok(Self {
            at: wall_time(at),
            kind: match kind {
                SEEK => MoveKind::Seek,
                SKIP => MoveKind::Skip,
                _ => return Err(format!("its kind is {kind}, and this program knows {SEEK} and {SKIP}")),
            },
            from: match has_from {
                0 => None,
                1 => Some(from),
                _ => return Err(format!("its mark for what was saved before is {has_from}, and not 0 or 1")),
            },
            to,
            reason: rest.last_text().ok_or("the text of its reason is no text")?,
        })
    }
}

/// Where the history of one progress is stored.
pub(super) struct History {
    family: Family,
    name: String,
    prefix: Vec<u8>,
}

impl History {
    /// Returns the place for a valid name.
    pub(super) fn of(store: &Store, name: &str) -> Self {
        let prefix = keys::key(keys::HISTORY, &keys::table_prefix(name).unwrap_or_default());
        Self { family: store.system().clone(), name: name.to_owned(), prefix }
    }

    fn key(&self, number: u64) -> Vec<u8> {
        [&self.prefix[..], &number.to_be_bytes()].concat()
    }

    fn corrupt(&self, reason: String) -> Error {
        Error::Corrupt { name: self.name.clone(), reason }
    }

    fn number(&self, key: &[u8]) -> Result<u64, Error> {
        let number = <[u8; 8]>::try_from(&key[self.prefix.len()..]);
        number.map(u64::from_be_bytes).map_err(|_| self.corrupt(format!("a move has the key {key:?}")))
    }

    /// Reads all moves, the oldest first.
    pub(super) fn load(&self, store: &Store) -> Result<Vec<Move>, Error> {
        let read = |pair: Result<Pair, StoreError>| {
            let (key, value) = pair?;
            let number = self.number(&key)?;
            let damaged = |reason| self.corrupt(format!("the record of move {number}: {reason}"));
            Move::decode(&self.name, number, &value).map_err(damaged)
        };
        store.kv().scan(&self.family, &self.prefix).map(read).collect()
    }

    /// Adds the record of a move to the changes, and removes the oldest ones if there are too many.
    pub(super) fn add(&self, store: &Store, made: &Move, changes: &mut Changes) -> Result<(), Error> {
        let last = store.kv().last(&self.family, &self.prefix)?;
        let last = last.map(|key| self.number(&key)).transpose()?;
        let next = last.map_or(Some(0), |last| last.checked_add(1));
        let number = next.ok_or_else(|| self.corrupt("its last move has the highest number".to_owned()))?;
        for pair in store.kv().scan(&self.family, &self.prefix) {
            let key = pair?.0;
            if number - self.number(&key)? < KEPT {
                break;
            }
            changes.delete(self.family.id, &[&key])?;
        }
        Ok(changes.put(self.family.id, &[&self.key(number)], &made.encode(&self.name, number))?)
    }

    /// Adds the records of these moves, the oldest first, to the changes.
    pub(super) fn put_all(&self, moves: &[Move], changes: &mut Changes) -> Result<(), Error> {
        let mut each = (0..).zip(moves);
        each.try_for_each(|(number, made)| {
            Ok(changes.put(self.family.id, &[&self.key(number)], &made.encode(&self.name, number))?)
        })
    }

    /// Adds the removal of all records to the changes, readable or not.
    pub(super) fn remove_all(&self, store: &Store, changes: &mut Changes) -> Result<(), StoreError> {
        for pair in store.kv().scan(&self.family, &self.prefix) {
            changes.delete(self.family.id, &[&pair?.0])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_intact_move_of_no_version_is_refused() {
        let mut has_from = [0; FIXED];
        has_from[9] = 2;
        let mut kind = [0; FIXED];
        kind[0] = 2;
        for body in [&[0; FIXED - 1][..], &has_from, &kind, &[&[0; FIXED][..], &[0xff]].concat()] {
            let bytes = SEAL.begin(64).bytes(body).seal("p", 3u64.to_be_bytes());
            assert!(Move::decode("p", 3, &bytes).is_err(), "{body:?}");
        }
        assert!(wall_time(u64::MAX) >= SystemTime::UNIX_EPOCH, "no clock has this time");
    }
}
