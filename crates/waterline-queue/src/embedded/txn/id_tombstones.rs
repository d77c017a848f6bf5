//! The ids of jobs that are gone, as far as users chose them: they count as ended for waiting jobs.
//!
//! Ids that are forgotten at one time are deleted by one range. So an id that goes costs one write
//! and no read, and no sweep goes over the list.

use crate::embedded::keys::{List, number_of_entry, split_entry};
use crate::embedded::txn::Txn;
use crate::rules::set_back::SetBack;
use crate::types::job::{MADE, after, made_number};
use std::time::Duration;
use waterline::seam::KeyRange;
use waterline::{BoxError, StoreError};

/// How many times of forgetting there are within the time for which an id is remembered. A look for
/// an id reads each of them.
const TIMES: u32 = 28;

impl Txn<'_, '_> {
    /// Remembers the id of a job that is removed.
    pub(crate) fn note_gone(&mut self, id: &str) -> Result<(), StoreError> {
        match forgotten_at(self.queue.options.ids_for, self.at.wall) {
            Some(at) if !id.starts_with(MADE) => self.put_entry(List::Gone, at, id),
            _ => Ok(()),
        }
    }

    /// True if a job that is gone had this id.
    pub(crate) fn is_gone(&mut self, id: &str) -> Result<bool, BoxError> {
        if id.starts_with(MADE) {
            // The queue makes these ids in ascending order.
            return Ok(made_number(id).is_some_and(|number| number < self.staged.head.next_id));
        }
        let keys = self.queue.keys;
        let mut at = self.staged.from.of(List::Gone);
        loop {
            let range = KeyRange { from: keys.entries_from(List::Gone, at), to: Some(keys.entries_end(List::Gone)) };
            let Some(first) = self.batch.rows(&self.queue.entries, range).next() else { return Ok(false) };
            let (key, _) = first?;
            let (time, _) = split_entry(&key).ok_or_else(|| self.queue.corrupt("an entry has no id".to_owned()))?;
            if self.batch.get(&self.queue.entries, &keys.entry(List::Gone, time, id))?.is_some() {
                return Ok(true);
            }
            let Some(next) = time.checked_add(1) else { return Ok(false) };
            at = next;
        }
    }

    /// Moves the time of an id back with the clock, if it was noted ahead of it.
    pub(crate) fn move_gone(&mut self, at: u64, id: &str, set: &SetBack) -> Result<(), BoxError> {
        let ids_for = self.queue.options.ids_for;
        // The job went at this time or later.
        let since = at.saturating_sub(after(0, ids_for).unwrap_or(u64::MAX)).saturating_sub(part_of(ids_for));
        if let Some((_, until)) = set.moved(since, at) {
            self.remove_entry(List::Gone, at, id)?;
            self.put_entry(List::Gone, part_of(ids_for).saturating_mul(until.div_ceil(part_of(ids_for))), id)?;
        }
        Ok(())
    }

    /// Forgets the ids whose time is over. Where deletes are slow, the rest stays due.
    pub(crate) fn forget_gone(&mut self) -> Result<(), BoxError> {
        let keys = self.queue.keys;
        let from = keys.entries_from(List::Gone, self.staged.from.of(List::Gone));
        let to = keys.entries_from(List::Gone, self.at.wall.saturating_add(1));
        let rest = match usize::try_from(self.batch.deletion().rows) {
            // There are never so many rows.
            Err(_) | Ok(usize::MAX) => None,
            Ok(most) => {
                let range = KeyRange { from: from.clone(), to: Some(to.clone()) };
                self.batch.rows(&self.queue.entries, range).nth(most).transpose()?
            }
        };
        self.wrote = true;
        if let Some((rest, _)) = rest {
            self.batch.delete_range(self.queue.entries.id, &from, &rest)?;
            self.staged.from.set(List::Gone, number_of_entry(&rest));
            return Ok(());
        }
        self.batch.delete_range(self.queue.entries.id, &from, &to)?;
        // The look for the rest begins behind the range, and reads none of it.
        self.staged.from.set(List::Gone, self.at.wall.saturating_add(1));
        let (_, next) = self.listed(List::Gone, self.at.wall, 0)?;
        self.staged.from.set(List::Gone, next);
        Ok(())
    }
}

/// Returns when an id whose job goes now is forgotten, rounded up to a common time.
fn forgotten_at(ids_for: Duration, wall: u64) -> Option<u64> {
    let end = if ids_for.is_zero() { None } else { Some(after(wall, ids_for).unwrap_or(u64::MAX - 1)) }?;
    let part = part_of(ids_for);
    Some(end.div_ceil(part).saturating_mul(part))
}

/// Returns the milliseconds between two times of forgetting.
fn part_of(ids_for: Duration) -> u64 {
    after(0, ids_for / TIMES).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::Queue;
    use crate::types::options::QueueOptions;
    use std::sync::Arc;
    use waterline::seam;
    use waterline::seam::{Deletion, Double, MemoryKv};

    /// A database in which a write deletes at most this many rows.
    struct Slow(MemoryKv, u64);

    impl Double for Slow {
        fn memory(&self) -> &MemoryKv {
            &self.0
        }

        fn deletion(&self) -> Deletion {
            Deletion { rows: self.1, ..Deletion::default() }
        }
    }

    #[test]
    fn ids_are_forgotten_in_pieces_where_deletes_are_slow() {
        for (most, left) in [(4, vec![6, 2, 0]), (5, vec![5, 0]), (10, vec![0]), (u64::MAX, vec![0])] {
            let kv = Arc::new(Slow(MemoryKv::default(), most));
            let store = seam::store_on(kv).unwrap();
            let queue = Queue::open(&store, "q", QueueOptions::default()).unwrap();
            let noted = queue.call(|step| {
                // The last two are forgotten later.
                for id in 0..12 {
                    step.txn.at.wall += if id == 10 { 30 * 24 * 60 * 60 * 1000 } else { 0 };
                    step.txn.note_gone(&format!("{id}"))?;
                }
                Ok(step.txn.staged.from.of(List::Gone))
            });
            let at = noted.unwrap();
            let counts: Vec<usize> = (0..left.len())
                .map(|_| {
                    let forgotten = queue.call(move |step| {
                        step.txn.at.wall = at;
                        assert!(step.txn.staged.from.of(List::Gone) <= at, "the rest is due");
                        step.txn.forget_gone()?;
                        for id in 10..12 {
                            assert!(step.txn.is_gone(&format!("{id}"))?);
                        }
                        let keys = step.txn.queue.keys;
                        let range = KeyRange {
                            from: keys.entries_from(List::Gone, 0),
                            to: Some(keys.entries_from(List::Gone, at + 1)),
                        };
                        Ok(step.txn.batch.rows(&step.txn.queue.entries, range).count())
                    });
                    forgotten.unwrap()
                })
                .collect();
            assert_eq!(counts, left, "{most}");
            assert!(queue.call(|step| Ok(step.txn.staged.from.of(List::Gone))).unwrap() > at);
        }
    }

    #[test]
    fn an_id_is_kept_its_time_plus_a_28th_at_most() {
        let day = 24 * 60 * 60 * 1000;
        let at = |millis, wall| forgotten_at(Duration::from_millis(millis), wall);
        assert_eq!(at(28 * day, 1), Some(29 * day));
        assert_eq!(at(28 * day, day), Some(29 * day));
        assert_eq!(at(28 * day, day + 1), Some(30 * day));
        assert_eq!((at(1, 7), at(0, 7)), (Some(8), None));
        assert_eq!(forgotten_at(Duration::MAX, 7), Some(u64::MAX));
    }
}
