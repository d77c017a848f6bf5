//! The threads of a runner. Each reports the end of its job and claims the next one in the same
//! atomic write, so a job costs one write besides its push. Short jobs cost less: see
//! [`claim_batch`].

use crate::handle::Queue;
use crate::notify::losses::Runs;
use crate::notify::waiting::wait_until;
use crate::runner::attempt::{AttemptPort, Report};
use crate::runner::drain::{DrainLimits, Reached, Summary};
use crate::runner::gates::Gates;
use crate::runner::handler::{Handler, is_direct};
use crate::runner::hooks::Hooks;
use crate::runner::outcome::Unknown;
use crate::runner::pool::drain::{Drain, Tally};
use crate::runner::pool::outbox::Outbox;
use crate::runner::pool::slots::{Flight, Slots};
use crate::runner::running::FlightId;
use crate::runner::source::Source;
use crate::runner::timeouts::{Timeouts, Times};
use crate::types::error::QueueError;
use parking_lot::{Condvar, Mutex};
use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use waterline::Error;
use waterline::seam::{ClockExt, ClockWaits as Waits, Host, Moment, Own, ThreadRegistry, Threads};

mod attempting;
mod claim_batch;
mod cutting;
mod drain;
mod gating;
mod line;
mod outbox;
mod resizing;
mod slots;
mod standing;
pub(super) mod stopping;
mod tried;
mod writing;

/// The checked settings of a runner.
pub(super) struct Settings {
    pub(super) source: Source,
    pub(super) handlers: HashMap<String, Handler>,
    pub(super) hooks: Hooks,
    pub(super) unknown: Unknown,
    pub(super) max_processing: usize,
    pub(super) times: Times,
    pub(super) gates: Gates,
    #[cfg(feature = "metrics")]
    pub(super) gauges: Option<Arc<crate::runner::metrics::Gauges>>,
    pub(super) limits: Option<DrainLimits>,
    #[cfg(feature = "tokio")]
    pub(super) runtime: Option<tokio::runtime::Handle>,
}

/// A runner and its threads.
pub(super) struct Pool {
    settings: Settings,
    threads: Threads<Self>,
    state: Mutex<State>,
    /// The line of the threads without a job. The holder of its lock is the first, and looks for
    /// jobs.
    line: Mutex<()>,
    /// Threads sleep here during the pause after a failed write.
    stirred: Condvar,
    /// The first in the line sleeps here while it watches the other threads.
    watching: Condvar,
    /// The thread that notices a standstill sleeps here.
    standing: Condvar,
    stopping: Arc<AtomicBool>,
    timeouts: Option<Arc<Timeouts>>,
    begun: Instant,
}

/// What the threads of a runner share, under one lock.
#[derive(Default)]
struct State {
    registry: ThreadRegistry,
    slots: Slots,
    outbox: Outbox,
    drain: Drain,
}

impl AsRef<ThreadRegistry> for State {
    fn as_ref(&self) -> &ThreadRegistry {
        &self.registry
    }
}

impl Host for Pool {
    fn threads(&self) -> &Threads<Self> {
        &self.threads
    }

    fn with_registry<R>(&self, change: impl FnOnce(&mut ThreadRegistry, usize) -> R) -> R {
        let mut state = self.state.lock();
        let tokens = state.slots.flights.len();
        change(&mut state.registry, tokens)
    }

    fn thread_panicked(&self) {
        {
            let mut state = self.state.lock();
            (state.drain.panicked, state.drain.ending) = (true, true);
            (state.slots.reserved, state.outbox.writes) = (0, 0);
        }
        // Its job and its reports are lost, so others must not wait for them.
        self.abandon(false);
    }

    fn clear_up(&self) {}

    fn somebody_left(&self, _over: bool) {}

    fn everybody_left(&self) {}
}

impl AttemptPort for Pool {
    fn enter(&self) -> Own {
        self.threads.enter()
    }

    fn hooks(&self) -> &Hooks {
        &self.settings.hooks
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    fn moment(&self) -> Moment {
        self.source().moment()
    }

    fn claim_end(&self, flight: FlightId) -> bool {
        let mut state = self.state.lock();
        state.slots.flights.get_mut(&flight).is_some_and(|flight| !std::mem::replace(&mut flight.ended, true))
    }

    fn hand_in(&self, report: Report) {
        self.state.lock().outbox.inbox.push(report);
        self.source().ring();
    }
}

impl Pool {
    pub(super) fn start(settings: Settings, name: Box<dyn Any + Send>) -> Result<Arc<Self>, QueueError> {
        let begun = settings.source.moment().now;
        let timeouts = settings.times.are_any().then(|| Arc::new(Timeouts::new(settings.times.clone())));
        if let Some(timeouts) = &timeouts {
            let waits: Weak<dyn Waits> = Arc::downgrade(&(timeouts.clone() as Arc<dyn Waits>));
            settings.source.clock().tell(waits);
        }
        let pool = Arc::new_cyclic(|me| Self {
            settings,
            threads: Threads::new(me.clone()),
            state: Mutex::default(),
            line: Mutex::default(),
            stirred: Condvar::new(),
            watching: Condvar::new(),
            standing: Condvar::new(),
            stopping: Arc::default(),
            timeouts,
            begun,
        });
        {
            let mut state = pool.state.lock();
            state.registry.keep_name(name);
            (state.slots.threads, state.slots.max_processing) = (1, pool.settings.max_processing);
            let mut handlers = pool.settings.handlers.values();
            state.slots.spare = usize::from(handlers.any(|handler| !is_direct(Some(handler))));
        }
        let runs: Weak<dyn Runs> = Arc::downgrade(&(pool.clone() as Arc<dyn Runs>));
        pool.source().tell_losses_to(&runs);
        pool.source().note_begin();
        let waits: Weak<dyn Waits> = Arc::downgrade(&(pool.clone() as Arc<dyn Waits>));
        pool.source().clock().tell(waits);
        let started = pool.spawn().and_then(|()| pool.spawn_timeouts());
        #[cfg(feature = "metrics")]
        let started = started.and_then(|()| pool.spawn_gauges());
        if let Err(error) = started {
            let _ = pool.stop(None);
            return Err(error.into());
        }
        Ok(pool)
    }

    /// Starts a thread, which is counted already.
    fn spawn(self: &Arc<Self>) -> Result<(), Error> {
        let me = self.clone();
        self.threads.spawn("wl-queue", move || me.work())
    }

    fn spawn_timeouts(self: &Arc<Self>) -> Result<(), Error> {
        if self.timeouts.is_none() {
            return Ok(());
        }
        let me = self.clone();
        self.threads.spawn("wl-timeouts", move || {
            if let Some(timeouts) = &me.timeouts {
                let source = me.source();
                timeouts.watch(source, |flight, after| me.overdue(flight, after));
            }
        })
    }

    #[cfg(feature = "metrics")]
    fn spawn_gauges(self: &Arc<Self>) -> Result<(), Error> {
        let Some(gauges) = self.settings.gauges.clone() else { return Ok(()) };
        let me = self.clone();
        self.threads.spawn("wl-gauges", move || gauges.watch(&me.source().queues(), |queue| me.in_flight_of(queue)))
    }

    pub(super) fn source(&self) -> &Source {
        &self.settings.source
    }

    pub(super) fn in_flight(&self) -> usize {
        self.state.lock().slots.flights.len()
    }

    #[cfg(feature = "metrics")]
    pub(super) fn in_flight_of(&self, queue: &Queue) -> usize {
        let number = queue.number;
        self.state.lock().slots.flights.keys().filter(|flight| flight.0 == number).count()
    }

    fn rest(&self, pause: Duration) {
        let until = waterline::seam::now().checked_add(pause);
        let mut state = self.state.lock();
        wait_until(&self.stirred, &mut state, until);
    }

    /// Returns how many jobs a thread may claim while it reports this many.
    fn room(&self, state: &mut State, reports: usize) -> usize {
        if state.drain.ending {
            return 0;
        }
        let mut left = usize::MAX;
        if let Some(limits) = self.settings.limits {
            let elapsed = self.source().moment().now.saturating_duration_since(self.begun);
            let reached = if limits.jobs.is_some_and(|jobs| state.drain.claims >= jobs) {
                Some(Reached::Jobs)
            } else if limits.time.is_some_and(|time| elapsed >= time) {
                Some(Reached::Time)
            } else {
                None
            };
            if reached.is_some() {
                self.end(state, reached);
                return 0;
            }
            // A claim under way may find nothing, and then another one is due.
            let claims = state.drain.claims + state.slots.reserved as u64;
            left = limits.jobs.map_or(left, |jobs| usize::try_from(jobs.saturating_sub(claims)).unwrap_or(left));
        }
        left.min(
            state
                .slots
                .max_processing
                .saturating_sub(state.slots.flights.len().saturating_sub(reports) + state.slots.reserved),
        )
    }

    /// Returns when a drain stops claiming, if that is still to come.
    fn drain_deadline(&self) -> Option<Instant> {
        if self.state.lock().drain.ending {
            return None;
        }
        self.settings.limits.and_then(|limits| limits.time).and_then(|time| self.begun.checked_add(time))
    }

    /// Ends a drain that has found no job, if none is in flight. Returns true if it has ended.
    fn drained(&self, news: u64, otherwise: Reached) -> bool {
        if self.settings.limits.is_none() {
            return false;
        }
        let tried = self.state.lock().outbox.tried.since(news);
        let (paused, has_more) = (self.source().are_paused(), self.source().has_more(&tried));
        let otherwise = if self.source().are_limited() { Reached::Limited } else { otherwise };
        let mut state = self.state.lock();
        let is_idle = state.slots.flights.is_empty()
            && state.slots.reserved == 0
            && state.outbox.inbox.is_empty()
            && state.outbox.telling == 0;
        let is_idle = is_idle && !has_more;
        // The last job in flight may have pushed one after the claim looked.
        let is_idle = is_idle && self.source().news() == news;
        if is_idle {
            self.end(&mut state, Some(if paused { Reached::Paused } else { otherwise }));
        }
        is_idle
    }

    /// Claims no more jobs from now on.
    fn end(&self, state: &mut State, reached: Option<Reached>) {
        if !std::mem::replace(&mut state.drain.ending, true) {
            self.source().note_stopping();
            // The thread that found it may have been woken for a job, which others take.
            self.source().ring();
        }
        state.drain.reached = state.drain.reached.or(reached);
        self.end_if_over(state);
    }

    /// Returns true if no job is left to be reported. The threads then end.
    fn end_if_over(&self, state: &mut State) -> bool {
        let is_over = state.drain.ending && state.slots.are_free() && state.outbox.inbox.is_empty();
        if is_over && !state.drain.over {
            state.drain.over = true;
            state.registry.end(Box::new(()));
            self.source().ring();
            self.standing.notify_all();
            self.timeouts.iter().for_each(|timeouts| timeouts.close());
            #[cfg(feature = "metrics")]
            self.settings.gauges.iter().for_each(|gauges| gauges.close());
        }
        state.drain.over
    }

    pub(super) fn summary(&self) -> Summary {
        let mut all = Tally::default();
        self.state.lock().drain.tallies.iter().for_each(|tally| all.add(tally));
        self.summary_of(all)
    }

    pub(super) fn summaries(&self) -> Vec<(String, Summary)> {
        let tallies = self.state.lock().drain.tallies.clone();
        let tallies = tallies.into_iter().chain(std::iter::repeat(Tally::default()));
        let queues = self.source().queues().into_iter().zip(tallies);
        let summary = |(queue, tally): (&Queue, Tally)| {
            let mut summary = self.summary_of(tally);
            let is_paused = queue.peek().is_paused;
            if summary.reached == Reached::NothingReady && is_paused {
                summary.reached = Reached::Paused;
            }
            (queue.name().to_owned(), summary)
        };
        queues.map(summary).collect()
    }

    fn summary_of(&self, tally: Tally) -> Summary {
        let elapsed = self.source().moment().now.saturating_duration_since(self.begun);
        let Tally { finished, retried, snoozed, dead, lost } = tally;
        let reached = self.state.lock().drain.reached.unwrap_or(Reached::NothingReady);
        Summary { finished, retried, snoozed, dead, lost, elapsed, reached }
    }
}

#[cfg(test)]
mod tests;
