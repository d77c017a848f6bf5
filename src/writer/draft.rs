//! The batch in the making: what intents add to it, and what counters come to.

use crate::error::{Error, StoreError};
use crate::index::BoxError;
use crate::kv::batch::{Batch, FamilyId, Mark, Record};
use crate::kv::changes::{Add, Changes};
use crate::kv::{Family, Kv, counter};
use crate::sync::{RwLock, RwLockWriteGuard};
use std::collections::{HashMap, HashSet};

/// What is written together.
pub(crate) struct Draft<'a> {
    kv: &'a dyn Kv,
    /// Held from the first look at a counter until all is written, so that nobody changes it in between.
    rows: &'a RwLock<()>,
    shut: Option<RwLockWriteGuard<'a, ()>>,
    batch: Batch,
    cells: Cells,
}

/// What the counters are that were looked up, by family and key. It can be forgotten at any time: the batch and the database say it too.
type Cells = HashMap<FamilyId, HashMap<Vec<u8>, Cell>>;

/// What a counter is after everything in the batch.
#[derive(Clone, Debug)]
enum Cell {
    /// The bytes, as they are stored or put.
    Stored(Option<Vec<u8>>),
    Counted(i64),
}

/// A counter that is not known yet: where to look it up, unless the batch has it.
type Sought<'a> = (&'a Family, Option<Cell>);

impl<'a> Draft<'a> {
    pub(super) fn new(kv: &'a dyn Kv, rows: &'a RwLock<()>) -> Self {
        Self { kv, rows, shut: None, batch: Batch::default(), cells: HashMap::new() }
    }

    pub(super) fn batch(&self) -> &Batch {
        &self.batch
    }

    pub(super) fn mark(&self) -> Mark {
        self.batch.mark()
    }

    /// Takes back everything that came after the mark was made.
    pub(super) fn truncate(&mut self, mark: Mark) {
        self.batch.truncate(mark);
        self.cells.clear();
    }

    /// A change that touches no counter: keys of our own.
    pub(crate) fn put(&mut self, family: FamilyId, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.batch.put(family, &[key], &[value])
    }

    /// What jobs want changed, in the order in which they wanted it.
    pub(crate) fn append(&mut self, changes: &Changes) -> Result<(), BoxError> {
        if changes.adds().is_empty() && self.cells.is_empty() {
            self.batch.append(changes.records());
            return Ok(());
        }
        self.learn(changes.adds())?;
        let mut adds = changes.adds().iter().peekable();
        for (number, record) in (0..).zip(changes.records().records()) {
            while let Some(add) = adds.next_if(|add| add.after <= number) {
                self.add(add)?;
            }
            self.note(record);
        }
        adds.try_for_each(|add| self.add(add))?;
        self.batch.append(changes.records());
        Ok(self.put_counters(changes.adds())?)
    }

    /// Looks up what these counters are: as the batch has it so far, or as it is stored.
    fn learn(&mut self, adds: &[Add]) -> Result<(), BoxError> {
        if adds.is_empty() {
            return Ok(());
        }
        self.shut.get_or_insert_with(|| self.rows.write());
        let mut new: HashMap<FamilyId, HashMap<&[u8], Sought<'_>>> = HashMap::new();
        for Add { family, key, .. } in adds {
            if !self.cells.get(&family.id).is_some_and(|cells| cells.contains_key(key)) {
                new.entry(family.id).or_default().insert(key, (family, None));
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        for record in self.batch.records() {
            let (family, key, value) = parts(record);
            if let Some((_, cell)) = new.get_mut(&family).and_then(|new| new.get_mut(key)) {
                *cell = Some(Cell::Stored(value.map(<[u8]>::to_vec)));
            }
        }
        for (id, new) in new {
            let cells = self.cells.entry(id).or_default();
            for (key, (family, put)) in new {
                let cell = put.map_or_else(|| self.kv.get(family, key).map(Cell::Stored), Ok)?;
                cells.insert(key.to_vec(), cell);
            }
        }
        Ok(())
    }

    fn add(&mut self, add: &Add) -> Result<(), BoxError> {
        let Some(cell) = cell(&mut self.cells, add.family.id, &add.key) else { return Ok(()) };
        let count = match cell {
            Cell::Counted(count) => *count,
            Cell::Stored(bytes) => counter::decode(bytes.as_deref()).map_err(|reason| no_counter(add, reason))?,
        };
        let sum = count.checked_add(add.by);
        *cell =
            Cell::Counted(sum.ok_or_else(|| no_counter(add, format!("{count}, which {} is too much for", add.by)))?);
        Ok(())
    }

    /// A record may set what is a counter to others.
    fn note(&mut self, record: Record<'_>) {
        let (family, key, value) = parts(record);
        if let Some(cell) = cell(&mut self.cells, family, key) {
            *cell = Cell::Stored(value.map(<[u8]>::to_vec));
        }
    }

    /// Behind all records: what these counters came to, unless the last word on one was a record.
    fn put_counters(&mut self, adds: &[Add]) -> Result<(), StoreError> {
        let mut put = HashSet::new();
        for Add { family, key, .. } in adds {
            if let Some(Cell::Counted(count)) = cell(&mut self.cells, family.id, key)
                && put.insert((family.id, key))
            {
                self.batch.put(family.id, &[key], &[&counter::encode(*count)])?;
            }
        }
        Ok(())
    }
}

fn cell<'a>(cells: &'a mut Cells, family: FamilyId, key: &[u8]) -> Option<&'a mut Cell> {
    cells.get_mut(&family)?.get_mut(key)
}

/// Where a record belongs, and what is there then.
fn parts(record: Record<'_>) -> (FamilyId, &[u8], Option<&[u8]>) {
    match record {
        Record::Put { family, key, value } => (family, key, Some(value)),
        Record::Delete { family, key } => (family, key, None),
    }
}

fn no_counter(add: &Add, reason: String) -> Error {
    let key = &add.key[add.prefix..];
    let reason = format!("the counter under the key \"{}\" is {reason}", key.escape_ascii());
    Error::Corrupt { name: add.table.to_string(), reason }
}
