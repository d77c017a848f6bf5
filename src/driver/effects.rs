//! The effects of finished jobs, until they are saved.

use crate::base::Index;
use crate::commit::changes::Changes;

/// From this many bytes on, the effects of a job are moved whole. Smaller ones are copied together.
const LARGE: usize = 4096;

/// The rough size in bytes at which a piece of copied effects is full.
const PIECE: usize = 1 << 20;

/// A worker's buffer that is larger than this many bytes is freed.
const KEPT: usize = 64 * 1024;

#[derive(Debug)]
pub(crate) struct Unwritten {
    /// The effects that wait for a save, in the order in which the jobs finished.
    waiting: Vec<Changes>,
    /// The bytes that wait for a save.
    bytes: usize,
    /// The bytes that are being written.
    writing: usize,
    /// The number of bytes from which on no job starts.
    pub(crate) limit: usize,
    /// True if no more results may wait for a transaction.
    pub(super) crowded: bool,
}

impl Default for Unwritten {
    fn default() -> Self {
        Self { waiting: Vec::new(), bytes: 0, writing: 0, limit: usize::MAX, crowded: false }
    }
}

impl Unwritten {
    /// Takes the effects of an attempt and leaves the buffer empty.
    pub(crate) fn take(&mut self, effects: &mut Changes, index: Index, attempt: u32) {
        if effects.len() >= LARGE {
            effects.sign(index, attempt);
            self.bytes += effects.len();
            self.waiting.push(std::mem::take(effects));
            return;
        }
        if self.waiting.last_mut().is_none_or(|last| last.len() >= PIECE || !last.is_in(effects.generation())) {
            self.waiting.push(Changes::default());
        }
        if let Some(piece) = self.waiting.last_mut() {
            let before = piece.len();
            piece.append(effects, index, attempt);
            self.bytes += piece.len() - before;
        }
    }

    /// True if everything is written.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes + self.writing == 0
    }

    /// True if so much waits for a save that no job may start.
    pub(crate) fn is_full(&self) -> bool {
        self.crowded || self.bytes + self.writing >= self.limit
    }

    /// Hands the effects over to be written, after unwritten ones that were handed over before.
    pub(crate) fn hand_over(&mut self, to: &mut Vec<Changes>) {
        self.writing += std::mem::take(&mut self.bytes);
        to.append(&mut self.waiting);
    }

    /// Notes that everything handed over is written.
    pub(crate) fn written(&mut self) {
        self.writing = 0;
    }
}

/// Prepares a buffer for the next job.
pub(crate) fn clear(effects: &mut Changes) {
    if effects.len() > KEPT {
        *effects = Changes::default();
    } else {
        effects.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::batch::FamilyId;

    #[test]
    fn changes_under_write_count_until_written() {
        let mut effects = Unwritten { limit: 250, ..Unwritten::default() };
        let take = |effects: &mut Unwritten| {
            let mut changes = Changes::default();
            changes.put(FamilyId(1), &[b"key"], &[7; 100]).unwrap();
            effects.take(&mut changes, 0, 1);
            assert!(changes.is_empty(), "the buffer is for the next job");
            effects.is_full()
        };
        assert_eq!([take(&mut effects), take(&mut effects)], [false, false]);
        let mut handed_over = Vec::new();
        effects.hand_over(&mut handed_over);
        assert_eq!(handed_over.iter().map(|changes| changes.records().count()).sum::<u32>(), 2);
        assert!(take(&mut effects), "two are being written, and one waits");
        effects.written();
        assert!(!effects.is_full() && !take(&mut effects) && take(&mut effects));
    }
}
