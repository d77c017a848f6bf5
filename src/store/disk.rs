//! A database in memory whose bytes a test controls.

use super::{Store, StoreOptions};
use crate::base::{Error, structure::shows, sync::Arc};
use crate::kv::{Family, Kv, batch::Batch, memory::MemoryKv};
use std::ops::Range;

/// A record: its family, its key and its value.
pub type DiskRecord = (String, Vec<u8>, Vec<u8>);

/// A database in memory whose records a test reads and writes. Stores open on it as on a disk.
#[derive(Clone, Default)]
pub struct Disk {
    kv: Arc<MemoryKv>,
}

impl Disk {
    /// Adds these records.
    ///
    /// # Panics
    /// If a family has no name, or a record is larger than a batch may be.
    pub fn put<'a>(&self, records: impl IntoIterator<Item = &'a DiskRecord>) {
        let mut batch = Batch::default();
        for (family, key, value) in records {
            let family = self.kv.family(family).expect("the memory is read").expect("the family has a name");
            batch.put(family, &[key], &[value]).expect("the record is short");
        }
        self.kv.write(&batch, true).expect("the memory takes writes");
    }

    /// Returns all records, ordered by family and key.
    ///
    /// # Panics
    /// Never: the memory can be read.
    #[must_use]
    pub fn records(&self) -> Vec<DiskRecord> {
        let mut records = Vec::new();
        for name in self.kv.family_names() {
            let id = self.kv.family(&name).expect("the memory is read").expect("it is there");
            for pair in self.kv.scan(&Family::new(&name, id), b"") {
                let (key, value) = pair.expect("the memory is read");
                records.push((name.to_string(), key, value));
            }
        }
        records.sort_unstable();
        records
    }

    /// Returns the names of all families.
    #[must_use]
    pub fn families(&self) -> Vec<String> {
        self.kv.family_names().iter().map(ToString::to_string).collect()
    }

    /// Opens the store on this disk. As in another process, no name of it is in use.
    ///
    /// # Errors
    /// The errors of [`StoreOptions::open`](crate::StoreOptions).
    pub fn open(&self, options: &StoreOptions) -> Result<Store, Error> {
        Store::on(self.kv.clone(), options, &"memory")
    }

    /// Makes the writes with these numbers fail, counted from 0 for the next one.
    pub fn fail(&self, writes: Range<u64>) {
        self.kv.fail(writes);
    }

    /// Makes all writes from this one on (0 is the next one) seem to work, but not reach the disk.
    pub fn freeze_at(&self, write: u64) {
        self.kv.freeze_at(write);
    }

    /// Returns the disk that a crash leaves: a separate one, with all that has reached this one.
    #[must_use]
    pub fn after_crash(&self) -> Self {
        Self { kv: Arc::new(self.kv.after_crash()) }
    }

    /// Returns the number of writes so far, failed ones included.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.kv.writes()
    }
}

shows!(Disk, of: families = of.families());
