//! What the source is asked for, and what it answers.

use super::{keys::Key, payloads::Payloads, weights::Weights};
use crate::base::{Index, caught::Caught};
use crate::source::{Steps, next_of};
use std::num::NonZero;
use std::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) first: Index,
    /// The last index that a job may have, if there are gaps.
    pub(crate) last: Index,
    /// Nonzero, so that an `Option` of this takes no extra room.
    most: NonZero<u32>,
}

impl Ask {
    pub(crate) fn new(first: Index, last: Index, most: u64) -> Self {
        let most = u32::try_from(most).ok().and_then(NonZero::new).unwrap_or(NonZero::<u32>::MAX);
        Self { first, last, most }
    }

    /// The most jobs.
    pub(crate) fn most(self) -> usize {
        self.most.get() as usize
    }
}

/// The result of a read.
pub(crate) struct Fetched {
    /// The jobs from the first index of the run.
    pub(crate) jobs: Box<dyn Payloads>,
    /// The gaps between and behind the jobs; empty if there are none.
    pub(crate) steps: Steps,
    pub(crate) weights: Weights,
    /// The keys of the jobs; empty if there is no order by key.
    pub(crate) keys: Vec<Option<Key>>,
    /// Why there are no more jobs.
    pub(crate) then: Then,
    /// True if the call took less time than waking a thread.
    pub(crate) quick: bool,
    /// When the call ended.
    pub(crate) ended: Instant,
    /// Earlier failures of calls that were made again by themselves, by the index not read.
    pub(crate) failures: Vec<(Index, Fetched)>,
}

/// Why no more jobs were read.
pub(crate) enum Then {
    /// No more were requested, or the source stopped early.
    Unasked,
    Missing,
    /// The next job is gone for good: the source begins at `first`.
    Truncated {
        next: Index,
        first: Index,
    },
    Failed(Caught),
    /// Nothing is there yet, and something else may be asked for meanwhile.
    NotYet,
}

impl Fetched {
    /// True if the source answered nothing at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.len() == 0 && self.steps.is_empty()
    }

    /// Returns the lowest index for which the source gave no answer, when asked from `first` on.
    pub(crate) fn next(&self, first: Index) -> Index {
        next_of(first, &self.steps, self.jobs.len())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Good,
    /// A job that should exist is missing.
    Missing,
    Failed,
}

impl From<&Then> for Outcome {
    fn from(then: &Then) -> Self {
        match then {
            Then::Unasked | Then::NotYet => Outcome::Good,
            Then::Missing | Then::Truncated { .. } => Outcome::Missing,
            Then::Failed(_) => Outcome::Failed,
        }
    }
}
