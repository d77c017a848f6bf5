//! The ledger of one progress: it knows which records are stored, and decides whether the next save
//! is a delta to the page or a new page.

use super::format::{self, Series};
use super::{DoneAhead, Snapshot, life, reads};
use crate::base::{Error, Index, error::StoreError};
use crate::kv::Pair;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// The size of the deltas, in pages, that makes a new page due. Pages add an eighth to all writes.
const PAGES_WORTH: usize = 8;
/// The size of the deltas, in bytes, below which no new page is written.
const MIN_DELTAS: usize = 64 * 1024;
/// The most slots: as many deltas as are read in milliseconds, with numbers of three bytes.
const MAX_SLOTS: u32 = 16 * 1024;

/// The least time between two stored times of the last move of the watermark, in milliseconds.
const MOVE_EVERY: u64 = 1000;

/// The records of one progress that are stored.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    name: Arc<str>,
    page: Option<PageOnDisk>,
    /// The number of this progress in the store, once assigned.
    id: Option<u32>,
    /// The stored time of the watermark's last move, and the lowest undone index then.
    moved: (u64, Index),
    /// The log that the consumer reads, until a save has stored it; empty if it reads none.
    reads: Option<String>,
}

/// The page, and the size of the deltas after it.
#[derive(Clone, Copy, Debug)]
struct PageOnDisk {
    series: Series,
    next: Index,
    length: usize,
    slots: u32,
    deltas: usize,
}

/// One save: the key and the value that it puts, and the page that is stored afterwards.
pub(crate) struct Entry {
    pub(crate) put: Pair,
    /// The time of the watermark's move, if it is written too, and the lowest undone index then.
    moved: Option<(u64, Index)>,
    /// True if the log that the consumer reads is written, too.
    reads: bool,
    after: PageOnDisk,
}

/// A stored progress.
pub(crate) struct Loaded {
    pub(crate) ledger: Ledger,
    pub(crate) last_processed: Option<Index>,
    /// The lowest index that is not done.
    pub(crate) next: Index,
    /// The jobs that are done above `next`, in the order of the saves.
    pub(crate) done: Vec<RangeInclusive<Index>>,
}

impl Ledger {
    /// Returns the ledger of a progress without records.
    pub(crate) fn empty(name: &str) -> Self {
        Self { name: name.into(), page: None, id: None, moved: (0, 0), reads: None }
    }

    /// Reads the page, and all records with the key prefix of its deltas.
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

    pub(crate) fn id(&self) -> Option<u32> {
        self.id
    }

    /// Sets the number of this progress, which must be unique in the store for ever.
    pub(crate) fn set_id(&mut self, id: u32) {
        self.id = Some(id);
    }

    /// True if the next save is a page, which needs a list of everything that is done.
    pub(crate) fn wants_page(&self) -> bool {
        self.page.is_none_or(|page| page.slots >= MAX_SLOTS || page.deltas >= MIN_DELTAS.max(PAGES_WORTH * page.length))
    }

    /// Returns the record that saves this snapshot, for [`written`](Self::written) once it is
    /// stored. `None` if the progress has no number, or a page is due and only the news is known.
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
        // From now on the deltas of earlier generations are void.
        let generation = before.map_or(0, |page| page.series.generation.wrapping_add(1));
        let series = Series { id: self.id?, generation };
        // A page lists everything that is done.
        let DoneAhead::All { first, words } = &snapshot.ahead else { return None };
        let (watermark, next) = (snapshot.last_processed.is_some(), snapshot.next);
        let value = format::encode_page(&self.name, series, watermark, next, (*first, words));
        let after = PageOnDisk { series, next, length: value.len(), slots: 0, deltas: 0 };
        Some(Entry { put: (format::page_key(&self.name), value), moved: None, reads: false, after })
    }

    /// Adds the time to a save that moves the watermark, at most once a second. Returns the record.
    pub(crate) fn note_move(&self, entry: &mut Entry, next: Index, now: u64) -> Option<Pair> {
        let (at, before) = self.moved;
        if next == before || now.abs_diff(at) < MOVE_EVERY {
            return None;
        }
        entry.moved = Some((now, next));
        Some(life::moved_entry(&self.name, now))
    }

    /// Notes which log the consumer reads, for the next save; empty if it reads none.
    pub(super) fn set_reads(&mut self, log: String) {
        self.reads = Some(log);
    }

    /// Adds the log that the consumer reads to a save, if it must be stored. Returns the record.
    pub(super) fn note_reads(&self, entry: &mut Entry) -> Option<Pair> {
        let log = self.reads.as_ref()?;
        entry.reads = true;
        Some(reads::entry(&self.name, log))
    }

    /// Notes that this record is stored.
    pub(crate) fn written(&mut self, entry: &Entry) {
        self.reads.take_if(|_| entry.reads);
        self.page = Some(entry.after);
        self.moved = entry.moved.unwrap_or(self.moved);
    }
}

#[cfg(test)]
mod tests;
