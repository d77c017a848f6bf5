//! The seam on RocksDB: one column family for each space.

use super::{Kv, Op, Scan, Space, prefix_end};
use crate::error::{Error, StoreError};
use rocksdb::{
    ColumnFamilyDescriptor, DB, DBCompressionType, IteratorMode, Options, ReadOptions, WriteBatch, WriteOptions,
};
use std::collections::BTreeSet;
use std::path::Path;

pub(crate) struct RocksKv {
    db: DB,
}

impl RocksKv {
    /// Opens the database, and makes it if there is none.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        // RocksDB keeps a thousand old text logs otherwise, one of each opening.
        options.set_keep_log_file_num(4);
        let ours = Space::ALL.iter().map(|space| space.family().to_owned());
        // RocksDB wants every family opened that exists; a directory without a database has none.
        let existing = DB::list_cf(&options, path).unwrap_or_default();
        let families: BTreeSet<String> = ours.chain(existing).collect();
        let descriptors = families.into_iter().map(|name| ColumnFamilyDescriptor::new(name, family_options()));
        match DB::open_cf_descriptors(&options, path, descriptors) {
            Ok(db) => Ok(Self { db }),
            Err(e) if is_lock_held(&e) => Err(Error::Locked { path: path.to_owned() }),
            Err(e) => Err(failed(format!("open the database at {}", path.display()))(e).into()),
        }
    }
}

/// RocksDB has no kind of its own for this: these are its words for a lock that this process holds, or another one.
fn is_lock_held(error: &rocksdb::Error) -> bool {
    let text = error.to_string();
    text.contains("lock hold by current process") || text.contains("While lock file")
}

fn family_options() -> Options {
    let mut options = Options::default();
    options.set_compression_type(DBCompressionType::Lz4);
    options
}

fn failed(doing: impl Into<String>) -> impl FnOnce(rocksdb::Error) -> StoreError {
    move |e| StoreError { doing: doing.into(), source: Box::new(e) }
}

/// Looks a family up by name, each time: a held reference would tie us to one threading mode of the user's `DB` type.
macro_rules! family {
    ($db:expr, $space:expr) => {
        $db.cf_handle($space.family()).ok_or_else(|| StoreError {
            doing: "find its column family".to_owned(),
            source: format!("the family {:?} was dropped", $space.family()).into(),
        })
    };
}

impl Kv for RocksKv {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.db.get_cf(&family!(self.db, space)?, key).map_err(failed("read"))
    }

    fn scan(&self, space: Space, prefix: &[u8]) -> Scan<'_> {
        let family = match family!(self.db, space) {
            Ok(family) => family,
            Err(e) => return Box::new(std::iter::once(Err(e))),
        };
        let mut options = ReadOptions::default();
        if let Some(end) = prefix_end(prefix) {
            options.set_iterate_upper_bound(end);
        }
        let from = IteratorMode::From(prefix, rocksdb::Direction::Forward);
        let pairs = self.db.iterator_cf_opt(&family, options, from);
        Box::new(pairs.map(|pair| {
            let (key, value) = pair.map_err(failed("read"))?;
            Ok((key.into_vec(), value.into_vec()))
        }))
    }

    fn write(&self, batch: &[Op], synced: bool) -> Result<(), StoreError> {
        let mut writes = WriteBatch::default();
        for op in batch {
            match op {
                Op::Put { space, key, value } => writes.put_cf(&family!(self.db, space)?, key, value),
                Op::Delete { space, key } => writes.delete_cf(&family!(self.db, space)?, key),
            }
        }
        let mut options = WriteOptions::default();
        options.set_sync(synced);
        self.db.write_opt(writes, &options).map_err(failed("write"))
    }
}
