//! The list of the consumers that have a progress in a store.

use super::Saved;
use super::ledger::Loaded;
use crate::base::error::Error;
use crate::base::index::Index;
use crate::store::{Store, keys};

/// A consumer whose progress is in a [`Store`], as [`Store::consumers`] lists it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ConsumerInfo {
    /// The name of the progress: see [`Store::progress`].
    pub name: String,
    /// The saved watermark; `None` while there is none.
    pub last_processed: Option<Index>,
    /// The lowest index that is not done. It is known without a watermark too, if jobs above it are
    /// done; `None` if nothing is.
    pub next: Option<Index>,
    /// The number of jobs that are done above the watermark.
    pub done_ahead: u64,
    /// The reason why the records of the progress cannot be read. Then the values above are empty,
    /// but the name.
    pub unreadable: Option<String>,
}

impl Store {
    /// Lists the consumers that have saved something in this store, in the order of their names. It
    /// shows the saved state of each, if the consumer runs or not, and takes no name.
    ///
    /// A progress that is damaged is in the list too, with the reason. It hides no other one. The
    /// records of each progress are read, and no row and no item.
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, Store};
    ///
    /// let (store, jobs) = (Store::in_memory(), (0..3).collect::<MemoryJobs<_>>());
    /// Consumer::builder(jobs, store.progress("blocks")).stop_at(2).start(|_| Ok(()))?.join()?;
    /// let consumers = store.consumers()?;
    /// assert_eq!((consumers[0].name.as_str(), consumers[0].last_processed), ("blocks", Some(2)));
    /// # Ok::<(), waterline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Progress`] and [`Error::Store`] if the database fails.
    pub fn consumers(&self) -> Result<Vec<ConsumerInfo>, Error> {
        let mut consumers = Vec::new();
        for pair in self.kv().scan(self.system(), keys::PAGE) {
            let (key, _) = pair?;
            let name = String::from_utf8_lossy(&key[keys::PAGE.len()..]).into_owned();
            let loaded = self.progress(name.as_str()).load();
            let none = ConsumerInfo { name, last_processed: None, next: None, done_ahead: 0, unreadable: None };
            match loaded {
                Ok(Some(loaded)) => consumers.push(info(none, loaded)),
                // It was removed just now.
                Ok(None) => {}
                Err(error @ Error::Corrupt { .. }) => {
                    consumers.push(ConsumerInfo { unreadable: Some(error.to_string()), ..none });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(consumers)
    }
}

fn info(none: ConsumerInfo, loaded: Loaded) -> ConsumerInfo {
    let last_processed = loaded.last_processed;
    let Some(next) = loaded.next() else { return ConsumerInfo { last_processed, ..none } };
    let saved = Saved::new(last_processed, next, loaded.restored.done).in_order();
    let done_ahead = saved.done.iter().map(|run| (run.end() - run.start()).saturating_add(1)).sum();
    ConsumerInfo { last_processed, next: Some(next), done_ahead, ..none }
}
