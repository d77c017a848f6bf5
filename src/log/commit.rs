//! A log's part in each batch: items get their indices, and trimmed ones are deleted.

use super::bounds::Bounds;
use super::state::{Deleted, LogState};
use crate::base::{BoxError, Error, Index, error::StoreError, sync::Arc};
use crate::commit::overlay::Overlay;
use crate::commit::participant::{Cleanup, Participant};
use crate::kv::Kv;

/// The last byte of an operation: push the item before it, or clear the log.
const PUSH: u8 = 0;
const CLEAR: u8 = 1;

/// The spare memory of a pending item, in bytes, that is not worth freeing.
const SPARE: usize = 256;

/// Returns the operation that appends an item. (The tag comes last: a codec gets an empty buffer.)
pub(crate) fn push_op(mut item: Vec<u8>) -> Vec<u8> {
    item.push(PUSH);
    // A codec may reserve far more than its item takes. Only the item counts for the limit of
    // effects, and many items may be pending.
    item.shrink_to(SPARE.max(2 * item.len()));
    item
}

/// The state of a log after everything in the batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogTail {
    pub(super) first: Index,
    /// One past the head.
    pub(super) end: Index,
    /// The bytes of the items that the batch pushes.
    pushed: u64,
    /// The bounds to be written, if the batch trims the log or frees kept items.
    trimmed: Option<Bounds>,
    /// True if the database is to give back the disk space of deleted items.
    reclaims: bool,
}

impl LogTail {
    /// Appends an item, which gets its index here.
    pub(super) fn push(&mut self, log: &LogState, value: &[u8], batch: &mut Overlay<'_>) -> Result<(), BoxError> {
        if self.end == Index::MAX {
            return Err(format!("the log {:?} is full", log.name).into());
        }
        batch.put(log.family.id, &[&log.key(self.end)], &[value])?;
        self.end += 1;
        self.pushed += value.len() as u64;
        Ok(())
    }

    /// Removes all items below this index. `Deleted::Now` deletes them at once, however few.
    pub(super) fn trim(
        &mut self,
        log: &LogState,
        first: Index,
        deleted: Deleted,
        batch: &mut Overlay<'_>,
    ) -> Result<(), BoxError> {
        let first = first.min(self.end);
        let mut before = self.bounds(log);
        before.kept += log.keep_parked(self.first..first, batch)?;
        let costs = batch.deletion();
        let (records, bounds) = log.trim(first, (self.pushed, before), deleted, costs)?;
        batch.append(&records);
        self.first = bounds.first;
        self.trimmed = Some(bounds);
        self.reclaims = costs.reclaims;
        Ok(())
    }

    /// Frees the items of jobs that are no longer parked. Returns whether there are any.
    pub(super) fn free(&mut self, log: &LogState, jobs: &[Index], batch: &mut Overlay<'_>) -> Result<bool, BoxError> {
        let before = self.bounds(log);
        let freed = if before.kept > 0 { log.free(jobs, batch)? } else { 0 };
        if freed > 0 {
            // (The count always matches the rows, which are written with it.)
            let bounds = Bounds { kept: before.kept.saturating_sub(freed), ..before };
            log.put_bounds(bounds, batch)?;
            self.trimmed = Some(bounds);
        }
        Ok(freed > 0)
    }

    /// The bounds after the batch so far.
    fn bounds(&self, log: &LogState) -> Bounds {
        Bounds { first: self.first, end: self.end, ..self.trimmed.unwrap_or_else(|| log.bounds()) }
    }

    /// Removes all items, including those pushed by the batch. Items that a consumer has begun to
    /// need since the operation was requested stay, with all later ones.
    fn clear(&mut self, log: &LogState, batch: &mut Overlay<'_>) -> Result<(), BoxError> {
        let first = log.needed_from().map_or(self.end, |needed| needed.min(self.end));
        if first > self.first { self.trim(log, first, Deleted::Now, batch) } else { Ok(()) }
    }
}

impl Participant for LogState {
    type Staged = LogTail;

    fn staged(&self) -> LogTail {
        LogTail { first: self.first(), end: self.end(), pushed: 0, trimmed: None, reclaims: false }
    }

    fn apply(&self, staged: &mut LogTail, op: &[u8], batch: &mut Overlay<'_>) -> Result<(), BoxError> {
        match op {
            [item @ .., PUSH] => staged.push(self, item, batch),
            [CLEAR] => staged.clear(self, batch),
            _ => Err("an operation of a log is neither a push nor a clear".into()),
        }
    }

    fn publish(self: Arc<Self>, staged: LogTail) -> Option<Cleanup> {
        self.passed(staged.pushed);
        if staged.end > self.end() {
            self.pushed(staged.end);
        }
        let deleted = self.trimmed(staged.trimmed?);
        (staged.reclaims && !deleted.is_empty()).then(|| -> Cleanup {
            Box::new(move |kv| {
                if let Err(error) = self.reclaim(kv) {
                    tracing::warn!(log = self.name, %error, "disk space is given back later");
                }
            })
        })
    }
}

impl LogState {
    /// Returns the operation that removes all items that no consumer needs by then.
    ///
    /// # Errors
    /// [`Error::Needed`] if a consumer needs one of them now.
    pub(crate) fn clear_op(&self) -> Result<Vec<u8>, Error> {
        self.check_needed(self.end())?;
        Ok(vec![CLEAR])
    }

    /// Gives back the disk space of all items that are deleted by now. Space that could not be
    /// given back is retried with the next piece.
    fn reclaim(&self, kv: &dyn Kv) -> Result<(), StoreError> {
        // All of these were deleted by a finished write.
        let deleted = self.not_reclaimed();
        if deleted.is_empty() {
            return Ok(());
        }
        kv.reclaim(&self.family, &self.key(deleted.start)[..]..&self.key(deleted.end)[..])?;
        self.reclaimed(deleted.end);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
