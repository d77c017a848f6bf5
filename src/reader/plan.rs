//! Which reads are under way at once, and in what order their answers go on. No I/O and no clock.
//!
//! The consumer asks for one run of new jobs at a time, in index order, and now and then for failed
//! jobs. The plan splits what it may read into *pieces*, each of them a call. Calls return in any
//! order, and their answers go on in index order. A piece that failed is read again by itself while
//! the others go on. Once several calls in a row have failed, only the lowest piece is read, at the
//! pace of the consumer.

use super::ask::{Ask, Outcome};
use crate::base::{Index, retry::Retry};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

mod lengths;
mod piece;

use self::lengths::{LONGEST, Lengths};
pub(super) use self::piece::Answer;
use self::piece::{Piece, State};

/// So many failures in a row are an outage of the source. Fewer are those of single jobs.
const OUTAGE: u32 = 3;

/// How long the answers to new jobs wait while a failed job is read, and the other way round.
const YIELD_EVERY: Duration = Duration::from_millis(5);

/// What the consumer asks for, or has asked for last.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    New,
    Again,
}

/// What could be read next.
enum Candidate<A> {
    Again,
    Piece(Index),
    New(Index, Piece<A>),
}

pub(super) struct Plan<A> {
    /// The most calls under way.
    calls: usize,
    retry: Retry,
    /// The pieces of new jobs by their first indices, without a hole.
    pieces: BTreeMap<Index, Piece<A>>,
    /// The lowest index that no piece reads.
    frontier: Index,
    /// The lowest new index whose answer has not gone on.
    front: Index,
    /// The last run of new jobs that the consumer asked for.
    new: Option<Ask>,
    /// The failed jobs that are read again.
    again: Option<(Index, Piece<A>)>,
    asked: Option<Kind>,
    /// Calls whose answers the consumer does not want any more, by their first indices: the last
    /// index, and when the call has taken too long.
    unwanted: BTreeMap<Index, (Index, Option<Instant>)>,
    /// How many calls have failed since the last answer.
    in_a_row: u32,
    lengths: Lengths,
    /// When something else may go first again, though the consumer waits for this.
    yields: Option<Instant>,
    /// Failures that the consumer has not heard of.
    failures: Vec<(Index, A)>,
}

impl<A: Answer> Plan<A> {
    pub(super) fn new(calls: usize, retry: Retry) -> Self {
        Self {
            calls,
            retry,
            pieces: BTreeMap::new(),
            frontier: 0,
            front: 0,
            new: None,
            again: None,
            asked: None,
            unwanted: BTreeMap::new(),
            in_a_row: 0,
            lengths: Lengths::default(),
            yields: None,
            failures: Vec::new(),
        }
    }

    /// Takes what the consumer asks for. Returns values to drop.
    pub(super) fn ask(&mut self, ask: Ask) -> Vec<A> {
        let mut dropped = Vec::new();
        if ask.first < self.front {
            self.ask_again(ask, &mut dropped);
        } else {
            self.ask_new(ask, &mut dropped);
        }
        dropped
    }

    fn ask_new(&mut self, ask: Ask, dropped: &mut Vec<A>) {
        self.asked = Some(Kind::New);
        (self.front, self.new) = (ask.first, Some(ask));
        while let Some(entry) = self.pieces.first_entry().filter(|entry| entry.get().last < ask.first) {
            // An answer may go on beyond its piece, with a gap.
            if let State::Answered(answer) = &entry.get().state
                && answer.next(*entry.key()) > ask.first
            {
                break;
            }
            let (first, piece) = entry.remove_entry();
            self.leave(first, piece, dropped);
        }
        self.frontier = self.frontier.max(ask.first);
        if self.pieces.is_empty() {
            self.frontier = ask.first;
        }
        if let Some(mut entry) = self.pieces.first_entry()
            && matches!(entry.get().state, State::Reported)
        {
            entry.get_mut().state = State::Due;
        }
    }

    fn ask_again(&mut self, ask: Ask, dropped: &mut Vec<A>) {
        self.asked = Some(Kind::Again);
        match &mut self.again {
            Some((first, _)) if *first == ask.first => {}
            _ => {
                if let Some((first, piece)) = self.again.take() {
                    self.leave(first, piece, dropped);
                }
                let most = self.lengths.jobs.min(u32::try_from(ask.most()).unwrap_or(LONGEST));
                self.again = Some((ask.first, Piece::new(ask.last.min(ask.first + u64::from(most) - 1), most)));
            }
        }
    }

    /// Leaves a piece: its answer is not wanted any more.
    fn leave(&mut self, first: Index, piece: Piece<A>, dropped: &mut Vec<A>) {
        match piece.state {
            State::UnderWay { until, .. } => _ = self.unwanted.insert(first, (piece.last, until)),
            State::Answered(answer) | State::Failed { answer, .. } => dropped.push(answer),
            State::Due | State::Reported => {}
        }
    }

    fn under_way(&self) -> usize {
        let again = self.again.iter().filter(|(_, piece)| piece.is_under_way()).count();
        self.pieces.values().filter(|piece| piece.is_under_way()).count() + again + self.unwanted.len()
    }

    /// True if a call could be made.
    pub(super) fn has_call(&self, now: Instant) -> bool {
        self.candidate(now).is_some()
    }

    /// Returns the next call to make, and counts it as under way from now on. `until`: when it has
    /// taken too long, on the machine's clock.
    pub(super) fn next_call(&mut self, now: Instant, until: Option<Instant>) -> Option<Ask> {
        let (first, piece) = match self.candidate(now)? {
            Candidate::Again => self.again.as_mut().map(|(first, piece)| (*first, piece))?,
            Candidate::Piece(first) => (first, self.pieces.get_mut(&first)?),
            Candidate::New(first, piece) => {
                self.frontier = piece.last + 1;
                (first, self.pieces.entry(first).or_insert(piece))
            }
        };
        let before = std::mem::replace(&mut piece.state, State::UnderWay { since: now, until });
        let ask = Ask::new(first, piece.last, piece.most.into());
        if let State::Failed { answer, .. } = before {
            self.failures.push((first, answer));
        }
        Some(ask)
    }

    fn candidate(&self, now: Instant) -> Option<Candidate<A>> {
        if self.under_way() >= self.calls {
            return None;
        }
        // No index is read by two calls at once.
        let is_free = |first: Index, piece: &Piece<A>| {
            self.unwanted.range(..=piece.last).next_back().is_none_or(|(_, (end, _))| *end < first)
        };
        if self.again.as_ref().is_some_and(|(first, piece)| piece.is_due(now) && is_free(*first, piece)) {
            return Some(Candidate::Again);
        }
        let outage = self.in_a_row >= OUTAGE;
        let mut pieces = self.pieces.iter().take(if outage { 1 } else { usize::MAX });
        if let Some((first, _)) = pieces.find(|(first, piece)| piece.is_due(now) && is_free(**first, piece)) {
            return Some(Candidate::Piece(*first));
        }
        let (first, piece) = self.new_piece().filter(|_| !outage || self.pieces.is_empty())?;
        is_free(first, &piece).then_some(Candidate::New(first, piece))
    }

    /// Returns the piece behind all others, if it may be read.
    fn new_piece(&self) -> Option<(Index, Piece<A>)> {
        let ask = self.new?;
        let planned: u64 = self.pieces.values().map(Piece::jobs).sum();
        let room = (ask.most() as u64).checked_sub(planned).filter(|room| *room > 0)?;
        if self.frontier > ask.last {
            return None;
        }
        // All calls share what may be read, so that none of them is idle for the length of another.
        let share = (ask.most() / self.calls).max(1) as u64;
        let most = u64::from(self.lengths.jobs).min(share).min(room);
        let width = most.saturating_mul(self.lengths.stride);
        let last = self.frontier.saturating_add(width - 1).min(ask.last);
        Some((self.frontier, Piece::new(last, u32::try_from(most).unwrap_or(LONGEST))))
    }

    /// True if the lowest index that the consumer waits for is not being read.
    pub(super) fn is_awaited(&self, now: Instant) -> bool {
        match self.asked {
            Some(Kind::New) => self.pieces.first_key_value().is_none_or(|(_, piece)| piece.is_due(now)),
            Some(Kind::Again) => self.again.as_ref().is_some_and(|(_, piece)| piece.is_due(now)),
            None => false,
        }
    }

    /// Takes the answer to the call from `first` on. Returns a value to drop.
    pub(super) fn answered(&mut self, first: Index, answer: A, now: Instant, chance: f64) -> Option<A> {
        if self.unwanted.remove(&first).is_some() {
            return Some(answer);
        }
        self.in_a_row = if answer.outcome() == Outcome::Failed { self.in_a_row.saturating_add(1) } else { 0 };
        if let Some((_, piece)) = self.again.as_mut().filter(|(at, piece)| *at == first && piece.is_under_way()) {
            piece.state = State::Answered(answer);
            return None;
        }
        let Some(piece) = self.pieces.get_mut(&first).filter(|piece| piece.is_under_way()) else { return Some(answer) };
        self.lengths.learn(first, piece, &answer);
        self.take_in(first, answer, now, chance)
    }

    fn take_in(&mut self, first: Index, mut answer: A, now: Instant, chance: f64) -> Option<A> {
        let (retry, sound) = (self.retry, self.in_a_row <= 1);
        let Some(piece) = self.pieces.get_mut(&first) else { return Some(answer) };
        let (next, last, outcome) = (answer.next(first), piece.last, answer.outcome());
        if next <= first {
            piece.fail(answer, &retry, sound, now, chance);
            return None;
        }
        let failure = (outcome != Outcome::Good).then(|| answer.split_off_failure());
        (piece.failed, piece.missing) = (0, 0);
        piece.last = last.min(next - 1);
        let left = u64::from(piece.most).saturating_sub(answer.jobs() as u64).max(1);
        piece.state = State::Answered(answer);
        if next > last {
            self.pass_gap(last, next);
            return failure;
        }
        let mut rest = Piece::new(last, u32::try_from(left).unwrap_or(LONGEST));
        if let Some(failure) = failure {
            rest.fail(failure, &retry, sound, now, chance);
        }
        self.pieces.insert(next, rest);
        None
    }

    /// Reads nothing below `next`: a gap that began in the piece that ends at `last` goes so far.
    fn pass_gap(&mut self, last: Index, next: Index) {
        self.frontier = self.frontier.max(next);
        while let Some((first, piece)) = self
            .pieces
            .range_mut(last + 1..next)
            .find(|(_, piece)| matches!(piece.state, State::Due | State::Failed { .. } | State::Reported))
        {
            let (first, last) = (*first, piece.last);
            let Some(piece) = self.pieces.remove(&first) else { break };
            if last >= next {
                self.pieces.insert(next, Piece { state: State::Due, ..piece });
            }
        }
    }

    /// Returns what goes on to the consumer, if that is there. `again_is_due`: failed jobs wait to
    /// be asked for.
    pub(super) fn deliver(&mut self, again_is_due: bool, now: Instant) -> Option<A> {
        let kind = self.asked?;
        let answer = match kind {
            Kind::New => self.deliver_new(),
            Kind::Again => self.deliver_again(),
        };
        if answer.is_some() {
            self.asked = None;
            return answer;
        }
        if self.other_waits(kind, again_is_due) && self.yields.is_none_or(|at| at <= now) {
            self.yields = now.checked_add(YIELD_EVERY);
            self.asked = None;
            return Some(A::not_yet());
        }
        None
    }

    /// True if something else than what the consumer waits for could go on.
    fn other_waits(&self, kind: Kind, again_is_due: bool) -> bool {
        if kind == Kind::New {
            return again_is_due && self.again.as_ref().is_none_or(|(_, piece)| !piece.is_under_way());
        }
        let first = self.pieces.first_key_value().map(|(_, piece)| &piece.state);
        matches!(first, Some(State::Answered(_) | State::Failed { .. }))
    }

    fn deliver_new(&mut self) -> Option<A> {
        loop {
            let mut entry = self.pieces.first_entry()?;
            let (first, front) = (*entry.key(), self.front);
            let piece = entry.get_mut();
            match std::mem::replace(&mut piece.state, State::Reported) {
                State::Answered(mut answer) => {
                    let next = answer.next(first);
                    let last = piece.last;
                    entry.remove();
                    if next <= front {
                        continue;
                    }
                    if first < front && !answer.begin_at(front) {
                        // The source has said both that this is a gap and that it is a job.
                        if last >= front {
                            self.pieces.insert(front, Piece::new(last, 1));
                        }
                        continue;
                    }
                    self.front = next;
                    return Some(answer);
                }
                State::Failed { answer, .. } => {
                    if first < front {
                        let piece = entry.remove();
                        self.pieces.insert(front, piece);
                    }
                    return Some(answer);
                }
                other => {
                    piece.state = other;
                    return None;
                }
            }
        }
    }

    fn deliver_again(&mut self) -> Option<A> {
        let (first, piece) = self.again.take_if(|(_, piece)| matches!(piece.state, State::Answered(_)))?;
        match piece.state {
            State::Answered(answer) => Some(answer),
            state => {
                self.again = Some((first, Piece { state, ..piece }));
                None
            }
        }
    }

    /// Wants nothing any more. Returns values to drop.
    pub(super) fn clear(&mut self) -> Vec<A> {
        let Self { pieces, again, failures, .. } = std::mem::replace(self, Self::new(0, self.retry));
        let mut dropped: Vec<_> = failures.into_iter().map(|(_, answer)| answer).collect();
        pieces.into_iter().chain(again).for_each(|(first, piece)| self.leave(first, piece, &mut dropped));
        dropped
    }

    /// Takes the failures that the consumer has not heard of.
    pub(super) fn take_failures(&mut self) -> Vec<(Index, A)> {
        std::mem::take(&mut self.failures)
    }

    /// Returns the calls that have a limit: their first indices, and when they have taken too long.
    pub(super) fn limits(&self) -> impl Iterator<Item = (Index, Instant)> {
        let again = self.again.iter().map(|(first, piece)| (first, piece));
        let wanted = self.pieces.iter().chain(again).filter_map(|(first, piece)| match piece.state {
            State::UnderWay { until, .. } => Some((*first, until?)),
            _ => None,
        });
        wanted.chain(self.unwanted.iter().filter_map(|(first, (_, until))| Some((*first, (*until)?))))
    }

    /// Returns when there is something to do though no call returns, while the consumer waits.
    pub(super) fn deadline(&self, again_is_due: bool) -> Option<Instant> {
        let kind = self.asked?;
        let times = self.pieces.values().filter_map(|piece| match piece.state {
            State::Failed { again, .. } if self.in_a_row < OUTAGE => Some(again),
            _ => None,
        });
        times.chain(self.yields.filter(|_| self.other_waits(kind, again_is_due))).min()
    }

    /// Returns since when the lowest index that the consumer waits for has been read.
    pub(super) fn since(&self) -> Option<Instant> {
        let piece = match self.asked? {
            Kind::New => self.pieces.first_key_value().map(|(_, piece)| piece),
            Kind::Again => self.again.as_ref().map(|(_, piece)| piece),
        };
        match piece?.state {
            State::UnderWay { since, .. } => Some(since),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
