//! Progress in the embedded store, and its bytes.

use super::{Checkpoint, NOT_ACQUIRED, Progress, SaveDesk, Saves};
use crate::config::check_name;
use crate::error::{Error, StoreError};
use crate::index::{BoxError, Index};
use crate::kv::batch::{Batch, FamilyId};
use crate::store::{Claim, Store};
use crate::sync::Arc;
use crate::writer::Intent;
use std::time::Duration;

/// The only format so far: the version, the watermark in big-endian, a CRC-32 of the name, the version and the watermark.
pub(crate) const VERSION: u8 = 1;
pub(crate) const LENGTH: usize = 1 + 8 + 4;

/// The progress of one consumer in a [`Store`]; made by [`Store::progress`].
///
/// Its saves share batches with those of every other consumer of the store, and never hold up a job.
#[derive(Debug)]
#[must_use]
pub struct StoreProgress {
    store: Store,
    name: String,
    claim: Option<Claim>,
}

impl Store {
    /// The progress of the consumer with this name: 1 to 255 bytes, checked when a consumer starts with it.
    pub fn progress(&self, name: impl Into<String>) -> StoreProgress {
        StoreProgress { store: self.clone(), name: name.into(), claim: None }
    }
}

impl StoreProgress {
    /// The name that it was made with.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The watermark as it is saved, without taking the name; `None` when nothing was ever saved.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when it cannot be read, [`Error::Progress`] when the database fails.
    pub fn last_processed(&self) -> Result<Option<Index>, Error> {
        Ok(self.load()?.map(|checkpoint| checkpoint.last_processed))
    }

    /// Forgets the watermark, also one that cannot be read: the next consumer with this name starts anew.
    ///
    /// # Errors
    /// [`Error::InUse`] while a consumer has the name, [`Error::Store`] when the database fails.
    pub fn remove(self) -> Result<(), Error> {
        check_name("progress", &self.name)?;
        let _claim = self.store.claim(&self.name)?;
        let mut batch = Batch::default();
        batch.delete(self.store.system().id, &key(&self.name))?;
        Ok(self.store.write(&batch)?)
    }

    fn load(&self) -> Result<Option<Checkpoint>, Error> {
        check_name("progress", &self.name)?;
        let stored = self.store.kv().get(self.store.system(), &key(&self.name).concat());
        let stored = stored.map_err(|e| Error::Progress { source: e.into() })?;
        let checkpoint = stored.map(|bytes| decode(&self.name, &bytes)).transpose();
        checkpoint.map_err(|reason| Error::Corrupt { name: self.name.clone(), reason })
    }
}

impl Progress for StoreProgress {
    fn acquire(&mut self) -> Result<Option<Checkpoint>, Error> {
        check_name("progress", &self.name)?;
        let claim = self.store.claim(&self.name)?;
        let checkpoint = self.load()?;
        self.store.writer().start().map_err(|source| Error::Spawn { source })?;
        self.claim = Some(claim);
        Ok(checkpoint)
    }

    fn save(&mut self, checkpoint: &Checkpoint) -> Result<(), BoxError> {
        if self.claim.is_none() {
            return Err(NOT_ACQUIRED.into());
        }
        let mut batch = Batch::default();
        put(&mut batch, self.store.system().id, &self.name, *checkpoint)?;
        Ok(self.store.write(&batch)?)
    }

    fn writer(&self) -> Option<Box<dyn Saves>> {
        Some(Box::new(Shared { store: self.store.clone(), name: self.name.as_str().into() }))
    }
}

/// A seat at the store's writer.
struct Shared {
    store: Store,
    name: Arc<str>,
}

impl Saves for Shared {
    fn save(&self, desk: Arc<dyn SaveDesk>, hurry: bool) {
        let saving =
            Saving { family: self.store.system().id, synced: self.store.is_synced(), name: self.name.clone(), desk };
        self.store.writer().submit(Box::new(saving), hurry);
    }

    fn hurry(&self) {
        self.store.writer().hurry();
    }
}

/// One save, until it is written or given up. It keeps no store: the thread that drops it would have to wait for itself.
struct Saving {
    family: FamilyId,
    synced: bool,
    name: Arc<str>,
    desk: Arc<dyn SaveDesk>,
}

impl Intent for Saving {
    fn resolve(&self, batch: &mut Batch) -> Result<bool, BoxError> {
        let Some(checkpoint) = self.desk.checkpoint() else { return Ok(false) };
        put(batch, self.family, &self.name, checkpoint)?;
        Ok(true)
    }

    fn synced(&self) -> bool {
        self.synced
    }

    fn written(&self) {
        self.desk.saved();
    }

    fn failed(&self, error: BoxError) -> Option<Duration> {
        self.desk.save_failed(error)
    }
}

fn put(batch: &mut Batch, family: FamilyId, name: &str, checkpoint: Checkpoint) -> Result<(), StoreError> {
    batch.put(family, &key(name), &[&encode(name, checkpoint)])
}

/// In two parts.
pub(crate) fn key(name: &str) -> [&[u8]; 2] {
    [b"p", name.as_bytes()]
}

pub(crate) fn checksum(name: &str, body: &[u8]) -> [u8; 4] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(name.as_bytes());
    hasher.update(body);
    hasher.finalize().to_be_bytes()
}

pub(crate) fn encode(name: &str, checkpoint: Checkpoint) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(LENGTH);
    bytes.push(VERSION);
    bytes.extend_from_slice(&checkpoint.last_processed.to_be_bytes());
    bytes.extend_from_slice(&checksum(name, &bytes));
    bytes
}

/// What is stored, or why it cannot be read.
pub(crate) fn decode(name: &str, bytes: &[u8]) -> Result<Checkpoint, String> {
    match bytes {
        [] => return Err("it is empty".to_owned()),
        [VERSION, ..] => {}
        [version, ..] => return Err(format!("its format is {version}, and this program knows {VERSION}")),
    }
    if bytes.len() != LENGTH {
        return Err(format!("it is {} bytes long instead of {LENGTH}", bytes.len()));
    }
    let (body, sum) = bytes.split_at(LENGTH - 4);
    if checksum(name, body) != sum {
        return Err("its checksum does not match".to_owned());
    }
    let mut index = [0; 8];
    index.copy_from_slice(&body[1..]);
    match Index::from_be_bytes(index) {
        Index::MAX => Err(format!("its watermark is {}, which is never a job", Index::MAX)),
        index => Ok(Checkpoint::new(index)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_watermark_that_is_no_job_is_refused() {
        let bytes = encode("n", Checkpoint::new(Index::MAX));
        assert!(decode("n", &bytes).unwrap_err().contains("never a job"));
    }

    #[test]
    fn a_value_under_another_name_is_refused() {
        let bytes = encode("a", Checkpoint::new(5));
        assert!(decode("b", &bytes).is_err());
    }

    proptest! {
        #[test]
        fn promise_8_any_flipped_bit_and_any_other_length_is_refused(
            index in 0..Index::MAX, name in ".{1,20}", bit in 0..LENGTH * 8, cut in 0..LENGTH, more in any::<u8>(),
        ) {
            let bytes = encode(&name, Checkpoint::new(index));
            prop_assert_eq!(decode(&name, &bytes), Ok(Checkpoint::new(index)));
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(decode(&name, &flipped).is_err());
            prop_assert!(decode(&name, &bytes[..cut]).is_err());
            prop_assert!(decode(&name, &[bytes, vec![more]].concat()).is_err());
        }

        #[test]
        fn garbage_is_refused_and_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            // A random value passes a 32-bit checksum once in four thousand million.
            prop_assert!(decode("n", &bytes).is_err());
        }
    }
}
