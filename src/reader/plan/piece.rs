//! A piece of what is read: a call, and what became of it.

use super::super::ask::Outcome;
use crate::base::{Index, retry::Retry};
use crate::source::MISSING;
use std::time::Instant;

/// An answer to a call, as far as the plan looks into it.
pub(in crate::reader) trait Answer: Sized {
    fn jobs(&self) -> usize;
    /// Returns the lowest index of which it says nothing, if it begins with `first`.
    fn next(&self, first: Index) -> Index;
    /// Why it says nothing of that index.
    fn outcome(&self) -> Outcome;
    /// Takes that reason out. The rest is an answer that ended early.
    fn split_off_failure(&mut self) -> Self;
    /// Makes an answer that began below `at` begin there. False if there is a job between.
    fn begin_at(&mut self, at: Index) -> bool;
    /// The answer that brings nothing for now, so that something else can be asked for.
    fn not_yet() -> Self;
}

/// A call.
pub(super) struct Piece<A> {
    /// The last index that it reads, and the most jobs that it brings.
    pub(super) last: Index,
    pub(super) most: u32,
    pub(super) state: State<A>,
    pub(super) failed: u32,
    pub(super) missing: u32,
}

pub(super) enum State<A> {
    /// It is to be read.
    Due,
    UnderWay {
        since: Instant,
        until: Option<Instant>,
    },
    Answered(A),
    /// It is read again at this time, or earlier if the consumer asks for it.
    Failed {
        again: Instant,
        answer: A,
    },
    /// The consumer knows that it failed, and asks for it again.
    Reported,
}

impl<A: Answer> Piece<A> {
    pub(super) fn new(last: Index, most: u32) -> Self {
        Self { last, most, state: State::Due, failed: 0, missing: 0 }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        match self.state {
            State::Due => true,
            State::Failed { again, .. } => again <= now,
            _ => false,
        }
    }

    pub(super) fn is_under_way(&self) -> bool {
        matches!(self.state, State::UnderWay { .. })
    }

    /// Returns the most jobs that it brings or has brought.
    pub(super) fn jobs(&self) -> u64 {
        match &self.state {
            State::Answered(answer) => answer.jobs() as u64,
            _ => self.most.into(),
        }
    }

    /// Notes that its first index was not read. The first failure of a sound source is read again
    /// at once.
    pub(super) fn fail(&mut self, answer: A, retry: &Retry, sound: bool, now: Instant, chance: f64) {
        let pause = if answer.outcome() == Outcome::Failed {
            self.failed = self.failed.saturating_add(1);
            let at_once = sound && self.failed == 1;
            if at_once { None } else { retry.delay((self.failed - 1).max(1), chance) }
        } else {
            self.missing = self.missing.saturating_add(1);
            MISSING.delay(self.missing, 1.0)
        };
        self.state = State::Failed { again: now.checked_add(pause.unwrap_or_default()).unwrap_or(now), answer };
    }
}
