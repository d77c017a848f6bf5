//! The start of a consumer: acquire the progress, inspect the source, recover, spawn the threads.
//!
//! The first phases refuse everything that can be refused, before anything runs.

use super::Consumer;
use super::acquire::{Acquired, Keeps, acquire, subscribe};
use super::builder::{Builder, OnProcessed};
use super::inspect::{Inspected, Unstarted, inspect};
use super::recover::{Going, recover};
use super::source::Reading;
use crate::base::Error;
use crate::base::clock::{Clock, Waits};
use crate::base::config::{self, OnExhausted};
use crate::base::sync::{Arc, Mutex};
use crate::driver::tenure::{NameInUse, fenced};
use crate::driver::{Calls, Core, Driver, Recovered, Timeouts, writing::Writing};
#[cfg(feature = "metrics")]
use crate::observe::metrics;
use crate::observe::observers::Observers;
use crate::progress::{Commits, Progress, SaveBackend, check_owned, note_log, note_owned, shared_writer};
use crate::reader::{Reader, Reads, SharedSource, Source};
use crate::run::Runner;
use crate::run::mode::{Mode, Settings};
use crate::saver::{self, SaverThread, saver};
use crate::source::Jobs;
use crate::window::{Limits, Window};
use std::any::Any;
use std::sync::Weak;
use std::time::Duration;

/// A driver that is ready to run, and what its threads need.
pub(super) struct Assembled<P> {
    pub(super) driver: Arc<Driver>,
    pub(super) timed: bool,
    /// The saver, unless a store's own writer saves the progress.
    pub(super) saver: Option<SaverThread<P>>,
    pub(super) source: Arc<dyn Source>,
    /// The pause between two polls of a source that does not ring.
    pub(super) poll_every: Option<Duration>,
    pub(super) reading: Reading,
    pub(super) on_processed: Option<OnProcessed>,
}

/// The mode of a consumer and its validated settings.
#[derive(Clone, Copy)]
pub(super) struct Checked {
    pub(super) mode: Mode,
    pub(super) settings: Settings,
    pub(super) limits: Limits,
    pub(super) keeps: Keeps,
}

impl Checked {
    /// Returns what each save contains, for a progress that no store's writer saves.
    pub(super) fn saver_keeps<P>(self, commits: Option<Box<dyn Commits<P>>>) -> saver::Keeps<P> {
        match (commits, self.keeps.all) {
            (commits, all) if commits.is_some() || self.keeps.records => saver::Keeps::records(all, commits),
            (_, true) => saver::Keeps::All,
            (_, false) => saver::Keeps::Watermark,
        }
    }
}

/// What is known once the progress and the source have let the consumer begin.
pub(super) struct Opened {
    pub(super) acquired: Acquired,
    pub(super) inspected: Inspected,
    pub(super) window: Window,
    pub(super) recovered: Option<Recovered>,
}

impl<J: Jobs, P: Progress> Builder<J, P> {
    pub(super) fn launch<R>(self, mode: Mode, runner: R) -> Result<Consumer, Error>
    where
        R: FnOnce(&Arc<Driver>, Settings) -> Arc<dyn Runner<J::Job>> + Send + 'static,
    {
        self.launch_with(mode, None, runner)
    }

    /// Starts the consumer in a mode whose jobs may have results that each save writes.
    pub(super) fn launch_with<R>(
        mut self,
        mode: Mode,
        mut commits: Option<Box<dyn Commits<P>>>,
        runner: R,
    ) -> Result<Consumer, Error>
    where
        R: FnOnce(&Arc<Driver>, Settings) -> Arc<dyn Runner<J::Job>> + Send + 'static,
    {
        let settings = mode.settings(self.asked)?;
        let limits = self.validate()?;
        self.check_source()?;
        check_owned(&mut self.progress, &self.owns)?;
        let mut unstarted = Unstarted::new();
        let going = self.going(mode);
        let (parked, crashes) = (going.budget.is_some(), going.max_crashes.is_some());
        let (all, records) = subscribe(&mut self.progress, &unstarted.tenure)?;
        let keeps = Keeps { parked, crashes, all, records: records || commits.is_some() };
        let limits = settings.unwritten.map_or(limits, |most| Writing::new(most, all).narrow(limits));
        let checked = Checked { mode, settings, limits, keeps };
        let acquired = match acquire(&mut self.progress, keeps, &unstarted.tenure) {
            Err(error) if self.standby => {
                return self.stand_by(checked, NameInUse::of(error)?, commits, runner, unstarted);
            }
            acquired => acquired?,
        };
        let opened =
            self.open(checked, acquired, commits.as_deref_mut().map(|commits| commits as _), &mut unstarted)?;
        let watermark = opened.inspected.watermark.clone();
        if let Some(error) = unstarted.tenure.take_lost() {
            return Err(fenced(watermark.name(), error));
        }
        #[cfg(feature = "metrics")]
        self.observers.extend(self.metrics.then(|| metrics::observer(watermark.name())).flatten());
        let assembled = self.assemble(checked, opened, commits, &mut unstarted);
        let driver = assembled.driver.clone();
        driver.set_pool(driver.pool(runner(&driver, settings)));
        driver.set_source(assembled.source.clone());
        // From here on, dropping the consumer stops everything that was started.
        let consumer = Consumer::new(driver.clone());
        spawn(assembled, &unstarted)?;
        unstarted.started = true;
        driver.begin();
        // Followers that started earlier hear only now how far earlier lives got.
        watermark.announce();
        Ok(consumer)
    }

    /// Asks the source, and resumes after earlier lives. The progress has its name.
    pub(super) fn open(
        &mut self,
        checked: Checked,
        mut acquired: Acquired,
        commits: Option<&mut dyn Commits<P>>,
        unstarted: &mut Unstarted,
    ) -> Result<Opened, Error> {
        let (ends, watermark) = ((self.start_at.flatten(), self.stop_at), self.watermark.take().unwrap_or_default());
        let inspected = inspect(&self.jobs, ends, watermark, &acquired, unstarted)?;
        let log = inspected.log.as_ref().map(|log| (log.log.name(), log.store));
        note_log(&mut self.progress, log)?;
        note_owned(&mut self.progress, &self.owns)?;
        let mut window = acquired.window(inspected.next, checked.limits);
        window.widen_read_ahead(self.read_ahead());
        if let Some(index) = self.stop_at {
            window.stop_at(index);
        }
        let going = self.going(checked.mode);
        // Results that are written in order are taken in order.
        let in_order = going.in_order || checked.settings.unwritten.is_some() && !checked.keeps.all;
        let going = Going { in_order, ..going };
        let recovered = recover(&mut self.progress, commits, &mut acquired, &mut window, going)?;
        Ok(Opened { acquired, inspected, window, recovered })
    }

    /// Returns the settings that say how to resume after earlier lives.
    fn going(&self, mode: Mode) -> Going {
        let (in_order, by_key, wall) = (mode == Mode::Ordered, self.asked.by_key, self.clock.wall());
        match self.on_exhausted {
            OnExhausted::Halt => Going { budget: None, max_crashes: self.max_crashes, in_order, by_key, wall },
            OnExhausted::Park { budget } => {
                let max_crashes = self.max_crashes.unwrap_or(config::DEFAULT_CRASHES);
                Going { budget: Some(budget), max_crashes: Some(max_crashes), in_order, by_key, wall }
            }
        }
    }

    /// Builds the core with all of the user's settings.
    pub(super) fn equip(&mut self, window: Window, checked: Checked, name: String) -> Core {
        let Checked { mode, settings, .. } = checked;
        let mut core = Core::new(window, self.retry, self.max_read_ahead, self.clock.now());
        core.clock = self.clock.clone();
        core.reading.calls = Calls::new(self.source_retry, self.call_timeout().unwrap_or_default());
        core.announcing.wanted = self.on_processed.is_some();
        core.running.on_job_done = self.on_job_done.take();
        core.workers.fixed = settings.threads;
        core.workers.is_strict = self.asked.threads.is_some();
        core.running.flights.timeouts =
            self.attempt_timeout.map(|after| Timeouts::new(after, mode == Mode::Deferred, !self.observers.is_empty()));
        let (after, alarms): (Vec<_>, Vec<_>) = std::mem::take(&mut self.on_stall).into_iter().unzip();
        core.watching.stalls.add_alarms(after);
        core.out.observers = Observers::new(name, std::mem::take(&mut self.observers), alarms);
        core.out.effects.limit = settings.effects.unwrap_or(usize::MAX);
        if self.key.is_some() {
            core.order_by_key(settings.effects.is_some());
        }
        core.saving.writing = settings.unwritten.map(|most| Writing::new(most, checked.keeps.all));
        core
    }

    /// Builds the driver. Nothing can be refused any more, and nothing runs yet.
    fn assemble(
        mut self,
        checked: Checked,
        opened: Opened,
        commits: Option<Box<dyn Commits<P>>>,
        unstarted: &mut Unstarted,
    ) -> Assembled<P> {
        let Opened { acquired, inspected, window, recovered } = opened;
        let Inspected { watermark, met, subscribed, next, .. } = inspected;
        let mut core = self.equip(window, checked, watermark.name());
        let reading = self.reading();
        let Self { jobs, key, progress, clock, poll_every, on_processed, attempt_timeout, .. } = self;
        core.gates.meet(met);
        core.tenancy.fence = acquired.fence;
        let keeps_parked = recovered.and_then(|recovered| core.go_on(recovered)).is_some();
        let Handed { saves, saver, name } = hand_over(progress, checked.saver_keeps(commits), &clock);
        core.registry.keep_name(name);
        // No follower reads this watermark yet.
        watermark.note_parked(core.take_parked_news().parked);
        acquired.last_processed().into_iter().for_each(|last| watermark.publish(last));
        watermark.begin(next);
        let meet = keeps_parked.then(|| saves.clone());
        let driver = Driver::new(core, unstarted.bell.clone(), watermark, saves);
        meet.into_iter().for_each(|saves| saves.meet(driver.live_parking()));
        unstarted.watermark = None;
        driver.listen();
        let poll_every = poll_every.or((!subscribed).then_some(config::DEFAULT_POLL));
        let source = Arc::new(SharedSource::new(jobs, clock).by_key(key));
        Assembled { driver, timed: attempt_timeout.is_some(), saver, source, poll_every, reading, on_processed }
    }
}

/// Starts the threads: the saver, the notifier, the first worker, and last the reader, which brings
/// the first job.
pub(super) fn spawn<P: Progress>(assembled: Assembled<P>, unstarted: &Unstarted) -> Result<(), Error> {
    let Assembled { driver, timed, saver, source, poll_every, reading, on_processed } = assembled;
    if let Some(saver) = saver {
        // Without the saver, the save that closes the life never comes, and the end must not wait
        // for it.
        driver.spawn("wl-saver", Box::new(move || saver.run())).inspect_err(|_| driver.saves_nothing())?;
    }
    if let Some(callback) = on_processed {
        let port = driver.clone();
        driver.spawn("wl-notifier", Box::new(move || port.notify(callback)))?;
    }
    if timed {
        let driver = driver.clone();
        driver.clone().spawn("wl-timeouts", Box::new(move || driver.watch_timeouts()))?;
    }
    driver.spawn_first_worker()?;
    // The driver subscribes to the tenure before anything can be read: no job may start while the
    // progress holds the consumer.
    driver.heed(&unstarted.tenure);
    let (port, bell) = (driver.clone(), unstarted.bell.clone());
    let reads = (reading.calls > 1).then(|| {
        let timeout = source.timeout_of_futures();
        Arc::new(Reads::new(reading.calls, reading.retry, timeout, bell.clone(), source.clock().clone()))
    });
    reads.iter().for_each(|reads| driver.set_reads(reads.clone()));
    // The thread builds the reader on its own stack: the values that a thread starts with take
    // memory on the heap.
    driver.spawn("wl-reader", Box::new(move || Reader::new(source, port, bell, poll_every).with_reads(reads).run()))
}

/// A progress that was handed to the part that saves.
pub(super) struct Handed<P> {
    pub(super) saves: Arc<dyn SaveBackend>,
    pub(super) saver: Option<SaverThread<P>>,
    /// The progress, which keeps the name in use.
    pub(super) name: Box<dyn Any + Send>,
}

/// Hands the progress to the part that saves: the store's writer, or a thread that the caller
/// starts. The name stays in use until the consumer has ended.
pub(super) fn hand_over<P: Progress>(mut progress: P, keeps: saver::Keeps<P>, clock: &Clock) -> Handed<P> {
    if let Some(saves) = shared_writer(&mut progress) {
        return Handed { saves, saver: None, name: Box::new(progress) };
    }
    let progress = Arc::new(Mutex::new(progress));
    let (handle, saver) = saver(progress.clone(), keeps, clock.clone());
    let handle = Arc::new(handle);
    let waits: Weak<dyn Waits> = Arc::downgrade(&(handle.clone() as Arc<dyn Waits>));
    clock.tell(waits);
    Handed { saves: handle, saver: Some(saver), name: Box::new(progress) }
}
