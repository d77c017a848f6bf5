//! Stored logs: loaded, listed, and followed while an application writes them.

use super::OpenLogs;
use super::bounds::{Bounds, bounds_key, index_of, item_key};
use super::codec::{Bytes, CODEC, Codec, CodecName, check_stored};
use super::state::{Families, LogState};
use crate::base::{Error, Index, serialized::fields, sync::Arc};
use crate::kv::{PARKED, batch::Batch};
use crate::store::{Store, keys};
use std::fmt;
use std::sync::Weak;

/// A log of a [`Store`], as listed by [`Store::logs`].
///
/// `serde` can write its fields, for example for HTTP.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LogInfo {
    /// The name of the log.
    pub name: String,
    /// The lowest index that is not trimmed; above the head if the log is empty.
    pub first: Index,
    /// The highest index that was ever pushed; `None` if nothing was.
    pub head: Option<Index>,
    /// The number of items below [`first`](Self::first) that are kept only for parked jobs: until
    /// these are [redriven](crate::Handle::redrive) with success or [discarded](Store::discard).
    pub parked: u64,
    /// The name of the codec of its items: `json` for a log of [`Store::log`].
    pub codec: String,
    /// Why the record of the log cannot be read. Then all values above but the name are empty.
    pub unreadable: Option<String>,
}

fields!(LogInfo, of: name, first, head, parked, codec, unreadable);

/// One sentence for people, with the items that it has.
impl fmt::Display for LogInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, first, parked, .. } = self;
        if let Some(reason) = &self.unreadable {
            return write!(f, "the log {name:?} is damaged: {reason}");
        }
        match self.head.filter(|head| head >= first) {
            Some(head) => write!(f, "the log {name:?} has the items {first} to {head}")?,
            None => write!(f, "the log {name:?} has no item from {first} on")?,
        }
        match parked {
            0 => Ok(()),
            1 => write!(f, ", and 1 below that a parked job keeps; redrive or discard it"),
            _ => write!(f, ", and {parked} below that parked jobs keep; redrive or discard them"),
        }
    }
}

impl Store {
    /// Lists all logs, open or not, in the order of their names, with a few reads per log.
    ///
    /// No items are read. A damaged log is listed with the reason, and hides no other one.
    ///
    /// ```
    /// let store = waterline::Store::in_memory();
    /// store.log::<u64>("blocks")?.push_all(&[7, 8, 9])?;
    /// let logs = store.logs()?;
    /// assert_eq!((logs[0].name.as_str(), logs[0].first, logs[0].head), ("blocks", 1, Some(3)));
    /// assert_eq!(logs[0].codec, "json");
    /// # Ok::<(), waterline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Store`] if the database fails.
    pub fn logs(&self) -> Result<Vec<LogInfo>, Error> {
        let mut logs = Vec::new();
        for pair in self.kv().scan(self.system(), keys::LOG) {
            let (key, _) = pair?;
            let name = String::from_utf8_lossy(&key[keys::LOG.len()..]).into_owned();
            let none = LogInfo { name, first: 0, head: None, parked: 0, codec: String::new(), unreadable: None };
            match self.stored_log(&none.name) {
                Ok(Some((bounds, end))) => {
                    let (head, codec) = (Some(end - 1).filter(|head| *head > 0), bounds.codec.as_str().to_owned());
                    logs.push(LogInfo { first: bounds.first, head, parked: bounds.kept, codec, ..none });
                }
                Ok(None) => {}
                Err(error @ Error::Corrupt { .. }) => {
                    logs.push(LogInfo { unreadable: Some(error.to_string()), ..none });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(logs)
    }

    /// Makes everything visible that the application has written by now, in a
    /// [read-only](crate::StoreOptions::read_only) store.
    ///
    /// Until then the store shows the state of the last refresh, or of the opening: it never moves
    /// by itself. On a store that writes it does nothing: such a store always shows its own writes.
    ///
    /// It only shows states that the application really had: a write is visible as a whole, and
    /// with all earlier ones. An iterator keeps showing the state at its creation. An open log of
    /// this store has its new items at once, and its consumers run them. They need a progress
    /// elsewhere, such as a [`MemoryProgress`](crate::MemoryProgress) or a second store.
    ///
    /// A refresh reads the news in the application's write-ahead log. If the application has moved
    /// data from there into other files since the last one, it costs as much as opening the store.
    /// It retries for 10 seconds while the application replaces the files that are read. If it
    /// fails, call it again; it never shows a part of the news.
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
    /// * [`Error::Store`] if the files cannot be read, or were replaced in each attempt.
    /// * [`Error::NotFound`] if there is no store any more.
    /// * [`Error::Format`] if a newer version of this library has taken over the store meanwhile.
    /// * [`Error::Corrupt`] if the record of the version, or of an open log, is damaged. All other
    ///   news are then visible.
    pub fn refresh(&self) -> Result<(), Error> {
        if self.writable().is_ok() {
            return Ok(());
        }
        self.refresh_database()?;
        // User code that is woken may open a log, so the list is not locked.
        let open_logs = self.extension::<OpenLogs>();
        let logs: Vec<Arc<LogState>> = open_logs.0.lock().iter().filter_map(|log| Weak::upgrade(&log.state)).collect();
        let mut refreshed = Ok(());
        for log in logs {
            refreshed = refreshed.and(self.refresh_log(&log));
        }
        refreshed
    }

    /// Takes over the news of a log, unless this store writes it itself.
    pub(super) fn refresh_log(&self, log: &LogState) -> Result<(), Error> {
        if self.writable().is_ok() {
            return Ok(());
        }
        match self.stored_log(&log.name)? {
            Some((bounds, end)) if bounds.id == log.id => log.follow(bounds, end),
            Some(_) => return Err(Error::Replaced { log: log.name.clone() }),
            None => {}
        }
        Ok(())
    }

    /// Loads a log, or creates it.
    pub(super) fn load_log(&self, name: &str, codec: &'static str) -> Result<LogState, Error> {
        let families = self.log_families()?;
        if let Some((bounds, end)) = self.stored_log(name)? {
            if !self.reads_bytes(codec) {
                check_stored(name, bounds.codec.as_str(), codec)?;
            }
            return Ok(LogState::new(name, families, bounds, end));
        }
        if !self.creates() {
            return self.not_found("log", name);
        }
        let mut bounds = Bounds::of_a_new_log(self.ids().next()?);
        bounds.codec = CodecName::new(codec).unwrap_or(bounds.codec);
        if !bounds.codec.is_json() {
            self.note_in_use(CODEC)?;
        }
        let mut batch = Batch::default();
        batch.put(self.system().id, &[&bounds_key(name)], &[&bounds.encode(name)])?;
        self.write_batch(&batch)?;
        Ok(LogState::new(name, families, bounds, bounds.end))
    }

    pub(super) fn log_families(&self) -> Result<Families, Error> {
        Ok(Families { items: self.log_items().clone(), parked: self.family(PARKED)?, system: self.system().id })
    }

    /// Returns an error if a log begins above this index. A missing or unreadable log refuses
    /// nothing.
    pub(crate) fn check_beginning(&self, log: &str, next: Index) -> Result<(), Error> {
        match self.stored_log(log) {
            Ok(Some((bounds, _))) if next < bounds.first => Err(Error::Truncated { next, first: bounds.first }),
            Ok(_) | Err(Error::Corrupt { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// True if this codec reads every log as its stored bytes.
    pub(super) fn reads_bytes(&self, codec: &str) -> bool {
        self.writable().is_err() && codec == <Bytes as Codec<Vec<u8>>>::NAME
    }

    /// Returns the stored bounds of a log, and one past its head. As a program may push and trim
    /// meanwhile, the bounds must be the same before and after the look-up of the head.
    pub(super) fn stored_log(&self, name: &str) -> Result<Option<(Bounds, Index)>, Error> {
        let corrupt =
            |reason| Error::Corrupt { name: name.to_owned(), reason: format!("the bounds of the log: {reason}") };
        let (key, kv) = (bounds_key(name), self.kv());
        let mut before = kv.get(self.system(), &key)?;
        loop {
            let Some(stored) = before else { return Ok(None) };
            let bounds = Bounds::decode(name, &stored).map_err(corrupt)?;
            // Trimmed items may still be stored, and need not be scanned.
            let start = item_key(bounds.id, bounds.end.max(bounds.first));
            let last = match kv.last(self.log_items(), &bounds.id.to_be_bytes())? {
                Some(key) if key.as_slice() >= &start[..] => index_of(&key).map(|index| index + 1),
                _ => None,
            };
            let after = kv.get(self.system(), &key)?;
            if after.as_ref() == Some(&stored) {
                return Ok(Some((bounds, last.unwrap_or(bounds.end))));
            }
            before = after;
        }
    }
}
