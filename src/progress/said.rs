//! The content of a progress's stored records, for tests: the done indices of each.

use super::format::{self, Series};
use crate::base::Index;

/// The kind of a stored record of a progress.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StoredKind {
    Page,
    /// A delta in this slot, on a page with this lowest undone index.
    Delta {
        slot: u32,
        page_next: Index,
    },
}

/// The content of a stored value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) last_processed: Option<Index>,
    pub(crate) next: Index,
    pub(crate) done: Vec<Index>,
}

/// The generation of the page and of its deltas.
pub(crate) const GENERATION: u32 = 5;

/// The most done indices that are listed one by one.
pub(crate) const MOST_LISTED: usize = 1 << 16;

impl StoredKind {
    pub(crate) fn checksum(self, name: &str, body: &[u8]) -> [u8; 4] {
        match self {
            StoredKind::Page => format::PAGE.checksum(name, &[], body),
            StoredKind::Delta { slot, .. } => format::DELTA.checksum(name, &slot.to_be_bytes(), body),
        }
    }

    /// Decodes a value, if it is readable and short enough to be listed.
    pub(crate) fn read(self, name: &str, bytes: &[u8]) -> Option<Said> {
        let (last_processed, next, runs) = match self {
            StoredKind::Page => {
                let page = format::decode_page(name, bytes).ok()?;
                (page.last_processed, page.next, page.done)
            }
            StoredKind::Delta { slot, page_next } => {
                let delta = format::decode_delta(name, slot, GENERATION, page_next, bytes).ok()??;
                (None, delta.next, delta.new)
            }
        };
        assert_ne!(last_processed, Some(Index::MAX), "promise 8: a watermark that is no job");
        let mut low = next;
        for run in &runs {
            assert!(*run.start() > low && run.start() <= run.end() && *run.end() < Index::MAX, "{run:?} above {next}");
            low = *run.end();
        }
        let done: Vec<Index> = runs.into_iter().flatten().take(MOST_LISTED).collect();
        (done.len() < MOST_LISTED).then_some(Said { last_processed, next, done })
    }

    pub(crate) fn write(self, name: &str, said: &Said) -> Vec<u8> {
        match self {
            StoredKind::Page => {
                let first = said.next / 64 * 64;
                let mut words = vec![0; said.done.last().map_or(0, |last| (last - first) as usize / 64 + 1)];
                said.done.iter().for_each(|i| words[((i - first) / 64) as usize] |= 1 << (i % 64));
                let series = Series { id: 3, generation: GENERATION };
                format::encode_page(name, series, said.last_processed.is_some(), said.next, (first, &words))
            }
            StoredKind::Delta { slot, page_next } => {
                format::encode_delta(name, slot, GENERATION, page_next, said.next, &said.done)
            }
        }
    }
}
