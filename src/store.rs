//! The embedded store: progress and tables in one database, with one writer.

use crate::base::sync::{Arc, Mutex};
use crate::base::{Error, config::ConfigError, error::StoreError, structure::shows};
use crate::commit::{changes::Home, prefixes::Prefixes, writer::Writer};
use crate::kv::batch::{Batch, Records};
use crate::kv::{Family, Kv, LOGS, OURS, SYSTEM, TABLES, memory::MemoryKv};
use std::any::{Any, TypeId};
use std::collections::{HashMap, HashSet};
use std::fmt;
#[cfg(any(feature = "rocksdb", feature = "sqlite-system"))]
use std::path::Path;

mod copy;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod disk;
mod engine;
pub(crate) mod format;
mod gone;
mod ids;
pub(crate) mod keys;
#[cfg(any(test, feature = "rocksdb", feature = "sqlite-system"))]
mod locked;
mod moves;
#[cfg(any(feature = "rocksdb", feature = "sqlite-system"))]
mod opening;
mod options;
pub(crate) mod owned;
mod refresh;
mod register;
#[cfg(feature = "rocksdb")]
mod rocksdb;
#[cfg(test)]
pub(crate) mod samples;
#[cfg(feature = "sqlite-system")]
mod sqlite;
mod table;

pub use engine::Engine;
use format::Format;
pub(crate) use gone::Gone;
pub(crate) use ids::Ids;
pub use options::{Durability, StoreOptions};
pub use owned::Owned;
pub(crate) use register::WriteMoves;
pub use table::{Rows, Table};

/// An embedded database for the progress of any number of consumers, and tables of yours.
///
/// A clone is the same store. The database is closed when its last clone, table and consumer are
/// gone. To live in a database of your own instead, see `Store::attach`. To read the store of a
/// running application, see [`StoreOptions::read_only`]. [`tables`](Self::tables),
/// [`logs`](Self::logs) and [`consumers`](Self::consumers) list its content.
///
/// ```
/// # fn main() -> Result<(), waterline::Error> {
/// use waterline::{Consumer, MemoryJobs, Store};
///
/// let store = Store::in_memory();            // `Store::open("some/directory")` to keep it
/// let squares = store.table("squares")?;
/// let jobs: MemoryJobs<_> = (0..10u64).collect();
/// Consumer::builder(jobs, store.progress("squares"))
///     .stop_at(9)
///     .start({
///         let squares = squares.clone();
///         move |job| {
///             squares.put(job.index.to_be_bytes(), (job.payload * job.payload).to_be_bytes())?;
///             Ok(())
///         }
///     })?
///     .join()?;
/// assert_eq!(squares.get(9u64.to_be_bytes())?, Some(81u64.to_be_bytes().to_vec()));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
    synced: bool,
    /// True if this handle creates a missing progress, log or table.
    create: bool,
    /// True if nothing is written through this handle.
    read_only: bool,
    engine: Option<Engine>,
}

struct Inner {
    /// Dropped first: work that can go on in the next life ends then.
    open: Arc<()>,
    /// The writer. Declared, and so dropped, before `kv`: all is written when the database closes.
    writer: Writer,
    kv: Arc<dyn Kv>,
    system: Family,
    tables: Family,
    logs: Family,
    format: Format,
    names: Arc<Mutex<HashSet<String>>>,
    ids: Arc<Ids>,
    prefixes: Arc<Prefixes>,
    /// True if only other processes write, so what they have moved is read anew.
    follows: bool,
    /// Values that products keep while the store is open, one per type.
    extensions: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
    /// The place of a store in a user's database. The last field: a caller that attaches to the
    /// database again waits until the rest is gone.
    #[cfg(feature = "rocksdb")]
    _attached: Option<Box<dyn Any + Send + Sync>>,
}

impl Inner {
    fn new(kv: Arc<dyn Kv>, [system, tables, logs]: [Family; 3], format: Format) -> Self {
        let ids = Arc::new(Ids::new(kv.clone(), system.clone()));
        let writer = Writer::new(kv.clone());
        Self {
            open: Arc::default(),
            prefixes: writer.prefixes(),
            follows: false,
            writer,
            kv,
            system,
            tables,
            logs,
            format,
            names: Arc::default(),
            ids,
            extensions: Mutex::default(),
            #[cfg(feature = "rocksdb")]
            _attached: None,
        }
    }

    /// Loads the store on this key-value store, or creates one. An error names the place.
    fn on(kv: Arc<dyn Kv>, create: bool, place: &dyn fmt::Display) -> Result<Self, Error> {
        let family = |name: &str| family(&*kv, name, MISSING);
        let system = family(SYSTEM)?;
        // The format is read before other families are opened: a newer version may have others.
        let stored = format::read(&*kv, &system, create, place)?;
        for name in OURS {
            family(name)?;
        }
        let families = [system, family(TABLES)?, family(LOGS)?];
        let has_moved = stored.as_ref().is_some_and(|names| names.contains(register::IN_USE));
        let format = format::take_up(&*kv, &families[0], stored)?;
        let inner = Self::new(kv, families, format);
        if has_moved {
            register::load(&*inner.kv, &inner.system, &inner.prefixes)?;
            if gone::is_left(&*inner.kv, &inner.system) {
                gone::delete_behind(&inner.writer, &inner.system, &inner.open);
            }
        }
        Ok(inner)
    }

    /// Loads the store on this database, and writes nothing. Missing families count as empty.
    fn read_only_on(kv: Arc<dyn Kv>, place: &dyn fmt::Display) -> Result<Self, Error> {
        let family = |name: &str| {
            let not_found = || Error::NotFound { what: "store", name: place.to_string() };
            Ok::<_, Error>(Family::new(name, kv.family(name)?.ok_or_else(not_found)?))
        };
        let system = family(SYSTEM)?;
        let stored = format::read(&*kv, &system, false, place)?;
        let families = [system, family(TABLES)?, family(LOGS)?];
        let inner = Self { follows: true, ..Self::new(kv, families, Format::default()) };
        if stored.is_some_and(|names| names.contains(register::IN_USE)) {
            register::load(&*inner.kv, &inner.system, &inner.prefixes)?;
        }
        Ok(inner)
    }
}

impl Store {
    /// Opens the database in this directory, or creates it. Writes are [`Durability::Buffered`].
    ///
    /// A store has a version, and later versions of this library read the stores of all earlier
    /// ones. If a newer version has made the store, or has put something into it that this version
    /// would damage, opening is an [`Error::Format`] and changes nothing: see
    /// [`storage`](crate::storage).
    ///
    /// # Errors
    /// The errors of [`StoreOptions::open`].
    #[cfg(any(feature = "rocksdb", feature = "sqlite-system"))]
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::options().open(path)
    }

    /// Returns options to open a store with.
    pub fn options() -> StoreOptions {
        StoreOptions::default()
    }

    /// Creates a store in memory. It is like any other store, but its content is gone with its last
    /// clone. It needs neither RocksDB nor SQLite.
    #[must_use]
    pub fn in_memory() -> Self {
        let store = Self::on(Arc::new(MemoryKv::default()), &Self::options(), &"memory");
        store.unwrap_or_else(|error| unreachable!("memory refuses nothing: {error}"))
    }

    /// Returns the database below the store; `None` for a store in memory.
    ///
    /// ```
    /// assert_eq!(waterline::Store::in_memory().engine(), None);
    /// ```
    #[must_use]
    pub fn engine(&self) -> Option<Engine> {
        self.engine
    }

    /// Opens the store on this key-value store. An error names the place.
    pub(crate) fn on(kv: Arc<dyn Kv>, options: &StoreOptions, place: &dyn fmt::Display) -> Result<Self, Error> {
        let inner =
            if options.read_only { Inner::read_only_on(kv, place) } else { Inner::on(kv, options.create, place) };
        Ok(Self::of(inner?, options))
    }

    fn of(inner: impl Into<Arc<Inner>>, options: &StoreOptions) -> Self {
        let synced = options.durability == Durability::Synced;
        Self { inner: inner.into(), synced, create: options.create, read_only: options.read_only, engine: None }
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn with(&self, options: &StoreOptions) -> Self {
        Self { engine: self.engine, ..Self::of(self.inner.clone(), options) }
    }

    pub(crate) fn creates(&self) -> bool {
        self.create && !self.read_only
    }

    /// Returns an error if this handle may not write. Every call that writes checks this first.
    pub(crate) fn writable(&self) -> Result<(), Error> {
        if self.read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// Returns the error for a name under which nothing is stored.
    pub(crate) fn not_found<T>(&self, what: &'static str, name: &str) -> Result<T, Error> {
        Err(Error::NotFound { what, name: name.to_owned() })
    }

    pub(crate) fn kv(&self) -> &dyn Kv {
        &*self.inner.kv
    }

    /// The same for a thread, which drops it before the store is closed.
    pub(crate) fn shared_kv(&self) -> &Arc<dyn Kv> {
        &self.inner.kv
    }

    /// Returns the source of numbers that are unique in this database.
    pub(crate) fn ids(&self) -> &Arc<Ids> {
        &self.inner.ids
    }

    /// Notes in the store that this name is in use from now on, so that a program which does not
    /// know it refuses the store. A product calls this before it writes the first record that such
    /// a program would damage. Only the first call writes.
    pub(crate) fn note_in_use(&self, name: &'static str) -> Result<(), Error> {
        self.writable()?;
        self.inner.format.note_in_use(self.kv(), self.system(), name)
    }

    /// Returns a value that identifies this store among all stores.
    pub(crate) fn home(&self) -> Home {
        Home { address: Arc::as_ptr(&self.inner).addr(), takes_sql: self.kv().takes_sql() }
    }

    /// Returns the family of the format and of progress.
    pub(crate) fn system(&self) -> &Family {
        &self.inner.system
    }

    pub(crate) fn family(&self, name: &str) -> Result<Family, Error> {
        family(self.kv(), name, MISSING)
    }

    pub(crate) fn log_items(&self) -> &Family {
        &self.inner.logs
    }

    /// Returns the value of this type that a product keeps with the open store; the first call
    /// creates it. All handles of the store share it. The value must not keep the store open.
    pub(crate) fn extension<K: Any + Default + Send + Sync>(&self) -> Arc<K> {
        let mut extensions = self.inner.extensions.lock();
        let value = extensions.entry(TypeId::of::<K>()).or_insert_with(|| Arc::new(K::default()));
        Arc::clone(value).downcast().unwrap_or_else(|_| unreachable!("a value is kept under the id of its own type"))
    }

    /// True if writes through this handle survive a loss of power.
    pub(crate) fn is_synced(&self) -> bool {
        self.synced
    }

    pub(crate) fn writer(&self) -> &Writer {
        &self.inner.writer
    }

    /// Writes on this thread. The database itself groups concurrent writes.
    pub(crate) fn write_batch(&self, batch: &Batch) -> Result<(), StoreError> {
        self.inner.kv.write(batch, self.synced)
    }

    pub(crate) fn write_records(&self, records: &Records) -> Result<(), StoreError> {
        let mut batch = Batch::default();
        batch.append(records);
        self.write_batch(&batch)
    }

    /// Reserves a progress name until the guard is dropped.
    pub(crate) fn reserve(&self, name: &str) -> Result<NameGuard, Error> {
        if !self.inner.names.lock().insert(name.to_owned()) {
            return Err(Error::InUse { name: name.to_owned() });
        }
        Ok(NameGuard { names: self.inner.names.clone(), name: name.to_owned() })
    }
}

shows!(Store, of: synced = of.synced, create = of.create, read_only = of.read_only);

/// The error and the advice for a database that lacks a family of the store.
const MISSING: (&str, &str) = (
    "missing",
    "open it with the families of `Store::column_families()` and your own, and with `create_missing_column_families(true)`",
);

fn family(kv: &dyn Kv, name: &str, (fault, instead): (&'static str, &str)) -> Result<Family, Error> {
    let why = || format!("the database has no column family {name:?}: {instead}");
    let lacking = || ConfigError::Family { fault, name: name.to_owned(), why: why() };
    Ok(Family::new(name, kv.family(name)?.ok_or_else(lacking)?))
}

/// A progress name that is in use.
#[derive(Debug)]
pub(crate) struct NameGuard {
    names: Arc<Mutex<HashSet<String>>>,
    name: String,
}

impl Drop for NameGuard {
    fn drop(&mut self) {
        self.names.lock().remove(&self.name);
    }
}

#[cfg(test)]
mod tests;
