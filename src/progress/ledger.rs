//! The ledger of one progress. It knows which records are on the disk, and decides if the next save
//! is a delta to the page or a new page.

use super::format::{self, Series};
use super::{DoneAhead, Snapshot, life, reads};
use crate::base::error::{Error, StoreError};
use crate::base::index::Index;
use crate::kv::Pair;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// The size of the deltas, counted in pages, above which a new page is written. So pages add an
/// eighth to all that is written.
const PAGES_WORTH: usize = 8;
/// The size of the deltas in bytes below which no new page is written.
const MIN_DELTAS: usize = 64 * 1024;
/// The largest number of slots. So many deltas are read in milliseconds, and the number of a slot
/// fits in three bytes.
const MAX_SLOTS: u32 = 16 * 1024;

/// The least time between two records of the time at which the watermark moved, in milliseconds.
const MOVE_EVERY: u64 = 1000;

/// The records of one progress that are on the disk.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    name: Arc<str>,
    /// The page, once there is one.
    page: Option<PageOnDisk>,
    /// The number of this progress in the store, once it has one.
    id: Option<u32>,
    /// The time that was written last of a move of the watermark, and the lowest undone index then.
    moved: (u64, Index),
    /// The log that the consumer reads, until a save has noted it: empty if it reads none.
    reads: Option<String>,
}

/// The page, and the size of the deltas that were written after it.
#[derive(Clone, Copy, Debug)]
struct PageOnDisk {
    series: Series,
    next: Index,
    length: usize,
    slots: u32,
    deltas: usize,
}

/// One save: the key and the value that it puts, and the page that is on the disk afterwards.
pub(crate) struct Entry {
    pub(crate) put: Pair,
    /// The time of a move of the watermark that is written too, and the lowest undone index then.
    moved: Option<(u64, Index)>,
    /// True if the log that the consumer reads is written too.
    reads: bool,
    after: PageOnDisk,
}

/// A progress as it was found on the disk.
pub(crate) struct Loaded {
    pub(crate) ledger: Ledger,
    pub(crate) last_processed: Option<Index>,
    /// The lowest index that is not done.
    pub(crate) next: Index,
    /// The jobs that are done above `next`, in the order in which saves wrote them.
    pub(crate) done: Vec<RangeInclusive<Index>>,
}

impl Ledger {
    /// Returns the ledger of a progress that has no record yet.
    pub(crate) fn empty(name: &str) -> Self {
        Self { name: name.into(), page: None, id: None, moved: (0, 0), reads: None }
    }

    /// Reads the page, and all records whose keys begin with the prefix of its deltas.
    pub(crate) fn load(
        name: &str,
        page: &[u8],
        deltas: impl IntoIterator<Item = Result<Pair, StoreError>>,
    ) -> Result<Loaded, Error> {
        let corrupt = |reason| Error::Corrupt { name: name.to_owned(), reason };
        let length = page.len();
        let format::Page { series, mut last_processed, next: page_next, mut done } =
            format::decode_page(name, page).map_err(corrupt)?;
        let mut page = PageOnDisk { series, next: page_next, length, slots: 0, deltas: 0 };
        let mut next = page_next;
        for pair in deltas {
            let (key, value) = pair.map_err(|e| Error::Progress { source: e.into() })?;
            let slot = format::slot_of(&key).ok_or_else(|| corrupt(format!("a delta has the key {key:?}")))?;
            let in_slot = |reason| corrupt(format!("delta {slot}: {reason}"));
            let delta = format::decode_delta(name, slot, series.generation, page_next, &value).map_err(in_slot)?;
            let Some(delta) = delta else { continue };
            if slot != page.slots {
                return Err(corrupt(format!("delta {} is missing", page.slots)));
            }
            if delta.next < next {
                return Err(in_slot("it goes back".to_owned()));
            }
            next = delta.next;
            done.extend(delta.new);
            page.slots += 1;
            page.deltas += key.len() + value.len();
        }
        if next > page_next {
            last_processed = Some(next - 1);
        }
        Ok(Loaded {
            ledger: Self { page: Some(page), id: Some(series.id), ..Self::empty(name) },
            last_processed,
            next,
            done,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of this progress in the store, once it has one.
    pub(crate) fn id(&self) -> Option<u32> {
        self.id
    }

    /// Sets the number of this progress in the store. No other progress has or had this number.
    pub(crate) fn set_id(&mut self, id: u32) {
        self.id = Some(id);
    }

    /// True if the next save is a page, which needs a list of everything that is done.
    pub(crate) fn wants_page(&self) -> bool {
        self.page.is_none_or(|page| page.slots >= MAX_SLOTS || page.deltas >= MIN_DELTAS.max(PAGES_WORTH * page.length))
    }

    /// Returns the record that saves this snapshot. The caller calls [`written`](Self::written)
    /// once the record is on the disk. The answer is `None` if the progress has no number, or if a
    /// page is due and the snapshot has only the news.
    pub(crate) fn entry(&self, snapshot: &Snapshot) -> Option<Entry> {
        match (self.page, &snapshot.ahead) {
            (Some(page), DoneAhead::New(new)) => Some(self.delta(page, snapshot, new)),
            (page, _) => self.new_page(page, snapshot),
        }
    }

    fn delta(&self, page: PageOnDisk, snapshot: &Snapshot, new: &[Index]) -> Entry {
        let Series { id, generation } = page.series;
        let key = format::delta_key(id, page.slots);
        let value = format::encode_delta(&self.name, page.slots, generation, page.next, snapshot.next, new);
        let deltas = page.deltas + key.len() + value.len();
        Entry {
            put: (key, value),
            moved: None,
            reads: false,
            after: PageOnDisk { slots: page.slots + 1, deltas, ..page },
        }
    }

    fn new_page(&self, before: Option<PageOnDisk>, snapshot: &Snapshot) -> Option<Entry> {
        // From now on the deltas of the earlier generation are void.
        let generation = before.map_or(0, |page| page.series.generation.wrapping_add(1));
        let series = Series { id: self.id?, generation };
        // A page lists everything that is done.
        let DoneAhead::All { first, words } = &snapshot.ahead else { return None };
        let (watermark, next) = (snapshot.last_processed.is_some(), snapshot.next);
        let value = format::encode_page(&self.name, series, watermark, next, (*first, words));
        let after = PageOnDisk { series, next, length: value.len(), slots: 0, deltas: 0 };
        Some(Entry { put: (format::page_key(&self.name), value), moved: None, reads: false, after })
    }

    /// Adds the record of the time to a save that moves the watermark, if the last such record is a
    /// second old. Returns the record.
    pub(crate) fn note_move(&self, entry: &mut Entry, next: Index, now: u64) -> Option<Pair> {
        let (at, before) = self.moved;
        if next == before || now.abs_diff(at) < MOVE_EVERY {
            return None;
        }
        entry.moved = Some((now, next));
        Some(life::moved_entry(&self.name, now))
    }

    /// Notes which log the consumer reads, for the next save: empty if it reads none.
    pub(super) fn set_reads(&mut self, log: String) {
        self.reads = Some(log);
    }

    /// Adds the note of the log that the consumer reads to a save, if it is to be written.
    pub(super) fn note_reads(&self, entry: &mut Entry) -> Option<Pair> {
        let log = self.reads.as_ref()?;
        entry.reads = true;
        Some(reads::entry(&self.name, log))
    }

    /// Notes that this record is on the disk.
    pub(crate) fn written(&mut self, entry: &Entry) {
        self.reads.take_if(|_| entry.reads);
        self.page = Some(entry.after);
        self.moved = entry.moved.unwrap_or(self.moved);
    }
}

#[cfg(test)]
mod tests;
