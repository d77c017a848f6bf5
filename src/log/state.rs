//! The state that all handles of a log share: its bounds and its consumers.

use super::bounds::{Bounds, bounds_key, item_key};
use super::{codec::CodecName, kept::Kept};
use crate::base::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};
use crate::base::{Error, Index, error::StoreError, structure::shows};
use crate::commit::overlay::Overlay;
use crate::kv::batch::{FamilyId, Records};
use crate::kv::{Deletion, Family};
use crate::source::watermark::{Listener, Watermark};
use crate::source::{bound::Numbered, wakeup::Wakeup};
use std::ops::Range;
use std::sync::Weak;

/// From this many items on they are deleted as a range. Fewer are left until there are more: every
/// read scans deleted ranges until RocksDB has compacted them.
const RANGE: u64 = 16 * 1024;

/// They are also deleted once this many bytes were pushed and read, as items may be large. Trimmed
/// items are not measured: each was pushed or read in this life, and mostly both.
const BYTES: u64 = 128 << 20;

pub(crate) struct LogState {
    pub(crate) name: String,
    pub(super) id: u32,
    /// The family of its items.
    pub(super) family: Family,
    system: FamilyId,
    pub(super) codec: CodecName,
    first: AtomicU64,
    /// One past the head.
    end: AtomicU64,
    /// The index below which all items are deleted.
    deleted: AtomicU64,
    /// The index below which all disk space is given back.
    reclaimed: AtomicU64,
    /// The bytes pushed and read since items were last deleted.
    bytes: AtomicU64,
    /// The items that are kept for parked jobs.
    pub(super) kept: Kept,
    wakeups: Mutex<Vec<Wakeup>>,
    /// Notified when there is more, or less.
    listeners: Mutex<Vec<Weak<dyn Listener>>>,
    retained: Mutex<Retained>,
    /// True while it is about to trim itself, as far as possible by then.
    trim_planned: AtomicBool,
    /// True if its name belongs to another log by now.
    replaced: AtomicBool,
}

/// The consumers that items are kept for, and the listener that trims what all have processed.
#[derive(Default)]
struct Retained {
    watermarks: Vec<Watermark>,
    /// The watermarks do not keep it alive.
    trimmer: Option<Arc<dyn Listener>>,
}

/// When the items that a trim removes are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deleted {
    /// Once they are many items or bytes.
    Later,
    /// In the same write, however few.
    Now,
}

/// The families of a log: of its items, of those kept for parked jobs, and of its bounds.
pub(super) struct Families {
    pub(super) items: Family,
    pub(super) parked: Family,
    pub(super) system: FamilyId,
}

impl LogState {
    /// Creates the state of a log with these bounds, and with the head that was found.
    pub(super) fn new(name: &str, families: Families, bounds: Bounds, end: Index) -> Self {
        Self {
            name: name.to_owned(),
            id: bounds.id,
            family: families.items,
            system: families.system,
            codec: bounds.codec,
            first: AtomicU64::new(bounds.first),
            end: AtomicU64::new(end.max(bounds.end)),
            deleted: AtomicU64::new(bounds.deleted),
            reclaimed: AtomicU64::new(bounds.deleted),
            bytes: AtomicU64::new(0),
            kept: Kept::new(families.parked, bounds),
            wakeups: Mutex::default(),
            listeners: Mutex::default(),
            retained: Mutex::default(),
            trim_planned: AtomicBool::new(false),
            replaced: AtomicBool::new(false),
        }
    }

    pub(crate) fn first(&self) -> Index {
        self.first.load(Ordering::Acquire)
    }

    /// One past the head.
    pub(crate) fn end(&self) -> Index {
        self.end.load(Ordering::Acquire)
    }

    pub(super) fn bounds(&self) -> Bounds {
        let (first, deleted) = (self.first(), self.deleted.load(Ordering::Acquire));
        Bounds { id: self.id, first, end: self.end(), deleted, kept: self.kept.count(), codec: self.codec }
    }

    /// Returns how many items the retained consumers still have to process, and the slowest one's
    /// watermark. Without such a consumer, these are all items that are not trimmed.
    pub(super) fn undone(&self) -> (u64, Option<Watermark>) {
        let last = self.with_retained(|retained| {
            let next = |watermark: &Watermark| watermark.next().unwrap_or(0);
            retained
                .iter()
                .map(|watermark| (next(watermark), watermark))
                .min_by_key(|(next, _)| *next)
                .map(|(next, watermark)| (next, watermark.clone()))
        });
        let from = last.as_ref().map_or(0, |(next, _)| *next).max(self.first());
        // It never ends before it begins, but both may move meanwhile: rather too many than too
        // few.
        (self.end().saturating_sub(from), last.map(|(_, watermark)| watermark))
    }

    pub(super) fn with_retained<R>(&self, look: impl FnOnce(&[Watermark]) -> R) -> R {
        look(&self.retained.lock().watermarks)
    }

    /// True if `wanted` is true for a consumer that is running on the log.
    pub(super) fn any_live(&self, wanted: impl FnMut(&Watermark) -> bool) -> bool {
        let wakeups = self.wakeups.lock();
        wakeups.iter().filter(|wakeup| !wakeup.is_stale()).map(Wakeup::watermark).any(wanted)
    }

    pub(crate) fn key(&self, index: Index) -> [u8; 12] {
        item_key(self.id, index)
    }

    /// Counts bytes of items that were pushed or read.
    pub(super) fn passed(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes that the items below this index are written, and wakes the consumers.
    pub(super) fn pushed(&self, end: Index) {
        self.end.store(end, Ordering::Release);
        self.wakeups.lock().retain(Wakeup::ring);
        self.tell_listeners();
    }

    /// Takes over the application's bounds and end, which never go back, and wakes the consumers.
    pub(super) fn follow(&self, bounds: Bounds, end: Index) {
        // In this order it never seems to begin after its end.
        let grew = self.end.fetch_max(end, Ordering::AcqRel) < end;
        self.deleted.fetch_max(bounds.deleted, Ordering::AcqRel);
        let shrank = self.first.fetch_max(bounds.first, Ordering::AcqRel) < bounds.first;
        self.kept.set_count(bounds.kept);
        if grew {
            self.wakeups.lock().retain(Wakeup::ring);
        }
        if grew || shrank {
            self.tell_listeners();
        }
    }

    /// Notifies this listener from now on when the log has more items, or fewer.
    pub(super) fn listen(&self, listener: Weak<dyn Listener>) {
        let mut listeners = self.listeners.lock();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(listener);
    }

    /// Notifies sources that the log may hold back that it has more items, or fewer.
    pub(super) fn tell_listeners(&self) {
        let listeners: Vec<_> = self.listeners.lock().iter().filter_map(Weak::upgrade).collect();
        listeners.iter().for_each(|listener| listener.changed());
    }

    pub(super) fn subscribe(self: &Arc<Self>, wakeup: Wakeup) {
        wakeup.watermark().tell_released(Arc::<Self>::downgrade(self));
        self.kept.check_all();
        let mut wakeups = self.wakeups.lock();
        wakeups.retain(|wakeup| !wakeup.is_stale());
        wakeups.push(wakeup);
    }

    /// Returns the lowest index that a consumer has still to process, if any. A consumer that has
    /// processed nothing needs all. (Items of parked jobs are kept individually.)
    pub(super) fn needed_from(&self) -> Option<Index> {
        let mut lowest = self.with_retained(|retained| retained.iter().map(Watermark::needed_from).min());
        self.any_live(|watermark| {
            let needed = watermark.needed_from();
            lowest = Some(lowest.map_or(needed, |lowest| lowest.min(needed)));
            false
        });
        lowest
    }

    /// Returns an error if a consumer needs an item below this index. If there is none, none is
    /// needed, even if a consumer waits for its first one.
    pub(super) fn check_needed(&self, first: Index) -> Result<(), Error> {
        if first <= self.first() {
            return Ok(());
        }
        match self.needed_from().filter(|needed| *needed < first) {
            Some(needed) => {
                let (log, last_processed) = (self.name.clone(), needed.checked_sub(1));
                Err(Error::Needed { log, index: first - 1, last_processed })
            }
            None => Ok(()),
        }
    }

    /// Notes that another log has the name by now, so nothing more is written under it.
    pub(super) fn set_replaced(&self) {
        self.replaced.store(true, Ordering::Release);
    }

    pub(super) fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }

    /// Returns the index below which the log trims itself by now. Only consumers named to
    /// [`retain`](super::JobLog::retain) count: others get an error when they read.
    pub(super) fn trims_to(&self) -> Index {
        let needed = self.with_retained(|retained| retained.iter().map(Watermark::needed_from).min());
        needed.map_or(0, |first| first.min(self.end()))
    }

    /// Returns true if this caller must start a trim, since none is planned.
    pub(super) fn plan_trim(&self) -> bool {
        !self.trim_planned.swap(true, Ordering::AcqRel)
    }

    /// Begins a trim, and returns the index below which it removes items. A consumer that gets
    /// further from now on must plan the next one.
    pub(super) fn begin_trim(&self) -> Index {
        // The thread that set it has moved a watermark before, which is visible from here on.
        self.trim_planned.swap(false, Ordering::AcqRel);
        self.trims_to()
    }

    /// Blocks all calls that read what is retained.
    #[cfg(test)]
    pub(crate) fn while_retained_is_locked<R>(&self, run: impl FnOnce() -> R) -> R {
        let _retained = self.retained.lock();
        run()
    }

    pub(super) fn retain(self: &Arc<Self>, watermarks: Vec<Watermark>, trimmer: Arc<dyn Listener>) {
        watermarks.iter().for_each(|watermark| watermark.tell_released(Arc::<Self>::downgrade(self)));
        *self.retained.lock() = Retained { watermarks, trimmer: Some(trimmer) };
        self.kept.check_all();
    }

    /// Makes a log that trims itself do so, since rows may be freed.
    pub(super) fn trim_again(&self) {
        let trimmer = self.retained.lock().trimmer.clone();
        trimmer.into_iter().for_each(|trimmer| trimmer.changed());
    }

    /// Returns the records that remove all items below this index, and the new bounds. The tail is
    /// the bytes that the batch has pushed, and the bounds after the batch so far, which do not end
    /// below that index. If deletes take time, each batch deletes a piece, unless all must go.
    pub(super) fn trim(
        &self,
        first: Index,
        (pushed, before): (u64, Bounds),
        deletion: Deleted,
        costs: Deletion,
    ) -> Result<(Records, Bounds), Error> {
        let mut records = Records::default();
        let Bounds { end, mut deleted, .. } = before;
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
        let bounds = Bounds { first, deleted, ..before };
        let (key, value) = self.entry(bounds);
        records.put(self.system, &[&key], &[&value])?;
        Ok((records, bounds))
    }

    /// Returns the record of these bounds, with its key.
    fn entry(&self, bounds: Bounds) -> (Vec<u8>, Vec<u8>) {
        (bounds_key(&self.name), bounds.encode(&self.name))
    }

    pub(super) fn put_bounds(&self, bounds: Bounds, batch: &mut Overlay<'_>) -> Result<(), StoreError> {
        let (key, value) = self.entry(bounds);
        batch.put(self.system, &[&key], &[&value])
    }

    /// Notes that the log is trimmed. Returns the items that this deleted.
    pub(super) fn trimmed(&self, bounds: Bounds) -> Range<Index> {
        self.first.store(bounds.first, Ordering::Release);
        self.kept.set_count(bounds.kept);
        // Held-back sources go by the watermarks of retained consumers, if there are any.
        if self.with_retained(<[Watermark]>::is_empty) {
            self.tell_listeners();
        }
        let deleted = self.deleted.swap(bounds.deleted, Ordering::AcqRel)..bounds.deleted;
        if !deleted.is_empty() {
            // The remaining items have their share of the bytes.
            let (left, all) = (bounds.first - deleted.end, bounds.first - deleted.start);
            let bytes = u128::from(self.bytes.load(Ordering::Relaxed)) * u128::from(left) / u128::from(all.max(1));
            self.bytes.store(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
        deleted
    }

    /// Returns the deleted items whose disk space is not given back. One thread at a time calls it,
    /// and then [`reclaimed`](Self::reclaimed).
    pub(super) fn not_reclaimed(&self) -> Range<Index> {
        self.reclaimed.load(Ordering::Acquire)..self.deleted.load(Ordering::Acquire)
    }

    /// Notes that all disk space below this index is given back.
    pub(super) fn reclaimed(&self, below: Index) {
        self.reclaimed.store(below, Ordering::Release);
    }
}

impl Numbered for LogState {
    fn name(&self) -> &str {
        &self.name
    }

    fn first(&self) -> Index {
        self.first()
    }
}

shows!(LogState, of: name = of.name, bounds = (of.first(), of.end()));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trimmed_items_are_deleted_in_bulk() {
        let bounds = Bounds::of_a_new_log(7);
        let log = LogState::new("l", families(), bounds, 100_000);
        let trim = |first| {
            let (_, bounds) = log.trim(first, (0, log.bounds()), Deleted::Later, Deletion::default()).unwrap();
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

    fn families() -> Families {
        let family = Family::new("f", FamilyId(1));
        Families { items: family.clone(), parked: family, system: FamilyId(2) }
    }
}
