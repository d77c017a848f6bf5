//! Catching up with an application beside which a store was opened.

use super::Store;
#[cfg(any(test, feature = "rocksdb", feature = "testing"))]
use super::format;
use crate::base::error::Error;

impl Store {
    /// Shows from now on everything that the application has written by now, if this store was
    /// opened [read-only](super::StoreOptions::read_only). Until then it shows the state of the
    /// last refresh, or of the opening: it never moves by itself.
    ///
    /// It only shows states that the application really had: with a write it shows every earlier
    /// one, and it shows a write as a whole. An iterator goes on showing the state of the moment in
    /// which it was made.
    ///
    /// A refresh reads the news in the application's write-ahead log. If the application has moved
    /// data from there into other files since the last look, a refresh costs as much as opening
    /// does. It is tried again for 10 seconds while the application replaces the files that are
    /// read. If it fails, call it again; it never shows a part of the news.
    ///
    /// On a store that writes it does nothing: such a store shows its own writes at once.
    ///
    #[cfg_attr(feature = "rocksdb", doc = "```")]
    #[cfg_attr(not(feature = "rocksdb"), doc = "```ignore")]
    /// # use waterline::{Error, Store};
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("data");
    /// let application = Store::open(&path)?;
    /// let table = application.table("heights")?;
    /// table.put("k2", "8000")?;
    ///
    /// let beside = Store::options().read_only().open(&path)?;    // mostly in another process
    /// table.put("k2", "8611")?;
    /// assert_eq!(beside.table("heights")?.get("k2")?.as_deref(), Some(b"8000".as_slice()));
    /// beside.refresh()?;
    /// assert_eq!(beside.table("heights")?.get("k2")?.as_deref(), Some(b"8611".as_slice()));
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// * [`Error::Store`] if the files cannot be read, or if the application replaced them in each
    ///   try.
    /// * [`Error::NotFound`] if there is no store any more.
    /// * [`Error::Format`] if a newer version of this library has raised the store meanwhile, and
    ///   [`Error::Corrupt`] if the record of the version is damaged.
    pub fn refresh(&self) -> Result<(), Error> {
        if self.writable().is_ok() {
            return Ok(());
        }
        self.kv().refresh()?;
        #[cfg(any(test, feature = "rocksdb", feature = "testing"))]
        format::read(self.kv(), self.system(), true, &"the path that was opened")?;
        Ok(())
    }
}
