//! A log's part in each batch: items get their indices here, and what was trimmed is deleted.

use super::state::{Bounds, LogState};
use crate::base::error::StoreError;
use crate::base::index::{BoxError, Index};
use crate::base::sync::Arc;
use crate::commit::overlay::Overlay;
use crate::commit::participant::{Chore, Participant};
use crate::kv::Kv;

/// The state of a log after everything in the batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogTail {
    first: Index,
    /// One past the head.
    end: Index,
    /// The bytes of the items that the batch pushes.
    pushed: u64,
    /// The bounds to be written, if the batch trims the log.
    trimmed: Option<Bounds>,
}

impl LogTail {
    pub(super) fn first(&self) -> Index {
        self.first
    }

    pub(super) fn end(&self) -> Index {
        self.end
    }

    /// Appends an item, which gets its index here.
    pub(super) fn push(&mut self, log: &LogState, value: &[u8], batch: &mut Overlay<'_>) -> Result<(), BoxError> {
        if self.end == Index::MAX {
            return Err(format!("the log {:?} is full", log.name).into());
        }
        batch.put(log.family().id, &[&log.key(self.end)], &[value])?;
        self.end += 1;
        self.pushed += value.len() as u64;
        Ok(())
    }

    /// Removes all items below this index.
    pub(super) fn trim(&mut self, log: &LogState, first: Index, batch: &mut Overlay<'_>) -> Result<(), BoxError> {
        let (records, bounds) = log.trim(first.min(self.end), self.end, self.pushed, self.trimmed)?;
        batch.append(&records);
        self.first = bounds.first;
        self.trimmed = Some(bounds);
        Ok(())
    }
}

impl Participant for LogState {
    type Tail = LogTail;

    fn tail(&self) -> LogTail {
        LogTail { first: self.first(), end: self.end(), pushed: 0, trimmed: None }
    }

    /// Pushes an item: the operation is its JSON.
    fn apply(&self, tail: &mut LogTail, op: &[u8], batch: &mut Overlay<'_>) -> Result<(), BoxError> {
        tail.push(self, op, batch)
    }

    fn publish(self: Arc<Self>, tail: LogTail) -> Option<Chore> {
        self.passed(tail.pushed);
        if tail.end > self.end() {
            self.pushed(tail.end);
        }
        let deleted = self.trimmed(tail.trimmed?);
        (!deleted.is_empty()).then(|| -> Chore {
            Box::new(move |kv| {
                if let Err(error) = self.reclaim(kv) {
                    tracing::warn!(log = self.name, %error, "disk space is given back later");
                }
            })
        })
    }
}

impl LogState {
    /// Gives back the disk space of all items that are deleted by now. Space that could not be
    /// given back is tried again with the next piece.
    fn reclaim(&self, kv: &dyn Kv) -> Result<(), StoreError> {
        // Asked before the sync, so that the sync covers every write that deleted something in
        // here: files are gone for good at once, and the loss of power could otherwise take the
        // writes, and so leave consumers that still need the items.
        let deleted = self.not_reclaimed();
        if deleted.is_empty() {
            return Ok(());
        }
        kv.sync()?;
        kv.reclaim(self.family(), &self.key(deleted.start)[..]..&self.key(deleted.end)[..])?;
        self.reclaimed(deleted.end);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
