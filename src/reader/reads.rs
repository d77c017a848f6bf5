//! Several reads at once: makes the calls that the [plan](super::plan) decides on.
//!
//! The calls into a source of futures are tasks of its runtime. Those into a source of functions
//! are made by workers without a job, or by the reader while all workers are busy.

use super::ask::{Ask, Fetched, Outcome, Then};
use super::plan::{Answer, Plan};
use super::port::{ReadPort, ReadRuns, Source};
use super::{payloads::Payloads, weights::Weights};
use crate::base::guard::drop_guarded;
use crate::base::sync::{Arc, AtomicBool, Mutex, Ordering};
use crate::base::time::{self, Now};
use crate::base::{Index, clock::Clock, retry::Retry};
use crate::source::{Steps, wakeup::Bell};
use std::time::{Duration, Instant};

#[cfg(feature = "tokio")]
mod tasks;

#[cfg(feature = "tokio")]
use self::tasks::{Reach, TaskHost};

pub(crate) struct Reads {
    plan: Mutex<Plan<Fetched>>,
    /// Wakes the reader when an answer is there.
    bell: Arc<Bell>,
    clock: Clock,
    /// How long a call of a source of futures may take; `None` for one of functions, which nothing
    /// can end.
    timeout: Option<Duration>,
    closed: AtomicBool,
    #[cfg(feature = "tokio")]
    tasks: tasks::Tasks,
}

impl Reads {
    /// `calls`: the most reads under way. `timeout`: that of a source of futures.
    pub(crate) fn new(calls: usize, retry: Retry, timeout: Option<Duration>, bell: Arc<Bell>, clock: Clock) -> Self {
        Self {
            plan: Mutex::new(Plan::new(calls, retry)),
            bell,
            clock,
            timeout,
            closed: AtomicBool::new(false),
            #[cfg(feature = "tokio")]
            tasks: tasks::Tasks::default(),
        }
    }

    /// True if workers make the calls.
    pub(crate) fn are_functions(&self) -> bool {
        self.timeout.is_none()
    }

    /// Takes what the consumer asks for, to be [started](Self::start). Returns values to drop.
    pub(crate) fn ask(&self, ask: Ask) -> Vec<Fetched> {
        self.plan.lock().ask(ask)
    }

    /// Returns what goes on to the consumer, if that is there.
    pub(crate) fn deliver(&self, again_is_due: bool, now: Instant) -> Option<Fetched> {
        let mut plan = self.plan.lock();
        let mut fetched = plan.deliver(again_is_due, now)?;
        fetched.failures = plan.take_failures();
        Some(fetched)
    }

    pub(crate) fn deadline(&self, again_is_due: bool) -> Option<Instant> {
        self.plan.lock().deadline(again_is_due)
    }

    /// Returns since when the lowest missing read has been under way.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.plan.lock().since()
    }

    /// True if a call could be made.
    pub(crate) fn has_call(&self, now: Instant) -> bool {
        self.plan.lock().has_call(now)
    }

    /// True if nobody reads what the consumer waits for.
    pub(crate) fn is_awaited(&self, now: Instant) -> bool {
        self.plan.lock().is_awaited(now)
    }

    /// Starts all calls that may start. The reader itself makes one that nobody else makes and that
    /// the consumer waits for.
    pub(crate) fn start(self: &Arc<Self>, source: &Arc<dyn Source>, port: &Arc<dyn ReadPort>, now: &Now) {
        #[cfg(feature = "tokio")]
        if !self.are_functions() {
            let (host, source, port) =
                (Arc::clone(self) as Arc<dyn TaskHost>, Arc::downgrade(source), Arc::clone(port));
            return self.start_more(&Reach { host, source, port });
        }
        if port.reads_itself() {
            self.call_one(&**source, now.get());
        }
    }

    /// Makes a call on this thread. False if there is none to make.
    pub(crate) fn call_one(&self, source: &(impl ReadRuns + ?Sized), now: Instant) -> bool {
        let Some(ask) = self.next_call(now) else { return false };
        let fetched = source.read_beside(ask);
        self.answered(ask.first, fetched);
        true
    }

    fn next_call(&self, now: Instant) -> Option<Ask> {
        let until = self.timeout.and_then(|timeout| time::now().checked_add(timeout));
        if self.is_closed() { None } else { self.plan.lock().next_call(now, until) }
    }

    fn answered(&self, first: Index, fetched: Fetched) {
        let now = self.clock.when_asked();
        let dropped = self.plan.lock().answered(first, fetched, now.get(), now.chance());
        self.bell.work();
        drop_guarded(dropped);
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Gives up the calls that have taken too long at this time of the machine. Returns when the
    /// next one has.
    pub(crate) fn expire(&self, now: Instant) -> Option<Instant> {
        self.timeout?;
        let (mut overdue, mut next) = (Vec::new(), None::<Instant>);
        for (first, until) in self.plan.lock().limits() {
            if until <= now {
                overdue.push(first);
            } else {
                next = Some(next.map_or(until, |next| next.min(until)));
            }
        }
        overdue.into_iter().for_each(|first| self.give_up(first));
        next
    }

    #[cfg(feature = "tokio")]
    fn give_up(&self, first: Index) {
        if self.tasks.drop_one(first)
            && let Some(timeout) = self.timeout
        {
            self.answered(first, Fetched::failed(crate::source::unanswered(timeout), self.clock.now()));
        }
    }

    #[cfg(not(feature = "tokio"))]
    fn give_up(&self, _first: Index) {}

    /// Starts nothing more, and drops what is under way: the consumer has ended.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        #[cfg(feature = "tokio")]
        self.tasks.drop_all();
        // The jobs that were read are the user's values.
        let unused = self.plan.lock().clear();
        unused.into_iter().for_each(drop_guarded);
    }
}

#[cfg(feature = "tokio")]
impl TaskHost for Reads {
    fn tasks(&self) -> &tasks::Tasks {
        &self.tasks
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn answered(&self, first: Index, fetched: Fetched) {
        Reads::answered(self, first, fetched);
    }

    fn start_more(&self, reach: &Reach) {
        let Some(source) = reach.source.upgrade() else { return };
        while let Some(ask) = self.next_call(self.clock.now()) {
            let Some((runtime, future)) = Arc::clone(&source).begin_read(ask) else {
                unreachable!("the source had futures at the start");
            };
            self.tasks.start(ask.first, &runtime, future, reach);
        }
    }
}

impl Fetched {
    /// An answer that brings nothing.
    pub(super) fn nothing(then: Then, ended: Instant) -> Self {
        let (jobs, weights) = (<dyn Payloads>::new(Vec::<()>::new()), Weights::default());
        let (steps, keys, failures) = (Steps::default(), Vec::new(), Vec::new());
        Self { jobs, steps, weights, keys, then, quick: false, ended, failures }
    }

    #[cfg(feature = "tokio")]
    pub(super) fn failed(error: crate::base::BoxError, ended: Instant) -> Self {
        Self::nothing(Then::Failed(error.into()), ended)
    }
}

impl Answer for Fetched {
    fn jobs(&self) -> usize {
        self.jobs.len()
    }

    fn next(&self, first: Index) -> Index {
        Fetched::next(self, first)
    }

    fn outcome(&self) -> Outcome {
        (&self.then).into()
    }

    fn split_off_failure(&mut self) -> Self {
        Self::nothing(std::mem::replace(&mut self.then, Then::Unasked), self.ended)
    }

    fn begin_at(&mut self, at: Index) -> bool {
        self.steps.begin_at(at)
    }

    fn not_yet() -> Self {
        Self::nothing(Then::NotYet, time::now())
    }
}
