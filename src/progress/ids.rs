//! The numbers of progresses: shorter than their names in the keys of deltas, and never used twice in a database.

use super::format::{checked, checksum};
use crate::error::Error;
use crate::kv::{Op, Space};
use crate::store::Store;
use std::ops::Range;

const KEY: &[u8] = b"ids";

/// So many are reserved with one write.
const BLOCK: u32 = 256;

/// Numbers that are reserved and not given out.
pub(crate) type Reserved = Range<u32>;

/// A number that no progress of this database has or had.
pub(crate) fn new_id(store: &Store) -> Result<u32, Error> {
    let mut reserved = store.reserved_ids().lock();
    if let Some(id) = reserved.next() {
        return Ok(id);
    }
    let corrupt = |reason| Error::Corrupt { name: "ids".to_owned(), reason };
    let lowest = match store.kv().get(Space::System, KEY)? {
        Some(bytes) => decode(&bytes).map_err(corrupt)?,
        None => 0,
    };
    let end = lowest.checked_add(BLOCK).ok_or_else(|| corrupt("no number is left for another progress".to_owned()))?;
    // Before the first of them is used, so that none is reserved again after a crash.
    store.write(&[Op::Put { space: Space::System, key: KEY.to_vec(), value: encode(end) }])?;
    *reserved = lowest + 1..end;
    Ok(lowest)
}

fn encode(lowest: u32) -> Vec<u8> {
    let body = lowest.to_be_bytes();
    [body, checksum("ids", &[], &body)].concat()
}

fn decode(bytes: &[u8]) -> Result<u32, String> {
    let body = checked("ids", &[], bytes)?;
    let body = body.try_into().map_err(|_| format!("it is {} bytes long instead of 8", bytes.len()))?;
    Ok(u32::from_be_bytes(body))
}
