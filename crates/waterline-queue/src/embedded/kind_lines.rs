//! The lines of kinds, as known in memory: which there are, and where they begin.
//!
//! A claim of some kinds puts each ready job of another kind that it meets into the line of that
//! kind, once. Later claims begin behind it, so they cost the same however many jobs of other kinds
//! are due. The job keeps its place in the order: its entry has the lane and the index of the ready
//! log, and its row does not change.

use crate::rules::lanes::LANES;
use crate::types::wanted::is_among;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

/// The lines that may have a job, and the turns of the limits of kinds.
#[derive(Clone, Default)]
pub(crate) struct KindLines(Arc<KnownLines>);

#[derive(Clone, Default)]
struct KnownLines {
    /// For each line and lane, an index below which there is no entry; `u64::MAX`: there is none.
    lines: BTreeMap<Arc<str>, [u64; LANES]>,
    /// The lines of each lane, sorted by these indices: users may make up any number of kinds, and
    /// a claim looks only at the first lines.
    by_index: [BTreeSet<LinePlace>; LANES],
    /// The places in the freed log where it is the turn of a kind's limit. A claim of other kinds
    /// finds nothing there, and leaves it.
    turns: BTreeMap<u64, Arc<str>>,
}

/// Where a line begins: the index from which to look for a job, and the kind.
pub(crate) type LinePlace = (u64, Arc<str>);

impl KnownLines {
    /// Returns the lines of these kinds, by whichever is shorter, the kinds or the lines.
    fn lines_of<'a>(&'a self, kinds: Option<&'a [String]>) -> Box<dyn Iterator<Item = KindLine<'a>> + 'a> {
        match kinds {
            Some(kinds) if kinds.len() < self.lines.len() => {
                Box::new(kinds.iter().filter_map(|kind| self.lines.get_key_value(&kind[..])))
            }
            _ => Box::new(self.lines.iter().filter(move |(kind, _)| is_among(kind, kinds))),
        }
    }

    fn set(&mut self, kind: &str, lane: usize, index: u64) {
        let kind = self.lines.get_key_value(kind).map_or_else(|| kind.into(), |(kind, _)| kind.clone());
        let next = self.lines.entry(kind.clone()).or_insert([u64::MAX; LANES]);
        let before = std::mem::replace(&mut next[lane], index);
        if *next == [u64::MAX; LANES] {
            self.lines.remove(&kind);
        }
        self.by_index[lane].remove(&(before, kind.clone()));
        if index < u64::MAX {
            self.by_index[lane].insert((index, kind));
        }
    }
}

type KindLine<'a> = (&'a Arc<str>, &'a [u64; LANES]);

impl KindLines {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lines.is_empty()
    }

    pub(crate) fn kinds(&self) -> impl Iterator<Item = &str> {
        self.0.lines.keys().map(|kind| &**kind)
    }

    /// Returns in how many lanes the lines of these kinds may have a job, in total.
    pub(crate) fn count(&self, kinds: Option<&[String]>) -> u64 {
        if kinds.is_none() {
            return self.0.by_index.iter().map(|lane| lane.len() as u64).sum();
        }
        let lanes = |(_, next): KindLine<'_>| next.iter().filter(|next| **next < u64::MAX).count() as u64;
        self.0.lines_of(kinds).map(lanes).sum()
    }

    /// Returns the lines that may have a job in this lane, sorted by where they begin.
    pub(crate) fn in_lane(&self, lane: usize) -> impl Iterator<Item = &LinePlace> {
        self.0.by_index[lane].iter()
    }

    /// Returns the same, of these kinds only.
    pub(crate) fn of_kinds(&self, lane: usize, kinds: &[String]) -> Vec<LinePlace> {
        if self.0.by_index[lane].is_empty() {
            return Vec::new();
        }
        let lines = self.0.lines_of(Some(kinds)).filter(|(_, next)| next[lane] < u64::MAX);
        let mut lines: Vec<_> = lines.map(|(kind, next)| (next[lane], kind.clone())).collect();
        lines.sort_unstable();
        lines
    }

    /// Returns the line after this one in a lane.
    pub(crate) fn behind(&self, lane: usize, place: Option<&LinePlace>) -> Option<LinePlace> {
        let lines = &self.0.by_index[lane];
        let next = match place {
            Some(place) => lines.range((Bound::Excluded(place), Bound::Unbounded)).next(),
            None => lines.first(),
        };
        next.cloned()
    }

    pub(crate) fn note(&mut self, kind: &str, lane: usize, index: u64) {
        if self.0.lines.get(kind).is_none_or(|next| index < next[lane]) {
            Arc::make_mut(&mut self.0).set(kind, lane, index);
        }
    }

    /// Notes that a line has no entry below this index; `u64::MAX`: none at all.
    pub(crate) fn pass(&mut self, kind: &str, lane: usize, index: u64) {
        if self.0.lines.get(kind).is_some_and(|next| next[lane] != index) {
            Arc::make_mut(&mut self.0).set(kind, lane, index);
        }
    }

    // The turns of the limits of kinds.

    /// Notes that it is the turn of a kind's limit at this place.
    pub(crate) fn note_turn(&mut self, at: u64, kind: &str) {
        if !self.0.turns.contains_key(&at) {
            Arc::make_mut(&mut self.0).turns.insert(at, kind.into());
        }
    }

    /// Forgets the turn at this place.
    pub(crate) fn end_turn(&mut self, at: u64) {
        if self.0.turns.contains_key(&at) {
            Arc::make_mut(&mut self.0).turns.remove(&at);
        }
    }

    /// Forgets all turns. A claim that meets one notes it again.
    pub(crate) fn end_turns(&mut self) {
        if !self.0.turns.is_empty() {
            Arc::make_mut(&mut self.0).turns.clear();
        }
    }

    /// Forgets the turns of this kind's limit.
    pub(crate) fn end_turn_of(&mut self, kind: &str) {
        if self.0.turns.values().any(|of| &**of == kind) {
            Arc::make_mut(&mut self.0).turns.retain(|_, of| &**of != kind);
        }
    }

    /// Notes that a turn has moved to another place.
    pub(crate) fn move_turn(&mut self, from: u64, to: u64) {
        if self.0.turns.contains_key(&from) {
            let turns = &mut Arc::make_mut(&mut self.0).turns;
            let kind = turns.remove(&from);
            turns.extend(kind.map(|kind| (to, kind)));
        }
    }

    /// Returns the first place from `at` on that may have a job for a claim of these kinds.
    pub(crate) fn behind_turns_of_others(&self, mut at: u64, kinds: Option<&[String]>) -> u64 {
        while self.0.turns.get(&at).is_some_and(|kind| !is_among(kind, kinds)) {
            at += 1;
        }
        at
    }

    /// Returns the number of turns at which a claim of these kinds finds nothing.
    pub(crate) fn turns_of_others(&self, kinds: Option<&[String]>) -> u64 {
        self.0.turns.values().filter(|kind| !is_among(kind, kinds)).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stays_while_a_lane_may_have_a_job() {
        let names = ["a".to_owned(), "x".to_owned(), "y".to_owned()];
        let in_lane = |lines: &KindLines| -> Vec<_> { lines.in_lane(2).cloned().collect() };
        let mut lines = KindLines::default();
        lines.note("a", 2, 7);
        lines.note("a", 2, 9);
        lines.note("b", 0, 1);
        assert_eq!((in_lane(&lines), lines.count(None)), (vec![(7, "a".into())], 2));
        let before = lines.clone();
        lines.pass("a", 2, 8);
        // With more kinds than lines, and with fewer.
        for kinds in [&names[..], &names[..1]] {
            assert_eq!((lines.of_kinds(2, kinds), lines.count(Some(kinds))), (vec![(8, "a".into())], 1));
        }
        lines.pass("a", 2, u64::MAX);
        lines.pass("c", 2, u64::MAX);
        assert_eq!(lines.kinds().collect::<Vec<_>>(), ["b"]);
        lines.pass("b", 0, u64::MAX);
        assert!(lines.is_empty() && before.count(Some(&names)) == 1, "a copy stays as it is");
    }

    #[test]
    fn lines_are_ordered_by_their_first_index() {
        let mut lines = KindLines::default();
        for (kind, index) in [("a", 3), ("b", 1), ("c", 2)] {
            lines.note(kind, 0, index);
        }
        let mut seen = Vec::new();
        let mut place = None;
        while let Some(next) = lines.behind(0, place.as_ref()) {
            // A line that is passed comes again, at its new place.
            if &*next.1 == "b" {
                lines.pass("b", 0, 4);
            }
            seen.push(next.0);
            place = Some(next);
        }
        assert_eq!((seen, lines.behind(1, None)), (vec![1, 2, 3, 4], None));
    }

    #[test]
    fn a_turn_counts_only_for_claims_of_its_kind() {
        let mut lines = KindLines::default();
        lines.note_turn(5, "a");
        let others = |lines: &KindLines, kind: &str| lines.turns_of_others(Some(&[kind.to_owned()]));
        assert_eq!((others(&lines, "a"), others(&lines, "b"), lines.turns_of_others(None)), (0, 1, 0));
        lines.move_turn(5, 6);
        let behind = |at, kind: &str| lines.behind_turns_of_others(at, Some(&[kind.to_owned()]));
        assert_eq!([behind(5, "b"), behind(6, "b"), behind(6, "a")], [5, 7, 6]);
        lines.end_turn_of("b");
        assert_eq!(others(&lines, "b"), 1);
        lines.end_turn(6);
        assert!(others(&lines, "b") == 0 && lines.is_empty());
    }
}
