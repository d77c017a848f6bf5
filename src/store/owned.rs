//! The tables and logs that belong to a progress, stored with it.

use super::{Store, Table, keys};
use crate::base::config::ConfigError;
use crate::base::{Error, serialized::fields};
use crate::commit::sealed::Kind;
use crate::kv::Pair;

/// The record of a progress: each part with its kind (one byte) and its name behind its length.
pub(super) const SEAL: Kind = Kind { label: "owns", versions: &[1] };

const TABLE: &str = "table";
const LOG: &str = "log";
const FAMILY: &str = "column family";

/// The kinds as stored.
const KINDS: [&str; 2] = [TABLE, LOG];

/// A table or a log that belongs to a progress: see [`Builder::owns`](crate::Builder::owns).
///
/// `serde` can write its fields, for example for HTTP.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Owned {
    /// `"table"` or `"log"`.
    pub what: &'static str,
    /// Its name.
    pub name: String,
    /// The store that it was taken from; 0 if it was read from a record.
    home: usize,
}

fields!(Owned, of: what, name);

impl PartialEq for Owned {
    fn eq(&self, other: &Self) -> bool {
        (self.what, &self.name) == (other.what, &other.name)
    }
}

impl Eq for Owned {}

impl From<&Table> for Owned {
    fn from(table: &Table) -> Self {
        let what = if table.is_family() { FAMILY } else { TABLE };
        Self { what, name: table.name().to_string(), home: table.store().home().address }
    }
}

impl Owned {
    /// Returns a part as it was read from a record.
    pub(super) fn stored(what: &'static str, name: &str) -> Self {
        Self { what, name: name.to_owned(), home: 0 }
    }

    pub(crate) fn log(name: &str, store: &Store) -> Self {
        Self { what: LOG, name: name.to_owned(), home: store.home().address }
    }

    pub(crate) fn is_log(&self) -> bool {
        self.what == LOG
    }

    /// Returns an error unless this store can keep these parts with a progress.
    pub(crate) fn check(all: &[Self], store: &Store) -> Result<(), ConfigError> {
        for (place, one) in all.iter().enumerate() {
            let Self { what, name, home } = one;
            if *what == FAMILY {
                let why =
                    format!("the column family {name:?} keeps its name, so it belongs to no progress: own a table");
                return Err(ConfigError::Unsupported { setting: "owns", why });
            }
            if *home != store.home().address {
                return Err(ConfigError::Foreign { what, name: name.clone() });
            }
            if all[..place].contains(one) {
                let why = format!("the {what} {name:?} is named twice: name each part once");
                return Err(ConfigError::Unsupported { setting: "owns", why });
            }
        }
        Ok(())
    }
}

pub(crate) fn key(progress: &str) -> Vec<u8> {
    keys::key(keys::OWNS, progress.as_bytes())
}

pub(crate) fn entry(progress: &str, owned: &[Owned]) -> Pair {
    let kind = |what| KINDS.iter().position(|kind| *kind == what).unwrap_or_default() as u8;
    let record = owned.iter().fold(SEAL.begin(64), |record, one| record.byte(kind(one.what)).short_text(&one.name));
    (key(progress), record.seal(progress, ""))
}

pub(crate) fn decode(progress: &str, bytes: &[u8]) -> Result<Vec<Owned>, String> {
    let mut fields = SEAL.open(progress, "", bytes).map_err(|why| format!("the list of what it owns: {why}"))?;
    let mut owned = Vec::new();
    while !fields.rest.is_empty() {
        let mut one = || {
            let what = KINDS.get(usize::from(fields.byte()?))?;
            Some(Owned::stored(what, &fields.short_text().filter(|name| !name.is_empty())?))
        };
        owned.push(one().ok_or("the list of what it owns cannot be read")?);
    }
    Ok(owned)
}

impl Store {
    /// Returns what belongs to this progress.
    pub(crate) fn owned_by(&self, progress: &str) -> Result<Vec<Owned>, Error> {
        let stored = self.kv().get(self.system(), &key(progress))?;
        let owned = stored.map_or_else(|| Ok(Vec::new()), |bytes| decode(progress, &bytes));
        owned.map_err(|reason| Error::Corrupt { name: progress.to_owned(), reason })
    }

    /// Returns what belongs to each progress. An unreadable list belongs to none.
    pub(crate) fn owners(&self) -> Result<Vec<(String, Vec<Owned>)>, Error> {
        let mut owners = Vec::new();
        for pair in self.kv().scan(self.system(), keys::OWNS) {
            let (key, value) = pair?;
            let name = String::from_utf8_lossy(&key[keys::OWNS.len()..]).into_owned();
            let owned = decode(&name, &value).unwrap_or_default();
            owners.push((name, owned));
        }
        Ok(owners)
    }
}
