//! Reads the format of a store, and creates that of a new one.

use super::{Format, KNOWN, SEAL, encode, put};
use crate::base::{Error, sync::Mutex};
use crate::commit::sealed::{Fields, Unreadable, listed};
#[cfg(any(feature = "rocksdb", feature = "sqlite-system"))]
use crate::kv::SYSTEM;
use crate::kv::{Family, Kv};
use crate::store::keys;
use std::collections::BTreeSet;
use std::fmt;

/// Returns the names in use in the store in this family, or `None` without a store. Writes nothing.
///
/// # Errors
/// [`Error::Format`] if a newer version of the library has made the store, [`Error::Corrupt`] if
/// the record is damaged, [`Error::NotFound`] if there is no store and `create` is false.
pub(crate) fn read(
    kv: &dyn Kv,
    system: &Family,
    create: bool,
    place: &dyn fmt::Display,
) -> Result<Option<BTreeSet<String>>, Error> {
    match kv.get(system, keys::FORMAT)? {
        Some(record) => decode(&record, place).map(Some),
        None if create => Ok(None),
        None => Err(Error::NotFound { what: "store", name: place.to_string() }),
    }
}

/// Returns an error if [`read`](read()) would. A database without our families is fine.
#[cfg(any(feature = "rocksdb", feature = "sqlite-system"))]
pub(crate) fn check(kv: &dyn Kv, create: bool, place: &dyn fmt::Display) -> Result<(), Error> {
    match kv.family(SYSTEM)? {
        Some(id) => read(kv, &Family::new(SYSTEM, id), create, place).map(drop),
        None => Ok(()),
    }
}

/// Takes a store into use whose names were [read](read()). One write creates a new store's record.
pub(crate) fn take_up(kv: &dyn Kv, system: &Family, in_use: Option<BTreeSet<String>>) -> Result<Format, Error> {
    if in_use.is_none() {
        put(kv, system, &encode(&BTreeSet::new()))?;
    }
    Ok(Format { in_use: Mutex::new(in_use.unwrap_or_default()) })
}

pub(crate) fn decode(record: &[u8], place: &dyn fmt::Display) -> Result<BTreeSet<String>, Error> {
    let corrupt = |reason| Error::Corrupt { name: "format".to_owned(), reason };
    let body = match SEAL.open("", "", record) {
        Ok(fields) => fields,
        Err(Unreadable::Version { found: found @ 1.., known }) => {
            let found = format!("version {found} of a store at {place}");
            return Err(Error::Format { found, known: format!("version {}", listed(known)) });
        }
        Err(unreadable) => return Err(corrupt(unreadable.into())),
    };
    let in_use = names(body).ok_or_else(|| corrupt("its list of names cannot be read".to_owned()))?;
    let quoted =
        |names: &mut dyn Iterator<Item = &str>| listed(&names.map(|name| format!("{name:?}")).collect::<Vec<_>>());
    let unknown = quoted(&mut in_use.iter().map(String::as_str).filter(|name| !KNOWN.contains(name)));
    if unknown.is_empty() {
        return Ok(in_use);
    }
    let known = quoted(&mut KNOWN.iter().copied());
    Err(Error::Format { found: format!("{unknown} in use in the store at {place}"), known })
}

/// Decodes the names in a record's body; `None` if they are no ascending list.
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
