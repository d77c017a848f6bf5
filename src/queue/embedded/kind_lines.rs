//! The lines of kinds, as far as they are known in memory: which there are, and where they begin.
//!
//! A claim that takes some kinds alone puts each ready job of another kind that it meets into the
//! line of that kind, once. Later claims of its sort begin behind it, so they cost the same however
//! many jobs of other kinds are due. The job keeps its place in the order of the queue: its entry
//! has the lane and the index of the ready log, and its row does not change.

use crate::base::sync::Arc;
use crate::queue::rules::lanes::LANES;

/// The lines of kinds that may have a job.
#[derive(Clone, Default)]
pub(crate) struct KindLines(Arc<Vec<KindLine>>);

#[derive(Clone)]
struct KindLine {
    kind: String,
    /// In each lane, an index below which it has no entry; `u64::MAX`: it has none at all.
    next: [u64; LANES],
}

impl KindLines {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the kinds that have a line.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|line| line.kind.as_str())
    }

    /// Returns the number of lanes in which the lines of these kinds may have a job.
    pub(crate) fn count(&self, has_kind: impl Fn(&str) -> bool) -> u64 {
        let lines = self.0.iter().filter(|line| has_kind(&line.kind));
        lines.map(|line| line.next.iter().filter(|next| **next < u64::MAX).count() as u64).sum()
    }

    /// Returns the lines of these kinds that may have a job in this lane, each with the index from
    /// which it is looked for.
    pub(crate) fn in_lane(&self, lane: usize, has_kind: impl Fn(&str) -> bool) -> Vec<(String, u64)> {
        let lines = self.0.iter().filter(|line| line.next[lane] < u64::MAX && has_kind(&line.kind));
        lines.map(|line| (line.kind.clone(), line.next[lane])).collect()
    }

    /// Notes an entry.
    pub(crate) fn note(&mut self, kind: &str, lane: usize, index: u64) {
        let known = self.0.iter().position(|line| line.kind == kind);
        if known.is_some_and(|at| self.0[at].next[lane] <= index) {
            return;
        }
        let lines = Arc::make_mut(&mut self.0);
        let at = known.unwrap_or_else(|| {
            lines.push(KindLine { kind: kind.to_owned(), next: [u64::MAX; LANES] });
            lines.len() - 1
        });
        lines[at].next[lane] = index;
    }

    /// Notes that a line has no entry below this index; `u64::MAX`: none.
    pub(crate) fn pass(&mut self, kind: &str, lane: usize, index: u64) {
        let Some(at) = self.0.iter().position(|line| line.kind == kind) else { return };
        if self.0[at].next[lane] == index {
            return;
        }
        let lines = Arc::make_mut(&mut self.0);
        lines[at].next[lane] = index;
        if lines[at].next == [u64::MAX; LANES] {
            lines.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_there_while_one_of_its_lanes_may_have_a_job() {
        let mut lines = KindLines::default();
        lines.note("a", 2, 7);
        lines.note("a", 2, 9);
        lines.note("b", 0, 1);
        assert_eq!((lines.in_lane(2, |_| true), lines.count(|_| true)), (vec![("a".to_owned(), 7)], 2));
        let before = lines.clone();
        lines.pass("a", 2, 8);
        assert_eq!(lines.in_lane(2, |kind| kind == "a"), [("a".to_owned(), 8)]);
        lines.pass("a", 2, u64::MAX);
        lines.pass("c", 2, u64::MAX);
        assert_eq!(lines.kinds().collect::<Vec<_>>(), ["b"]);
        lines.pass("b", 0, u64::MAX);
        assert!(lines.is_empty() && before.count(|kind| kind == "a") == 1, "a copy stays as it is");
    }
}
