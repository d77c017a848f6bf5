//! The batch in the making: what intents add to it, and what counters come to.

use crate::base::error::{Error, StoreError};
use crate::base::index::{BoxError, Index};
use crate::base::sync::{Arc, RwLock, RwLockWriteGuard};
use crate::commit::changes::{Add, Changes, Refused};
use crate::commit::counter;
use crate::kv::batch::{Batch, FamilyId, Mark, Record};
use crate::kv::{Family, Kv};
use crate::log::state::{Bounds, LogState};
use std::collections::{HashMap, HashSet};

mod refused;

/// What is written together.
pub(crate) struct Draft<'a> {
    kv: &'a dyn Kv,
    /// Held from the first look at a counter until all is written, so that nobody changes it in between.
    rows: &'a RwLock<()>,
    shut: Option<RwLockWriteGuard<'a, ()>>,
    batch: Batch,
    cells: Cells,
    /// Where the logs are then to which something is pushed or that are trimmed.
    logs: Vec<LogDraft>,
    /// How many records were looked at for counters.
    #[cfg(test)]
    pub(super) looked_at: usize,
}

#[derive(Clone)]
struct LogDraft {
    state: Arc<LogState>,
    /// One past the head.
    end: Index,
    trimmed: Option<Bounds>,
}

/// A state to which a draft can go back.
pub(super) struct Before {
    mark: Mark,
    logs: Vec<LogDraft>,
}

/// What a write has changed in logs.
pub(super) struct Written(Vec<LogDraft>);

impl Written {
    /// From now on everybody sees it, and who waits for items is rung.
    pub(super) fn publish(self, kv: &dyn Kv) {
        for LogDraft { state, end, trimmed } in self.0 {
            if end > state.end() {
                state.pushed(end);
            }
            let Some(bounds) = trimmed else { continue };
            let deleted = state.trimmed(bounds);
            if let Some(reclaimed) = state.reclaim(kv, deleted).err() {
                tracing::warn!(log = state.name, error = %reclaimed, "disk space is given back later");
            }
        }
    }
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

impl Cell {
    /// Adds to the counter: its new count.
    #[inline]
    fn plus(&self, add: &Add) -> Result<i64, Error> {
        let key = || &add.key[add.prefix..];
        let count = match self {
            Self::Counted(count) => *count,
            Self::Stored(bytes) => counter::read(&add.table, key(), bytes.as_deref())?,
        };
        count.checked_add(add.by).ok_or_else(|| counter::full(&add.table, key(), count, add.by))
    }
}

/// A counter that is not known yet: where to look it up, unless the batch has it.
type Sought<'a> = (&'a Family, Option<Cell>);

impl<'a> Draft<'a> {
    pub(super) fn new(kv: &'a dyn Kv, rows: &'a RwLock<()>) -> Self {
        Self {
            kv,
            rows,
            shut: None,
            batch: Batch::default(),
            cells: HashMap::new(),
            logs: Vec::new(),
            #[cfg(test)]
            looked_at: 0,
        }
    }

    pub(super) fn batch(&self) -> &Batch {
        &self.batch
    }

    pub(super) fn before(&self) -> Before {
        Before { mark: self.batch.mark(), logs: self.logs.clone() }
    }

    /// Takes back everything that came since.
    pub(super) fn go_back(&mut self, before: Before) {
        self.batch.truncate(before.mark);
        self.cells.clear();
        self.logs = before.logs;
    }

    /// What was appended to logs, or trimmed, once it is written.
    pub(super) fn into_logs(self) -> Written {
        Written(self.logs)
    }

    fn log(&mut self, state: &Arc<LogState>) -> &mut LogDraft {
        let known = self.logs.iter().position(|log| Arc::ptr_eq(&log.state, state));
        let at = known.unwrap_or_else(|| {
            self.logs.push(LogDraft { state: state.clone(), end: state.end(), trimmed: None });
            self.logs.len() - 1
        });
        &mut self.logs[at]
    }

    /// One past the head of this log, as it is after everything in the draft.
    pub(crate) fn end_of(&mut self, state: &Arc<LogState>) -> Index {
        self.log(state).end
    }

    /// The first index of this log, as it is after everything in the draft.
    pub(crate) fn first_of(&mut self, state: &Arc<LogState>) -> Index {
        self.log(state).trimmed.map_or_else(|| state.first(), |bounds| bounds.first)
    }

    /// Appends an item, which gets its index here.
    pub(crate) fn push(&mut self, state: &Arc<LogState>, logs: FamilyId, value: &[u8]) -> Result<(), BoxError> {
        let log = self.log(state);
        if log.end == Index::MAX {
            return Err(format!("the log {:?} is full", state.name).into());
        }
        let key = state.key(log.end);
        log.end += 1;
        state.passed(value.len());
        Ok(self.batch.put(logs, &[&key], &[value])?)
    }

    /// Removes all items below this index.
    pub(crate) fn trim(
        &mut self,
        state: &Arc<LogState>,
        first: Index,
        logs: FamilyId,
        system: FamilyId,
    ) -> Result<(), BoxError> {
        let log = self.log(state);
        let (records, bounds) = state.trim(first.min(log.end), log.end, logs, system)?;
        log.trimmed = Some(bounds);
        self.batch.append(&records);
        Ok(())
    }

    /// A change that touches no counter: keys of our own.
    pub(crate) fn put(&mut self, family: FamilyId, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.batch.put(family, &[key], &[value])
    }

    /// Appends the changes of jobs, in their order.
    ///
    /// A job with an add that cannot be made is refused. Then nothing at all is appended: take the
    /// changes of the refused jobs out, and append the rest again. An add that belongs to no job is
    /// answered with [`Error::Counter`].
    pub(crate) fn append(&mut self, all: &[Changes]) -> Result<Option<Refused>, BoxError> {
        let adds = all.iter().any(|changes| !changes.adds().is_empty());
        let before = adds.then(|| self.before());
        match (self.append_all(all), before) {
            (Err(error), Some(before)) if matches!(error.downcast_ref(), Some(Error::Counter { .. })) => {
                self.go_back(before);
                Ok(Some(self.refused(all)?.ok_or(error)?))
            }
            (appended, _) => appended.map(|()| None),
        }
    }

    /// All counters are looked up at once, since for each look the whole batch is looked through.
    fn append_all(&mut self, all: &[Changes]) -> Result<(), BoxError> {
        self.learn(all.iter().flat_map(Changes::adds))?;
        all.iter().try_for_each(|changes| self.append_one(changes))
    }

    fn append_one(&mut self, changes: &Changes) -> Result<(), BoxError> {
        for (state, family, value) in changes.pushes() {
            self.push(state, family, value)?;
        }
        if changes.adds().is_empty() && self.cells.is_empty() {
            self.batch.append(changes.records());
            return Ok(());
        }
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
    fn learn<'c>(&mut self, adds: impl Iterator<Item = &'c Add>) -> Result<(), BoxError> {
        let mut new: HashMap<FamilyId, HashMap<&[u8], Sought<'_>>> = HashMap::new();
        for Add { family, key, .. } in adds {
            self.shut.get_or_insert_with(|| self.rows.write());
            if !self.cells.get(&family.id).is_some_and(|cells| cells.contains_key(key)) {
                new.entry(family.id).or_default().insert(key, (family, None));
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        for record in self.batch.records() {
            #[cfg(test)]
            {
                self.looked_at += 1;
            }
            let Some((family, key, value)) = parts(record) else { continue };
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

    fn add(&mut self, add: &Add) -> Result<(), Error> {
        if let Some(cell) = cell(&mut self.cells, add.family.id, &add.key) {
            *cell = Cell::Counted(cell.plus(add)?);
        }
        Ok(())
    }

    /// A record may set what is a counter to others.
    fn note(&mut self, record: Record<'_>) {
        let Some((family, key, value)) = parts(record) else { return };
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

/// Where, and what is there then, if anything.
type Row<'a> = (FamilyId, &'a [u8], Option<&'a [u8]>);

/// Where a record belongs, and what is there then; jobs have no others.
fn parts(record: Record<'_>) -> Option<Row<'_>> {
    match record {
        Record::Put { family, key, value } => Some((family, key, Some(value))),
        Record::Delete { family, key } => Some((family, key, None)),
        Record::DeleteRange { .. } => None,
    }
}

#[cfg(test)]
mod tests;
