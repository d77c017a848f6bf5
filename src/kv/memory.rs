//! The seam in memory: for streams that need not survive, and for tests, which make it fail.

use super::batch::{Batch, FamilyId, RowChange};
use super::{Deletion, Each, Family, KeyRange, Kv, Order, Scan, prefix_end};
use crate::base::error::StoreError;
use crate::base::sync::{Arc, Mutex};
use std::collections::BTreeMap;
use std::ops::{Bound, Range};

type Tree = BTreeMap<Vec<u8>, Vec<u8>>;

/// Everything that is stored: the families by their numbers. The first write after a scan or a
/// freeze has taken hold of a family copies it.
#[derive(Clone, Debug)]
struct Image {
    families: Vec<(Arc<str>, Arc<Tree>)>,
}

impl Image {
    /// Returns the number of this family, and creates it if there is none.
    fn family(&mut self, name: &str) -> FamilyId {
        let known = self.families.iter().position(|(other, _)| **other == *name);
        let at = known.unwrap_or_else(|| {
            self.families.push((name.into(), Arc::default()));
            self.families.len() - 1
        });
        FamilyId(at as u32)
    }

    fn rows(&self, family: FamilyId) -> Result<&Arc<Tree>, StoreError> {
        self.families.get(family.0 as usize).map(|(_, rows)| rows).ok_or_else(|| no_family("read", family))
    }

    /// Refuses what RocksDB refuses, before anything is changed.
    fn check(&self, batch: &Batch) -> Result<(), StoreError> {
        let mut count = 0;
        for record in batch.records() {
            count += 1;
            if record.family().0 as usize >= self.families.len() {
                return Err(no_family("write", record.family()));
            }
        }
        match batch.checked() {
            Ok(_) if count != batch.count() => {
                Err(StoreError::new("write".to_owned(), "the batch has a wrong count".into()))
            }
            checked => checked.map(drop),
        }
    }

    fn apply(&mut self, batch: &Batch) {
        for record in batch.records() {
            let rows = Arc::make_mut(&mut self.families[record.family().0 as usize].1);
            match record {
                RowChange::Put { key, value, .. } => rows.insert(key.to_vec(), value.to_vec()),
                RowChange::Delete { key, .. } => rows.remove(key),
                RowChange::DeleteRange { from, to, .. } => {
                    let doomed: Vec<Vec<u8>> =
                        rows.range(from.to_vec()..to.to_vec()).map(|(key, _)| key.clone()).collect();
                    doomed.iter().for_each(|key| drop(rows.remove(key)));
                    None
                }
            };
        }
    }
}

impl Default for Image {
    /// As in RocksDB, the default family always exists and has the number 0.
    fn default() -> Self {
        Self { families: vec![("default".into(), Arc::default())] }
    }
}

fn no_family(doing: &str, family: FamilyId) -> StoreError {
    StoreError::new(doing.to_owned(), format!("there is no column family {}", family.0).into())
}

#[derive(Debug, Default)]
#[allow(unreachable_pub, reason = "the seam shows it to tests")]
pub struct MemoryKv {
    image: Mutex<Image>,
    #[cfg(any(test, feature = "testing"))]
    faults: Mutex<WriteFaults>,
}

impl Kv for MemoryKv {
    /// A family is created on its first look-up: there is no other process that could create it.
    fn family(&self, name: &str) -> Result<Option<FamilyId>, StoreError> {
        Ok((!name.is_empty()).then(|| self.image.lock().family(name)))
    }

    fn get(&self, family: &Family, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.image.lock().rows(family.id)?.get(key).cloned())
    }

    fn multi_get(&self, family: &Family, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let image = self.image.lock();
        let rows = image.rows(family.id)?;
        Ok(keys.iter().map(|key| rows.get(key).cloned()).collect())
    }

    fn rows(&self, family: &Family, keys: KeyRange, order: Order) -> Scan<'_> {
        let rows = match self.image.lock().rows(family.id) {
            Ok(rows) => rows.clone(),
            Err(e) => return Box::new(std::iter::once(Err(e))),
        };
        // The rest of the range, which each pair shortens at one end.
        let mut from = Bound::Included(keys.from.clone());
        let mut to = keys.to.clone().map_or(Bound::Unbounded, Bound::Excluded);
        let mut is_over = keys.is_empty();
        Box::new(std::iter::from_fn(move || {
            if is_over {
                return None;
            }
            let mut rest = rows.range::<[u8], _>((from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice)));
            let next = if order == Order::Ascending { rest.next() } else { rest.next_back() };
            is_over = rest.next().is_none();
            let (key, value) = next?;
            let end = if order == Order::Ascending { &mut from } else { &mut to };
            *end = Bound::Excluded(key.clone());
            Some(Ok((key.clone(), value.clone())))
        }))
    }

    fn range(&self, family: &Family, keys: Range<&[u8]>, each: Each<'_>) -> Result<(), StoreError> {
        let image = self.image.lock();
        let bounds = (Bound::Included(keys.start), Bound::Excluded(keys.end));
        if keys.start < keys.end {
            let mut rows = image.rows(family.id)?.range::<[u8], _>(bounds);
            rows.all(|(key, value)| each(key, value));
        }
        Ok(())
    }

    fn last(&self, family: &Family, prefix: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let image = self.image.lock();
        let end = prefix_end(prefix);
        let bounds = (Bound::Included(prefix), end.as_deref().map_or(Bound::Unbounded, Bound::Excluded));
        Ok(image.rows(family.id)?.range::<[u8], _>(bounds).next_back().map(|(key, _)| key.clone()))
    }

    fn deletion(&self) -> Deletion {
        // Each deleted row costs some 100 ns, under the lock of the whole database.
        Deletion { rows: 100_000, ..Deletion::default() }
    }

    fn reclaim(&self, family: &Family, keys: Range<&[u8]>) -> Result<(), StoreError> {
        #[cfg(any(test, feature = "testing"))]
        {
            let image = self.image.lock();
            let mut faults = self.faults.lock();
            faults.after_write(&image, true);
            faults.reclaimed(family.id, keys);
        }
        #[cfg(not(any(test, feature = "testing")))]
        let _memory_knows_no_disk = (family, keys);
        Ok(())
    }

    fn write(&self, batch: &Batch, synced: bool) -> Result<(), StoreError> {
        let mut image = self.image.lock();
        #[cfg(any(test, feature = "testing"))]
        self.faults.lock().before_write(&image)?;
        image.check(batch)?;
        image.apply(batch);
        #[cfg(any(test, feature = "testing"))]
        self.faults.lock().after_write(&image, synced);
        #[cfg(not(any(test, feature = "testing")))]
        let _memory_knows_no_disk = synced;
        Ok(())
    }
}

/// The faults to inject, counted in writes.
#[cfg(any(test, feature = "testing"))]
#[derive(Debug, Default)]
struct WriteFaults {
    writes: u64,
    failing: Range<u64>,
    freeze_at: Option<u64>,
    frozen: Option<Image>,
    /// The state that has reached the disk, not only the operating system.
    durable: Image,
}

#[cfg(any(test, feature = "testing"))]
impl WriteFaults {
    fn before_write(&mut self, image: &Image) -> Result<(), StoreError> {
        let number = self.writes;
        self.writes += 1;
        // A disk that has stopped stays so, even if it is to stop again later.
        if self.frozen.is_none() && self.freeze_at == Some(number) {
            self.frozen = Some(image.clone());
        }
        if self.failing.contains(&number) {
            return Err(StoreError::new("write".to_owned(), "no space left on device".into()));
        }
        Ok(())
    }

    /// A flush also makes earlier writes durable.
    fn after_write(&mut self, image: &Image, synced: bool) {
        if synced && self.frozen.is_none() {
            self.durable = image.clone();
        }
    }

    /// Files are gone at once, even if the writes that deleted their rows are not yet durable.
    fn reclaimed(&mut self, family: FamilyId, keys: Range<&[u8]>) {
        if self.frozen.is_none()
            && let Some((_, rows)) = self.durable.families.get_mut(family.0 as usize)
        {
            Arc::make_mut(rows).retain(|key, _| !keys.contains(&key.as_slice()));
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl MemoryKv {
    /// Creates the families that every store has, and returns three: system, tables and logs.
    pub(crate) fn families(&self) -> [Family; 3] {
        let mut image = self.image.lock();
        let [system, tables, logs, ..] = super::OURS.map(|name| Family::new(name, image.family(name)));
        [system, tables, logs]
    }

    /// Makes the writes with these numbers, counted from now, fail.
    pub fn fail(&self, writes: Range<u64>) {
        let mut faults = self.faults.lock();
        let now = faults.writes;
        faults.failing = writes.start.saturating_add(now)..writes.end.saturating_add(now);
    }

    /// Makes this write, counted from now, and all later ones seem to work but not reach the disk.
    pub(crate) fn freeze_at(&self, write: u64) {
        let mut faults = self.faults.lock();
        faults.freeze_at = Some(faults.writes + write);
    }

    /// Returns what a crash leaves: a new store with everything that has reached the disk.
    pub(crate) fn after_crash(&self) -> MemoryKv {
        // In the lock order of a write, which may be in progress.
        let image = self.image.lock();
        let left = self.faults.lock().frozen.clone().unwrap_or_else(|| image.clone());
        Self::restarted(left)
    }

    /// Returns what a loss of power leaves at worst: a new store with everything up to the last
    /// synced write that has reached the disk.
    pub(crate) fn after_power_loss(&self) -> MemoryKv {
        Self::restarted(self.faults.lock().durable.clone())
    }

    pub(crate) fn family_names(&self) -> Vec<Arc<str>> {
        self.image.lock().families.iter().map(|(name, _)| name.clone()).collect()
    }

    fn restarted(image: Image) -> Self {
        let faults = WriteFaults { durable: image.clone(), ..WriteFaults::default() };
        Self { image: Mutex::new(image), faults: Mutex::new(faults) }
    }

    pub(crate) fn writes(&self) -> u64 {
        self.faults.lock().writes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(kv: &MemoryKv, key: &str, synced: bool) {
        let mut batch = Batch::default();
        batch.put(kv.families()[1].id, &[key.as_bytes()], &[b""]).unwrap();
        kv.write(&batch, synced).unwrap();
    }

    fn keys(kv: &MemoryKv) -> String {
        let [_, tables, _] = kv.families();
        kv.scan(&tables, b"").map(|pair| String::from_utf8(pair.unwrap().0).unwrap()).collect()
    }

    #[test]
    fn power_loss_takes_only_unsynced_writes() {
        let kv = MemoryKv::default();
        assert_eq!(keys(&kv.after_power_loss()), "");
        write(&kv, "a", false);
        assert_eq!((keys(&kv.after_power_loss()), keys(&kv.after_crash())), (String::new(), "a".to_owned()));
        write(&kv, "b", true);
        write(&kv, "c", false);
        assert_eq!((keys(&kv.after_power_loss()), keys(&kv.after_crash())), ("ab".to_owned(), "abc".to_owned()));
        assert_eq!(keys(&kv.after_crash().after_power_loss()), "abc", "what a crash left is on the disk");
        kv.freeze_at(1);
        write(&kv, "d", false);
        write(&kv, "e", true);
        let left = ("ab".to_owned(), "abcd".to_owned());
        assert_eq!((keys(&kv.after_power_loss()), keys(&kv.after_crash())), left);
        // The disk has stopped already.
        kv.freeze_at(0);
        write(&kv, "f", true);
        assert_eq!((keys(&kv.after_power_loss()), keys(&kv.after_crash())), left);
    }

    #[test]
    fn a_crash_may_come_during_a_write() {
        let kv = MemoryKv::default();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (0..10_000).for_each(|_| write(&kv, "a", false)));
            while !writer.is_finished() {
                assert!(["", "a"].contains(&&*keys(&kv.after_crash())));
            }
        });
    }

    #[test]
    fn a_batch_for_a_missing_family_changes_nothing() {
        let kv = MemoryKv::default();
        let [_, tables, _] = kv.families();
        let mut batch = Batch::default();
        batch.put(tables.id, &[b"k"], &[b"v"]).unwrap();
        batch.put(FamilyId(9), &[b"k"], &[b"v"]).unwrap();
        assert!(kv.write(&batch, false).is_err());
        assert_eq!(kv.get(&tables, b"k").unwrap(), None);
        let nowhere = Family::new("nowhere", FamilyId(9));
        assert!(kv.get(&nowhere, b"k").is_err() && kv.scan(&nowhere, b"").next().unwrap().is_err());
    }
}
