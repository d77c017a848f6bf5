//! Tables. A table is a part of the family of all tables, or a whole family.

use super::Store;
use crate::base::error::Error;
use crate::base::sync::Arc;
use crate::commit::counter;
use crate::kv::batch::Batch;
use crate::kv::{Family, Scan};
use std::fmt;

/// A key space of yours in a [`Store`], ordered by key. No other table shares its keys.
/// [`Store::table`] makes one, and [`Store::column_family`] makes one of a whole column family.
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
    name: Arc<str>,
    family: Family,
    /// The prefix of this table's keys in the family.
    prefix: Vec<u8>,
}

impl Table {
    pub(super) fn new(store: &Store, name: &str, family: &Family, prefix: Vec<u8>) -> Self {
        Self { store: store.clone(), name: name.into(), family: family.clone(), prefix }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn family(&self) -> &Family {
        &self.family
    }

    /// Returns the prefix of its keys in the family.
    pub(crate) fn key_prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// Returns the value of this key.
    ///
    /// # Errors
    /// [`Error::Store`] if the database fails.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.store.kv().get(&self.family, &self.key(key))?)
    }

    /// Returns the value of this key as a counter: 8 bytes in big-endian two's complement. A key
    /// without a value counts as 0.
    ///
    /// ```
    /// let table = waterline::Store::in_memory().table("visits")?;
    /// assert_eq!(table.counter("front page")?, 0);
    /// table.put("front page", 12i64.to_be_bytes())?;
    /// assert_eq!(table.counter("front page")?, 12);
    /// table.put("title", "Waterline")?;
    /// assert!(matches!(table.counter("title"), Err(waterline::Error::Counter { table, .. }) if table == "visits"));
    /// # Ok::<(), waterline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Counter`] if the value has another length, [`Error::Store`] if the database fails.
    pub fn counter(&self, key: impl AsRef<[u8]>) -> Result<i64, Error> {
        let key = key.as_ref();
        counter::read(&self.name, key, self.get(key)?.as_deref())
    }

    /// Sets the value of this key.
    ///
    /// # Errors
    /// [`Error::Store`] if the database fails. The key then has its old value, or the new one.
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<(), Error> {
        let mut batch = Batch::default();
        batch.put(self.family.id, &[&self.prefix, key.as_ref()], &[value.as_ref()])?;
        self.write(&batch)
    }

    /// Removes this key. Nothing happens if there is none.
    ///
    /// # Errors
    /// [`Error::Store`] if the database fails.
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<(), Error> {
        let mut batch = Batch::default();
        batch.delete(self.family.id, &[&self.prefix, key.as_ref()])?;
        self.write(&batch)
    }

    /// Returns every row as of this moment, in the order of the keys.
    pub fn iter(&self) -> Rows<'_> {
        self.prefix([])
    }

    /// Returns every row as of this moment whose key begins with the prefix, in the order of the
    /// keys.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Rows<'_> {
        Rows { rows: self.store.kv().scan(&self.family, &self.key(prefix)), table: self.prefix.len() }
    }

    fn write(&self, batch: &Batch) -> Result<(), Error> {
        let _beside_the_writer = self.store.writer().rows().read();
        Ok(self.store.write(batch)?)
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
    /// The length of the table's own prefix, which is cut off each key.
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
