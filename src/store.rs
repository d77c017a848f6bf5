//! The embedded store: progress and tables in one database, with one writer.

use crate::config::{ConfigError, check_name};
use crate::error::{Error, StoreError};
use crate::kv::memory::MemoryKv;
use crate::kv::{Kv, Op, Scan, Space};
use crate::sync::{Arc, Mutex};
use crate::writer::Writer;
use std::collections::HashSet;
use std::fmt;
#[cfg(feature = "rocksdb")]
use std::path::Path;

/// The layout of keys and values that this program reads and writes; see [`design`](crate::design).
#[cfg(any(test, feature = "rocksdb", feature = "testing"))]
pub(crate) const FORMAT: u8 = 1;
#[cfg(any(test, feature = "rocksdb", feature = "testing"))]
pub(crate) const FORMAT_KEY: &[u8] = b"format";

/// What a write survives once it is acknowledged.
///
/// | | the process crashes | the machine loses power |
/// |---|---|---|
/// | `Buffered` | survives | what the operating system had not yet written is lost, from the end: jobs of the last seconds run again |
/// | `Synced` | survives | survives, if the disk honours a flush |
///
/// Neither ever loses a job: what is lost is progress, and jobs run again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// Left to the operating system. The default: it costs microseconds where a flush costs milliseconds, and at worst
    /// jobs run again.
    #[default]
    Buffered,
    /// Flushed to the disk; one flush for everything that is saved together.
    Synced,
}

/// An embedded database that holds the progress of any number of consumers, and tables of yours beside it.
///
/// A clone is the same store. The database is closed when the last clone, table and consumer of it is gone.
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
}

struct Inner {
    /// Before `kv`, so that it has written everything when the database closes.
    writer: Writer,
    kv: Arc<dyn Kv>,
    synced: bool,
    names: Arc<Mutex<HashSet<String>>>,
    /// Numbers for progresses, of which none is given out twice.
    ids: Mutex<std::ops::Range<u32>>,
}

/// How to open a [`Store`]; made by [`Store::options`].
///
/// ```no_run
/// use waterline::{Durability, Store};
/// # #[cfg(feature = "rocksdb")]
/// let store = Store::options().durability(Durability::Synced).open("data")?;
/// # Ok::<(), waterline::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct StoreOptions {
    durability: Durability,
}

impl StoreOptions {
    /// What a write survives; [`Durability::Buffered`] when nothing is said.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Opens the database in this directory, and makes it if there is none.
    ///
    /// # Errors
    /// [`Error::Locked`] when it is open elsewhere, [`Error::Corrupt`] when it is in a format that this program does not
    /// know, [`Error::Store`] for whatever else RocksDB says.
    #[cfg(feature = "rocksdb")]
    pub fn open(self, path: impl AsRef<Path>) -> Result<Store, Error> {
        Store::on(Arc::new(crate::kv::rocksdb::RocksKv::open(path.as_ref())?), self.durability)
    }
}

impl Store {
    /// Opens the database in this directory, and makes it if there is none. Writes are [`Durability::Buffered`].
    ///
    /// # Errors
    /// Those of [`StoreOptions::open`].
    #[cfg(feature = "rocksdb")]
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::options().open(path)
    }

    /// How to open it, to be said before it is opened.
    pub fn options() -> StoreOptions {
        StoreOptions::default()
    }

    /// A store on memory: the same in everything but that it is gone with its last clone. Needs no `rocksdb` feature.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::of(Arc::new(MemoryKv::default()), Durability::Buffered)
    }

    /// A key space of yours. The same name is the same table.
    ///
    /// # Errors
    /// [`Error::Config`] for an empty name and one above 255 bytes.
    pub fn table(&self, name: impl AsRef<str>) -> Result<Table, Error> {
        let name = name.as_ref();
        check_name("table", name)?;
        let length = u8::try_from(name.len()).map_err(|_| ConfigError::Name { what: "table", length: name.len() })?;
        Ok(Table { store: self.clone(), prefix: [&[length], name.as_bytes()].concat() })
    }

    /// On any key-value store, once its format is known to be ours.
    #[cfg(any(test, feature = "rocksdb", feature = "testing"))]
    pub(crate) fn on(kv: Arc<dyn Kv>, durability: Durability) -> Result<Self, Error> {
        match kv.get(Space::System, FORMAT_KEY)?.as_deref() {
            Some([FORMAT]) => {}
            Some(other) => {
                let reason = format!("the database's format is {other:?}, and this program knows [{FORMAT}]");
                return Err(Error::Corrupt { name: "format".to_owned(), reason });
            }
            None => {
                let (key, value) = (FORMAT_KEY.to_vec(), vec![FORMAT]);
                kv.write(&[Op::Put { space: Space::System, key, value }], true)?;
            }
        }
        Ok(Self::of(kv, durability))
    }

    fn of(kv: Arc<dyn Kv>, durability: Durability) -> Self {
        let synced = durability == Durability::Synced;
        let writer = Writer::new(kv.clone(), synced);
        Self { inner: Arc::new(Inner { writer, kv, synced, names: Arc::default(), ids: Mutex::new(0..0) }) }
    }

    pub(crate) fn kv(&self) -> &dyn Kv {
        &*self.inner.kv
    }

    pub(crate) fn reserved_ids(&self) -> &Mutex<std::ops::Range<u32>> {
        &self.inner.ids
    }

    pub(crate) fn writer(&self) -> &Writer {
        &self.inner.writer
    }

    /// Writes on this thread; the database puts concurrent writes together by itself.
    pub(crate) fn write(&self, batch: &[Op]) -> Result<(), StoreError> {
        self.inner.kv.write(batch, self.inner.synced)
    }

    /// Takes a progress name, until the claim is dropped.
    pub(crate) fn claim(&self, name: &str) -> Result<Claim, Error> {
        if !self.inner.names.lock().insert(name.to_owned()) {
            return Err(Error::InUse { name: name.to_owned() });
        }
        Ok(Claim { names: self.inner.names.clone(), name: name.to_owned() })
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("synced", &self.inner.synced).finish_non_exhaustive()
    }
}

/// A progress name that is in use.
#[derive(Debug)]
pub(crate) struct Claim {
    names: Arc<Mutex<HashSet<String>>>,
    name: String,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.names.lock().remove(&self.name);
    }
}

/// A key space of yours in a [`Store`]: ordered by key, shared with nobody else; made by [`Store::table`].
///
/// A clone is the same table. Each call is atomic, and as durable as the store.
///
/// ```
/// let table = waterline::Store::in_memory().table("heights")?;
/// table.put("everest", "8849")?;
/// table.put("k2", "8611")?;
/// assert_eq!(table.get("k2")?.as_deref(), Some(b"8611".as_slice()));
/// table.delete("k2")?;
/// let rows = table.iter().collect::<Result<Vec<_>, _>>()?;
/// assert_eq!(rows, [(b"everest".to_vec(), b"8849".to_vec())]);
/// # Ok::<(), waterline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Table {
    store: Store,
    prefix: Vec<u8>,
}

impl Table {
    /// The value of this key.
    ///
    /// # Errors
    /// [`Error::Store`] when the database fails.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.store.kv().get(Space::Tables, &self.key(key))?)
    }

    /// Sets the value of this key.
    ///
    /// # Errors
    /// [`Error::Store`] when the database fails; the key then has its old value, or the new one.
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<(), Error> {
        let value = value.as_ref().to_vec();
        Ok(self.store.write(&[Op::Put { space: Space::Tables, key: self.key(key), value }])?)
    }

    /// Removes this key; nothing happens when there is none.
    ///
    /// # Errors
    /// [`Error::Store`] when the database fails.
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<(), Error> {
        Ok(self.store.write(&[Op::Delete { space: Space::Tables, key: self.key(key) }])?)
    }

    /// Every row, in the order of the keys, as of this moment.
    pub fn iter(&self) -> Rows<'_> {
        self.prefix([])
    }

    /// Every row whose key begins like this, in the order of the keys, as of this moment.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Rows<'_> {
        Rows { rows: self.store.kv().scan(Space::Tables, &self.key(prefix)), table: self.prefix.len() }
    }

    fn key(&self, key: impl AsRef<[u8]>) -> Vec<u8> {
        [&self.prefix, key.as_ref()].concat()
    }
}

impl<'a> IntoIterator for &'a Table {
    type Item = Result<(Vec<u8>, Vec<u8>), Error>;
    type IntoIter = Rows<'a>;

    fn into_iter(self) -> Rows<'a> {
        self.iter()
    }
}

/// The rows of a [`Table`]: keys and values, in the order of the keys.
#[must_use]
pub struct Rows<'a> {
    rows: Scan<'a>,
    /// How many bytes of each key name the table.
    table: usize,
}

impl Iterator for Rows<'_> {
    type Item = Result<(Vec<u8>, Vec<u8>), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.rows.next()?.map_err(Error::from).map(|(mut key, value)| {
            key.drain(..self.table);
            (key, value)
        }))
    }
}

impl fmt::Debug for Rows<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
