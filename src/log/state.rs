//! What all handles of one log share: where it begins and ends, who waits for its items, and who still needs them.

use crate::base::error::{Error, StoreError};
use crate::base::index::Index;
use crate::base::sync::{Arc, AtomicBool, AtomicU64, Condvar, Mutex, Ordering};
use crate::commit::sealed::{Kind, SUM};
use crate::kv::batch::{FamilyId, Records};
use crate::kv::{Family, Kv};
use crate::source::wakeup::Wakeup;
use crate::source::watermark::{Listener, Watermark};
use crate::store::keys;
use std::any::TypeId;
use std::fmt;
use std::ops::Range;
use std::sync::Weak;

/// The first index.
const FIRST: Index = 1;

/// The stored bounds: the version, the log's number, the three indices and the checksum.
const SEAL: Kind = Kind { label: "log", versions: &[1] };
const LENGTH: usize = 1 + 4 + 8 + 8 + 8 + SUM;

/// From so many items on they are deleted as a range. Fewer are left until there are more: a range that is deleted is looked at
/// by every read until RocksDB has compacted it away.
const RANGE: u64 = 16 * 1024;

/// Or once so many bytes were pushed and read, as items may be large. Nobody counts them one by one: what is trimmed was either
/// pushed or read in this life, and mostly both.
const BYTES: u64 = 128 << 20;

pub(crate) struct LogState {
    pub(crate) name: String,
    /// Its number in the store.
    id: u32,
    family: Family,
    /// The type of its items, and the type's name.
    pub(crate) item: (TypeId, &'static str),
    first: AtomicU64,
    /// One past the head.
    end: AtomicU64,
    /// Everything below is deleted.
    deleted: AtomicU64,
    /// Pushed and read since then.
    bytes: AtomicU64,
    wakeups: Mutex<Vec<Wakeup>>,
    /// Who is told that there is more, or less.
    watchers: Mutex<Vec<Weak<dyn Listener>>>,
    retained: Mutex<Retained>,
    /// It is about to trim itself, as far as it then can.
    trim_planned: AtomicBool,
}

/// Whose items are kept, and who trims them away once they have processed them.
#[derive(Default)]
struct Retained {
    watermarks: Vec<Watermark>,
    /// The watermarks do not keep it.
    _trimmer: Option<Arc<dyn Listener>>,
}

/// What is stored of a log beside its items, in the family of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) id: u32,
    pub(crate) first: Index,
    /// One past the head, at the time when it was written; there may be items from there on.
    pub(crate) end: Index,
    pub(crate) deleted: Index,
}

impl Bounds {
    pub(crate) fn of_a_new_log(id: u32) -> Self {
        Self { id, first: FIRST, end: FIRST, deleted: FIRST }
    }

    pub(crate) fn encode(self, name: &str) -> Vec<u8> {
        let mut bytes = SEAL.begin(LENGTH);
        bytes.extend_from_slice(&self.id.to_be_bytes());
        [self.first, self.end, self.deleted].iter().for_each(|index| bytes.extend_from_slice(&index.to_be_bytes()));
        SEAL.close(name, &[], &mut bytes);
        bytes
    }

    /// Returns the bounds that are stored, or the reason why they cannot be read.
    pub(crate) fn decode(name: &str, bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() != LENGTH {
            return Err(format!("it is {} bytes long instead of {LENGTH}", bytes.len()));
        }
        let body = SEAL.open(name, &[], bytes)?.body;
        let index = |at: usize| body[4 + 8 * at..].first_chunk().map_or(0, |bytes| Index::from_be_bytes(*bytes));
        let id = body.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
        let bounds = Self { id, first: index(0), end: index(1), deleted: index(2) };
        if FIRST <= bounds.deleted && bounds.deleted <= bounds.first && bounds.first <= bounds.end {
            Ok(bounds)
        } else {
            Err(format!("it ends before it begins: {bounds:?}"))
        }
    }
}

pub(crate) fn bounds_key(name: &str) -> Vec<u8> {
    keys::key(keys::LOG, name.as_bytes())
}

pub(crate) fn item_key(id: u32, index: Index) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&id.to_be_bytes());
    key[4..].copy_from_slice(&index.to_be_bytes());
    key
}

/// The index in an item's key.
pub(crate) fn index_of(key: &[u8]) -> Option<Index> {
    Some(Index::from_be_bytes(*key.get(4..)?.first_chunk()?))
}

impl LogState {
    /// With these bounds, and this head as it was found.
    pub(super) fn new(name: &str, item: (TypeId, &'static str), family: Family, bounds: Bounds, end: Index) -> Self {
        Self {
            name: name.to_owned(),
            id: bounds.id,
            family,
            item,
            first: AtomicU64::new(bounds.first),
            end: AtomicU64::new(end.max(bounds.end)),
            deleted: AtomicU64::new(bounds.deleted),
            bytes: AtomicU64::new(0),
            wakeups: Mutex::default(),
            watchers: Mutex::default(),
            retained: Mutex::default(),
            trim_planned: AtomicBool::new(false),
        }
    }

    pub(crate) fn first(&self) -> Index {
        self.first.load(Ordering::Acquire)
    }

    /// One past the head.
    pub(crate) fn end(&self) -> Index {
        self.end.load(Ordering::Acquire)
    }

    pub(super) fn backlog(&self) -> u64 {
        // It never ends before it begins, but both may move meanwhile.
        let first = self.first();
        self.end().saturating_sub(first)
    }

    pub(crate) fn key(&self, index: Index) -> [u8; 12] {
        item_key(self.id, index)
    }

    /// So many bytes of items went in or out.
    pub(crate) fn passed(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Items up to here are written.
    pub(crate) fn pushed(&self, end: Index) {
        self.end.store(end, Ordering::Release);
        self.wakeups.lock().retain(Wakeup::ring);
        self.tell_watchers();
    }

    pub(super) fn watch(&self, watcher: Weak<dyn Listener>) {
        let mut watchers = self.watchers.lock();
        watchers.retain(|watcher| watcher.strong_count() > 0);
        watchers.push(watcher);
    }

    fn tell_watchers(&self) {
        let watchers: Vec<_> = self.watchers.lock().iter().filter_map(Weak::upgrade).collect();
        watchers.iter().for_each(|watcher| watcher.changed());
    }

    pub(super) fn subscribe(&self, wakeup: Wakeup) {
        let mut wakeups = self.wakeups.lock();
        wakeups.retain(|wakeup| !wakeup.is_stale());
        wakeups.push(wakeup);
    }

    /// The lowest watermark of those who still need the items above it; `None`: nobody does. One that has processed nothing needs
    /// all.
    pub(super) fn needed_from(&self) -> Option<Index> {
        let retained = self.retained.lock();
        let wakeups = self.wakeups.lock();
        let live = wakeups.iter().filter(|wakeup| !wakeup.is_stale()).map(|wakeup| next(wakeup.watermark()));
        retained.watermarks.iter().map(next).chain(live).min()
    }

    /// The index below which it trims itself by now. Only those count who were named to [`retain`](super::JobLog::retain): others
    /// may need more, but are not waited for, and told so when they read.
    pub(super) fn trims_to(&self) -> Index {
        let needed = self.retained.lock().watermarks.iter().map(next).min();
        needed.map_or(0, |first| first.min(self.end()))
    }

    /// Whether it is this caller who has to see to it that the log is trimmed: nobody else does.
    pub(super) fn plan_trim(&self) -> bool {
        !self.trim_planned.swap(true, Ordering::AcqRel)
    }

    /// It is being trimmed, below this index. Who comes further from now on has to see to it.
    pub(super) fn begin_trim(&self) -> Index {
        // Whoever set it has moved a watermark before, which is seen from here on.
        self.trim_planned.swap(false, Ordering::AcqRel);
        self.trims_to()
    }

    /// Holds up whoever asks what is retained.
    #[cfg(test)]
    pub(crate) fn while_unsaid<R>(&self, run: impl FnOnce() -> R) -> R {
        let _retained = self.retained.lock();
        run()
    }

    pub(super) fn retain(&self, watermarks: Vec<Watermark>, trimmer: Arc<dyn Listener>) {
        *self.retained.lock() = Retained { watermarks, _trimmer: Some(trimmer) };
    }

    /// What removes all items below this index, which is not above the end; and the bounds then.
    pub(crate) fn trim(
        &self,
        first: Index,
        end: Index,
        logs: FamilyId,
        system: FamilyId,
    ) -> Result<(Records, Bounds), Error> {
        let mut records = Records::default();
        let mut deleted = self.deleted.load(Ordering::Acquire);
        let many = first - deleted >= RANGE;
        let large = first > deleted && self.bytes.load(Ordering::Relaxed) >= BYTES;
        if many || large {
            records.delete_range(logs, &self.key(deleted), &self.key(first))?;
            deleted = first;
        }
        let bounds = Bounds { id: self.id, first, end, deleted };
        records.put(system, &[&bounds_key(&self.name)], &[&bounds.encode(&self.name)])?;
        Ok((records, bounds))
    }

    /// It is trimmed; what was deleted since the last time.
    pub(crate) fn trimmed(&self, bounds: Bounds) -> Range<Index> {
        self.first.store(bounds.first, Ordering::Release);
        self.tell_watchers();
        let deleted = self.deleted.swap(bounds.deleted, Ordering::AcqRel)..bounds.deleted;
        if !deleted.is_empty() {
            self.bytes.store(0, Ordering::Relaxed);
        }
        deleted
    }
}

impl LogState {
    /// Gives back the disk space of items that were deleted.
    pub(crate) fn reclaim(&self, kv: &dyn Kv, deleted: Range<Index>) -> Result<(), StoreError> {
        if deleted.is_empty() {
            return Ok(());
        }
        kv.sync()?;
        kv.reclaim(&self.family, &self.key(deleted.start)[..]..&self.key(deleted.end)[..])
    }
}

/// Where one thread waits for what another one tells it.
pub(super) struct Ticket<R> {
    told: Mutex<Option<Result<R, Error>>>,
    changed: Condvar,
}

impl<R> Ticket<R> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { told: Mutex::new(None), changed: Condvar::new() })
    }

    pub(super) fn tell(&self, outcome: Result<R, Error>) {
        *self.told.lock() = Some(outcome);
        self.changed.notify_one();
    }

    pub(super) fn wait(&self) -> Result<R, Error> {
        let mut told = self.told.lock();
        loop {
            if let Some(outcome) = told.take() {
                return outcome;
            }
            self.changed.wait(&mut told);
        }
    }
}

/// The lowest index that this one still needs.
fn next(watermark: &Watermark) -> Index {
    watermark.last_processed().map_or(0, |last| last + 1)
}

impl fmt::Debug for LogState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bounds = (self.first(), self.end());
        f.debug_struct("LogState").field("name", &self.name).field("bounds", &bounds).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_trimmed_is_deleted_once_it_is_many_items_or_many_bytes() {
        let bounds = Bounds { id: 7, first: 1, end: 1, deleted: 1 };
        let family = Family::new("f", FamilyId(1));
        let log = LogState::new("l", (TypeId::of::<()>(), "()"), family, bounds, 100_000);
        let trim = |first| {
            let (_, bounds) = log.trim(first, 100_000, FamilyId(1), FamilyId(2)).unwrap();
            log.trimmed(bounds)
        };
        assert!(trim(2).is_empty());
        log.passed(BYTES as usize - 1);
        assert!(trim(3).is_empty());
        log.passed(1);
        assert_eq!(trim(4), 1..4, "large items");
        assert!(trim(RANGE + 3).is_empty());
        assert_eq!(trim(RANGE + 4), 4..RANGE + 4, "many items");
        assert!(trim(RANGE + 5).is_empty());
    }

    #[test]
    fn promise_08_any_flipped_bit_and_any_other_length_is_refused() {
        let bounds = Bounds { id: 7, first: 5, end: 900, deleted: 3 };
        let bytes = bounds.encode("blocks");
        assert_eq!(Bounds::decode("blocks", &bytes), Ok(bounds));
        assert!(Bounds::decode("others", &bytes).is_err());
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Bounds::decode("blocks", &flipped).is_err(), "bit {bit}");
        }
        assert!((0..bytes.len()).all(|cut| Bounds::decode("blocks", &bytes[..cut]).is_err()));
        let backwards = Bounds { first: 901, ..bounds };
        assert!(Bounds::decode("blocks", &backwards.encode("blocks")).is_err());
    }
}
