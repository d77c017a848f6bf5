//! The tray: first attempts that a thread of the pool takes, and successes that it leaves, without
//! the lock of the core.
//!
//! A visit to the core moves a dozen cache lines from one processor to the other, which costs a job
//! of a microsecond half of its time. A visit to the tray moves two or three. So while jobs are
//! short, a thread that was at the core puts the next jobs into the tray, for all threads.
//!
//! The tray is the beginning of what was read: it holds the values, and the window does not know
//! that any of its jobs has begun. Whoever takes the lock of the core takes the tray back first, and
//! tells the window what happened. So nobody who has the lock ever sees the tray, and every rule of
//! the core holds as if there were none. Nobody owns a job that has not begun.

use crate::base::index::Index;
use crate::base::time::Coarse;
use crate::reader::Payloads;
use crate::run::Assignment;
use crate::run::worker::{Job, Report};
use std::ops::Range;

/// The most jobs in it: there is a bit for each.
pub(crate) const MOST: u64 = u64::BITS as u64;

/// The tokens of jobs that were begun here. No flight has one.
const BEGUN_HERE: usize = usize::MAX / 2 + 1;

/// The most reports of jobs that were begun elsewhere.
const ELSEWHERE: usize = 16;

/// First attempts that may begin, and what became of them.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Tray {
    /// The jobs that have not begun. It is empty while the tray is closed.
    left: Range<Index>,
    /// The first job of this filling.
    first: Index,
    /// A bit for each job of this filling that is done; the lowest is that of the first one.
    done: u64,
    /// The number of jobs that may still begin before one of those that run is done.
    free: usize,
    /// The token of the jobs of this filling.
    token: usize,
    fence: u64,
    jobs: Option<Box<dyn Payloads>>,
    /// The successes of jobs that were begun elsewhere, or of an earlier filling.
    others: Vec<(usize, Index)>,
    opened: Option<Coarse>,
}

/// The content of a tray that was taken back.
pub(crate) struct Taken {
    /// The jobs that have begun.
    pub(super) begun: Range<Index>,
    /// A bit for each of these that is done.
    pub(super) done: u64,
    /// The values of the others.
    pub(super) jobs: Option<Box<dyn Payloads>>,
    /// The time of the filling.
    pub(super) opened: Option<Coarse>,
}

/// True if this is the token of a job that was begun in a tray. Once the tray is taken back, the
/// job has another one.
pub(super) fn is_begun_here(token: usize) -> bool {
    token >= BEGUN_HERE
}

impl Tray {
    /// Puts the values of these jobs and of all behind them into it.
    pub(super) fn open(&mut self, jobs: Range<Index>, values: Box<dyn Payloads>, free: usize, fence: u64, now: Coarse) {
        self.token = BEGUN_HERE | self.token.wrapping_add(1);
        (self.first, self.done, self.free, self.fence) = (jobs.start, 0, free, fence);
        (self.left, self.jobs, self.opened) = (jobs, Some(values), Some(now));
    }

    /// Leaves the report of a success, if there is one, and takes a job. If that is not possible,
    /// the report stays where it is, for the core.
    #[inline]
    pub(super) fn next<T: Send + 'static>(&mut self, report: &mut Option<Report>) -> Option<Assignment<T>> {
        if self.left.is_empty() {
            return None;
        }
        if let Some(Report { token, index, outcome }) = report {
            if outcome.is_err() || self.others.len() == ELSEWHERE {
                return None;
            }
            if *token == self.token {
                self.done |= 1 << (*index - self.first);
            } else {
                self.others.push((*token, *index));
            }
            self.free += 1;
            *report = None;
        }
        self.free = self.free.checked_sub(1)?;
        let payload = self.jobs.as_mut()?.pop_first()?;
        let index = self.left.start;
        self.left.start += 1;
        Some(Assignment { token: self.token, job: Job { index, attempt: 1, fence: self.fence, payload } })
    }

    /// Takes it back. The successes of other jobs are [taken](Self::take_other) one by one.
    pub(super) fn close(&mut self) -> Taken {
        let begun = self.first..self.left.start;
        self.left = 0..0;
        Taken { begun, done: self.done, jobs: self.jobs.take(), opened: self.opened.take() }
    }

    /// Takes a success of a job that was begun elsewhere, or of an earlier filling.
    pub(super) fn take_other(&mut self) -> Option<(usize, Index)> {
        self.others.pop()
    }
}
