//! The wall clock was set back: times that are ahead since then go back with it.
//!
//! The lists are worked through in pieces, since a queue may keep many rows. An entry that has
//! moved is no longer ahead, so doing a piece twice changes nothing. The head notes the new time
//! only after the last piece: if the process dies before that, the next one starts over.

use crate::embedded::codec::durations::Pair;
use crate::embedded::codec::side_records::Marked;
use crate::embedded::keys::{List, Mark, split_entry};
use crate::embedded::txn::Txn;
use crate::embedded::wall::Back;
use crate::rules::set_back::SetBack;
use crate::types::events::{Event, Line};
use crate::types::job::JobState;
use crate::types::row::Row;
use std::time::Duration;
use waterline::BoxError;
use waterline::seam::KeyRange;

/// The number of entries in a piece.
const PIECE: usize = 1000;

/// The lists whose entries have times of the wall clock.
const LISTS: [List; 7] =
    [List::Scheduled, List::Waiting, List::Expiring, List::Finished, List::Dead, List::Marks, List::Gone];

impl Txn<'_, '_> {
    /// Moves the times that are ahead, if the clock was set back.
    pub(crate) fn follow_clock(&mut self) -> Result<(), BoxError> {
        let (wall, now) = (self.at.wall, self.at.now);
        if let Some(set) = self.staged.wall.latest.set_back(wall, now) {
            while self.staged.wall.back.is_some() {
                // The clock was set back again before all had moved.
                self.move_piece(self.staged.wall.latest.wall())?;
            }
            self.begin_back(set)?;
            self.staged.wall.latest.begin_at(wall, now);
        }
        if self.staged.wall.back.is_some() { self.move_piece(wall) } else { Ok(()) }
    }

    /// Moves the times that are in no list, and starts on the lists.
    fn begin_back(&mut self, set: SetBack) -> Result<(), BoxError> {
        let by = Duration::from_millis(set.by);
        self.staged.tell(Event::Line(Line::SetBack { by }));
        let head = self.head();
        if set.move_both(&mut head.paused_since, &mut head.paused_until) {
            let until = head.paused_until;
            self.staged.tell(Event::Paused { until });
        }
        for id in self.running_ids()? {
            if let Some(mut row) = self.row_in(JobState::Running, &id)?.filter(|row| row.state == JobState::Running)
                && row.go_back(&set)
            {
                self.write_row(&id, &row)?;
            }
        }
        // Each periodic job then checks its last tick.
        self.staged.from.set_ticks(0);
        if self.queue.limits.has_rates {
            self.look_at_limits()?;
        }
        self.staged.wall.back = Some(Box::new(Back::of(set.by)));
        Ok(())
    }

    /// Works through the next entries of the lists. Entries written meanwhile are not ahead.
    fn move_piece(&mut self, now: u64) -> Result<(), BoxError> {
        let Some(mut back) = self.staged.wall.back.take() else { return Ok(()) };
        let (queue, set, mut left) = (self.queue, SetBack { to: now, by: back.by }, PIECE);
        while let Some(list) = LISTS.get(back.list).copied().filter(|_| left > 0) {
            let begin = queue.keys.entries_from(list, 0);
            let from = if back.behind.is_empty() { begin } else { [&back.behind[..], &[0]].concat() };
            let range = KeyRange { from, to: Some(queue.keys.entries_end(list)) };
            let entries = self.batch.rows(&queue.entries, range).take(left).collect::<Result<Vec<Pair>, _>>()?;
            left -= entries.len();
            for (key, _) in &entries {
                if let Some((at, id)) = split_entry(key) {
                    self.move_entry(list, at, id, &set)?;
                }
            }
            match entries.into_iter().next_back() {
                Some((key, _)) if left == 0 => back.behind = key,
                _ => (back.list, back.behind) = (back.list + 1, Vec::new()),
            }
        }
        if back.list < LISTS.len() {
            self.staged.wall.back = Some(back);
        }
        // The head written after the last piece notes the time.
        self.head();
        Ok(())
    }

    fn move_entry(&mut self, list: List, at: u64, id: &str, set: &SetBack) -> Result<(), BoxError> {
        match list {
            List::Marks => self.move_mark(at, id, set),
            List::Gone => self.move_gone(at, id, set),
            _ => {
                let state = match list {
                    List::Scheduled => Some(JobState::Scheduled),
                    List::Waiting => Some(JobState::Waiting),
                    List::Finished => Some(JobState::Finished),
                    List::Dead => Some(JobState::Dead),
                    _ => None,
                };
                match self.row_in(state, id)? {
                    Some(row) if state.is_none_or(|state| state == row.state) => Ok(self.move_row(id, row, set)?),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Moves the times of a job and its entries.
    fn move_row(&mut self, id: &str, old: Row, set: &SetBack) -> Result<(), BoxError> {
        let mut row = old.clone();
        if !row.go_back(set) {
            return Ok(());
        }
        if row.state == JobState::Waiting {
            row.place = row.since;
        }
        let placed = |row: &Row| match row.state {
            JobState::Scheduled => Some((List::Scheduled, row.due)),
            JobState::Waiting => Some((List::Waiting, row.place)),
            JobState::Finished => Some((List::Finished, row.place)),
            JobState::Dead => Some((List::Dead, row.place)),
            _ => None,
        };
        let expires = |row: &Row| row.extras().expires.filter(|_| row.state.waits()).map(|at| (List::Expiring, at));
        for entry in [placed, expires] {
            if let (Some((list, at)), Some((_, to))) = (entry(&old), entry(&row))
                && at != to
            {
                self.remove_entry(list, at, id)?;
                self.put_entry(list, to, id)?;
            }
        }
        Ok(self.write_row(id, &row)?)
    }

    fn move_mark(&mut self, at: u64, entry: &str, set: &SetBack) -> Result<(), BoxError> {
        let (queue, key) = (self.queue, self.queue.keys.mark_of_entry(entry));
        let of = entry.get(1..).unwrap_or_default();
        let Some(bytes) = self.batch.get(&queue.rows, &key)? else { return Ok(()) };
        // One that cannot be read stays for the call that meets it.
        let moved = if entry.starts_with(Mark::Note as u8 as char) {
            let note = queue.decode_note(of, &bytes).ok().filter(|note| note.until == at);
            note.and_then(|mut note| {
                let has_moved = set.move_both(&mut note.since, &mut note.until);
                has_moved.then(|| (note.until, note.encode(&queue.name, of)))
            })
        } else {
            let mark = Marked::decode(&queue.name, of, &bytes).ok().filter(|mark| mark.until == at);
            mark.and_then(|mut mark| {
                let has_moved = set.move_both(&mut mark.since, &mut mark.until);
                has_moved.then(|| (mark.until, mark.encode(&queue.name, of)))
            })
        };
        let Some((until, bytes)) = moved else { return Ok(()) };
        self.remove_entry(List::Marks, at, entry)?;
        self.put_entry(List::Marks, until, entry)?;
        Ok(self.put(queue.rows.id, &key, &bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Clock;
    use crate::handle::Queue;
    use crate::types::job::millis;
    use crate::types::new_job::NewJob;
    use crate::types::options::QueueOptions;
    use std::time::UNIX_EPOCH;
    use waterline::Store;
    use waterline::fuzzing::Disk;

    #[test]
    fn many_jobs_go_back_in_pieces_even_across_a_crash() {
        const JOBS: usize = 2 * PIECE + PIECE / 2;
        let (hour, right) = (Duration::from_secs(3600), UNIX_EPOCH + Duration::from_secs(1_000_000));
        let clock = Clock::manual(right);
        let open = |disk: &Disk| {
            let store = disk.open(&Store::options()).unwrap();
            Queue::open(&store, "q", QueueOptions::default().clock(clock.clone())).unwrap()
        };
        let disk = Disk::default();
        let queue = open(&disk);
        clock.set_wall(right + 24 * hour);
        queue.push_all((0..JOBS).map(|n| NewJob::new("k", &n).unwrap().delay(hour))).unwrap();
        clock.set_wall(right);
        let due = millis(right + hour).unwrap();
        let piece = |queue: &Queue| {
            let moved = queue.call(move |step| {
                step.run_maintenance(1)?;
                Ok(step.txn.listed(List::Scheduled, due, JOBS)?.0.len())
            });
            moved.unwrap()
        };
        assert_eq!(piece(&queue), PIECE);
        let disk = disk.after_crash();
        drop(queue);
        let queue = open(&disk);
        // The first piece has moved already.
        assert_eq!([(); 2].map(|()| piece(&queue)), [2 * PIECE, JOBS]);
        let listed = queue.list(JobState::Scheduled, None, usize::MAX).unwrap();
        assert!(listed.len() == JOBS && listed.iter().all(|job| job.run_at == Some(right + hour)));
    }
}
