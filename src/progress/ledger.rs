//! What of one progress is on the disk, and how the next save is written: as a delta to the page, or as a new page.

use super::format::{self, Series};
use super::{DoneAhead, Restored, Snapshot};
use crate::base::error::{Error, StoreError};
use crate::base::index::Index;
use crate::kv::Pair;
use std::sync::Arc;

/// A page is written anew once its deltas are this many times as large, so that pages add an eighth to what is written.
const PAGES_WORTH: usize = 8;
/// Below this many bytes of deltas none is.
const MIN_DELTAS: usize = 64 * 1024;
/// So many deltas are read again in milliseconds; and a slot is a number of three bytes.
const MAX_SLOTS: u32 = 16 * 1024;

/// One progress on the disk.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    name: Arc<str>,
    /// `None` until there is a page of the present format.
    page: Option<PageOnDisk>,
    /// The number of this progress in the store, once it has one.
    id: Option<u32>,
}

/// The page, and how much was written since.
#[derive(Clone, Copy, Debug)]
struct PageOnDisk {
    series: Series,
    next: Index,
    length: usize,
    slots: u32,
    deltas: usize,
}

/// One save: what it puts, and what is on the disk then.
pub(crate) struct Entry {
    pub(crate) put: Pair,
    after: PageOnDisk,
}

/// What was found on the disk.
pub(crate) struct Loaded {
    pub(crate) ledger: Ledger,
    pub(crate) last_processed: Option<Index>,
    pub(crate) restored: Restored,
}

impl Ledger {
    /// One of which nothing is stored.
    pub(crate) fn empty(name: &str) -> Self {
        Self { name: name.into(), page: None, id: None }
    }

    /// Reads what is stored: the page, and all pairs whose keys begin with the prefix of its deltas.
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

    /// Whether it has a number.
    pub(crate) fn id(&self) -> Option<u32> {
        self.id
    }

    /// Its number in the store from now on, which no other one has or had.
    pub(crate) fn set_id(&mut self, id: u32) {
        self.id = Some(id);
    }

    /// Whether the next save is a page, for which everything has to be known.
    pub(crate) fn wants_page(&self) -> bool {
        self.page.is_none_or(|page| page.slots >= MAX_SLOTS || page.deltas >= MIN_DELTAS.max(PAGES_WORTH * page.length))
    }

    /// How this is saved; it is on the disk once [`written`](Self::written) is told. `None`: it has no number yet, or what is
    /// new is not all that a page has to say.
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

    /// This is on the disk.
    pub(crate) fn written(&mut self, entry: &Entry) {
        self.page = Some(entry.after);
    }
}

#[cfg(test)]
mod tests;
