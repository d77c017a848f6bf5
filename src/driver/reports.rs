//! Attempts that are over: a success counts as done, and a failed job is tried again or halts the
//! consumer.

use super::Driver;
use super::core::Core;
use super::flights::Flight;
use crate::base::caught::Failure;
use crate::base::error::Error;
use crate::base::failure::Verdict;
use crate::base::guard::{drop_guarded, guarded};
use crate::base::index::{BoxError, Index};
use crate::base::time::Now;
use crate::commit::changes::Changes;
use crate::observe::{Event, Kind};
use crate::run::worker::{Report, Reported};

impl Core {
    /// Takes the report of an attempt that is over. A token that was used before changes nothing.
    /// The effects are taken if the attempt counts. The answer is a value of the user, to be
    /// dropped without the lock.
    // A call of it costs a short job a thirtieth of its time.
    #[inline(always)]
    pub(crate) fn report(
        &mut self,
        token: usize,
        outcome: Result<(), Box<Failure>>,
        effects: &mut Changes,
        now: &Now,
    ) -> Option<BoxError> {
        let flight = self.running.flights.end(token).filter(|_| !self.ending.abandoned);
        match (flight, outcome) {
            (Some(flight), Ok(())) if self.saving.writing.is_some() => {
                self.wait_to_be_written(flight);
                None
            }
            (Some(flight), Ok(())) => {
                self.running.counters.done += 1;
                if let Some(parking) = &mut self.parking
                    && self.window.is_redriven(flight.index)
                {
                    parking.redone(flight.index);
                }
                self.window.handle_done(flight.index);
                if flight.again {
                    self.failures.forget(flight.index);
                }
                if self.parking.is_some() {
                    self.unpark(flight.index, effects);
                }
                if !effects.is_empty() {
                    self.saving.effects.take(effects, flight.index, flight.attempt);
                    self.window.set_full(self.saving.effects.is_full());
                }
                None
            }
            (Some(flight), Err(failure)) => self.attempt_failed(flight, *failure, now),
            (None, outcome) => outcome.err().map(|failure| failure.error),
        }
    }

    #[cold]
    pub(super) fn attempt_failed(
        &mut self,
        Flight { index, attempt, .. }: Flight,
        failure: Failure,
        now: &Now,
    ) -> Option<BoxError> {
        let is_redriven = self.window.is_redriven(index);
        self.window.handle_failed(index);
        if is_redriven {
            self.running.counters.failed += 1;
            self.redrive_failed(index, attempt, &failure.text, now);
            return Some(failure.error);
        }
        self.job_failed(index, attempt, failure, now)
    }

    /// Handles a failed attempt of a job that waits for a back-off in the window.
    pub(super) fn job_failed(&mut self, index: Index, attempt: u32, failure: Failure, now: &Now) -> Option<BoxError> {
        // It is not tried again, so the watermark never passes it.
        self.waiting.rouse |= self.window.is_stopping();
        if let Verdict::Defer(delay) = failure.verdict {
            self.tell(&Event::new(Kind::Deferred, index).attempt(attempt).error(&failure.text), now);
            self.note_deferred(index, attempt, &failure.text);
            let delay = self.back_off(index, delay, now);
            self.failures.defer(index, attempt, failure.text, delay, now);
            self.reading.rouse = true;
            return Some(failure.error);
        }
        self.running.counters.failed += 1;
        let is_last = failure.verdict == Verdict::Permanent || is_without_runtime(&failure);
        let again = if is_last { None } else { self.failures.delay(attempt, now) };
        let Some(pause) = again else {
            return self.exhausted(index, attempt, failure, now);
        };
        self.tell(&Event::new(Kind::AttemptFailed, index).attempt(attempt).error(&failure.text), now);
        self.note_attempt(index, attempt, &failure.text);
        let pause = self.back_off(index, pause, now);
        self.failures.note(index, attempt, failure.text, pause, now);
        self.reading.rouse = true;
        Some(failure.error)
    }

    /// Handles a job that failed and is not tried again: it is parked, or the consumer halts.
    pub(super) fn exhausted(&mut self, index: Index, attempt: u32, failure: Failure, now: &Now) -> Option<BoxError> {
        // On a runtime that is gone every job fails, so none is parked.
        let parked = if is_without_runtime(&failure) { Err(failure) } else { self.park(index, attempt, failure, now) };
        let failure = match parked {
            Ok(surplus) => {
                self.failures.forget(index);
                return surplus;
            }
            Err(failure) => failure,
        };
        self.forget_attempts(index);
        self.failures.forget(index);
        self.tell(&Event::new(Kind::Exhausted, index).attempt(attempt).error(&failure.text), now);
        let text = format!("job {index} failed in attempt {attempt}: {}{}", failure.text, self.why_not_parked());
        self.ending.unreachable_from = self.ending.unreachable_from.min(index);
        self.waiting.rouse = true;
        self.halt(index, text, Error::Job { index, attempt, source: failure.error }, &failure.text, now)
    }
}

/// True if no attempt can run, since the runtime is gone.
fn is_without_runtime(failure: &Failure) -> bool {
    matches!(failure.error.downcast_ref(), Some(Error::Runtime))
}

impl Reported for Driver {
    fn report(&self, mut report: Report) {
        if self.fails_overdue && !self.may_report(report.token) {
            return drop_guarded(report.outcome);
        }
        self.confirm(&mut report);
        let mut core = self.core.lock();
        let now = self.clock.when_asked();
        let surplus = core.report(report.token, report.outcome, &mut Changes::default(), &now);
        let tokens = core.running.flights.tokens();
        let name = core.roster.release_name(tokens);
        self.settle(core, &now);
        drop_guarded(surplus);
        drop_guarded(name);
    }

    fn start_panicked(&self, index: Index, error: &str) {
        let mut core = self.core.lock();
        let now = self.clock.when_asked();
        core.tell(&Event::new(Kind::ClosurePanicked, index).error(error), &now);
        self.settle(core, &now);
    }

    fn is_stopping(&self) -> bool {
        self.stopping.has_begun()
    }
}

#[cfg(feature = "tokio")]
impl crate::run::asynchronous::TaskDesk for Driver {
    fn enter(&self) -> crate::crew::Own {
        self.crew.enter()
    }

    fn stopping(&self) -> crate::crew::stopping::Stopping {
        self.stopping.clone()
    }

    fn timed_out(&self, token: usize, index: Index) -> Error {
        let core = self.core.lock();
        let flights = &core.running.flights;
        let attempt = flights.get(token).map_or(1, |flight| flight.attempt);
        let after = flights.timeouts.as_ref().map_or_else(Default::default, |timeouts| timeouts.after());
        Error::AttemptTimeout { index, attempt, after }
    }
}

impl Driver {
    /// A successful attempt counts once `on_job_done` was called and has not panicked. The
    /// observers hear of the attempt before it counts, so no save is told of before the attempts in
    /// it.
    #[inline]
    pub(super) fn confirm(&self, report: &mut Report) {
        if self.confirms {
            self.confirm_report(report);
        }
    }

    #[cold]
    fn confirm_report(&self, report: &mut Report) {
        if report.outcome.is_ok() {
            let callback = self.core.lock().running.on_job_done.clone();
            if let Some(callback) = callback {
                // A `stop` in the callback would wait for the same job that is being reported.
                let _own = self.crew.enter();
                let called = guarded(|| {
                    callback(report.index);
                    Ok(())
                });
                report.outcome = called.map_err(Failure::boxed);
                if report.outcome.is_err() {
                    let pool = self.core.lock().running.pool.clone();
                    pool.iter().for_each(|pool| pool.forget(report.index));
                    drop_guarded(pool);
                }
                drop_guarded(callback);
            }
        }
        if self.observes {
            self.observe_end(report);
        }
    }
}
