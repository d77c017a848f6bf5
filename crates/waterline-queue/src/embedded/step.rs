//! The transitions of jobs: each is a part of one atomic batch.
//!
//! A job leaves its place and enters another one in the same batch, so it is always in exactly one.
//! This file moves jobs, and [`rules`] decides where to.

use crate::embedded::codec::durations::Pair;
use crate::embedded::codec::entry;
use crate::embedded::codec::head::Head;
use crate::embedded::ctx::Ctx;
use crate::embedded::keys::List;
use crate::embedded::staged::Staged;
use crate::engine::{Claimed, Edit};
use crate::notify::lines::is_wanted;
use crate::rules::fair::Draw;
use crate::types::error::{QueueError, is_damage};
use crate::types::events::{About, Damaged, Event, Line};
use crate::types::job::{JobId, JobState};
use crate::types::periodic::Periodic;
use crate::types::row::Row;
use std::collections::VecDeque;
use std::sync::Arc;
use tracing::Level;
use waterline::seam::{FamilyId, Moment, Overlay};
use waterline::{BoxError, Error, StoreError};

mod claiming;
mod damage;
mod dedup;
mod ending;
mod extra;
mod held;
mod id_tombstones;
mod kinds;
mod limits;
mod mending;
mod notes;
mod pushing;
mod recount;
mod requeue;
mod set_back;
mod ticking;
mod time;
mod waiting;

/// The most entries that one look at a list moves. A larger backlog takes several batches, so that
/// no batch gets long.
pub(crate) const AT_ONCE: usize = 64;

/// The most entries of ready jobs that one claim looks at. An entry whose job has moved or gone is
/// stale, and is passed.
pub(crate) const LOOKS: usize = 256;

/// The answer to a claim.
#[derive(Clone, Debug)]
pub(crate) enum Claim {
    Job(Box<Claimed>),
    Nothing,
    /// Only stale entries so far: look again.
    Again,
}

/// One transition within a batch.
pub(crate) struct Step<'s, 'k> {
    pub(crate) queue: &'s Ctx,
    pub(crate) staged: &'s mut Staged,
    pub(crate) batch: &'s mut Overlay<'k>,
    pub(crate) at: Moment,
    /// The time of tokens, in milliseconds since 1970: that at which the batch is made.
    tokens_at: u64,
    /// The periodic jobs that are registered, if one may have a tick.
    periodics: Vec<Arc<Periodic>>,
    /// The number of chances that were drawn.
    draws: u64,
    /// True once it has changed anything.
    pub(crate) wrote: bool,
    /// Ends that still have to be told to those who wait for them.
    pub(crate) endings: VecDeque<Ending>,
    /// True while it tells ends.
    pub(crate) is_telling: bool,
    /// True once it has seen that jobs are to be counted anew, since an entry was damaged.
    pub(crate) has_lost: bool,
    /// True if it has claimed a job, and may claim another one.
    pub(crate) has_claimed: bool,
    pub(crate) room: Room,
}

/// The end of a job, to be told to those in this list.
#[derive(Clone, Debug)]
pub(crate) struct Ending {
    pub(crate) list: u64,
    pub(crate) of: JobId,
    pub(crate) died: bool,
    /// The job of the list that was told last: a look begins behind it, and passes no tombstones.
    pub(crate) last: JobId,
}

impl Ending {
    pub(crate) fn new(list: u64, of: &str, died: bool) -> Self {
        Self { list, of: of.to_owned(), died, last: JobId::new() }
    }
}

/// The room that a push has to find in a queue in which only so many jobs may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// The queue makes the push, which is never refused.
    Any,
    /// There must be room now.
    Now,
    /// There must have been room when the batch began. A write that pushes more jobs than may ever
    /// wait would otherwise be refused for good.
    AtBegin,
}

impl<'s, 'k> Step<'s, 'k> {
    pub(crate) fn new(
        queue: &'s Ctx,
        staged: &'s mut Staged,
        batch: &'s mut Overlay<'k>,
        at: Moment,
        tokens_at: u64,
        periodics: Vec<Arc<Periodic>>,
    ) -> Self {
        let (endings, room) = (VecDeque::new(), Room::Any);
        let (wrote, is_telling, has_lost) = (false, false, false);
        Self {
            queue,
            staged,
            batch,
            at,
            tokens_at,
            periodics,
            draws: 0,
            wrote,
            endings,
            is_telling,
            has_lost,
            has_claimed: false,
            room,
        }
    }
}

impl Step<'_, '_> {
    fn rows(&self) -> FamilyId {
        self.queue.rows.id
    }

    fn entries(&self) -> FamilyId {
        self.queue.entries.id
    }

    fn put(&mut self, family: FamilyId, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.wrote = true;
        self.batch.put(family, &[key], &[value])
    }

    fn delete(&mut self, family: FamilyId, key: &[u8]) -> Result<(), StoreError> {
        self.wrote = true;
        self.batch.delete(family, &[key])
    }

    /// Returns the head, which the caller changes.
    pub(crate) fn head(&mut self) -> &mut Head {
        (self.wrote, self.staged.changed) = (true, true);
        &mut self.staged.head
    }

    pub(crate) fn row(&mut self, id: &str) -> Result<Option<Row>, BoxError> {
        let bytes = self.batch.get(&self.queue.rows, &self.queue.keys.row(id))?;
        Ok(bytes.map(|bytes| self.queue.decode_row(id, &bytes)).transpose()?)
    }

    pub(crate) fn write_row(&mut self, id: &str, row: &Row) -> Result<(), StoreError> {
        self.put(self.rows(), &self.queue.keys.row(id), &row.encode(&self.queue.name, id))
    }

    /// Takes a job out of its place.
    fn leave(&mut self, id: &str, row: &Row) -> Result<(), BoxError> {
        if row.extras().is_suspect && row.state.waits() {
            self.staged.gate.expects_none_alone();
        }
        match row.state {
            JobState::Scheduled => self.remove_entry(List::Scheduled, row.due, id)?,
            JobState::Ready if row.extras().held.is_some() => self.unhold(row)?,
            // Its entry in a ready log is stale from now on.
            JobState::Ready => self.leave_kind(row)?,
            JobState::Waiting => self.remove_entry(List::Waiting, row.place, id)?,
            JobState::Running => {
                // A damaged record of a limit is made anew from the table of running jobs.
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

    fn remove_entry(&mut self, list: List, at: u64, id: &str) -> Result<(), StoreError> {
        self.delete(self.entries(), &self.queue.keys.entry(list, at, id))
    }

    fn put_entry(&mut self, list: List, at: u64, id: &str) -> Result<(), StoreError> {
        self.staged.from.note(list, at);
        // With a time to come, the head notes that of now.
        self.staged.changed = true;
        self.put(self.entries(), &self.queue.keys.entry(list, at, id), &[])
    }

    /// Writes that a job is at this place of a ready log, or of the table of running jobs.
    fn put_place(&mut self, family: FamilyId, key: &[u8], id: &str) -> Result<(), StoreError> {
        self.put(family, key, &entry::encode(&self.queue.name, key, id))
    }

    /// Puts a job into the place of its state, and writes its row.
    fn enter(&mut self, id: &str, row: &mut Row) -> Result<(), StoreError> {
        row.since = self.at.wall;
        self.enter_since(id, row)
    }

    /// Does the same with a job that was given its due time before, if it is not due so far.
    fn enter_given(&mut self, id: &str, row: &mut Row, given: u64) -> Result<(), StoreError> {
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
                // It wakes those who take early jobs: the first one may be due before it, and held.
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

    /// Draws a chance of its own for each job: those that failed, or crashed, together are to part.
    fn chance(&mut self) -> f64 {
        self.draws += 1;
        // The queues of one write share its moment.
        let seed = self.at.chance.to_bits() ^ u64::from(self.queue.keys.0);
        // A clock that a test sets leaves nothing to chance.
        if self.at.chance < 1.0 { Draw::new(seed, self.draws).chance } else { 1.0 }
    }

    fn tell(&mut self, id: &str, state: Option<JobState>, data: Option<Option<Vec<u8>>>) {
        self.staged.tell(Event::Seen { id: id.to_owned(), state, data, error: None });
    }

    /// Tells those who wait of a job that came to this state, with its error if it is dead.
    fn tell_row(&mut self, id: &str, row: &Row, data: Option<&[u8]>) {
        let (state, data) = (Some(row.state), data.map(|data| Some(data.to_vec())));
        let error = (row.state == JobState::Dead).then(|| row.error.clone());
        self.staged.tell(Event::Seen { id: id.to_owned(), state, data, error });
    }

    /// Tells the log of a job, if somebody wants lines of this level.
    fn log(&mut self, level: Level, id: &str, row: &Row, line: impl FnOnce(About) -> Line) {
        if is_wanted(level) {
            let (id, kind, attempt) = (id.to_owned(), row.kind.clone(), row.failures.saturating_add(1));
            self.staged.tell(Event::Line(line(About { id, kind, attempt })));
        }
    }

    /// Tells the log of a record that cannot be read.
    fn log_damage(&mut self, damaged: Damaged) {
        self.staged.tell(Event::Line(Line::Damaged(damaged)));
    }

    /// Removes everything of a job but its place.
    fn erase(&mut self, id: &str, row: &Row) -> Result<(), StoreError> {
        self.delete(self.rows(), &self.queue.keys.row(id))?;
        self.delete(self.rows(), &self.queue.keys.payload(id))?;
        self.note_gone(id)?;
        if row.extras.is_some() {
            self.erase_extra(id, row)?;
        }
        if row.has_data { self.delete(self.rows(), &self.queue.keys.data(id)) } else { Ok(()) }
    }

    fn set_data(&mut self, id: &str, row: &mut Row, data: &[u8]) -> Result<(), StoreError> {
        row.has_data = true;
        self.put(self.rows(), &self.queue.keys.data(id), data)
    }

    fn drop_data(&mut self, id: &str, row: &mut Row) -> Result<(), StoreError> {
        if std::mem::take(&mut row.has_data) { self.delete(self.rows(), &self.queue.keys.data(id)) } else { Ok(()) }
    }

    /// Changes a job: with a token only if that lease holds. Returns its row.
    pub(crate) fn edit(&mut self, id: &str, token: Option<u64>, edit: &Edit) -> Result<Row, BoxError> {
        let lease = token.unwrap_or_default();
        match edit {
            Edit::Nothing => self.leased(id, lease),
            Edit::Data(data) => self.update(id, lease, data),
            Edit::Meta(key, value) => self.set_meta(id, token, key, value.as_ref()),
            Edit::Resubmit(due) => {
                let row = Row { resubmit: Some(*due), resubmitted: 0, ..self.leased(id, lease)? };
                self.write_row(id, &row)?;
                Ok(row)
            }
        }
    }

    /// Writes the data of a running job.
    fn update(&mut self, id: &str, token: u64, data: &[u8]) -> Result<Row, BoxError> {
        let mut row = self.leased(id, token)?;
        let had_data = row.has_data;
        self.set_data(id, &mut row, data)?;
        if !had_data {
            self.write_row(id, &row)?;
        }
        self.tell(id, Some(JobState::Running), Some(Some(data.to_vec())));
        Ok(row)
    }

    // Steering.

    /// Removes a job in any state. A worker that has it learns it from its next call.
    pub(crate) fn remove(&mut self, id: &str) -> Result<(), BoxError> {
        match self.row(id) {
            Err(error) if is_damage(&error) => self.remove_damaged(id),
            // It was set aside, and is counted nowhere.
            Ok(_) if self.forget_damaged(id)? => self.remove_damaged(id),
            row => {
                let row = row?.ok_or_else(|| self.queue.not_found(id))?;
                self.remove_row(id, row, true)
            }
        }
    }

    /// Removes a job, since somebody wants that, or because its time to be kept is over.
    fn remove_row(&mut self, id: &str, mut row: Row, is_wanted: bool) -> Result<(), BoxError> {
        self.leave(id, &row)?;
        if row.state == JobState::Running {
            self.staged.tell(Event::Lost { token: row.place });
        }
        self.settle(id, &mut row, is_wanted)?;
        // Those who waited for it to come back to life wait no more.
        self.end_waits(id, &mut row, false)?;
        self.erase(id, &row)?;
        self.tell(id, None, Some(None));
        Ok(())
    }

    /// Removes these jobs of a state if they still wait or run. Returns how many.
    pub(crate) fn remove_waiting(&mut self, state: JobState, ids: &[JobId]) -> Result<u64, BoxError> {
        let mut count = 0;
        for id in ids {
            let row = self.row_in(state, id)?.filter(|row| !row.state.is_ended());
            if let Some(row) = row {
                self.remove_row(id, row, true)?;
                count += 1;
            }
        }
        Ok(count)
    }
}

/// Makes an error of the queue one that a writer can carry.
impl From<Error> for Box<QueueError> {
    fn from(error: Error) -> Self {
        Box::new(error.into())
    }
}

impl Step<'_, '_> {
    /// Stores these records beside the ends of this batch.
    pub(crate) fn store_durations<'p>(&mut self, records: impl Iterator<Item = &'p Pair>) -> Result<(), StoreError> {
        for (key, record) in records {
            self.wrote = true;
            self.batch.put(self.queue.rows.id, &[key], &[record])?;
        }
        Ok(())
    }
}
