//! A key-value store in memory, some of whose calls a test watches or changes.

use super::batch::{Batch, FamilyId};
use super::{Deletion, Each, Family, KeyRange, Kv, Order, Scan, memory::MemoryKv, statement::Transaction};
use crate::base::error::StoreError;
use std::ops::Range;

macro_rules! double {
    ($(fn $call:ident($($name:ident: $type:ty),*) -> $result:ty;)*) => {
        /// A store in memory for a test that overrides some of its calls; the others go through.
        pub trait Double: Send + Sync {
            fn memory(&self) -> &MemoryKv;

            $(fn $call(&self, $($name: $type),*) -> $result {
                self.memory().$call($($name),*)
            })*
        }

        impl<D: Double> Kv for D {
            $(fn $call(&self, $($name: $type),*) -> $result {
                Double::$call(self, $($name),*)
            })*
        }
    };
}

double! {
    fn family(name: &str) -> Result<Option<FamilyId>, StoreError>;
    fn get(family: &Family, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;
    fn multi_get(family: &Family, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, StoreError>;
    fn rows(family: &Family, keys: KeyRange, order: Order) -> Scan<'_>;
    fn range(family: &Family, keys: Range<&[u8]>, each: Each<'_>) -> Result<(), StoreError>;
    fn last(family: &Family, prefix: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;
    fn write(batch: &Batch, synced: bool) -> Result<(), StoreError>;
    fn reclaim(family: &Family, keys: Range<&[u8]>) -> Result<(), StoreError>;
    fn deletion() -> Deletion;
    fn begin(synced: bool, careful: bool) -> Result<Box<dyn Transaction + '_>, StoreError>;
}
