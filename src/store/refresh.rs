//! Refreshing a read-only store, and listing the tables of a database.

use super::{Store, format, keys};
use crate::base::{Error, sync::Arc};
use crate::kv::{KeyRange, Order, prefix_end};
use std::collections::HashMap;

impl Store {
    /// Makes everything visible that the application has written by now.
    pub(crate) fn refresh_database(&self) -> Result<(), Error> {
        self.kv().refresh()?;
        // A newer version of this library may have taken over the store.
        format::read(self.kv(), self.system(), true, &"the path that was opened")?;
        self.follow().map(drop)
    }

    /// True if nothing is written through this handle: [`StoreOptions::read_only`].
    ///
    /// ```
    /// assert!(!waterline::Store::in_memory().is_read_only());
    /// ```
    ///
    /// [`StoreOptions::read_only`]: crate::StoreOptions::read_only
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Lists the tables that have a row, in the order of their names. A table whose last row was
    /// deleted is not listed, since nothing else is stored of a table. Neither are your [column
    /// families](Self::column_family).
    ///
    /// It reads one row per table, also of those that were [replaced](Self::replace) and are not
    /// deleted yet.
    ///
    /// ```
    /// let store = waterline::Store::in_memory();
    /// store.table("heights")?.put("k2", "8611")?;
    /// store.table("empty")?;
    /// assert_eq!(store.tables()?, ["heights"]);
    /// # Ok::<(), waterline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a row that is in no table, [`Error::Store`] if the database fails.
    pub fn tables(&self) -> Result<Vec<String>, Error> {
        loop {
            let (moved, generation) = self.inner.prefixes.all();
            let tables = self.tables_by(&moved)?;
            // In between a table may have been replaced.
            if !self.follow()? && self.inner.prefixes.generation() == generation {
                return Ok(tables);
            }
        }
    }

    /// Lists the tables, of which these are at other places than their names say.
    fn tables_by(&self, moved: &HashMap<String, Arc<[u8]>>) -> Result<Vec<String>, Error> {
        let places: HashMap<&[u8], &str> = moved.iter().map(|(name, prefix)| (&prefix[..], name.as_str())).collect();
        let (mut tables, mut next) = (Vec::new(), Some(Vec::new()));
        while let Some(from) = next {
            let Some(row) = self.kv().rows(&self.inner.tables, KeyRange { from, to: None }, Order::Ascending).next()
            else {
                break;
            };
            let (key, _) = row?;
            let (prefix, name) = keys::table_of(&key).ok_or_else(|| {
                let reason = format!("the key \"{}\" is in no table", key.escape_ascii());
                Error::Corrupt { name: "waterline.tables".to_owned(), reason }
            })?;
            // Rows at a place that no name has any more are being deleted.
            let name = places.get(prefix).copied().or_else(|| name.filter(|name| !moved.contains_key(*name)));
            tables.extend(name.map(str::to_owned));
            next = prefix_end(prefix);
        }
        // In key order the shorter names come first.
        tables.sort_unstable();
        Ok(tables)
    }
}
