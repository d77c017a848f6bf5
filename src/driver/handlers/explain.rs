//! Explains the state in sentences for an operator: what the watermark waits for.

use crate::base::{Index, time::Now};
use crate::driver::core::Core;
use crate::driver::failed_jobs::{Failed, Unread};
use crate::driver::flights::{Flight, Timer};
use crate::driver::reading::Reading;
use crate::observe::status::{Attempt, Blocked, State, Status};
use crate::source::{bound::Full, watermark::Watermark};
use std::time::{Duration, Instant};

/// How long a call into the source or store may take before the status names it as the reason. A
/// shorter alarm of the user's lowers it.
const SILENCE: Duration = Duration::from_secs(1);

/// The time of a status, and how long a call may take before the status names it.
struct StatusTime<'a> {
    now: &'a Now,
    patience: Duration,
}

impl StatusTime<'_> {
    /// Returns how long a call has taken, if that is too long.
    fn silence(&self, since: Option<Instant>) -> Option<Duration> {
        let silence = self.now.get().saturating_duration_since(since?);
        (silence >= self.patience).then_some(silence)
    }
}

impl Core {
    pub(crate) fn status(&self, now: &Now) -> Status {
        let patience = SILENCE.min(self.watching.stalls.pause());
        self.status_with(self.blocked(&StatusTime { now, patience }), now)
    }

    /// Returns the status of a watermark that has not moved for too long. If there is no other
    /// reason, a call that has just begun is the reason.
    pub(super) fn stalled_status(&self, now: &Now) -> Status {
        match self.status(now) {
            Status { blocked: Blocked::No, .. } => {
                self.status_with(self.blocked(&StatusTime { now, patience: Duration::ZERO }), now)
            }
            status => status,
        }
    }

    fn status_with(&self, blocked: Blocked, now: &Now) -> Status {
        let window = &self.window;
        let ended = match &blocked {
            Blocked::Upstream { index } => self.gates.upstreams.iter().find(|upstream| upstream.ended_below(*index)),
            _ => None,
        };
        let again = self.asked_again(&blocked);
        Status {
            state: self.state(),
            head: window.head(),
            last_processed: window.last_processed(),
            next: window.next(),
            processing: window.in_flight(),
            done_ahead: window.done_ahead(),
            unsaved: window.unsaved() + self.unwritten(),
            ended_upstream: ended.map(Watermark::name),
            source_fails_for: self.source_fails_for(&blocked, now),
            blocked,
            done: self.saving.done,
            failed: self.failed_jobs.failed,
            retries: self.failed_jobs.retries,
            saves: self.saving.saves,
            absent: window.absent(),
            parked: self.failed_jobs.records.parked,
            behind: self.running.keys.as_ref().map_or(0, |keys| keys.behind()),
            oldest: self.oldest(now),
            source: self.reading.calls.numbers(again, now),
            unprocessed: window.lowest_unprocessed(),
        }
    }

    pub(in crate::driver) fn state(&self) -> State {
        if self.ending.halted.is_some() {
            State::Halted
        } else if self.window.has_ended() {
            State::Finished
        } else if self.window.is_stopping() {
            State::Stopping
        } else if self.tenancy.awaited.is_some() {
            State::Waiting
        } else if self.tenancy.paused {
            State::Paused
        } else {
            State::Running
        }
    }

    /// Returns the number of jobs that have run but are not in a save.
    fn unwritten(&self) -> u64 {
        self.saving.writing.as_ref().map_or(0, |writing| writing.waiting() as u64)
    }

    /// Returns the attempt that began first. Abandoned ones are not in flight.
    fn oldest(&self, now: &Now) -> Option<Attempt> {
        let flight = self.running.flights.oldest().filter(|_| !self.ending.abandoned)?;
        Some(self.attempt(flight, now))
    }

    pub(super) fn attempt(&self, flight: &Flight, now: &Now) -> Attempt {
        let elapsed = now.coarse().duration_since(flight.started).into();
        Attempt { index: flight.index, attempt: flight.attempt, elapsed }
    }

    /// Returns the one thing that the watermark waits for.
    fn blocked(&self, at: &StatusTime<'_>) -> Blocked {
        let window = &self.window;
        let index = window.lowest_undone();
        if let Some((index, error)) = self.ending.halted.as_deref() {
            return Blocked::Halted { index: *index, error: error.clone() };
        }
        if let Some(error) = &self.saving.under_way.error {
            return Blocked::Progress { error: error.clone() };
        }
        if window.has_ended() {
            return self.blocked_by_end(at);
        }
        let in_flight = |flight: &&Flight| flight.index == index && !self.ending.abandoned;
        if let Some(flight) = self.running.flights.iter().find(in_flight) {
            return self.job_in_flight(flight, at.now);
        }
        if index > window.lowest_unprocessed() {
            return self.blocked_by_save(at);
        }
        if self.saving.writing.as_ref().is_some_and(|writing| writing.has(index)) {
            return self.blocked_by_save(at);
        }
        if window.is_stopping() {
            // Nothing starts any more, so only jobs in flight are awaited.
            return self.lowest_running(at.now).unwrap_or_else(|| self.blocked_by_save(at));
        }
        if let Some(awaited) = &self.tenancy.awaited {
            return awaited.blocked(at.now);
        }
        if window.is_paused() {
            return self.tenancy.blocked();
        }
        if self.running.aside.has(index) {
            // It gets its turn as soon as a slot is free.
            return self.lowest_running(at.now).unwrap_or(Blocked::No);
        }
        if let Some(alone) = self
            .failed_jobs
            .quarantine
            .alone()
            .filter(|alone| *alone == index || self.failed_jobs.failures.waiting(index).is_none())
        {
            return self.blocked_by_alone(alone, at);
        }
        if let Some(failed) = self.failed_jobs.failures.waiting(index) {
            return self.blocked_by_retry(index, failed, at);
        }
        self.blocked_by_source(at)
    }

    fn blocked_by_retry(&self, index: Index, failed: &Failed, at: &StatusTime<'_>) -> Blocked {
        let retry_in = failed.due.saturating_duration_since(at.now.get());
        match (&failed.unread, self.source_silence(at), self.blocked_by_threads(at)) {
            (Some(unread), ..) => self.unread(unread, index),
            (None, _, Some(threads)) if self.reading.prefetch.has_again(index) => threads,
            (None, Some(silence), _) if retry_in.is_zero() => self.unanswered(index, silence),
            _ if failed.deferred => Blocked::Deferred { index, retry_in, error: failed.error.clone() },
            _ => Blocked::Retrying { index, attempt: failed.attempt, retry_in, error: failed.error.clone() },
        }
    }

    fn lowest_running(&self, now: &Now) -> Option<Blocked> {
        let awaited = self.running.flights.iter().filter(|_| !self.ending.abandoned);
        awaited.min_by_key(|flight| flight.index).map(|flight| self.job_in_flight(flight, now))
    }

    /// Describes a job in flight: it runs, or it is overdue.
    pub(super) fn job_in_flight(&self, flight: &Flight, now: &Now) -> Blocked {
        let Flight { index, attempt, .. } = *flight;
        let elapsed = now.coarse().duration_since(flight.started).into();
        let timeouts = self.running.flights.timeouts.as_ref().filter(|_| flight.timer == Timer::Overdue);
        match timeouts.map(|timeouts| timeouts.after) {
            Some(timeout) => Blocked::Overdue { index, attempt, elapsed, timeout },
            None => Blocked::Running { index, attempt, elapsed },
        }
    }

    /// Returns the reason if a job could start, but no thread has taken it for too long. All
    /// threads are then in user code outside of a job, such as a destructor after the report or the
    /// start of a deferred job.
    fn blocked_by_threads(&self, at: &StatusTime<'_>) -> Option<Blocked> {
        let busy = self.workers.all_busy(self.window.limits().max_processing).filter(|_| self.window.can_run())?;
        // A thread that came back since then would have taken the job.
        let elapsed: Duration = at.now.coarse().duration_since(self.workers.last_taken?).into();
        (elapsed >= at.patience).then_some(Blocked::Threads { busy, elapsed })
    }

    /// Returns the reason while finished jobs are saved. Only a save that takes long is named.
    fn blocked_by_save(&self, at: &StatusTime<'_>) -> Blocked {
        let Some(silence) = at.silence(self.saving.under_way.since) else { return Blocked::No };
        let error = match self.saving.writing.as_ref().and_then(|writing| writing.under_way()) {
            Some((jobs, lowest)) => {
                format!("the transaction with {jobs} jobs from {lowest} on has not returned for {silence:.1?}")
            }
            None => format!("the save has not returned for {silence:.1?}"),
        };
        Blocked::Progress { error }
    }

    /// Returns the reason while a suspect of a crash is about to run alone. Once nothing else is in
    /// flight, a save counts its crash, and then the job is read.
    fn blocked_by_alone(&self, index: Index, at: &StatusTime<'_>) -> Blocked {
        if self.window.in_flight() > 0 {
            return Blocked::Alone { index };
        }
        match (self.blocked_by_save(at), self.source_silence(at)) {
            (Blocked::No, Some(silence)) => self.unanswered(index, silence),
            (Blocked::No, None) => Blocked::Alone { index },
            (save, _) => save,
        }
    }

    /// Returns the reason after the end: threads may still be running.
    fn blocked_by_end(&self, at: &StatusTime<'_>) -> Blocked {
        match at.silence(Some(self.watching.stalls.since)).filter(|_| !self.registry.is_gone()) {
            Some(elapsed) => Blocked::Leaving { elapsed },
            None => Blocked::No,
        }
    }

    fn blocked_by_source(&self, at: &StatusTime<'_>) -> Blocked {
        let window = &self.window;
        let index = window.lowest_undone();
        if let Some(error) = &self.reading.look_error {
            return Blocked::Source { index, error: error.clone() };
        }
        if index < window.unread_from() && window.can_run() {
            // It is read and about to run.
            return self.blocked_by_threads(at).unwrap_or(Blocked::No);
        }
        if let Some(silence) = self.source_silence(at) {
            return self.unanswered(index, silence);
        }
        if let Some(elapsed) = self.look_awaited(index, at.now) {
            return Blocked::Looking { elapsed };
        }
        if window.ends_at().is_some_and(|last| last < index) {
            return Blocked::CaughtUp;
        }
        let recorded = || self.blocked_by_save(at);
        let gated = || {
            window.is_gated(index).then(|| {
                if self.failed_jobs.quarantine.is_gated(index) { self.blocked_by_gate(index) } else { recorded() }
            })
        };
        self.beyond_head(index).or_else(gated).unwrap_or_else(|| match &self.reading.unread {
            Some(unread) => self.unread(unread, index),
            None => {
                // Redriven jobs may occupy all slots.
                let full = window.in_flight() >= window.limits().max_processing;
                let running = self.lowest_running(at.now).filter(|_| full);
                running.unwrap_or_else(|| self.blocked_by_save(at))
            }
        })
    }

    /// Returns the reason while the gate of the source holds this index back.
    fn blocked_by_gate(&self, index: Index) -> Blocked {
        let is_behind = |upstream: &Watermark| upstream.last_processed().is_none_or(|last| last < index);
        let full = || self.gates.bounds.iter().find_map(|bound| bound.full(index));
        match if self.gates.upstreams.iter().any(is_behind) { None } else { full() } {
            Some(Full { log, items, most, behind }) => {
                let (behind, ended) = behind.map_or((None, false), |behind| (Some(behind.name), behind.ended));
                Blocked::LogFull { index, log, items, most, behind, ended }
            }
            None => Blocked::Upstream { index },
        }
    }

    /// Returns how long the look at the source has taken, if this job waits only for that.
    fn look_awaited(&self, index: Index, now: &Now) -> Option<Duration> {
        let window = &self.window;
        let known = window.head().is_some_and(|head| index <= head) && !self.failed_jobs.quarantine.is_gated(index);
        let elapsed = self.reading.look.map(|since| now.get().saturating_duration_since(since));
        if !self.reading.seen {
            return Some(elapsed.unwrap_or_default());
        }
        elapsed.filter(|_| known && self.reading.since().is_none() && index >= window.unread_from())
    }

    /// Returns how long a call into the source has taken, if that is too long.
    fn source_silence(&self, at: &StatusTime<'_>) -> Option<Duration> {
        at.silence(self.reading.since().into_iter().chain(self.reading.look).min())
    }

    /// Returns how long the source has been failing, if that is the reason.
    fn source_fails_for(&self, blocked: &Blocked, now: &Now) -> Option<Duration> {
        let (Blocked::Source { index, .. } | Blocked::Missing { index }) = blocked else { return None };
        let Reading { looks, news, look, .. } = &self.reading;
        let call = self.reading.since();
        let again = self.failed_jobs.failures.waiting(*index).and_then(|failed| failed.in_vain.since);
        let since = [looks.since, news.since, again, call, *look].into_iter().flatten().min();
        Some(since.map_or(Duration::ZERO, |since| now.get().saturating_duration_since(since)))
    }

    /// Returns when the source is asked again, if the watermark waits for that.
    fn asked_again(&self, blocked: &Blocked) -> Option<Instant> {
        let (Blocked::Source { index, .. } | Blocked::Missing { index }) = blocked else { return None };
        let unread = self.failed_jobs.failures.waiting(*index).filter(|failed| failed.unread.is_some());
        let looked = || self.reading.look_error.as_ref().and(self.reading.look_again);
        unread.map(|failed| failed.due).or_else(looked).or(self.reading.read_again)
    }

    /// Names a call into the source that has not returned, and what would end it.
    fn unanswered(&self, index: Index, silence: Duration) -> Blocked {
        let help = match self.reading.calls.timeout {
            None => ", and nothing ends the call from outside: give the client that it waits for a timeout".to_owned(),
            Some(Duration::MAX) => "; the call is never given up: set a source_timeout".to_owned(),
            Some(timeout) => format!("; the call is given up after {timeout:.1?}"),
        };
        Blocked::Source { index, error: format!("it has not answered for {silence:.1?}{help}") }
    }

    /// Returns why an existing job could not be read.
    fn unread(&self, unread: &Unread, index: Index) -> Blocked {
        self.beyond_head(index).unwrap_or_else(|| match unread {
            Unread::Missing => Blocked::Missing { index },
            Unread::Failed(error) => Blocked::Source { index, error: error.clone() },
        })
    }

    /// Returns why the source does not reach this index, or `None` if it does.
    fn beyond_head(&self, index: Index) -> Option<Blocked> {
        let head = self.window.head();
        if let Some(why) = self.reading.waits_for.as_ref().filter(|_| head.is_none_or(|head| head < index)) {
            return Some(Blocked::SourceWaits { index, why: why.clone() });
        }
        match self.window.last_processed() {
            Some(last_processed) if head.is_none_or(|head| head < last_processed) => {
                Some(Blocked::AheadOfSource { last_processed, head })
            }
            _ => head.is_none_or(|head| head < index).then_some(Blocked::CaughtUp),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::samples;

    /// A consumer whose first job is being read since this time.
    fn reading(now: Instant) -> Core {
        let mut core = samples::core(1, 100, now);
        core.reading.seen = true;
        core.window.handle_head(Some(5));
        core.reading.call = Some(now);
        core
    }

    fn unanswered(silence: Duration) -> Blocked {
        let help = "and nothing ends the call from outside: give the client that it waits for a timeout";
        Blocked::Source { index: 0, error: format!("it has not answered for {silence:.1?}, {help}") }
    }

    #[test]
    fn a_silent_call_is_named_sooner_in_a_stall() {
        let (now, millis) = (Instant::now(), Duration::from_millis);
        let mut core = reading(now);
        let blocked = |core: &Core, after| core.status(&Now::at(now + after)).blocked;
        assert_eq!(blocked(&core, millis(999)), Blocked::No);
        assert_eq!(blocked(&core, SILENCE), unanswered(SILENCE));
        let stalled = core.stalled_status(&Now::at(now + millis(3))).blocked;
        assert_eq!(stalled, unanswered(millis(3)), "nothing else is in the way");
        // An alarm after 20 ms shortens the wait of a second.
        core.watching.stalls.add_alarms([millis(20), Duration::MAX]);
        assert_eq!(blocked(&core, millis(19)), Blocked::No);
        assert_eq!(blocked(&core, millis(20)), unanswered(millis(20)));
    }

    #[test]
    fn a_new_call_does_not_hide_the_last_error() {
        let now = Instant::now();
        let mut core = reading(now);
        core.reading.unread = Some(Unread::Missing);
        assert_eq!(core.stalled_status(&Now::at(now)).blocked, Blocked::Missing { index: 0 });
    }
}
