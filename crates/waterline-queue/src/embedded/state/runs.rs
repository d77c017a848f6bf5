//! What a queue remembers of runs beside what is stored.

use crate::embedded::state::{Holder, QueueState};
use crate::rules::ends::Run;
use std::time::{Duration, Instant};

impl QueueState {
    /// Returns what is known of the run with this lease.
    pub(crate) fn run_of(&self, token: u64, now: Instant) -> Run {
        self.look(|live| {
            let Some(holder) = live.running.get(&token) else { return Run::default() };
            Run { lasted: holder.seen_for(now, self.options.lease), progress: holder.unwritten() }
        })
    }
}

impl Holder {
    /// Returns how long the worker was seen at its job. The silence before the end of a lease does
    /// not count: a hanging worker does no work.
    fn seen_for(&self, now: Instant, lease: Duration) -> Duration {
        let over = self.deadline.filter(|deadline| *deadline <= now);
        let seen = over.and_then(|deadline| deadline.checked_sub(lease)).unwrap_or(now);
        seen.saturating_duration_since(self.since)
    }
}
