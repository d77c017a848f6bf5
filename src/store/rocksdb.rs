//! A store on RocksDB: in a directory of ours, or in a user's database.

use crate::base::Error;
use crate::base::sync::{Arc, Condvar, Mutex};
use crate::kv::rocksdb::secondary::Secondary;
use crate::kv::rocksdb::{self, RocksKv};
use crate::store::{Engine, Inner, Store, StoreOptions, format};
use ::rocksdb::{ColumnFamilyDescriptor, DB};
use std::path::Path;
use std::sync::{LazyLock, Weak};

/// The address of a database, and the store in it.
type Attached = (usize, Weak<Inner>);

/// The stores in users' databases, by the address of the database. Each store keeps its database,
/// so no other one gets the address meanwhile.
static ATTACHED: LazyLock<Mutex<Vec<Attached>>> = LazyLock::new(Mutex::default);

/// Notified when one of them is closed.
static CLOSED: LazyLock<Condvar> = LazyLock::new(Condvar::default);

/// The entry of an attached store, until the store is closed.
struct Attachment {
    address: usize,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        ATTACHED.lock().retain(|(address, _)| *address != self.address);
        CLOSED.notify_all();
    }
}

/// Opens the store in this directory. `again` means that it was locked a moment ago.
pub(super) fn open(options: &StoreOptions, path: &Path, again: bool) -> Result<Store, Error> {
    opened(options, path, again).map(named)
}

fn named(store: Store) -> Store {
    Store { engine: Some(Engine::RocksDb), ..store }
}

fn opened(options: &StoreOptions, path: &Path, again: bool) -> Result<Store, Error> {
    let place = path.display();
    if options.read_only {
        return Store::on(Arc::new(Secondary::open(path)?), options, &place);
    }
    let open = if again { RocksKv::open_again } else { RocksKv::open };
    let mut kv = open(path, options.create)?;
    // Check before anything is created, so that a refused store keeps its families.
    format::check(&kv, options.create, &place)?;
    kv.make_families()?;
    Store::on(Arc::new(kv), options, &place)
}

impl StoreOptions {
    /// Returns the store in your database, as [`Store::attach`] does, with these options.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::sync::Arc;
    /// # let directory = tempfile::tempdir()?;
    /// use waterline::{Durability, Store};
    ///
    /// let mut options = rocksdb::Options::default();
    /// options.create_if_missing(true);
    /// options.create_missing_column_families(true);
    /// let db = rocksdb::DB::open_cf_descriptors(&options, directory.path(), Store::column_families())?;
    /// let store = Store::options().durability(Durability::Synced).attach(Arc::new(db))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Store::attach`].
    pub fn attach(self, db: Arc<DB>) -> Result<Store, Error> {
        if self.read_only {
            // It shares nothing with a store that writes, which may upgrade an old store.
            let place = db.path().display().to_string();
            return Store::on(Arc::new(RocksKv::read_only(db)), &self, &place).map(named);
        }
        Ok(named(Store::of(attached(db, self.create)?, &self)))
    }
}

impl Store {
    /// Returns the column families that a store needs. Open your own database with them. RocksDB
    /// creates them if `create_missing_column_families(true)` is set: see [`attach`](Self::attach).
    ///
    /// Some are not used yet. They exist from the start, so that a later version of the library
    /// needs no new family in your database.
    #[must_use]
    pub fn column_families() -> Vec<ColumnFamilyDescriptor> {
        rocksdb::descriptors()
    }

    /// Returns a store in a database that you opened, beside your own column families. Its writes
    /// are [`Durability::Buffered`](crate::Durability::Buffered), unless [`StoreOptions`] say
    /// otherwise.
    ///
    /// Your options limit the number of open files and the size of the write-ahead log.
    /// [`Store::open`] sets `set_max_open_files(512)` and `set_max_total_wal_size(128 << 20)`. With
    /// RocksDB's defaults, a database that is often reopened eventually needs hundreds of open
    /// files, and its log grows to a gigabyte.
    ///
    /// The types are those of the crate `rocksdb` 0.25, with or without its feature
    /// `multi-threaded-cf`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path();
    /// use rocksdb::{ColumnFamilyDescriptor, DB, Options};
    /// use std::sync::Arc;
    /// use waterline::{Consumer, MemoryJobs, Store};
    ///
    /// let mut options = Options::default();
    /// options.create_if_missing(true);
    /// options.create_missing_column_families(true);
    /// let mut families = Store::column_families();
    /// families.push(ColumnFamilyDescriptor::new("squares", Options::default()));
    /// let db = Arc::new(DB::open_cf_descriptors(&options, path, families)?);
    ///
    /// let store = Store::attach(db.clone())?;
    /// let squares = store.column_family("squares")?;              // your keys, as they are
    /// let jobs: MemoryJobs<_> = (0..10u64).collect();
    /// Consumer::builder(jobs, store.progress("squares"))
    ///     .stop_at(9)
    ///     .start(move |job| Ok(squares.put(job.index.to_be_bytes(), (job.payload * job.payload).to_be_bytes())?))?
    ///     .join()?;
    ///
    /// let family = db.cf_handle("squares").unwrap();
    /// assert_eq!(db.get_cf(&family, 9u64.to_be_bytes())?, Some(81u64.to_be_bytes().to_vec()));
    /// db.put_cf(&family, "yours", "as before")?;                  // your own writes go on as before
    /// # Ok(()) }
    /// ```
    ///
    /// Stores on one database share the progress names in use and the writer thread; each has its
    /// own durability. If another thread is closing the last of them, this call waits until that
    /// has written everything. The database is closed when your last `Arc` of it and the last
    /// store, table and consumer on it are gone, in any order.
    ///
    /// Your own writes go to the database as before, in one log with the store's. Leave the
    /// families whose names begin with `waterline.` alone, and do not drop a family while a thread
    /// writes to it. A write to a dropped family is an [`Error::Store`], even if there is a new
    /// family of that name. A write during the drop may get into RocksDB's log, and then RocksDB
    /// refuses all writes until the database is reopened.
    ///
    /// In a database that was opened read-only or as a secondary, a store can be read. Every write
    /// to it is an [`Error::Store`]. With [`StoreOptions::read_only`] writes are refused earlier,
    /// and the database needs only the family `waterline.system`: others count as empty.
    ///
    /// # Errors
    /// * [`Error::Config`] if the database was opened without one of [`Store::column_families`].
    ///   The error names the family.
    /// * [`Error::Format`] if a newer version of this library has made the store. Nothing is
    ///   changed then.
    /// * [`Error::Corrupt`] if the record of the version is damaged.
    /// * [`Error::NotFound`] if no store has lived in the database and [`StoreOptions::create`] is
    ///   `false`.
    /// * [`Error::Store`] for any other error of RocksDB.
    pub fn attach(db: Arc<DB>) -> Result<Self, Error> {
        Self::options().attach(db)
    }
}

/// Returns the store in this database, and creates it if there is none.
fn attached(db: Arc<DB>, create: bool) -> Result<Arc<Inner>, Error> {
    let address = Arc::as_ptr(&db).addr();
    let mut attached = ATTACHED.lock();
    while let Some((_, inner)) = attached.iter().find(|(other, _)| *other == address) {
        if let Some(inner) = inner.upgrade() {
            return Ok(inner);
        }
        // The last handle is being dropped. Its writer may still write a trim, which a store
        // that is loaded now would miss.
        CLOSED.wait(&mut attached);
    }
    let mut inner = Inner::on(Arc::new(RocksKv::shared(db.clone())), create, &db.path().display())?;
    inner._attached = Some(Box::new(Attachment { address }));
    let inner = Arc::new(inner);
    attached.push((address, Arc::downgrade(&inner)));
    Ok(inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::BoxError;
    use crate::commit::{draft::Draft, intent::Intent};
    use crate::kv::batch::FamilyId;
    use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(60);

    /// Reports that it is being written, and is written once allowed.
    struct Late {
        system: FamilyId,
        begun: Sender<()>,
        go: Receiver<()>,
    }

    impl Intent for Late {
        fn resolve(&self, draft: &mut Draft<'_>) -> Result<bool, BoxError> {
            self.begun.send(())?;
            self.go.recv()?;
            draft.put(self.system, b"late", b"")?;
            Ok(true)
        }

        fn synced(&self) -> bool {
            false
        }

        fn written(&self) {}

        fn failed(&self, error: BoxError) -> Option<Duration> {
            panic!("{error}");
        }
    }

    /// Has the last handle to its store, and drops it on the writer thread.
    struct Last {
        store: Mutex<Option<Store>>,
        system: FamilyId,
        alone: Receiver<()>,
        tell: Sender<()>,
    }

    impl Intent for Last {
        fn resolve(&self, draft: &mut Draft<'_>) -> Result<bool, BoxError> {
            self.alone.recv()?;
            draft.put(self.system, b"last", b"")?;
            Ok(true)
        }

        fn synced(&self) -> bool {
            false
        }

        fn written(&self) {
            drop(self.store.lock().take());
            self.tell.send(()).expect("the test waits");
        }

        fn failed(&self, error: BoxError) -> Option<Duration> {
            panic!("{error}");
        }
    }

    #[test]
    fn a_store_dropped_on_its_writer_thread_can_be_reopened() {
        let directory = tempfile::tempdir().unwrap();
        for _ in 0..20 {
            let store = Store::open(directory.path()).unwrap();
            let ((others, alone), (tell, told)) = (bounded(1), bounded(1));
            let writer = store.writer();
            writer.start().unwrap();
            let (mine, system) = (Mutex::new(Some(store.clone())), store.system().id);
            writer.submit(Box::new(Last { store: mine, system, alone, tell }), true);
            drop(store);
            others.send(()).unwrap();
            told.recv_timeout(LONG).unwrap();
            let store = Store::open(directory.path()).unwrap();
            assert!(store.kv().get(store.system(), b"last").unwrap().is_some());
        }
    }

    #[test]
    fn an_attach_waits_for_the_store_that_closes() {
        let directory = tempfile::tempdir().unwrap();
        let mut options = ::rocksdb::Options::default();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        let db = Arc::new(DB::open_cf_descriptors(&options, directory.path(), Store::column_families()).unwrap());
        let store = Store::attach(db.clone()).unwrap();
        let ((begun, is_begun), (go, may_go), (tell, told)) = (bounded(1), bounded(1), bounded(1));
        store.writer().start().unwrap();
        store.writer().submit(Box::new(Late { system: store.system().id, begun, go: may_go }), true);
        is_begun.recv_timeout(LONG).unwrap();
        let before = Arc::downgrade(&store.inner);
        std::thread::scope(|scope| {
            scope.spawn(move || drop(store));
            while before.strong_count() > 0 {
                std::thread::yield_now();
            }
            scope.spawn(move || {
                let store = Store::attach(db).unwrap();
                tell.send(store.kv().get(store.system(), b"late").unwrap().is_some()).unwrap();
            });
            let early = told.recv_timeout(Duration::from_millis(100));
            go.send(()).unwrap();
            assert_eq!(early, Err(RecvTimeoutError::Timeout), "it is attached, and the one before still writes");
            assert_eq!(told.recv_timeout(LONG), Ok(true));
        });
    }
}
