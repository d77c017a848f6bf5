//! Reads what is stored of a queue: its jobs, state by state.

use crate::embedded::codec::entry;
use crate::embedded::codec::limit::{JOB, LimitRecord};
use crate::embedded::keys::{List, name_of_limit, number_of_entry, split_entry, split_held};
use crate::embedded::kind_lines::LinePlace;
use crate::embedded::state::QueueState;
use crate::types::error::QueueError;
use crate::types::info::JobInfo;
use crate::types::job::{JobId, JobState, Priority};
use crate::types::json::from_json;
use crate::types::meta::Meta;
use crate::types::page::Place;
use crate::types::progress::JobProgress;
use crate::types::row::Row;
use waterline::Error;
use waterline::seam::{KeyRange, Kv, Order};

mod limited;
mod side_records;
mod status_inputs;
mod used;

/// A closure called with jobs, until it returns false.
pub(crate) type Each<'a> = dyn FnMut(&str, Found) -> Result<bool, QueueError> + 'a;

/// A job that an entry names.
pub(crate) struct Found {
    /// The number of the entry in its list.
    pub(crate) place: u64,
    /// From the entry of a ready job.
    priority: Priority,
    limit: Option<String>,
    /// The row, or why it cannot be read.
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

/// A reader of what is stored of a queue.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    pub(crate) kv: &'a dyn Kv,
    pub(crate) queue: &'a QueueState,
}

impl Reader<'_> {
    /// Returns a job, and the error of a part that cannot be read and is left out.
    pub(crate) fn look_at(&self, id: &str, mut row: Row) -> Result<Option<(JobInfo, Option<QueueError>)>, QueueError> {
        loop {
            let mut damaged = None;
            let job = self.parts(id, &row, &mut damaged)?;
            if damaged.is_none() {
                return Ok(Some((job, None)));
            }
            // A job may change or be removed between the reads.
            match self.row(id)? {
                None => return Ok(None),
                Some(now) if now == row => return Ok(Some((job, damaged))),
                Some(now) => row = now,
            }
        }
    }

    /// Reads what is stored of a job, and leaves out what cannot be read.
    pub(crate) fn parts(&self, id: &str, row: &Row, damaged: &mut Option<QueueError>) -> Result<JobInfo, QueueError> {
        let payload = self.bytes(&self.queue.keys.payload(id))?;
        if payload.is_none() {
            *damaged = Some(self.queue.corrupt(format!("the job {id:?} has no payload")).into());
        }
        let data = if row.has_data { self.bytes(&self.queue.keys.data(id))? } else { None };
        let data = data.map(|data| from_json(&data)).transpose();
        let data = data.map_err(|source| QueueError::Payload { id: id.to_owned(), source });
        let data = left_out(data, damaged)?;
        let meta = left_out(self.meta_of(id, row), damaged)?;
        let progress = left_out(self.progress_of(id, row), damaged)?;
        Ok(JobInfo { meta, progress, ..JobInfo::of(id, row, payload.unwrap_or_default(), data) })
    }

    /// Returns what a list of this state shows of a job.
    pub(crate) fn shown(&self, id: &str, state: JobState, found: Found) -> Result<Option<JobInfo>, QueueError> {
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

    /// Calls `each` with the jobs in this state, until it returns false.
    pub(crate) fn each(
        &self,
        state: JobState,
        from: Option<&Place>,
        mut each: impl FnMut(&str, Found) -> Result<bool, QueueError>,
    ) -> Result<(), QueueError> {
        let keys = self.queue.keys;
        let list = match state {
            JobState::Ready => return self.each_ready(from, each),
            JobState::Running => return self.each_running(from, each),
            JobState::Scheduled => List::Scheduled,
            JobState::Finished => List::Finished,
            JobState::Dead => List::Dead,
            JobState::Waiting => List::Waiting,
            JobState::Damaged => List::Damaged,
        };
        let begin = self.queue.look(|live| live.from.of(list));
        let begin = match from {
            Some(place) => {
                let mut behind = keys.entry(list, place.number, &place.id);
                behind.push(0);
                behind
            }
            // Below are at most tombstones.
            None => keys.entries_from(list, begin),
        };
        let range = KeyRange { from: begin, to: Some(keys.entries_end(list)) };
        for pair in self.kv.rows(&self.queue.entries, range, Order::Ascending) {
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

    pub(crate) fn each_ready(
        &self,
        from: Option<&Place>,
        mut each: impl FnMut(&str, Found) -> Result<bool, QueueError>,
    ) -> Result<(), QueueError> {
        let (first, index) = from.map_or((0, 0), |place| (place.priority as usize, place.number.saturating_add(1)));
        let held = from.and_then(|place| place.limit.clone().map(|limit| (limit, index)));
        if held.is_none() {
            for lane in first..Priority::ALL.len() {
                if !self.each_in_lane(lane, if lane == first { index } else { 0 }, &mut each)? {
                    return Ok(());
                }
            }
        }
        self.each_held(held, &mut each)
    }

    /// Calls `each` with the ready jobs of a lane from this index on. Returns false if it did.
    pub(crate) fn each_in_lane(&self, lane: usize, index: u64, each: &mut Each<'_>) -> Result<bool, QueueError> {
        let (bounds, lines) = self.queue.look(|live| {
            let lines: Vec<_> = live.kinds.in_lane(lane).cloned().collect();
            (live.head.lanes[lane], lines)
        });
        if !self.each_in_lines(lane, (index, bounds.next), &lines, each)? {
            return Ok(false);
        }
        let begin = bounds.next.max(index);
        let from = self.queue.keys.ready(lane, begin);
        let range = KeyRange { from, to: Some(self.queue.keys.ready(lane, bounds.end.max(begin))) };
        for pair in self.kv.rows(&self.queue.entries, range, Order::Ascending) {
            let (key, entry) = pair?;
            let index = number_of_entry(&key);
            // The next claim finds the job of an entry that cannot be read.
            let Ok(id) = entry::id_in(&self.queue.name, &key, &entry) else { continue };
            let row = self.found(&id)?.filter(|row| row.as_ref().map_or(true, |row| row.is_at(lane, index)));
            if let Some(row) = row
                && !each(&id, Found { place: index, priority: Priority::ALL[lane], limit: None, row })?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Calls `each`, in order, with the jobs in these lines of a lane and between these indices.
    fn each_in_lines(
        &self,
        lane: usize,
        (index, end): (u64, u64),
        lines: &[LinePlace],
        each: &mut Each<'_>,
    ) -> Result<bool, QueueError> {
        let keys = self.queue.keys;
        let entries = |(from, kind): &LinePlace| {
            let begin = index.max(*from);
            let (from, to) = (keys.line(kind, lane, begin), keys.line(kind, lane, end.max(begin)));
            self.kv.rows(&self.queue.entries, KeyRange { from, to: Some(to) }, Order::Ascending).peekable()
        };
        let mut lines: Vec<_> = lines.iter().map(entries).collect();
        loop {
            let first = lines.iter_mut().filter_map(|line| {
                let index = line.peek()?.as_ref().map_or(0, |(key, _)| split_held(key).unwrap_or_default());
                Some((index, line))
            });
            let Some((index, line)) = first.min_by_key(|(index, _)| *index) else { return Ok(true) };
            let Some(pair) = line.next() else { return Ok(true) };
            let (key, entry) = pair?;
            let Ok(id) = entry::id_in(&self.queue.name, &key, &entry) else { continue };
            let row = self.found(&id)?.filter(|row| row.as_ref().map_or(true, |row| row.is_at(lane, index)));
            if let Some(row) = row
                && !each(&id, Found { place: index, priority: Priority::ALL[lane], limit: None, row })?
            {
                return Ok(false);
            }
        }
    }

    /// Calls `each` with the jobs that limits hold, limit by limit, from a place in one of them on.
    pub(crate) fn each_held(&self, from: Option<(String, u64)>, each: &mut Each<'_>) -> Result<(), QueueError> {
        if self.queue.look(|live| live.head.held) == 0 {
            return Ok(());
        }
        let (first, place) = from.unwrap_or_default();
        self.each_limit(&first, |limit, record| {
            let begin = record.next.max(if limit == first { place } else { 0 });
            let (from, to) = (self.queue.keys.held(limit, begin), self.queue.keys.held(limit, record.end.max(begin)));
            let range = KeyRange { from, to: Some(to) };
            for pair in self.kv.rows(&self.queue.entries, range, Order::Ascending) {
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

    /// Calls `each` with the limits that hold jobs, from this name on, until it returns false.
    pub(crate) fn each_limit(
        &self,
        from: &str,
        mut each: impl FnMut(&str, &LimitRecord) -> Result<bool, QueueError>,
    ) -> Result<(), QueueError> {
        let KeyRange { to, .. } = KeyRange::prefix(&self.queue.keys.all_limits());
        let range = KeyRange { from: self.queue.keys.limit(from), to };
        for pair in self.kv.rows(&self.queue.rows, range, Order::Ascending) {
            let (key, bytes) = pair?;
            let Some(name) = name_of_limit(&key) else { continue };
            // The next claim rebuilds a record that cannot be read.
            let record = LimitRecord::decode(&self.queue.name, name, &bytes).ok().filter(|record| record.held > 0);
            if let Some(record) = record
                && !each(name, &record)?
            {
                break;
            }
        }
        Ok(())
    }

    pub(crate) fn each_running(
        &self,
        from: Option<&Place>,
        mut each: impl FnMut(&str, Found) -> Result<bool, QueueError>,
    ) -> Result<(), QueueError> {
        let behind = from.map_or(0, |place| place.number.saturating_add(1));
        let mut running: Vec<(u64, JobId)> =
            self.queue.look(|live| live.running.iter().map(|(token, holder)| (*token, holder.id.clone())).collect());
        running.sort_unstable();
        for (token, id) in running.into_iter().filter(|(token, _)| *token >= behind) {
            let is_here = |row: &Row| row.has_lease(token);
            let row = self.found(&id)?.filter(|row| row.as_ref().map_or(true, is_here));
            if let Some(row) = row
                && !each(&id, Found::at(token, row))?
            {
                break;
            }
        }
        Ok(())
    }

    pub(crate) fn row(&self, id: &str) -> Result<Option<Row>, QueueError> {
        let bytes = self.bytes(&self.queue.keys.row(id))?;
        Ok(bytes.map(|bytes| self.queue.decode_row(id, &bytes)).transpose()?)
    }

    /// Returns the row of a job, or why it cannot be read; `None` also if the job is set aside, as
    /// only the list of those has it then.
    pub(crate) fn found(&self, id: &str) -> Result<Option<Result<Row, String>>, QueueError> {
        match self.row(id) {
            Ok(row) => Ok(row.map(Ok)),
            Err(QueueError::Store(error @ Error::Corrupt { .. })) => {
                let aside = self.queue.keys.entry(List::Damaged, 0, id);
                let is_aside = self.kv.get(&self.queue.entries, &aside).map_err(Error::from)?.is_some();
                Ok((!is_aside).then(|| Err(error.report())))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns what is stored under a key in the family of rows.
    pub(crate) fn bytes(&self, key: &[u8]) -> Result<Option<Vec<u8>>, QueueError> {
        Ok(self.kv.get(&self.queue.rows, key).map_err(Error::from)?)
    }
}

impl Reader<'_> {
    fn meta_of(&self, id: &str, row: &Row) -> Result<Meta, QueueError> {
        if row.extras().has_meta { self.meta(id) } else { Ok(Meta::new()) }
    }

    pub(crate) fn meta(&self, id: &str) -> Result<Meta, QueueError> {
        let bytes = self.bytes(&self.queue.keys.meta(id))?;
        Ok(bytes.map_or(Ok(Meta::new()), |bytes| self.queue.decode_meta(id, &bytes))?)
    }

    /// Returns the progress that the worker of a job shows, or the stored one.
    pub(crate) fn progress_of(&self, id: &str, row: &Row) -> Result<Option<JobProgress>, QueueError> {
        let shown = if row.state == JobState::Running { self.queue.shown(row.place) } else { None };
        if shown.is_some() || !row.extras().has_progress {
            return Ok(shown);
        }
        let bytes = self.bytes(&self.queue.keys.progress(id))?;
        Ok(bytes.map(|bytes| self.queue.decode_progress(id, &bytes)).transpose()?)
    }
}
