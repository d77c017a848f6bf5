//! The tray: a handoff buffer from which workers take first attempts, and in which they leave
//! successes, without the lock of the core.
//!
//! A visit to the core moves a dozen cache lines between processors, half the time of a job of a
//! microsecond; a visit to the tray moves three. So while jobs are short, a worker at the
//! core puts the next jobs into the tray, for all workers.
//!
//! The tray is the beginning of what was read: it holds the values, and the window does not know
//! that any of its jobs has begun. A thread that locks the core first takes the tray back and tells
//! the window what happened. So no holder of the lock ever sees the tray, all rules of the core
//! hold as if there were none, and no thread owns a job that has not begun.

use crate::base::{Index, time::Coarse};
use crate::reader::Payloads;
use crate::run::Assignment;
use crate::run::worker::{Job, Report};
use std::ops::Range;

/// The most jobs in the tray: one for each bit.
pub(crate) const MOST: u64 = u64::BITS as u64;

/// The first token of jobs begun from the tray. No flight has one.
const BEGUN_HERE: usize = usize::MAX / 2 + 1;

/// The most reports of jobs that were begun elsewhere.
const ELSEWHERE: usize = 16;

/// First attempts that may begin, and what became of them.
///
/// Each visit writes to it, so it is one cache line with its lock; what is only read is apart.
#[derive(Default)]
pub(crate) struct HandoffBuffer {
    /// The jobs that have not begun; empty while the tray is closed.
    left: Range<Index>,
    /// A bit for each job of this filling that is done; the lowest is for the first job.
    done: u64,
    /// How many jobs may begin before another one is done.
    free: usize,
    jobs: Option<Box<dyn Payloads>>,
    filling: Box<Filling>,
}

/// What stays as it is while jobs are taken, but for the rare `others`.
#[derive(Default)]
struct Filling {
    first: Index,
    /// The token of the jobs of this filling.
    token: usize,
    fence: u64,
    opened: Option<Coarse>,
    /// The successes of jobs begun elsewhere, or from an earlier filling.
    others: Vec<(usize, Index)>,
}

/// The content of a tray that was taken back.
pub(crate) struct Taken {
    /// The jobs that have begun.
    pub(super) begun: Range<Index>,
    /// A bit for each of these that is done.
    pub(super) done: u64,
    /// The values of the other jobs.
    pub(super) jobs: Option<Box<dyn Payloads>>,
    /// When the tray was filled.
    pub(super) opened: Option<Coarse>,
}

/// True if this token belongs to a job that was begun from the tray. Once the tray is taken back,
/// the job has another one.
pub(super) fn is_begun_here(token: usize) -> bool {
    token >= BEGUN_HERE
}

impl HandoffBuffer {
    /// Fills the tray with these jobs, and the values of all read ones.
    pub(super) fn open(&mut self, jobs: Range<Index>, values: Box<dyn Payloads>, free: usize, fence: u64, now: Coarse) {
        let filling = &mut *self.filling;
        // The bit below that mark is one of reports.
        filling.token = BEGUN_HERE | (filling.token.wrapping_add(1) % (BEGUN_HERE / 2));
        (filling.first, filling.fence, filling.opened) = (jobs.start, fence, Some(now));
        (self.left, self.jobs, self.done, self.free) = (jobs, Some(values), 0, free);
    }

    /// Leaves the report of a success, if there is one, and takes a job. Otherwise the report stays
    /// in place, for the core.
    #[inline]
    pub(super) fn next<T: Send + 'static>(&mut self, report: &mut Option<Report>) -> Option<Assignment<T>> {
        if self.left.is_empty() {
            return None;
        }
        if let Some(Report { token, index, outcome }) = report {
            let filling = &mut *self.filling;
            if outcome.is_err() || filling.others.len() == ELSEWHERE {
                return None;
            }
            if *token == filling.token {
                self.done |= 1 << (*index - filling.first);
            } else {
                filling.others.push((*token, *index));
            }
            self.free += 1;
            *report = None;
        }
        self.free = self.free.checked_sub(1)?;
        let payload = self.jobs.as_mut()?.pop_first()?;
        let index = self.left.start;
        self.left.start += 1;
        let Filling { token, fence, .. } = *self.filling;
        Some(Assignment { token, job: Job { index, attempt: 1, fence, payload } })
    }

    /// Takes the tray back. The successes of other jobs are [taken](Self::take_other) one by one.
    pub(super) fn close(&mut self) -> Taken {
        let begun = self.filling.first..self.left.start;
        self.left = 0..0;
        Taken { begun, done: self.done, jobs: self.jobs.take(), opened: self.filling.opened.take() }
    }

    /// Takes a success of a job begun elsewhere, or from an earlier filling.
    pub(super) fn take_other(&mut self) -> Option<(usize, Index)> {
        self.filling.others.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::time::coarse;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Jobs begin in order, each once and no more at a time than may, and each success counts
        /// once, whenever the tray is closed and opened again.
        #[test]
        fn jobs_begin_in_order_and_successes_count_once(steps in prop::collection::vec((0_u8..8, any::<usize>()), 1..200), limit in 1_usize..4) {
            let mut handoff = HandoffBuffer::default();
            let (mut next, mut opened, mut running) = (0, false, Vec::<(usize, Index)>::new());
            let (mut begun, mut done) = (BTreeSet::new(), BTreeSet::new());
            let close = |handoff: &mut HandoffBuffer, next: &mut Index, done: &mut BTreeSet<Index>| {
                let taken = handoff.close();
                while let Some((_, index)) = handoff.take_other() {
                    prop_assert!(done.insert(index), "job {index} counts twice");
                }
                for (at, index) in taken.begun.clone().enumerate() {
                    prop_assert!(taken.done >> at & 1 == 0 || done.insert(index), "job {index} counts twice");
                }
                *next = taken.begun.end.max(*next);
                Ok(())
            };
            for (step, pick) in steps {
                match step {
                    0 => {
                        close(&mut handoff, &mut next, &mut done)?;
                        opened = false;
                    }
                    1 if !opened => {
                        let jobs = next..next + 1 + pick as u64 % MOST;
                        handoff.open(jobs.clone(), <dyn Payloads>::new(jobs.collect::<Vec<_>>()), limit - running.len(), 5, coarse());
                        opened = true;
                    }
                    _ => {
                        let at = (pick % (limit + 1)).min(running.len());
                        let mut ended = (at < running.len()).then(|| running.swap_remove(at));
                        let mut success = ended.take().map(|(token, index)| Report { token, index, outcome: Ok(()) });
                        let job = handoff.next::<Index>(&mut success);
                        if let Some(Report { index, .. }) = success {
                            // The core takes it, and the tray with it.
                            close(&mut handoff, &mut next, &mut done)?;
                            opened = false;
                            prop_assert!(done.insert(index), "job {index} counts twice");
                        }
                        if let Some(Assignment { token, job }) = job {
                            prop_assert_eq!((job.payload, job.attempt, job.fence), (job.index, 1, 5));
                            prop_assert_eq!(begun.last().map_or(0, |last| last + 1), job.index);
                            begun.insert(job.index);
                            running.push((token, job.index));
                        }
                        prop_assert!(running.len() <= limit);
                    }
                }
            }
            close(&mut handoff, &mut next, &mut done)?;
            let still: BTreeSet<_> = running.into_iter().map(|(_, index)| index).collect();
            prop_assert_eq!(done.union(&still).copied().collect::<BTreeSet<_>>(), begun);
            prop_assert!(done.is_disjoint(&still));
        }
    }
}
