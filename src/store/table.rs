//! Tables. A table is a part of the family of all tables, or a whole family.

use super::{Store, family, keys, register};
use crate::base::config::{ConfigError, check_name};
use crate::base::{Error, error::StoreError, sync::Arc};
use crate::commit::counter;
use crate::commit::prefixes::Prefixes;
use crate::kv::{Family, KeyRange, Order, Scan, batch::Batch, prefix_end};
use std::borrow::Cow;
use std::fmt;
use std::ops::{Bound, RangeBounds};

/// The prefix of the names of the store's column families, including future ones.
const RESERVED: &str = "waterline.";

/// An ordered key space of yours in a [`Store`], from [`Store::table`] or, for a whole column
/// family, [`Store::column_family`]. No other table shares its keys.
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
    /// The prefix of its keys in this generation of the store, which is 0 for a whole family.
    prefix: Arc<[u8]>,
    generation: u64,
    prefixes: Arc<Prefixes>,
}

impl Store {
    /// Returns a key space of yours. The same name is the same table.
    ///
    /// # Errors
    /// [`Error::Config`] for an empty name and for a name above 255 bytes. With
    /// [`create(false)`](crate::StoreOptions::create) also [`Error::NotFound`] for a table without
    /// a row, and [`Error::Store`] if the database fails.
    pub fn table(&self, name: impl AsRef<str>) -> Result<Table, Error> {
        let name = name.as_ref();
        check_name("table", name)?;
        register::check(name, &self.inner.prefixes)?;
        let (prefix, generation) = self.inner.prefixes.of(name);
        let prefix = prefix.unwrap_or_else(|| keys::table_prefix(name).unwrap_or_default().into());
        let table = Table::new(self, name, &self.inner.tables, (prefix, generation));
        let has_row = |prefix: &[u8]| Ok(self.kv().last(&table.family, prefix)?.is_some());
        if !self.creates() && !table.read(has_row, |has_row| !has_row)? {
            return self.not_found("table", name);
        }
        Ok(table)
    }

    /// Returns a column family of your own as a table, with its keys unchanged.
    ///
    /// In a database that you attach, these are the families that you opened it with. `Store::open`
    /// opens all families. In [`Store::in_memory`] every name has one, so tests need no database.
    ///
    /// ```
    /// let store = waterline::Store::in_memory();
    /// let theirs = store.column_family("theirs")?;
    /// theirs.put("key", "value")?;
    /// assert_eq!(store.column_family("theirs")?.get("key")?.as_deref(), Some(b"value".as_slice()));
    /// assert!(store.column_family("waterline.system").is_err());
    /// # Ok::<(), waterline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`] if the database was opened without this family, and for every name that
    /// begins with `waterline.`, since those are the store's own.
    pub fn column_family(&self, name: impl AsRef<str>) -> Result<Table, Error> {
        let name = name.as_ref();
        if name.starts_with(RESERVED) {
            let why = "belongs to the store, as all do whose names begin with \"waterline.\": use another name";
            let why = format!("the column family {name:?} {why}");
            return Err(ConfigError::Family { fault: "reserved", name: name.to_owned(), why }.into());
        }
        let unknown = ("unknown", "open it with that, or use a table (SQLite has no families)");
        Ok(Table::new(self, name, &family(self.kv(), name, unknown)?, (Arc::default(), 0)))
    }
}

impl Table {
    fn new(store: &Store, name: &str, family: &Family, (prefix, generation): (Arc<[u8]>, u64)) -> Self {
        let prefixes = store.inner.prefixes.clone();
        Self { store: store.clone(), name: name.into(), family: family.clone(), prefix, generation, prefixes }
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

    /// True if it is a whole column family.
    pub(crate) fn is_family(&self) -> bool {
        self.generation == 0
    }

    /// Returns the prefix of the table's keys in the family, and the generation of the answer.
    #[inline]
    pub(crate) fn place(&self) -> (Cow<'_, [u8]>, u64) {
        if self.is_family() || self.prefixes.generation() == self.generation {
            return (Cow::Borrowed(&self.prefix), self.generation);
        }
        self.later_place()
    }

    /// The same after a table of the store was replaced.
    #[cold]
    fn later_place(&self) -> (Cow<'_, [u8]>, u64) {
        let (prefix, generation) = self.prefixes.of(&self.name);
        (prefix.map_or(Cow::Borrowed(&self.prefix[..]), |prefix| Cow::Owned(prefix.to_vec())), generation)
    }

    pub(crate) fn prefixes(&self) -> &Prefixes {
        &self.prefixes
    }

    /// Reads the rows with this prefix, and again if something is missing and the table has been
    /// replaced meanwhile: then its rows of before are being deleted.
    #[inline]
    fn read<R>(&self, read: impl Fn(&[u8]) -> Result<R, Error>, is_missing: impl Fn(&R) -> bool) -> Result<R, Error> {
        // It repeats itself only as often as a caller replaces the table meanwhile.
        loop {
            let (prefix, generation) = self.place();
            let found = read(&prefix)?;
            let is_right = !is_missing(&found) || self.is_family();
            if is_right || !self.store.follow()? && self.prefixes.generation() == generation {
                return Ok(found);
            }
        }
    }

    /// Returns the value of this key.
    ///
    /// # Errors
    /// [`Error::Store`] if the database fails.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, Error> {
        let key = key.as_ref();
        let get = |prefix: &[u8]| {
            // `concat` would be a call here, and cost as much as the rest of this function.
            let mut row = Vec::with_capacity(prefix.len() + key.len());
            row.extend_from_slice(prefix);
            row.extend_from_slice(key);
            Ok(self.store.kv().get(&self.family, &row)?)
        };
        self.read(get, Option::is_none)
    }

    /// Returns the value of this key as a counter; 0 if it is missing.
    ///
    /// A counter is 8 bytes in big-endian two's complement.
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
    /// [`Error::ReadOnly`] if the store is read-only, [`Error::Store`] if the database fails. The
    /// key then has its old value, or after a failure perhaps the new one.
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<(), Error> {
        self.store.writable()?;
        let (key, value) = (key.as_ref(), value.as_ref());
        self.write(|prefix, batch| batch.put(self.family.id, &[prefix, key], &[value]))
    }

    /// Removes this key, if it exists.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if the store is read-only, [`Error::Store`] if the database fails.
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<(), Error> {
        self.store.writable()?;
        let key = key.as_ref();
        self.write(|prefix, batch| batch.delete(self.family.id, &[prefix, key]))
    }

    /// Returns the values of these keys, in order, as of one moment: `None` for a missing key. The
    /// database looks them up in one call.
    ///
    /// ```
    /// let table = waterline::Store::in_memory().table("heights")?;
    /// table.put("everest", "8849")?;
    /// let found = table.multi_get(["k2", "everest"])?;
    /// assert_eq!(found, [None, Some(b"8849".to_vec())]);
    /// # Ok::<(), waterline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Store`] if the database fails.
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Vec<Option<Vec<u8>>>, Error> {
        // Behind the prefix, which is cut off should another one be needed.
        let (prefix, _) = self.place();
        let keys: Vec<_> = keys.into_iter().map(|key| [&prefix, key.as_ref()].concat()).collect();
        let get = |now: &[u8]| {
            if *now == *prefix {
                return Ok(self.store.kv().multi_get(&self.family, &keys)?);
            }
            let moved: Vec<_> = keys.iter().map(|key| [now, &key[prefix.len()..]].concat()).collect();
            Ok(self.store.kv().multi_get(&self.family, &moved)?)
        };
        self.read(get, |values| values.contains(&None))
    }

    /// Returns all rows as of this moment, in the order of keys.
    pub fn iter(&self) -> Rows<'_> {
        self.prefix([])
    }

    /// Returns all rows with this key prefix as of this moment, in the order of keys.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Rows<'_> {
        let prefix = prefix.as_ref();
        self.rows(|table| KeyRange::prefix(&[table, prefix].concat()), Order::Ascending)
    }

    /// Returns all rows in this key range as of this moment, in the order of keys.
    ///
    /// A range that ends before it begins yields an error instead of rows. An empty one has no row.
    ///
    /// ```
    /// let table = waterline::Store::in_memory().table("events")?;
    /// for index in 0..10u64 {
    ///     table.put(index.to_be_bytes(), "")?;
    /// }
    /// let (from, to) = (3u64.to_be_bytes(), 5u64.to_be_bytes());
    /// assert_eq!(table.range(from..to).count(), 2);
    /// assert_eq!(table.range(from..=to).count(), 3);
    /// assert_eq!(table.range(to..).count(), 5);
    /// assert!(table.range(to..from).next().unwrap().is_err());
    /// # Ok::<(), waterline::Error>(())
    /// ```
    ///
    /// Name the type of the keys if the compiler cannot infer it: for all rows, for tuples of
    /// bounds, and for keys by reference, since a range of references can be read in two ways:
    ///
    /// ```
    /// # let table = waterline::Store::in_memory().table("events")?;
    /// # ["a", "b", "c"].iter().try_for_each(|key| table.put(key, ""))?;
    /// use std::ops::Bound::{Excluded, Unbounded};
    ///
    /// assert_eq!(table.range::<&[u8]>(..).count(), 3);
    /// let page: Vec<_> = table.range("a"..).take(2).collect::<Result<_, _>>()?;
    /// let last = &page[1].0;
    /// let next_page = table.range::<&[u8]>((Excluded(&last[..]), Unbounded)).take(2);
    /// assert_eq!(next_page.count(), 1);
    /// # Ok::<(), waterline::Error>(())
    /// ```
    pub fn range<K: AsRef<[u8]>>(&self, keys: impl RangeBounds<K>) -> Rows<'_> {
        self.bounded(keys.start_bound(), keys.end_bound(), Order::Ascending)
    }

    /// Returns the rows of [`range`](Self::range) in reverse order. The cost is the same: only the
    /// rows that you take are read. For all rows, use `table.range_rev::<&[u8]>(..)`.
    ///
    /// ```
    /// let table = waterline::Store::in_memory().table("events")?;
    /// for index in 0..10u64 {
    ///     table.put(index.to_be_bytes(), "")?;
    /// }
    /// let last = table.range_rev(..7u64.to_be_bytes()).next().unwrap()?;
    /// assert_eq!(last.0, 6u64.to_be_bytes());
    /// # Ok::<(), waterline::Error>(())
    /// ```
    pub fn range_rev<K: AsRef<[u8]>>(&self, keys: impl RangeBounds<K>) -> Rows<'_> {
        self.bounded(keys.start_bound(), keys.end_bound(), Order::Descending)
    }

    fn bounded<K: AsRef<[u8]>>(&self, start: Bound<&K>, end: Bound<&K>, order: Order) -> Rows<'_> {
        let (start, end) = (start.map(AsRef::as_ref), end.map(AsRef::as_ref));
        match self.check_range(start, end) {
            Ok(()) => self.rows(|table| key_range(table, start, end), order),
            Err(refused) => Rows { refused: Some(refused.into()), ..Rows::over(Box::new(std::iter::empty())) },
        }
    }

    fn check_range(&self, start: Bound<&[u8]>, end: Bound<&[u8]>) -> Result<(), ConfigError> {
        use Bound::{Excluded, Included};
        if let (Included(start) | Excluded(start), Included(end) | Excluded(end)) = (start, end)
            && end < start
        {
            let (start, end) = (start.to_vec(), end.to_vec());
            return Err(ConfigError::RangeBackwards { table: self.name.to_string(), start, end });
        }
        Ok(())
    }

    /// Returns the rows in the range of keys that this returns for the prefix of the table. A scan
    /// shows the moment when it began, so it is begun again if the table was replaced by then.
    fn rows(&self, keys: impl Fn(&[u8]) -> KeyRange, order: Order) -> Rows<'_> {
        let begin = |prefix: &[u8]| {
            let rows = self.store.kv().rows(&self.family, keys(prefix), order);
            Ok(Rows { table: prefix.len(), ..Rows::over(rows) })
        };
        self.read(begin, |_| true)
            .unwrap_or_else(|error| Rows { refused: Some(error), ..Rows::over(Box::new(std::iter::empty())) })
    }

    fn write(&self, change: impl FnOnce(&[u8], &mut Batch) -> Result<(), StoreError>) -> Result<(), Error> {
        let beside_the_writer = self.store.writer().rows().read();
        // While this lock is held no table is replaced.
        let mut batch = Batch::default();
        change(&self.place().0, &mut batch)?;
        beside_the_writer.note(&batch);
        let written = self.store.write_batch(&batch);
        drop(beside_the_writer);
        self.store.writer().tidy();
        Ok(written?)
    }
}

/// Returns the range of keys in the family for this range of the table with this prefix.
fn key_range(prefix: &[u8], start: Bound<&[u8]>, end: Bound<&[u8]>) -> KeyRange {
    use Bound::{Excluded, Included, Unbounded};
    // The next key after a key is that key with a zero byte.
    let key = |key: &[u8], behind: bool| [prefix, key, &[0][..usize::from(behind)]].concat();
    let from = match start {
        Included(start) => key(start, false),
        Excluded(start) => key(start, true),
        Unbounded => prefix.to_vec(),
    };
    let to = match end {
        Included(end) => Some(key(end, true)),
        Excluded(end) => Some(key(end, false)),
        Unbounded => prefix_end(prefix),
    };
    KeyRange { from, to }
}

impl<'a> IntoIterator for &'a Table {
    type Item = Result<(Vec<u8>, Vec<u8>), Error>;
    type IntoIter = Rows<'a>;

    fn into_iter(self) -> Rows<'a> {
        self.iter()
    }
}

/// The rows of a [`Table`]: keys and values, in key order or, for [`Table::range_rev`], in reverse.
#[must_use]
pub struct Rows<'a> {
    rows: Scan<'a>,
    /// Why there are none.
    refused: Option<Error>,
    /// The length of the table's prefix, which is cut off each key.
    table: usize,
}

impl<'a> Rows<'a> {
    fn over(rows: Scan<'a>) -> Self {
        Self { rows, refused: None, table: 0 }
    }
}

impl Iterator for Rows<'_> {
    type Item = Result<(Vec<u8>, Vec<u8>), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(refused) = self.refused.take() {
            return Some(Err(refused));
        }
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
