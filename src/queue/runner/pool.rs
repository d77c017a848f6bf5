//! The threads of a runner. Each reports the end of its job and claims the next one in the same
//! atomic write, so a job costs one write beside its push.

use super::attempts::Attempt;
use super::drain::{Limits, Reached, Summary};
use super::handler::{Finisher, Handler, Hooks};
use super::reports::Report;
use super::timeouts::Timeouts;
use super::{Ended, QueueEvent, Running, Unknown};
use crate::base::config::{ConfigError, DEFAULT_EFFECTS};
use crate::base::error::{Error, describe};
use crate::base::guard::guarded;
use crate::base::index::BoxError;
use crate::base::sync::{Arc, AtomicBool, Condvar, Mutex, MutexGuard, Ordering, wait_until};
use crate::commit::changes::Changes;
use crate::crew::{Crew, Host, Own, Roster};
use crate::effects::Effects;
use crate::queue::clock::Waits;
use crate::queue::intent::call_with;
use crate::queue::job::{JobState, time};
use crate::queue::rules::End;
use crate::queue::state::Takes;
use crate::queue::step::{AT_ONCE, Claim, Claimed};
use crate::queue::{Outcome, Queue, QueueError, SOME};
use std::any::Any;
use std::collections::HashMap;
use std::sync::Weak;
use std::time::{Duration, Instant};

/// The pause after a write that failed: the first one, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// The time between two claims that needs no further thread: most of it is the write.
const BRISK: Duration = Duration::from_micros(20);

/// The time for which the first thread in the line watches the others, and the claims in that time
/// by which they cope.
const LOOK: Duration = Duration::from_micros(200);
const ENOUGH: u64 = 8;

/// The settings of a runner, which are checked.
pub(super) struct Settings {
    pub(super) queue: Queue,
    pub(super) handlers: HashMap<String, Handler>,
    pub(super) hooks: Hooks,
    pub(super) unknown: Unknown,
    pub(super) max_processing: usize,
    pub(super) attempt_timeout: Option<Duration>,
    pub(super) limits: Option<Limits>,
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
    stopping: Arc<AtomicBool>,
    timeouts: Option<Arc<Timeouts>>,
    begun: Instant,
}

#[derive(Default)]
struct State {
    roster: Roster,
    threads: usize,
    /// The threads that wait for their turn to claim a job.
    in_line: usize,
    /// The jobs in flight, by the tokens of their leases.
    flights: HashMap<u64, Flight>,
    /// The slots of claims that are under way.
    reserved: usize,
    /// The ends that no thread has taken yet.
    inbox: Vec<Report>,
    /// True once no more jobs are claimed.
    ending: bool,
    /// True once the jobs that still run are given up.
    abandoned: bool,
    over: bool,
    claims: u64,
    tally: Tally,
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

/// The next job of a thread, and its payload.
type Next = (Running, Vec<u8>);

/// The result of a look by the first thread in the line.
enum Turn {
    /// It has claimed a job.
    Job(Next),
    /// It has a slot, and claims a job that is ready.
    Claim,
    /// No job will come.
    End,
}

/// The answer to one write: the ends of attempts, and the next job.
type Written = (Vec<Option<Option<JobState>>>, Claim);

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
            (state.panicked, state.ending, state.reserved) = (true, true, 0);
        }
        // Nobody reports its job, or what it had to report, so others must not wait for that.
        self.abandon();
    }

    fn clear_up(&self) {}

    fn somebody_left(&self, _over: bool) {}

    fn everybody_left(&self) {}
}

impl Pool {
    pub(super) fn start(settings: Settings, name: Box<dyn Any + Send>) -> Result<Arc<Self>, QueueError> {
        let begun = settings.queue.inner().moment().now;
        let timeouts = settings.attempt_timeout.map(|after| Arc::new(Timeouts::new(after)));
        if let Some(timeouts) = &timeouts {
            let waits: Weak<dyn Waits> = Arc::downgrade(&(timeouts.clone() as Arc<dyn Waits>));
            settings.queue.inner().options.clock.tell(waits);
        }
        let pool = Arc::new_cyclic(|me| Self {
            settings,
            crew: Crew::new(me.clone()),
            state: Mutex::default(),
            line: Mutex::default(),
            stirred: Condvar::new(),
            stopping: Arc::default(),
            timeouts,
            begun,
        });
        {
            let mut state = pool.state.lock();
            state.roster.keep_name(name);
            state.threads = 1;
        }
        let started = pool.spawn().and_then(|()| pool.spawn_timeouts());
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
                timeouts.watch(&me);
            }
        })
    }

    pub(super) fn queue(&self) -> &Queue {
        &self.settings.queue
    }

    pub(super) fn enter(&self) -> Own {
        self.crew.enter()
    }

    pub(super) fn hooks(&self) -> &Hooks {
        &self.settings.hooks
    }

    pub(super) fn in_flight(&self) -> usize {
        self.state.lock().flights.len()
    }

    /// The loop of a thread.
    fn work(self: &Arc<Self>) {
        let mut reports = Vec::new();
        // The time at which the job before this one began, while it goes from job to job.
        let (mut before, mut begun) = (None, None);
        loop {
            let next = if begun.is_some() && self.goes_on(before) { self.go_on(&mut reports) } else { None };
            if next.is_none() {
                begun = None;
            }
            let Some((job, payload)) = next.or_else(|| self.stand_in_line(&mut reports)) else { break };
            before = begun.replace(crate::base::time::now());
            reports.extend(self.run(job, &payload));
        }
        self.state.lock().threads -= 1;
    }

    /// True if a thread that has ended a job claims the next one at once. If several threads take
    /// jobs faster than they can be written, one thread less is none the slower.
    fn goes_on(&self, before: Option<Instant>) -> bool {
        let Some(before) = before else { return true };
        let active = {
            let state = self.state.lock();
            state.threads - state.in_line
        };
        let cycle = crate::base::time::now().saturating_duration_since(before);
        active <= 1 || cycle >= BRISK * u32::try_from(active).unwrap_or(u32::MAX)
    }

    /// Starts one more thread if none is left in the line, so that one always looks for the next
    /// job.
    fn grow(self: &Arc<Self>) {
        {
            let mut state = self.state.lock();
            if state.ending || state.in_line > 0 || state.threads >= self.settings.max_processing {
                return;
            }
            state.threads += 1;
        }
        if let Err(error) = self.spawn() {
            self.state.lock().threads -= 1;
            tracing::warn!(target: "waterline", queue = self.queue().name(), %error, "the runner goes on with fewer threads");
        }
    }

    /// Takes the ends that other threads have left, and says if a job may be claimed. Then a slot is
    /// taken for it.
    fn prepare(&self, reports: &mut Vec<Report>) -> bool {
        let mut state = self.state.lock();
        reports.append(&mut state.inbox);
        let wants = self.may_claim(&mut state, reports.len());
        state.reserved += usize::from(wants);
        wants
    }

    /// Writes the end of a job, and claims the next one in the same write. `None`: there is none,
    /// or the write failed. Then the list still has the ends that could not be written.
    fn go_on(self: &Arc<Self>, reports: &mut Vec<Report>) -> Option<Next> {
        let wants = self.prepare(reports);
        if wants || !reports.is_empty() {
            if let Ok(Claim::Job(claimed)) = self.write(reports, wants) {
                return Some(self.take_up(*claimed));
            }
            self.let_the_line_look();
        }
        None
    }

    /// Gets in the line for the next job, and writes the ends in the list. `None` if this thread
    /// must end.
    fn stand_in_line(self: &Arc<Self>, reports: &mut Vec<Report>) -> Option<Next> {
        loop {
            self.state.lock().in_line += 1;
            let first = self.first_in_line(reports);
            let turn = self.look_for_job(reports);
            self.state.lock().in_line -= 1;
            drop(first);
            match turn {
                Turn::End => return None,
                Turn::Job(next) => {
                    self.grow();
                    return Some(next);
                }
                Turn::Claim => {
                    // A claim may take as long as a flush of the disk, so the next one in the line
                    // looks meanwhile.
                    self.grow();
                    match self.write(reports, true) {
                        Ok(Claim::Job(claimed)) => return Some(self.take_up(*claimed)),
                        Ok(Claim::Again | Claim::Nothing) => {}
                        Err(error) => {
                            self.warn(&error, PAUSES.0);
                            self.rest(PAUSES.0);
                        }
                    }
                    self.let_the_line_look();
                }
            }
        }
    }

    /// Waits until this thread is the first in the line. It does not wait with ends to be written.
    fn first_in_line(self: &Arc<Self>, reports: &mut Vec<Report>) -> MutexGuard<'_, ()> {
        while !reports.is_empty() {
            if let Some(first) = self.line.try_lock() {
                return first;
            }
            if let Err(error) = self.write(reports, false) {
                // The first in the line tries it again.
                self.warn(&error, PAUSES.0);
                self.state.lock().inbox.append(reports);
            }
            self.let_the_line_look();
        }
        self.line.lock()
    }

    /// Looks for the next job, as the first in the line.
    fn look_for_job(self: &Arc<Self>, reports: &mut Vec<Report>) -> Turn {
        let mut pause = PAUSES.0;
        loop {
            let news = self.queue().inner().news();
            if reports.is_empty() && self.others_cope() {
                continue;
            }
            let wants = self.prepare(reports);
            if wants && self.ready() > 0 {
                return Turn::Claim;
            }
            let written = if wants || !reports.is_empty() {
                self.write(reports, wants)
            } else if self.end_if_over(&mut self.state.lock()) {
                return Turn::End;
            } else if self.queue().inner().sleep(news, self.drain_deadline(), Takes::Nothing) {
                // Its slots are taken, so no claim of this runner does it.
                self.queue().tidy().map(|()| Claim::Nothing)
            } else {
                continue;
            };
            match written {
                Ok(Claim::Job(claimed)) => return Turn::Job(self.take_up(*claimed)),
                Ok(Claim::Nothing) if wants => {
                    if !self.drained(news) {
                        self.queue().inner().sleep(news, self.drain_deadline(), Takes::Each);
                    }
                }
                Ok(Claim::Again | Claim::Nothing) => {}
                Err(error) => {
                    self.warn(&error, pause);
                    self.rest(pause);
                    pause = (pause * 2).min(PAUSES.1);
                }
            }
        }
    }

    /// Returns the number of entries that a claim may find now.
    fn ready(&self) -> u64 {
        let wall = self.queue().inner().moment().wall;
        self.queue().inner().look(|live| if live.head.is_paused(wall) { 0 } else { live.ready() })
    }

    /// Watches the other threads for a moment, if there are some and jobs are ready. True if they
    /// take jobs so fast that one thread more would not help: jobs of a few microseconds are
    /// limited by their writes.
    fn others_cope(&self) -> bool {
        let before = {
            let state = self.state.lock();
            if state.threads == state.in_line || state.ending || !state.inbox.is_empty() {
                return false;
            }
            state.claims
        };
        if self.ready() == 0 {
            return false;
        }
        self.rest(LOOK);
        let state = self.state.lock();
        !state.ending && state.inbox.is_empty() && state.claims - before >= ENOUGH
    }

    /// Makes the first thread in the line look again: a slot is free, or the last job of a drain
    /// has ended.
    fn let_the_line_look(&self) {
        self.queue().inner().ring();
    }

    fn warn(&self, error: &QueueError, pause: Duration) {
        let (queue, error) = (self.queue().name(), error.report());
        tracing::warn!(target: "waterline", queue, error, "the queue cannot be written; it is tried again in {pause:.1?}");
    }

    fn rest(&self, pause: Duration) {
        let until = crate::base::time::now().checked_add(pause);
        let mut state = self.state.lock();
        wait_until(&self.stirred, &mut state, until);
    }

    /// True if a thread may claim a job, now that it reports so many.
    fn may_claim(&self, state: &mut State, reports: usize) -> bool {
        if state.ending {
            return false;
        }
        if let Some(limits) = self.settings.limits {
            let elapsed = self.queue().inner().moment().now.saturating_duration_since(self.begun);
            let reached = if limits.jobs.is_some_and(|jobs| state.claims + state.reserved as u64 >= jobs) {
                // A claim under way may find nothing, and then another one is due.
                if state.claims >= limits.jobs.unwrap_or(0) { Some(Reached::Jobs) } else { None }
            } else if limits.time.is_some_and(|time| elapsed >= time) {
                Some(Reached::Time)
            } else {
                None
            };
            if reached.is_some() {
                self.end(state, reached);
                return false;
            }
            if limits.jobs.is_some_and(|jobs| state.claims + state.reserved as u64 >= jobs) {
                return false;
            }
        }
        state.flights.len().saturating_sub(reports) + state.reserved < self.settings.max_processing
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
    fn drained(&self, news: u64) -> bool {
        if self.settings.limits.is_none() {
            return false;
        }
        let at = self.queue().inner().moment();
        let paused = self.queue().inner().look(|live| live.head.is_paused(at.wall));
        let mut state = self.state.lock();
        let is_idle = state.flights.is_empty() && state.reserved == 0 && state.inbox.is_empty();
        // The last job in flight may have pushed one after the claim looked.
        let is_idle = is_idle && self.queue().inner().news() == news;
        if is_idle {
            self.end(&mut state, Some(if paused { Reached::Paused } else { Reached::NothingReady }));
        }
        is_idle
    }

    /// Claims no more jobs from now on.
    fn end(&self, state: &mut State, reached: Option<Reached>) {
        if !std::mem::replace(&mut state.ending, true) {
            // The thread that found it may have been woken for a job, which others take.
            self.queue().inner().ring();
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
            self.queue().inner().ring();
            self.timeouts.iter().for_each(|timeouts| timeouts.close());
        }
        state.over
    }

    /// Writes the ends of attempts, and claims the next job in the same batch. Reports that are
    /// written are taken from the list.
    fn write(self: &Arc<Self>, reports: &mut Vec<Report>, wants: bool) -> Result<Claim, QueueError> {
        let answer = self.try_write(reports, wants);
        if !matches!(answer, Ok(Claim::Job(_))) {
            let mut state = self.state.lock();
            state.reserved = state.reserved.saturating_sub(usize::from(wants));
            self.end_if_over(&mut state);
        }
        answer
    }

    /// Makes a job that was claimed one in flight. The handler gets the same [`Running`], so it
    /// sees when it is asked to end.
    fn take_up(&self, claimed: Claimed) -> (Running, Vec<u8>) {
        let (job, payload) = Running::new(self.queue(), claimed, &self.stopping);
        let flight = Flight {
            job: job.clone(),
            ended: false,
            #[cfg(feature = "tokio")]
            task: None,
        };
        {
            let mut state = self.state.lock();
            state.reserved = state.reserved.saturating_sub(1);
            state.claims += 1;
            if state.abandoned {
                self.give_up(&job);
            } else {
                state.flights.insert(job.token(), flight);
            }
        }
        self.queue().inner().slot_is_free();
        self.queue().inner().pass_on();
        (job, payload)
    }

    fn try_write(self: &Arc<Self>, reports: &mut Vec<Report>, wants: bool) -> Result<Claim, QueueError> {
        self.queue().take_back_silent()?;
        // Writes of the user's are in the batch only if the job is still this worker's, so each such
        // report is a call of its own.
        while let Some(at) = reports.iter().position(|report| !report.effects.is_empty()) {
            let last = reports.len() == 1;
            let (written, claim) = match self.call(&reports[at..=at], last && wants) {
                Ok(written) => written,
                Err(QueueError::Halt { .. }) => (vec![None], Claim::Again),
                Err(QueueError::Store(error @ Error::Counter { .. })) => {
                    // No retry mends that.
                    let report = &mut reports[at];
                    (report.end, report.effects) = (End::Buried { reason: describe(&error) }, Changes::default());
                    continue;
                }
                Err(error) => return Err(error),
            };
            let report = reports.remove(at);
            self.written(vec![report], written);
            if last && wants {
                return Ok(claim);
            }
        }
        let (written, claim) = self.call(reports, wants)?;
        self.written(std::mem::take(reports), written);
        Ok(claim)
    }

    /// Makes one batch of these ends and of a claim.
    fn call(&self, reports: &[Report], wants: bool) -> Result<Written, QueueError> {
        if reports.is_empty() && !wants {
            return Ok((Vec::new(), Claim::Nothing));
        }
        let end =
            |report: &Report| (report.job.id().to_owned(), report.job.token(), report.end.clone(), report.data.clone());
        let ends: Vec<_> = reports.iter().map(end).collect();
        let effects = reports.first().map(|report| report.effects.clone()).unwrap_or_default();
        let has_effects = !effects.is_empty();
        let queue = self.queue();
        call_with(queue.store(), queue.inner(), "run a job", effects, move |step| {
            step.keep_house(SOME)?;
            let mut written = Vec::with_capacity(ends.len());
            for (id, token, end, data) in &ends {
                written.push(match step.end(id, *token, end.clone(), data.as_deref()) {
                    Ok(state) => Some(state),
                    Err(error) if !has_effects && is_halt(&error) => None,
                    Err(error) => return Err(error),
                });
            }
            let claim = if wants { step.claim(None)? } else { Claim::Nothing };
            if wants && matches!(claim, Claim::Nothing) {
                // No job waits for this, so it may take longer.
                step.keep_house(AT_ONCE)?;
            }
            Ok((written, claim))
        })
    }

    /// Notes that these ends are written, and tells everybody.
    fn written(&self, reports: Vec<Report>, written: Vec<Option<Option<JobState>>>) {
        for (report, written) in reports.into_iter().zip(written) {
            let ended = report.ended(written);
            let now = self.queue().inner().moment().now;
            let elapsed = now.saturating_duration_since(report.job.begun());
            {
                let mut state = self.state.lock();
                state.tally.count(&ended);
                state.flights.remove(&report.job.token());
            }
            self.timeouts.iter().for_each(|timeouts| timeouts.forget(report.job.token()));
            let job = &report.job;
            log(job, &ended);
            let (queue, id, kind, attempt) = (self.queue().name(), job.id(), job.kind(), job.attempt());
            let ended_event = QueueEvent::AttemptEnded { queue, id, kind, attempt, elapsed, ended: &ended };
            self.hooks().tell(job, &ended_event);
            self.hooks().teardown(job, &ended);
        }
    }

    /// Runs a job. `None`: somebody else reports it.
    fn run(self: &Arc<Self>, job: Running, payload: &[u8]) -> Option<Report> {
        let (queue, id, kind, attempt) = (self.queue().name(), job.id(), job.kind(), job.attempt());
        self.hooks().tell(&job, &QueueEvent::AttemptBegun { queue, id, kind, attempt });
        if let Some(timeouts) = &self.timeouts {
            timeouts.begin(job.token(), self.queue().inner().moment().now);
        }
        let before = self.hooks().before(&job);
        let handler = self.settings.handlers.get(job.kind());
        let attempt = Attempt::new(self, job.clone());
        if !is_direct(handler) && self.is_ended(job.token()) {
            // Its time was over before it began.
            return None;
        }
        if let Err(error) = before {
            return self.report_here(attempt, handler, error);
        }
        match handler {
            None => Some(Report::of(&attempt, Ok(self.unknown(&job)))),
            Some(Handler::Direct(handler)) => Some(Report::of(&attempt, guarded(|| handler(&job, payload)))),
            Some(Handler::Transactional(handler)) => {
                let mut effects = Effects::new(Changes::default(), job.store_address(), DEFAULT_EFFECTS);
                let outcome = guarded(|| handler(&job, payload, &mut effects));
                let (effects, refused) = effects.finish();
                let outcome = outcome.and_then(|outcome| Ok(refused.map(|()| outcome)?));
                Some(Report::with_effects(&attempt, outcome, effects))
            }
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
                        self.keep_task(job.token(), super::asynchronous::spawn(runtime, attempt, future));
                        None
                    }
                    Err(error) => self.report_here(attempt, Some(async_handler), error),
                }
            }
        }
    }

    /// Returns the report of an attempt whose handler has not begun. If others could report it too,
    /// since its time is over, only one does.
    fn report_here(&self, attempt: Attempt, handler: Option<&Handler>, error: BoxError) -> Option<Report> {
        let is_mine = is_direct(handler) || self.claim_end(attempt.job().token());
        is_mine.then(|| Report::of(&attempt, Err(error)))
    }

    fn is_ended(&self, token: u64) -> bool {
        self.state.lock().flights.get(&token).is_none_or(|flight| flight.ended)
    }

    /// Keeps the task of a job, to drop it when its time is over. That may be now.
    #[cfg(feature = "tokio")]
    fn keep_task(&self, token: u64, task: tokio::task::AbortHandle) {
        if let Some(flight) = self.state.lock().flights.get_mut(&token).filter(|flight| !flight.ended) {
            flight.task = Some(task);
            return;
        }
        task.abort();
    }

    fn unknown(&self, job: &Running) -> Outcome {
        match self.settings.unknown {
            Unknown::Dead => Outcome::Dead(format!("no handler has the kind {:?}", job.kind())),
            Unknown::Snooze(delay) => {
                let wall = self.queue().inner().moment().wall;
                Outcome::Snooze(crate::queue::job::after(wall, delay).map_or_else(|| time(u64::MAX), time))
            }
        }
    }

    // The ends of attempts that other threads report.

    /// True if the caller is the one who reports the end of this attempt.
    pub(super) fn claim_end(&self, token: u64) -> bool {
        let mut state = self.state.lock();
        state.flights.get_mut(&token).is_some_and(|flight| !std::mem::replace(&mut flight.ended, true))
    }

    /// Leaves the end of an attempt to the threads of the pool.
    pub(super) fn hand_in(&self, report: Report) {
        self.state.lock().inbox.push(report);
        self.queue().inner().ring();
    }

    /// Ends an attempt whose time is over: see
    /// [`RunnerBuilder::attempt_timeout`](super::RunnerBuilder::attempt_timeout).
    pub(super) fn overdue(self: &Arc<Self>, token: u64, after: Duration) {
        let Some(job) = self.state.lock().flights.get(&token).map(|flight| flight.job.clone()) else { return };
        job.ask_to_end();
        if is_direct(self.settings.handlers.get(job.kind())) {
            return;
        }
        // The flight is gone as soon as the report is written, and its task with it.
        #[cfg(feature = "tokio")]
        let task = {
            let mut state = self.state.lock();
            let Some(flight) = state.flights.get_mut(&token).filter(|flight| !flight.ended) else { return };
            flight.ended = true;
            flight.task.take()
        };
        #[cfg(not(feature = "tokio"))]
        if !self.claim_end(token) {
            return;
        }
        let error: BoxError = format!("the attempt took longer than {after:?}").into();
        self.hand_in(Report::of(&Attempt::new(self, job), Err(error)));
        #[cfg(feature = "tokio")]
        task.iter().for_each(tokio::task::AbortHandle::abort);
    }

    // The end.

    pub(super) fn stop(&self, limit: Option<Duration>) -> Result<(), QueueError> {
        self.stopping.store(true, Ordering::Relaxed);
        self.end(&mut self.state.lock(), None);
        self.stirred.notify_all();
        self.queue().inner().ring();
        self.wait(limit)
    }

    pub(super) fn wait_drained(&self) -> Result<(), QueueError> {
        self.wait(None)
    }

    fn wait(&self, limit: Option<Duration>) -> Result<(), QueueError> {
        if self.crew.is_own_thread() {
            self.crew.leave_as_owner();
            return Err(ConfigError::OwnThread.into());
        }
        let deadline = limit.and_then(|limit| crate::base::time::now().checked_add(limit));
        let gone = {
            let mut state = self.state.lock();
            self.crew.wait_gone(&mut state, deadline)
        };
        let running = if gone { Vec::new() } else { self.abandon() };
        let joined = gone && self.crew.join(deadline);
        self.crew.leave_as_owner();
        if !running.is_empty() || !joined {
            return Err(QueueError::StopTimeout { running });
        }
        if self.state.lock().panicked {
            return Err(Error::Thread.into());
        }
        Ok(())
    }

    /// Gives up the jobs that still run, and returns their ids.
    fn abandon(&self) -> Vec<String> {
        let mut flights: Vec<_> = {
            let mut state = self.state.lock();
            state.abandoned = true;
            std::mem::take(&mut state.flights).into_values().collect()
        };
        flights.sort_by_key(|flight| flight.job.token());
        flights.iter().for_each(|flight| self.give_up(&flight.job));
        #[cfg(feature = "tokio")]
        flights.iter_mut().filter_map(|flight| flight.task.take()).for_each(|task| task.abort());
        self.end_if_over(&mut self.state.lock());
        flights.iter().map(|flight| flight.job.id().to_owned()).collect()
    }

    /// Lets the lease of a job end by silence.
    fn give_up(&self, job: &Running) {
        let state = self.queue().inner();
        state.renew(job.token(), state.moment().now.checked_add(state.options.lease));
    }

    pub(super) fn summary(&self) -> Summary {
        let elapsed = self.queue().inner().moment().now.saturating_duration_since(self.begun);
        let state = self.state.lock();
        let Tally { finished, retried, snoozed, dead, lost } = state.tally;
        let reached = state.reached.unwrap_or(Reached::NothingReady);
        Summary { finished, retried, snoozed, dead, lost, elapsed, reached }
    }
}

impl Tally {
    fn count(&mut self, ended: &Ended) {
        let count = match ended {
            Ended::Finished => &mut self.finished,
            Ended::Retried { .. } => &mut self.retried,
            Ended::Snoozed => &mut self.snoozed,
            Ended::Dead { .. } => &mut self.dead,
            Ended::Lost => &mut self.lost,
        };
        *count += 1;
    }
}

/// True if a thread of the runner runs the job to its end, and reports it.
fn is_direct(handler: Option<&Handler>) -> bool {
    matches!(handler, None | Some(Handler::Direct(_) | Handler::Transactional(_)))
}

fn is_halt(error: &BoxError) -> bool {
    matches!(error.downcast_ref(), Some(QueueError::Halt { .. }))
}

fn log(job: &Running, ended: &Ended) {
    let (queue, id, kind, attempt) = (job.queue_name(), job.id(), job.kind(), job.attempt());
    match ended {
        Ended::Finished | Ended::Snoozed => {}
        Ended::Retried { error } => {
            tracing::debug!(target: "waterline", queue, id, kind, attempt, error, "a job failed, and is tried again");
        }
        Ended::Dead { error } => {
            tracing::warn!(target: "waterline", queue, id, kind, attempt, error, "a job is dead: mend its cause and requeue it, or remove it");
        }
        Ended::Lost => {
            tracing::warn!(target: "waterline", queue, id, kind, attempt, "a job was removed or taken over while it ran; its end was not written");
        }
    }
}
