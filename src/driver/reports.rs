//! Attempts that are over: what a success counts, and what becomes of a job that failed.

use super::core::{Core, Failed};
use super::flights::Flight;
use crate::base::error::Error;
use crate::base::guard::Failure;
use crate::base::index::{BoxError, Index};
use crate::base::time::Now;
use crate::commit::changes::Changes;
use crate::observe::{Event, Kind};
use std::cmp::Reverse;
use std::time::Duration;

impl<T: Send + 'static> Core<T> {
    /// An attempt is over. A token that was used before changes nothing. The effects are taken if
    /// they count. What is returned is the user's, to be dropped without the lock.
    #[inline]
    pub(crate) fn report(
        &mut self,
        token: usize,
        outcome: Result<(), Box<Failure>>,
        effects: &mut Changes,
        now: &Now,
    ) -> Option<BoxError> {
        let flight = self.flights.end(token).filter(|_| !self.abandoned);
        match (flight, outcome) {
            (Some(flight), Ok(())) => {
                self.counters.done += 1;
                self.window.handle_done(flight.index);
                if !effects.is_empty() {
                    self.effects.take(effects, flight.index, flight.attempt);
                    self.window.set_full(self.effects.is_full());
                }
                None
            }
            (Some(flight), Err(failure)) => self.attempt_failed(flight, *failure, now),
            (None, outcome) => outcome.err().map(|failure| failure.error),
        }
    }

    #[cold]
    fn attempt_failed(
        &mut self,
        Flight { index, attempt, .. }: Flight,
        failure: Failure,
        now: &Now,
    ) -> Option<BoxError> {
        self.counters.failed += 1;
        self.window.handle_failed(index);
        // It is not tried again, so the watermark never passes it.
        self.rouse_waiters |= self.window.is_stopping();
        let Some(pause) = self.retry.delay(attempt, now.chance()) else {
            return self.exhausted(index, attempt, failure, now);
        };
        self.tell(&Event::new(Kind::AttemptFailed, index).attempt(attempt).error(&failure.text), now);
        // A pause beyond the clock's end is as good as none at all.
        let due = now.get().checked_add(pause).unwrap_or(now.get() + Duration::from_secs(u32::MAX.into()));
        self.failed.insert(index, Failed { attempt, due, error: failure.text, unread: None, unreadable: 0 });
        self.timers.push(Reverse((due, index)));
        self.rouse_reader = true;
        Some(failure.error)
    }

    /// A job failed, and is not tried again.
    pub(super) fn exhausted(&mut self, index: Index, attempt: u32, failure: Failure, now: &Now) -> Option<BoxError> {
        self.tell(&Event::new(Kind::Exhausted, index).attempt(attempt).error(&failure.text), now);
        let text = format!("job {index} failed in attempt {attempt}: {}", failure.text);
        self.unreachable_from = self.unreachable_from.min(index);
        self.rouse_waiters = true;
        self.halt(index, text, Error::Job { index, attempt, source: failure.error }, &failure.text, now)
    }

    /// Stops at the first failure. Later ones are not the cause, and are given back to be dropped.
    /// The cause is the text of the error's source, if it has one.
    pub(crate) fn halt(
        &mut self,
        index: Index,
        text: String,
        error: Error,
        cause: &str,
        now: &Now,
    ) -> Option<BoxError> {
        self.window.handle_stop();
        if self.error.is_some() {
            return Some(Box::new(error));
        }
        self.halt_for(index, text, error, cause, now);
        None
    }
}
