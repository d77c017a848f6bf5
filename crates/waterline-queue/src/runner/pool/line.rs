//! The line in which the threads of a runner wait for the next job.
//!
//! Waking a thread costs as much as several short jobs. So only one thread, the first in the line,
//! looks for a job, and it leaves short ones to the threads that are awake.

use crate::notify::bell::Takes;
use crate::notify::waiting::wait_until;
use crate::runner::attempt::{AttemptPort, Report};
use crate::runner::drain::Reached;
use crate::runner::pool::Pool;
use crate::runner::pool::stopping::held;
use crate::runner::pool::writing::Answer;
use crate::runner::running::NextJob;
use crate::types::error::QueueError;
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The pause after a failed write: the first one, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// The time between two claims that needs no further thread: most of it is the write.
const BRISK: Duration = Duration::from_micros(20);

/// How long the first in the line watches the others, and how many claims then are enough.
const LOOK: Duration = Duration::from_micros(200);

const ENOUGH: u64 = 8;

/// What the first thread in the line has found.
pub(super) enum Turn {
    /// It has claimed a job.
    Job(NextJob),
    /// It may claim this many ready jobs, or none, and writes ends.
    Claim(usize),
    /// No job will come.
    End,
    /// The runner has more threads than it may run jobs, since its limit was lowered.
    Leave,
}

impl Pool {
    /// Runs the loop of a thread.
    pub(super) fn work(self: &Arc<Self>) {
        let mut reports = Vec::new();
        // When the job before this one started, while it goes from job to job.
        let (mut before, mut begun) = (None, None);
        loop {
            let next = if begun.is_some() && self.goes_on(before) { self.go_on(&mut reports) } else { None };
            if next.is_none() {
                begun = None;
            }
            let Some((job, payload)) = next.or_else(|| self.stand_in_line(&mut reports)) else { break };
            before = begun.replace(waterline::seam::now());
            reports.extend(self.run(job, &payload));
        }
        self.note_end();
    }

    /// True if a thread that has ended a job claims the next one at once. If several threads take
    /// jobs faster than they can be written, one thread less is not slower.
    fn goes_on(&self, before: Option<Instant>) -> bool {
        let Some(before) = before else { return true };
        let active = {
            let state = self.state.lock();
            state.slots.threads - state.slots.in_line
        };
        let cycle = waterline::seam::now().saturating_duration_since(before);
        active <= 1 || cycle >= BRISK * u32::try_from(active).unwrap_or(u32::MAX)
    }

    /// Starts one more thread if the line is empty, so that one always looks for the next job.
    pub(super) fn grow(self: &Arc<Self>) {
        {
            let mut state = self.state.lock();
            if state.drain.ending || state.slots.in_line > 0 || state.slots.threads >= state.slots.needed() {
                return;
            }
            state.slots.threads += 1;
        }
        if let Err(error) = self.spawn() {
            self.state.lock().slots.threads -= 1;
            tracing::warn!(target: "waterline", queue = self.source().name(), %error, "the runner goes on with fewer threads");
        }
    }

    /// Takes the ends that other threads have left, and returns how many jobs to claim.
    ///
    /// It reserves a slot for each, and counts the write that the caller makes. None may be claimed
    /// while a gate is closed, or before the jobs in the claim batch start: they would wait for as
    /// long as others come. A group chooses a queue for each job.
    pub(super) fn prepare(&self, reports: &mut Vec<Report>, is_open: bool) -> usize {
        let mut state = self.state.lock();
        if state.outbox.leave(reports, self.source().writes_at_once()) {
            // A drain whose time is over must end, or the thread that looks would not sleep.
            self.room(&mut state, 0);
            return 0;
        }
        state.outbox.take(reports);
        let wants = if !is_open || state.outbox.claim_batch.has_jobs() {
            0
        } else {
            // A write that ends many jobs claims as many.
            let ends = if self.source().writes_at_once().is_some() { reports.len() } else { 0 };
            let now = waterline::seam::now();
            let most = if self.source().is_one() { state.outbox.batch_sizer.next(now).max(ends) } else { 1 };
            self.room(&mut state, reports.len()).min(most)
        };
        state.slots.reserved += wants;
        state.outbox.writes += usize::from(wants > 0 || !reports.is_empty());
        wants
    }

    /// Takes a job from the claim batch, and leaves these ends in it. Ends with writes of the
    /// user's are written first, each in its own write. Once no more jobs are claimed, none starts.
    pub(super) fn take_claimed(&self, reports: &mut Vec<Report>) -> Option<NextJob> {
        if reports.iter().any(|report| !report.effects.is_empty()) {
            return None;
        }
        let claimed = {
            let mut state = self.state.lock();
            if state.drain.ending {
                let jobs = state.outbox.claim_batch.take_jobs();
                drop(state);
                self.put_back(jobs.iter().map(held).collect());
                return None;
            }
            state.outbox.claim_batch.swap(reports)?
        };
        self.begin(claimed)
    }

    /// Takes the next job from the claim batch. If it is empty, writes the ends of jobs, and claims
    /// the next ones in the same write. Ends that cannot stay in the claim batch are written
    /// before. `None`: there is none, or the write failed, and the list still has the unwritten
    /// ends.
    pub(super) fn go_on(self: &Arc<Self>, reports: &mut Vec<Report>) -> Option<NextJob> {
        if let Some(next) = self.take_claimed(reports) {
            return Some(next);
        }
        let wants = self.prepare(reports, self.gates_are_open());
        if wants > 0 || !reports.is_empty() {
            match self.write(reports, wants) {
                Ok(Answer::Jobs(claimed)) => return self.take_up(claimed),
                Ok(_) if wants == 0 => {
                    if let Some(next) = self.take_claimed(reports) {
                        self.source().slot_is_free();
                        return Some(next);
                    }
                }
                _ => {}
            }
            self.let_the_line_look();
        }
        None
    }

    /// Gets in the line for the next job, and writes the ends. `None` if this thread must end.
    fn stand_in_line(self: &Arc<Self>, reports: &mut Vec<Report>) -> Option<NextJob> {
        let mut pause = PAUSES.0;
        loop {
            self.get_in_line();
            let first = self.first_in_line(reports);
            let turn = self.look_for_job(reports);
            let leaves = self.leave_line(&turn);
            drop(first);
            match turn {
                Turn::End => return None,
                Turn::Leave if leaves => {
                    self.threads.join_finished();
                    return None;
                }
                Turn::Leave => {}
                Turn::Job(next) => {
                    self.grow();
                    return Some(next);
                }
                Turn::Claim(wants) => {
                    // A claim may take as long as a disk flush, so the next in line looks
                    // meanwhile.
                    self.grow();
                    match self.write(reports, wants) {
                        Ok(Answer::Jobs(claimed)) => return self.take_up(claimed),
                        Ok(Answer::Again | Answer::Nothing) => {}
                        Err(error) => {
                            self.warn(&error, pause);
                            self.rest(pause);
                            pause = (pause * 2).min(PAUSES.1);
                        }
                    }
                    self.let_the_line_look();
                }
            }
        }
    }

    /// Counts this thread as one in the line. Once all are, the watching one is woken.
    fn get_in_line(&self) {
        let mut state = self.state.lock();
        state.slots.in_line += 1;
        if state.slots.in_line == state.slots.threads {
            self.watching.notify_all();
        }
    }

    /// Waits until this thread is the first in the line. It does not wait with ends to be written.
    fn first_in_line(self: &Arc<Self>, reports: &mut Vec<Report>) -> MutexGuard<'_, ()> {
        while !reports.is_empty() {
            if let Some(first) = self.line.try_lock() {
                return first;
            }
            {
                let mut state = self.state.lock();
                if state.outbox.leave(reports, self.source().writes_at_once()) {
                    break;
                }
                state.outbox.writes += 1;
            }
            if let Err(error) = self.write(reports, 0) {
                // The first in the line retries it.
                self.warn(&error, PAUSES.0);
                self.state.lock().outbox.inbox.append(reports);
            }
            self.let_the_line_look();
        }
        self.line.lock()
    }

    /// Looks for the next job, as the first in the line.
    pub(super) fn look_for_job(self: &Arc<Self>, reports: &mut Vec<Report>) -> Turn {
        // True once it may have been woken for a job, in place of a caller of accept.
        let mut woken = false;
        let mut pause = PAUSES.0;
        loop {
            let news = self.source().news();
            if reports.is_empty() && self.others_cope() {
                continue;
            }
            if reports.is_empty() && self.has_too_many() {
                return Turn::Leave;
            }
            if let Some(next) = self.take_claimed(reports) {
                return Turn::Job(next);
            }
            let closed = self.closed_gate();
            let wants = self.prepare(reports, closed.is_none());
            // Hooks of ends may take long, so a thread that has to call some leaves the line first.
            let leaves = wants > 0 && self.is_ready_anew() || !reports.is_empty() && self.hooks().hear_of_ends();
            if leaves && self.may_look_meanwhile() {
                if wants == 0 && woken {
                    // It takes no job, so another waiter is woken for the one that woke it.
                    self.source().pass_on();
                }
                return Turn::Claim(wants);
            }
            let written = if wants > 0 || !reports.is_empty() {
                self.write(reports, wants)
            } else if self.end_if_over(&mut self.state.lock()) {
                return Turn::End;
            } else if let Some(again) = closed {
                self.wait_at_gate(news, again, std::mem::take(&mut woken)).map(|()| Answer::Nothing)
            } else {
                self.wait_for_slot(news, std::mem::take(&mut woken)).map(|()| Answer::Nothing)
            };
            match written {
                Ok(Answer::Jobs(claimed)) => {
                    if let Some(next) = self.take_up(claimed) {
                        return Turn::Job(next);
                    }
                }
                Ok(Answer::Nothing) if wants > 0 => {
                    if !self.drained(news, Reached::NothingReady) {
                        self.sleep_for_job(news);
                        woken = true;
                    }
                }
                Ok(Answer::Again | Answer::Nothing) => {}
                Err(error) => {
                    self.warn(&error, pause);
                    self.rest(pause);
                    pause = (pause * 2).min(PAUSES.1);
                }
            }
        }
    }

    /// Sleeps until there may be a job. A job of another kind is left to other sleepers.
    fn sleep_for_job(&self, news: u64) {
        self.note_pause();
        let (takes, tried) = (Takes::of(&self.source().wanted()), self.state.lock().outbox.tried.since(news));
        self.source().sleep(news, self.drain_deadline(), takes, &tried);
        self.state.lock().outbox.tried.forget();
    }

    /// Logs that the queue is paused, once until a job has started.
    fn note_pause(&self) {
        let is_paused = self.source().are_paused();
        let mut state = self.state.lock();
        let noted = is_paused.then_some(state.drain.claims);
        let is_new = noted.is_some() && state.drain.paused_at != noted;
        state.drain.paused_at = noted;
        drop(state);
        if is_new {
            tracing::info!(target: "waterline", queue = self.source().name(), "the queue is paused, so no job is claimed: resume it");
        }
    }

    /// True if a claim may find a job now, and the last one has found some.
    fn is_ready_anew(&self) -> bool {
        !self.state.lock().outbox.tried.is_vain && self.is_ready()
    }

    /// Waits while all slots are taken. Meanwhile jobs may fall due, which no claim of this runner
    /// would promote. A thread that was woken for a job leaves it to another waiter.
    fn wait_for_slot(&self, news: u64, woken: bool) -> Result<(), QueueError> {
        if woken {
            self.source().pass_on();
        }
        let is_due = self.source().sleep(news, self.drain_deadline(), Takes::Nothing, &[]);
        if is_due { self.source().tidy() } else { Ok(()) }
    }

    /// True if the next one in the line may look while this thread claims a job. If the store
    /// fails, only one thread retries, after each pause.
    pub(super) fn may_look_meanwhile(&self) -> bool {
        self.source().works()
    }

    pub(super) fn is_ready(&self) -> bool {
        self.source().is_ready()
    }

    /// Watches the other threads for a moment, if some of them are not in the line, and jobs are
    /// ready or something is in the claim batch. Returns true if they take jobs so fast that one
    /// more thread would not help: jobs of a few microseconds are limited by their writes.
    pub(super) fn others_cope(&self) -> bool {
        let before = {
            let state = self.state.lock();
            if state.slots.threads == state.slots.in_line || state.drain.ending || !state.outbox.inbox.is_empty() {
                return false;
            }
            state.drain.claims
        };
        if self.state.lock().outbox.claim_batch.is_empty() && !self.is_ready() {
            return false;
        }
        let until = waterline::seam::now().checked_add(LOOK);
        let mut state = self.state.lock();
        if !state.drain.ending && state.slots.in_line < state.slots.threads {
            wait_until(&self.watching, &mut state, until);
        }
        !state.drain.ending && state.outbox.inbox.is_empty() && state.drain.claims - before >= ENOUGH
    }

    /// Makes the first in the line look again: a slot is free, or a drain may be over.
    fn let_the_line_look(&self) {
        self.source().ring();
    }

    pub(super) fn warn(&self, error: &QueueError, pause: Duration) {
        let (queue, error) = (self.source().name(), error.report());
        tracing::warn!(target: "waterline", queue, error, "the queue cannot be written; it is tried again in {pause:.1?}");
    }
}
