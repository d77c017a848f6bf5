//! Reading the format of a store that is opened, and raising it.

use super::{Format, KNOWN, SEAL, put};
use crate::base::error::Error;
use crate::base::sync::Mutex;
use crate::commit::sealed::{Fields, Unreadable, listed};
#[cfg(any(feature = "rocksdb", feature = "sqlite-system"))]
use crate::kv::SYSTEM;
use crate::kv::{Family, Kv};
use crate::store::keys;
use std::collections::BTreeSet;
use std::fmt;

/// The value of version 1.
const FIRST: &[u8] = &[1];

/// The format of a store that this program can read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// Version 1, which has no list of names.
    First,
    /// The present version, with the names in use.
    Present(BTreeSet<String>),
}

/// Returns the format of the store in this family; `None` if no store has lived there. Writes
/// nothing.
///
/// # Errors
/// [`Error::Format`] if a newer version of the library has made the store, [`Error::Corrupt`] if
/// the record is damaged, [`Error::NotFound`] if there is no store and `create` is false.
pub(crate) fn read(
    kv: &dyn Kv,
    system: &Family,
    create: bool,
    place: &dyn fmt::Display,
) -> Result<Option<Stored>, Error> {
    match kv.get(system, keys::FORMAT)? {
        Some(record) => decode(&record, place).map(Some),
        None if create => Ok(None),
        None => Err(Error::NotFound { what: "store", name: place.to_string() }),
    }
}

/// Returns an error if [`read`](read()) would. Nothing is wrong with a database that has no
/// families of ours yet.
#[cfg(any(feature = "rocksdb", feature = "sqlite-system"))]
pub(crate) fn check(kv: &dyn Kv, create: bool, place: &dyn fmt::Display) -> Result<(), Error> {
    match kv.family(SYSTEM)? {
        Some(id) => read(kv, &Family::new(SYSTEM, id), create, place).map(drop),
        None => Ok(()),
    }
}

/// Takes a store into use whose format was [read](read()). One write makes the record of a new
/// store, or raises that of version 1.
pub(crate) fn take_up(kv: &dyn Kv, system: &Family, stored: Option<Stored>) -> Result<Format, Error> {
    if let Some(Stored::Present(in_use)) = stored {
        return Ok(Format { in_use: Mutex::new(in_use) });
    }
    put(kv, system, &BTreeSet::new())?;
    Ok(Format::default())
}

pub(crate) fn decode(record: &[u8], place: &dyn fmt::Display) -> Result<Stored, Error> {
    if record == FIRST {
        return Ok(Stored::First);
    }
    let corrupt = |reason| Error::Corrupt { name: "format".to_owned(), reason };
    let body = match SEAL.open("", "", record) {
        Ok(fields) => fields,
        Err(Unreadable::Version { found: found @ 3.., .. }) => {
            let found = format!("version {found} of a store at {place}");
            return Err(Error::Format { found, known: "versions 1 and 2".to_owned() });
        }
        Err(unreadable) => return Err(corrupt(unreadable.into())),
    };
    let in_use = names(body).ok_or_else(|| corrupt("its list of names cannot be read".to_owned()))?;
    let quoted =
        |names: &mut dyn Iterator<Item = &str>| listed(&names.map(|name| format!("{name:?}")).collect::<Vec<_>>());
    let unknown = quoted(&mut in_use.iter().map(String::as_str).filter(|name| !KNOWN.contains(name)));
    if unknown.is_empty() {
        return Ok(Stored::Present(in_use));
    }
    let known = quoted(&mut KNOWN.iter().copied());
    Err(Error::Format { found: format!("{unknown} in use in the store at {place}"), known })
}

/// Returns the names in the body of a record; `None` if it is no ascending list of names.
fn names(mut body: Fields<'_>) -> Option<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    while !body.rest.is_empty() {
        let name = body.short_text().filter(|name| !name.is_empty())?;
        if names.last().is_some_and(|last| *last >= name) {
            return None;
        }
        names.insert(name);
    }
    Some(names)
}
