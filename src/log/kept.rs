//! Items that are kept for parked jobs: their rows, and what a log knows of them.

use super::bounds::{self, Bounds, item_key};
use crate::base::Index;
use crate::base::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use crate::kv::Family;

/// The first byte of such a row's key. Others begin with the length of a name, which is never 0.
const KEPT: u8 = 0;

/// What a log knows of these items.
pub(super) struct Kept {
    pub(super) family: Family,
    /// The number of these items that are stored.
    count: AtomicU64,
    /// The index below which trims have begun to remove items. From there on nothing is kept.
    pub(super) reached: AtomicU64,
    /// The jobs that are no longer parked. The next trim removes their items.
    pub(super) released: Mutex<Vec<Index>>,
    /// True if there may be items of jobs that were given up while no consumer had their name. Set
    /// when a consumer starts, since it knows its parked jobs.
    pub(super) unchecked: AtomicBool,
}

pub(super) fn prefix(id: u32) -> [u8; 5] {
    let mut prefix = [KEPT; 5];
    prefix[1..].copy_from_slice(&id.to_be_bytes());
    prefix
}

pub(super) fn key(id: u32, index: Index) -> [u8; 13] {
    let mut key = [KEPT; 13];
    key[1..].copy_from_slice(&item_key(id, index));
    key
}

pub(super) fn index_of(key: &[u8]) -> Option<Index> {
    bounds::index_of(key.get(1..)?)
}

impl Kept {
    /// Continues with the items that earlier lives have kept.
    pub(super) fn new(family: Family, bounds: Bounds) -> Self {
        Self {
            family,
            count: AtomicU64::new(bounds.kept),
            reached: AtomicU64::new(bounds.first),
            released: Mutex::default(),
            unchecked: AtomicBool::new(true),
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    pub(super) fn set_count(&self, count: u64) {
        self.count.store(count, Ordering::Release);
    }

    /// Makes the next trim check all items.
    pub(super) fn check_all(&self) {
        self.unchecked.store(true, Ordering::Release);
    }
}
