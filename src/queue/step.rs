//! The transitions of jobs: each is a part of one atomic batch.
//!
//! A job leaves its place and enters another one in the same batch, so it is always in exactly one.
//! This file moves jobs, and [`rules`] decides where to.

use super::entry;
use super::head::Head;
use super::keys::{Fronts, List};
use super::row::Row;
use super::state::QueueState;
use crate::base::clock::Moment;
use crate::base::error::{Error, StoreError};
use crate::base::index::BoxError;
use crate::base::sync::{Arc, Mutex};
use crate::commit::overlay::Overlay;
use crate::kv::batch::FamilyId;
use crate::queue::error::{QueueError, is_damage};
use crate::queue::job::{JobId, JobState};
use crate::queue::limit::gate::Gate;
use crate::queue::lines::{About, Damaged, Line, is_wanted};
use crate::queue::related::OnDead;
use crate::queue::unique::Clash;
use std::collections::VecDeque;
use tracing::Level;

mod claiming;
mod damage;
mod ending;
mod extra;
mod gone;
mod held;
mod limits;
mod marks;
mod mending;
mod notes;
mod pushing;
mod recount;
mod ticking;
mod time;
mod waiting;

/// The most entries that one look at a list moves. A larger backlog takes several batches, so that
/// no batch gets long.
pub(super) const AT_ONCE: usize = 64;

/// The most entries of ready jobs that one claim looks at. An entry whose job has moved or gone is
/// stale, and is passed.
pub(super) const LOOKS: usize = 256;

/// The state of a queue after everything in the batch.
#[derive(Clone)]
pub(crate) struct Tail {
    pub(super) head: Head,
    /// True if the batch changes the head.
    changed: bool,
    pub(super) from: Fronts,
    pub(super) gate: Gate,
    /// The number of jobs that are set aside, since they cannot be read.
    pub(super) damaged: u64,
    /// The events of the batch. Only the first `count` are true: those behind belong to intents
    /// that were taken back.
    told: Arc<Mutex<Vec<Happened>>>,
    count: usize,
    /// The number of jobs that waited when the batch began.
    waited: u64,
    /// True if nobody who waits for the batch writes its lines.
    pub(super) owes_lines: bool,
}

/// A thing that happened in a batch, for those who wait.
#[derive(Debug)]
pub(super) enum Happened {
    /// A job has another state, or other data; `None`: it was removed.
    /// The data is new if there is some; `Some(None)`: it is gone.
    Seen { id: JobId, state: Option<JobState>, data: Option<Option<Vec<u8>>> },
    /// A job has this lease from now on.
    Claimed { id: JobId, token: u64 },
    /// This lease is over.
    Released { token: u64 },
    /// The log is to have this line.
    Line(Line),
    /// A job that had shown progress begins anew, so that is gone.
    Anew { id: JobId },
    /// The queue is paused until this time; 0: it is not.
    Paused { until: u64 },
}

impl Happened {
    pub(super) fn line(self) -> Option<Line> {
        if let Self::Line(line) = self { Some(line) } else { None }
    }
}

impl Tail {
    pub(super) fn new(head: Head, from: Fronts, gate: Gate, damaged: u64) -> Self {
        let waited = head.waiting();
        let told = Arc::default();
        Self { head, changed: false, from, gate, damaged, told, count: 0, waited, owes_lines: false }
    }

    fn tell(&mut self, happened: Happened) {
        let mut told = self.told.lock();
        told.truncate(self.count);
        told.push(happened);
        self.count += 1;
    }

    /// Takes the events, once the batch is written.
    pub(super) fn take_told(&self) -> Vec<Happened> {
        let mut told = std::mem::take(&mut *self.told.lock());
        told.truncate(self.count);
        told
    }

    pub(super) fn is_changed(&self) -> bool {
        self.changed
    }
}

/// A job to be pushed, whose settings are checked.
#[derive(Clone, Debug)]
pub(super) struct Push {
    pub(super) id: JobId,
    /// The number in an id that the queue has made.
    pub(super) made: Option<u64>,
    pub(super) row: Row,
    pub(super) payload: Vec<u8>,
    /// The text of its metadata, if it has some.
    pub(super) meta: Vec<u8>,
    /// The treatment of a twin of a unique job.
    pub(super) clash: Clash,
    /// The milliseconds for which it refuses twins, if a time decides that.
    pub(super) window: u64,
    /// The ids of the jobs that it is to wait for, each once.
    pub(super) after: Vec<JobId>,
    /// A job of this setting will wait for it, which is pushed in the same batch.
    pub(super) awaited_by: Option<OnDead>,
}

/// A job that was claimed.
#[derive(Clone, Debug)]
pub(crate) struct Claimed {
    /// The number of its queue.
    pub(super) queue: u32,
    pub(super) id: JobId,
    pub(super) row: Row,
    pub(super) payload: Vec<u8>,
}

/// The answer to a claim.
#[derive(Clone, Debug)]
pub(super) enum Claim {
    Job(Box<Claimed>),
    Nothing,
    /// Only stale entries so far: look again.
    Again,
}

/// One transition within a batch.
pub(super) struct Step<'s, 'k> {
    pub(super) queue: &'s QueueState,
    pub(super) tail: &'s mut Tail,
    pub(super) batch: &'s mut Overlay<'k>,
    pub(super) at: Moment,
    /// True once it has changed anything.
    pub(super) wrote: bool,
    /// Ends that still have to be told to those who wait for them.
    pub(super) endings: VecDeque<Ending>,
    /// True while it tells ends.
    pub(super) is_telling: bool,
    /// True once it has seen that jobs are to be counted anew, since an entry was damaged.
    pub(super) has_lost: bool,
    pub(super) room: Room,
}

/// The end of a job, to be told to those in this list.
#[derive(Clone, Debug)]
pub(super) struct Ending {
    pub(super) list: u64,
    pub(super) of: JobId,
    pub(super) died: bool,
    /// The job of the list that was told last: a look begins behind it, and passes no tombstones.
    pub(super) last: JobId,
}

impl Ending {
    pub(super) fn new(list: u64, of: &str, died: bool) -> Self {
        Self { list, of: of.to_owned(), died, last: JobId::new() }
    }
}

/// The room that a push has to find in a queue in which only so many jobs may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// The queue makes the push, which is never refused.
    Any,
    /// There must be room now.
    Now,
    /// There must have been room when the batch began. A write that pushes more jobs than may ever
    /// wait would otherwise be refused for good.
    AtBegin,
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
    pub(super) fn head(&mut self) -> &mut Head {
        (self.wrote, self.tail.changed) = (true, true);
        &mut self.tail.head
    }

    pub(super) fn row(&mut self, id: &str) -> Result<Option<Row>, BoxError> {
        let bytes = self.batch.get(&self.queue.rows, &self.queue.keys.row(id))?;
        Ok(bytes.map(|bytes| self.queue.decode_row(id, &bytes)).transpose()?)
    }

    pub(super) fn write_row(&mut self, id: &str, row: &Row) -> Result<(), StoreError> {
        self.put(self.rows(), &self.queue.keys.row(id), &row.encode(&self.queue.name, id))
    }

    /// Takes a job out of its place.
    fn leave(&mut self, id: &str, row: &Row) -> Result<(), BoxError> {
        if row.extras().is_suspect && row.state.waits() {
            self.tail.gate.expects_none_alone();
        }
        match row.state {
            JobState::Scheduled => self.remove_entry(List::Scheduled, row.due, id)?,
            JobState::Ready if row.extras().held.is_some() => self.unhold(row)?,
            // Its entry is stale from now on.
            JobState::Ready => {}
            JobState::Waiting => {
                self.remove_entry(List::Waiting, row.place, id)?;
                self.wait_no_more(id, row.extras().after)?;
            }
            JobState::Running => {
                // A damaged record of a limit is made anew from the table of running jobs.
                self.release_limits(row)?;
                self.delete(self.rows(), &self.queue.keys.running(row.place))?;
                self.tail.tell(Happened::Released { token: row.place });
                self.tail.gate.end();
            }
            JobState::Finished => self.remove_entry(List::Finished, row.place, id)?,
            JobState::Dead => self.remove_entry(List::Dead, row.place, id)?,
            // No row says so.
            JobState::Damaged => return Ok(()),
        }
        let count = &mut self.head().counts[row.state.number()];
        *count = count.saturating_sub(1);
        Ok(())
    }

    fn remove_entry(&mut self, list: List, at: u64, id: &str) -> Result<(), StoreError> {
        self.delete(self.entries(), &self.queue.keys.entry(list, at, id))
    }

    fn put_entry(&mut self, list: List, at: u64, id: &str) -> Result<(), StoreError> {
        self.tail.from.note(list, at);
        self.put(self.entries(), &self.queue.keys.entry(list, at, id), &[])
    }

    /// Writes that a job is at this place of a ready log, or of the table of running jobs.
    fn put_place(&mut self, family: FamilyId, key: &[u8], id: &str) -> Result<(), StoreError> {
        self.put(family, key, &entry::encode(&self.queue.name, key, id))
    }

    /// Puts a job into the place of its state, and writes its row.
    fn enter(&mut self, id: &str, row: &mut Row) -> Result<(), StoreError> {
        row.since = self.at.wall;
        if let Some(extras) = row.extras.as_mut().filter(|_| row.state != JobState::Waiting) {
            extras.after = 0;
        }
        row.clear_state();
        match row.state {
            JobState::Scheduled => {
                // The first one may be due before it, and held.
                self.tail.gate.released += 1;
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
                self.tail.gate.begin(row.extras().is_suspect);
                self.tail.tell(Happened::Claimed { id: id.to_owned(), token: row.place });
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

    fn tell(&mut self, id: &str, state: Option<JobState>, data: Option<Option<Vec<u8>>>) {
        self.tail.tell(Happened::Seen { id: id.to_owned(), state, data });
    }

    /// Tells the log of a job, if somebody wants lines of this level.
    fn log(&mut self, level: Level, id: &str, row: &Row, line: impl FnOnce(About) -> Line) {
        if is_wanted(level) {
            let (id, kind, attempt) = (id.to_owned(), row.kind.clone(), row.failures.saturating_add(1));
            self.tail.tell(Happened::Line(line(About { id, kind, attempt })));
        }
    }

    /// Tells the log of a record that cannot be read.
    fn log_damage(&mut self, damaged: Damaged) {
        self.tail.tell(Happened::Line(Line::Damaged(damaged)));
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

    /// Writes the data of a running job.
    pub(super) fn update(&mut self, id: &str, token: u64, data: &[u8]) -> Result<Row, BoxError> {
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
    pub(super) fn remove(&mut self, id: &str) -> Result<(), BoxError> {
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
        self.settle(id, &mut row, is_wanted)?;
        // Those who waited for it to come back to life wait no more.
        self.end_waits(id, &mut row, false)?;
        self.erase(id, &row)?;
        self.tell(id, None, Some(None));
        Ok(())
    }

    /// Removes these jobs of a state if they still wait or run. Returns how many.
    pub(super) fn remove_waiting(&mut self, state: JobState, ids: &[JobId]) -> Result<u64, BoxError> {
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

    /// Makes these dead jobs ready, and returns their number. One that is gone by now, or no longer
    /// dead, is no error.
    pub(super) fn requeue_all(&mut self, ids: &[JobId]) -> Result<u64, BoxError> {
        let mut count = 0;
        for id in ids {
            if self.row_in(JobState::Dead, id)?.is_some() {
                count += u64::from(self.requeue(id)?);
            }
        }
        Ok(count)
    }

    /// Makes a dead job ready, as if it were pushed anew. Returns false if it is not dead.
    pub(super) fn requeue(&mut self, id: &str) -> Result<bool, BoxError> {
        let row = self.row(id)?.ok_or_else(|| self.queue.not_found(id))?;
        if row.state != JobState::Dead {
            return Ok(false);
        }
        self.leave(id, &row)?;
        let mut row = Row { state: JobState::Ready, failures: 0, crashes: 0, due: 0, ..row };
        self.begin_anew(&mut row);
        if let Some(extras) = &mut row.extras {
            // Somebody wants it to run, however late it is.
            extras.expires = None;
        }
        self.clear_progress(id, &mut row)?;
        self.register_again(id, &row)?;
        self.enter(id, &mut row)?;
        self.tell(id, Some(JobState::Ready), None);
        Ok(true)
    }
}

/// Makes an error of the queue one that a writer can carry.
impl From<Error> for Box<QueueError> {
    fn from(error: Error) -> Self {
        Box::new(error.into())
    }
}
