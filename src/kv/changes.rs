//! What jobs want changed, until it is written: records as bytes, and what is to be added to counters.

use super::Family;
use super::batch::{FamilyId, Records};
use crate::error::StoreError;
use crate::log::state::LogState;
use crate::sync::Arc;

/// What one job, or many in order, want changed.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    records: Records,
    adds: Vec<Add>,
    pushes: Vec<Push>,
    /// What the adds and pushes take.
    added: usize,
}

/// An item for a log. It gets its index when it is written.
#[derive(Clone, Debug)]
struct Push {
    log: Arc<LogState>,
    family: FamilyId,
    value: Vec<u8>,
}

/// An addition to a counter. It is made when it is written, since only then is it known what to add to.
#[derive(Clone, Debug)]
pub(crate) struct Add {
    /// How many records go before it.
    pub(crate) after: u32,
    pub(crate) family: Family,
    pub(crate) key: Vec<u8>,
    pub(crate) by: i64,
    /// The table's name, and how much of the key it takes, to say which one it is should it be none.
    pub(crate) table: Arc<str>,
    pub(crate) prefix: usize,
}

impl Changes {
    pub(crate) fn put(&mut self, family: FamilyId, key: &[&[u8]], value: &[u8]) -> Result<(), StoreError> {
        self.records.put(family, key, &[value])
    }

    pub(crate) fn delete(&mut self, family: FamilyId, key: &[&[u8]]) -> Result<(), StoreError> {
        self.records.delete(family, key)
    }

    pub(crate) fn add(&mut self, add: Add) {
        self.added += size_of::<Add>() + add.key.len();
        self.adds.push(Add { after: self.records.count(), ..add });
    }

    pub(crate) fn push(&mut self, log: Arc<LogState>, family: FamilyId, value: Vec<u8>) {
        self.added += size_of::<Push>() + value.len();
        self.pushes.push(Push { log, family, value });
    }

    /// In bytes of memory, about.
    pub(crate) fn len(&self) -> usize {
        self.records.len() + self.added
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.adds.is_empty() && self.pushes.is_empty()
    }

    pub(crate) fn records(&self) -> &Records {
        &self.records
    }

    pub(crate) fn adds(&self) -> &[Add] {
        &self.adds
    }

    pub(crate) fn pushes(&self) -> impl Iterator<Item = (&Arc<LogState>, FamilyId, &[u8])> {
        self.pushes.iter().map(|push| (&push.log, push.family, &push.value[..]))
    }

    /// Moves all of these behind those that are there.
    pub(crate) fn append(&mut self, more: &mut Changes) {
        let before = self.records.count();
        self.adds.extend(more.adds.drain(..).map(|add| Add { after: before + add.after, ..add }));
        self.pushes.append(&mut more.pushes);
        self.added += std::mem::take(&mut more.added);
        self.records.append(&more.records);
        more.records.clear();
    }

    /// Empties it, and keeps its memory.
    pub(crate) fn clear(&mut self) {
        self.records.clear();
        self.adds.clear();
        self.pushes.clear();
        self.added = 0;
    }
}
