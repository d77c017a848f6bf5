//! The status_inputs of a queue: what it may wait for, and its first jobs.

use crate::embedded::codec::entry;
use crate::embedded::codec::head::FREED;
use crate::embedded::keys::List;
use crate::embedded::kind_lines::LinePlace;
use crate::embedded::reader::Reader;
use crate::embedded::state::Front;
use crate::engine::StatusInputs;
use crate::notify::presence::own_worker;
use crate::rules::fleet::Fleet;
use crate::rules::lanes::{LANES, Lane};
use crate::types::error::QueueError;
use crate::types::job::{Counts, JobId, JobState, Priority};
use crate::types::row::Row;
use crate::types::worker::WorkerInfo;
use std::ops::Range;
use std::time::Duration;
use waterline::seam::{KeyRange, Order};

/// The most lines that one look shows, and the most jobs of each that it counts.
const KINDS: usize = 64;
const COUNTED: usize = 10_000;

/// The most lines of each priority that a look for the oldest job reads.
const LINES: usize = 16;

/// The most entries of a ready log that a look for its first job reads.
const LOOKS: u64 = 64;

impl Reader<'_> {
    /// `is_here`: this process has opened the store for writing, and not another one.
    pub(crate) fn status_inputs(&self, is_here: bool) -> Result<StatusInputs, QueueError> {
        let first_ready = self.first_ready()?;
        let no_entry = first_ready.is_empty();
        let lines = self.lines_of_kinds()?;
        let held = self.look_at_held()?;
        let oldest_ready = first_ready.into_iter().chain(held.first).min_by_key(|(_, since)| *since);
        let mut due = None;
        self.each(JobState::Scheduled, None, |_, found| {
            due = found.row.as_ref().ok().map(|row| row.due);
            Ok(due.is_none())
        })?;
        let at = self.queue.moment();
        let fleet = Fleet::of(self.worker(is_here, 1).as_slice());
        Ok(self.queue.look(|live| {
            let ticks = live.from.ticks();
            let paused = live.head.is_paused(at.wall).then_some(live.head.paused_until);
            let shut = if live.gate.room() > 0 { live.gate.shut_until(at.wall) } else { None };
            let oldest = live.running.values().min_by_key(|holder| holder.since);
            StatusInputs {
                counts: Counts::of(live.head.counts, live.damaged),
                oldest_ready,
                only_held: no_entry && !live.head.has_freed(),
                only_in_lines: !lines.is_empty() && live.head.held == 0 && !live.has_front(),
                lines,
                due: due.into_iter().chain((ticks < u64::MAX).then_some(ticks)).min(),
                paused_until: paused,
                alone: live.gate.alone(),
                full: live.gate.is_full(at.wall).then_some(shut),
                held: held.most,
                running: live.running.len(),
                oldest_running: oldest.map(|holder| (holder.since, holder.id.clone())),
                fleet,
                lapsed: (0, Duration::ZERO),
                usual: None,
                lease: None,
                set_back: None,
            }
        }))
    }

    /// Returns the worker of the queue: this process, or the one that has the store open.
    pub(crate) fn worker(&self, is_here: bool, jobs: usize) -> Option<WorkerInfo> {
        let running: Vec<_> =
            self.queue.look(|live| live.running.values().map(|holder| (holder.since, holder.id.clone())).collect());
        let kind = |id: &str| Some(self.row(id).ok()??.kind);
        own_worker(&self.queue.moment(), self.queue.shared.presence(), is_here, running, jobs, kind)
    }

    /// Returns the kinds whose jobs are in lines, with their numbers.
    fn lines_of_kinds(&self) -> Result<Vec<(String, u64)>, QueueError> {
        let kinds: Vec<_> = self.queue.look(|live| live.kinds.kinds().take(KINDS).map(str::to_owned).collect());
        let mut lines = Vec::new();
        for kind in kinds {
            let (from, to) = (self.queue.keys.line(&kind, 0, 0), self.queue.keys.line(&kind, LANES, 0));
            let range = KeyRange { from, to: Some(to) };
            let mut count = 0;
            for pair in self.kv.rows(&self.queue.entries, range, Order::Ascending).take(COUNTED) {
                pair?;
                count += 1;
            }
            lines.extend((count > 0).then_some((kind, count)));
        }
        Ok(lines)
    }

    /// Returns the first ready job of each priority, and since when it is ready.
    fn first_ready(&self) -> Result<Vec<(JobId, u64)>, QueueError> {
        let mut first = Vec::new();
        for lane in 0..Priority::ALL.len() {
            self.each_in_lane(lane, 0, &mut |id, found| {
                let since = found.row.as_ref().ok().map(|row| row.since);
                first.extend(since.map(|since| (id.to_owned(), since)));
                Ok(since.is_none())
            })?;
        }
        Ok(first)
    }

    /// Returns since when the first job has waited. In lines, only jobs of these kinds count.
    pub(crate) fn oldest(&self, kinds: Option<&[String]>) -> u64 {
        let wall = self.queue.moment().wall;
        let (is_paused, logs, from) = self.queue.look(|live| {
            (live.head.is_paused(wall), (0..=FREED).map(|log| *live.head.log(log)).collect::<Vec<_>>(), live.from)
        });
        let in_lines = if is_paused { u64::MAX } else { self.oldest_in_lines(kinds) };
        let mut fronts = self.queue.fronts.lock();
        let lanes: Vec<_> =
            logs.into_iter().enumerate().filter(|(_, lane)| !is_paused && lane.next < lane.end).collect();
        // Without a ready job, the queue is ranked by what is due.
        let mut oldest = if lanes.is_empty() && from.has_untold() {
            0
        } else if lanes.is_empty() {
            from.first()
        } else {
            from.of(List::Scheduled)
        };
        oldest = oldest.min(in_lines);
        for (lane, Lane { next, end, .. }) in lanes {
            let front = &mut fronts[lane];
            if front.index < next || front.since.is_none() {
                let index = front.index.max(next);
                *front = self.front(lane, index..end.min(index + LOOKS));
            }
            oldest = oldest.min(front.since.unwrap_or(u64::MAX));
        }
        oldest
    }

    /// Returns since when the first job in a line of these kinds has waited.
    fn oldest_in_lines(&self, kinds: Option<&[String]>) -> u64 {
        let lines: Vec<_> = self.queue.look(|live| {
            let of_lane = |lane: usize| -> Vec<_> {
                let places = match kinds {
                    Some(kinds) => live.kinds.of_kinds(lane, kinds),
                    None => live.kinds.in_lane(lane).take(LINES).cloned().collect(),
                };
                places.into_iter().take(LINES).map(|place| (lane, place)).collect()
            };
            (0..LANES).flat_map(of_lane).collect()
        });
        let since = |(lane, place): &(usize, LinePlace)| self.since_in_line(*lane, place);
        lines.iter().filter_map(since).min().unwrap_or(u64::MAX)
    }

    /// Returns since when the first job of a line is ready. One that cannot be read counts as old,
    /// so that a claim finds it.
    fn since_in_line(&self, lane: usize, (from, kind): &LinePlace) -> Option<u64> {
        let keys = self.queue.keys;
        let range = KeyRange { from: keys.line(kind, lane, *from), to: Some(keys.line(kind, lane, u64::MAX)) };
        let (key, entry) = self.kv.rows(&self.queue.entries, range, Order::Ascending).next()?.ok()?;
        let row = entry::id_in(&self.queue.name, &key, &entry).map(|id| self.row(&id));
        match row {
            Ok(Ok(row)) => row.filter(|row| row.state == JobState::Ready).map(|row| row.since),
            Ok(Err(_)) | Err(_) => Some(0),
        }
    }

    /// Looks for the first job among these entries of a log.
    fn front(&self, lane: usize, entries: Range<u64>) -> Front {
        let end = entries.end;
        for index in entries {
            match self.since(lane, index) {
                Ok(None) => {}
                Ok(since) => return Front { index, since },
                // One that cannot be read counts as old, so that a claim finds it.
                Err(_) => return Front { index, since: Some(0) },
            }
        }
        Front { index: end, since: None }
    }

    /// Returns since when the job at this place of a log is ready; `None` if the entry is stale.
    fn since(&self, lane: usize, index: u64) -> Result<Option<u64>, QueueError> {
        let state = self.queue;
        let key = state.keys.ready(lane, index);
        let Some(entry) = self.kv.get(&state.entries, &key)? else { return Ok(None) };
        if lane == FREED {
            // The entry names the limit that holds the job.
            return String::from_utf8(entry).map_or(Ok(None), |limit| self.called_since(&limit));
        }
        let Ok(id) = entry::id_in(&state.name, &key, &entry) else { return Ok(None) };
        let row = self.row(&id)?;
        let is_here = |row: &Row| row.state == JobState::Ready && row.priority as usize == lane && row.place == index;
        Ok(row.filter(is_here).map(|row| row.since))
    }
}
