//! Failed jobs: retry, defer, park or halt. Also their records, which survive a restart, and the
//! record of the consumer's life.
//!
//! A redriven job is a parked one that runs once more, outside of the window's order. Its success
//! removes its record in one write with its effects; its failure rewrites the record.

mod failures;
mod lazy_box;
mod life;
mod quarantine;
mod records;
mod restored;
mod solo_runs;

pub(super) use self::failures::{Failed, Failures, Unread};
use self::lazy_box::LazyBox;
use self::life::KeptLife;
use self::quarantine::Quarantine;
pub(super) use self::records::Brief;
use self::records::Records;
pub(crate) use self::records::{ParkedNews, Recovered};
use super::outbox::{Ctx, Outbox};
use crate::base::{BoxError, Error, Index, caught::Caught, failure::Verdict, retry::Retry, time::Now};
use crate::commit::changes::Changes;
use crate::observe::{Event, EventKind, observers::Notice};
use crate::window::{Limits, Window};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

pub(crate) struct FailedJobs {
    pub(super) failures: Failures,
    /// The number of failed attempts.
    pub(super) failed: u64,
    /// The number of attempts of jobs that had failed before.
    pub(super) retries: u64,
    /// True if jobs may have records. Otherwise the parts below have nothing to do for a job.
    pub(super) has_records: bool,
    // Boxed, since hardly any job touches these.
    pub(super) records: LazyBox<Records>,
    pub(super) quarantine: LazyBox<Quarantine>,
    pub(super) life: Box<KeptLife>,
}

impl FailedJobs {
    pub(super) fn new(retry: Retry) -> Self {
        Self {
            failures: Failures::new(retry),
            failed: 0,
            retries: 0,
            has_records: false,
            records: LazyBox::new(),
            quarantine: LazyBox::new(),
            life: Box::default(),
        }
    }

    /// Continues with the records of earlier lives, and redrives the parked jobs for which this was
    /// requested while no consumer had the name. `None` if no job has a record or can get one.
    pub(super) fn go_on(&mut self, mut recovered: Recovered, at: &mut Ctx<'_>) -> Option<()> {
        self.life.keep(recovered.life.take().map(Box::new), recovered.max_crashes.is_some());
        if recovered.jobs.is_empty() && recovered.budget.is_none() && recovered.max_crashes.is_none() {
            return None;
        }
        self.has_records = true;
        self.records.set(Records::new(&recovered));
        self.quarantine.set(Quarantine::new(&recovered, at.window.next()));
        recovered.tell_of_death(at);
        self.restore_waiting(&recovered, at.out.passed.is_some(), at.now);
        self.set_gate(Index::MAX, at.window);
        for record in recovered.jobs.iter().filter(|record| record.wanted && !record.pending) {
            self.redrive(record.index, at);
        }
        Some(())
    }

    /// Begins the next attempt of a failed or deferred job, and returns its number: 1 for a job
    /// that only waited behind another one.
    #[cold]
    pub(super) fn begin_attempt(&mut self, index: Index, out: &mut Outbox, now: &Now) -> u32 {
        let Some(attempt) = self.failures.begin_attempt(index) else { return 1 };
        // A job that was only deferred runs for the first time.
        self.retries += u64::from(attempt > 1);
        out.tell(&Event::new(EventKind::Retried, index).attempt(attempt), now);
        attempt
    }

    /// Handles a failed attempt of a job in flight. Returns a user's value, to be dropped without
    /// the lock.
    pub(super) fn attempt_failed(
        &mut self,
        index: Index,
        attempt: u32,
        failure: Caught,
        at: &mut Ctx<'_>,
    ) -> Option<BoxError> {
        let is_redriven = at.window.is_redriven(index);
        at.window.handle_failed(index);
        if is_redriven {
            self.redrive_failed(index, attempt, &failure.text, is_put_back(&failure, at.window), at);
            return Some(failure.error);
        }
        self.job_failed(index, attempt, failure, at)
    }

    /// Handles a failed attempt of a job that the window already keeps as waiting.
    pub(super) fn job_failed(
        &mut self,
        index: Index,
        attempt: u32,
        failure: Caught,
        at: &mut Ctx<'_>,
    ) -> Option<BoxError> {
        // It is not retried, so the watermark never passes it.
        at.out.waiters |= at.window.is_stopping();
        if let Verdict::Defer(delay) = failure.verdict {
            at.tell(&Event::new(EventKind::Deferred, index).attempt(attempt).error(&failure.text));
            self.defer(index, attempt, failure.text, delay, at);
            return Some(failure.error);
        }
        self.failed += 1;
        if is_put_back(&failure, at.window) {
            at.tell(&Event::new(EventKind::PutBack, index).attempt(attempt).error(&failure.text));
            self.defer(index, attempt, failure.text, Duration::ZERO, at);
            return Some(failure.error);
        }
        let is_last = failure.verdict == Verdict::Permanent || is_without_runtime(&failure);
        let again = if is_last { None } else { self.failures.delay(attempt, at.now) };
        let Some(pause) = again else {
            return self.exhausted(index, attempt, failure, at);
        };
        at.tell(&Event::new(EventKind::AttemptFailed, index).attempt(attempt).error(&failure.text));
        self.note_attempt(index, attempt, &failure.text, at);
        let pause = self.quarantine.back_off(index, pause, at.now);
        self.failures.note(index, attempt, failure.text, pause, at.now);
        at.out.reader = true;
        Some(failure.error)
    }

    /// Makes a job wait that was not ready. The attempt does not count.
    pub(super) fn defer(&mut self, index: Index, attempt: u32, text: String, delay: Duration, at: &mut Ctx<'_>) {
        // A job without a record needs none.
        if self.records.has(index) {
            self.note_attempt(index, attempt.saturating_sub(1), &text, at);
        }
        let delay = self.quarantine.back_off(index, delay, at.now);
        self.failures.defer(index, attempt, text, delay, at.now);
        at.out.reader = true;
    }

    /// Handles a job without a further attempt: it is parked, or the consumer halts.
    pub(super) fn exhausted(
        &mut self,
        index: Index,
        attempt: u32,
        failure: Caught,
        at: &mut Ctx<'_>,
    ) -> Option<BoxError> {
        // Without a runtime every job fails, so none is parked.
        let parked = if is_without_runtime(&failure) { Err(failure) } else { self.park(index, attempt, failure, at) };
        let failure = match parked {
            Ok(surplus) => {
                self.failures.forget(index);
                return surplus;
            }
            Err(failure) => failure,
        };
        self.forget_attempts(index, at);
        self.failures.forget(index);
        at.tell(&Event::new(EventKind::Exhausted, index).attempt(attempt).error(&failure.text));
        let why_not_parked = self.records.why_not_parked();
        let text = format!("job {index} failed in attempt {attempt}: {}{why_not_parked}", failure.text);
        at.never_reaches(index);
        at.halt(index, text, Error::Job { index, attempt, source: failure.error }, &failure.text)
    }

    /// Parks a job. Returns the failure if the job cannot be parked; then the consumer halts.
    fn park(
        &mut self,
        index: Index,
        attempt: u32,
        failure: Caught,
        at: &mut Ctx<'_>,
    ) -> Result<Option<BoxError>, Caught> {
        if !self.records.has_room(index) || !at.window.handle_parked(index) {
            return Err(failure);
        }
        at.out.turn = true;
        at.out.pass(index);
        self.outlived(index, at.window);
        self.quarantine.no_suspect(index, at.window);
        self.records.note_parked(index, attempt, &failure.text, &self.failures, at);
        at.tell(&Event::new(EventKind::Parked, index).attempt(attempt).error(&failure.text));
        at.out.notice(|| Notice::Parked { index, attempt, error: failure.text.clone() });
        Ok(Some(failure.error))
    }

    /// Updates the record of a failed redriven job, unless the job was discarded meanwhile.
    /// `put_back`: it runs once more in the next life.
    pub(super) fn redrive_failed(&mut self, index: Index, attempt: u32, text: &str, put_back: bool, at: &mut Ctx<'_>) {
        self.failed += 1;
        self.failures.forget(index);
        at.out.pass(index);
        self.outlived(index, at.window);
        self.quarantine.no_suspect(index, at.window);
        match self.records.is_parked(index) {
            true if put_back => self.records.note_put_back(index, at),
            true => self.records.note_parked(index, attempt, text, &self.failures, at),
            false => {}
        }
        let kind = if put_back { EventKind::PutBack } else { EventKind::RedriveFailed };
        at.tell(&Event::new(kind, index).attempt(attempt).error(text));
    }

    /// Updates the record of a redriven job whose effects cannot be written.
    pub(super) fn redrive_refused(&mut self, index: Index, attempt: u32, text: &str, at: &mut Ctx<'_>) {
        at.out.pass(index);
        self.records.stay(index);
        self.records.note_parked(index, attempt, text, &self.failures, at);
        at.tell(&Event::new(EventKind::RedriveFailed, index).attempt(attempt).error(text));
    }

    /// Writes, with the next save, the record of a job to be retried, if attempts outlive the
    /// process.
    fn note_attempt(&mut self, index: Index, attempts: u32, error: &str, at: &mut Ctx<'_>) {
        if self.quarantine.max_crashes.is_some() {
            self.outlived(index, at.window);
            let suspect = self.quarantine.is_suspect(index);
            self.records.note_attempt((index, attempts), error, suspect, &self.failures, at);
        }
    }

    fn note_start(&mut self, index: Index, crashes: u32, at: &mut Ctx<'_>) {
        self.records.note_start(index, crashes, self.quarantine.is_suspect(index), &self.failures, at);
    }

    fn forget_attempts(&mut self, index: Index, at: &mut Ctx<'_>) {
        self.outlived(index, at.window);
        self.records.forget_attempts(index, self.quarantine.is_suspect(index), at);
    }

    /// Adds the removal of a successful job's record to the job's effects.
    #[cold]
    pub(super) fn unpark(&mut self, index: Index, effects: &mut Changes, window: &mut Window) {
        self.quarantine.no_suspect(index, window);
        if self.records.unpark(index, effects) {
            window.handle_changed();
        }
    }

    /// Removes a record with the next save.
    fn remove_record(&mut self, index: Index, at: &mut Ctx<'_>) {
        let mut changes = Changes::default();
        self.unpark(index, &mut changes, at.window);
        at.write(&mut changes, index, 0);
    }

    /// Makes the next job due whose back-off is over. Returns false if there is none.
    pub(super) fn expire(&mut self, now: Instant, window: &mut Window) -> bool {
        let Some(due) = self.failures.take_due(now) else { return false };
        // A discarded job leaves its timer behind.
        if let Some(index) = due {
            // A missing job was recorded before its first read.
            let is_missing = self.failures.waiting(index).is_some_and(Failed::is_missing);
            if is_missing && !self.quarantine.is_suspect(index) {
                window.handle_due(index);
            } else {
                self.quarantine.make_due(index, window);
            }
        }
        true
    }

    /// Makes a parked job run once more. Returns false if it is not parked.
    pub(super) fn redrive(&mut self, index: Index, at: &mut Ctx<'_>) -> bool {
        let is_suspect = self.quarantine.is_suspect(index);
        let Some(job) = self.records.parked_job(index) else { return false };
        let attempts = job.attempts;
        if !is_suspect {
            job.forgive();
        }
        if at.window.handle_redriven(index) {
            let waits = "it is parked, and is to run once more".to_owned();
            self.failures.redrive(index, attempts, waits, at.now.get());
            self.quarantine.make_due(index, at.window);
        }
        true
    }

    /// Makes all parked jobs run once more. Returns their number.
    pub(super) fn redrive_all(&mut self, at: &mut Ctx<'_>) -> u64 {
        let all: Vec<Index> = self.records.parked_jobs().collect();
        all.iter().for_each(|index| _ = self.redrive(*index, at));
        all.len() as u64
    }

    /// Discards a parked job. Returns false if it is not parked.
    pub(super) fn discard(&mut self, index: Index, at: &mut Ctx<'_>) -> bool {
        if !self.records.is_parked(index) {
            return false;
        }
        // A redriven job in flight goes on, and finds no record to update at its end.
        if at.window.handle_withdrawn(index) {
            self.failures.forget_redriven(index);
            at.out.pass(index);
        }
        self.remove_record(index, at);
        true
    }

    /// Takes back the redrive of a job that the source no longer has.
    pub(super) fn withdraw(&mut self, index: Index, at: &mut Ctx<'_>) {
        if !at.window.handle_withdrawn(index) {
            return;
        }
        let attempts = self.failures.forget_redriven(index);
        at.out.pass(index);
        let error = "the source no longer has this job, so it did not run once more";
        self.outlived(index, at.window);
        self.quarantine.no_suspect(index, at.window);
        self.records.note_parked(index, attempts, error, &self.failures, at);
        at.tell(&Event::new(EventKind::RedriveFailed, index).attempt(attempts).error(error));
    }

    /// Forgets a failed job that has become a gap, which the window has passed. A suspect may have
    /// been a gap when an earlier life recorded it; then there is nothing to report.
    pub(super) fn gone(&mut self, index: Index, at: &mut Ctx<'_>) {
        self.outlived(index, at.window);
        let has_run = self.records.crashes(index) > 0 || self.failures.has_run(index);
        let attempt = self.failures.waiting(index).map_or(0, |failed| failed.attempt);
        self.failures.forget(index);
        self.forget_records(&(index..=index), at);
        self.quarantine.no_suspect(index, at.window);
        at.out.turn = true;
        at.out.pass(index);
        if has_run {
            at.tell(&Event::new(EventKind::Gone, index).attempt(attempt));
        }
    }

    /// Removes the records of jobs in a gap, as far as the window has settled the gap: a failed job
    /// of an earlier life is read by itself. Parked jobs keep their records.
    pub(super) fn forget_records(&mut self, gap: &RangeInclusive<Index>, at: &mut Ctx<'_>) {
        for index in self.records.pending_within(gap, at.window) {
            self.remove_record(index, at);
        }
    }

    /// Takes back the crash counted for a job whose attempt ended, or that could not be read: it is
    /// not to blame. The caller writes the record.
    fn outlived(&mut self, index: Index, window: &mut Window) {
        if self.quarantine.no_longer_alone(index, window) {
            self.records.take_back_crash(index);
        }
    }

    /// Clears the job that runs alone or is about to: nothing more starts, so it is not to blame.
    pub(super) fn release_alone(&mut self, at: &mut Ctx<'_>) {
        if let Some(index) = self.quarantine.alone() {
            self.outlived(index, at.window);
            self.note_start(index, 0, at);
        }
    }

    pub(super) fn set_gate(&mut self, open_below: Index, window: &mut Window) {
        // Writing to an empty quarantine would allocate it, so an unchanged gate is not set.
        if open_below != self.quarantine.gate {
            self.quarantine.gate = open_below;
        }
        window.handle_gate(self.quarantine.open_below());
    }

    /// Notes that a save takes everything requested so far.
    pub(super) fn taken(&mut self) {
        if self.has_records {
            self.records.leave(false);
            self.quarantine.taken();
        }
    }

    /// Notes that the save is on disk: the jobs that it records may start.
    pub(super) fn saved(&mut self, at: &mut Ctx<'_>) {
        if self.has_records {
            self.records.leave(true);
            at.out.reader |= self.quarantine.saved(at.window);
        }
    }

    /// Closes the life record with the last save.
    pub(super) fn close_life(&mut self, at: &mut Ctx<'_>) {
        if !self.life.is_owed(at.ending) {
            return;
        }
        // A redrive from now on would run in a closed life.
        at.window.handle_stop();
        self.release_alone(at);
        let careful = self.quarantine.max_crashes.map(|_| self.quarantine.until);
        self.life.close(careful, at);
    }

    /// Takes new limits, and returns those that hold now.
    pub(super) fn change_limits(&mut self, limits: Limits, window: &mut Window) -> Limits {
        self.life.change_limits(limits, self.quarantine.max_crashes.is_some(), window)
    }
}

/// True if no attempt can run, since the runtime is gone.
fn is_without_runtime(failure: &Caught) -> bool {
    matches!(failure.error.downcast_ref(), Some(Error::Runtime))
}

/// True if this failure does not count, since the consumer stops: not even as the last attempt.
/// Jobs that obey `is_stopping` end this way. A permanent failure does count: the job would fail in
/// the next life, too.
fn is_put_back(failure: &Caught, window: &Window) -> bool {
    window.is_stopping() && failure.verdict == Verdict::Retry && !is_without_runtime(failure)
}
