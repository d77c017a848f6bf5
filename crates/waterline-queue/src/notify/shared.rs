//! The part of an open queue above its engine: waiters, averages, log lines, and the runner.

use crate::notify::averages::Averages;
use crate::notify::bell::Bell;
use crate::notify::kinds::Kinds;
use crate::notify::lines;
use crate::notify::lines::Lines;
use crate::notify::losses::Losses;
use crate::notify::presence::{AtWork, Presence};
use crate::notify::subscribers::{Read, Subscribers, Watched};
#[cfg(feature = "tokio")]
use crate::notify::waiting_tasks::WaitingTasks;
use crate::types::config::ConfigError;
use crate::types::durations::Durations;
use crate::types::ended::AttemptEnd;
use crate::types::error::QueueError;
use crate::types::events::{Event, Fate, Line};
use crate::types::options::QueueOptions;
use crate::types::progress::JobProgress;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use waterline::seam::{Called, ClockExt, ClockWaits as Waits, Moment, describe};

/// The queues that are open in a database.
#[derive(Default)]
pub(crate) struct OpenQueues(Mutex<Vec<Weak<Shared>>>);

/// The state that all handles of an open queue share.
pub struct Shared {
    /// The name of the queue.
    pub name: String,
    /// Its options.
    pub options: QueueOptions,
    /// Whether those who watch it are told by [`heard`](Self::heard) alone.
    pub(crate) hears: bool,
    /// Where its threads sleep.
    pub(crate) bell: Arc<Bell>,
    /// The bells of the groups that it is in.
    bells: Mutex<Vec<Weak<Bell>>>,
    pub(crate) subscribers: Subscribers,
    pub(crate) averages: Averages,
    pub(crate) kinds: Kinds,
    lines: Lines,
    pub(crate) losses: Losses,
    /// The tasks to wake once no lock is held.
    called: Mutex<Called>,
    #[cfg(feature = "tokio")]
    pub(crate) kept: Arc<WaitingTasks>,
    /// The slots of the runner; 0: there is none.
    slots: AtomicUsize,
    pub(crate) at_work: AtWork,
    trouble: Mutex<Trouble>,
}

/// Why a queue may stand still, besides the reasons of its engine.
#[derive(Clone, Default)]
pub(crate) struct Trouble {
    /// Why the last write failed, and when the first such failure was.
    pub(crate) failing: Option<(String, Instant)>,
    /// The gate of the runner that is closed, and since when.
    pub(crate) closed: Option<(String, Instant)>,
    /// By how much the clock was last set back, and when that was noticed.
    pub(crate) set_back: Option<(Duration, Instant)>,
}

/// Why to wake threads after a write.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wake {
    /// How many jobs may start now.
    pub jobs: u64,
    /// Every thread has to look: something falls due sooner, or a pause has begun or ended.
    pub all: bool,
    /// Threads that take jobs before they are due have to look.
    pub early: bool,
    /// One more job may wait.
    pub room: bool,
    /// Waiters for a change have to look, since one falls due sooner.
    pub sooner: bool,
}

/// The right to run a queue, until it is dropped.
pub(crate) struct RunnerName(Arc<Shared>);

impl Drop for RunnerName {
    fn drop(&mut self) {
        self.0.kinds.end();
        self.0.losses.end();
        self.0.at_work.end();
        self.0.slots.store(0, Ordering::Release);
        self.0.note_gate(None);
    }
}

impl OpenQueues {
    /// Returns the queue with this name if it is open, or opens it.
    ///
    /// # Errors
    /// [`ConfigError::QueueOptions`] if it is open with other options, and the errors of `load`.
    pub(crate) fn open<E: From<ConfigError>>(
        &self,
        name: &str,
        options: &QueueOptions,
        load: impl FnOnce(Option<&Arc<Shared>>) -> Result<Arc<Shared>, E>,
    ) -> Result<Arc<Shared>, E> {
        let mut open = self.0.lock();
        open.retain(|queue| queue.strong_count() > 0);
        let known = open.iter().filter_map(Weak::upgrade).find(|queue| queue.name == name);
        if known.as_ref().is_some_and(|queue| queue.options != *options) {
            return Err(ConfigError::QueueOptions { name: name.to_owned() }.into());
        }
        let shared = load(known.as_ref())?;
        if known.is_none() {
            open.push(Arc::downgrade(&shared));
        }
        Ok(shared)
    }
}

impl Shared {
    /// Makes the shared part of a queue that is being opened, with the stored durations. `hears`:
    /// its engine hears of the changes of all processes.
    #[must_use]
    pub fn new(name: &str, options: &QueueOptions, durations: HashMap<String, Durations>, hears: bool) -> Arc<Self> {
        let shared = Arc::new(Self {
            name: name.to_owned(),
            options: options.clone(),
            hears,
            bell: Arc::default(),
            bells: Mutex::default(),
            subscribers: Subscribers::default(),
            averages: Averages::new(durations),
            kinds: Kinds::default(),
            lines: Lines::default(),
            losses: Losses::default(),
            called: Mutex::default(),
            #[cfg(feature = "tokio")]
            kept: Arc::default(),
            slots: AtomicUsize::new(0),
            at_work: AtWork::default(),
            trouble: Mutex::default(),
        });
        let waits: Weak<dyn Waits> = Arc::downgrade(&(shared.clone() as Arc<dyn Waits>));
        shared.options.clock.tell(waits);
        shared
    }

    /// Returns the moment of its clock.
    pub fn moment(&self) -> Moment {
        self.options.clock.moment()
    }

    // The engine.

    /// Announces to waiters what a write has changed, and `untold` changes without details. Log
    /// lines, tasks and the runner wait for [`settle`](Self::settle).
    pub fn told(&self, mut told: Vec<Event>, untold: u64) {
        let (mut lines, mut lost) = (Vec::new(), Vec::new());
        let is_for_later = |happened: &mut Event| matches!(happened, Event::Line(_) | Event::Lost { .. });
        for happened in told.extract_if(.., is_for_later) {
            match happened {
                Event::Lost { token } => lost.push(token),
                happened => lines.extend(happened.line()),
            }
        }
        for line in &lines {
            if let Line::SetBack { by } = line {
                self.trouble.lock().set_back = Some((*by, self.moment().now));
            }
        }
        self.lines.add(lines);
        self.losses.add(lost);
        self.call(|called| {
            if !self.hears {
                self.subscribers.watchers.tell(&told, called);
                self.subscribers.watchers.miss(untold, called);
            }
            self.subscribers.tell(told, called);
        });
    }

    /// Announces to those who watch the queue what all processes have changed, and that they have
    /// missed this many changes. The tasks wait for [`settle`](Self::settle).
    pub fn heard(&self, told: &[Event], missed: u64) {
        self.call(|called| {
            self.subscribers.watchers.miss(missed, called);
            self.subscribers.watchers.tell(told, called);
        });
    }

    /// Announces the progress that a worker shows. The tasks wait for [`settle`](Self::settle).
    pub fn told_progress(&self, id: &str, progress: &JobProgress) {
        self.call(|called| self.subscribers.tell_progress(id, progress, called));
    }

    /// Wakes threads that have to look after a write. Tasks wait for [`settle`](Self::settle).
    pub fn wake(&self, wake: Wake) {
        self.call(|called| {
            if wake.room {
                self.bell.ring_room(called);
            }
            if wake.jobs > 0 || wake.early {
                self.each_bell(|bell| bell.ring(wake.jobs, called));
            }
            if wake.all {
                self.each_bell(Bell::ring_all);
            }
            if wake.sooner {
                self.subscribers.ring();
            }
            #[cfg(feature = "tokio")]
            if wake.all || wake.sooner {
                self.kept.ring(called);
            }
        });
    }

    /// True if anything waits for a change of a job.
    pub fn is_watched(&self) -> bool {
        self.subscribers.is_any()
    }

    /// True if a caller watches all jobs.
    pub fn has_watchers(&self) -> bool {
        self.subscribers.watchers.is_any()
    }

    /// True if any job has a subscription.
    pub fn has_subscribers(&self) -> bool {
        self.subscribers.has_slots()
    }

    /// Returns the jobs with subscriptions, before they are read.
    #[must_use]
    pub fn watched(&self) -> Vec<Watched> {
        self.subscribers.watched()
    }

    /// Announces what a read has found of them. Returns true if something is new. The tasks wait
    /// for [`settle`](Self::settle).
    pub fn told_by_look(&self, seen: Vec<(Watched, Option<Read>)>) -> bool {
        let mut is_new = false;
        self.call(|called| {
            for (watched, read) in seen {
                is_new |= self.subscribers.correct(&watched, read, called);
            }
        });
        is_new
    }

    /// Makes every waiter for a job look again. The tasks wait for [`settle`](Self::settle).
    pub(crate) fn ring(&self) {
        self.wake(Wake { all: true, ..Wake::default() });
    }

    fn call(&self, ring: impl FnOnce(&mut Called)) {
        let mut called = Called::default();
        ring(&mut called);
        if !called.is_empty() {
            self.called.lock().append(called);
        }
    }

    /// True if tasks, or the runner, wait for [`settle`](Self::settle).
    pub(crate) fn has_called(&self) -> bool {
        !self.called.lock().is_empty() || self.losses.are_any()
    }

    /// Writes log lines, reports losses and wakes tasks that wait. The caller holds no lock.
    pub fn settle(&self) {
        self.lines.write(&self.name);
        self.losses.tell();
        let called = std::mem::take(&mut *self.called.lock());
        called.wake();
    }

    pub(crate) fn log_end(&self, job: (&str, &str, u32), ended: &AttemptEnd) {
        lines::ended(&self.lines, &self.name, job, ended);
    }

    /// Notes that a write failed with this error, or that one succeeded.
    pub fn note_failing(&self, error: Option<&QueueError>) {
        let (now, error) = (self.moment().now, error.map(|error| describe(error)));
        let mut trouble = self.trouble.lock();
        trouble.failing = error.map(|error| (error, trouble.failing.take().map_or(now, |(_, since)| since)));
    }

    pub(crate) fn is_failing(&self) -> bool {
        self.trouble.lock().failing.is_some()
    }

    pub(crate) fn trouble(&self) -> Trouble {
        self.trouble.lock().clone()
    }

    /// Makes all waiting tasks look again.
    #[cfg(any(feature = "tokio", test, feature = "testing"))]
    pub(crate) fn call_all_tasks(&self) {
        self.call(|called| {
            self.bell.ring_room(called);
            self.each_bell(|bell| bell.call_all(called));
            self.subscribers.ring_tasks(called);
            #[cfg(feature = "tokio")]
            self.kept.ring(called);
        });
        self.settle();
    }

    // The bells.

    /// Rings this bell from now on whenever the queue wakes its own threads.
    pub(crate) fn hang(&self, bell: &Arc<Bell>) {
        let mut bells = self.bells.lock();
        bells.retain(|bell| bell.strong_count() > 0);
        bells.push(Arc::downgrade(bell));
    }

    fn each_bell(&self, mut ring: impl FnMut(&Bell)) {
        ring(&self.bell);
        for bell in self.bells.lock().iter().filter_map(Weak::upgrade) {
            ring(&bell);
        }
    }

    /// True if a thread waits for a job of the queue, or of a group that it is in.
    pub(crate) fn is_awaited(&self) -> bool {
        let bells = self.bells.lock();
        self.bell.is_awaited() || bells.iter().filter_map(Weak::upgrade).any(|bell| bell.is_awaited())
    }

    // The runner.

    /// Takes the right to run the queue with this many slots. `None` while another runner has it.
    pub(crate) fn take_runner(self: &Arc<Self>, slots: usize) -> Option<RunnerName> {
        let taken = self.slots.compare_exchange(0, slots, Ordering::AcqRel, Ordering::Acquire);
        taken.ok().map(|_| RunnerName(self.clone()))
    }

    /// Notes the handled kinds, and what happens to others. The caller holds no lock.
    pub(crate) fn note_handlers<'a>(&self, kinds: impl Iterator<Item = &'a String>, fate: Fate) {
        self.lines.add(self.kinds.begin(kinds, fate));
        self.settle();
    }

    /// Notes the kind of a pushed job, unless the push is refused. The caller holds no lock.
    pub fn note_kind(&self, kind: &str, is_sound: impl FnOnce() -> bool) {
        if !self.kinds.has(kind) && is_sound() {
            self.lines.add(self.kinds.add(kind));
            self.settle();
        }
    }

    pub(crate) fn set_slots(&self, slots: usize) {
        self.slots.store(slots, Ordering::Release);
    }

    /// Returns the number of slots of the runner, if there is one.
    pub(crate) fn slots(&self) -> Option<usize> {
        Some(self.slots.load(Ordering::Acquire)).filter(|slots| *slots > 0)
    }

    /// True if the runner claims no more jobs.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.at_work.is_stopping()
    }

    /// Returns what this process does for the queue: its runner, or its callers of `accept`.
    /// `None`: nothing.
    #[must_use]
    pub fn presence(&self) -> Option<Presence> {
        let slots = self.slots();
        let stuck = self.losses.stuck().map_or(0, |stuck| stuck.count) + self.losses.elsewhere();
        (slots.is_some() || self.is_awaited()).then(|| self.at_work.presence(slots, stuck))
    }

    /// Notes which gate of the runner is closed. Returns true if that has changed.
    pub(crate) fn note_gate(&self, name: Option<&str>) -> bool {
        let mut trouble = self.trouble.lock();
        if trouble.closed.as_ref().map(|(name, _)| name.as_str()) == name {
            return false;
        }
        trouble.closed = name.map(|name| (name.to_owned(), self.moment().now));
        true
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for OpenQueues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenQueues").field("open", &self.0.lock().len()).finish()
    }
}

impl Waits for Shared {
    fn clock_was_set(&self) {
        self.wake(Wake { all: true, room: true, sooner: true, ..Wake::default() });
        #[cfg(any(feature = "tokio", test, feature = "testing"))]
        self.call_all_tasks();
    }
}
