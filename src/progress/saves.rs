//! The seam between a consumer and what saves for it: the store's shared writer, or the saver
//! thread of a [`Progress`](super::Progress).

use super::{Checkpoint, Life, LiveParking, Saved, format};
use crate::base::{BoxError, Index, time};
use crate::commit::changes::{Changes, Refused};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The state of a consumer at the moment of a save.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// The watermark after this save; `None` while even the first index is not done.
    pub(crate) last_processed: Option<Index>,
    /// The lowest index that is not done.
    pub(crate) next: Index,
    pub(crate) ahead: DoneAhead,
    /// The record of the consumer's life, if it is to be written with this save.
    pub(crate) life: Option<Box<Life>>,
    /// The jobs whose results are written with this save; `None` if there are none.
    pub(crate) batch: Option<Box<WrittenJobs>>,
}

/// The jobs whose results are written with a save.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WrittenJobs {
    /// The jobs, in ascending order.
    pub(crate) jobs: Vec<Index>,
    /// Those whose record this save removes.
    pub(crate) unparked: Vec<Index>,
}

/// The jobs that are done above the lowest undone index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DoneAhead {
    /// The jobs that finished since the last save, ascending.
    New(Vec<Index>),
    /// All jobs, as a bit per index. The lowest bit of the first word stands for the index `first`.
    All { first: Index, words: Vec<u64> },
}

impl Snapshot {
    /// Lists everything that is done as runs, at a cost of a step per run and per word of the
    /// window. `None` if the snapshot has only the news.
    pub(crate) fn into_saved(self) -> Option<Saved> {
        let DoneAhead::All { first, words } = self.ahead else { return None };
        let done = format::runs_of_bits(first, words.into_iter()).collect();
        Some(Saved::new(self.last_processed, self.next, done))
    }
}

/// The reverse conversion, for calls of a store's progress through the trait `Progress`.
impl TryFrom<&Saved> for Snapshot {
    type Error = BoxError;

    fn try_from(saved: &Saved) -> Result<Self, BoxError> {
        saved.check()?;
        let Saved { last_processed, next, done, .. } = saved.clone().in_order();
        let first = next - next % 64;
        let highest = done.last().map_or(first, |run| (*run.end()).min(Index::MAX - 1));
        let mut words = vec![0_u64; if done.is_empty() { 0 } else { ((highest - first) / 64 + 1) as usize }];
        for run in done {
            // A run may wrongly contain `next`, which is not done, or the last number, never a job.
            for index in (*run.start()).max(next.saturating_add(1))..=(*run.end()).min(highest) {
                words[((index - first) / 64) as usize] |= 1 << (index % 64);
            }
        }
        Ok(Self { last_processed, next, ahead: DoneAhead::All { first, words }, life: None, batch: None })
    }
}

/// What saves for the driver: see the head of this file.
pub(crate) trait SaveBackend: Send + Sync {
    /// Begins a save, one at a time. The thread asks the port for the content only when it writes,
    /// so it includes everything that finishes until then. Without `hurry` it waits for the pace.
    fn save(&self, port: Arc<dyn SavePort>, hurry: bool);
    /// Ends the wait for the pace or for a back-off at once.
    fn hurry(&self);
    /// True if the consumer's workers are to call [`help`](Self::help).
    fn takes_help(&self) -> bool {
        false
    }
    /// Makes an overdue save on the calling thread, unless another thread is making one.
    fn help(&self) {}
    /// Registers the consumer that has the name, for calls about its parked jobs.
    fn meet(&self, consumer: Weak<dyn LiveParking>) {
        let _ = consumer;
    }
}

/// Provides the content of a save to the saving thread, and receives the result.
pub(crate) trait SavePort: Send + Sync {
    /// Returns the wall-clock time, in milliseconds since 1970.
    fn wall(&self) -> u64 {
        time::wall()
    }
    /// True if the requested save is not to wait. A call to hurry may come before the call for the
    /// save, since two threads make them, so the pace of saves checks this, too.
    fn is_hurried(&self) -> bool;
    /// Returns the watermark to save now, or `None` if nothing is to be saved any more.
    fn checkpoint(&self) -> Option<Checkpoint>;
    /// Returns the same for a progress that keeps the jobs done above the watermark. It lists all
    /// of these jobs if `all` is set, or if that list is shorter than the news. A list of all costs
    /// a step per word of the window, so only a caller that needs it sets `all`.
    ///
    /// At that moment it appends the effects of the finished jobs to `effects`, for the same write.
    fn snapshot(&self, all: bool, effects: &mut Vec<Changes>) -> Option<Snapshot>;
    /// Marks these jobs, in ascending order, as not done: their effects cannot be written, so their
    /// attempts failed. The caller has removed their effects. Returns the save without these jobs,
    /// as [`snapshot`](Self::snapshot) would, with the effects of jobs that finished since.
    fn refused(&self, refused: Vec<Refused>, all: bool, effects: &mut Vec<Changes>) -> Option<Snapshot>;
    /// Called when the save is written.
    fn saved(&self);
    /// Called when the save failed. Returns the time until the next attempt, or `None` to give up.
    fn save_failed(&self, error: BoxError) -> Option<Duration>;
    /// Called when the user's part of this save failed. Nothing of it is written, and the save is
    /// made again at once, with another content.
    fn write_failed(&self, error: BoxError) {
        drop(error);
    }
    /// Called when it is unknown whether the save is written. No more saves are made.
    fn save_unknown(&self, error: BoxError) {
        self.save_lost(error);
    }
    /// Called when another consumer has the name. No more saves are made.
    fn save_lost(&self, error: BoxError);
}
