//! The seam on memory: for streams that need not survive, and for tests, which make it fail.

use super::{Kv, Op, Pair, Scan, Space};
use crate::error::StoreError;
use crate::sync::{Arc, Mutex};
use std::collections::BTreeMap;
use std::ops::Bound;

/// Everything that is stored. A space is copied on the first write after a scan or a freeze took hold of it.
#[derive(Clone, Debug, Default)]
struct Image {
    spaces: [Arc<BTreeMap<Vec<u8>, Vec<u8>>>; Space::ALL.len()],
}

#[derive(Debug, Default)]
pub(crate) struct MemoryKv {
    image: Mutex<Image>,
    #[cfg(any(test, feature = "testing"))]
    faults: Mutex<Faults>,
}

impl Kv for MemoryKv {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.image.lock().spaces[space as usize].get(key).cloned())
    }

    fn scan(&self, space: Space, prefix: &[u8]) -> Scan<'_> {
        let rows = self.image.lock().spaces[space as usize].clone();
        let prefix = prefix.to_vec();
        let mut last: Option<Vec<u8>> = None;
        Box::new(std::iter::from_fn(move || {
            let from = last.as_ref().map_or(Bound::Included(&prefix), Bound::Excluded);
            let (key, value) = rows.range::<Vec<u8>, _>((from, Bound::Unbounded)).next()?;
            let pair: Pair = (key.clone(), value.clone());
            last = Some(key.clone());
            key.starts_with(&prefix).then_some(Ok(pair))
        }))
    }

    fn write(&self, batch: &[Op], _synced: bool) -> Result<(), StoreError> {
        let mut image = self.image.lock();
        #[cfg(any(test, feature = "testing"))]
        self.faults.lock().before_write(&image)?;
        for op in batch.iter().cloned() {
            match op {
                Op::Put { space, key, value } => Arc::make_mut(&mut image.spaces[space as usize]).insert(key, value),
                Op::Delete { space, key } => Arc::make_mut(&mut image.spaces[space as usize]).remove(&key),
            };
        }
        Ok(())
    }
}

/// What goes wrong, and when, counted in writes.
#[cfg(any(test, feature = "testing"))]
#[derive(Debug, Default)]
struct Faults {
    writes: u64,
    failing: std::ops::Range<u64>,
    freeze_at: Option<u64>,
    frozen: Option<Image>,
}

#[cfg(any(test, feature = "testing"))]
impl Faults {
    fn before_write(&mut self, image: &Image) -> Result<(), StoreError> {
        let number = self.writes;
        self.writes += 1;
        if self.freeze_at == Some(number) {
            self.frozen = Some(image.clone());
        }
        if self.failing.contains(&number) {
            return Err(StoreError { doing: "write".to_owned(), source: "no space left on device".into() });
        }
        Ok(())
    }
}

#[cfg(any(test, feature = "testing"))]
impl MemoryKv {
    /// The writes with these numbers, counted from now, fail.
    pub(crate) fn fail(&self, writes: std::ops::Range<u64>) {
        let mut faults = self.faults.lock();
        let now = faults.writes;
        faults.failing = writes.start.saturating_add(now)..writes.end.saturating_add(now);
    }

    /// The write with this number, counted from now, and all later ones, seem to work but do not reach the disk.
    pub(crate) fn freeze_at(&self, write: u64) {
        let mut faults = self.faults.lock();
        faults.freeze_at = Some(faults.writes + write);
    }

    /// What a crash leaves: a new store with what has reached the disk.
    pub(crate) fn after_crash(&self) -> MemoryKv {
        let image = self.faults.lock().frozen.clone().unwrap_or_else(|| self.image.lock().clone());
        MemoryKv { image: Mutex::new(image), faults: Mutex::default() }
    }

    pub(crate) fn writes(&self) -> u64 {
        self.faults.lock().writes
    }
}
