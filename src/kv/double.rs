//! A key-value store in memory, some of whose calls a test watches or changes.

use super::batch::{Batch, FamilyId};
use super::{Deletion, Each, Family, KeyRange, Kv, Order, Scan, memory::MemoryKv, statement::Transaction};
use crate::base::error::StoreError;
use std::ops::Range;

/// A store in memory for a test that overrides some of its calls; the others go through.
pub trait Double: Send + Sync {
    fn memory(&self) -> &MemoryKv;

    fn write(&self, batch: &Batch, synced: bool) -> Result<(), StoreError> {
        self.memory().write(batch, synced)
    }

    fn reclaim(&self, family: &Family, keys: Range<&[u8]>) -> Result<(), StoreError> {
        self.memory().reclaim(family, keys)
    }

    fn get(&self, family: &Family, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.memory().get(family, key)
    }

    fn rows(&self, family: &Family, keys: KeyRange, order: Order) -> Scan<'_> {
        self.memory().rows(family, keys, order)
    }

    fn range(&self, family: &Family, keys: Range<&[u8]>, each: Each<'_>) -> Result<(), StoreError> {
        self.memory().range(family, keys, each)
    }

    fn deletion(&self) -> Deletion {
        self.memory().deletion()
    }

    /// Begins a transaction for statements, if the double runs any.
    fn begin(&self) -> Option<Box<dyn Transaction + '_>> {
        None
    }
}

impl<D: Double> Kv for D {
    fn family(&self, name: &str) -> Result<Option<FamilyId>, StoreError> {
        self.memory().family(name)
    }

    fn get(&self, family: &Family, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Double::get(self, family, key)
    }

    fn multi_get(&self, family: &Family, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        self.memory().multi_get(family, keys)
    }

    fn rows(&self, family: &Family, keys: KeyRange, order: Order) -> Scan<'_> {
        Double::rows(self, family, keys, order)
    }

    fn range(&self, family: &Family, keys: Range<&[u8]>, each: Each<'_>) -> Result<(), StoreError> {
        Double::range(self, family, keys, each)
    }

    fn last(&self, family: &Family, prefix: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.memory().last(family, prefix)
    }

    fn write(&self, batch: &Batch, synced: bool) -> Result<(), StoreError> {
        Double::write(self, batch, synced)
    }

    fn reclaim(&self, family: &Family, keys: Range<&[u8]>) -> Result<(), StoreError> {
        Double::reclaim(self, family, keys)
    }
    fn deletion(&self) -> Deletion {
        Double::deletion(self)
    }

    fn begin(&self, synced: bool, careful: bool) -> Result<Box<dyn Transaction + '_>, StoreError> {
        Double::begin(self).map_or_else(|| self.memory().begin(synced, careful), Ok)
    }
}
