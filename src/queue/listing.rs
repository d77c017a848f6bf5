//! Looks at the jobs of a queue, and calls for many of them.

use super::Queue;
use super::intent::call;
use super::job::{Counts, JobInfo, Priority, from_json};
use super::keys::{self, List, name_of_limit, split_entry, split_held};
use super::limit::name_of;
use super::limit::record::Record;
use super::row::Row;
use super::step::JOB;
use crate::base::error::Error;
use crate::kv::{KeyRange, Order, QUEUE};
use crate::queue::error::QueueError;
use crate::queue::job::{JobId, JobState};
use crate::store::Store;

/// A closure that is shown jobs. It returns false to end that.
type Each<'a> = dyn FnMut(&str, &Row) -> Result<bool, QueueError> + 'a;

/// The number of jobs that one write of a call for many changes.
const CHUNK: usize = 1000;

impl Queue {
    /// Lists the names of all queues in a store, in their order. A read-only store has the list of
    /// the moment at which it was opened or refreshed.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline::queue::{Queue, QueueOptions};
    ///
    /// let store = Store::in_memory();
    /// for name in ["mail", "thumbnails"] {
    ///     Queue::open(&store, name, QueueOptions::default())?;
    /// }
    /// assert_eq!(Queue::names(&store)?, ["mail", "thumbnails"]);
    /// # Ok::<(), waterline::queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Store`] with [`Error::Corrupt`] for a name that cannot be read, and with
    /// [`Error::Store`] when the database fails.
    pub fn names(store: &Store) -> Result<Vec<String>, QueueError> {
        let rows = store.family(QUEUE)?;
        let mut names = Vec::new();
        for pair in store.kv().scan(&rows, &keys::all_names()) {
            let (key, _) = pair?;
            let name = keys::split_name(&key).ok_or_else(|| Error::Corrupt {
                name: QUEUE.to_owned(),
                reason: format!("the key \"{}\" has no name of a queue", key.escape_ascii()),
            })?;
            names.push(name.to_owned());
        }
        Ok(names)
    }

    /// Returns the job with this id; `None` if there is none.
    ///
    /// # Errors
    /// [`QueueError::Store`] with [`Error::Corrupt`] for a row that cannot be read, and with
    /// [`Error::Store`] when the database fails.
    pub fn get(&self, id: impl AsRef<str>) -> Result<Option<JobInfo>, QueueError> {
        let id = id.as_ref();
        // A job may be removed between the reads.
        loop {
            let Some(row) = self.row(id)? else { return Ok(None) };
            let Some(payload) = self.bytes(&self.state.keys.payload(id))? else {
                if self.row(id)?.is_none_or(|now| now != row) {
                    continue;
                }
                return Err(self.state.corrupt(format!("the job {id:?} has no payload")).into());
            };
            let data = if row.has_data { self.bytes(&self.state.keys.data(id))? } else { None };
            let data = data.map(|data| from_json(&data)).transpose();
            let data = data.map_err(|source| QueueError::Payload { id: id.to_owned(), source })?;
            let (meta, progress) = (self.meta_of(id, &row)?, self.progress_of(id, &row)?);
            return Ok(Some(JobInfo { meta, progress, ..JobInfo::of(id, &row, payload, data) }));
        }
    }

    /// Returns the state of the job with this id; `None` if there is none.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    pub fn state(&self, id: impl AsRef<str>) -> Result<Option<JobState>, QueueError> {
        Ok(self.row(id.as_ref())?.map(|row| row.state))
    }

    /// Returns the number of jobs in each state. It costs nothing.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts::of(self.state.look(|live| live.head.counts))
    }

    /// Lists jobs in this state: the ready ones as they are claimed within each priority, and then
    /// those that limits hold, the scheduled ones by their time, the running ones by their claims,
    /// and the finished and the dead ones by the time at which they go away. The list goes on
    /// behind the job `from`, which may have left the state meanwhile.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline::queue::{JobState, NewJob, Queue, QueueOptions};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default())?;
    /// queue.push_all((0..25).map(|n| NewJob::new("k", &n).unwrap()))?;
    /// let (mut from, mut seen) = (None, 0);
    /// loop {
    ///     let page = queue.list(JobState::Ready, from.as_ref(), 10)?;
    ///     seen += page.len();
    ///     let Some(last) = page.into_iter().last() else { break };
    ///     from = Some(last);
    /// }
    /// assert_eq!(seen, 25);
    /// # Ok::<(), waterline::queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    pub fn list(&self, state: JobState, from: Option<&JobInfo>, limit: usize) -> Result<Vec<JobInfo>, QueueError> {
        let mut jobs = Vec::new();
        self.each(state, from, |id, row| {
            let is_there = jobs.len() < limit;
            if is_there && let Some(job) = self.get(id)?.filter(|job| job.state == state && job.place == row.place) {
                jobs.push(job);
            }
            Ok(jobs.len() < limit)
        })?;
        jobs.truncate(limit);
        Ok(jobs)
    }

    /// Shows the jobs in this state, until one is answered with false.
    pub(super) fn each(
        &self,
        state: JobState,
        from: Option<&JobInfo>,
        mut each: impl FnMut(&str, &Row) -> Result<bool, QueueError>,
    ) -> Result<(), QueueError> {
        let keys = self.state.keys;
        let list = match state {
            JobState::Ready => return self.each_ready(from, each),
            JobState::Running => return self.each_running(from, each),
            JobState::Scheduled => List::Scheduled,
            JobState::Finished => List::Finished,
            JobState::Dead => List::Dead,
            JobState::Waiting => List::Waiting,
        };
        let begin = self.state.look(|live| live.from.of(list));
        let begin = match from {
            Some(job) => {
                let mut behind = keys.entry(list, job.list_place(state), &job.id);
                behind.push(0);
                behind
            }
            // Nothing is below, and tombstones may be.
            None => keys.entries_from(list, begin),
        };
        let range = KeyRange { from: begin, to: Some(keys.entries_end(list)) };
        for pair in self.store.kv().rows(&self.state.entries, range, Order::Ascending) {
            let (key, _) = pair?;
            let (at, id) = split_entry(&key).ok_or_else(|| self.state.corrupt("an entry has no id".to_owned()))?;
            let is_here =
                |row: &Row| row.state == state && at == if list == List::Scheduled { row.due } else { row.place };
            if let Some(row) = self.row(id)?.filter(is_here)
                && !each(id, &row)?
            {
                break;
            }
        }
        Ok(())
    }

    fn each_ready(
        &self,
        from: Option<&JobInfo>,
        mut each: impl FnMut(&str, &Row) -> Result<bool, QueueError>,
    ) -> Result<(), QueueError> {
        let (first, index) = from.map_or((0, 0), |job| (job.priority as usize, job.place.saturating_add(1)));
        let held = from.and_then(|job| job.held_by.as_ref().map(|limit| (name_of(limit), index)));
        if held.is_none() {
            for lane in first..Priority::ALL.len() {
                if !self.each_in_lane(lane, if lane == first { index } else { 0 }, &mut each)? {
                    return Ok(());
                }
            }
        }
        self.each_held(held, &mut each)
    }

    /// Shows the ready jobs of one priority from this index on. Returns false if one was answered
    /// with false.
    pub(super) fn each_in_lane(&self, lane: usize, index: u64, each: &mut Each<'_>) -> Result<bool, QueueError> {
        let bounds = self.state.look(|live| live.head.lanes[lane]);
        let begin = bounds.next.max(index);
        let from = self.state.keys.ready(lane, begin);
        let range = KeyRange { from, to: Some(self.state.keys.ready(lane, bounds.end.max(begin))) };
        for pair in self.store.kv().rows(&self.state.entries, range, Order::Ascending) {
            let (key, id) = pair?;
            let corrupt = || self.state.corrupt("an entry is no id".to_owned());
            let id = std::str::from_utf8(&id).map_err(|_| corrupt())?;
            let (index, _) = split_entry(&key).ok_or_else(corrupt)?;
            if let Some(row) = self.row(id)?.filter(|row| row.is_at(lane, index))
                && !each(id, &row)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Shows the jobs that limits hold, limit by limit: from a place in one of them on.
    fn each_held(&self, from: Option<(String, u64)>, each: &mut Each<'_>) -> Result<(), QueueError> {
        if self.state.look(|live| live.head.held) == 0 {
            return Ok(());
        }
        let (first, place) = from.unwrap_or_default();
        self.each_limit(&first, |limit, record| {
            let begin = record.next.max(if limit == first { place } else { 0 });
            let (from, to) = (self.state.keys.held(limit, begin), self.state.keys.held(limit, record.end.max(begin)));
            let range = KeyRange { from, to: Some(to) };
            for pair in self.store.kv().rows(&self.state.entries, range, Order::Ascending) {
                let (key, entry) = pair?;
                let place = split_held(&key).unwrap_or_default();
                let Some((&JOB, id)) = entry.split_first() else { continue };
                let id = std::str::from_utf8(id).map_err(|_| self.state.corrupt("an entry is no id".to_owned()))?;
                if let Some(row) = self.row(id)?.filter(|row| row.is_held(limit, place))
                    && !each(id, &row)?
                {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// Shows the limits that have held jobs, from this name on, until one is answered with false.
    pub(super) fn each_limit(
        &self,
        from: &str,
        mut each: impl FnMut(&str, &Record) -> Result<bool, QueueError>,
    ) -> Result<(), QueueError> {
        let KeyRange { to, .. } = KeyRange::prefix(&self.state.keys.all_limits());
        let range = KeyRange { from: self.state.keys.limit(from), to };
        for pair in self.store.kv().rows(&self.state.rows, range, Order::Ascending) {
            let (key, bytes) = pair?;
            let Some(name) = name_of_limit(&key) else { continue };
            // A record that cannot be read is made anew by the next claim.
            let record = Record::decode(self.name(), name, &bytes).ok().filter(|record| record.held > 0);
            if let Some(record) = record
                && !each(name, &record)?
            {
                break;
            }
        }
        Ok(())
    }

    fn each_running(
        &self,
        from: Option<&JobInfo>,
        mut each: impl FnMut(&str, &Row) -> Result<bool, QueueError>,
    ) -> Result<(), QueueError> {
        let behind = from.map_or(0, |job| job.place.saturating_add(1));
        let mut running: Vec<(u64, JobId)> =
            self.state.look(|live| live.running.iter().map(|(token, holder)| (*token, holder.id.clone())).collect());
        running.sort_unstable();
        for (token, id) in running.into_iter().filter(|(token, _)| *token >= behind) {
            let is_here = |row: &Row| row.state == JobState::Running && row.place == token;
            if let Some(row) = self.row(&id)?.filter(is_here)
                && !each(&id, &row)?
            {
                break;
            }
        }
        Ok(())
    }

    /// Removes all jobs that wait or run when they are reached, and returns their number. Finished
    /// and dead jobs stay. A worker that has one of them learns it from its next call. The jobs are
    /// removed in several writes, so a crash may leave the rest.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    pub fn purge(&self) -> Result<u64, QueueError> {
        let mut count = 0;
        // The end of a job would make those ready that wait for it.
        for state in [JobState::Waiting, JobState::Scheduled, JobState::Ready, JobState::Running] {
            count += self.in_chunks(state, |ids| {
                call(&self.store, &self.state, "purge a queue", move |step| step.remove_waiting(&ids))
            })?;
        }
        Ok(count)
    }

    /// Makes all dead jobs ready again, as [`requeue`](Self::requeue) does, and returns their
    /// number. It takes several writes, so a crash may leave the rest dead. A job that died with
    /// one that it waited for does not wait for it again: requeue it by itself when that one has
    /// ended.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    pub fn requeue_dead(&self) -> Result<u64, QueueError> {
        self.in_chunks(JobState::Dead, |ids| {
            call(&self.store, &self.state, "requeue dead jobs", move |step| {
                let mut count = 0;
                for id in &ids {
                    // One that is gone by now, or no longer dead, is no error.
                    count += match step.requeue(id) {
                        Ok(is_dead) => u64::from(is_dead),
                        Err(error) if matches!(error.downcast_ref(), Some(QueueError::NotFound { .. })) => 0,
                        Err(error) => return Err(error),
                    };
                }
                Ok(count)
            })
        })
    }

    /// Calls this with the ids of all jobs in a state, some at a time.
    fn in_chunks(
        &self,
        state: JobState,
        mut change: impl FnMut(Vec<JobId>) -> Result<u64, QueueError>,
    ) -> Result<u64, QueueError> {
        // All that are there now, so that the call ends however many come meanwhile.
        let mut left = self.counts().of_state(state);
        let mut count = 0;
        while left > 0 {
            let mut ids = Vec::new();
            self.each(state, None, |id, _| {
                ids.push(id.to_owned());
                Ok(ids.len() < CHUNK)
            })?;
            if ids.is_empty() {
                break;
            }
            left = left.saturating_sub(ids.len() as u64);
            count += change(ids)?;
        }
        Ok(count)
    }

    pub(super) fn row(&self, id: &str) -> Result<Option<Row>, QueueError> {
        let bytes = self.bytes(&self.state.keys.row(id))?;
        Ok(bytes.map(|bytes| self.state.decode_row(id, &bytes)).transpose()?)
    }

    /// Returns what is stored under this key of the rows.
    pub(super) fn bytes(&self, key: &[u8]) -> Result<Option<Vec<u8>>, QueueError> {
        Ok(self.store.kv().get(&self.state.rows, key).map_err(Error::from)?)
    }
}

impl JobInfo {
    /// Returns its number in the list of a state that it was in.
    fn list_place(&self, state: JobState) -> u64 {
        match (state, self.run_at) {
            (JobState::Scheduled, Some(time)) => super::job::millis(time).unwrap_or(u64::MAX),
            _ => self.place,
        }
    }
}
