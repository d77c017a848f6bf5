//! The only place where I/O meets the window: the driver passes the threads' reports to the window
//! and carries out the actions that the window asks for.
//!
//! Everything happens in short critical sections of one lock, which call no user code and do no
//! I/O.

use crate::base::clock::{self, Clock};
use crate::base::guard::{drop_guarded, guarded};
use crate::base::sync::{Arc, AtomicBool, Condvar, Mutex, Ordering};
use crate::base::{Error, error::describe, time::Now};
use crate::observe::{Told, observers::Observers};
use crate::progress::SaveBackend;
use crate::reader::{ReadRuns, Reads};
use crate::source::wakeup::Bell;
use crate::source::watermark::{Listener, Watermark};
use crate::threads::{Host, ThreadRegistry, Threads, stopping::Stopping, workers::Wake};
use std::sync::Weak;

mod calls;
mod core;
mod effects;
pub(crate) mod end_condition;
mod failed_jobs;
mod flights;
pub(crate) mod handlers;
mod handoff;
mod keys;
#[cfg(all(test, waterline_loom))]
mod loom;
mod outbox;
mod prefetch;
mod reading;
mod running;
#[cfg(test)]
mod samples;
mod save_deadline;
mod saving;
pub(crate) mod tenure;
mod waiters;
mod watching;
mod whole;
pub(crate) mod writing;

pub(crate) use self::calls::{Calls, SOURCE_RETRY};
pub(crate) use self::core::Core;
pub(crate) use self::failed_jobs::Recovered;
pub(crate) use self::flights::Timeouts;
use self::outbox::Wakes;
use self::running::Pool;
use self::save_deadline::SaveDeadline;
use self::waiters::Waiter;
#[cfg(feature = "tokio")]
pub(crate) use self::waiters::WaiterKey;
use self::whole::{CoreGuard, WholeCore};

pub(crate) struct Driver {
    threads: Threads<Driver>,
    clock: Clock,
    core: WholeCore,
    /// Workers sleep here.
    work: Condvar,
    /// Tells the worker that spins that there is a job.
    spinner_woken: AtomicBool,
    /// The notifier sleeps here, and before it starts the thread that waits for the name.
    news: Condvar,
    /// `stop` and `join` sleep here.
    changed: Condvar,
    /// The stall watcher sleeps here.
    stall: Condvar,
    bell: Arc<Bell>,
    watermark: Watermark,
    /// True once nothing starts any more. Jobs read it without the lock.
    stopping: Stopping,
    /// The saver, until the end. A thread that holds this lock takes no other lock.
    saves: Mutex<Option<Arc<dyn SaveBackend>>>,
    /// True if there is an `on_job_done` or an observer. Other jobs need no second look at a lock.
    confirms: bool,
    observes: bool,
    /// True if an attempt fails at its timeout though its token may still be used.
    fails_overdue: bool,
    /// The observers, as long as attempts count.
    observers: Mutex<Option<Arc<Observers>>>,
}

impl Driver {
    pub(crate) fn new(mut core: Core, bell: Arc<Bell>, watermark: Watermark, saves: Arc<dyn SaveBackend>) -> Arc<Self> {
        core.saving.deadline = SaveDeadline::new(saves.takes_help());
        Self::with(core, bell, watermark, Some(saves))
    }

    fn with(core: Core, bell: Arc<Bell>, watermark: Watermark, saves: Option<Arc<dyn SaveBackend>>) -> Arc<Self> {
        let driver = Arc::new_cyclic(|me| Self {
            threads: Threads::new(me.clone()),
            clock: core.clock.clone(),
            confirms: core.running.on_job_done.is_some() || core.out.is_observed(),
            observes: core.out.is_observed(),
            fails_overdue: core.running.flights.timeouts.as_ref().is_some_and(|timeouts| timeouts.fails),
            observers: Mutex::new(core.out.observers.clone()),
            saves: Mutex::new(saves),
            stopping: core.ending.stopping.clone(),
            watermark,
            core: WholeCore::new(core),
            work: Condvar::new(),
            spinner_woken: AtomicBool::new(false),
            news: Condvar::new(),
            changed: Condvar::new(),
            stall: Condvar::new(),
            bell,
        });
        let waits: Weak<dyn clock::Waits> = driver.threads.host().clone();
        driver.clock.tell(waits);
        driver
    }

    /// Subscribes to the ends of the upstreams.
    pub(crate) fn listen(&self) {
        let me: Weak<dyn Listener> = self.threads.host().clone();
        let upstreams = self.core.lock().gates.upstreams.clone();
        upstreams.iter().for_each(|upstream| upstream.listen(me.clone()));
    }

    pub(crate) fn set_pool(&self, pool: Arc<dyn Pool>) {
        let mut core = self.core.lock();
        let has_timeouts = core.running.flights.timeouts.is_some();
        let plain = !self.confirms && !has_timeouts && core.running.keys.is_none();
        core.running.takes_buffer = pool.is_plain() && plain;
        core.running.pool = Some(pool);
    }

    /// Lets workers read from this source.
    pub(crate) fn set_source(&self, source: Arc<dyn ReadRuns>) {
        self.core.lock().reading.runs = Some(source);
    }

    /// Lets several reads be under way at once.
    pub(crate) fn set_reads(&self, reads: Arc<Reads>) {
        self.core.lock().reading.reads = Some(reads);
    }

    /// Begins, and carries out the first actions of the window.
    pub(crate) fn begin(&self) {
        self.settle(self.core.lock(), &self.clock.when_asked());
    }

    /// Makes a step under the lock, and then carries out what follows from it.
    fn step<R>(&self, step: impl FnOnce(&mut Core, &Now) -> R) -> R {
        let mut core = self.core.lock();
        let now = self.clock.when_asked();
        let result = step(&mut core, &now);
        self.settle(core, &now);
        result
    }

    /// Does the same for a caller with locks that a subscriber may need, such as the store's
    /// writer: see [`settle_saving`](Self::settle_saving).
    fn step_saving<R>(&self, step: impl FnOnce(&mut Core, &Now) -> R) -> R {
        let mut core = self.core.lock();
        let now = self.clock.when_asked();
        let result = step(&mut core, &now);
        self.settle_saving(core, &now);
        result
    }

    /// Drains the window and carries out its actions.
    fn settle(&self, mut core: CoreGuard<'_>, now: &Now) {
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
            Wake::None => {}
            Wake::One => {
                self.work.notify_one();
            }
            Wake::Beckon => self.spinner_woken.store(true, Ordering::Release),
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

    pub(super) fn wake_called(&self) {
        let called = self.core.lock().waiters.take_called();
        called.into_iter().for_each(Waiter::wake);
    }

    /// Carries out the actions after a save. The caller may be the store's writer, with a lock that
    /// a subscriber may need, so log lines are left to the stall watcher, which exists while there
    /// is work.
    pub(super) fn settle_saving(&self, mut core: CoreGuard<'_>, now: &Now) {
        let mut wakes = core.drain(now);
        let mut elsewhere = std::mem::take(&mut wakes.tell);
        if elsewhere && core.watching.stalls.watched {
            elsewhere = false;
            core.watching.stalls.tells = true;
            self.stall.notify_all();
        }
        // Without a watcher, a new thread writes the lines.
        if elsewhere {
            core.registry.count_in();
        }
        drop(core);
        let me = self.threads.host().clone();
        let tell = move || me.upgrade().into_iter().for_each(|me| me.tell());
        wakes.tell = elsewhere && self.threads.spawn_counted("wl-lines", tell).is_err();
        self.carry_out(wakes);
    }

    fn save(&self, begin: bool, hurry: bool) {
        let saves = self.saves.lock();
        match (&*saves, self.threads.host().upgrade()) {
            (Some(saves), Some(me)) if begin => saves.save(me, hurry),
            (Some(saves), _) => saves.hurry(),
            (None, _) => {}
        }
    }

    /// Runs a user's destructor without the lock. It may take long, so the reader first hears of a
    /// new back-off: nothing else may make the next attempt due.
    fn unlocked(&self, core: &mut CoreGuard<'_>, destructor: impl FnOnce()) {
        let rouse = std::mem::take(&mut core.out.reader);
        core.unlocked(|| {
            if rouse {
                self.bell.work();
            }
            destructor();
        });
    }

    /// Writes lines and sends notices until none are left, after [`Core::begin_telling`].
    pub(super) fn tell(&self) {
        // A subscriber is user code: a `stop` in it would wait for this very line.
        let own = self.threads.enter();
        let name = self.watermark.name();
        loop {
            let mut core = self.core.lock();
            let Some(all) = core.out.telling.take() else { break };
            let observers = core.out.observers.clone();
            drop(core);
            for told in all {
                self.tell_one(&told, &name, observers.as_deref());
            }
            drop_guarded(observers);
        }
        self.threads.leave();
        drop(own);
    }

    fn tell_one(&self, told: &Told, name: &str, observers: Option<&Observers>) {
        match told {
            Told::Line(line) => {
                // No line can report that a subscriber panicked.
                let _ = guarded(|| {
                    line.write(name);
                    Ok(())
                });
            }
            Told::Notice(notice) => {
                if let Some(Err(panic)) = observers.map(|observers| observers.notice(notice)) {
                    // The caller's loop picks up the line.
                    self.core.lock().out.tell_of_panic(None, &panic, &self.clock.when_asked());
                }
            }
        }
    }

    /// Ends the events of attempts: the running ones no longer count.
    pub(super) fn observe_no_attempts(&self) {
        let observers = self.observers.lock().take();
        drop_guarded(observers);
    }

    /// Ends abandoned jobs, in a mode that can. This may drop the last reference to the runner,
    /// whose destructor may stop this consumer.
    pub(super) fn end_jobs(&self, pool: Option<Arc<dyn Pool>>) {
        let _own = self.threads.enter();
        pool.iter().for_each(|pool| pool.abandon());
        drop_guarded(pool);
    }
}

/// When an upstream ends, an index that a caller waits for may become unreachable. The driver
/// notices this itself, since the reader may be in a long call.
impl Listener for Driver {
    fn changed(&self) {}

    fn ended(&self) {
        self.step_saving(|core, _| {
            core.out.waiters = true;
            core.end_within_reach();
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
    fn threads(&self) -> &Threads<Self> {
        &self.threads
    }

    fn with_registry<R>(&self, change: impl FnOnce(&mut ThreadRegistry, usize) -> R) -> R {
        let mut core = self.core.lock();
        let tokens = core.running.flights.tokens();
        change(&mut core.registry, tokens)
    }

    /// Halts the consumer, since the report of this thread's job never comes.
    fn thread_panicked(&self) {
        let (surplus, pool, (_, callback)) = self.step(|core, now| {
            let index = core.window.lowest_undone();
            let surplus = core.ctx(now).halt(index, Error::Thread.to_string(), Error::Thread, "");
            (surplus, core.running.pool.clone(), core.abandon(now))
        });
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
            // The stall watcher leaves last.
            self.stall.notify_all();
        }
        self.changed.notify_all();
    }

    fn name_freed(&self) {
        self.call_standbys();
    }

    fn everybody_left(&self) {
        let (mine, shared) = (self.observers.lock().take(), self.core.lock().out.observers.take());
        drop_guarded(mine);
        drop_guarded(shared);
        let unheard = self.core.lock().ending.error.take();
        if let Some(error) = unheard {
            tracing::error!(error = describe(&error), "a consumer ended with an error after it was let go");
            drop_guarded(error);
        }
    }
}
