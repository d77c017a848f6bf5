//! Attempts that are over: a success counts as done, a failure is retried, parked, or halts.

use crate::base::guard::{drop_guarded, guarded};
use crate::base::{BoxError, Index, caught::Caught, time::Now};
use crate::commit::changes::Changes;
use crate::driver::{Driver, core::Core};
use crate::observe::{Event, EventKind};
use crate::run::worker::{Report, Reported};

impl Core {
    /// Takes the report of an attempt, and its effects if it counts. A token that was used before
    /// changes nothing. Returns a value of the user, to be dropped without the lock.
    // Without inlining, the call costs a short job a thirtieth of its time.
    #[inline(always)]
    pub(crate) fn report(
        &mut self,
        token: usize,
        outcome: Result<(), Box<Caught>>,
        effects: &mut Changes,
        now: &Now,
    ) -> Option<BoxError> {
        let flight = self.running.flights.end(token).filter(|_| !self.ending.abandoned);
        match (flight, outcome) {
            (Some(flight), Ok(())) if self.saving.writing.is_some() => {
                self.saving.wait_to_be_written(flight, &mut self.window, &mut self.out);
                None
            }
            (Some(flight), Ok(())) => {
                if self.failed_jobs.has_records && self.window.is_redriven(flight.index) {
                    self.failed_jobs.records.redone(flight.index);
                }
                self.saving.done += 1;
                self.window.handle_done(flight.index);
                if self.running.keys.is_some() {
                    self.done_by_key(flight.index);
                }
                if flight.again {
                    self.failed_jobs.failures.forget(flight.index);
                }
                if self.failed_jobs.has_records {
                    self.failed_jobs.unpark(flight.index, effects, &mut self.window);
                }
                if !effects.is_empty() {
                    self.out.effects.take(effects, flight.index, flight.attempt);
                    self.window.set_full(self.out.effects.is_full());
                }
                None
            }
            (Some(flight), Err(failure)) => self.attempt_failed(flight, *failure, now),
            (None, outcome) => outcome.err().map(|failure| failure.error),
        }
    }
}

impl Reported for Driver {
    fn report(&self, report: Report) {
        if self.fails_overdue && !self.may_report(report.token) {
            return drop_guarded(report.outcome);
        }
        self.take_report(report, &mut Changes::default());
    }

    fn start_panicked(&self, index: Index, error: &str) {
        self.step(|core, now| core.out.tell(&Event::new(EventKind::ClosurePanicked, index).error(error), now));
    }

    fn is_stopping(&self) -> bool {
        self.stopping.has_begun()
    }
}

#[cfg(feature = "tokio")]
impl crate::run::asynchronous::TaskPort for Driver {
    fn enter(&self) -> crate::threads::Own {
        self.threads.enter()
    }

    fn stopping(&self) -> crate::threads::stopping::Stopping {
        self.stopping.clone()
    }

    fn report_with(&self, report: Report, effects: &mut Changes) {
        self.take_report(report, effects);
    }

    fn leave_turn(&self, token: usize) {
        // It may be the last token, and the consumer may have given up.
        let name = self.step(|core, _| {
            core.leave_turn(token);
            core.registry.release_name(core.running.flights.tokens())
        });
        drop_guarded(name);
    }

    fn timed_out(&self, token: usize, index: Index) -> crate::base::Error {
        let core = self.core.lock();
        let flights = &core.running.flights;
        let attempt = flights.get(token).map_or(1, |flight| flight.attempt);
        let after = flights.timeouts.as_ref().map_or_else(Default::default, |timeouts| timeouts.after);
        crate::base::Error::AttemptTimeout { index, attempt, after }
    }
}

impl Driver {
    /// Takes the report of a job that held no thread of the consumer.
    fn take_report(&self, mut report: Report, effects: &mut Changes) {
        self.confirm(&mut report);
        let (surplus, name) = self.step(|core, now| {
            let token = core.token_of(report.token, report.index);
            let surplus = core.report(token, report.outcome, effects, now);
            (surplus, core.registry.release_name(core.running.flights.tokens()))
        });
        drop_guarded(surplus);
        drop_guarded(name);
    }

    /// Calls `on_job_done` for a successful attempt, which counts unless that panics. The observers
    /// hear of an attempt before it counts, and so before any save that includes it.
    #[inline]
    pub(super) fn confirm(&self, report: &mut Report) {
        if self.confirms {
            self.confirm_report(report);
        }
    }

    #[cold]
    fn confirm_report(&self, report: &mut Report) {
        if report.outcome.is_ok() {
            report.outcome = self.call_on_job_done(std::iter::once(report.index));
            if report.outcome.is_err() {
                let _own = self.threads.enter();
                let pool = self.core.lock().running.pool.clone();
                pool.iter().for_each(|pool| pool.forget(report.index));
                drop_guarded(pool);
            }
        }
        if self.observes {
            self.observe_end(std::iter::once(report.index), &report.outcome);
        }
    }

    /// Calls `on_job_done` for these jobs, which fail if it panics.
    pub(super) fn call_on_job_done(&self, jobs: impl Iterator<Item = Index>) -> Result<(), Box<Caught>> {
        let callback = self.core.lock().running.on_job_done.clone();
        let Some(callback) = callback else { return Ok(()) };
        // A `stop` in the callback would wait for the very jobs that are being reported.
        let _own = self.threads.enter();
        let called = guarded(|| {
            jobs.for_each(|index| callback(index));
            Ok(())
        });
        drop_guarded(callback);
        called.map_err(Caught::boxed)
    }
}
