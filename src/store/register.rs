//! The register of the tables that have been replaced, as stored: the prefix of each name, and the
//! generation. Without a record, the prefix of a table follows from its name.

use super::gone::Gone;
use super::keys;
use crate::base::Error;
use crate::commit::prefixes::{FIRST, Moved, Prefixes, Stored};
use crate::commit::sealed::Kind;
use crate::kv::batch::{FamilyId, Records};
use crate::kv::{Family, Kv, TABLES};

/// The name in use since the first replaced table. An older program would look for its rows under
/// the prefix of the name.
pub(super) const IN_USE: &str = "replaced";

/// The record of a name: its prefix. The record of the empty name is the generation, in 8 bytes.
pub(super) const SEAL: Kind = Kind { label: "table", versions: &[1] };

pub(super) fn encode(name: &str, prefix: &[u8]) -> Vec<u8> {
    SEAL.begin(prefix.len()).bytes(prefix).seal(name, "")
}

pub(super) fn decode(name: &str, bytes: &[u8]) -> Result<Vec<u8>, String> {
    Ok(SEAL.open(name, "", bytes)?.rest.to_vec())
}

fn corrupt(name: &str, reason: impl Into<String>) -> Error {
    Error::Corrupt { name: name.to_owned(), reason: format!("the place of the table: {}", reason.into()) }
}

fn number(bytes: &[u8]) -> Result<u64, Error> {
    let number = decode("", bytes).map(|number| number.try_into().map(u64::from_be_bytes));
    number.map_err(|why| corrupt("", why))?.map_err(|_| corrupt("", "it is no number"))
}

/// Returns the stored generation.
pub(super) fn generation(kv: &dyn Kv, system: &Family) -> Result<u64, Error> {
    kv.get(system, keys::TABLE)?.map_or(Ok(FIRST), |bytes| number(&bytes))
}

/// Reads the register, as of one moment. A damaged record is in the way of its own table alone.
pub(super) fn load(kv: &dyn Kv, system: &Family, into: &Prefixes) -> Result<(), Error> {
    let (mut stored, mut generation) = (Stored::default(), FIRST);
    for pair in kv.scan(system, keys::TABLE) {
        let (key, value) = pair?;
        let name = String::from_utf8_lossy(&key[keys::TABLE.len()..]).into_owned();
        if name.is_empty() {
            generation = number(&value)?;
        } else {
            match decode(&name, &value) {
                Ok(prefix) => drop(stored.places.insert(name, prefix.into())),
                Err(why) => drop(stored.unreadable.insert(name, why)),
            }
        }
    }
    into.load(stored, generation);
    Ok(())
}

/// Returns an error for a table whose place cannot be read.
pub(super) fn check(name: &str, prefixes: &Prefixes) -> Result<(), Error> {
    prefixes.why_unreadable(name).map_or(Ok(()), |why| Err(corrupt(name, why)))
}

/// Returns the records that give each second name the place of the first, and each first name a
/// fresh place, with the rows that are gone by that.
pub(super) fn moves(
    prefixes: &Prefixes,
    system: FamilyId,
    tables: &[Renamed],
    gone: &mut Vec<Gone>,
) -> Result<(Records, Vec<Moved>), Error> {
    let (mut records, mut moved) = (Records::default(), Vec::new());
    for Renamed { from, to, fresh } in tables {
        check(from, prefixes)?;
        check(to, prefixes)?;
        let place =
            |name: &str| prefixes.of(name).0.unwrap_or_else(|| keys::table_prefix(name).unwrap_or_default().into());
        let (left, taken) = (place(to), place(from));
        gone.push(Gone { family: TABLES, prefix: left.to_vec() });
        moved.push(Moved { name: to.clone(), from: left, to: taken.clone() });
        moved.push(Moved { name: from.clone(), from: taken, to: keys::fresh_prefix(*fresh).as_slice().into() });
    }
    for Moved { name, to, .. } in &moved {
        records.put(system, &[keys::TABLE, name.as_bytes()], &[&encode(name, to)])?;
    }
    let generation = (prefixes.generation() + 1).to_be_bytes();
    records.put(system, &[keys::TABLE], &[&encode("", &generation)])?;
    Ok((records, moved))
}

/// A table that takes another name, and the number of the place that its old name gets.
pub(super) struct Renamed {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) fresh: u32,
}

/// Writes records with everything that is gone by them, and calls the last one in that moment.
pub(crate) type WriteMoves<'a> = &'a mut dyn FnMut(&Records, Vec<Gone>, &dyn Fn()) -> Result<(), Error>;
