//! The seam between a consumer and whoever saves for it: the store's shared writer, or the thread
//! around a [`Progress`](super::Progress).

use super::{Checkpoint, Saved, format};
use crate::base::index::{BoxError, Index};
use crate::commit::changes::{Changes, Refused};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// What an earlier life left behind beside its watermark, as a store has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Restored {
    /// The lowest index that was not done; `None`: nothing was ever saved.
    pub(crate) next: Option<Index>,
    /// What was done above it.
    pub(crate) done: Vec<RangeInclusive<Index>>,
}

/// What is true when a save is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// The watermark to be; `None` while even the first index is not done.
    pub(crate) last_processed: Option<Index>,
    /// The lowest index that is not done.
    pub(crate) next: Index,
    pub(crate) ahead: DoneAhead,
}

/// What is done above the lowest index that is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DoneAhead {
    /// What is new since the last save, ascending.
    New(Vec<Index>),
    /// All of it, a bit for each index; `first` is that of the first word's lowest bit.
    All { first: Index, words: Vec<u64> },
}

impl Snapshot {
    /// Lists all that is done as runs: a step for each run, and one for each word of the window.
    /// `None` if it has only what is new.
    pub(crate) fn into_saved(self) -> Option<Saved> {
        let DoneAhead::All { first, words } = self.ahead else { return None };
        let done = format::runs_of_bits(first, words.into_iter()).collect();
        Some(Saved::new(self.last_processed, self.next, done))
    }
}

/// The way back, for a store whose progress is called as any other is.
impl TryFrom<&Saved> for Snapshot {
    type Error = BoxError;

    fn try_from(saved: &Saved) -> Result<Self, BoxError> {
        saved.check()?;
        let Saved { last_processed, next, done } = saved.clone().in_order();
        let first = next - next % 64;
        let highest = done.last().map_or(first, |run| (*run.end()).min(Index::MAX - 1));
        let mut words = vec![0_u64; if done.is_empty() { 0 } else { ((highest - first) / 64 + 1) as usize }];
        for run in done {
            // `next` itself is not done, whatever the runs say, and the last number is never a job.
            for index in (*run.start()).max(next.saturating_add(1))..=(*run.end()).min(highest) {
                words[((index - first) / 64) as usize] |= 1 << (index % 64);
            }
        }
        Ok(Self { last_processed, next, ahead: DoneAhead::All { first, words } })
    }
}

/// Who saves for the driver: the store's shared writer, or a thread around a
/// [`Progress`](super::Progress).
pub(crate) trait Saves: Send + Sync {
    /// Begins a save, one at a time. The desk is asked for what to save when it is written, so that
    /// everything that finishes until then is in it. Without a `hurry` that is not before the pace
    /// after the last save is over.
    fn save(&self, desk: Arc<dyn SaveDesk>, hurry: bool);
    /// Cuts the wait for the pace, or for a back-off, short.
    fn hurry(&self);
    /// True if threads of the consumer's pool are to [`help`](Self::help).
    fn takes_help(&self) -> bool {
        false
    }
    /// Makes a save that is late on the calling thread, if nobody is making one.
    fn help(&self) {}
}

/// Who knows what is to be saved, and is told what became of it. Called on the thread that saves.
pub(crate) trait SaveDesk: Send + Sync {
    /// Gives the watermark that is to be saved now; `None`: nothing any more.
    fn checkpoint(&self) -> Option<Checkpoint>;
    /// Gives the same for those who keep what is done above the watermark. That is listed whole if
    /// `all` asks for it, or if it is the shorter way. A list of all costs a step for each word of
    /// the window, so it is made for those alone who need it.
    ///
    /// The effects of the jobs that finished are moved behind those that are there, in the same
    /// moment: both are to be written together, or neither.
    fn snapshot(&self, all: bool, effects: &mut Vec<Changes>) -> Option<Snapshot>;
    /// The effects of these jobs, which were handed over, cannot be written: the jobs failed for
    /// good and are not done. The caller has taken their effects out. The answer is what to save
    /// without them, as [`snapshot`](Self::snapshot) says it in the same moment; it also hands over
    /// the effects of jobs that finished since.
    fn refused(&self, refused: Refused, all: bool, effects: &mut Vec<Changes>) -> Option<Snapshot>;
    /// It is saved.
    fn saved(&self);
    /// It failed. The answer says when to try again; `None`: not at all.
    fn save_failed(&self, error: BoxError) -> Option<Duration>;
    /// It failed for good: another consumer has the name. Nothing is saved any more.
    fn save_lost(&self, error: BoxError);
}
