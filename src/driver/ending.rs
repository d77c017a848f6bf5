//! The end of a consumer, for callers that do not own it: they wait until everything is over, with
//! all threads, and get the result.

use super::Driver;
use super::core::Core;
use super::reach::kept_below;
use super::wakes::Wakes;
use crate::base::error::Error;
use crate::base::guard::Guarded;
use crate::base::index::BoxError;
use crate::base::index::Index;
use crate::base::sync::Arc;
use crate::base::time::{self, Now};
use crate::crew::stopping::Stopping;
use crate::observe::ended::Ended;
use crate::observe::observers::Notice;
use crate::observe::{Event, Kind};
use crate::run::OnJobDone;
use std::time::Duration;

/// The state of the end, before and after it has come.
pub(crate) struct Ending {
    /// The flag that is set once nothing starts any more.
    pub(super) stopping: Stopping,
    /// True once everybody was told that nothing starts any more.
    pub(super) told: bool,
    /// The error that `stop` and `join` return.
    pub(super) error: Option<Box<Error>>,
    /// The report of the error. It stays when the error itself was handed out.
    report: Option<String>,
    /// The index at which the consumer halted, and the cause as a text.
    pub(super) halted: Option<Box<(Index, String)>>,
    /// True if results are no longer counted.
    pub(super) abandoned: bool,
    /// The index that the watermark can never reach, whatever happens.
    pub(super) unreachable_from: Index,
}

impl Default for Ending {
    fn default() -> Self {
        Self {
            stopping: Stopping::default(),
            told: false,
            error: None,
            report: None,
            halted: None,
            abandoned: false,
            unreachable_from: Index::MAX,
        }
    }
}

impl Core {
    /// Everything is over: the window wants nothing more.
    pub(super) fn finish(&mut self, wakes: &mut Wakes, now: &Now) {
        wakes.ended = true;
        self.running.flights.timeouts.iter().for_each(|timeouts| timeouts.ring());
        self.waiting.rouse = true;
        if let Some(error) = self.gates.reach.error(&self.window).filter(|_| self.ending.error.is_none()) {
            self.halt_for(self.window.lowest_undone(), error.to_string(), error, "", now);
        }
        // Also if no thread watches: the time since the end is told.
        self.watching.stalls.restart(now.get());
        self.tell_end(now);
        // There may be very many of them, so their memory is given back later, without the lock.
        let retries = self.failures.take_all();
        let jobs = self.reading.prefetch.take_all();
        let (pool, callback) = (Guarded::new(self.running.pool.take()), Guarded::new(self.running.on_job_done.take()));
        let source = Guarded::new(self.reading.runs.take());
        self.roster.end(Box::new((jobs, retries, pool, callback, source)));
    }

    /// True if the watermark can no longer reach this index.
    pub(crate) fn never(&self, index: Index) -> bool {
        let window = &self.window;
        let stopping = window.is_stopping();
        if self.tenancy.awaited.is_some() {
            // Nobody knows yet how far the one who has the name will have come.
            return index == Index::MAX || stopping || window.has_ended();
        }
        index == Index::MAX
            || window.has_ended()
            // Jobs above the end that are done already, or run, may still be passed.
            || window.ends_at().is_some_and(|last| last < index && window.unstarted_from(last.saturating_add(1)) <= index)
            || stopping && (index >= window.next() || self.failures.has_waiting_up_to(index, |failed| !window.is_redriven(failed)))
            // Once the consumer stops, no thread gets a turn.
            || stopping && self.running.aside.has_up_to(index)
            || self.ending.unreachable_from <= index
            || self.gates.upstreams.iter().any(|upstream| kept_below(&self.window, index, upstream))
    }

    /// Abandons the running jobs: they are neither awaited nor counted any longer. Returns their
    /// indices, and a callback to be dropped without the lock.
    pub(crate) fn abandon(&mut self) -> (Vec<Index>, Option<Arc<OnJobDone>>) {
        let mut running: Vec<Index> = self.running.flights.iter().map(|flight| flight.index).collect();
        running.sort_unstable();
        self.ending.abandoned = true;
        self.ending.unreachable_from = self.ending.unreachable_from.min(running.first().copied().unwrap_or(Index::MAX));
        self.waiting.rouse = true;
        self.release_alone();
        self.window.handle_abandoned();
        (running, self.running.on_job_done.take())
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
        if self.ending.error.is_some() {
            return Some(Box::new(error));
        }
        self.halt_for(index, text, error, cause, now);
        None
    }

    /// The consumer halts, for the first time. The cause is the text of the error's source, if it
    /// has one: that is the user's code, so the text was made without the lock.
    pub(super) fn halt_for(&mut self, index: Index, text: String, error: Error, cause: &str, now: &Now) {
        let event = Event { error: Some(&text), ..Event::new(Kind::Halted, index) };
        let attempt = if let Error::Job { attempt, .. } = &error { Some(*attempt) } else { None };
        self.tell(&Event { attempt, ..event }, now);
        self.notice(|_| Notice::Halted { index, attempt, error: text.clone() });
        self.life.halts();
        self.ending.report = Some(if cause.is_empty() { error.to_string() } else { format!("{error}: {cause}") });
        self.ending.halted = Some(Box::new((index, text)));
        self.ending.error = Some(Box::new(error));
    }

    /// The last event for the observers.
    pub(super) fn end_notice(&self) -> Notice {
        let last_processed = self.window.last_processed();
        Notice::Ended { state: self.state(), last_processed, error: self.ending.report.clone() }
    }

    fn ended(&self, now: &Now) -> Ended {
        Ended { state: self.status(now).state, error: self.ending.report.clone() }
    }
}

impl Driver {
    pub(super) fn wait_everybody_gone(&self, timeout: Duration) -> Option<Ended> {
        // A thread of the crew would wait for itself.
        if self.crew.is_own_thread() {
            return None;
        }
        // Beyond the clock's end is for ever.
        let deadline = time::now().checked_add(timeout);
        let mut core = self.core.lock();
        self.crew.wait_gone(&mut core, deadline).then(|| core.ended(&self.clock.when_asked()))
    }
}
