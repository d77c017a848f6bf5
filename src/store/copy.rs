//! Copies a store into another one, on any engine.

use super::{Store, format, keys};
use crate::base::Error;
use crate::kv::{Family, OURS, batch::Batch};
use std::collections::BTreeSet;

/// The name in use while a store is copied into. No program knows it, so every program refuses an
/// unfinished copy.
const HALF: &str = "unfinished copy";

/// The approximate bytes of one write.
const PIECE: usize = 1 << 20;

impl Store {
    /// Copies progress, tables, logs, parked jobs and queues into another, empty store.
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")] {
    /// use waterline::{Engine, Store};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let (old, new) = (directory.path().join("old"), directory.path().join("new"));
    /// # Store::open(&old)?.table("heights")?.put("k2", "8611")?;
    /// let store = Store::options().engine(Engine::Sqlite).open(&new)?;
    /// Store::options().create(false).open(&old)?.copy_to(&store)?;
    /// drop(store);
    ///
    /// let store = Store::open(&new)?;
    /// assert_eq!(store.table("heights")?.get("k2")?.as_deref(), Some(b"8611".as_slice()));
    /// # }
    /// # Ok::<(), waterline::Error>(())
    /// ```
    ///
    /// Use this to move a store to another engine. No consumer or other caller may use either store
    /// meanwhile. Close and reopen the other store before you use it, since an open store remembers
    /// what it had when it was opened. Column families of yours are not copied. If the process
    /// dies, or this returns an error, the other store is unfinished, and opening it is an
    /// [`Error::Format`]: remove it, and start again.
    ///
    /// # Errors
    /// [`Error::InUse`] if a consumer uses a progress of either store, or if the other store is not
    /// empty; [`Error::ReadOnly`] if that one is read-only; [`Error::Store`] if a database fails.
    pub fn copy_to(&self, other: &Self) -> Result<(), Error> {
        other.writable()?;
        for store in [self, other] {
            if let Some(name) = store.inner.names.lock().iter().next() {
                return Err(Error::InUse { name: name.clone() });
            }
        }
        let families =
            |store: &Self| -> Result<Vec<Family>, Error> { OURS.iter().map(|name| store.family(name)).collect() };
        let (from, to) = (families(self)?, families(other)?);
        for family in &to {
            let mut rows = other.kv().scan(family, b"");
            if let Some((key, _)) = rows.find(|row| !matches!(row, Ok((key, _)) if key == keys::FORMAT)).transpose()? {
                let name = format!("the other store, which has the key \"{}\"", key.escape_ascii());
                return Err(Error::InUse { name });
            }
        }
        let write = |batch: &Batch| other.kv().write(batch, true);
        let mut batch = Batch::default();
        let half = format::encode(&BTreeSet::from([HALF.to_owned()]));
        batch.put(other.system().id, &[keys::FORMAT], &[&half])?;
        let mut format = None;
        for (from, to) in from.iter().zip(&to) {
            for row in self.kv().scan(from, b"") {
                let (key, value) = row?;
                if *to == *other.system() && key == keys::FORMAT {
                    format = Some(value);
                    continue;
                }
                batch.put(to.id, &[&key], &[&value])?;
                if batch.len() >= PIECE {
                    write(&batch)?;
                    batch = Batch::default();
                }
            }
        }
        write(&batch)?;
        let mut last = Batch::default();
        last.put(other.system().id, &[keys::FORMAT], &[&format.unwrap_or_else(|| format::encode(&BTreeSet::new()))])?;
        Ok(write(&last)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::{Kv, QUEUE, batch::Records, memory::MemoryKv};
    use std::sync::Arc;

    fn filled(store: &Store) {
        let table = store.table("rows").unwrap();
        (0..3_000u32).for_each(|row| table.put(row.to_be_bytes(), [7; 900]).unwrap());
        store.log::<u32>("log").unwrap().push_all(&[1, 2, 3]).unwrap();
        // What another crate keeps in its own family.
        let mut records = Records::default();
        records.put(store.family(QUEUE).unwrap().id, &[b"key"], &[b"value"]).unwrap();
        store.write_records(&records).unwrap();
    }

    fn rows(kv: &dyn Kv) -> Vec<(Vec<u8>, Vec<u8>)> {
        let families = OURS.iter().map(|name| Family::new(name, kv.family(name).unwrap().unwrap()));
        families.flat_map(|family| kv.scan(&family, b"").map(Result::unwrap).collect::<Vec<_>>()).collect()
    }

    #[test]
    fn a_copy_is_complete_or_refused() {
        let store = Store::in_memory();
        filled(&store);
        let whole = Arc::new(MemoryKv::default());
        let writes = {
            let target = Store::on(whole.clone(), &Store::options(), &"memory").unwrap();
            let before = whole.writes();
            store.copy_to(&target).unwrap();
            assert!(matches!(store.copy_to(&target), Err(Error::InUse { .. })), "it is not empty");
            whole.writes() - before
        };
        assert_eq!(rows(&*whole), rows(store.kv()));
        assert!(writes > 3, "{writes}");
        for write in 0..writes {
            let kv = Arc::new(MemoryKv::default());
            let target = Store::on(kv.clone(), &Store::options(), &"memory").unwrap();
            kv.fail(write..write + 1);
            assert!(matches!(store.copy_to(&target), Err(Error::Store(_))), "{write}");
            let again = Store::on(Arc::new(kv.after_crash()), &Store::options(), &"memory");
            let is_empty = rows(&kv.after_crash()).len() == 1;
            assert!(is_empty || matches!(again, Err(Error::Format { .. })), "{write}: {again:?}");
        }
    }

    #[test]
    fn a_store_in_use_is_not_copied() {
        let (store, other) = (Store::in_memory(), Store::in_memory());
        let used = store.reserve("blocks").unwrap();
        assert!(matches!(store.copy_to(&other), Err(Error::InUse { name }) if name == "blocks"));
        drop(used);
        store.copy_to(&other).unwrap();
        assert!(matches!(store.copy_to(&other.with(&Store::options().read_only())), Err(Error::ReadOnly)));
    }
}
