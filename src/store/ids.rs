//! Numbers that stand for names in keys. They are short, and unique in a database for ever.

use crate::base::sync::{Arc, Mutex};
use crate::base::{Error, error::StoreError};
use crate::commit::sealed::{Kind, SUM};
use crate::kv::{Family, Kv, batch::Batch};
use crate::store::keys;
use std::ops::Range;

/// The kind of the record with the lowest number that was never reserved. It has no version.
pub(super) const SEAL: Kind = Kind { label: "", versions: &[] };

/// How many numbers one write reserves.
const BLOCK: u32 = 256;

pub(crate) struct Ids {
    kv: Arc<dyn Kv>,
    system: Family,
    /// The numbers that are reserved but not yet given out.
    reserved: Mutex<Range<u32>>,
}

impl Ids {
    pub(super) fn new(kv: Arc<dyn Kv>, system: Family) -> Self {
        Self { kv, system, reserved: Mutex::new(0..0) }
    }

    /// Returns a number that was never used in this database.
    pub(crate) fn next(&self) -> Result<u32, Error> {
        self.next_of(&mut self.reserved.lock())
    }

    /// The same for the thread that makes a batch. It must not wait while another thread reserves
    /// numbers, which may be waiting for that batch: then this fails, and the batch is retried.
    pub(crate) fn try_next(&self) -> Result<u32, Error> {
        let Some(mut reserved) = self.reserved.try_lock() else {
            let source = "another thread reserves numbers: it is tried again".into();
            return Err(StoreError::new("reserve a number".to_owned(), source).into());
        };
        self.next_of(&mut reserved)
    }

    fn next_of(&self, reserved: &mut Range<u32>) -> Result<u32, Error> {
        if let Some(id) = reserved.next() {
            return Ok(id);
        }
        let corrupt = |reason| Error::Corrupt { name: "ids".to_owned(), reason };
        let stored = self.kv.get(&self.system, keys::IDS)?;
        let lowest = stored.map_or(Ok(0), |bytes| decode(&bytes)).map_err(corrupt)?;
        let end = lowest.checked_add(BLOCK).ok_or_else(|| corrupt("there is no number left".to_owned()))?;
        let mut batch = Batch::default();
        batch.put(self.system.id, &[keys::IDS], &[&encode(end)])?;
        // This write precedes every record that uses these numbers, so no crash repeats one.
        self.kv.write(&batch, false)?;
        *reserved = lowest + 1..end;
        Ok(lowest)
    }
}

pub(super) fn encode(lowest: u32) -> Vec<u8> {
    SEAL.begin(4).count(lowest).seal("", "")
}

pub(super) fn decode(bytes: &[u8]) -> Result<u32, String> {
    let body = SEAL.open("", "", bytes)?.rest;
    let lowest = body.try_into().map_err(|_| format!("it is {} bytes long instead of {}", bytes.len(), 4 + SUM))?;
    Ok(u32::from_be_bytes(lowest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::memory::MemoryKv;

    #[test]
    fn no_number_is_given_out_twice() {
        let kv = Arc::new(MemoryKv::default());
        let [system, ..] = kv.families();
        let mut given = std::collections::BTreeSet::new();
        for _ in 0..3 {
            let ids = Ids::new(kv.clone(), system.clone());
            assert!((0..300).all(|_| given.insert(ids.next().unwrap())));
        }
        assert!(kv.writes() < 10, "{} writes", kv.writes());
    }
}
