//! A database that another process has open, read from beside (a *secondary* of RocksDB).
//!
//! A secondary reads the files of the application, and replays its write-ahead logs in memory. The
//! application does not know of it, and may delete or replace any of these files meanwhile. Two
//! rules make each look a state that the application really had.
//!
//! **A look counts only if the manifest stood still.** The manifest lists the files that matter,
//! and a file that it lists is deleted only after a newer entry removes it. So the manifest is
//! [stamped](Stamp) before the look, and again once the files are open: from then on they stay
//! readable. RocksDB's messages tell when that is. If the stamp has changed, the look may have
//! missed a file (RocksDB skips a deleted log without an error), and it is repeated.
//!
//! **A secondary catches up only while the manifest stands still.** It then reads only the new end
//! of the logs. Once the application has flushed, a secondary that catches up keeps showing values
//! from its own memory that were replaced, and rows that were deleted, in the flushed file.
//! (RocksDB 11.8 has this bug.) It also fails for good when there is a new column family. So a new
//! secondary is opened instead, and replaces the old one.
//!
//! RocksDB wants a directory for a secondary's info log. This one has none, and the path that it
//! gets lies below a file, so nothing can be created there.

use super::{RocksKv, failed, family_options, has_database};
use crate::base::sync::{Arc, AtomicBool, Condvar, Mutex, Ordering, RwLock};
use crate::base::{Error, error::StoreError, time};
use crate::kv::batch::{Batch, FamilyId};
use crate::kv::place::{no_store, opening};
use crate::kv::{Each, Family, KeyRange, Kv, Order, Pair, SYSTEM, Scan};
use rocksdb::{ColumnFamilyDescriptor, DB, InfoLogger, LogLevel, Options};
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a look is repeated while the application replaces its files. An application that writes
/// at full speed does so a few times per second.
const PATIENCE: Duration = Duration::from_secs(10);

/// The pause after the first look that did not count. It doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// The most rows and bytes that a scan reads at a time. The first piece is one row: often enough.
const ROWS: usize = 256;
const BYTES: usize = 256 * 1024;

/// The database of an application, read by this process while the application has it open.
pub(crate) struct Secondary {
    path: PathBuf,
    /// The secondary that all calls read; `None` after a catch-up that broke off halfway.
    seen: RwLock<Option<Arc<OpenSecondary>>>,
    /// Held by the one refresh at a time.
    refreshing: Mutex<()>,
}

/// A secondary, and the manifest that it has read.
struct OpenSecondary {
    kv: RocksKv,
    stamp: Stamp,
}

/// The state of a database's manifest: its name and its length, since entries are only appended.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    /// The content of the file `CURRENT`.
    current: Vec<u8>,
    length: u64,
}

impl Stamp {
    fn of(path: &Path) -> Result<Self, StoreError> {
        let failed = |e: std::io::Error| StoreError::new(opening(path), e.into());
        let read = || std::fs::read(path.join("CURRENT")).map_err(failed);
        let mut current = read()?;
        loop {
            let manifest = path.join(String::from_utf8_lossy(&current).trim_end());
            let missing = match std::fs::metadata(manifest) {
                Ok(metadata) => return Ok(Self { current, length: metadata.len() }),
                Err(e) if e.kind() == ErrorKind::NotFound => e,
                Err(e) => return Err(failed(e)),
            };
            // The application may have begun a new manifest in between.
            let again = read()?;
            if again == current {
                return Err(failed(missing));
            }
            current = again;
        }
    }
}

/// Looks until the manifest stands still during the look. Returns what was seen, and the manifest's
/// stamp. A look that knows the stamp at the time when it had all files open returns that one, too.
///
/// # Errors
/// The error of a look during which the manifest stood still; [`Error::Store`] on a timeout.
fn settled<S: PartialEq, T>(
    stamp: impl Fn() -> Result<S, StoreError>,
    elapsed: impl Fn() -> Duration,
    wait: impl Fn(Duration),
    mut look: impl FnMut() -> (Result<T, Error>, Option<S>),
) -> Result<(T, S), Error> {
    let mut pause = FIRST_PAUSE;
    loop {
        let before = stamp()?;
        let (seen, had_all) = look();
        let after = had_all.filter(|_| seen.is_ok()).map_or_else(&stamp, Ok)?;
        if after == before {
            return Ok((seen?, before));
        }
        if elapsed() >= PATIENCE {
            let doing = "look at the application's database".to_owned();
            let source = "the application replaced its files in each try: try again when it writes less".into();
            return Err(StoreError::new(doing, source).into());
        }
        wait(pause);
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

impl OpenSecondary {
    fn open(path: &Path) -> Result<Self, Error> {
        let begun = time::now();
        let elapsed = || time::now().saturating_duration_since(begun);
        let look = || {
            let files = Arc::new(Files::new(path));
            let opened = open(path, files.clone());
            let had_all = files.had_all.lock().take();
            (opened, had_all)
        };
        let (kv, stamp) = settled(|| Stamp::of(path), elapsed, pause, look)?;
        Ok(Self { kv, stamp })
    }
}

/// The files of a secondary that is being opened, as far as RocksDB's messages tell.
struct Files {
    path: PathBuf,
    /// The stamp of the moment when the table files were open and the logs were listed.
    had_all: Mutex<Option<Stamp>>,
    /// Set by the first relevant message. Later ones come while the logs are read.
    is_told: AtomicBool,
}

impl Files {
    fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), had_all: Mutex::default(), is_told: AtomicBool::new(false) }
    }

    fn hear(&self, message: &str) {
        // RocksDB opens all logs, one by one, before it reads them.
        if message.contains(OPENS_A_LOG) && !self.is_told.swap(true, Ordering::AcqRel) {
            *self.had_all.lock() = Stamp::of(&self.path).ok();
        }
        // A listed log was deleted before it was opened. The manifest says so by now.
        if message.contains(LOG_IS_GONE) {
            *self.had_all.lock() = None;
        }
    }
}

/// RocksDB's messages. If a later version words them differently, slow looks repeat needlessly.
const OPENS_A_LOG: &str = "Recovering log #";
const LOG_IS_GONE: &str = "have already been purged";

/// Opens a secondary, in whatever state the files are.
fn open(path: &Path, files: Arc<Files>) -> Result<RocksKv, Error> {
    let mut options = Options::default();
    // An open file stays readable after the application has deleted it.
    options.set_max_open_files(-1);
    options.set_info_logger(InfoLogger::new_callback_logger(LogLevel::Info, move |_, message| files.hear(message)));
    let names = DB::list_cf(&options, path).map_err(failed(opening(path)))?;
    if !names.iter().any(|name| name == SYSTEM) {
        return Err(no_store(path));
    }
    let families = names.into_iter().map(|name| ColumnFamilyDescriptor::new(name, family_options()));
    let nowhere = path.join("CURRENT").join("nothing");
    let db = DB::open_cf_descriptors_as_secondary(&options, path, &nowhere, families);
    Ok(RocksKv::read_only(Arc::new(db.map_err(failed(opening(path)))?)))
}

fn pause(time: Duration) {
    let nobody = Mutex::new(());
    Condvar::new().wait_until(&mut nobody.lock(), time::now() + time);
}

impl Secondary {
    /// Opens the database in this directory for reading, beside its owner. It creates nothing.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let real = match path.canonicalize() {
            Err(e) if e.kind() == ErrorKind::NotFound => return Err(no_store(path)),
            real => real.map_err(|e| StoreError::new(opening(path), e.into()))?,
        };
        if !has_database(path)? {
            return Err(no_store(path));
        }
        let seen = OpenSecondary::open(&real)?;
        Ok(Self { path: real, seen: RwLock::new(Some(Arc::new(seen))), refreshing: Mutex::default() })
    }

    /// Runs a short call on the current secondary. A refresh waits for it.
    fn read<R>(&self, run: impl FnOnce(&RocksKv) -> Result<R, StoreError>) -> Result<R, StoreError> {
        run(&self.seen.read().as_ref().ok_or_else(broken_off)?.kv)
    }

    /// Returns the current secondary, which shows the same state for as long as it is held.
    fn keep(&self) -> Result<Arc<OpenSecondary>, StoreError> {
        self.seen.read().clone().ok_or_else(broken_off)
    }

    /// Lets the current secondary catch up, if it can. No call reads it meanwhile: the catch-up may
    /// show the changes of one family before those of another.
    fn catch_up(&self, stamp: &Stamp) -> bool {
        let mut place = self.seen.write();
        match &*place {
            // A scan that holds it wants the state that it has.
            Some(seen) if seen.stamp == *stamp && Arc::strong_count(seen) == 1 => {
                let done = seen.kv.refresh().is_ok() && Stamp::of(&self.path).is_ok_and(|after| after == *stamp);
                if !done {
                    // It may show a later change without an earlier one.
                    *place = OpenSecondary::open(&self.path).ok().map(Arc::new);
                }
                place.is_some()
            }
            _ => false,
        }
    }
}

fn broken_off() -> StoreError {
    let source = "the last refresh broke off halfway: call `refresh` until it succeeds".into();
    StoreError::new("read".to_owned(), source)
}

impl Kv for Secondary {
    fn family(&self, name: &str) -> Result<Option<FamilyId>, StoreError> {
        self.read(|kv| kv.family(name))
    }

    fn get(&self, family: &Family, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.read(|kv| kv.get(family, key))
    }

    fn multi_get(&self, family: &Family, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        self.read(|kv| kv.multi_get(family, keys))
    }

    fn rows(&self, family: &Family, keys: KeyRange, order: Order) -> Scan<'_> {
        match self.keep() {
            Ok(seen) => Box::new(Pieces {
                seen,
                family: family.clone(),
                order,
                rest: Some(keys),
                rows: 1,
                read: Vec::new().into_iter(),
            }),
            Err(e) => Box::new(std::iter::once(Err(e))),
        }
    }

    fn range(&self, family: &Family, keys: Range<&[u8]>, each: Each<'_>) -> Result<(), StoreError> {
        self.keep()?.kv.range(family, keys, each)
    }

    fn last(&self, family: &Family, prefix: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.read(|kv| kv.last(family, prefix))
    }

    fn write(&self, batch: &Batch, synced: bool) -> Result<(), StoreError> {
        self.read(|kv| kv.write(batch, synced))
    }

    fn reclaim(&self, _family: &Family, _keys: Range<&[u8]>) -> Result<(), StoreError> {
        Ok(())
    }

    fn refresh(&self) -> Result<(), Error> {
        let _one_at_a_time = self.refreshing.lock();
        // If the directory is gone, this fails, and the last state stays visible.
        let stamp = Stamp::of(&self.path)?;
        if self.catch_up(&stamp) {
            return Ok(());
        }
        let seen = OpenSecondary::open(&self.path)?;
        let before = self.seen.write().replace(Arc::new(seen));
        drop(before);
        Ok(())
    }
}

/// The pairs of a range, read piece by piece: a RocksDB iterator cannot be returned together with
/// the secondary that it borrows. The secondary is held, so all pieces show one state.
struct Pieces {
    seen: Arc<OpenSecondary>,
    family: Family,
    order: Order,
    /// The keys that are not yet read.
    rest: Option<KeyRange>,
    /// The number of rows of the next piece.
    rows: usize,
    read: std::vec::IntoIter<Result<Pair, StoreError>>,
}

impl Pieces {
    fn fill(&mut self, keys: KeyRange) {
        let mut read = Vec::new();
        let mut bytes = 0;
        let mut more = false;
        for pair in self.seen.kv.rows(&self.family, keys.clone(), self.order) {
            bytes += pair.as_ref().map_or(0, |(key, value)| key.len() + value.len());
            read.push(pair);
            more = read.len() == self.rows || bytes >= BYTES;
            if more {
                break;
            }
        }
        // After an error there is nothing more to read.
        if let Some(Ok((last, _))) = read.last().filter(|_| more) {
            self.rest = Some(match self.order {
                Order::Ascending => KeyRange { from: [last, &[0][..]].concat(), ..keys },
                Order::Descending => KeyRange { to: Some(last.clone()), ..keys },
            });
        }
        self.rows = (4 * self.rows).min(ROWS);
        self.read = read.into_iter();
    }
}

impl Iterator for Pieces {
    type Item = Result<Pair, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.read.len() == 0 {
            let keys = self.rest.take()?;
            self.fill(keys);
        }
        self.read.next()
    }
}

#[cfg(test)]
mod tests;
