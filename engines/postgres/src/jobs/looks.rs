//! The rule for which ids of a table are final. Pure: it is told what a look saw.
//!
//! A look reads the last value of the sequence, *then* who holds a writer's lock on the table,
//! *then* the position up to which the server's log is written. A writer that took an id up to that
//! value had the lock before, and keeps it until its rows are visible. So once all of these holders
//! are gone, each such id has a visible row, or never will have one. A server that crashes loses
//! what its log had not flushed, and hands the same ids out again. So the log has to be flushed up
//! to that position, too.

use std::collections::VecDeque;

/// The most looks that wait. With as many, another one is not queued.
const MOST: usize = 1_000;

/// A position in the server's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lsn(pub(crate) u64);

/// A transaction that holds a writer's lock, by its virtual id, which is not reused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) id: String,
    /// Whether it is prepared, and awaits its `COMMIT PREPARED`: some versions then change its id.
    pub(crate) prepared: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// The last value that the sequence gave out; `None`: none so far.
    pub(crate) last: Option<i64>,
    pub(crate) holders: Vec<Holder>,
    pub(crate) inserted: Lsn,
    pub(crate) flushed: Lsn,
}

/// The looks that are not settled, the oldest one first, and the last id that is final.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    waiting: VecDeque<Look>,
    /// The prepared transactions of the last look.
    prepared: Vec<String>,
    flushed: Lsn,
    settled: Option<i64>,
}

#[derive(Debug)]
struct Look {
    last: i64,
    /// Those of its holders that are still there.
    holders: Vec<Holder>,
    inserted: Lsn,
}

impl Look {
    /// Drops the holders that are gone.
    fn keep(&mut self, now: &[Holder], newly_prepared: &[Holder]) {
        let mut gone = false;
        self.holders.retain_mut(|holder| {
            let still = now.iter().find(|other| other.id == holder.id);
            gone |= still.is_none() && !holder.prepared;
            still.is_some_and(|still| {
                holder.prepared = still.prepared;
                true
            })
        });
        // Each of these may be the one that is gone, under its new id.
        for holder in newly_prepared.iter().filter(|_| gone) {
            if self.holders.iter().all(|other| other.id != holder.id) {
                self.holders.push(holder.clone());
            }
        }
    }

    fn is_settled(&self, flushed: Lsn) -> bool {
        self.holders.is_empty() && self.inserted <= flushed
    }

    /// True if this look and a later one are settled by the same event.
    fn ends_with(&self, later: &Self, flushed: Lsn) -> bool {
        // A newer position would let an older look wait for longer.
        later.inserted <= flushed
            && self.holders.len() == later.holders.len()
            && self.holders.iter().all(|holder| later.holders.iter().any(|other| other.id == holder.id))
    }
}

impl Looks {
    pub(crate) fn look(&mut self, seen: Seen) {
        let new = |holder: &&Holder| holder.prepared && !self.prepared.contains(&holder.id);
        let newly_prepared: Vec<_> = seen.holders.iter().filter(new).cloned().collect();
        self.waiting.iter_mut().for_each(|look| look.keep(&seen.holders, &newly_prepared));
        self.prepared = seen.holders.iter().filter(|holder| holder.prepared).map(|holder| holder.id.clone()).collect();
        // A look at a value that is known already would be settled no earlier than the one before.
        let known = self.waiting.back().map(|look| look.last).max(self.settled);
        if let Some(last) = seen.last.filter(|last| Some(*last) > known && self.waiting.len() < MOST) {
            self.waiting.push_back(Look { last, holders: seen.holders, inserted: seen.inserted });
        }
        self.flushed(seen.flushed);
    }

    pub(crate) fn flushed(&mut self, flushed: Lsn) {
        self.flushed = self.flushed.max(flushed);
        if let Some(at) = self.waiting.iter().rposition(|look| look.is_settled(self.flushed)) {
            self.settled = self.waiting.drain(..=at).map(|look| look.last).max().max(self.settled);
        }
        // One transaction that stays open must not make the queue grow with each look.
        let mut at = 1;
        while at < self.waiting.len() {
            if self.waiting[at - 1].ends_with(&self.waiting[at], self.flushed) {
                self.waiting.remove(at - 1);
            } else {
                at += 1;
            }
        }
    }

    /// Forgets all looks, since the server may have crashed or be another one. Settled ids stay.
    pub(crate) fn void(&mut self) {
        *self = Self { settled: self.settled, ..Self::default() };
    }

    pub(crate) fn settled(&self) -> Option<i64> {
        self.settled
    }

    /// True if another look may bring more, though nothing new is inserted.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// True if a look waits for nothing but a flush of the log.
    pub(crate) fn wants_flush(&self) -> bool {
        self.waiting.iter().any(|look| look.holders.is_empty())
    }

    /// Returns the holders that the oldest look waits for.
    pub(crate) fn holders(&self) -> &[Holder] {
        self.waiting.front().map_or(&[], |look| &look.holders)
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    fn holders(ids: &[&str]) -> Vec<Holder> {
        // A prepared one is written with a star.
        ids.iter().map(|id| Holder { id: id.trim_matches('*').to_owned(), prepared: id.ends_with('*') }).collect()
    }

    fn look(looks: &mut Looks, last: i64, ids: &[&str], inserted: u64, flushed: u64) -> Option<i64> {
        let (inserted, flushed) = (Lsn(inserted), Lsn(flushed));
        looks.look(Seen { last: Some(last), holders: holders(ids), inserted, flushed });
        looks.settled()
    }

    #[test]
    fn an_id_is_final_after_its_holders_and_a_flush() {
        let looks = &mut Looks::default();
        assert_eq!(look(looks, 7, &["3/1", "4/1"], 10, 10), None);
        assert_eq!(look(looks, 9, &["4/1", "3/2"], 20, 20), None, "4/1 may have 7");
        assert_eq!(look(looks, 12, &["3/2", "4/2"], 30, 20), Some(7));
        assert_eq!(look(looks, 12, &["4/2"], 30, 20), Some(9));
        assert!(!looks.wants_flush());
        assert_eq!(look(looks, 12, &[], 30, 20), Some(9), "the log is not flushed");
        assert!(looks.wants_flush());
        looks.flushed(Lsn(30));
        assert_eq!((looks.settled(), looks.is_waiting()), (Some(12), false));
        assert_eq!(look(looks, 12, &["9/9"], 40, 30), Some(12));
        assert!(!looks.is_waiting(), "there is no new id");
    }

    #[test]
    fn a_prepared_transaction_is_awaited_under_a_new_id() {
        for id in ["3/1*", "-1/730*"] {
            let looks = &mut Looks::default();
            assert_eq!(look(looks, 7, &["3/1", "-1/700*"], 10, 10), None);
            assert_eq!(look(looks, 7, &[id, "-1/700*"], 10, 10), None);
            assert_eq!(look(looks, 7, &[id, "3/2"], 10, 10), None, "{id} may have 7");
            assert_eq!(look(looks, 7, &["3/2", "-1/740*"], 10, 10), Some(7));
        }
    }

    #[test]
    fn an_open_transaction_keeps_the_queue_short() {
        let looks = &mut Looks::default();
        for n in 1..10_000 {
            let other = format!("4/{n}");
            assert_eq!(look(looks, n, &["3/1", &other], n as u64, n as u64 - 1), None);
            assert!(looks.waiting.len() <= 4, "{:?}", looks.waiting);
        }
        assert_eq!(looks.holders(), holders(&["3/1"]));
        assert_eq!(look(looks, 10_000, &[], 10_000, 9_999), Some(9_999));
    }

    #[test]
    fn looks_that_await_a_flush_do_not_postpone_it() {
        let looks = &mut Looks::default();
        for n in 1..5_000 {
            // The flush is always a little behind.
            assert_eq!(look(looks, n, &[], n as u64 * 10, (n as u64 * 10).saturating_sub(15)), (n > 2).then(|| n - 2));
        }
        for n in 5_000..9_000 {
            look(looks, n, &[], n as u64 * 10, 0);
        }
        assert!(looks.waiting.len() <= MOST, "a log that is not flushed at all");
    }

    #[test]
    fn a_lost_connection_voids_looks_but_no_settled_id() {
        let looks = &mut Looks::default();
        look(looks, 7, &[], 10, 10);
        look(looks, 9, &["3/1"], 20, 20);
        looks.void();
        assert_eq!((looks.settled(), looks.is_waiting()), (Some(7), false));
        assert_eq!(look(looks, 8, &[], 5, 5), Some(8));
    }
}
