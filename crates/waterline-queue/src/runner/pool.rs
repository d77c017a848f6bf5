//! The threads of a runner. Each reports the end of its job and claims the next one in the same
//! atomic write, so a job costs one write beside its push. Short jobs cost less: see
//! [`claim_batch`].

use crate::handle::Queue;
use crate::notify::losses::Runs;
use crate::notify::waiting::wait_until;
use crate::runner::attempt::{Desk, Report};
use crate::runner::drain::{DrainLimits, Reached, Summary};
use crate::runner::gates::Gates;
use crate::runner::handler::{Handler, is_direct};
use crate::runner::hooks::Hooks;
use crate::runner::outcome::Unknown;
use crate::runner::pool::claim_batch::{BatchSizer, ClaimBatch};
use crate::runner::pool::tried::Tried;
use crate::runner::running::{FlightId, Running};
use crate::runner::source::Source;
use crate::runner::timeouts::{Timeouts, Times};
use crate::types::ended::AttemptEnd;
use crate::types::error::QueueError;
use parking_lot::{Condvar, Mutex};
use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use waterline::Error;
use waterline::seam::{ClockExt, ClockWaits as Waits, Crew, Host, Moment, Own, Roster};

mod attempting;
mod claim_batch;
mod cutting;
mod gating;
mod line;
mod resizing;
mod standing;
pub(super) mod stopping;
mod tried;
mod writing;

/// The settings of a runner, which are checked.
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
    crew: Crew<Self>,
    state: Mutex<State>,
    /// The line of the threads without a job. The one that has the lock is the first in it, and
    /// alone looks for a job.
    line: Mutex<()>,
    /// Threads that wait for the end of a pause after a failed write sleep here.
    stirred: Condvar,
    /// The first in the line sleeps here while it watches the other threads.
    watching: Condvar,
    /// The thread that notices a standstill sleeps here.
    standing: Condvar,
    stopping: Arc<AtomicBool>,
    timeouts: Option<Arc<Timeouts>>,
    begun: Instant,
}

#[derive(Default)]
struct State {
    roster: Roster,
    /// The most jobs in flight.
    max_processing: usize,
    threads: usize,
    /// The threads beside one for each job: one, if others than threads of the runner end jobs. A
    /// handler that waits for such an end does not hold it up then.
    spare: usize,
    /// The threads that wait for their turn to claim a job.
    in_line: usize,
    /// The jobs in flight.
    flights: HashMap<FlightId, Flight>,
    /// The slots of claims that are under way, and of the jobs in the claim batch.
    reserved: usize,
    /// The writes that are under way, or about to begin.
    writes: usize,
    /// True once somebody waits for the end of one of them.
    is_full: bool,
    claim_batch: ClaimBatch,
    batch_sizer: BatchSizer,
    tried: Tried,
    /// The notes of the stop that are being written.
    noting: usize,
    /// The ends that others have reported, or threads have left since enough writes were under way,
    /// and that no thread has taken yet.
    inbox: Vec<Report>,
    /// The number of ends that are written, and that hooks hear of now. A hook may push a job.
    telling: usize,
    /// True once no more jobs are claimed.
    ending: bool,
    /// True once the jobs that still run are given up.
    abandoned: bool,
    over: bool,
    claims: u64,
    /// The number of claims at the last look that found the queue paused.
    paused_at: Option<u64>,
    /// The time of the last end.
    last_end: Option<Instant>,
    /// True once there is a thread that notices a standstill.
    is_watched: bool,
    /// Jobs that were lost and may not have begun yet. Once so many jobs have begun, they have.
    lost_early: Vec<(FlightId, u64)>,
    /// The ends of the jobs of each queue.
    tallies: Vec<Tally>,
    reached: Option<Reached>,
    panicked: bool,
}

impl AsRef<Roster> for State {
    fn as_ref(&self) -> &Roster {
        &self.roster
    }
}

struct Flight {
    job: Running,
    /// True once somebody reports its end.
    ended: bool,
    /// True once it is noted that the runner stops.
    is_noted: bool,
    /// The time at which its job was removed, or taken back.
    lost: Option<Instant>,
    /// Ends its task.
    #[cfg(feature = "tokio")]
    task: Option<tokio::task::AbortHandle>,
}

#[derive(Clone, Copy, Default)]
struct Tally {
    finished: u64,
    retried: u64,
    snoozed: u64,
    dead: u64,
    lost: u64,
}

impl Host for Pool {
    fn crew(&self) -> &Crew<Self> {
        &self.crew
    }

    fn with_roster<R>(&self, change: impl FnOnce(&mut Roster, usize) -> R) -> R {
        let mut state = self.state.lock();
        let tokens = state.flights.len();
        change(&mut state.roster, tokens)
    }

    fn thread_panicked(&self) {
        {
            let mut state = self.state.lock();
            (state.panicked, state.ending) = (true, true);
            (state.reserved, state.writes) = (0, 0);
        }
        // Nobody reports its job, or what it had to report, so others must not wait for that.
        self.abandon(false);
    }

    fn clear_up(&self) {}

    fn somebody_left(&self, _over: bool) {}

    fn everybody_left(&self) {}
}

impl Desk for Pool {
    fn enter(&self) -> Own {
        self.crew.enter()
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
        state.flights.get_mut(&flight).is_some_and(|flight| !std::mem::replace(&mut flight.ended, true))
    }

    fn hand_in(&self, report: Report) {
        self.state.lock().inbox.push(report);
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
            crew: Crew::new(me.clone()),
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
            state.roster.keep_name(name);
            (state.threads, state.max_processing) = (1, pool.settings.max_processing);
            let mut handlers = pool.settings.handlers.values();
            state.spare = usize::from(handlers.any(|handler| !is_direct(Some(handler))));
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
        self.crew.spawn("wl-queue", move || me.work())
    }

    fn spawn_timeouts(self: &Arc<Self>) -> Result<(), Error> {
        if self.timeouts.is_none() {
            return Ok(());
        }
        let me = self.clone();
        self.crew.spawn("wl-timeouts", move || {
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
        self.crew.spawn("wl-gauges", move || gauges.watch(&me.source().queues(), |queue| me.in_flight_of(queue)))
    }

    pub(super) fn source(&self) -> &Source {
        &self.settings.source
    }

    pub(super) fn in_flight(&self) -> usize {
        self.state.lock().flights.len()
    }

    /// Returns the number of jobs of this queue that run.
    #[cfg(feature = "metrics")]
    pub(super) fn in_flight_of(&self, queue: &Queue) -> usize {
        let number = queue.number;
        self.state.lock().flights.keys().filter(|flight| flight.0 == number).count()
    }

    fn rest(&self, pause: Duration) {
        let until = waterline::seam::now().checked_add(pause);
        let mut state = self.state.lock();
        wait_until(&self.stirred, &mut state, until);
    }

    /// Returns how many jobs a thread may claim, now that it reports so many.
    fn room(&self, state: &mut State, reports: usize) -> usize {
        if state.ending {
            return 0;
        }
        let mut left = usize::MAX;
        if let Some(limits) = self.settings.limits {
            let elapsed = self.source().moment().now.saturating_duration_since(self.begun);
            let reached = if limits.jobs.is_some_and(|jobs| state.claims >= jobs) {
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
            let claims = state.claims + state.reserved as u64;
            left = limits.jobs.map_or(left, |jobs| usize::try_from(jobs.saturating_sub(claims)).unwrap_or(left));
        }
        left.min(state.max_processing.saturating_sub(state.flights.len().saturating_sub(reports) + state.reserved))
    }

    /// Returns the time at which a drain claims no more, if that is to come.
    fn drain_deadline(&self) -> Option<Instant> {
        if self.state.lock().ending {
            return None;
        }
        self.settings.limits.and_then(|limits| limits.time).and_then(|time| self.begun.checked_add(time))
    }

    /// Ends a drain that has found no job while none is in flight, which could push one. True if it
    /// has ended.
    fn drained(&self, news: u64, otherwise: Reached) -> bool {
        if self.settings.limits.is_none() {
            return false;
        }
        let tried = self.state.lock().tried.since(news);
        let (paused, has_more) = (self.source().are_paused(), self.source().has_more(&tried));
        let otherwise = if self.source().are_limited() { Reached::Limited } else { otherwise };
        let mut state = self.state.lock();
        let is_idle = state.flights.is_empty() && state.reserved == 0 && state.inbox.is_empty() && state.telling == 0;
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
        if !std::mem::replace(&mut state.ending, true) {
            self.source().note_stopping();
            // The thread that found it may have been woken for a job, which others take.
            self.source().ring();
        }
        state.reached = state.reached.or(reached);
        self.end_if_over(state);
    }

    /// True if no job is left that has to be reported. The threads then end.
    fn end_if_over(&self, state: &mut State) -> bool {
        let is_over = state.ending && state.flights.is_empty() && state.reserved == 0 && state.inbox.is_empty();
        if is_over && !state.over {
            state.over = true;
            state.roster.end(Box::new(()));
            self.source().ring();
            self.standing.notify_all();
            self.timeouts.iter().for_each(|timeouts| timeouts.close());
            #[cfg(feature = "metrics")]
            self.settings.gauges.iter().for_each(|gauges| gauges.close());
        }
        state.over
    }

    pub(super) fn summary(&self) -> Summary {
        let mut all = Tally::default();
        self.state.lock().tallies.iter().for_each(|tally| all.add(tally));
        self.summary_of(all)
    }

    /// Returns the numbers of each queue, beside its name.
    pub(super) fn summaries(&self) -> Vec<(String, Summary)> {
        let tallies = self.state.lock().tallies.clone();
        let tallies = tallies.into_iter().chain(std::iter::repeat(Tally::default()));
        let queues = self.source().queues().into_iter().zip(tallies);
        let summary = |(queue, tally): (&Queue, Tally)| {
            let mut summary = self.summary_of(tally);
            let is_paused = queue.glance().is_paused;
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
        let reached = self.state.lock().reached.unwrap_or(Reached::NothingReady);
        Summary { finished, retried, snoozed, dead, lost, elapsed, reached }
    }
}

impl State {
    /// Returns the numbers of the queue at this place of the source.
    fn tally(&mut self, place: usize) -> &mut Tally {
        if self.tallies.len() <= place {
            self.tallies.resize(place + 1, Tally::default());
        }
        &mut self.tallies[place]
    }
}

impl Tally {
    fn add(&mut self, other: &Self) {
        let Self { finished, retried, snoozed, dead, lost } = *other;
        self.finished += finished;
        self.retried += retried;
        self.snoozed += snoozed;
        self.dead += dead;
        self.lost += lost;
    }

    fn count(&mut self, ended: &AttemptEnd) {
        let count = match ended {
            AttemptEnd::Finished => &mut self.finished,
            AttemptEnd::Retried { .. } => &mut self.retried,
            AttemptEnd::Snoozed | AttemptEnd::PutBack { .. } => &mut self.snoozed,
            AttemptEnd::Dead { .. } => &mut self.dead,
            AttemptEnd::Lost => &mut self.lost,
        };
        *count += 1;
    }
}

#[cfg(test)]
mod tests;
