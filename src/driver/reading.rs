//! Reading as the driver sees it: who carries out a fetch, and what came of it.
//!
//! The reader does, or, while it is on watch and the source is quick, the worker that would otherwise wait for it.

use super::core::{Bounding, Core, Surplus, Unread};
use super::workers::LOOK_EVERY;
use crate::error::Error;
use crate::index::{BoxError, Index};
use crate::jobs::Gate;
use crate::reader::{Answer, Fetched, Order, ReadRuns, Then};
use crate::sync::Arc;
use std::cmp::Reverse;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

impl<T: Send + 'static> Core<T> {
    /// The source no longer has the job that is next.
    fn truncated(&mut self, next: Index, first: Index) -> Option<BoxError> {
        let error = Error::Truncated { next, first };
        self.unreachable_from = self.unreachable_from.min(next);
        self.halt(next, error.to_string(), error)
    }

    /// The back-offs that are over by now make their jobs due.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.source.watching = false;
        while let Some(Reverse((_, index))) = self.timers.peek().filter(|Reverse((due, _))| *due <= now) {
            let due = self.window.handle_due(*index);
            debug_assert!(due, "a timer is set for each failed job, once");
            self.timers.pop();
        }
    }

    /// What the reader should do next.
    pub(crate) fn order(&mut self, now: Instant) -> Order {
        if self.window.is_stopping() || self.window.has_ended() {
            return Order::End;
        }
        if let Some(answer) = self.source.note.take() {
            return Order::Note(answer);
        }
        if let Some(run) = self.take_fetch(now) {
            return Order::Read(run);
        }
        self.source.watching = true;
        self.workers.watched_from(now);
        Order::Wait(self.timers.peek().map(|Reverse((due, _))| *due))
    }

    fn take_fetch(&mut self, now: Instant) -> Option<RangeInclusive<Index>> {
        let run = self.source.fetch.clone().filter(|_| !self.source.taken)?;
        self.source.taken = true;
        self.source.call = Some(now);
        Some(run)
    }

    /// The reader is on watch: whether the workers cope, and how long until it looks again.
    pub(crate) fn watch_on(&mut self, now: Instant) -> Option<Duration> {
        let unread = self.source.fetch.is_some() && !self.source.taken;
        let work = unread || self.window.can_run();
        let sight = self.workers.look(&self.window, now, work);
        // They are all in long jobs, it seems.
        self.rouse_reader |= unread && !sight.cope;
        self.source.watching = sight.look_again;
        sight.look_again.then_some(LOOK_EVERY)
    }

    pub(super) fn leaves_reading_to_workers(&self) -> bool {
        // Where the number of threads is the user's, none can take the place of one that reads.
        self.source.quick && self.source.watching && self.workers.fixed.is_none() && !self.window.is_stopping()
    }

    /// Whether there is something that a worker would read for itself.
    pub(crate) fn may_read(&self) -> bool {
        self.source.fetch.is_some() && !self.source.taken && self.leaves_reading_to_workers() && self.runs.is_some()
    }

    /// What this worker reads for itself.
    pub(crate) fn begin_reading(&mut self) -> Option<(Arc<dyn ReadRuns<T>>, RangeInclusive<Index>)> {
        if !self.may_read() {
            return None;
        }
        let runs = self.runs.clone()?;
        let run = self.take_fetch(Instant::now())?;
        self.workers.reading = true;
        Some((runs, run))
    }

    /// What a worker read for itself. When to ask again, if it did not go well, is for the reader to say.
    pub(crate) fn end_reading(&mut self, fetched: Fetched<T>) -> Surplus<T> {
        self.workers.reading = false;
        let answer = Answer::from(&fetched.then);
        if answer != Answer::Good {
            self.source.note = Some(answer);
            self.rouse_reader = true;
        }
        self.fetched(fetched)
    }

    /// The source is about to be asked for its head.
    pub(crate) fn looking(&mut self, now: Instant) {
        // From here on the reader does not see to the workers, however long the call takes.
        self.source.watching = false;
        self.source.look = Some(now);
        if self.source.bounding == Bounding::Wanted {
            self.source.bounding = Bounding::Looking;
        }
    }

    /// Ends once this index is processed.
    pub(crate) fn stop_at(&mut self, index: Index) {
        self.window.stop_at(index);
        self.rouse_waiters = true;
    }

    pub(crate) fn looked(&mut self, head: Option<Index>, gate: Gate) {
        self.source.look = None;
        self.source.seen = true;
        self.source.look_error = None;
        self.window.handle_head(head);
        self.window.handle_gate(gate.open_below());
        if self.source.bounding == Bounding::Looking {
            self.source.bounding = Bounding::No;
            match head {
                Some(head) => self.stop_at(head),
                None => self.window.handle_stop(),
            }
        }
    }

    /// The fetch under way is over. What comes too late, or has done its duty, is given back.
    pub(crate) fn fetched(&mut self, Fetched { jobs, then, quick }: Fetched<T>) -> Surplus<T> {
        self.source.quick = quick;
        let (unread, error) = match then {
            Then::Unasked => (None, None),
            Then::Missing => (Some(Unread::Missing), None),
            Then::Truncated { next, first } => (Some(Unread::Missing), self.truncated(next, first)),
            Then::Failed(failure) => (Some(Unread::Failed(failure.text)), Some(failure.error)),
        };
        Surplus { jobs: self.take_in(jobs, unread), error }
    }

    fn take_in(&mut self, jobs: Vec<T>, unread: Option<Unread>) -> Vec<T> {
        self.source.call = None;
        let Some(run) = self.source.fetch.take().filter(|_| !self.window.is_stopping() && !self.window.has_ended())
        else {
            return jobs;
        };
        let count = jobs.len() as u64;
        let missing = unread.is_some();
        let mut done = Vec::new();
        match self.failed.get_mut(run.start()) {
            // It was handed out before, so it is read for its retry.
            Some(failed) => {
                failed.unread = unread.filter(|_| count == 0);
                self.ready_again.extend(run.zip(jobs));
            }
            None => {
                self.source.unread = unread;
                done = self.keep_undone(*run.start(), jobs);
            }
        }
        if missing {
            self.window.handle_missing(count);
        } else {
            self.window.handle_fetched(count);
        }
        done
    }

    /// What an earlier life had done was read only because it stood between two jobs that are not; it is given back.
    fn keep_undone(&mut self, start: Index, jobs: Vec<T>) -> Vec<T> {
        if !self.window.has_restored(start) {
            self.ready.extend(jobs);
            return Vec::new();
        }
        let mut done = Vec::new();
        for (index, job) in (start..).zip(jobs) {
            if self.window.is_restored(index) {
                done.push(job);
            } else {
                self.ready.push_back(job);
            }
        }
        done
    }
}
