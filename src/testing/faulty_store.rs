//! A store in memory whose writes fail, or are lost in a crash.

use super::numbers_in;
use crate::base::{Error, sync::Arc};
use crate::kv::memory::MemoryKv;
use crate::store::{Durability, Store, StoreOptions};
use std::ops::RangeBounds;

/// A [`Store`] in memory whose writes fail on demand, and whose disk can freeze.
///
/// It is for tests of the rows and the progress that a crash leaves. Every put, every delete and
/// every save is a write. Saves that are due together are one write.
///
/// ```
/// use waterline::testing::FaultyStore;
///
/// let faulty = FaultyStore::new()?;
/// let table = faulty.store().table("rows")?;
/// faulty.fail(1..2);
/// table.put("a", "1")?;
/// assert!(table.put("b", "2").is_err());
/// table.put("c", "3")?;
///
/// faulty.freeze_at(1);                                // from the write after the next one on …
/// table.put("d", "4")?;
/// table.put("e", "5")?;                               // … they only seem to work
/// let after = faulty.after_crash()?.store().table("rows")?;
/// let keys: Vec<_> = after.iter().map(|row| row.map(|(key, _)| key)).collect::<Result<_, _>>()?;
/// assert_eq!(keys, [b"a", b"c", b"d"]);
/// assert_eq!(faulty.after_power_loss()?.store().table("rows")?.iter().count(), 0, "nothing of it was synced");
/// # Ok::<(), waterline::Error>(())
/// ```
#[derive(Debug)]
pub struct FaultyStore {
    kv: Arc<MemoryKv>,
    store: Store,
    durability: Durability,
}

impl FaultyStore {
    /// Creates an empty store that works, with [`Durability::Buffered`].
    ///
    /// # Errors
    /// The errors of opening a store; in memory there are none.
    pub fn new() -> Result<Self, Error> {
        Self::with_durability(Durability::Buffered)
    }

    /// Creates an empty store that works, with this durability.
    ///
    /// ```
    /// use waterline::{Durability, testing::FaultyStore};
    ///
    /// let faulty = FaultyStore::with_durability(Durability::Synced)?;
    /// faulty.store().table("rows")?.put("a", "1")?;
    /// let after = faulty.after_power_loss()?.store().table("rows")?;
    /// assert_eq!(after.get("a")?.as_deref(), Some(b"1".as_slice()));
    /// # Ok::<(), waterline::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of opening a store; in memory there are none.
    pub fn with_durability(durability: Durability) -> Result<Self, Error> {
        Self::on(MemoryKv::default(), durability)
    }

    fn on(kv: MemoryKv, durability: Durability) -> Result<Self, Error> {
        let kv = Arc::new(kv);
        let store = Store::on(kv.clone(), &Store::options().durability(durability), &"memory")?;
        Ok(Self { kv, store, durability })
    }

    /// Returns the store, which works like any other.
    #[must_use]
    pub fn store(&self) -> Store {
        self.store.clone()
    }

    /// Returns the same store with these options, for tests of a program that creates nothing.
    ///
    /// See [`StoreOptions::create`]. (Two stores that are attached to one database share it in the
    /// same way.)
    ///
    /// ```
    /// use waterline::{Error, Store, testing::FaultyStore};
    ///
    /// let faulty = FaultyStore::new()?;
    /// let strict = faulty.store_with(&Store::options().create(false));
    /// assert!(matches!(strict.table("heights"), Err(Error::NotFound { what: "table", .. })));
    /// faulty.store().table("heights")?.put("k2", "8611")?;
    /// assert_eq!(strict.table("heights")?.get("k2")?.as_deref(), Some(b"8611".as_slice()));
    /// # Ok::<(), Error>(())
    /// ```
    #[must_use]
    pub fn store_with(&self, options: &StoreOptions) -> Store {
        self.store.with(options)
    }

    /// Makes the writes with these numbers fail, counted from 0 with the next one.
    ///
    /// `fail(..)` is a full disk, and `fail(3..4)` fails only the fourth write. A later call
    /// replaces this one.
    pub fn fail(&self, writes: impl RangeBounds<u64>) {
        self.kv.fail(numbers_in(writes));
    }

    /// Makes all writes succeed from now on.
    pub fn heal(&self) {
        self.kv.fail(0..0);
    }

    /// Freezes the disk at the write with this number, counted from 0 with the next one.
    ///
    /// This write and all later ones seem to work, but do not reach the disk. It stays frozen.
    pub fn freeze_at(&self, write: u64) {
        self.kv.freeze_at(write);
    }

    /// Returns the store after a crash: a separate one with everything that has reached the disk.
    ///
    /// Every name in it is free.
    ///
    /// # Errors
    /// The errors of opening a store; in memory there are none.
    pub fn after_crash(&self) -> Result<Self, Error> {
        Self::on(self.kv.after_crash(), self.durability)
    }

    /// Returns the store after a power loss at worst: a separate one.
    ///
    /// It has everything up to the last [`Durability::Synced`] write that reached the disk.
    ///
    /// # Errors
    /// The errors of opening a store; in memory there are none.
    pub fn after_power_loss(&self) -> Result<FaultyStore, Error> {
        Self::on(self.kv.after_power_loss(), self.durability)
    }

    /// Returns how many writes were made, including those that failed.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.kv.writes()
    }
}
