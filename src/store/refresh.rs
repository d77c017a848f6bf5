//! Refreshing a read-only store, and listing the tables of a database.

use super::{Store, format, keys};
use crate::base::Error;
use crate::kv::{KeyRange, Order, prefix_end};

impl Store {
    /// Makes everything visible that the application has written by now.
    pub(crate) fn refresh_database(&self) -> Result<(), Error> {
        self.kv().refresh()?;
        // A newer version of this library may have taken over the store.
        format::read(self.kv(), self.system(), true, &"the path that was opened")?;
        Ok(())
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
    /// It reads one row per table.
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
        let (mut tables, mut next) = (Vec::new(), Some(Vec::new()));
        while let Some(from) = next {
            let Some(row) = self.kv().rows(&self.inner.tables, KeyRange { from, to: None }, Order::Ascending).next()
            else {
                break;
            };
            let (key, _) = row?;
            let (name, prefix) = keys::table_of(&key).ok_or_else(|| {
                let reason = format!("the key \"{}\" is in no table", key.escape_ascii());
                Error::Corrupt { name: "waterline.tables".to_owned(), reason }
            })?;
            tables.push(name.to_owned());
            next = prefix_end(prefix);
        }
        // In key order the shorter names come first.
        tables.sort_unstable();
        Ok(tables)
    }
}
