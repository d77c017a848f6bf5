//! The call of a handler.

use crate::runner::attempt::{Attempt, AttemptPort, Report};
use crate::runner::handler::{Finisher, Handler, is_direct};
use crate::runner::outcome::{Outcome, QueueEvent, Unknown};
#[cfg(feature = "tokio")]
use crate::runner::pool::Flight;
use crate::runner::pool::Pool;
use crate::runner::running::{FlightId, Running};
use crate::types::job::time;
use std::sync::Arc;
use waterline::BoxError;
use waterline::seam::guarded;

impl Pool {
    /// Runs a job. Returns `None` if its end is reported elsewhere.
    pub(super) fn run(self: &Arc<Self>, job: Running, payload: &[u8]) -> Option<Report> {
        let (queue, id, kind, attempt) = (job.queue().name(), job.id(), job.kind(), job.attempt());
        if !self.hooks().observers.is_empty() {
            let expected = job.queue().shared.averages.expected(kind);
            self.hooks().tell(&job, &QueueEvent::AttemptBegun { queue, id, kind, attempt, expected });
        }
        if let Some(timeouts) = &self.timeouts {
            timeouts.begin(job.flight(), kind, self.source().moment().now);
        }
        let before = self.hooks().before(&job);
        let handler = self.settings.handlers.get(job.kind());
        let attempt = Attempt::new(self.clone(), job.clone());
        if !is_direct(handler) && self.is_ended(job.flight()) {
            // It timed out before it started.
            return None;
        }
        if let Err(error) = before {
            return self.report_here(attempt, handler, error);
        }
        match handler {
            None => Some(Report::of(&attempt, Ok(self.unknown(&job)))),
            Some(Handler::Direct(handler)) => Some(Report::of_answer(&attempt, guarded(|| handler(&job, payload)))),
            Some(Handler::Deferred(handler)) => {
                let done = Finisher::new(attempt);
                // If it panics, its finisher is dropped, and reports that.
                let called = guarded(|| {
                    handler(job.clone(), payload, done);
                    Ok(())
                });
                if let Err(panic) = called {
                    let attempt = job.attempt();
                    tracing::error!(target: "waterline", queue, id, attempt, %panic, "a handler panicked");
                }
                None
            }
            #[cfg(feature = "tokio")]
            Some(async_handler @ Handler::Async(handler)) => {
                let runtime = self.settings.runtime.as_ref()?;
                let made = {
                    let _context = runtime.enter();
                    guarded(|| handler(job.clone(), payload))
                };
                match made {
                    Ok(future) => {
                        self.keep_task(job.flight(), crate::runner::task::spawn(runtime, attempt, future));
                        None
                    }
                    Err(error) => self.report_here(attempt, Some(async_handler), error),
                }
            }
        }
    }

    /// Returns the report of an attempt whose handler has not started. If it may be reported
    /// elsewhere, too, since it has timed out, only one report counts.
    fn report_here(&self, attempt: Attempt, handler: Option<&Handler>, error: BoxError) -> Option<Report> {
        let is_mine = is_direct(handler) || self.claim_end(attempt.job().flight());
        is_mine.then(|| Report::of(&attempt, Err(error)))
    }

    fn is_ended(&self, flight: FlightId) -> bool {
        self.state.lock().slots.flights.get(&flight).is_none_or(|flight| flight.ended)
    }

    /// Keeps the task of a job, to drop it when it times out or the job is lost, which may be now.
    #[cfg(feature = "tokio")]
    fn keep_task(&self, flight: FlightId, task: tokio::task::AbortHandle) {
        let mut state = self.state.lock();
        let is_abandoned = state.drain.abandoned;
        let keeps = |flight: &&mut Flight| !flight.ended && flight.lost.is_none() && !is_abandoned;
        match state.slots.flights.get_mut(&flight).filter(keeps) {
            Some(flight) => flight.task = Some(task),
            None => {
                drop(state);
                task.abort();
            }
        }
    }

    pub(super) fn unknown(&self, job: &Running) -> Outcome {
        match self.settings.unknown {
            // Nothing claims such a job.
            Unknown::Leave => Outcome::Snooze(time(self.source().moment().wall)),
            Unknown::Dead => Outcome::Dead(format!("no handler has the kind {:?}", job.kind())),
            Unknown::Snooze(delay) => {
                let wall = self.source().moment().wall;
                Outcome::Snooze(crate::types::job::after(wall, delay).map_or_else(|| time(u64::MAX), time))
            }
        }
    }
}
