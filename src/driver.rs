//! The only place where I/O meets the window. The driver hands the reports of the threads to the
//! window, and carries out the actions that the window asks for.
//!
//! Everything happens in short critical sections of one lock. No user code is called and no I/O is
//! done within one.

use crate::base::clock::{self, Clock};
use crate::base::error::{Error, describe};
use crate::base::guard::drop_guarded;
use crate::base::sync::{Arc, AtomicBool, Condvar, Mutex, MutexGuard, Ordering};
use crate::base::time::Now;
use crate::crew::stopping::Stopping;
use crate::crew::workers::Wake;
use crate::crew::{Crew, Host, Roster};
use crate::observe::observers::Observers;
use crate::progress::Saves;
use crate::reader::ReadRuns;
use crate::source::wakeup::Bell;
use crate::source::watermark::{Listener, Watermark};
use std::sync::Weak;

mod announcing;
mod aside;
mod batches;
pub(crate) mod care;
pub(crate) mod control;
mod core;
pub(crate) mod effects;
mod ending;
mod explain;
mod failures;
mod flights;
mod freed;
mod handing_out;
mod helping;
mod life;
#[cfg(all(test, waterline_loom))]
mod loom;
mod measuring;
mod observing;
mod ordered;
mod parking;
mod patience;
mod prefetch;
pub(crate) mod reach;
mod reading;
mod reports;
pub(crate) mod running;
mod saving;
mod stalls;
pub(crate) mod standby;
mod telling;
pub(crate) mod tenure;
mod threads;
pub(crate) mod timeouts;
mod waiters;
mod waiting;
mod wakes;
mod watching;
pub(crate) mod writing;

pub(crate) use self::core::Core;
use self::patience::Patience;
use self::running::Pool;
use self::wakes::Wakes;

pub(crate) struct Driver {
    crew: Crew<Driver>,
    clock: Clock,
    core: Mutex<Core>,
    /// Workers sleep here.
    work: Condvar,
    /// Tells the worker that stays awake for a moment that there is a job.
    beckoned: AtomicBool,
    /// The notifier sleeps here, and before it the thread that waits for the name.
    news: Condvar,
    /// `stop` and `join` sleep here.
    changed: Condvar,
    /// The thread that watches for stalls sleeps here.
    stall: Condvar,
    bell: Arc<Bell>,
    watermark: Watermark,
    /// True once nothing starts any more. Jobs read it without the lock.
    stopping: Stopping,
    /// The part that saves, until the end. A thread that holds this lock takes no other lock.
    saves: Mutex<Option<Arc<dyn Saves>>>,
    /// True if there is an `on_job_done` or an observer: jobs without them need no second look at a
    /// lock.
    confirms: bool,
    /// True if there is an observer.
    observes: bool,
    /// True if an attempt whose timeout is over fails, though its token may still be used.
    fails_overdue: bool,
    /// The observers, as long as attempts count.
    observers: Mutex<Option<Arc<Observers>>>,
}

impl Driver {
    pub(crate) fn new(mut core: Core, bell: Arc<Bell>, watermark: Watermark, saves: Arc<dyn Saves>) -> Arc<Self> {
        core.saving.patience = Patience::new(saves.takes_help());
        Self::with(core, bell, watermark, Some(saves))
    }

    fn with(core: Core, bell: Arc<Bell>, watermark: Watermark, saves: Option<Arc<dyn Saves>>) -> Arc<Self> {
        let driver = Arc::new_cyclic(|me| Self {
            crew: Crew::new(me.clone()),
            clock: core.clock.clone(),
            confirms: core.running.on_job_done.is_some() || core.is_observed(),
            observes: core.is_observed(),
            fails_overdue: core.running.flights.timeouts.as_ref().is_some_and(|timeouts| timeouts.fails()),
            observers: Mutex::new(core.watching.observers.clone()),
            saves: Mutex::new(saves),
            stopping: core.ending.stopping.clone(),
            watermark,
            core: Mutex::new(core),
            work: Condvar::new(),
            beckoned: AtomicBool::new(false),
            news: Condvar::new(),
            changed: Condvar::new(),
            stall: Condvar::new(),
            bell,
        });
        let waits: Weak<dyn clock::Waits> = driver.crew.host().clone();
        driver.clock.tell(waits);
        driver
    }

    /// Subscribes to the ends of the upstreams.
    pub(crate) fn listen(&self) {
        let me: Weak<dyn Listener> = self.crew.host().clone();
        let upstreams = self.core.lock().gates.upstreams.clone();
        upstreams.iter().for_each(|upstream| upstream.listen(me.clone()));
    }

    pub(crate) fn set_pool(&self, pool: Arc<dyn Pool>) {
        self.core.lock().running.pool = Some(pool);
    }

    /// Lets workers read from this source from now on.
    pub(crate) fn set_source(&self, source: Arc<dyn ReadRuns>) {
        self.core.lock().reading.runs = Some(source);
    }

    /// Begins, and carries out the first actions of the window.
    pub(crate) fn begin(&self) {
        self.settle(self.core.lock(), &self.clock.when_asked());
    }

    /// Drains the window and carries out its actions.
    fn settle(&self, mut core: MutexGuard<'_, Core>, now: &Now) {
        let wakes = core.drain(now);
        drop(core);
        self.carry_out(wakes);
    }

    #[inline]
    fn carry_out(&self, wakes: Wakes) {
        if !wakes.is_empty() {
            self.carry_out_all(wakes);
        }
    }

    fn carry_out_all(&self, wakes: Wakes) {
        if wakes.reader {
            self.bell.work();
        }
        match wakes.worker {
            Wake::Nobody => {}
            Wake::One => {
                self.work.notify_one();
            }
            Wake::Beckon => self.beckoned.store(true, Ordering::Release),
            Wake::Spawn => self.spawn_another_worker(),
        }
        if wakes.news {
            self.news.notify_one();
        }
        if wakes.save || wakes.hurry {
            self.save(wakes.save, wakes.hurry);
        }
        if wakes.called {
            self.wake_called();
        }
        if wakes.ended {
            self.changed.notify_all();
            self.bell.close();
            self.watermark.end();
            self.work.notify_all();
            self.news.notify_all();
            self.stall.notify_all();
        }
        // The lines come last, since a subscriber may be slow.
        if wakes.tell {
            self.tell();
        }
    }

    fn save(&self, begin: bool, hurry: bool) {
        let saves = self.saves.lock();
        match (&*saves, self.crew.host().upgrade()) {
            (Some(saves), Some(me)) if begin => saves.save(me, hurry),
            (Some(saves), _) => saves.hurry(),
            (None, _) => {}
        }
    }

    /// Runs a destructor of the user without the lock. The destructor may take long, so the reader
    /// is told of a new back-off before it: maybe nothing else would make the next attempt due.
    fn unlocked(&self, core: &mut MutexGuard<'_, Core>, destructor: impl FnOnce()) {
        let rouse = std::mem::take(&mut core.reading.rouse);
        MutexGuard::unlocked(core, || {
            if rouse {
                self.bell.work();
            }
            destructor();
        });
    }
}

impl clock::Waits for Driver {
    fn clock_was_set(&self) {
        self.core.lock().running.flights.timeouts.iter().for_each(|timeouts| timeouts.ring());
        self.work.notify_all();
        self.news.notify_all();
        self.stall.notify_all();
        self.bell.work();
    }
}

impl Host for Driver {
    fn crew(&self) -> &Crew<Self> {
        &self.crew
    }

    fn with_roster<R>(&self, change: impl FnOnce(&mut Roster, usize) -> R) -> R {
        let mut core = self.core.lock();
        let tokens = core.running.flights.tokens();
        change(&mut core.roster, tokens)
    }

    /// Halts the consumer, since the thread's next report never comes.
    fn thread_panicked(&self) {
        let mut core = self.core.lock();
        let index = core.window.lowest_undone();
        let now = self.clock.when_asked();
        let surplus = core.halt(index, Error::Thread.to_string(), Error::Thread, "", &now);
        let pool = core.running.pool.clone();
        let (_, callback) = core.abandon();
        self.settle(core, &now);
        self.observe_no_attempts();
        self.end_jobs(pool);
        drop_guarded(surplus);
        drop_guarded(callback);
    }

    fn clear_up(&self) {
        let saves = self.saves.lock().take();
        drop_guarded(saves);
    }

    fn somebody_left(&self, over: bool) {
        if over {
            // The thread that watches for stalls leaves as the last one.
            self.stall.notify_all();
        }
        self.changed.notify_all();
    }

    fn name_freed(&self) {
        if freed::anybody_waits() {
            freed::tell(&self.watermark.name());
        }
    }

    fn everybody_left(&self) {
        let (mine, shared) = (self.observers.lock().take(), self.core.lock().watching.observers.take());
        drop_guarded(mine);
        drop_guarded(shared);
        let unheard = self.core.lock().ending.error.take();
        if let Some(error) = unheard {
            tracing::error!(error = describe(&error), "a consumer ended with an error after it was let go");
            drop_guarded(error);
        }
    }
}
