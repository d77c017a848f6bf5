//! The progress in memory, which lives as long as the process.

use super::{Checkpoint, NOT_ACQUIRED, Progress};
use crate::base::sync::{Arc, Mutex};
use crate::base::{BoxError, Error, Index};

/// A progress in memory, for tests and for streams that start anew with each process.
///
/// All clones share one watermark and one name: a second builder on a clone is a "restart", and a
/// second live consumer gets [`Error::InUse`]. It keeps only the watermark: jobs done above it run
/// again after a "restart". [`Store::in_memory`](crate::Store::in_memory) keeps those.
///
/// ```
/// use waterline::{Consumer, MemoryJobs, MemoryProgress};
///
/// let progress = MemoryProgress::new();
/// let jobs: MemoryJobs<_> = (0..3).collect();
/// Consumer::builder(jobs, progress.clone()).stop_at(2).start(|_| Ok(()))?.join()?;
/// assert_eq!(progress.last_processed(), Some(2));
/// # Ok::<(), waterline::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct MemoryProgress {
    memory: Arc<Mutex<Memory>>,
    /// True if this value has the name. A clone does not have it.
    reserved: bool,
}

#[derive(Debug, Default)]
struct Memory {
    last_processed: Option<Index>,
    in_use: bool,
}

impl Clone for MemoryProgress {
    fn clone(&self) -> Self {
        Self { memory: self.memory.clone(), reserved: false }
    }
}

impl MemoryProgress {
    /// Creates a progress with nothing saved.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the last saved watermark.
    #[must_use]
    pub fn last_processed(&self) -> Option<Index> {
        self.memory.lock().last_processed
    }
}

impl Progress for MemoryProgress {
    fn acquire(&mut self) -> Result<Option<Checkpoint>, Error> {
        let mut memory = self.memory.lock();
        if memory.in_use {
            return Err(Error::InUse { name: "MemoryProgress".to_owned() });
        }
        memory.in_use = true;
        self.reserved = true;
        Ok(memory.last_processed.map(Checkpoint::new))
    }

    fn save(&mut self, checkpoint: &Checkpoint) -> Result<(), BoxError> {
        if !self.reserved {
            return Err(NOT_ACQUIRED.into());
        }
        self.memory.lock().last_processed = Some(checkpoint.last_processed);
        Ok(())
    }
}

impl Drop for MemoryProgress {
    fn drop(&mut self) {
        if self.reserved {
            self.memory.lock().in_use = false;
        }
    }
}
