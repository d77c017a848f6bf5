//! Jobs that have run and wait until a transaction of the user's has their results.
//!
//! A save takes the jobs that wait and counts them as done, in the critical section that lists
//! everything that is done. So the transaction has exactly the results of the jobs that it says are
//! done. If the user's part fails, the window takes back that they are.

use super::Driver;
use super::core::Core;
use super::flights::Flight;
use super::parking::Brief;
use crate::base::caught::Failure;
use crate::base::error::Error;
use crate::base::guard::drop_guarded;
use crate::base::index::{BoxError, Index};
use crate::base::time::Now;
use crate::progress::WrittenJobs;
use crate::window::Limits;
use std::collections::{BTreeMap, BTreeSet};

/// The most jobs in one transaction. Beyond that a job costs no less, and a failure costs more.
const MOST: usize = 4096;

/// The number of jobs that wait from which on the next transaction begins at once.
const PLENTY: usize = 1024;

/// The jobs between their run and their transaction, of a consumer that writes results.
pub(crate) struct Writing {
    /// The most jobs that wait or are being written; above it no job starts.
    most: u64,
    /// True if the progress keeps the jobs done ahead. Otherwise a transaction has an unbroken run
    /// of jobs, so that the watermark alone says which of them are done.
    in_any_order: bool,
    /// The jobs of the window that wait.
    waiting: BTreeMap<Index, Ran>,
    /// The parked jobs that ran once more and wait. Each is written alone, and is beside the order.
    redriven: BTreeMap<Index, Ran>,
    /// The jobs that are to be written alone, once, since the user's part failed with several of
    /// them.
    alone: BTreeSet<Index>,
    /// The jobs in the transaction that is under way, or is tried again. They count as done.
    batch: Vec<(Index, Ran)>,
    /// True if no other job may join them.
    closed: bool,
    /// The records that go with this transaction.
    unparked: Vec<(Index, Brief)>,
}

/// A job that has run.
#[derive(Clone, Copy)]
struct Ran {
    attempt: u32,
    /// True if the job was handed out before.
    again: bool,
    /// True if it is a parked job that ran once more. The window counts it as done all the time.
    redriven: bool,
}

impl Writing {
    pub(crate) fn new(most: u64, in_any_order: bool) -> Box<Self> {
        Box::new(Self {
            most,
            in_any_order,
            waiting: BTreeMap::new(),
            redriven: BTreeMap::new(),
            alone: BTreeSet::new(),
            batch: Vec::new(),
            closed: false,
            unparked: Vec::new(),
        })
    }

    /// The number of jobs that have run and are in no save yet.
    fn waiting(&self) -> usize {
        self.waiting.len() + self.redriven.len()
    }

    fn is_full(&self) -> bool {
        // In order, the width of the window is the bound: the lowest job must always be able to
        // start.
        self.in_any_order && (self.waiting() + self.batch.len()) as u64 >= self.most
    }

    /// Returns the job of the window that is written next. `undone` is the lowest undone index.
    fn next(&self, undone: Index) -> Option<Index> {
        let (index, _) = self.waiting.first_key_value()?;
        if self.in_any_order {
            return Some(*self.alone.first().unwrap_or(index));
        }
        (*index == undone).then_some(undone)
    }

    fn can_write(&self, undone: Index) -> bool {
        !self.redriven.is_empty() || self.next(undone).is_some()
    }

    /// Makes the limits narrow enough for a progress whose jobs are written in order.
    pub(crate) fn narrow(&self, limits: Limits) -> Limits {
        let most = if self.in_any_order { u64::MAX } else { self.most };
        Limits { max_search_ahead: limits.max_search_ahead.min(most), ..limits }
    }
}

impl Core {
    /// Lets nothing start while too much waits for a save.
    pub(super) fn fit_full(&mut self) {
        let unwritten = self.saving.writing.as_ref().is_some_and(|writing| writing.is_full());
        self.window.set_full(unwritten || self.saving.effects.is_full());
    }

    /// A job has run, and its result waits for a transaction.
    #[inline(never)]
    pub(super) fn wait_to_be_written(&mut self, Flight { index, attempt, again, .. }: Flight) {
        let is_redriven = self.window.is_redriven(index);
        if is_redriven {
            self.window.handle_redriven_aside(index);
        } else {
            self.window.handle_set_aside(index);
        }
        let Some(writing) = &mut self.saving.writing else { return };
        let jobs = if is_redriven { &mut writing.redriven } else { &mut writing.waiting };
        jobs.insert(index, Ran { attempt, again, redriven: is_redriven });
        self.fit_full();
    }

    /// True if a job waits that the next save can take.
    pub(super) fn can_write(&self) -> bool {
        let undone = self.window.lowest_undone();
        self.saving.writing.as_ref().is_some_and(|writing| writing.can_write(undone))
    }

    /// Asks for a save if a job waits that it can take.
    #[inline]
    pub(super) fn ask_to_write(&mut self) {
        if self.saving.writing.is_some() && self.can_write() {
            self.window.handle_changed();
        }
    }

    /// True if the next transaction is not to wait for more jobs.
    pub(super) fn writes_at_once(&self) -> bool {
        let writing = self.saving.writing.as_ref();
        writing.is_some_and(|writing| {
            writing.waiting() >= PLENTY || !writing.alone.is_empty() || !writing.redriven.is_empty()
        })
    }

    /// The number of jobs that have run and count as done in no save.
    pub(super) fn unwritten(&self) -> usize {
        self.saving.writing.as_ref().map_or(0, |writing| writing.waiting())
    }

    /// True if a transaction is under way, or could begin.
    pub(super) fn has_to_write(&self) -> bool {
        self.saving.writing.as_ref().is_some_and(|writing| !writing.batch.is_empty()) || self.can_write()
    }

    /// True if this job of the window has run, and waits for a transaction.
    pub(super) fn is_unwritten(&self, index: Index) -> bool {
        self.saving.writing.as_ref().is_some_and(|writing| writing.waiting.contains_key(&index))
    }

    /// The number of jobs in the transaction that is under way, and the lowest of them.
    pub(super) fn being_written(&self) -> Option<(usize, Index)> {
        let batch = &self.saving.writing.as_ref()?.batch;
        Some((batch.len(), batch.first()?.0))
    }

    /// Fixes the content of a transaction: the jobs in it count as done from now on. If it is tried
    /// again, more jobs may join.
    pub(super) fn take_batch(&mut self) {
        let Some(mut writing) = self.saving.writing.take() else { return };
        let joins = !writing.batch.is_empty();
        if !joins && let Some((index, ran)) = writing.redriven.pop_first() {
            self.count_as_done(index);
            writing.batch.push((index, ran));
            writing.closed = true;
        }
        while !writing.closed && writing.batch.len() < MOST {
            let Some(index) = writing.next(self.window.lowest_undone()) else { break };
            // A crash in the user's part is to be the fault of a suspect alone, too.
            if writing.alone.contains(&index) || self.is_suspect(index) {
                if !writing.batch.is_empty() {
                    break;
                }
                writing.alone.remove(&index);
                writing.closed = true;
            }
            let Some(ran) = writing.waiting.remove(&index) else { break };
            self.count_as_done(index);
            writing.batch.push((index, ran));
        }
        if joins {
            writing.batch.sort_unstable_by_key(|(index, _)| *index);
        }
        if let Some(parking) = &mut self.parking {
            for (index, _) in &writing.batch {
                writing.unparked.extend(parking.leave_with_batch(*index).map(|brief| (*index, brief)));
            }
        }
        self.saving.writing = Some(writing);
    }

    fn count_as_done(&mut self, index: Index) {
        self.window.handle_taken_up();
        let counts = self.window.handle_done(index);
        debug_assert!(counts, "job {index} was set aside");
    }

    /// Returns the jobs in the save that begins.
    pub(super) fn batch(&self) -> Option<Box<WrittenJobs>> {
        let writing = self.saving.writing.as_ref().filter(|writing| !writing.batch.is_empty())?;
        let jobs = writing.batch.iter().map(|(index, _)| *index).collect();
        let unparked = writing.unparked.iter().map(|(index, _)| *index).collect();
        Some(Box::new(WrittenJobs { jobs, unparked }))
    }

    /// The transaction is written.
    pub(super) fn batch_written(&mut self) {
        let Some(writing) = &mut self.saving.writing else { return };
        let batch = std::mem::take(&mut writing.batch);
        (writing.closed, writing.unparked) = (false, Vec::new());
        self.running.counters.done += batch.len() as u64;
        for (index, ran) in batch {
            if ran.again {
                self.failures.forget(index);
            }
            if self.parking.is_some() {
                self.no_suspect(index);
            }
        }
    }

    /// The user's part of the transaction has failed, and nothing of it is written. If the job was
    /// alone in it, its attempt has failed; several jobs are written again, each alone. The answer
    /// is to be dropped without the lock.
    pub(super) fn write_failed(&mut self, failure: Failure, now: &Now) -> Option<BoxError> {
        let Some(writing) = &mut self.saving.writing else { return Some(failure.error) };
        let batch = std::mem::take(&mut writing.batch);
        let unparked = std::mem::take(&mut writing.unparked);
        writing.closed = false;
        for (index, brief) in unparked {
            self.parking.iter_mut().for_each(|parking| parking.stay_after_all(index, brief.clone()));
        }
        if let [(index, Ran { attempt, redriven, .. })] = batch[..] {
            if !redriven && self.window.handle_revoked(index) {
                return self.job_failed(index, attempt, failure, now);
            }
            self.running.counters.failed += 1;
            self.redrive_failed(index, attempt, &failure.text, now);
            return Some(failure.error);
        }
        // From the highest one down, each is taken back in one step.
        for (index, ran) in batch.into_iter().rev() {
            let revoked = self.window.handle_put_aside(index);
            debug_assert!(revoked, "job {index} is in the save under way");
            let Some(writing) = &mut self.saving.writing else { continue };
            writing.waiting.insert(index, ran);
            writing.alone.insert(index);
        }
        Some(failure.error)
    }

    /// Makes limits narrow enough for the results that may wait.
    pub(super) fn narrow_for_writing(&self, limits: Limits) -> Limits {
        self.saving.writing.as_ref().map_or(limits, |writing| writing.narrow(limits))
    }
}

impl Driver {
    /// Notes that the user's part of a transaction has failed.
    pub(super) fn write_has_failed(&self, error: BoxError) {
        let failure = Failure::from(error);
        let mut core = self.core.lock();
        let now = self.clock.when_asked();
        let surplus = core.write_failed(failure, &now);
        core.saving.under_way.begins_anew();
        core.fit_full();
        self.settle_saving(core, &now);
        drop_guarded(surplus);
    }

    /// Halts the consumer, since nobody knows if a transaction is written.
    pub(super) fn saved_or_not(&self, source: BoxError) {
        let Failure { error: source, text, .. } = Failure::from(source);
        self.forsake(Error::Progress { source }, text.clone(), &text);
    }
}
