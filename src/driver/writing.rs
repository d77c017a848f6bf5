//! Jobs that have run and wait for a user's transaction with their results.
//!
//! A save takes the waiting jobs and counts them as done in the critical section that lists
//! everything that is done. So the transaction has exactly the results of the jobs that it says are
//! done. If the user's part fails, the window takes them back.

use super::failed_jobs::{Brief, FailedJobs};
use super::flights::Flight;
use super::outbox::{Ctx, Outbox};
use crate::base::{BoxError, Index, caught::Caught};
use crate::progress::WrittenJobs;
use crate::window::{Limits, Window};
use std::collections::{BTreeMap, BTreeSet};

/// The most jobs in a transaction. More would make a job no cheaper and a failure more expensive.
const MOST: usize = 4096;

/// From this many waiting jobs on, the next transaction begins at once.
const PLENTY: usize = 1024;

/// The jobs between their run and their transaction.
#[derive(Default)]
pub(crate) struct Writing {
    /// The most jobs that wait or are being written. Beyond it no job starts.
    most: u64,
    /// True if the progress keeps the jobs done ahead. Otherwise a transaction has an unbroken run
    /// of jobs, so that the watermark alone says which are done.
    in_any_order: bool,
    /// The jobs of the window that wait.
    waiting: BTreeMap<Index, Ran>,
    /// The redriven jobs that wait. Each is written alone, outside of the order.
    redriven: BTreeMap<Index, Ran>,
    /// The jobs to be written alone, once, since the user's part failed with several of them.
    alone: BTreeSet<Index>,
    /// The jobs in the transaction under way, or in its next try. They count as done.
    batch: Vec<(Index, Ran)>,
    /// True if no more jobs may join the transaction.
    closed: bool,
    /// The records that this transaction removes.
    unparked: Vec<(Index, Brief)>,
}

/// A job that has run.
#[derive(Clone, Copy)]
struct Ran {
    attempt: u32,
    /// True if the job was handed out before.
    again: bool,
    /// True if it is redriven: the window counts it as done all the time.
    redriven: bool,
}

impl Writing {
    pub(crate) fn new(most: u64, in_any_order: bool) -> Box<Self> {
        Box::new(Self { most, in_any_order, ..Self::default() })
    }

    /// Returns how many jobs have run and are in no save yet.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len() + self.redriven.len()
    }

    fn is_full(&self) -> bool {
        // In order, the window's width is the bound: the lowest job must always be able to start.
        self.in_any_order && (self.waiting() + self.batch.len()) as u64 >= self.most
    }

    /// Returns the job of the window to be written next. `undone` is the lowest undone index.
    fn next(&self, undone: Index) -> Option<Index> {
        let (index, _) = self.waiting.first_key_value()?;
        if self.in_any_order {
            return Some(*self.alone.first().unwrap_or(index));
        }
        (*index == undone).then_some(undone)
    }

    pub(super) fn can_write(&self, undone: Index) -> bool {
        !self.redriven.is_empty() || self.next(undone).is_some()
    }

    /// Narrows the limits for a progress whose jobs are written in order.
    pub(crate) fn narrow(&self, limits: Limits) -> Limits {
        let most = if self.in_any_order { u64::MAX } else { self.most };
        Limits { max_search_ahead: limits.max_search_ahead.min(most), ..limits }
    }

    /// Lets nothing start while too many results wait.
    fn fit(&self, window: &mut Window, out: &mut Outbox) {
        out.effects.crowded = self.is_full();
        window.set_full(out.effects.is_full());
    }

    /// Sets a job aside that has run, until a transaction has its result.
    pub(super) fn wait(&mut self, Flight { index, attempt, again, .. }: Flight, window: &mut Window, out: &mut Outbox) {
        let redriven = window.is_redriven(index);
        if redriven {
            window.handle_redriven_aside(index);
        } else {
            window.handle_set_aside(index);
        }
        let jobs = if redriven { &mut self.redriven } else { &mut self.waiting };
        jobs.insert(index, Ran { attempt, again, redriven });
        self.fit(window, out);
    }

    /// True if the next transaction does not wait for more jobs.
    pub(super) fn writes_at_once(&self) -> bool {
        self.waiting() >= PLENTY || !self.alone.is_empty() || !self.redriven.is_empty()
    }

    pub(super) fn is_under_way(&self) -> bool {
        !self.batch.is_empty()
    }

    /// True if this job of the window has run and waits for a transaction.
    pub(super) fn has(&self, index: Index) -> bool {
        self.waiting.contains_key(&index)
    }

    /// Returns the number of jobs in the transaction under way, and the lowest of them.
    pub(super) fn under_way(&self) -> Option<(usize, Index)> {
        Some((self.batch.len(), self.batch.first()?.0))
    }

    /// Fixes a transaction, whose jobs count as done from now on. Its retry may add jobs.
    pub(super) fn take_batch(&mut self, failed_jobs: &mut FailedJobs, window: &mut Window) {
        let joins = !self.batch.is_empty();
        if !joins && let Some((index, ran)) = self.redriven.pop_first() {
            count_as_done(index, window);
            self.batch.push((index, ran));
            self.closed = true;
        }
        while !self.closed && self.batch.len() < MOST {
            let Some(index) = self.next(window.lowest_undone()) else { break };
            // Only a suspect itself may be blamed for a crash in the user's part, too.
            if self.alone.contains(&index) || failed_jobs.quarantine.is_suspect(index) {
                if !self.batch.is_empty() {
                    break;
                }
                self.alone.remove(&index);
                self.closed = true;
            }
            let Some(ran) = self.waiting.remove(&index) else { break };
            count_as_done(index, window);
            self.batch.push((index, ran));
        }
        if joins {
            self.batch.sort_unstable_by_key(|(index, _)| *index);
        }
        for (index, _) in &self.batch {
            self.unparked.extend(failed_jobs.records.leave_with_batch(*index).map(|brief| (*index, brief)));
        }
    }

    /// Returns the jobs of the save that begins.
    pub(super) fn batch(&self) -> Option<Box<WrittenJobs>> {
        let jobs: Vec<_> = self.batch.iter().map(|(index, _)| *index).collect();
        let unparked = self.unparked.iter().map(|(index, _)| *index).collect();
        (!jobs.is_empty()).then(|| Box::new(WrittenJobs { jobs, unparked }))
    }

    /// Notes that the transaction is written. Returns the number of its jobs.
    pub(super) fn written(&mut self, failed_jobs: &mut FailedJobs, at: &mut Ctx<'_>) -> usize {
        let batch = std::mem::take(&mut self.batch);
        (self.closed, self.unparked) = (false, Vec::new());
        for (index, ran) in &batch {
            if ran.again {
                failed_jobs.failures.forget(*index);
            }
            failed_jobs.quarantine.no_suspect(*index, at.window);
            at.out.pass(*index);
        }
        self.fit(at.window, at.out);
        batch.len()
    }

    /// Notes that the user's part failed, so nothing is written. The attempt of a single job has
    /// failed; several are written again, each alone. Returns a value to be dropped without the
    /// lock.
    pub(super) fn failed(
        &mut self,
        failure: Caught,
        failed_jobs: &mut FailedJobs,
        at: &mut Ctx<'_>,
    ) -> Option<BoxError> {
        let batch = std::mem::take(&mut self.batch);
        self.closed = false;
        for (index, brief) in std::mem::take(&mut self.unparked) {
            failed_jobs.records.stay_after_all(index, brief);
        }
        let surplus = self.run_again(batch, failure, failed_jobs, at);
        self.fit(at.window, at.out);
        surplus
    }

    fn run_again(
        &mut self,
        batch: Vec<(Index, Ran)>,
        failure: Caught,
        failed_jobs: &mut FailedJobs,
        at: &mut Ctx<'_>,
    ) -> Option<BoxError> {
        if let [(index, Ran { attempt, redriven, .. })] = batch[..] {
            if !redriven && at.window.handle_revoked(index) {
                return failed_jobs.job_failed(index, attempt, failure, at);
            }
            failed_jobs.redrive_failed(index, attempt, &failure.text, false, at);
            return Some(failure.error);
        }
        // From the highest down, each takes one step.
        for (index, ran) in batch.into_iter().rev() {
            let revoked = at.window.handle_put_aside(index);
            debug_assert!(revoked, "job {index} is in the save under way");
            self.waiting.insert(index, ran);
            self.alone.insert(index);
        }
        Some(failure.error)
    }
}

fn count_as_done(index: Index, window: &mut Window) {
    window.handle_taken_up();
    let counts = window.handle_done(index);
    debug_assert!(counts, "job {index} was set aside");
}
