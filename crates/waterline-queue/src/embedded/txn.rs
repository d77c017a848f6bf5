//! One queue's part of an atomic batch: reads see what the batch has written so far.
//!
//! The files below know where the records of a job are, and keep them consistent. They decide
//! nothing: [`step`](crate::embedded::step) makes the transitions.
//!
//! - `places`: the log, list or table that a job is in by its state
//! - `limits`, `held_logs`: the records of limits, and the jobs that wait for a place under one
//! - `lines`: the lines of kinds, of ready jobs that claims of other kinds have passed
//! - `edges`: the jobs that wait for the ends of others
//! - `dedup`, `notes`, `extra`: marks, notes, and the metadata, progress and data of a job
//! - `id_tombstones`: the ids of jobs that are gone
//! - `repair`, `set_back`: records that cannot be read, and times after the clock was set back

use crate::embedded::codec::durations::Pair;
use crate::embedded::codec::entry;
use crate::embedded::codec::head::Head;
use crate::embedded::ctx::Ctx;
use crate::embedded::keys::{List, split_entry};
use crate::embedded::staged::Staged;
use crate::notify::lines::is_wanted;
use crate::rules::fair::Draw;
use crate::types::events::{About, Damaged, Event, Line};
use crate::types::job::{JobId, JobState};
use crate::types::row::Row;
use tracing::Level;
use waterline::seam::{FamilyId, KeyRange, Moment, Overlay};
use waterline::{BoxError, StoreError};

pub(crate) mod dedup;
pub(crate) mod edges;
mod extra;
pub(crate) mod held_logs;
mod id_tombstones;
pub(crate) mod limits;
pub(crate) mod lines;
mod notes;
mod places;
pub(crate) mod repair;
mod set_back;

/// The most entries of a list that one batch moves. A larger backlog takes several batches.
pub(crate) const AT_ONCE: usize = 64;

/// The most entries of ready jobs that one claim reads. Entries of jobs that left are skipped.
pub(crate) const LOOKS: usize = 256;

/// What the transitions of one queue read and write within a batch.
pub(crate) struct Txn<'s, 'k> {
    pub(crate) queue: &'s Ctx,
    pub(crate) staged: &'s mut Staged,
    pub(crate) batch: &'s mut Overlay<'k>,
    pub(crate) at: Moment,
    /// The time by which token buckets fill, in milliseconds since 1970: when the batch is made.
    pub(crate) tokens_at: u64,
    /// The number of random chances drawn so far.
    draws: u64,
    /// Whether the batch changed anything.
    pub(crate) wrote: bool,
    /// Whether a damaged entry was met: then all jobs have to be counted again.
    pub(crate) has_lost: bool,
}

impl<'s, 'k> Txn<'s, 'k> {
    pub(crate) fn new(
        queue: &'s Ctx,
        staged: &'s mut Staged,
        batch: &'s mut Overlay<'k>,
        at: Moment,
        tokens_at: u64,
    ) -> Self {
        Self { queue, staged, batch, at, tokens_at, draws: 0, wrote: false, has_lost: false }
    }
}

impl Txn<'_, '_> {
    pub(crate) fn rows(&self) -> FamilyId {
        self.queue.rows.id
    }

    pub(crate) fn entries(&self) -> FamilyId {
        self.queue.entries.id
    }

    pub(crate) fn put(&mut self, family: FamilyId, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.wrote = true;
        self.batch.put(family, &[key], &[value])
    }

    pub(crate) fn delete(&mut self, family: FamilyId, key: &[u8]) -> Result<(), StoreError> {
        self.wrote = true;
        self.batch.delete(family, &[key])
    }

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

    /// Returns the row of the job that holds this lease.
    pub(crate) fn leased(&mut self, id: &str, token: u64) -> Result<Row, BoxError> {
        let row = self.row(id)?.filter(|row| row.has_lease(token));
        Ok(row.ok_or_else(|| self.queue.halt(id))?)
    }

    pub(crate) fn remove_entry(&mut self, list: List, at: u64, id: &str) -> Result<(), StoreError> {
        self.delete(self.entries(), &self.queue.keys.entry(list, at, id))
    }

    pub(crate) fn put_entry(&mut self, list: List, at: u64, id: &str) -> Result<(), StoreError> {
        self.staged.from.note(list, at);
        // Writes the head, too: its `seen` time later shows whether the clock was set back.
        self.staged.changed = true;
        self.put(self.entries(), &self.queue.keys.entry(list, at, id), &[])
    }

    /// Writes the entry of a job in a ready log, a line or the table of running jobs.
    pub(crate) fn put_place(&mut self, family: FamilyId, key: &[u8], id: &str) -> Result<(), StoreError> {
        self.put(family, key, &entry::encode(&self.queue.name, key, id))
    }

    /// Returns the first entries of a list up to this time, and the number of the next (or `MAX`).
    pub(crate) fn listed(&mut self, list: List, until: u64, most: usize) -> Result<(Vec<(u64, JobId)>, u64), BoxError> {
        let keys = self.queue.keys;
        let from = keys.entries_from(list, self.staged.from.of(list));
        let (mut listed, mut unreadable, mut next) = (Vec::new(), Vec::new(), u64::MAX);
        for pair in self.batch.rows(&self.queue.entries, KeyRange { from, to: Some(keys.entries_end(list)) }) {
            let (key, _): Pair = pair?;
            let Some((at, id)) = split_entry(&key) else {
                unreadable.push(key);
                continue;
            };
            if at > until || listed.len() == most {
                next = at;
                break;
            }
            listed.push((at, id.to_owned()));
        }
        if !unreadable.is_empty() {
            // Counting all jobs again finds theirs.
            unreadable.iter().try_for_each(|key| self.delete(self.entries(), key))?;
            self.has_lost = true;
        }
        Ok((listed, next))
    }

    /// Returns the entries of a list that are due, and notes where the next look begins.
    pub(crate) fn take_listed(&mut self, list: List, most: usize) -> Result<Vec<(u64, JobId)>, BoxError> {
        let (listed, next) = self.listed(list, self.at.wall, most)?;
        self.staged.from.set(list, next);
        Ok(listed)
    }

    /// Draws a random chance per job, so that jobs that failed or crashed together spread out.
    pub(crate) fn chance(&mut self) -> f64 {
        self.draws += 1;
        // All queues of one write share its moment.
        let seed = self.at.chance.to_bits() ^ u64::from(self.queue.keys.0);
        // A manual clock leaves nothing to chance.
        if self.at.chance < 1.0 { Draw::new(seed, self.draws).chance } else { 1.0 }
    }

    pub(crate) fn tell(&mut self, id: &str, state: Option<JobState>, data: Option<Option<Vec<u8>>>) {
        self.staged.tell(Event::Seen { id: id.to_owned(), state, data, error: None });
    }

    /// Tells subscribers the new state of a job, with its error if it is dead.
    pub(crate) fn tell_row(&mut self, id: &str, row: &Row, data: Option<&[u8]>) {
        let (state, data) = (Some(row.state), data.map(|data| Some(data.to_vec())));
        let error = (row.state == JobState::Dead).then(|| row.error.clone());
        self.staged.tell(Event::Seen { id: id.to_owned(), state, data, error });
    }

    /// Logs a line about a job, if this level is enabled.
    pub(crate) fn log(&mut self, level: Level, id: &str, row: &Row, line: impl FnOnce(About) -> Line) {
        if is_wanted(level) {
            let (id, kind, attempt) = (id.to_owned(), row.kind.clone(), row.failures.saturating_add(1));
            self.staged.tell(Event::Line(line(About { id, kind, attempt })));
        }
    }

    /// Logs a record that cannot be read.
    pub(crate) fn log_damage(&mut self, damaged: Damaged) {
        self.staged.tell(Event::Line(Line::Damaged(damaged)));
    }

    pub(crate) fn set_data(&mut self, id: &str, row: &mut Row, data: &[u8]) -> Result<(), StoreError> {
        row.has_data = true;
        self.put(self.rows(), &self.queue.keys.data(id), data)
    }

    pub(crate) fn drop_data(&mut self, id: &str, row: &mut Row) -> Result<(), StoreError> {
        if std::mem::take(&mut row.has_data) { self.delete(self.rows(), &self.queue.keys.data(id)) } else { Ok(()) }
    }

    /// Stores durations together with the ends of this batch.
    pub(crate) fn store_durations<'p>(&mut self, records: impl Iterator<Item = &'p Pair>) -> Result<(), StoreError> {
        for (key, record) in records {
            self.wrote = true;
            self.batch.put(self.queue.rows.id, &[key], &[record])?;
        }
        Ok(())
    }
}
