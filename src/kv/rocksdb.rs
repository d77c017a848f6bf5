//! The seam on RocksDB.

pub(crate) mod secondary;

use super::batch::{self, Batch, FamilyId};
use super::{Each, Family, KeyRange, Kv, OURS, Order, SYSTEM, Scan, key_below, prefix_end};
use crate::base::sync::{Arc, RwLock};
use crate::base::{Error, error::StoreError};
use crate::kv::place::{Place, no_store, opening};
use rocksdb::{
    ColumnFamilyDescriptor, DB, DBCompressionType, DBWithThreadMode, InfoLogger, IteratorMode, LogLevel, MultiThreaded,
    Options, ReadOptions, WriteBatch, WriteOptions,
};
use std::any::TypeId;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

/// The table files that are open at a time: half of the usual limit of a process. RocksDB would
/// open all, and each life of a process can leave a small file that no compaction ever merges.
// RocksDB splits all but ten of them among 64 shards, each of which has at least one.
const OPEN_FILES: i32 = if cfg!(test) { 74 } else { 512 };

pub(crate) struct RocksKv {
    db: Arc<DB>,
    /// After the database, which must be closed before its directory is free again.
    place: Option<Place>,
    /// The families that were ever looked up, if the owner of the database may drop some.
    watched: Option<RwLock<HashMap<FamilyId, Arc<str>>>>,
    /// True if nothing is written. Then a family of ours that the database lacks counts as empty.
    read_only: bool,
}

/// The number of a family of ours that the database lacks.
const ABSENT: FamilyId = FamilyId(u32::MAX);

impl RocksKv {
    /// Opens the database. `create` makes it if there is none; without `create` nothing is made.
    pub(crate) fn open(path: &Path, create: bool) -> Result<Self, Error> {
        Self::open_in(Place::directory(path, create)?, path, create)
    }

    /// The same for a database that was just found locked, and may stay locked for days.
    pub(crate) fn open_again(path: &Path, create: bool) -> Result<Self, Error> {
        let place = Place::directory(path, create)?;
        if is_locked(path) {
            return Err(Error::Locked { path: path.to_owned() });
        }
        Self::open_in(place, path, create)
    }

    fn open_in(mut place: Place, path: &Path, create: bool) -> Result<Self, Error> {
        // RocksDB would leave files in a directory in which it finds no database.
        if !create && !has_database(path)? {
            return Err(no_store(path));
        }
        let mut options = Options::default();
        options.create_if_missing(create);
        // RocksDB otherwise keeps a thousand old info logs, one per opening.
        options.set_keep_log_file_num(4);
        options.set_max_open_files(OPEN_FILES);
        // A write-ahead log is kept until every family that wrote to it is flushed, and some of
        // ours rarely write. RocksDB would let the logs grow to a gigabyte, which is read again
        // when the database is opened after a crash.
        options.set_max_total_wal_size(128 << 20);
        // RocksDB requires that every existing family is opened. No other one is created here,
        // since a newer version of this library may have made the store.
        let existing = DB::list_cf(&options, path);
        if !create && existing.as_ref().is_ok_and(|names| !names.iter().any(|name| name == SYSTEM)) {
            return Err(no_store(path));
        }
        let families = existing.unwrap_or_else(|_| {
            // Without a database there is no list, nor for a moment while another process closes
            // one. Then RocksDB reports below what is wrong.
            options.create_missing_column_families(create);
            OURS.map(str::to_owned).into()
        });
        let descriptors = families.into_iter().map(|name| ColumnFamilyDescriptor::new(name, family_options()));
        match DB::open_cf_descriptors(&options, path, descriptors) {
            Ok(db) => {
                place.opened = true;
                Ok(Self { db: Arc::new(db), place: Some(place), watched: None, read_only: false })
            }
            Err(e) if is_lock_held(&e) => Err(Error::Locked { path: path.to_owned() }),
            Err(e) => Err(failed(opening(path))(e).into()),
        }
    }

    /// Creates the families of a store that the database lacks. The database is not shared yet.
    pub(crate) fn make_families(&mut self) -> Result<(), StoreError> {
        let doing = "make its column families";
        let shared = || StoreError::new(doing.to_owned(), "the database is shared".into());
        let db = Arc::get_mut(&mut self.db).ok_or_else(shared)?;
        for name in OURS {
            if db.cf_handle(name).is_none() {
                db.create_cf(name, &family_options()).map_err(failed(doing))?;
            }
        }
        Ok(())
    }

    /// Uses a database that the user owns and goes on using.
    pub(crate) fn shared(db: Arc<DB>) -> Self {
        // In the other mode, dropping a family takes `&mut`, which a shared database never gives.
        if TypeId::of::<DB>() == TypeId::of::<DBWithThreadMode<MultiThreaded>>() {
            Self::watched(db)
        } else {
            Self { db, place: None, watched: None, read_only: false }
        }
    }

    /// Uses a database that is only read: the user's own one, or a secondary.
    pub(crate) fn read_only(db: Arc<DB>) -> Self {
        Self { db, place: None, watched: None, read_only: true }
    }

    /// True if the database lacks this family of ours, and need not have it.
    fn is_absent(&self, name: &str) -> bool {
        self.read_only && OURS.contains(&name) && name != SYSTEM && self.db.cf_handle(name).is_none()
    }

    /// Uses a database whose families may be dropped at any time.
    fn watched(db: Arc<DB>) -> Self {
        Self { db, place: None, watched: Some(RwLock::default()), read_only: false }
    }

    /// The number that this family has now. RocksDB shows it only in a batch.
    fn id(&self, name: &str) -> Option<FamilyId> {
        let family = self.db.cf_handle(name)?;
        let mut probe = WriteBatch::default();
        probe.delete_cf(&family, []);
        batch::records(probe.data()).next().map(|record| record.family())
    }

    /// Refuses a batch for a family that was dropped meanwhile. RocksDB would refuse it too, but
    /// only once it is in the log, and would then fail all writes until it is reopened.
    fn check_families(&self, batch: &Batch) -> Result<(), StoreError> {
        let Some(known) = &self.watched else { return Ok(()) };
        let known = known.read();
        let mut checked: Option<FamilyId> = None;
        for id in batch.records().map(|record| record.family()) {
            // Records of one family mostly follow each other.
            if checked == Some(id) {
                continue;
            }
            let name = known.get(&id).map_or("", |name| name);
            if self.id(name) != Some(id) {
                let source = format!("the family {name:?} was dropped").into();
                return Err(StoreError::new("find its column family".to_owned(), source));
            }
            checked = Some(id);
        }
        Ok(())
    }
}

/// True if there is a database: RocksDB's `CURRENT` names the file that lists all others.
fn has_database(path: &Path) -> Result<bool, StoreError> {
    path.join("CURRENT").try_exists().map_err(|e| StoreError::new(opening(path), e.into()))
}

/// True if this process or another one holds the lock. RocksDB has no error code for that.
fn is_lock_held(error: &rocksdb::Error) -> bool {
    let text = error.to_string();
    text.contains("lock hold by current process") || text.contains("While lock file")
}

/// True if another process has the database open. Trying to open it would leave an info log there.
///
/// RocksDB takes the lock first. If it gets it, it refuses to open only some of the families.
fn is_locked(path: &Path) -> bool {
    let mut options = Options::default();
    options.set_info_logger(InfoLogger::new_callback_logger(LogLevel::Fatal, |_, _| {}));
    DB::open(&options, path).is_err_and(|e| is_lock_held(&e))
}

/// Our families, for a database that the user opens.
pub(crate) fn descriptors() -> Vec<ColumnFamilyDescriptor> {
    OURS.map(|name| ColumnFamilyDescriptor::new(name, family_options())).into()
}

fn family_options() -> Options {
    let mut options = Options::default();
    options.set_compression_type(DBCompressionType::Lz4);
    // Each opening after a crash adds a file to level 0. RocksDB slows writes down from 20 files
    // on, which is enough. From 36 on it would stop them until a compaction is done, and a process
    // that is killed every second may never live that long.
    options.set_level_zero_stop_writes_trigger(1_000);
    options
}

fn failed(doing: impl Into<String>) -> impl FnOnce(rocksdb::Error) -> StoreError {
    move |e| StoreError::new(doing.into(), Box::new(e))
}

/// Looks a family up by name each time: a kept reference would require one threading mode of `DB`.
macro_rules! family {
    ($db:expr, $name:expr) => {
        $db.cf_handle($name).ok_or_else(|| {
            let why = format!("the family {:?} was dropped", $name);
            StoreError::new("find its column family".to_owned(), why.into())
        })
    };
}

impl Kv for RocksKv {
    fn closes(&self) {
        if let Some(place) = &self.place {
            place.closes();
        }
    }

    fn family(&self, name: &str) -> Result<Option<FamilyId>, StoreError> {
        let id = self.id(name);
        if let (Some(id), Some(known)) = (id, &self.watched) {
            known.write().insert(id, name.into());
        }
        Ok(id.or_else(|| self.is_absent(name).then_some(ABSENT)))
    }

    fn get(&self, family: &Family, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        if self.is_absent(&family.name) {
            return Ok(None);
        }
        self.db.get_cf(&family!(self.db, &family.name)?, key).map_err(failed("read"))
    }

    fn multi_get(&self, family: &Family, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        if self.is_absent(&family.name) {
            return Ok(vec![None; keys.len()]);
        }
        let family = family!(self.db, &family.name)?;
        let values = self.db.batched_multi_get_cf(&family, keys, false);
        let value = |value: Result<Option<rocksdb::DBPinnableSlice<'_>>, _>| Ok(value?.map(|value| value.to_vec()));
        values.into_iter().map(value).collect::<Result<_, _>>().map_err(failed("read"))
    }

    fn rows(&self, family: &Family, keys: KeyRange, order: Order) -> Scan<'_> {
        if keys.is_empty() || self.is_absent(&family.name) {
            return Box::new(std::iter::empty());
        }
        let family = match family!(self.db, &family.name) {
            Ok(family) => family,
            Err(e) => return Box::new(std::iter::once(Err(e))),
        };
        let mut options = ReadOptions::default();
        let mode = match order {
            Order::Ascending => IteratorMode::From(&keys.from, rocksdb::Direction::Forward),
            Order::Descending => {
                options.set_iterate_lower_bound(keys.from.as_slice());
                IteratorMode::End
            }
        };
        if let Some(end) = &keys.to {
            options.set_iterate_upper_bound(end.as_slice());
        }
        let pairs = self.db.iterator_cf_opt(&family, options, mode);
        Box::new(pairs.map(|pair| {
            let (key, value) = pair.map_err(failed("read"))?;
            Ok((key.into_vec(), value.into_vec()))
        }))
    }

    fn range(&self, family: &Family, keys: Range<&[u8]>, each: Each<'_>) -> Result<(), StoreError> {
        if self.is_absent(&family.name) {
            return Ok(());
        }
        let family = family!(self.db, &family.name)?;
        let mut options = ReadOptions::default();
        options.set_iterate_upper_bound(keys.end);
        // A reader in order does not come back: rows that are read repeatedly stay cached.
        options.fill_cache(false);
        let mut pairs = self.db.raw_iterator_cf_opt(&family, options);
        pairs.seek(keys.start);
        while let Some((key, value)) = pairs.item() {
            if !each(key, value) {
                return Ok(());
            }
            pairs.next();
        }
        pairs.status().map_err(failed("read"))
    }

    fn last(&self, family: &Family, prefix: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        if self.is_absent(&family.name) {
            return Ok(None);
        }
        let family = family!(self.db, &family.name)?;
        let mut options = ReadOptions::default();
        options.set_iterate_lower_bound(prefix);
        if let Some(end) = prefix_end(prefix) {
            options.set_iterate_upper_bound(end);
        }
        let pair = self.db.iterator_cf_opt(&family, options, IteratorMode::End).next();
        Ok(pair.transpose().map_err(failed("read"))?.map(|(key, _)| key.into_vec()))
    }

    fn reclaim(&self, family: &Family, keys: Range<&[u8]>) -> Result<(), StoreError> {
        // Files are deleted at once. Sync first, or a power loss could undo the deletes.
        self.db.flush_wal(true).map_err(failed("sync"))?;
        let family = family!(self.db, &family.name)?;
        // RocksDB includes the end: it would delete a file that ends with the first key to keep.
        let Some(last) = key_below(keys.end).filter(|last| keys.start <= last.as_slice()) else { return Ok(()) };
        // Deletes whole files only, unread; the rest goes with the next compactions.
        self.db.delete_file_in_range_cf(&family, keys.start, &last[..]).map_err(failed("give back disk space"))
    }

    fn write(&self, batch: &Batch, synced: bool) -> Result<(), StoreError> {
        if self.read_only {
            return Err(StoreError::new("write".to_owned(), Error::ReadOnly.into()));
        }
        let bytes = batch.checked()?;
        self.check_families(batch)?;
        let mut options = WriteOptions::default();
        options.set_sync(synced);
        self.db.write_opt(WriteBatch::from_data(bytes), &options).map_err(failed("write"))
    }

    /// Lets a secondary catch up. Any other database always shows the latest writes.
    fn refresh(&self) -> Result<(), Error> {
        match self.db.try_catch_up_with_primary() {
            Err(e) if e.kind() == rocksdb::ErrorKind::NotSupported => Ok(()),
            caught_up => Ok(caught_up.map_err(failed("catch up with the application's database"))?),
        }
    }
}

#[cfg(test)]
mod tests;
