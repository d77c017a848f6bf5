//! The ledger of one progress: it knows what is on the disk, and makes the next save a delta to the
//! page, or a new page.

use super::format::{self, Series};
use super::{DoneAhead, Restored, Snapshot};
use crate::base::error::{Error, StoreError};
use crate::base::index::Index;
use crate::kv::Pair;
use std::sync::Arc;

/// The size of its deltas, in pages, from which on a page is written anew: so pages add an eighth
/// to all that is written.
const PAGES_WORTH: usize = 8;
/// The size of its deltas, in bytes, below which no page is written anew.
const MIN_DELTAS: usize = 64 * 1024;
/// The most slots. So many deltas are read in milliseconds, and a slot is a number of three bytes.
const MAX_SLOTS: u32 = 16 * 1024;

/// One progress on the disk.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    name: Arc<str>,
    /// The page, once there is one of the present version.
    page: Option<PageOnDisk>,
    /// The number of this progress in the store, once it has one.
    id: Option<u32>,
}

/// The page, and the size of the deltas since.
#[derive(Clone, Copy, Debug)]
struct PageOnDisk {
    series: Series,
    next: Index,
    length: usize,
    slots: u32,
    deltas: usize,
}

/// One save: the pair that it puts, and the page that is on the disk then.
pub(crate) struct Entry {
    pub(crate) put: Pair,
    after: PageOnDisk,
}

/// A progress as it was found on the disk.
pub(crate) struct Loaded {
    pub(crate) ledger: Ledger,
    pub(crate) last_processed: Option<Index>,
    pub(crate) restored: Restored,
}

impl Ledger {
    /// Returns the ledger of a progress of which nothing is stored.
    pub(crate) fn empty(name: &str) -> Self {
        Self { name: name.into(), page: None, id: None }
    }

    /// Reads the page, and all pairs whose keys begin with the prefix of its deltas.
    pub(crate) fn load(
        name: &str,
        page: &[u8],
        deltas: impl IntoIterator<Item = Result<Pair, StoreError>>,
    ) -> Result<Loaded, Error> {
        let corrupt = |reason| Error::Corrupt { name: name.to_owned(), reason };
        let length = page.len();
        let format::Page { series, mut last_processed, mut restored } =
            format::decode_page(name, page).map_err(corrupt)?;
        let (Some(series), Some(page_next)) = (series, restored.next) else {
            return Ok(Loaded { ledger: Self::empty(name), last_processed, restored });
        };
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
            restored.done.extend(delta.new);
            page.slots += 1;
            page.deltas += key.len() + value.len();
        }
        if next > page_next {
            last_processed = Some(next - 1);
        }
        restored.next = Some(next);
        Ok(Loaded {
            ledger: Self { name: name.into(), page: Some(page), id: Some(series.id) },
            last_processed,
            restored,
        })
    }

    /// Returns its number in the store, once it has one.
    pub(crate) fn id(&self) -> Option<u32> {
        self.id
    }

    /// Sets its number in the store, which no other progress has or had.
    pub(crate) fn set_id(&mut self, id: u32) {
        self.id = Some(id);
    }

    /// True if the next save is a page, for which everything has to be known.
    pub(crate) fn wants_page(&self) -> bool {
        self.page.is_none_or(|page| page.slots >= MAX_SLOTS || page.deltas >= MIN_DELTAS.max(PAGES_WORTH * page.length))
    }

    /// Returns the save of this snapshot. The caller tells [`written`](Self::written) once it is on
    /// the disk. `None` stands for a progress without a number, and for a page that is due where
    /// the snapshot has only what is new.
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
        Entry { put: (key, value), after: PageOnDisk { slots: page.slots + 1, deltas, ..page } }
    }

    fn new_page(&self, before: Option<PageOnDisk>, snapshot: &Snapshot) -> Option<Entry> {
        // Deltas of the generation before are void from now on.
        let generation = before.map_or(0, |page| page.series.generation.wrapping_add(1));
        let series = Series { id: self.id?, generation };
        // A page says all of it.
        let DoneAhead::All { first, words } = &snapshot.ahead else { return None };
        let (watermark, next) = (snapshot.last_processed.is_some(), snapshot.next);
        let value = format::encode_page(&self.name, series, watermark, next, (*first, words));
        let after = PageOnDisk { series, next, length: value.len(), slots: 0, deltas: 0 };
        Some(Entry { put: (format::page_key(&self.name), value), after })
    }

    /// Notes that this save is on the disk.
    pub(crate) fn written(&mut self, entry: &Entry) {
        self.page = Some(entry.after);
    }
}

#[cfg(test)]
mod tests;
