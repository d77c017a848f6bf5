//! The places of jobs: the list, log or table that a job is in by its state. It leaves one and
//! enters another in the same batch, so it is always in exactly one.

use crate::embedded::codec::entry;
use crate::embedded::keys::{List, number_of_entry};
use crate::embedded::txn::Txn;
use crate::rules::lanes::Lane;
use crate::types::events::{Damaged, Event};
use crate::types::job::{JobId, JobState, Priority};
use crate::types::row::Row;
use waterline::seam::KeyRange;
use waterline::{BoxError, StoreError};

/// The number of claimed entries at which a ready log deletes them, as one range.
const RANGE: u64 = 10_000;

impl Txn<'_, '_> {
    /// Takes a job out of its place.
    pub(crate) fn leave(&mut self, id: &str, row: &Row) -> Result<(), BoxError> {
        if row.extras().is_suspect && row.state.waits() {
            self.staged.gate.expects_none_alone();
        }
        match row.state {
            JobState::Scheduled => self.remove_entry(List::Scheduled, row.due, id)?,
            JobState::Ready if row.extras().held.is_some() => self.unhold(row)?,
            // Its entry in a ready log turns stale.
            JobState::Ready => self.leave_kind(row)?,
            JobState::Waiting => self.remove_entry(List::Waiting, row.place, id)?,
            JobState::Running => {
                // First: a damaged record of a limit is rebuilt from the table of running jobs.
                self.release_limits(row)?;
                self.delete(self.rows(), &self.queue.keys.running(row.place))?;
                self.staged.tell(Event::Released { token: row.place });
                self.staged.gate.end();
            }
            JobState::Finished => self.remove_entry(List::Finished, row.place, id)?,
            JobState::Dead => self.remove_entry(List::Dead, row.place, id)?,
            // No row says so.
            JobState::Damaged => return Ok(()),
        }
        self.wait_no_more(id, row.extras().after)?;
        let count = &mut self.head().counts[row.state.number()];
        *count = count.saturating_sub(1);
        Ok(())
    }

    /// Puts a job into the place of its state, and writes its row.
    pub(crate) fn enter(&mut self, id: &str, row: &mut Row) -> Result<(), StoreError> {
        row.since = self.at.wall;
        self.enter_since(id, row)
    }

    /// Does the same with a job whose due time was set at `given`, if it is not due yet.
    pub(crate) fn enter_given(&mut self, id: &str, row: &mut Row, given: u64) -> Result<(), StoreError> {
        row.since = if row.state == JobState::Scheduled { given } else { self.at.wall };
        self.enter_since(id, row)
    }

    fn enter_since(&mut self, id: &str, row: &mut Row) -> Result<(), StoreError> {
        let keeps_waits = matches!(row.state, JobState::Waiting | JobState::Dead);
        if let Some(extras) = row.extras.as_mut().filter(|_| !keeps_waits) {
            extras.after = 0;
        }
        row.clear_state();
        match row.state {
            JobState::Scheduled => {
                // Wakes claims of early jobs: a job that is due before this one may be held.
                self.staged.gate.released += 1;
                self.put_entry(List::Scheduled, row.due, id)?;
            }
            JobState::Ready => {
                let lane = row.priority as usize;
                let end = &mut self.head().lanes[lane].end;
                row.place = *end;
                *end += 1;
                self.put_place(self.entries(), &self.queue.keys.ready(lane, row.place), id)?;
            }
            JobState::Running => {
                let token = &mut self.head().next_token;
                row.place = *token;
                *token += 1;
                self.put_place(self.rows(), &self.queue.keys.running(row.place), id)?;
                self.staged.gate.begin(row.extras().is_suspect);
                self.staged.tell(Event::Claimed { id: id.to_owned(), token: row.place });
            }
            JobState::Finished => self.put_entry(List::Finished, row.place, id)?,
            JobState::Dead => self.put_entry(List::Dead, row.place, id)?,
            JobState::Waiting => {
                row.place = self.at.wall;
                self.put_entry(List::Waiting, row.place, id)?;
            }
            // No row says so.
            JobState::Damaged => return Ok(()),
        }
        match row.extras().expires {
            Some(expires) if row.state.waits() => self.put_entry(List::Expiring, expires, id)?,
            _ => {}
        }
        self.head().counts[row.state.number()] += 1;
        self.write_row(id, row)
    }

    /// Removes all records of a job but its place.
    pub(crate) fn erase(&mut self, id: &str, row: &Row) -> Result<(), StoreError> {
        self.delete(self.rows(), &self.queue.keys.row(id))?;
        self.delete(self.rows(), &self.queue.keys.payload(id))?;
        self.note_gone(id)?;
        if row.extras.is_some() {
            self.erase_extra(id, row)?;
        }
        if row.has_data { self.delete(self.rows(), &self.queue.keys.data(id)) } else { Ok(()) }
    }

    /// Makes a held job ready. The time since which it was ready stays.
    pub(crate) fn set_free(&mut self, id: &str, mut row: Row) -> Result<(), BoxError> {
        self.leave(id, &row)?;
        Ok(self.enter_since(id, &mut row)?)
    }

    /// Returns the job at this place of a ready log; `None` if the entry is stale.
    pub(crate) fn entry(&mut self, lane: usize, index: u64) -> Result<Option<(JobId, Row)>, BoxError> {
        let key = self.queue.keys.ready(lane, index);
        let Some(entry) = self.batch.get(&self.queue.entries, &key)? else { return Ok(None) };
        let Some(id) = self.id_at(lane, &key, &entry) else { return Ok(None) };
        let row = self.row_in(JobState::Ready, &id)?;
        Ok(row.filter(|row| row.is_at(lane, index)).map(|row| (id, row)))
    }

    /// Returns the id in an entry of a ready log. `None`: it is damaged, so its job is lost.
    fn id_at(&mut self, lane: usize, key: &[u8], entry: &[u8]) -> Option<JobId> {
        let read = entry::id_in(&self.queue.name, key, entry);
        read.map_err(|error| {
            self.has_lost = true;
            let place = format!("{} of the ready jobs of the priority {:?}", number_of_entry(key), Priority::ALL[lane]);
            self.log_damage(Damaged::Entry { place, error });
        })
        .ok()
    }

    /// Returns up to `most` entries of a ready log from this index on.
    pub(crate) fn entries_of(&mut self, lane: usize, from: u64, most: usize) -> Result<Vec<(u64, JobId)>, BoxError> {
        let (keys, end) = (self.queue.keys, self.staged.head.lanes[lane].end.max(from));
        let range = KeyRange { from: keys.ready(lane, from), to: Some(keys.ready(lane, end)) };
        let entries = self.batch.rows(&self.queue.entries, range).take(most).collect::<Result<Vec<_>, _>>()?;
        // One that cannot be read is stale.
        let id = |(key, entry): (Vec<u8>, Vec<u8>)| {
            (number_of_entry(&key), self.id_at(lane, &key, &entry).unwrap_or_default())
        };
        Ok(entries.into_iter().map(id).collect())
    }

    /// Deletes the claimed entries of a ready log, once they are many.
    pub(crate) fn delete_behind(&mut self, lane: usize) -> Result<(), StoreError> {
        let Lane { next, deleted, .. } = *self.staged.head.log(lane);
        if next - deleted < RANGE.min(self.batch.deletion().rows) {
            return Ok(());
        }
        self.head().log_mut(lane).deleted = next;
        let (from, to) = (self.queue.keys.ready(lane, deleted), self.queue.keys.ready(lane, next));
        self.batch.delete_range(self.entries(), &from, &to)
    }

    pub(crate) fn move_front(&mut self, lane: usize, front: u64) {
        if self.staged.head.lanes[lane].next < front {
            self.head().lanes[lane].next = front;
        }
    }

    /// Notes that only runs that begin from now on can make this job needless.
    pub(crate) fn begin_anew(&self, row: &mut Row) {
        if row.extras().skips_from.is_some() {
            row.extras_mut().skips_from = Some(self.staged.head.next_token);
        }
    }

    /// Removes the expiry and the unique mark of a row that is replaced.
    pub(crate) fn settle_replaced(&mut self, id: &str, row: &Row) -> Result<(), BoxError> {
        let Some(extras) = &row.extras else { return Ok(()) };
        if let Some(expires) = extras.expires {
            self.remove_entry(List::Expiring, expires, id)?;
        }
        self.release_ended(id, row, true)
    }
}
