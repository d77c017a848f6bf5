//! The storage seam: an ordered key-value store, beneath everything that is durable.
//!
//! Everything above is written against this trait alone, so faults are injected here and nowhere
//! else, and logs and tables are tested without a disk.

use crate::base::{Error, error::StoreError, sync::Arc};
use crate::kv::batch::{Batch, FamilyId};
use crate::kv::statement::Transaction;
use std::ops::Range;

pub(crate) mod batch;
#[cfg(any(test, all(feature = "seam", feature = "testing")))]
pub(crate) mod double;
pub(crate) mod memory;
#[cfg(any(feature = "rocksdb", feature = "sqlite-system"))]
pub(crate) mod place;
#[cfg(feature = "rocksdb")]
pub(crate) mod rocksdb;
#[cfg(feature = "sqlite-system")]
pub(crate) mod sqlite;
pub(crate) mod statement;

/// The column family of the format, the consumers' progress and the bounds of logs.
pub(crate) const SYSTEM: &str = "waterline.system";

/// The column family of the users' tables.
pub(crate) const TABLES: &str = "waterline.tables";

/// The column family of the job logs. Its entries are deleted by range.
pub(crate) const LOGS: &str = "waterline.logs";

/// The column family of the records of parked jobs.
pub(crate) const PARKED: &str = "waterline.parked";

/// The column family of the rows and the payloads of queues.
pub(crate) const QUEUE: &str = "waterline.queue";

/// The column family of the entries by which queues find their next job. They are deleted by range,
/// and each deleted range slows every read of its family, so they have a family of their own.
pub(crate) const READY: &str = "waterline.ready";

/// The column family of what it takes to undo a replaced tip of a source. Its entries are deleted
/// by range, too. (Nothing is written to it so far.)
pub(crate) const UNDO: &str = "waterline.undo";

/// All families of a store, as numbered by [`MemoryKv`](memory::MemoryKv). Every store creates all
/// of them: a later one would be missing in attached databases.
pub(crate) const OURS: [&str; 7] = [SYSTEM, TABLES, LOGS, PARKED, QUEUE, READY, UNDO];

/// A key space: a column family's name, and its number at the time of the look-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    pub name: Arc<str>,
    pub id: FamilyId,
}

impl Family {
    pub(crate) fn new(name: &str, id: FamilyId) -> Self {
        Self { name: name.into(), id }
    }
}

/// A key and its value.
pub(crate) type Pair = (Vec<u8>, Vec<u8>);

/// Pairs in the order of their keys, or in the reverse order.
pub(crate) type Scan<'a> = Box<dyn Iterator<Item = Result<Pair, StoreError>> + Send + 'a>;

/// The direction in which keys are walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Ascending,
    Descending,
}

/// The keys from `from` on and below `to`. Without `to` the range has no end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    pub from: Vec<u8>,
    pub to: Option<Vec<u8>>,
}

impl KeyRange {
    /// The range of all keys that begin with this prefix.
    pub fn prefix(prefix: &[u8]) -> Self {
        Self { from: prefix.to_vec(), to: prefix_end(prefix) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.to.as_ref().is_some_and(|to| *to <= self.from)
    }
}

/// A closure that is shown keys and values, until it returns false.
pub(crate) type Each<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> bool;

/// How an engine deletes ranges of keys.
#[derive(Clone, Copy, Debug)]
pub struct Deletion {
    /// The most rows and bytes that a write may delete and still take a few milliseconds.
    pub rows: u64,
    pub bytes: u64,
    /// True if [`Kv::reclaim`] has an effect.
    pub reclaims: bool,
}

impl Default for Deletion {
    /// A range costs the same whatever is in it.
    fn default() -> Self {
        Self { rows: u64::MAX, bytes: u64::MAX, reclaims: true }
    }
}

/// An ordered key-value store with atomic batches.
pub trait Kv: Send + Sync {
    /// Returns the number of the family with this name, if there is one.
    fn family(&self, name: &str) -> Result<Option<FamilyId>, StoreError>;

    fn get(&self, family: &Family, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// Returns the values of these keys, in the order of the keys, as of one moment.
    fn multi_get(&self, family: &Family, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, StoreError>;

    /// Returns every pair in this range, as of this moment.
    fn rows(&self, family: &Family, keys: KeyRange, order: Order) -> Scan<'_>;

    /// Returns every pair whose key begins with the prefix, as of this moment, in ascending order.
    fn scan(&self, family: &Family, prefix: &[u8]) -> Scan<'_> {
        self.rows(family, KeyRange::prefix(prefix), Order::Ascending)
    }

    /// Shows the pairs in this range, in ascending order, until `each` returns false.
    fn range(&self, family: &Family, keys: Range<&[u8]>, each: Each<'_>) -> Result<(), StoreError>;

    /// Returns the highest key with this prefix.
    fn last(&self, family: &Family, prefix: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// Writes all changes or none, and none for a family that was dropped meanwhile. If `synced`,
    /// they survive a loss of power once this returns.
    fn write(&self, batch: &Batch, synced: bool) -> Result<(), StoreError>;

    /// Gives back the disk space of a range of deleted keys. Nothing is lost if it fails.
    fn reclaim(&self, family: &Family, keys: Range<&[u8]>) -> Result<(), StoreError>;

    /// Returns what it costs to delete a range.
    fn deletion(&self) -> Deletion {
        Deletion::default()
    }

    /// True if the engine runs SQL statements.
    fn takes_sql(&self) -> bool {
        false
    }

    /// Begins a transaction for SQL statements and a batch. Other writers wait until it ends.
    fn begin(&self, _synced: bool, _careful: bool) -> Result<Box<dyn Transaction + '_>, StoreError> {
        Err(StoreError::new("run a statement".to_owned(), "this database takes no SQL".into()))
    }

    /// True once if the writes so far have left maintenance work for [`tidy`](Self::tidy).
    fn is_untidy(&self) -> bool {
        false
    }

    /// Does that work, on a thread that no caller waits for. It may log, and a subscriber of the
    /// log may write to this very store, so the caller holds no lock.
    fn tidy(&self) {}

    /// Notes that the store is gone: the database closes as soon as its last thread lets go of it,
    /// and a caller that opens it again waits for that.
    fn closes(&self) {}

    /// Makes everything visible that other processes have written. A no-op if only this one writes.
    fn refresh(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// Returns the lowest key above all keys with this prefix; `None` if there is none.
pub fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let keep = prefix.iter().rposition(|byte| *byte < u8::MAX)? + 1;
    let mut end = prefix[..keep].to_vec();
    end[keep - 1] += 1;
    Some(end)
}

/// Returns the highest key of the same length below this one; `None` if there is none.
#[cfg(any(test, feature = "rocksdb"))]
pub(crate) fn key_below(key: &[u8]) -> Option<Vec<u8>> {
    let last = key.iter().rposition(|byte| *byte > 0)?;
    let mut below = key.to_vec();
    below[last] -= 1;
    below[last + 1..].fill(u8::MAX);
    Some(below)
}

#[cfg(test)]
mod tests {
    use super::{key_below, prefix_end};

    #[test]
    fn the_key_below_has_the_same_length() {
        assert_eq!(key_below(b"ab"), Some(b"aa".to_vec()));
        assert_eq!(key_below(b"a\0\0"), Some(b"`\xff\xff".to_vec()));
        assert_eq!(key_below(b"\0\x01"), Some(b"\0\0".to_vec()));
        assert_eq!(key_below(b"\0\0"), None);
        assert_eq!(key_below(b""), None);
    }

    #[test]
    fn a_prefix_ends_right_above_its_keys() {
        assert_eq!(prefix_end(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(prefix_end(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(prefix_end(b"\xff\xff"), None);
        assert_eq!(prefix_end(b""), None);
    }
}
