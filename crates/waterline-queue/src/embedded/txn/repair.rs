//! Jobs that cannot be read. They are set aside until they are removed, so that all others go on.
//!
//! A job that is set aside has an entry in a list: a byte that says whether a state still counts
//! the job, and the reason as text. Its row and its other records stay as they are.

use crate::embedded::codec::entry;
use crate::embedded::codec::limit::{JOB, LimitRecord};
use crate::embedded::keys::{List, split_entry, split_running};
use crate::embedded::txn::Txn;
use crate::types::error::is_damage;
use crate::types::events::{Damaged, Event};
use crate::types::job::{JobId, JobState};
use crate::types::row::Row;
use waterline::BoxError;
use waterline::seam::{Family, KeyRange, describe};

/// No state counts the job any more.
pub(crate) const GONE: u8 = 0;

/// A state counts it, but it is not known which.
const COUNTED: u8 = 1;

/// It was passed in a ready log, and no longer counts as ready.
const PASSED: u8 = 2;

impl Txn<'_, '_> {
    /// Returns the row of a job named by an entry that stands for this state. A row that cannot be
    /// read is set aside: then the answer is `None`, and the entry stale.
    pub(crate) fn row_in(&mut self, state: impl Into<Option<JobState>>, id: &str) -> Result<Option<Row>, BoxError> {
        match self.row(id) {
            Err(error) if is_damage(&error) => {
                self.set_aside(id, state.into(), &error)?;
                Ok(None)
            }
            row => row,
        }
    }

    /// Sets aside a job that cannot be read. The first of its entries to be met says in which state
    /// it counts; `state` is `None` if the entry does not say.
    pub(crate) fn set_aside(&mut self, id: &str, state: Option<JobState>, error: &BoxError) -> Result<(), BoxError> {
        let (queue, key) = (self.queue, self.queue.keys.entry(List::Damaged, 0, id));
        let stored = self.batch.get(&queue.entries, &key)?;
        let before = stored.as_ref().and_then(|stored| stored.first().copied()).unwrap_or(COUNTED);
        let now = match (before, state) {
            (COUNTED, Some(JobState::Ready)) => PASSED,
            (COUNTED, Some(_)) => GONE,
            // Only entries of ready logs may be stale, so this one is right.
            (PASSED, Some(state)) if state != JobState::Ready => {
                self.head().counts[JobState::Ready.number()] += 1;
                GONE
            }
            _ => before,
        };
        if let Some(state) = state.filter(|_| now != before) {
            let count = &mut self.head().counts[state.number()];
            *count = count.saturating_sub(1);
        }
        if state == Some(JobState::Running) {
            self.release_leases(id, None)?;
        }
        if stored.is_none() || now != before {
            let reason = describe(&**error);
            self.put(queue.entries.id, &key, &[&[now], reason.as_bytes()].concat())?;
            if stored.is_none() {
                self.staged.damaged += 1;
                self.log_damage(Damaged::Job { id: id.to_owned(), error: reason });
                self.tell(id, Some(JobState::Damaged), None);
            }
        }
        Ok(())
    }

    /// Removes the entry of a job that was set aside. Returns whether there was one.
    pub(crate) fn forget_damaged(&mut self, id: &str) -> Result<bool, BoxError> {
        let (queue, key) = (self.queue, self.queue.keys.entry(List::Damaged, 0, id));
        if self.staged.damaged == 0 || self.batch.get(&queue.entries, &key)?.is_none() {
            return Ok(false);
        }
        self.staged.damaged -= 1;
        self.delete(queue.entries.id, &key)?;
        Ok(true)
    }

    /// Returns the ids of all jobs that are set aside.
    pub(crate) fn all_damaged(&mut self) -> Result<Vec<String>, BoxError> {
        let queue = self.queue;
        let (from, to) = (queue.keys.entries_from(List::Damaged, 0), queue.keys.entries_end(List::Damaged));
        let mut ids = Vec::new();
        for pair in self.batch.rows(&queue.entries, KeyRange { from, to: Some(to) }) {
            ids.extend(split_entry(&pair?.0).map(|(_, id)| id.to_owned()));
        }
        Ok(ids)
    }

    /// Ends the leases of a job whose row cannot say which it has. With a token it ends only that
    /// one, whose entry may be damaged, too.
    pub(crate) fn release_leases(&mut self, id: &str, token: Option<u64>) -> Result<(), BoxError> {
        let (queue, keys) = (self.queue, self.queue.keys);
        let (mut leases, mut others) = (Vec::new(), Vec::new());
        for pair in self.batch.rows(&queue.rows, KeyRange::prefix(&keys.all_running())) {
            let (key, entry) = pair?;
            let of = entry::id_in(&queue.name, &key, &entry);
            let its = split_running(&key).filter(|at| token.map_or(of.as_deref() == Ok(id), |token| *at == token));
            match of {
                _ if its.is_some() => leases.extend(its),
                Ok(of) => others.push(of),
                // The next opening logs it.
                Err(_) => {}
            }
        }
        if leases.is_empty() {
            return Ok(());
        }
        for token in leases {
            self.delete(queue.rows.id, &keys.running(token))?;
            self.staged.tell(Event::Released { token });
            self.staged.tell(Event::Lost { token });
            self.staged.gate.end();
        }
        // Nor can its row say which limits it runs under.
        self.staged.gate.released += 1;
        let rows = others.iter().filter_map(|id| self.row(id).ok().flatten());
        let running: Vec<_> = rows.filter(|row| row.state == JobState::Running).collect();
        self.recount_limits(None, &running)
    }

    /// True if the entry of a job is where its row says.
    pub(crate) fn has_entry(&mut self, id: &str, row: &Row) -> Result<bool, BoxError> {
        let (queue, keys) = (self.queue, self.queue.keys);
        let (family, key, value) = match row.state {
            JobState::Scheduled => (&queue.entries, keys.entry(List::Scheduled, row.due, id), None),
            JobState::Finished => (&queue.entries, keys.entry(List::Finished, row.place, id), None),
            JobState::Dead => (&queue.entries, keys.entry(List::Dead, row.place, id), None),
            JobState::Waiting => (&queue.entries, keys.entry(List::Waiting, row.place, id), None),
            JobState::Running => return self.is_place_of(&queue.rows, &keys.running(row.place), id),
            JobState::Ready => match &row.extras().held {
                Some(limit) => {
                    let record = self.batch.get(&queue.rows, &keys.limit(limit))?;
                    let record = record.and_then(|bytes| LimitRecord::decode(&queue.name, limit, &bytes).ok());
                    if record.is_some_and(|record| row.place < record.next) {
                        return Ok(false);
                    }
                    (&queue.entries, keys.held(limit, row.place), Some([&[JOB], id.as_bytes()].concat()))
                }
                None => {
                    let lane = row.priority as usize;
                    let key = if row.place < self.staged.head.lanes[lane].next {
                        keys.line(&row.kind, lane, row.place)
                    } else {
                        keys.ready(lane, row.place)
                    };
                    return self.is_place_of(&queue.entries, &key, id);
                }
            },
            JobState::Damaged => return Ok(true),
        };
        let stored = self.batch.get(family, &key)?;
        Ok(stored.is_some_and(|stored| value.is_none_or(|value| value == stored)))
    }

    fn is_place_of(&mut self, family: &Family, key: &[u8], id: &str) -> Result<bool, BoxError> {
        let stored = self.batch.get(family, key)?;
        Ok(stored.is_some_and(|stored| entry::id_in(&self.queue.name, key, &stored).is_ok_and(|of| of == id)))
    }

    /// Returns the running jobs whose entries can be read.
    pub(crate) fn running_ids(&mut self) -> Result<Vec<JobId>, BoxError> {
        let (queue, mut running) = (self.queue, Vec::new());
        for pair in self.batch.rows(&queue.rows, KeyRange::prefix(&queue.keys.all_running())) {
            let (key, entry) = pair?;
            running.extend(entry::id_in(&queue.name, &key, &entry).ok());
        }
        Ok(running)
    }
}
