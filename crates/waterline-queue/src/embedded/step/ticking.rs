//! The ticks of periodic jobs. The batch that pushes a tick's job notes the tick, so a crash
//! neither repeats nor loses it.

use crate::embedded::codec::side_records::Last;
use crate::embedded::step::Step;
use crate::rules::due::due;
use crate::rules::set_back::last_tick;
use crate::types::error::is_damage;
use crate::types::events::{Damaged, Event, Line, Passed};
use crate::types::job::{JobId, time};
use crate::types::periodic::Periodic;
use crate::types::schedule::Overlap;
use waterline::BoxError;
use waterline::seam::describe;

impl Step<'_, '_> {
    /// Pushes the jobs of all ticks that are due: up to `most` of each periodic job.
    pub(super) fn tick(&mut self, most: usize) -> Result<(), BoxError> {
        let mut next = u64::MAX;
        for periodic in self.periodics.clone() {
            next = next.min(self.tick_of(&periodic, most)?);
        }
        self.txn.staged.from.set_ticks(next);
        Ok(())
    }

    /// Pushes the jobs of the due ticks of one periodic job. Returns the time of its next tick.
    fn tick_of(&mut self, periodic: &Periodic, most: usize) -> Result<u64, BoxError> {
        let mut last = match self.last_of(&periodic.name) {
            Err(error) if is_damage(&error) => {
                // The record stays until the name is removed.
                self.txn.log_damage(Damaged::Periodic { name: periodic.name.clone(), error: describe(&*error) });
                return Ok(u64::MAX);
            }
            // Without a record, the registration is not written yet.
            last => match last? {
                Some(last) => last,
                None => return Ok(u64::MAX),
            },
        };
        let before = last.tick;
        last.tick = last_tick(&periodic.schedule, before, self.txn.at.wall);
        let next = periodic.schedule.next(last.tick).unwrap_or(u64::MAX);
        if next > self.txn.at.wall {
            if last.tick != before {
                self.put_last(&periodic.name, &last)?;
            }
            return Ok(next);
        }
        let has_unfinished = periodic.overlap == Overlap::Skip && self.is_unfinished(&last.run)?;
        let rules = (periodic.overlap, periodic.catch_up);
        let due = due(&periodic.schedule, rules, (last.tick, has_unfinished), self.txn.at.wall, most.max(1));
        for tick in due.run {
            last.run = self.push_tick(periodic, tick)?;
        }
        let passed = |tick, why, run| Event::Line(Line::Passed { name: periodic.name.clone(), tick, why, run });
        if let Some(missed) = due.missed {
            self.txn.staged.tell(passed(missed, Passed::Missed, None));
        }
        if due.skipped {
            last.skipped = last.skipped.saturating_add(1);
            self.txn.staged.tell(passed(due.last, Passed::Skipped, Some(last.run.clone())));
        }
        last.tick = due.last;
        self.put_last(&periodic.name, &last)?;
        Ok(due.next)
    }

    /// True if this job exists and has not ended. That is up to its row, so neither a crash nor an
    /// expired lease holds up a tick.
    fn is_unfinished(&mut self, id: &str) -> Result<bool, BoxError> {
        match self.txn.row(id) {
            // It cannot run while its row is damaged.
            Err(error) if is_damage(&error) => Ok(false),
            row => Ok(row?.is_some_and(|row| !row.state.is_ended())),
        }
    }

    /// Pushes the job of a tick, as pushed and due at that time.
    fn push_tick(&mut self, periodic: &Periodic, tick: u64) -> Result<JobId, BoxError> {
        let job = periodic.job.clone().run_at(time(tick));
        let mut push = self.txn.queue.prepare(job, self.txn.at.wall)?;
        (push.row.pushed, push.row.named) = (tick, false);
        Ok(self.push(&push)?.id)
    }

    /// Starts a periodic job. Returns its last tick.
    pub(crate) fn start_periodic(&mut self, periodic: &Periodic, most: usize) -> Result<u64, BoxError> {
        self.txn.follow_clock()?;
        let wall = self.txn.at.wall;
        let tick = match self.last_of(&periodic.name)? {
            Some(last) => last_tick(&periodic.schedule, last.tick, wall),
            None => {
                let run = if periodic.at_next { JobId::new() } else { self.push_tick(periodic, wall)? };
                self.put_last(&periodic.name, &Last { tick: wall, skipped: 0, run })?;
                wall
            }
        };
        if self.periodics.is_empty() {
            let next = self.tick_of(periodic, most)?.min(self.txn.staged.from.ticks());
            self.txn.staged.from.set_ticks(next);
        } else {
            // Ticks are due, and the new job is among the registered ones.
            self.tick(most)?;
        }
        Ok(tick)
    }

    /// Removes the record of a periodic job. Returns false if there is none.
    pub(crate) fn remove_periodic(&mut self, name: &str) -> Result<bool, BoxError> {
        let (queue, key) = (self.txn.queue, self.txn.queue.keys.periodic(name));
        let is_there = self.txn.batch.get(&queue.rows, &key)?.is_some();
        if is_there {
            self.txn.delete(queue.rows.id, &key)?;
        }
        Ok(is_there)
    }

    fn last_of(&mut self, name: &str) -> Result<Option<Last>, BoxError> {
        let bytes = self.txn.batch.get(&self.txn.queue.rows, &self.txn.queue.keys.periodic(name))?;
        Ok(bytes.map(|bytes| self.txn.queue.decode_last(name, &bytes)).transpose()?)
    }

    fn put_last(&mut self, name: &str, last: &Last) -> Result<(), BoxError> {
        self.txn.staged.changed = true;
        Ok(self.txn.put(
            self.txn.rows(),
            &self.txn.queue.keys.periodic(name),
            &last.encode(&self.txn.queue.name, name),
        )?)
    }
}
