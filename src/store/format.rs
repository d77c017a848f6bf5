//! The format of a store: a sealed record under the key `format`, which says which programs can
//! read it, with the store's version, and the names in use, ascending, each after its length in one
//! byte.
//!
//! A version says how everything in the store is laid out. A name in use says that one part of the
//! store has records that a program without the name would damage: for example, it would trim the
//! items of parked jobs. So a program refuses unknown versions and names, and writes nothing.

use super::keys;
use crate::base::{Error, sync::Mutex};
use crate::commit::sealed::Kind;
use crate::kv::{Family, Kv, batch::Batch};
use std::collections::BTreeSet;

pub(super) mod reading;

#[cfg(any(feature = "rocksdb", feature = "sqlite-system"))]
pub(super) use reading::check;
pub(super) use reading::{read, take_up};

/// The record, and the version of stores that this program creates. Later versions keep the seal.
pub(crate) const SEAL: Kind = Kind { label: "format", versions: &[1] };

/// The names in use that this program knows. A part of the crate whose records an older program
/// would damage has its name here. Tests have one of their own.
///
/// | name | part |
/// |---|---|
/// | `codec` | logs whose items are not JSON: their bounds have the name of the codec |
/// | `parked` | consumers that may park jobs: their logs keep the items of parked jobs |
/// | `queue` | queues: their rows, payloads and entries |
/// | `replaced` | tables that took the place of others, and rows that are deleted behind that |
const KNOWN: &[&str] = if cfg!(test) {
    &["codec", "known to tests", "parked", "queue", "replaced"]
} else {
    &["codec", "parked", "queue", "replaced"]
};

#[derive(Debug, Default)]
pub(crate) struct Format {
    /// The names in use, as stored.
    in_use: Mutex<BTreeSet<String>>,
}

impl Format {
    /// Stores that this name is in use from now on, in one write. Repeated calls do nothing.
    pub(crate) fn note_in_use(&self, kv: &dyn Kv, system: &Family, name: &'static str) -> Result<(), Error> {
        self.noting(name, |note| note.map_or(Ok(()), |note| put(kv, system, &note)))
    }

    /// Does the same with the write that this makes: it gets the record, unless the name is stored.
    pub(super) fn noting<R>(
        &self,
        name: &'static str,
        write: impl FnOnce(Option<Vec<u8>>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        debug_assert!(
            KNOWN.contains(&name),
            "{name:?} is not in the list, so this very program would refuse the store"
        );
        // The lock is held during the write, so the name is stored when any caller returns.
        let mut in_use = self.in_use.lock();
        if in_use.contains(name) {
            return write(None);
        }
        let mut more = in_use.clone();
        more.insert(name.to_owned());
        let written = write(Some(encode(&more)))?;
        *in_use = more;
        Ok(written)
    }
}

/// Encodes the record with these names, each of 1 to 255 bytes.
pub(crate) fn encode(in_use: &BTreeSet<String>) -> Vec<u8> {
    in_use.iter().fold(SEAL.begin(64), |record, name| record.short_text(name)).seal("", "")
}

/// Writes the record with a flush, so that it survives a loss of power.
fn put(kv: &dyn Kv, system: &Family, record: &[u8]) -> Result<(), Error> {
    let mut batch = Batch::default();
    batch.put(system.id, &[keys::FORMAT], &[record])?;
    Ok(kv.write(&batch, true)?)
}

#[cfg(test)]
mod tests;
