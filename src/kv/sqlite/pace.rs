//! When a background thread writes the write-ahead log back.
//!
//! SQLite writes it back within a commit, once it has enough pages. A thread that no caller waits
//! for does so earlier and more often, so that little is left for the commit. If a program writes
//! faster than the disk takes it, the thread comes too late: all writers wait for the commit.

use super::connection::{CHECKPOINT, Connections};
use crate::base::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use rusqlite::Connection;
use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;

/// The pages after which the thread writes the log back.
pub(super) const PAGES: u64 = if cfg!(test) { 100 } else { CHECKPOINT as u64 / 4 };

/// The bounds of the bytes that are taken for this many pages, beginning with the lower one: how
/// many pages a transaction changes is not known in advance.
const FEW: u64 = if cfg!(test) { 16 << 10 } else { 256 << 10 };
const MANY: u64 = 64 << 20;
const PAGE: u64 = 4096;

pub(super) struct Pace {
    /// The bytes, about, written since the last write-back. Each transaction adds a page.
    written: AtomicU64,
    /// The value of `written` from which it does so again.
    due: AtomicU64,
    /// True if the thread was notified.
    told: AtomicBool,
    /// The log when it was last written back: its restart counter, and its pages.
    before: Mutex<(Option<[u8; 4]>, u64)>,
    file: PathBuf,
}

impl Pace {
    pub(super) fn new(log: PathBuf) -> Self {
        let (due, told) = (AtomicU64::new(FEW), AtomicBool::new(false));
        Self { written: AtomicU64::new(0), due, told, before: Mutex::default(), file: log }
    }

    /// Notes that a transaction has written about this many bytes.
    pub(super) fn wrote(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64 + PAGE, Ordering::Relaxed);
    }

    /// Returns true once when the log is to be written back.
    pub(super) fn is_due(&self) -> bool {
        let is_due = self.written.load(Ordering::Relaxed) >= self.due.load(Ordering::Relaxed);
        is_due && !self.told.swap(true, Ordering::Relaxed)
    }

    /// Writes the log back as far as its readers allow, and learns how many bytes make [`PAGES`].
    pub(super) fn write_back(&self, readers: &Connections) {
        if !self.told.load(Ordering::Relaxed) {
            return;
        }
        let written = self.written.swap(0, Ordering::Relaxed);
        let checkpoint = |connection: &Connection| {
            connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get::<_, i64>(1))
        };
        // If it fails, or another connection does it now, the next one does the rest.
        let pages = readers.with("write the log back", checkpoint).ok().and_then(|pages| u64::try_from(pages).ok());
        if let Some(pages) = pages {
            let now = (self.beginnings(), pages);
            let before = std::mem::replace(&mut *self.before.lock(), now);
            let new = if before.0 == now.0 { pages.saturating_sub(before.1) } else { pages };
            self.due.store(next_due(self.due.load(Ordering::Relaxed), written, new), Ordering::Relaxed);
        }
        self.told.store(false, Ordering::Relaxed);
    }

    /// Reads the restart counter in the log's header. (SQLite holds no lock on this file.)
    fn beginnings(&self) -> Option<[u8; 4]> {
        let mut header = [0; 16];
        File::open(&self.file).and_then(|mut log| log.read_exact(&mut header)).ok()?;
        header.last_chunk().copied()
    }
}

/// Returns the bytes that make [`PAGES`], after `written` of them made `pages`.
///
/// Transactions that commit between the two counts belong to one of them only, and a few pages for
/// many bytes would put the next write-back off for long: so it at most doubles.
fn next_due(due: u64, written: u64, pages: u64) -> u64 {
    (written * PAGES / pages.max(1)).clamp(FEW, MANY.min(2 * due))
}

#[cfg(test)]
#[test]
fn a_wrong_count_of_pages_does_not_put_the_next_write_back_off() {
    let learned = (0..9).fold(FEW, |due, _| next_due(due, 10 * PAGES * PAGE, 10 * PAGES));
    assert_eq!(learned, (PAGES * PAGE).max(FEW));
    assert_eq!(next_due(learned, learned, 0), 2 * learned);
    assert_eq!(next_due(2 * learned, 2 * learned, 2 * PAGES), learned);
    assert_eq!(next_due(MANY, MANY, 0), MANY);
}
