//! The state that all handles of one log share: its bounds, the consumers that wait for its items,
//! and those that still need them.

use super::codec::CodecName;
use crate::base::error::Error;
use crate::base::index::Index;
use crate::base::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};
use crate::commit::sealed::Kind;
use crate::kv::batch::{FamilyId, Records};
use crate::kv::{Deletion, Family};
use crate::source::wakeup::Wakeup;
use crate::source::watermark::{Listener, Watermark};
use crate::store::keys;
use std::fmt;
use std::ops::Range;
use std::sync::Weak;

/// The first index.
const FIRST: Index = 1;

/// The stored bounds: the version, the log's number, the three indices, in version 2 the name of
/// the codec, and the checksum.
pub(super) const SEAL: Kind = Kind { label: "log", versions: &[1, 2] };

/// The short form, for a log whose items are JSON.
const OF_JSON: Kind = Kind { versions: &[1], ..SEAL };

/// The length of the fields that both versions have.
const FIELDS: usize = 4 + 8 + 8 + 8;

/// From so many items on they are deleted as a range. Fewer are left until there are more: a range
/// that is deleted is looked at by every read until RocksDB has compacted it away.
const RANGE: u64 = 16 * 1024;

/// They are also deleted once so many bytes were pushed and read, as items may be large. Nobody
/// counts the items that are trimmed: each was pushed or read in this life, and mostly both.
const BYTES: u64 = 128 << 20;

pub(crate) struct LogState {
    pub(crate) name: String,
    /// Its number in the store.
    id: u32,
    /// The family of its items.
    family: Family,
    /// The family of its bounds.
    system: FamilyId,
    /// The name of the codec of its items.
    codec: CodecName,
    first: AtomicU64,
    /// One past the head.
    end: AtomicU64,
    /// The index below which all items are deleted.
    deleted: AtomicU64,
    /// The index below which the disk space of all items is given back.
    reclaimed: AtomicU64,
    /// The bytes that were pushed and read since items were last deleted.
    bytes: AtomicU64,
    wakeups: Mutex<Vec<Wakeup>>,
    /// Those who are told that there is more, or less.
    listeners: Mutex<Vec<Weak<dyn Listener>>>,
    retained: Mutex<Retained>,
    /// True while it is about to trim itself, as far as it then can.
    trim_planned: AtomicBool,
}

/// The consumers that items are kept for, and the listener that trims the items which all of them
/// have processed.
#[derive(Default)]
struct Retained {
    watermarks: Vec<Watermark>,
    /// The watermarks do not keep it.
    _trimmer: Option<Arc<dyn Listener>>,
}

/// The time at which the items that a trim removes are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deleted {
    /// Once they are many items or many bytes.
    Later,
    /// In the same write, also if they are few.
    Now,
}

/// The record of a log beside its items, in the family of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) id: u32,
    pub(crate) first: Index,
    /// One past the head, at the time when it was written; there may be items from there on.
    pub(crate) end: Index,
    pub(crate) deleted: Index,
    /// The name of the codec of its items.
    pub(crate) codec: CodecName,
}

impl Bounds {
    /// Returns the bounds of a log without items, which are JSON.
    pub(crate) fn of_a_new_log(id: u32) -> Self {
        Self { id, first: FIRST, end: FIRST, deleted: FIRST, codec: CodecName::json() }
    }

    pub(crate) fn encode(self, name: &str) -> Vec<u8> {
        let (kind, codec) = if self.codec.is_json() { (OF_JSON, "") } else { (SEAL, self.codec.as_str()) };
        let record = kind.begin(FIELDS + codec.len()).count(self.id).numbers([self.first, self.end, self.deleted]);
        record.bytes(codec.as_bytes()).seal(name, "")
    }

    /// Returns the bounds that are stored, or the reason why they cannot be read.
    pub(crate) fn decode(name: &str, bytes: &[u8]) -> Result<Self, String> {
        let mut fields = SEAL.open(name, "", bytes)?;
        let mut fixed = || Some((fields.count()?, fields.number()?, fields.number()?, fields.number()?));
        let Some((id, first, end, deleted)) = fixed() else {
            return Err(format!("it is only {} bytes long", bytes.len()));
        };
        let codec = fields.rest;
        let codec = match fields.version {
            1 if codec.is_empty() => CodecName::json(),
            1 => return Err(format!("it is {} bytes too long", codec.len())),
            _ => std::str::from_utf8(codec)
                .ok()
                .and_then(CodecName::new)
                .ok_or_else(|| format!("{:?} is no name of a codec", codec.escape_ascii().to_string()))?,
        };
        let bounds = Self { id, first, end, deleted, codec };
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

/// Returns the index in an item's key.
pub(crate) fn index_of(key: &[u8]) -> Option<Index> {
    Some(Index::from_be_bytes(*key.get(4..)?.first_chunk()?))
}

impl LogState {
    /// Makes the state of a log with these bounds, and with this head as it was found. The families
    /// are those of its items and of its bounds.
    pub(super) fn new(name: &str, (family, system): (&Family, FamilyId), bounds: Bounds, end: Index) -> Self {
        Self {
            name: name.to_owned(),
            id: bounds.id,
            family: family.clone(),
            system,
            codec: bounds.codec,
            first: AtomicU64::new(bounds.first),
            end: AtomicU64::new(end.max(bounds.end)),
            deleted: AtomicU64::new(bounds.deleted),
            reclaimed: AtomicU64::new(bounds.deleted),
            bytes: AtomicU64::new(0),
            wakeups: Mutex::default(),
            listeners: Mutex::default(),
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

    /// Returns the name of the codec of its items.
    pub(super) fn codec(&self) -> &str {
        self.codec.as_str()
    }

    pub(super) fn family(&self) -> &Family {
        &self.family
    }

    /// Counts bytes of items that went in or out.
    pub(super) fn passed(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes that the items below this index are written, and rings those who wait for them.
    pub(super) fn pushed(&self, end: Index) {
        self.end.store(end, Ordering::Release);
        self.wakeups.lock().retain(Wakeup::ring);
        self.tell_listeners();
    }

    /// Takes over the bounds and the end that the application has written by now, and rings those
    /// who wait for items. Neither ever goes back.
    pub(super) fn follow(&self, bounds: Bounds, end: Index) {
        // In this order it never seems to begin behind its end.
        let grew = self.end.fetch_max(end, Ordering::AcqRel) < end;
        self.deleted.fetch_max(bounds.deleted, Ordering::AcqRel);
        let shrank = self.first.fetch_max(bounds.first, Ordering::AcqRel) < bounds.first;
        if grew {
            self.wakeups.lock().retain(Wakeup::ring);
        }
        if grew || shrank {
            self.tell_listeners();
        }
    }

    /// Tells this listener from now on when the log has more items, or fewer.
    pub(super) fn listen(&self, listener: Weak<dyn Listener>) {
        let mut listeners = self.listeners.lock();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(listener);
    }

    fn tell_listeners(&self) {
        let listeners: Vec<_> = self.listeners.lock().iter().filter_map(Weak::upgrade).collect();
        listeners.iter().for_each(|listener| listener.changed());
    }

    pub(super) fn subscribe(&self, wakeup: Wakeup) {
        let mut wakeups = self.wakeups.lock();
        wakeups.retain(|wakeup| !wakeup.is_stale());
        wakeups.push(wakeup);
    }

    /// Returns the lowest index that somebody still needs; `None`: nobody needs any. A consumer
    /// that has processed nothing needs all.
    pub(super) fn needed_from(&self) -> Option<Index> {
        let retained = self.retained.lock();
        let wakeups = self.wakeups.lock();
        let live = wakeups.iter().filter(|wakeup| !wakeup.is_stale()).map(|wakeup| wakeup.watermark().needed_from());
        retained.watermarks.iter().map(Watermark::needed_from).chain(live).min()
    }

    /// Returns the index below which the log trims itself by now. Only consumers count that were
    /// named to [`retain`](super::JobLog::retain): others may need more, but nobody waits for them,
    /// and they are told so when they read.
    pub(super) fn trims_to(&self) -> Index {
        let needed = self.retained.lock().watermarks.iter().map(Watermark::needed_from).min();
        needed.map_or(0, |first| first.min(self.end()))
    }

    /// Returns true if this caller has to see to it that the log is trimmed, since nobody else
    /// does.
    pub(super) fn plan_trim(&self) -> bool {
        !self.trim_planned.swap(true, Ordering::AcqRel)
    }

    /// Begins a trim, and returns the index below which it removes items. A consumer that comes
    /// further from now on has to plan the next one.
    pub(super) fn begin_trim(&self) -> Index {
        // The thread that set it has moved a watermark before. That is seen from here on.
        self.trim_planned.swap(false, Ordering::AcqRel);
        self.trims_to()
    }

    /// Holds up everybody who asks what is retained.
    #[cfg(test)]
    pub(crate) fn while_unsaid<R>(&self, run: impl FnOnce() -> R) -> R {
        let _retained = self.retained.lock();
        run()
    }

    pub(super) fn retain(&self, watermarks: Vec<Watermark>, trimmer: Arc<dyn Listener>) {
        *self.retained.lock() = Retained { watermarks, _trimmer: Some(trimmer) };
    }

    /// Returns the records that remove all items below this index, and the bounds then. The tail is
    /// the end of the log, which is not below that index, the bytes that the batch has pushed, and
    /// the bounds after the trims of the batch so far. Where it takes time to delete many items, a
    /// piece of them goes in each batch, unless all of them must go now.
    pub(super) fn trim(
        &self,
        first: Index,
        (end, pushed, before): (Index, u64, Option<Bounds>),
        deletion: Deleted,
        costs: Deletion,
    ) -> Result<(Records, Bounds), Error> {
        let mut records = Records::default();
        let mut deleted = before.map_or_else(|| self.deleted.load(Ordering::Acquire), |bounds| bounds.deleted);
        let bytes = self.bytes.load(Ordering::Relaxed) + pushed;
        let many = first - deleted >= RANGE.min(costs.rows) || deletion == Deleted::Now;
        if first > deleted && (many || bytes >= BYTES.min(costs.bytes)) {
            let to = match deletion {
                Deleted::Now => first,
                Deleted::Later => {
                    let average = bytes / (first - deleted);
                    // More than the batch pushes, so that the log does not grow.
                    let pushed = 2 * (end - self.end().min(end));
                    let piece = costs.rows.min(costs.bytes / average.max(1)).max(pushed).max(1);
                    first.min(deleted.saturating_add(piece))
                }
            };
            records.delete_range(self.family.id, &self.key(deleted), &self.key(to))?;
            deleted = to;
        }
        let bounds = Bounds { id: self.id, first, end, deleted, codec: self.codec };
        records.put(self.system, &[&bounds_key(&self.name)], &[&bounds.encode(&self.name)])?;
        Ok((records, bounds))
    }

    /// Notes that the log is trimmed. Returns the items that were deleted by it.
    pub(super) fn trimmed(&self, bounds: Bounds) -> Range<Index> {
        self.first.store(bounds.first, Ordering::Release);
        self.tell_listeners();
        let deleted = self.deleted.swap(bounds.deleted, Ordering::AcqRel)..bounds.deleted;
        if !deleted.is_empty() {
            // Those that are left have their part of the bytes.
            let (left, all) = (bounds.first - deleted.end, bounds.first - deleted.start);
            let bytes = u128::from(self.bytes.load(Ordering::Relaxed)) * u128::from(left) / u128::from(all.max(1));
            self.bytes.store(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
        deleted
    }

    /// Returns the items that are deleted and whose disk space is not given back. One thread at a
    /// time asks, and notes below what it has done.
    pub(super) fn not_reclaimed(&self) -> Range<Index> {
        self.reclaimed.load(Ordering::Acquire)..self.deleted.load(Ordering::Acquire)
    }

    /// Notes that the disk space of all items below this index is given back.
    pub(super) fn reclaimed(&self, below: Index) {
        self.reclaimed.store(below, Ordering::Release);
    }
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
    fn trimmed_items_are_deleted_once_they_are_many_items_or_many_bytes() {
        let bounds = Bounds::of_a_new_log(7);
        let family = Family::new("f", FamilyId(1));
        let log = LogState::new("l", (&family, FamilyId(2)), bounds, 100_000);
        let trim = |first| {
            let (_, bounds) = log.trim(first, (100_000, 0, None), Deleted::Later, Deletion::default()).unwrap();
            log.trimmed(bounds)
        };
        assert!(trim(2).is_empty());
        log.passed(BYTES - 1);
        assert!(trim(3).is_empty());
        log.passed(1);
        assert_eq!(trim(4), 1..4, "large items");
        assert!(trim(RANGE + 3).is_empty());
        assert_eq!(trim(RANGE + 4), 4..RANGE + 4, "many items");
        assert!(trim(RANGE + 5).is_empty());
    }

    /// The bounds of a log with this codec.
    fn bounds(codec: &str) -> Bounds {
        Bounds { id: 7, first: 5, end: 900, deleted: 3, codec: CodecName::new(codec).unwrap() }
    }

    #[test]
    fn promise_08_a_whole_record_that_no_version_writes_is_refused() {
        let fields = &bounds("json").encode("blocks")[1..=FIELDS];
        let decoded = |version: u8, body: &[&[u8]]| {
            let mut record = [&[version], &body.concat()[..]].concat();
            SEAL.close("blocks", &[], &mut record);
            Bounds::decode("blocks", &record)
        };
        assert_eq!(decoded(1, &[fields]), Ok(bounds("json")));
        assert_eq!(decoded(2, &[fields, b"bytes"]), Ok(bounds("bytes")));
        let bad: [(u8, &[&[u8]], &str); 7] = [
            (1, &[fields, b"json"], "4 bytes too long"),
            (1, &[&fields[1..]], "only 32 bytes long"),
            (2, &[&fields[1..]], "only 32 bytes long"),
            (2, &[fields], "\"\" is no name of a codec"),
            (2, &[fields, &[b'x'; 33]], "is no name of a codec"),
            (2, &[fields, b"\xff"], "is no name of a codec"),
            (3, &[fields, b"bytes"], "this program knows 1 and 2"),
        ];
        for (version, body, reason) in bad {
            let error = decoded(version, body).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        let backwards = Bounds { first: 901, ..bounds("json") };
        assert!(Bounds::decode("blocks", &backwards.encode("blocks")).is_err());
    }

    #[test]
    fn a_trim_keeps_the_codec_in_the_record() {
        let family = Family::new("f", FamilyId(1));
        for codec in ["json", "bytes"] {
            let log = LogState::new("l", (&family, FamilyId(2)), bounds(codec), 900);
            let (_, trimmed) = log.trim(8, (900, 0, None), Deleted::Later, Deletion::default()).unwrap();
            assert_eq!(trimmed, Bounds { first: 8, ..bounds(codec) });
        }
    }
}
