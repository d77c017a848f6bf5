//! The pace at which the write-ahead log is written back beside the saves.
//!
//! SQLite writes it back within a commit, once it has so many pages. A thread for which nobody
//! waits does it before that, and more often, so little is left for the commit. Where the thread
//! comes too late, since a program writes faster than a disk takes it, the commit still does it,
//! and everybody waits for the disk.

use super::connection::{CHECKPOINT, Connections};
use crate::base::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use rusqlite::Connection;
use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;

/// The pages after which the thread writes the log back.
pub(super) const PAGES: u64 = if cfg!(test) { 100 } else { CHECKPOINT as u64 / 4 };

/// The bounds of the bytes that make so many pages. The first count is the lower one: what a
/// transaction changes is not known before.
const FEW: u64 = if cfg!(test) { 16 << 10 } else { 256 << 10 };
const MANY: u64 = 64 << 20;
const PAGE: u64 = 4096;

pub(super) struct Pace {
    /// About as many bytes as were written since the thread wrote the log back. A transaction
    /// counts for a page at least.
    written: AtomicU64,
    /// The count from which it does so again.
    due: AtomicU64,
    /// True if the thread was told.
    told: AtomicBool,
    /// The log when it was written back: how often it had begun anew by then, and its pages.
    before: Mutex<(Option<[u8; 4]>, u64)>,
    file: PathBuf,
}

impl Pace {
    pub(super) fn new(log: PathBuf) -> Self {
        let (due, told) = (AtomicU64::new(FEW), AtomicBool::new(false));
        Self { written: AtomicU64::new(0), due, told, before: Mutex::default(), file: log }
    }

    /// Notes that a transaction has written so many bytes, about.
    pub(super) fn wrote(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64 + PAGE, Ordering::Relaxed);
    }

    /// True once when the log is to be written back.
    pub(super) fn is_due(&self) -> bool {
        let is_due = self.written.load(Ordering::Relaxed) >= self.due.load(Ordering::Relaxed);
        is_due && !self.told.swap(true, Ordering::Relaxed)
    }

    /// Writes back what is in the log, as far as nobody reads the past. It learns from the pages
    /// that it finds how many bytes make so many pages.
    pub(super) fn write_back(&self, readers: &Connections) {
        if !self.told.load(Ordering::Relaxed) {
            return;
        }
        let written = self.written.swap(0, Ordering::Relaxed);
        let checkpoint = |connection: &Connection| {
            connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get::<_, i64>(1))
        };
        // If it fails, or somebody else does it now, the next one does what is left.
        let pages = readers.with("write the log back", checkpoint).ok().and_then(|pages| u64::try_from(pages).ok());
        if let Some(pages) = pages {
            let now = (self.beginnings(), pages);
            let before = std::mem::replace(&mut *self.before.lock(), now);
            let new = if before.0 == now.0 { pages.saturating_sub(before.1) } else { pages };
            self.due.store((written * PAGES / new.max(1)).clamp(FEW, MANY), Ordering::Relaxed);
        }
        self.told.store(false, Ordering::Relaxed);
    }

    /// Reads how often the log has begun anew, from its header. (SQLite has no lock on this file
    /// that it would lose.)
    fn beginnings(&self) -> Option<[u8; 4]> {
        let mut header = [0; 16];
        File::open(&self.file).and_then(|mut log| log.read_exact(&mut header)).ok()?;
        header.last_chunk().copied()
    }
}
