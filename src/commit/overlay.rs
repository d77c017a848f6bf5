//! The database overlaid by the batch so far: what participants read and write.

use crate::base::sync::{Arc, RwLock, RwLockWriteGuard};
use crate::base::{BoxError, error::StoreError};
use crate::commit::counter_cache::CounterCache;
use crate::commit::prefixes::Prefixes;
use crate::commit::statements::{InBatch, Manner};
use crate::kv::batch::{Batch, BatchMark, FamilyId, Records, RowChange};
use crate::kv::{Deletion, Family, KeyRange, Kv, Order, Scan, statement::NotCommitted};
use std::collections::BTreeMap;
use std::ops::Bound;

/// The batch being made, and the database below. Reads see rows as they will be after the write.
pub struct Overlay<'a> {
    kv: &'a dyn Kv,
    batch: Batch,
    /// An index of the batch's changes for each family that was read.
    read: Vec<(FamilyId, Changed)>,
    /// Declared before the lock, and so dropped first: the transaction ends before other threads
    /// change rows again.
    statements: InBatch<'a>,
    /// The lock on rows. The batch holds it from the first counter or statement on until all is
    /// written. So no thread changes a counter meanwhile, or waits for the transaction with the
    /// lock held.
    rows: &'a RwLock<CounterCache>,
    shut: Option<RwLockWriteGuard<'a, CounterCache>>,
}

pub(super) struct OverlayMark {
    batch: BatchMark,
    statements: usize,
}

/// An index of the batch's changes in one family. Only reads update it, and pay for it.
#[derive(Default)]
struct Changed {
    /// The position in the batch up to which records are indexed.
    until: usize,
    /// The positions of each key's records, ascending.
    keys: BTreeMap<Vec<u8>, Vec<usize>>,
    ranges: Vec<DeletedRange>,
}

struct DeletedRange {
    position: usize,
    from: Vec<u8>,
    to: Vec<u8>,
}

// A participant may need only some of these calls.
#[cfg_attr(not(test), allow(dead_code))]
impl<'a> Overlay<'a> {
    pub(super) fn new(kv: &'a dyn Kv, rows: &'a RwLock<CounterCache>, manner: Manner) -> Self {
        let statements = InBatch::new(kv, manner);
        Self { kv, batch: Batch::default(), read: Vec::new(), statements, rows, shut: None }
    }

    /// Keeps other threads from changing rows until all is written. Returns the cached counters.
    pub(super) fn shut_rows(&mut self) -> &mut CounterCache {
        self.shut.get_or_insert_with(|| self.rows.write())
    }

    /// Returns the prefixes of tables, which stay as they are until all is written.
    pub(super) fn prefixes(&self) -> Arc<Prefixes> {
        self.shut.as_ref().map_or_else(|| self.rows.read().prefixes.clone(), |known| known.prefixes.clone())
    }

    /// Notes that the batch may change cached counters.
    pub(super) fn note_rows(&self) {
        match &self.shut {
            Some(known) => known.note(&self.batch),
            None => self.rows.read().note(&self.batch),
        }
    }

    /// Runs a statement before the batch is written.
    pub(super) fn execute(&mut self, statement: &[u8]) -> Result<(), BoxError> {
        // A put of a row holds this lock while it waits for the end of the transaction.
        self.shut_rows();
        self.statements.execute(statement)
    }

    pub(super) fn statements(&mut self) -> &mut InBatch<'a> {
        &mut self.statements
    }

    pub(super) fn write(&mut self, synced: bool) -> Result<(), NotCommitted> {
        self.statements.write(&self.batch, synced)
    }

    pub(super) fn batch(&self) -> &Batch {
        &self.batch
    }

    pub(super) fn mark(&mut self) -> OverlayMark {
        OverlayMark { batch: self.batch.mark(), statements: self.statements.mark() }
    }

    /// Undoes everything after the mark. The cost grows with the number of undone records.
    pub(super) fn go_back(&mut self, mark: OverlayMark) {
        for (family, changed) in &mut self.read {
            changed.forget(*family, &self.batch, mark.batch.length);
        }
        self.batch.truncate(mark.batch);
        self.statements.go_back(mark.statements);
    }

    pub fn deletion(&self) -> Deletion {
        self.kv.deletion()
    }

    /// Sets a value. Key and value are passed in parts, so that a prefix costs no allocation.
    pub fn put(&mut self, family: FamilyId, key: &[&[u8]], value: &[&[u8]]) -> Result<(), StoreError> {
        self.batch.put(family, key, value)
    }

    pub fn delete(&mut self, family: FamilyId, key: &[&[u8]]) -> Result<(), StoreError> {
        self.batch.delete(family, key)
    }

    pub fn delete_range(&mut self, family: FamilyId, from: &[u8], to: &[u8]) -> Result<(), StoreError> {
        self.batch.delete_range(family, from, to)
    }

    pub(crate) fn append(&mut self, records: &Records) {
        self.batch.append(records);
    }

    /// Returns the value of this key as it will be once the batch is written.
    pub fn get(&mut self, family: &Family, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let (kv, batch, changed) = self.look(family.id);
        match changed.row(batch, key) {
            Some(value) => Ok(value.map(<[u8]>::to_vec)),
            None => kv.get(family, key),
        }
    }

    pub fn scan(&mut self, family: &Family, prefix: &[u8]) -> Scan<'_> {
        self.rows(family, KeyRange::prefix(prefix))
    }

    /// Returns all pairs in this range, in the order of keys.
    pub fn rows(&mut self, family: &Family, keys: KeyRange) -> Scan<'_> {
        let (kv, batch, changed) = self.look(family.id);
        let stored = kv.rows(family, keys.clone(), Order::Ascending);
        let mut stored =
            stored.filter(|pair| pair.as_ref().map_or(true, |(key, _)| changed.row(batch, key).is_none())).peekable();
        let KeyRange { from, to } = keys;
        let mut put = changed
            .keys
            .range::<[u8], _>((Bound::Included(&from[..]), Bound::Unbounded))
            .take_while(move |(key, _)| to.as_ref().is_none_or(|to| *key < to))
            .filter_map(|(key, _)| Some((key.clone(), changed.row(batch, key)??.to_vec())))
            .peekable();
        Box::new(std::iter::from_fn(move || {
            let stored_is_next = match (stored.peek(), put.peek()) {
                (Some(Ok((stored, _))), Some((put, _))) => stored < put,
                (stored, _) => stored.is_some(),
            };
            if stored_is_next { stored.next() } else { put.next().map(Ok) }
        }))
    }

    /// Returns the database, the batch, and an up-to-date index of its changes in this family.
    fn look(&mut self, family: FamilyId) -> (&'a dyn Kv, &Batch, &Changed) {
        let known = self.read.iter().position(|(other, _)| *other == family);
        let at = known.unwrap_or_else(|| {
            self.read.push((family, Changed::default()));
            self.read.len() - 1
        });
        let changed = &mut self.read[at].1;
        changed.learn(family, &self.batch);
        (self.kv, &self.batch, changed)
    }
}

impl Changed {
    /// Indexes the records that were added since the last call.
    fn learn(&mut self, family: FamilyId, batch: &Batch) {
        for (position, record) in batch.records_from(self.until).filter(|(_, record)| record.family() == family) {
            match record {
                RowChange::Put { key, .. } | RowChange::Delete { key, .. } => match self.keys.get_mut(key) {
                    Some(positions) => positions.push(position),
                    None => drop(self.keys.insert(key.to_vec(), vec![position])),
                },
                RowChange::DeleteRange { from, to, .. } => {
                    self.ranges.push(DeletedRange { position, from: from.to_vec(), to: to.to_vec() });
                }
            }
        }
        self.until = batch.len();
    }

    /// Forgets the records from this position on, before they are removed.
    fn forget(&mut self, family: FamilyId, batch: &Batch, position: usize) {
        if self.until <= position {
            return;
        }
        for (_, record) in batch.records_from(position).filter(|(_, record)| record.family() == family) {
            if let RowChange::Put { key, .. } | RowChange::Delete { key, .. } = record
                && let Some(positions) = self.keys.get_mut(key)
            {
                // Binary search: a failed intent pays only for its own changes of a row.
                positions.truncate(positions.partition_point(|at| *at < position));
                if positions.is_empty() {
                    self.keys.remove(key);
                }
            }
        }
        self.ranges.truncate(self.ranges.partition_point(|range| range.position < position));
        self.until = position;
    }

    /// Returns the value that the batch leaves under this key: `Some(None)` if it deletes the key,
    /// `None` if it does not change it.
    fn row<'b>(&self, batch: &'b Batch, key: &[u8]) -> Option<Option<&'b [u8]>> {
        let record = self.keys.get(key).and_then(|positions| positions.last()).copied();
        let deletes = |range: &&DeletedRange| range.from.as_slice() <= key && key < range.to.as_slice();
        let deleted = self.ranges.iter().filter(deletes).map(|range| range.position).max();
        match batch.records_from(record.max(deleted)?).next()?.1 {
            RowChange::Put { value, .. } => Some(Some(value)),
            RowChange::Delete { .. } | RowChange::DeleteRange { .. } => Some(None),
        }
    }
}

#[cfg(test)]
mod tests;
