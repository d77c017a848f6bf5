//! The status: sentences for an operator, made from the state that the lock guards.

use super::core::Core;
use super::failures::Failed;
use super::flights::{Flight, Timer};
use super::reading::Unread;
use crate::base::index::Index;
use crate::base::time::Now;
use crate::observe::status::{Attempt, Blocked, State, Status};
use crate::source::watermark::Watermark;
use std::time::{Duration, Instant};

/// The time after which a source or a store that does not answer is named as the reason. Before
/// that, it is at work.
const SILENCE: Duration = Duration::from_secs(1);

impl<T: Send + 'static> Core<T> {
    pub(crate) fn status(&self, now: &Now) -> Status {
        let window = &self.window;
        let blocked = self.blocked(now);
        let ended = match &blocked {
            Blocked::Upstream { index } => self.gates.upstreams.iter().find(|upstream| upstream.ended_below(*index)),
            _ => None,
        };
        Status {
            state: self.state(),
            head: window.head(),
            last_processed: window.last_processed(),
            next: window.next(),
            processing: window.in_flight(),
            done_ahead: window.done_ahead(),
            unsaved: window.unsaved(),
            ended_upstream: ended.map(Watermark::name),
            blocked,
            done: self.running.counters.done,
            failed: self.running.counters.failed,
            retries: self.running.counters.retries,
            saves: self.running.counters.saves,
            parked: self.parked(),
            oldest: self.oldest(now),
            unprocessed: window.lowest_unprocessed(),
        }
    }

    pub(super) fn state(&self) -> State {
        if self.ending.halted.is_some() {
            State::Halted
        } else if self.window.has_ended() {
            State::Finished
        } else if self.window.is_stopping() {
            State::Stopping
        } else if self.tenancy.is_paused() {
            State::Paused
        } else {
            State::Running
        }
    }

    /// Returns the attempt that began first. The abandoned ones are not in flight.
    fn oldest(&self, now: &Now) -> Option<Attempt> {
        let flight = self.running.flights.oldest().filter(|_| !self.ending.abandoned)?;
        let elapsed = now.coarse().duration_since(flight.started).into();
        Some(Attempt { index: flight.index, attempt: flight.attempt, elapsed })
    }

    /// Returns the one thing that the watermark waits for.
    fn blocked(&self, now: &Now) -> Blocked {
        let window = &self.window;
        let index = window.lowest_undone();
        if let Some((index, error)) = self.ending.halted.as_deref() {
            return Blocked::Halted { index: *index, error: error.clone() };
        }
        if let Some(error) = &self.saving.under_way.error {
            return Blocked::Progress { error: error.clone() };
        }
        if window.has_ended() {
            return Blocked::No;
        }
        let in_flight = |flight: &&Flight| flight.index == index && !self.ending.abandoned;
        if let Some(flight) = self.running.flights.iter().find(in_flight) {
            return self.running(flight, now);
        }
        if index > window.lowest_unprocessed() {
            return self.blocked_by_save(now);
        }
        if window.is_stopping() {
            // Nothing starts any more, so a job that has not started is not awaited.
            return self.lowest_running(now).unwrap_or_else(|| self.blocked_by_save(now));
        }
        if window.is_paused() {
            return self.tenancy.blocked();
        }
        if self.running.aside.has(index) {
            // Its turn comes as soon as a slot is free.
            return self.lowest_running(now).unwrap_or(Blocked::No);
        }
        if let Some(alone) = self.alone().filter(|alone| *alone == index || self.failures.waiting(index).is_none()) {
            return Blocked::Alone { index: alone };
        }
        if let Some(failed) = self.failures.waiting(index) {
            return self.blocked_by_retry(index, failed, now);
        }
        self.blocked_by_source(now)
    }

    fn blocked_by_retry(&self, index: Index, failed: &Failed, now: &Now) -> Blocked {
        let retry_in = failed.due.saturating_duration_since(now.get());
        match (&failed.unread, self.source_silence(now), self.blocked_by_threads(now)) {
            (Some(unread), ..) => self.unread(unread, index),
            (None, _, Some(threads)) if self.reading.prefetch.has_again(index) => threads,
            (None, Some(silence), _) if retry_in.is_zero() => unanswered(index, silence),
            _ if failed.deferred => Blocked::Deferred { index, retry_in, error: failed.error.clone() },
            _ => Blocked::Retrying { index, attempt: failed.attempt, retry_in, error: failed.error.clone() },
        }
    }

    /// The lowest job that is in flight.
    fn lowest_running(&self, now: &Now) -> Option<Blocked> {
        let awaited = self.running.flights.iter().filter(|_| !self.ending.abandoned);
        awaited.min_by_key(|flight| flight.index).map(|flight| self.running(flight, now))
    }

    /// Says that this job runs, and if it runs for longer than it may.
    pub(super) fn running(&self, flight: &Flight, now: &Now) -> Blocked {
        let Flight { index, attempt, .. } = *flight;
        let elapsed = now.coarse().duration_since(flight.started).into();
        let timeouts = self.running.flights.timeouts.as_ref().filter(|_| flight.timer == Timer::Overdue);
        match timeouts.map(|timeouts| timeouts.after()) {
            Some(timeout) => Blocked::Overdue { index, attempt, elapsed, timeout },
            None => Blocked::Running { index, attempt, elapsed },
        }
    }

    /// Returns the answer for a job that could start, if for too long no thread has taken it. The
    /// threads that run a job are named elsewhere. So these threads are in user code outside of a
    /// job: for example in a destructor after the report, or in the start of a deferred job.
    fn blocked_by_threads(&self, now: &Now) -> Option<Blocked> {
        let busy = self.workers.all_busy(self.window.limits().max_processing).filter(|_| self.window.can_run())?;
        // A thread that came back since then would have taken the job.
        let elapsed: Duration = now.coarse().duration_since(self.workers.last_taken()?).into();
        (elapsed >= SILENCE).then_some(Blocked::Threads { busy, elapsed })
    }

    /// Returns the answer while finished jobs are saved. A save is named only if it takes long.
    fn blocked_by_save(&self, now: &Now) -> Blocked {
        match silence(self.saving.under_way.since, now) {
            Some(silence) => Blocked::Progress { error: format!("the save has not returned for {silence:.1?}") },
            None => Blocked::No,
        }
    }

    fn blocked_by_source(&self, now: &Now) -> Blocked {
        let window = &self.window;
        let index = window.lowest_undone();
        if let Some(error) = &self.reading.look_error {
            return Blocked::Source { index, error: error.clone() };
        }
        if index < window.unread_from() && window.can_run() {
            // It is read, and about to run.
            return self.blocked_by_threads(now).unwrap_or(Blocked::No);
        }
        if let Some(silence) = self.source_silence(now) {
            return unanswered(index, silence);
        }
        if let Some(elapsed) = self.look_awaited(index, now) {
            return Blocked::Looking { elapsed };
        }
        if window.ends_at().is_some_and(|last| last < index) {
            return Blocked::CaughtUp;
        }
        let recorded = || self.blocked_by_save(now);
        let gated = || {
            window.is_gated(index).then(|| if self.is_gated(index) { Blocked::Upstream { index } } else { recorded() })
        };
        self.beyond_head(index).or_else(gated).unwrap_or_else(|| match &self.reading.unread {
            Some(unread) => self.unread(unread, index),
            None => Blocked::No,
        })
    }

    /// Returns the time that the look has taken, if the look is all that this job waits for.
    fn look_awaited(&self, index: Index, now: &Now) -> Option<Duration> {
        let window = &self.window;
        let known = window.head().is_some_and(|head| index <= head) && !self.is_gated(index);
        let elapsed = self.reading.look.map(|since| now.get().saturating_duration_since(since));
        if !self.reading.seen {
            return Some(elapsed.unwrap_or_default());
        }
        elapsed.filter(|_| known && self.reading.call.is_none() && index >= window.unread_from())
    }

    /// Returns the time for which a call into the source has not returned, if that is too long.
    fn source_silence(&self, now: &Now) -> Option<Duration> {
        silence(self.reading.call.into_iter().chain(self.reading.look).min(), now)
    }

    /// Returns the reason why a job that should be there could not be read.
    fn unread(&self, unread: &Unread, index: Index) -> Blocked {
        self.beyond_head(index).unwrap_or_else(|| match unread {
            Unread::Missing => Blocked::Missing { index },
            Unread::Failed(error) => Blocked::Source { index, error: error.clone() },
        })
    }

    /// Returns the reason why the source does not reach this index, or `None` if it does.
    fn beyond_head(&self, index: Index) -> Option<Blocked> {
        let head = self.window.head();
        match self.window.last_processed() {
            Some(last_processed) if head.is_none_or(|head| head < last_processed) => {
                Some(Blocked::AheadOfSource { last_processed, head })
            }
            _ => head.is_none_or(|head| head < index).then_some(Blocked::CaughtUp),
        }
    }
}

fn unanswered(index: Index, silence: Duration) -> Blocked {
    Blocked::Source { index, error: format!("it has not answered for {silence:.1?}") }
}

/// Returns the time for which a call has not returned, if that is too long.
fn silence(since: Option<Instant>, now: &Now) -> Option<Duration> {
    since.map(|since| now.get().saturating_duration_since(since)).filter(|silence| *silence >= SILENCE)
}
