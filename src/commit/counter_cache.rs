//! The counters that the writer knows. Those of the store's own family of tables stay known from
//! one batch to the next, so a counter that many jobs add to is read once.

use crate::base::error::Error;
use crate::base::sync::{AtomicBool, Ordering};
use crate::commit::adds::Add;
use crate::commit::counter;
use crate::kv::batch::{Batch, FamilyId, Record};
use crate::kv::{Family, TABLES};
use foldhash::fast::RandomState;
use std::collections::HashMap;

/// The most counters that stay known, and the most bytes of their keys.
pub(crate) const MOST: usize = 4096;
pub(crate) const MOST_BYTES: usize = 1 << 20;

/// The things that the lock on rows guards: the counters that are known between two batches.
#[derive(Debug, Default)]
pub(crate) struct CounterCache {
    cells: Cells,
    /// True if one of them was changed by somebody who has not changed `cells` too.
    stale: AtomicBool,
}

impl CounterCache {
    /// Notes that somebody changes rows beside the batches with counters. A thread that does so
    /// holds the lock, for reading.
    pub(crate) fn note(&self, batch: &Batch) {
        if !self.cells.is_empty() && batch.records().any(|record| self.cells.has(&touched(record))) {
            self.stale.store(true, Ordering::Relaxed);
        }
    }

    /// Hands over the counters that are known. They are given back once a batch is written.
    pub(super) fn take(&mut self) -> Cells {
        let cells = std::mem::take(&mut self.cells);
        let is_stale = self.stale.load(Ordering::Relaxed);
        self.stale.store(false, Ordering::Relaxed);
        if is_stale { Cells::default() } else { cells }
    }

    /// Takes the counters as they are now stored.
    pub(super) fn keep(&mut self, mut cells: Cells) {
        // The rows of any other family may be changed without this store, by the owner of the
        // database.
        cells.families.retain(|family| family.is_ours);
        let sizes = cells.families.iter().map(|family| (family.cells.len(), family.bytes));
        let (count, bytes) = sizes.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
        self.cells = if count > MOST || bytes > MOST_BYTES { Cells::default() } else { cells };
    }
}

/// Counters with their values after everything in the batch. They can be forgotten at any time: the
/// batch and the database say the same.
#[derive(Debug, Default)]
pub(super) struct Cells {
    families: Vec<CellsOf>,
    /// It grows with each change.
    version: u64,
}

/// The counters of a family.
#[derive(Debug)]
struct CellsOf {
    id: FamilyId,
    is_ours: bool,
    places: HashMap<Box<[u8]>, usize, RandomState>,
    cells: Vec<Cell>,
    /// The bytes of all keys.
    bytes: usize,
    /// The lowest and the highest key. The rows of other tables lie elsewhere, mostly.
    lowest: Box<[u8]>,
    highest: Box<[u8]>,
}

/// The place of a counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    family: usize,
    cell: usize,
}

/// A counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    /// The count, or else the length of the value that is none.
    pub(super) value: Result<i64, usize>,
    /// True if the sum is still to be put.
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

    /// Returns a number that is another one after each change.
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

    /// Enters a counter that is not known, with its value in the database.
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

    /// Sets a counter, and returns it as it was.
    #[inline]
    pub(super) fn set(&mut self, at: At, cell: Cell) -> Cell {
        self.version += 1;
        std::mem::replace(&mut self.families[at.family].cells[at.cell], cell)
    }

    /// Notes the values that a record sets: others may add to a counter under the same key. It
    /// shows each counter that changes as it was.
    #[inline]
    pub(super) fn note(&mut self, record: Record<'_>, mut was: impl FnMut(At, Cell)) {
        match touched(record) {
            Touched::Row(family, key, value) => {
                if let Some(at) = self.find(family, key) {
                    was(at, self.set(at, Cell::stored(value)));
                }
            }
            Touched::Range(range) => {
                for at in self.in_range(&range) {
                    was(at, self.set(at, Cell::stored(None)));
                }
            }
        }
    }

    /// Lists the counters that a range has.
    fn in_range(&self, range: &Cleared<'_>) -> Vec<At> {
        let Some(family) = self.families.iter().position(|family| family.id == range.family) else { return Vec::new() };
        let CellsOf { places, lowest, highest, .. } = &self.families[family];
        if **highest < *range.from || !range.to.is_empty() && *range.to <= **lowest {
            return Vec::new();
        }
        let cleared = places.iter().filter(|(key, _)| range.has(key));
        cleared.map(|(_, cell)| At { family, cell: *cell }).collect()
    }

    /// True if one of these counters is touched.
    fn has(&self, touched: &Touched<'_>) -> bool {
        match touched {
            Touched::Row(family, key, _) => self.find(*family, key).is_some(),
            Touched::Range(range) => !self.in_range(range).is_empty(),
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

/// The rows that a record changes.
enum Touched<'a> {
    /// A family, a key, and the value that the record sets, if any.
    Row(FamilyId, &'a [u8], Option<&'a [u8]>),
    Range(Cleared<'a>),
}

/// Keys that a record deletes: from the first one on, and below the second one. An empty second key
/// is no end.
struct Cleared<'a> {
    family: FamilyId,
    from: &'a [u8],
    to: &'a [u8],
}

impl Cleared<'_> {
    fn has(&self, key: &[u8]) -> bool {
        self.from <= key && (self.to.is_empty() || key < self.to)
    }
}

fn touched(record: Record<'_>) -> Touched<'_> {
    match record {
        Record::Put { family, key, value } => Touched::Row(family, key, Some(value)),
        Record::Delete { family, key } => Touched::Row(family, key, None),
        Record::DeleteRange { family, from, to } => Touched::Range(Cleared { family, from, to }),
    }
}
