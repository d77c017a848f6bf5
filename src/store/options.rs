//! The options to open a store with.

use super::engine::Engine;
#[cfg(feature = "sqlite-system")]
use crate::kv::sqlite::connection::OnConnect;

/// The failures that an acknowledged write survives.
///
/// | | the process crashes | the machine loses power |
/// |---|---|---|
/// | `Buffered` | survives | the last seconds are lost, and their jobs run again |
/// | `Synced` | survives | survives, if the disk honours a flush |
///
/// With `Buffered` the operating system writes to the disk later, in order, so only the latest
/// writes can be lost. Neither ever loses a job: lost progress makes jobs run again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// The operating system writes it to the disk. This is the default: it takes microseconds
    /// instead of the milliseconds of a flush, and at worst jobs run again.
    #[default]
    Buffered,
    /// Each write is flushed to the disk, with one flush for everything that is saved together.
    Synced,
}

/// Options to open a [`Store`](crate::Store) with, from [`Store::options`](crate::Store::options).
///
/// ```no_run
/// use waterline::{Durability, Store};
/// # #[cfg(any(feature = "rocksdb", feature = "sqlite-system"))]
/// let store = Store::options().durability(Durability::Synced).open("data")?;
/// # Ok::<(), waterline::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct StoreOptions {
    pub(super) durability: Durability,
    pub(super) create: bool,
    pub(super) read_only: bool,
    pub(super) engine: Option<Engine>,
    #[cfg(feature = "sqlite-system")]
    pub(super) on_connect: OnConnect,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            create: true,
            read_only: false,
            engine: None,
            #[cfg(feature = "sqlite-system")]
            on_connect: OnConnect::default(),
        }
    }
}

impl StoreOptions {
    /// Sets the failures that a write survives. The default is [`Durability::Buffered`].
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets whether a missing store, progress, log or table is created. The default is `true`, so
    /// that the first start of a program is like every later one.
    ///
    /// With `false`, a wrong path or name is an [`Error::NotFound`](crate::Error::NotFound), and
    /// nothing is created, not even a directory. So a misspelled name reruns no stream.
    ///
    /// | call | returns `NotFound` |
    /// |---|---|
    /// | `open`, `open_within` | if no store was ever made in this directory |
    /// | `attach` | if no store has ever lived in this database |
    /// | `start` with [`Store::progress`](crate::Store::progress) | if nothing is saved under this name |
    /// | [`Store::log`](crate::Store::log) | if no log of this name was ever made |
    /// | [`Store::table`](crate::Store::table) | if the table has no row, since nothing else is stored of it |
    ///
    /// A progress is created by its first save. If the first run ended before any job was done,
    /// there is no progress, and the next run needs `create(true)` again. Two calls are the same
    /// with `true` and `false`:
    /// [`StoreProgress::last_processed`](crate::StoreProgress::last_processed) is `None` without a
    /// progress, and [`StoreProgress::remove`](crate::StoreProgress::remove) does nothing.
    ///
    /// Like the durability, this belongs to the handle: two stores on one database may differ.
    ///
    #[cfg_attr(any(feature = "rocksdb", feature = "sqlite-system"), doc = "```")]
    #[cfg_attr(not(any(feature = "rocksdb", feature = "sqlite-system")), doc = "```ignore")]
    /// use waterline::{Consumer, Error, MemoryJobs, Store};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("data");
    /// let opened = Store::options().create(false).open(&path);
    /// assert!(matches!(opened, Err(Error::NotFound { what: "store", .. })) && !path.exists());
    ///
    /// let jobs: MemoryJobs<_> = (0..3).collect();
    /// let store = Store::open(&path)?;
    /// let first = Consumer::builder(jobs.clone(), store.progress("blocks"));
    /// first.stop_at(2).start(|_| Ok(()))?.join()?;
    /// drop(store);
    ///
    /// let store = Store::options().create(false).open(&path)?;
    /// assert_eq!(store.progress("blocks").last_processed()?, Some(2));
    /// let misspelled = Consumer::builder(jobs, store.progress("blokcs")).start(|_| Ok(()));
    /// assert!(matches!(misspelled, Err(Error::NotFound { what: "progress", .. })));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Sets the engine of a new store. By default it is RocksDB if both engines are compiled in. An
    /// existing store keeps its engine: to name another one is an error of `open`.
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")] {
    /// use waterline::{Engine, Store};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path();
    /// let store = Store::options().engine(Engine::Sqlite).open(path)?;
    /// store.table("heights")?.put("k2", "8611")?;
    /// drop(store);
    /// let store = Store::open(path)?;    // its files say what it is
    /// assert_eq!(store.table("heights")?.get("k2")?.as_deref(), Some(b"8611".as_slice()));
    /// # }
    /// # Ok::<(), waterline::Error>(())
    /// ```
    pub fn engine(mut self, engine: Engine) -> Self {
        self.engine = Some(engine);
        self
    }

    /// Opens the store for reading only, for example in a tool or a dashboard while the application
    /// runs. The default is a store that writes.
    ///
    /// * `open` and `open_within` need no lock and wait for none. The application may have the
    ///   store open, in this process or another one, and may be started, stopped and killed at any
    ///   time. Any number of processes may read at once.
    /// * A store on RocksDB shows the state of the moment when it was opened, until
    ///   [`Store::refresh`](crate::Store::refresh) shows the current one. A store on SQLite shows
    ///   in each call what is committed by then, and a scan shows one snapshot; a log knows its new
    ///   items after a refresh.
    /// * Every call that would write returns [`Error::ReadOnly`](crate::Error::ReadOnly) and
    ///   changes nothing, also `start` of a consumer with
    ///   [`Store::progress`](crate::Store::progress). Nothing is created, as with
    ///   [`create(false)`](Self::create), and no thread is started.
    ///
    /// On RocksDB the application is not affected: no file is changed or created, in its directory
    /// or elsewhere. A read-only store keeps all table files of the database open, also those that
    /// the application has deleted meanwhile, and the content of its write-ahead log in memory: at
    /// most 128 MiB if the application uses `Store::open`. So drop a store that you do not need.
    ///
    /// On SQLite it reads `waterline.sqlite` and its `-wal`. It uses the memory that the processes
    /// of a database share, so the file `-shm` changes: this process must be allowed to read and
    /// write these. While no process has it open, no file is touched or created. Between calls it
    /// holds nothing.
    ///
    /// With `attach` (of RocksDB) it is a handle on a database that you opened, in any mode, and
    /// shows the writes to that database at once. Another store on the same database may write. Two
    /// stores on it share their state if both write; a read-only one is separate. If the database
    /// is a secondary, `refresh` lets it catch up, with the limits of RocksDB: after a flush of the
    /// application, version 11 may keep showing replaced values. `open` has no such limits.
    ///
    #[cfg_attr(any(feature = "rocksdb", feature = "sqlite-system"), doc = "```")]
    #[cfg_attr(not(any(feature = "rocksdb", feature = "sqlite-system")), doc = "```ignore")]
    /// use waterline::{Error, Store};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("data");
    /// let application = Store::open(&path)?;
    /// application.table("heights")?.put("k2", "8611")?;
    ///
    /// let beside = Store::options().read_only().open(&path)?;    // mostly in another process
    /// let heights = beside.table("heights")?;
    /// assert_eq!(heights.get("k2")?.as_deref(), Some(b"8611".as_slice()));
    /// assert!(matches!(heights.delete("k2"), Err(Error::ReadOnly)));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }
}
