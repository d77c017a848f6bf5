//! Attempts that end before their handlers do: they time out, or their jobs are lost.

use crate::notify::losses::{AllBusy, Runs, Stuck};
use crate::runner::attempt::{Attempt, AttemptPort, Report};
use crate::runner::handler::{Handler, is_direct};
use crate::runner::pool::Pool;
use crate::runner::running::{FlightId, Running};
use std::sync::Arc;
use std::time::Duration;
use waterline::BoxError;

/// The error of an attempt whose job was lost. It is never stored: the job is no longer its own.
const LOST: &str = "its job was removed, or taken back, while it ran";

impl Pool {
    /// Ends an attempt that has timed out: see
    /// [`RunnerBuilder::attempt_timeout`](crate::RunnerBuilder::attempt_timeout).
    pub(super) fn overdue(self: &Arc<Self>, flight: FlightId, after: Duration) {
        let Some(job) = self.state.lock().slots.flights.get(&flight).map(|flight| flight.job.clone()) else { return };
        job.ask_to_end();
        if is_direct(self.settings.handlers.get(job.kind())) {
            return;
        }
        // The flight is gone as soon as the report is written, and its task with it.
        #[cfg(feature = "tokio")]
        let task = {
            let mut state = self.state.lock();
            let Some(flight) = state.slots.flights.get_mut(&flight).filter(|flight| !flight.ended) else { return };
            flight.ended = true;
            flight.task.take()
        };
        #[cfg(not(feature = "tokio"))]
        if !self.claim_end(flight) {
            return;
        }
        let error: BoxError = format!("the attempt took longer than {after:?}").into();
        self.hand_in(Report::of(&Attempt::new(self.clone(), job), Err(error)));
        #[cfg(feature = "tokio")]
        task.iter().for_each(tokio::task::AbortHandle::abort);
    }

    /// Reports attempts whose jobs are lost. The caller has the right to do so.
    fn report_lost(self: &Arc<Self>, jobs: Vec<Running>) {
        for job in jobs {
            self.hand_in(Report::of(&Attempt::new(self.clone(), job), Err(LOST.into())));
        }
    }
}

impl Runs for Pool {
    /// Asks the jobs to end: drops a future, ends a deferred job; a thread goes on to its end.
    fn lost(self: Arc<Self>, queue: u32, tokens: &[u64]) {
        let now = self.moment().now;
        let mut deferred = Vec::new();
        #[cfg(feature = "tokio")]
        let mut tasks = Vec::new();
        {
            let mut state = self.state.lock();
            for token in tokens {
                let id = (queue, *token);
                let Some(flight) = state.slots.flights.get_mut(&id) else {
                    if state.slots.reserved > 0 {
                        // It may be one of the claimed jobs that have not started.
                        let until = state.drain.claims + state.slots.reserved as u64;
                        state.slots.lost_early.push((id, until));
                    }
                    continue;
                };
                flight.lost.get_or_insert(now);
                flight.job.ask_to_end();
                #[cfg(feature = "tokio")]
                tasks.extend(flight.task.take());
                let is_deferred = matches!(self.settings.handlers.get(flight.job.kind()), Some(Handler::Deferred(_)));
                if is_deferred && !std::mem::replace(&mut flight.ended, true) {
                    deferred.push(flight.job.clone());
                }
            }
        }
        #[cfg(feature = "tokio")]
        tasks.iter().for_each(tokio::task::AbortHandle::abort);
        if deferred.is_empty() {
            return;
        }
        // Hooks are called with the ends, and may need what the calling thread holds.
        let (me, jobs) = (self.clone(), deferred.clone());
        if self.threads.spawn("wl-lost", move || me.report_lost(jobs)).is_err() {
            self.report_lost(deferred);
        }
    }

    fn elsewhere(&self, queue: u32) -> usize {
        self.state.lock().slots.flights.keys().filter(|id| id.0 != queue).count()
    }

    fn all_busy(&self) -> Option<AllBusy> {
        self.busy_slots()
    }

    fn stuck(&self, queue: u32) -> Option<Stuck> {
        let state = self.state.lock();
        let lost = || {
            let own = state.slots.flights.iter().filter(|(id, _)| id.0 == queue);
            own.filter_map(|(_, flight)| flight.lost.map(|lost| (lost, &flight.job)))
        };
        let (since, first) = lost().min_by_key(|(lost, job)| (*lost, job.token()))?;
        let (_, oldest) = lost().min_by_key(|(_, job)| (job.begun(), job.token()))?;
        let named = |at, job: &Running| (at, job.id().to_owned());
        Some(Stuck { count: lost().count(), first: named(since, first), oldest: named(oldest.begun(), oldest) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{claim_three, pool, queue};
    use super::*;

    #[test]
    fn a_job_lost_before_its_start_is_told_to_stop() {
        let queue = queue(3);
        let pool = pool(&queue, 3);
        let claimed = claim_three(&pool);
        let tokens: Vec<_> = claimed.iter().map(|claimed| claimed.row.place).collect();
        // The claim is written, and none of the jobs has started.
        pool.clone().lost(queue.number, &tokens[..1]);
        let (first, _) = pool.take_up(claimed).unwrap();
        // Two of them are in the claim batch. One lease does not belong to this runner.
        pool.clone().lost(queue.number, &[tokens[2], 99]);
        let [(second, _), (third, _)] = [(); 2].map(|()| pool.take_claimed(&mut Vec::new()).unwrap());
        assert_eq!([first, second, third].map(|job| job.is_stopping()), [true, false, true]);
        assert_eq!(pool.stuck(queue.number).unwrap().count, 2);
        assert!(pool.stuck(queue.number + 1).is_none());
        let runs = pool.state.lock().slots.flights.len();
        assert_eq!([queue.number, queue.number + 1].map(|queue| pool.elsewhere(queue)), [0, runs]);
        assert!(pool.state.lock().slots.lost_early.is_empty(), "nothing of what never comes is kept");
        pool.clone().lost(queue.number, &tokens);
        assert!(pool.state.lock().slots.lost_early.is_empty() && pool.stuck(queue.number).unwrap().count == 3);
    }
}
