//! Looks at the jobs of a queue, and calls for many of them.

use crate::base::error::Error;
use crate::kv::{KeyRange, Order, QUEUE};
use crate::queue::embedded::codec::entry;
use crate::queue::embedded::codec::limit::{JOB, Record};
use crate::queue::embedded::intent::call;
use crate::queue::embedded::keys::{self, List, name_of_limit, number_of_entry, split_entry, split_held};
use crate::queue::handle::Queue;
use crate::queue::words::error::QueueError;
use crate::queue::words::info::JobInfo;
use crate::queue::words::job::{Counts, JobId, JobState, Priority};
use crate::queue::words::json::from_json;
use crate::queue::words::limit::name_of;
use crate::queue::words::row::Row;
use crate::store::Store;

/// A closure that is shown jobs. It returns false to end that.
type Each<'a> = dyn FnMut(&str, Found) -> Result<bool, QueueError> + 'a;

/// A job that an entry names.
pub(super) struct Found {
    /// The number of the entry in its list.
    place: u64,
    /// Those of the entry of a ready job.
    priority: Priority,
    limit: Option<String>,
    /// Its row, or the reason why that cannot be read.
    pub(super) row: Result<Row, String>,
}

impl Found {
    fn at(place: u64, row: Result<Row, String>) -> Self {
        Self { place, priority: Priority::default(), limit: None, row }
    }
}

/// Returns a part of a job, or an empty one if it cannot be read.
fn left_out<T: Default>(part: Result<T, QueueError>, damaged: &mut Option<QueueError>) -> Result<T, QueueError> {
    match part {
        Err(error @ (QueueError::Payload { .. } | QueueError::Store(Error::Corrupt { .. }))) => {
            *damaged = Some(error);
            Ok(T::default())
        }
        part => part,
    }
}

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
    /// [`QueueError::Store`] with [`Error::Corrupt`] for a job that cannot be read (see
    /// [`list`](Self::list), which shows what is left of it), and with [`Error::Store`] when the
    /// database fails.
    pub fn get(&self, id: impl AsRef<str>) -> Result<Option<JobInfo>, QueueError> {
        self.catch_up();
        let id = id.as_ref();
        let Some(row) = self.row(id)? else { return Ok(None) };
        match self.look_at(id, row)? {
            Some((_, Some(damaged))) => Err(damaged),
            looked => Ok(looked.map(|(job, _)| job)),
        }
    }

    /// Returns a job, and the error of a part of it that cannot be read and is left out.
    fn look_at(&self, id: &str, mut row: Row) -> Result<Option<(JobInfo, Option<QueueError>)>, QueueError> {
        loop {
            let mut damaged = None;
            let job = self.parts(id, &row, &mut damaged)?;
            if damaged.is_none() {
                return Ok(Some((job, None)));
            }
            // A job may be removed between the reads.
            match self.row(id)? {
                None => return Ok(None),
                Some(now) if now == row => return Ok(Some((job, damaged))),
                Some(now) => row = now,
            }
        }
    }

    /// Reads what is stored of a job, and leaves out what cannot be read.
    fn parts(&self, id: &str, row: &Row, damaged: &mut Option<QueueError>) -> Result<JobInfo, QueueError> {
        let payload = self.bytes(&self.state.keys.payload(id))?;
        if payload.is_none() {
            *damaged = Some(self.state.corrupt(format!("the job {id:?} has no payload")).into());
        }
        let data = if row.has_data { self.bytes(&self.state.keys.data(id))? } else { None };
        let data = data.map(|data| from_json(&data)).transpose();
        let data = data.map_err(|source| QueueError::Payload { id: id.to_owned(), source });
        let data = left_out(data, damaged)?;
        let meta = left_out(self.meta_of(id, row), damaged)?;
        let progress = left_out(self.progress_of(id, row), damaged)?;
        Ok(JobInfo { meta, progress, ..JobInfo::of(id, row, payload.unwrap_or_default(), data) })
    }

    /// Returns the state of the job with this id; `None` if there is none.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    pub fn state(&self, id: impl AsRef<str>) -> Result<Option<JobState>, QueueError> {
        self.catch_up();
        Ok(self.row(id.as_ref())?.map(|row| row.state))
    }

    /// Returns the number of jobs in each state. It reads nothing of the store.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.catch_up();
        self.state.look(|live| Counts::of(live.head.counts, live.damaged))
    }

    /// Lists jobs in this state: the ready ones as they are claimed within each priority, and then
    /// those that limits hold, the scheduled ones by their time, the running ones by their claims,
    /// and the finished and the dead ones by the time at which they go away. The list goes on
    /// behind the job `from`, which may have left the state meanwhile.
    ///
    /// A job that cannot be read hides no other one: it is shown with the reason
    /// ([`JobInfo::damaged`]), as [`JobState::Damaged`] if that is its row. From the moment when
    /// the queue comes across such a row, and sets it aside, the list of that state has it, and no
    /// other list.
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
        self.catch_up();
        let mut jobs = Vec::new();
        if limit > 0 {
            self.each(state, from, |id, found| {
                jobs.extend(self.shown(id, state, found)?);
                Ok(jobs.len() < limit)
            })?;
        }
        Ok(jobs)
    }

    /// Returns what a list of this state shows of a job.
    fn shown(&self, id: &str, state: JobState, found: Found) -> Result<Option<JobInfo>, QueueError> {
        let Found { place, priority, limit, row } = found;
        let damaged = match row {
            Ok(row) => {
                let was = row.place;
                let job = self.look_at(id, row)?.filter(|(job, _)| job.state == state && job.place == was);
                return Ok(job.map(|(job, error)| JobInfo { damaged: error.map(|error| error.report()), ..job }));
            }
            Err(damaged) => Some(damaged),
        };
        let row = Row::unreadable(priority, place, limit);
        Ok(Some(JobInfo { damaged, ..self.parts(id, &row, &mut None)? }))
    }

    /// Shows the jobs in this state, until one is answered with false.
    pub(super) fn each(
        &self,
        state: JobState,
        from: Option<&JobInfo>,
        mut each: impl FnMut(&str, Found) -> Result<bool, QueueError>,
    ) -> Result<(), QueueError> {
        let keys = self.state.keys;
        let list = match state {
            JobState::Ready => return self.each_ready(from, each),
            JobState::Running => return self.each_running(from, each),
            JobState::Scheduled => List::Scheduled,
            JobState::Finished => List::Finished,
            JobState::Dead => List::Dead,
            JobState::Waiting => List::Waiting,
            JobState::Damaged => List::Damaged,
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
            let (key, value) = pair?;
            let Some((at, id)) = split_entry(&key) else { continue };
            let row = if list == List::Damaged {
                let reason = String::from_utf8_lossy(value.get(1..).unwrap_or_default());
                Some(Err(reason.into_owned()))
            } else {
                let is_here =
                    |row: &Row| row.state == state && at == if list == List::Scheduled { row.due } else { row.place };
                self.found(id)?.filter(|row| row.as_ref().map_or(true, is_here))
            };
            if let Some(row) = row
                && !each(id, Found::at(at, row))?
            {
                break;
            }
        }
        Ok(())
    }

    fn each_ready(
        &self,
        from: Option<&JobInfo>,
        mut each: impl FnMut(&str, Found) -> Result<bool, QueueError>,
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
            let (key, entry) = pair?;
            let index = number_of_entry(&key);
            // The next claim finds the job that has lost an entry which cannot be read.
            let Ok(id) = entry::id_in(self.name(), &key, &entry) else { continue };
            let row = self.found(&id)?.filter(|row| row.as_ref().map_or(true, |row| row.is_at(lane, index)));
            if let Some(row) = row
                && !each(&id, Found { place: index, priority: Priority::ALL[lane], limit: None, row })?
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
                let Ok(id) = std::str::from_utf8(id) else { continue };
                let row = self.found(id)?.filter(|row| row.as_ref().map_or(true, |row| row.is_held(limit, place)));
                if let Some(row) = row
                    && !each(id, Found { place, priority: Priority::default(), limit: Some(limit.to_owned()), row })?
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
        mut each: impl FnMut(&str, Found) -> Result<bool, QueueError>,
    ) -> Result<(), QueueError> {
        let behind = from.map_or(0, |job| job.place.saturating_add(1));
        let mut running: Vec<(u64, JobId)> =
            self.state.look(|live| live.running.iter().map(|(token, holder)| (*token, holder.id.clone())).collect());
        running.sort_unstable();
        for (token, id) in running.into_iter().filter(|(token, _)| *token >= behind) {
            let is_here = |row: &Row| row.state == JobState::Running && row.place == token;
            let row = self.found(&id)?.filter(|row| row.as_ref().map_or(true, is_here));
            if let Some(row) = row
                && !each(&id, Found::at(token, row))?
            {
                break;
            }
        }
        Ok(())
    }

    /// Removes all jobs that wait or run when they are reached, and returns their number. Finished
    /// and dead jobs stay, and those that cannot be read. A worker that has one of them learns it
    /// from its next call. The jobs are removed in several writes, so a crash may leave the rest.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    pub fn purge(&self) -> Result<u64, QueueError> {
        let mut count = 0;
        // The end of a job would make those ready that wait for it.
        for state in [JobState::Waiting, JobState::Scheduled, JobState::Ready, JobState::Running] {
            count += self.in_chunks(state, |ids| {
                call(&self.store, &self.state, "purge a queue", move |step| step.remove_waiting(state, &ids))
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
            call(&self.store, &self.state, "requeue dead jobs", move |step| step.requeue_all(&ids))
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

    /// Returns the row of a job, or the reason why it cannot be read. One that is set aside is in
    /// the list of those alone.
    pub(super) fn found(&self, id: &str) -> Result<Option<Result<Row, String>>, QueueError> {
        match self.row(id) {
            Ok(row) => Ok(row.map(Ok)),
            Err(QueueError::Store(error @ Error::Corrupt { .. })) => {
                let aside = self.state.keys.entry(List::Damaged, 0, id);
                let is_aside = self.store.kv().get(&self.state.entries, &aside).map_err(Error::from)?.is_some();
                Ok((!is_aside).then(|| Err(error.report())))
            }
            Err(error) => Err(error),
        }
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
            (JobState::Scheduled, Some(time)) => crate::queue::words::job::millis(time).unwrap_or(u64::MAX),
            _ => self.place,
        }
    }
}
