//! The writer's cache of counters. Those of the store's own family of tables stay cached from one
//! batch to the next, so a counter that many jobs add to is read once.

use crate::base::Error;
use crate::base::sync::{Arc, AtomicBool, Ordering};
use crate::commit::{adds::Add, counter, prefixes::Prefixes};
use crate::kv::batch::{Batch, FamilyId, RowChange};
use crate::kv::{Family, TABLES};
use foldhash::fast::RandomState;
use std::collections::HashMap;

/// The most counters that stay cached, and the most bytes of their keys.
pub(crate) const MOST: usize = 4096;
pub(crate) const MOST_BYTES: usize = 1 << 20;

/// The counters that are cached between two batches. The lock on rows guards them.
#[derive(Debug, Default)]
pub(crate) struct CounterCache {
    cells: Cells,
    /// True if one of them was changed without a change of `cells`.
    stale: AtomicBool,
    /// The prefixes of tables, which change only while a thread has this lock for writing.
    pub(crate) prefixes: Arc<Prefixes>,
}

impl CounterCache {
    /// Notes that a thread changes rows outside of these batches. It holds the lock for reading.
    pub(crate) fn note(&self, batch: &Batch) {
        if !self.cells.is_empty() && batch.records().any(|record| self.cells.has(record)) {
            self.stale.store(true, Ordering::Relaxed);
        }
    }

    /// Takes the cached counters, which are given back once a batch is written.
    pub(super) fn take(&mut self) -> Cells {
        let cells = std::mem::take(&mut self.cells);
        let is_stale = self.stale.load(Ordering::Relaxed);
        self.stale.store(false, Ordering::Relaxed);
        if is_stale { Cells::default() } else { cells }
    }

    /// Caches the counters as they are now stored.
    pub(super) fn keep(&mut self, mut cells: Cells) {
        // Rows of other families may be changed by the database's owner, without this store.
        cells.families.retain(|family| family.is_ours);
        let sizes = cells.families.iter().map(|family| (family.cells.len(), family.bytes));
        let (count, bytes) = sizes.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
        self.cells = if count > MOST || bytes > MOST_BYTES { Cells::default() } else { cells };
    }
}

/// Counters with their values after everything in the batch. They can be forgotten at any time: the
/// batch and the database have the same values.
#[derive(Debug, Default)]
pub(super) struct Cells {
    families: Vec<CellsOf>,
    /// Incremented by each change.
    version: u64,
}

#[derive(Debug)]
struct CellsOf {
    id: FamilyId,
    is_ours: bool,
    places: HashMap<Box<[u8]>, usize, RandomState>,
    cells: Vec<Cell>,
    /// The total length of the keys.
    bytes: usize,
    /// The lowest and the highest key. Rows of other tables are mostly outside.
    lowest: Box<[u8]>,
    highest: Box<[u8]>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    family: usize,
    cell: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    /// The count, or the length of a value that is no counter.
    pub(super) value: Result<i64, usize>,
    /// True if the sum must still be put into the batch.
    pub(super) is_owed: bool,
}

impl Cell {
    fn stored(bytes: Option<&[u8]>) -> Self {
        Self { value: counter::decode(bytes), is_owed: false }
    }

    /// Returns the counter after this addition.
    #[inline]
    pub(super) fn plus(&self, add: &Add<'_>) -> Result<Self, Error> {
        let (table, key) = (&add.counters.table, || &add.key[add.counters.prefix..]);
        let count = self.value.map_err(|length| counter::none(table, key(), length))?;
        let sum = count.checked_add(add.by).ok_or_else(|| counter::full(table, key(), count, add.by))?;
        Ok(Self { value: Ok(sum), is_owed: true })
    }
}

impl Cells {
    pub(super) fn is_empty(&self) -> bool {
        self.families.is_empty()
    }

    /// Returns a number that differs after each change.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn clear(&mut self) {
        self.families.clear();
        self.version += 1;
    }

    #[inline]
    pub(super) fn find(&self, id: FamilyId, key: &[u8]) -> Option<At> {
        let family = self.families.iter().position(|family| family.id == id)?;
        let of = &self.families[family];
        if *key < *of.lowest || *of.highest < *key {
            return None;
        }
        of.places.get(key).map(|cell| At { family, cell: *cell })
    }

    /// Adds a counter that is not cached, with its value in the database.
    pub(super) fn enter(&mut self, family: &Family, key: &[u8], stored: Option<&[u8]>) -> At {
        let place = self.families.iter().position(|known| known.id == family.id).unwrap_or_else(|| {
            self.families.push(CellsOf::new(family, key));
            self.families.len() - 1
        });
        let of = &mut self.families[place];
        if *key < *of.lowest {
            of.lowest = key.into();
        }
        if *key > *of.highest {
            of.highest = key.into();
        }
        let at = At { family: place, cell: of.cells.len() };
        of.places.insert(key.into(), at.cell);
        of.cells.push(Cell::stored(stored));
        of.bytes += key.len();
        self.version += 1;
        at
    }

    #[inline]
    pub(super) fn get(&self, at: At) -> Cell {
        self.families[at.family].cells[at.cell]
    }

    /// Sets a counter, and returns the previous state.
    #[inline]
    pub(super) fn set(&mut self, at: At, cell: Cell) -> Cell {
        self.version += 1;
        std::mem::replace(&mut self.families[at.family].cells[at.cell], cell)
    }

    /// Takes over the values that a record sets, since jobs may add under the same key. `was` is
    /// shown the previous state of each counter that changes.
    #[inline]
    pub(super) fn note(&mut self, record: RowChange<'_>, mut was: impl FnMut(At, Cell)) {
        let (family, key, value) = match record {
            RowChange::Put { family, key, value } => (family, key, Some(value)),
            RowChange::Delete { family, key } => (family, key, None),
            RowChange::DeleteRange { family, from, to } => {
                for at in self.in_range(family, from, to) {
                    was(at, self.set(at, Cell::stored(None)));
                }
                return;
            }
        };
        if let Some(at) = self.find(family, key) {
            was(at, self.set(at, Cell::stored(value)));
        }
    }

    /// Lists the counters from `from` on and below `to`. An empty `to` is no end.
    fn in_range(&self, id: FamilyId, from: &[u8], to: &[u8]) -> Vec<At> {
        let Some(family) = self.families.iter().position(|family| family.id == id) else { return Vec::new() };
        let CellsOf { places, lowest, highest, .. } = &self.families[family];
        if **highest < *from || !to.is_empty() && *to <= **lowest {
            return Vec::new();
        }
        let cleared = places.iter().filter(|(key, _)| *from <= ***key && (to.is_empty() || ***key < *to));
        cleared.map(|(_, cell)| At { family, cell: *cell }).collect()
    }

    /// True if the change touches one of these counters.
    fn has(&self, record: RowChange<'_>) -> bool {
        match record {
            RowChange::Put { family, key, .. } | RowChange::Delete { family, key } => self.find(family, key).is_some(),
            RowChange::DeleteRange { family, from, to } => !self.in_range(family, from, to).is_empty(),
        }
    }
}

impl CellsOf {
    fn new(family: &Family, key: &[u8]) -> Self {
        Self {
            id: family.id,
            is_ours: &*family.name == TABLES,
            places: HashMap::default(),
            cells: Vec::new(),
            bytes: 0,
            lowest: key.into(),
            highest: key.into(),
        }
    }
}
