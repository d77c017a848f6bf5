//! The transitions of jobs: each is a part of one atomic batch.
//!
//! A job leaves its place and enters another one in the same batch, so it is always in exactly one.
//! This file moves jobs, and [`rules`] decides where to.

use super::head::Head;
use super::keys::List;
use super::row::Row;
use super::rules::{self, Again, End, Next, Past};
use super::state::QueueState;
use crate::base::error::{Error, StoreError};
use crate::base::index::BoxError;
use crate::base::sync::{Arc, Mutex};
use crate::commit::overlay::Overlay;
use crate::kv::batch::FamilyId;
use crate::queue::clock::Moment;
use crate::queue::error::QueueError;
use crate::queue::job::{JobId, JobState, PushOutcome, Retention};

mod claiming;
mod damage;
mod time;

pub(super) use damage::is_damage;

/// The most entries that one look at a list moves. A larger backlog takes several batches, so that
/// no batch gets long.
pub(super) const AT_ONCE: usize = 64;

/// The state of a queue after everything in the batch.
#[derive(Clone)]
pub(crate) struct Tail {
    pub(super) head: Head,
    /// True if the batch changes the head.
    changed: bool,
    /// No entry of a list has a lower number: the scheduled, the finished and the dead jobs. A look
    /// begins there, and passes no tombstones.
    pub(super) from: [u64; 3],
    /// The events of the batch. Only the first `count` are true: those behind belong to intents
    /// that were taken back.
    told: Arc<Mutex<Vec<Happened>>>,
    count: usize,
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
}

impl Tail {
    pub(super) fn new(head: Head, from: [u64; 3]) -> Self {
        Self { head, changed: false, from, told: Arc::default(), count: 0 }
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
}

/// A job that was claimed.
#[derive(Clone, Debug)]
pub(crate) struct Claimed {
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

    fn payload(&mut self, id: &str) -> Result<Vec<u8>, BoxError> {
        let bytes = self.batch.get(&self.queue.rows, &self.queue.keys.payload(id))?;
        Ok(bytes.ok_or_else(|| self.queue.corrupt(format!("the job {id:?} has no payload")))?)
    }

    pub(super) fn write_row(&mut self, id: &str, row: &Row) -> Result<(), StoreError> {
        self.put(self.rows(), &self.queue.keys.row(id), &row.encode(&self.queue.name, id))
    }

    /// Takes a job out of its place.
    fn leave(&mut self, id: &str, row: &Row) -> Result<(), StoreError> {
        match row.state {
            JobState::Scheduled => self.remove_entry(List::Scheduled, row.due, id)?,
            // Its entry is stale from now on.
            JobState::Ready => {}
            JobState::Running => {
                self.delete(self.rows(), &self.queue.keys.running(row.place))?;
                self.tail.tell(Happened::Released { token: row.place });
            }
            JobState::Finished => self.remove_entry(List::Finished, row.place, id)?,
            JobState::Dead => self.remove_entry(List::Dead, row.place, id)?,
        }
        let count = &mut self.head().counts[row.state.number()];
        *count = count.saturating_sub(1);
        Ok(())
    }

    fn remove_entry(&mut self, list: List, at: u64, id: &str) -> Result<(), StoreError> {
        self.delete(self.entries(), &self.queue.keys.entry(list, at, id))
    }

    fn put_entry(&mut self, list: List, at: u64, id: &str) -> Result<(), StoreError> {
        let from = &mut self.tail.from[number_of(list)];
        *from = at.min(*from);
        self.put(self.entries(), &self.queue.keys.entry(list, at, id), &[])
    }

    /// Puts a job into the place of its state, and writes its row.
    fn enter(&mut self, id: &str, row: &mut Row) -> Result<(), StoreError> {
        row.since = self.at.wall;
        match row.state {
            JobState::Scheduled => self.put_entry(List::Scheduled, row.due, id)?,
            JobState::Ready => {
                let lane = row.priority as usize;
                let end = &mut self.head().lanes[lane].end;
                row.place = *end;
                *end += 1;
                self.put(self.entries(), &self.queue.keys.ready(lane, row.place), id.as_bytes())?;
            }
            JobState::Running => {
                let token = &mut self.head().next_token;
                row.place = *token;
                *token += 1;
                self.put(self.rows(), &self.queue.keys.running(row.place), id.as_bytes())?;
                self.tail.tell(Happened::Claimed { id: id.to_owned(), token: row.place });
            }
            JobState::Finished => self.put_entry(List::Finished, row.place, id)?,
            JobState::Dead => self.put_entry(List::Dead, row.place, id)?,
        }
        self.head().counts[row.state.number()] += 1;
        self.write_row(id, row)
    }

    fn tell(&mut self, id: &str, state: Option<JobState>, data: Option<Option<Vec<u8>>>) {
        self.tail.tell(Happened::Seen { id: id.to_owned(), state, data });
    }

    /// Removes everything of a job but its place.
    fn erase(&mut self, id: &str, row: &Row) -> Result<(), StoreError> {
        self.delete(self.rows(), &self.queue.keys.row(id))?;
        self.delete(self.rows(), &self.queue.keys.payload(id))?;
        if row.has_data { self.delete(self.rows(), &self.queue.keys.data(id)) } else { Ok(()) }
    }

    fn set_data(&mut self, id: &str, row: &mut Row, data: &[u8]) -> Result<(), StoreError> {
        row.has_data = true;
        self.put(self.rows(), &self.queue.keys.data(id), data)
    }

    fn drop_data(&mut self, id: &str, row: &mut Row) -> Result<(), StoreError> {
        if std::mem::take(&mut row.has_data) { self.delete(self.rows(), &self.queue.keys.data(id)) } else { Ok(()) }
    }

    // Pushing.

    pub(super) fn push(&mut self, push: &Push) -> Result<PushOutcome, BoxError> {
        let Push { id, made, row: new, payload } = push;
        if let Some(number) = made {
            let next = &mut self.head().next_id;
            *next = (*next).max(number + 1);
        }
        // An id that the queue has just made is in no row.
        let old = if made.is_some() { None } else { self.row(id)? };
        let state = rules::waiting(new.due, self.at.wall);
        let Some(old) = old else {
            let mut row = Row { state, ..new.clone() };
            self.put(self.rows(), &self.queue.keys.payload(id), payload)?;
            self.enter(id, &mut row)?;
            return Ok(PushOutcome::Added);
        };
        match rules::push_again(old.state, old.due, new.due) {
            Again::Same => Ok(PushOutcome::Duplicate(id.clone())),
            Again::Flag => {
                self.write_row(id, &Row { resubmit: Some(new.due), ..old })?;
                Ok(PushOutcome::Resubmit)
            }
            again @ (Again::Move | Again::Renew) => {
                self.leave(id, &old)?;
                let mut row = Row { state, has_data: old.has_data, ..new.clone() };
                self.drop_data(id, &mut row)?;
                if again == Again::Move {
                    // Its failures stay, or a push now and then would keep a job alive that fails
                    // for ever.
                    (row.failures, row.crashes, row.error) = (old.failures, old.crashes, old.error);
                }
                self.put(self.rows(), &self.queue.keys.payload(id), payload)?;
                self.enter(id, &mut row)?;
                self.tell(id, Some(state), Some(None));
                Ok(if again == Again::Move { PushOutcome::Rescheduled } else { PushOutcome::Added })
            }
        }
    }

    // The ends of attempts.

    /// Returns the row of the job that has this lease.
    ///
    /// # Errors
    /// [`QueueError::Halt`] if the lease is over.
    pub(super) fn leased(&mut self, id: &str, token: u64) -> Result<Row, BoxError> {
        let row = self.row(id)?.filter(|row| row.state == JobState::Running && row.place == token);
        Ok(row.ok_or_else(|| QueueError::Halt { id: id.to_owned() })?)
    }

    /// Ends an attempt. Returns the state that the job has then; `None`: its row is gone.
    pub(super) fn end(
        &mut self,
        id: &str,
        token: u64,
        end: End,
        data: Option<&[u8]>,
    ) -> Result<Option<JobState>, BoxError> {
        let row = self.leased(id, token)?;
        self.end_row(id, row, end, data)
    }

    fn end_row(&mut self, id: &str, mut row: Row, end: End, data: Option<&[u8]>) -> Result<Option<JobState>, BoxError> {
        let options = &self.queue.options;
        let past = Past {
            failures: row.failures,
            crashes: row.crashes,
            retry: row.retry.unwrap_or(options.retry),
            max_crashes: options.max_crashes,
            resubmit: row.resubmit,
        };
        let retention = row.retention.unwrap_or(options.retention);
        let dead_for = Retention::For(options.dead_for);
        self.leave(id, &row)?;
        if let Some(data) = data {
            self.set_data(id, &mut row, data)?;
        }
        // Each job has a chance of its own: those that failed, or crashed, together are to part.
        let chance = if end == End::Finished { 1.0 } else { self.queue.moment().chance };
        let next = rules::next(&past, end, self.at.wall, chance);
        // An attempt that has failed has not done what was asked for meanwhile.
        if !matches!(next, Next::Wait { .. }) {
            row.resubmit = None;
        }
        let kept = match next {
            Next::Finish => {
                (row.state, row.failures, row.crashes) = (JobState::Finished, 0, 0);
                rules::kept_until(retention, self.at.wall)
            }
            Next::Die { failures, crashes, error } => {
                (row.state, row.failures, row.crashes, row.error) = (JobState::Dead, failures, crashes, error);
                rules::kept_until(dead_for, self.at.wall)
            }
            Next::Anew { due, crashes, error } => {
                (row.failures, row.crashes, row.due, row.error) = (0, crashes, due, error.unwrap_or_default());
                row.state = rules::waiting(due, self.at.wall);
                Some(0)
            }
            Next::Wait { due, failures, crashes, error } => {
                (row.failures, row.crashes, row.due) = (failures, crashes, due);
                row.error = error.unwrap_or(row.error);
                row.state = rules::waiting(due, self.at.wall);
                Some(0)
            }
        };
        row.place = kept.unwrap_or(0);
        self.tell(id, Some(row.state), data.map(|data| Some(data.to_vec())));
        if kept.is_none() {
            self.erase(id, &row)?;
            return Ok(None);
        }
        self.enter(id, &mut row)?;
        Ok(Some(row.state))
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
        let row = match self.row(id) {
            Err(error) if is_damage(&error) => return self.remove_damaged(id),
            row => row?.ok_or_else(|| QueueError::NotFound { id: id.to_owned() })?,
        };
        self.remove_row(id, &row)
    }

    fn remove_row(&mut self, id: &str, row: &Row) -> Result<(), BoxError> {
        self.leave(id, row)?;
        self.erase(id, row)?;
        self.tell(id, None, Some(None));
        Ok(())
    }

    /// Removes these jobs if they still wait or run. Returns how many.
    pub(super) fn remove_waiting(&mut self, ids: &[JobId]) -> Result<u64, BoxError> {
        let mut count = 0;
        for id in ids {
            let row = self.row(id)?.filter(|row| !matches!(row.state, JobState::Finished | JobState::Dead));
            if let Some(row) = row {
                self.remove_row(id, &row)?;
                count += 1;
            }
        }
        Ok(count)
    }

    /// Makes a dead job ready, as if it were pushed anew. Returns false if it is not dead.
    pub(super) fn requeue(&mut self, id: &str) -> Result<bool, BoxError> {
        let row = self.row(id)?.ok_or_else(|| QueueError::NotFound { id: id.to_owned() })?;
        if row.state != JobState::Dead {
            return Ok(false);
        }
        self.leave(id, &row)?;
        let mut row = Row { state: JobState::Ready, failures: 0, crashes: 0, due: 0, ..row };
        self.enter(id, &mut row)?;
        self.tell(id, Some(JobState::Ready), None);
        Ok(true)
    }
}

/// Returns the place of a list in [`Tail::from`].
pub(super) fn number_of(list: List) -> usize {
    match list {
        List::Scheduled => 0,
        List::Finished => 1,
        List::Dead => 2,
    }
}

/// Makes an error of the queue one that a writer can carry.
impl From<Error> for Box<QueueError> {
    fn from(error: Error) -> Self {
        Box::new(error.into())
    }
}
