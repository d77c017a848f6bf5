//! The start of a consumer, in four phases: the progress is acquired, the source is inspected, the
//! driver is assembled, and the threads are spawned.
//!
//! The first two phases refuse everything that can be refused, before anything runs.

use super::Consumer;
use super::acquire::{Acquired, Keeps, acquire};
use super::builder::{Builder, OnProcessed};
use super::inspect::{Inspected, Wanted, inspect};
use super::recover::{Going, recover};
use crate::base::config::{self, OnExhausted};
use crate::base::error::Error;
use crate::base::sync::{Arc, Mutex};
use crate::base::time;
use crate::driver::care::Recovered;
use crate::driver::timeouts::Timeouts;
use crate::driver::{Core, Driver};
use crate::notifier::notify;
#[cfg(feature = "metrics")]
use crate::observe::metrics;
use crate::observe::observers::Observers;
use crate::progress::{Progress, Saves, Tenure, shared_writer};
use crate::reader::{Reader, SharedSource};
use crate::run::Runner;
use crate::run::mode::{Mode, Settings};
use crate::saver::{Saver, saver};
use crate::source::Jobs;
use crate::source::wakeup::Bell;
use crate::source::watermark::Watermark;
use crate::window::Window;
use std::time::Duration;

/// A driver that is ready to run, and the rest that its threads need.
struct Assembled<J: Jobs, P> {
    driver: Arc<Driver<J::Job>>,
    /// True if attempts have a timeout.
    timed: bool,
    /// The saver, if the progress is not that of a store.
    saver: Option<Saver<P>>,
    jobs: J,
    /// The pause between two looks at a source that does not ring.
    poll_every: Option<Duration>,
    on_processed: Option<OnProcessed>,
}

impl<J: Jobs, P: Progress> Builder<J, P> {
    /// Starts the consumer in this mode.
    pub(super) fn launch<R>(mut self, mode: Mode, runner: R) -> Result<Consumer, Error>
    where
        R: FnOnce(&Arc<Driver<J::Job>>, Settings) -> Arc<dyn Runner<J::Job>>,
    {
        let settings = mode.settings(self.asked)?;
        let limits = self.validate()?;
        let mut unstarted = Unstarted::new();
        let going = self.going(mode);
        let keeps = Keeps { parked: going.budget.is_some(), crashes: going.max_crashes.is_some() };
        let mut acquired = acquire(&mut self.progress, keeps, &unstarted.tenure)?;
        let wanted = Wanted {
            start_at: self.start_at.flatten(),
            stop_at: self.stop_at,
            watermark: self.watermark.take().unwrap_or_default(),
        };
        let inspected = inspect(&self.jobs, wanted, &acquired, &mut unstarted)?;
        let watermark = inspected.watermark.clone();
        let mut window = acquired.window(inspected.next, limits);
        if let Some(index) = self.stop_at {
            window.stop_at(index);
        }
        let recovered = recover(&mut self.progress, &mut acquired, &mut window, going)?;
        #[cfg(feature = "metrics")]
        self.observers.extend(self.metrics.then(|| metrics::observer(watermark.name())).flatten());
        let assembled = self.assemble((mode, settings), (window, recovered), acquired, inspected, &mut unstarted);
        let driver = assembled.driver.clone();
        driver.set_runner(driver.observed(runner(&driver, settings)));
        // From here on, a drop of the consumer stops everything that was started.
        let consumer = Consumer::new(driver.clone());
        spawn(assembled, &unstarted)?;
        unstarted.started = true;
        driver.begin();
        // Followers that started earlier hear only from here how far an earlier life has come.
        watermark.announce();
        Ok(consumer)
    }

    /// Returns the settings that say how to go on after earlier lives.
    fn going(&self, mode: Mode) -> Going {
        let in_order = mode == Mode::Ordered;
        match self.on_exhausted {
            OnExhausted::Halt => Going { budget: None, max_crashes: self.max_crashes, in_order },
            OnExhausted::Park { budget } => {
                let max_crashes = self.max_crashes.unwrap_or(config::DEFAULT_CRASHES);
                Going { budget: Some(budget), max_crashes: Some(max_crashes), in_order }
            }
        }
    }

    /// Puts the driver together. Nothing can be refused any more, and nothing runs yet.
    fn assemble(
        self,
        (mode, settings): (Mode, Settings),
        (window, recovered): (Window, Option<Recovered>),
        acquired: Acquired,
        inspected: Inspected,
        unstarted: &mut Unstarted,
    ) -> Assembled<J, P> {
        let Self { jobs, progress, poll_every, on_processed, attempt_timeout, .. } = self;
        let Inspected { watermark, upstreams, subscribed, next } = inspected;
        let (fence, keeps_all, loaded) = (acquired.fence, acquired.keeps_all, acquired.last_processed());
        let mut core = Core::new(window, self.retry, self.max_read_ahead, time::now());
        core.announcing.wanted = on_processed.is_some();
        core.running.on_job_done = self.on_job_done;
        core.workers.fixed = settings.threads;
        core.gates.upstreams = upstreams;
        core.tenancy.fence = fence;
        core.running.flights.timeouts =
            attempt_timeout.map(|after| Timeouts::new(after, mode == Mode::Deferred, !self.observers.is_empty()));
        let (after, alarms): (Vec<_>, Vec<_>) = self.on_stall.into_iter().unzip();
        core.watching.stalls.add_alarms(after);
        core.watching.observers = Observers::new(watermark.name(), self.observers, alarms);
        self.stall_after.into_iter().for_each(|patience| core.watching.stalls.patience = patience);
        core.saving.effects.limit = settings.effects.unwrap_or(usize::MAX);
        let keeps_parked = recovered.and_then(|recovered| core.go_on(recovered)).is_some();
        let (saves, saver) = hand_over(progress, keeps_all, &mut core);
        // No follower looks at this watermark yet.
        watermark.hold(core.lowest_parked());
        loaded.into_iter().for_each(|last| watermark.publish(last));
        watermark.begin(next);
        let meet = keeps_parked.then(|| saves.clone());
        let driver = Driver::new(core, unstarted.bell.clone(), watermark, saves);
        meet.into_iter().for_each(|saves| saves.meet(driver.live_parking()));
        unstarted.watermark = None;
        driver.listen();
        let poll_every = poll_every.or((!subscribed).then_some(config::DEFAULT_POLL));
        Assembled { driver, timed: attempt_timeout.is_some(), saver, jobs, poll_every, on_processed }
    }
}

/// Starts the threads: the saver, the notifier, the first worker, and last the reader, which brings
/// the first job.
fn spawn<J: Jobs, P: Progress>(assembled: Assembled<J, P>, unstarted: &Unstarted) -> Result<(), Error> {
    let Assembled { driver, timed, saver, jobs, poll_every, on_processed } = assembled;
    if let Some(saver) = saver {
        driver.spawn("wl-saver", move || saver.run())?;
    }
    if let Some(callback) = on_processed {
        let desk = driver.clone();
        driver.spawn("wl-notifier", move || notify(&desk, callback))?;
    }
    if timed {
        let driver = driver.clone();
        driver.clone().spawn("wl-timeouts", move || driver.watch_timeouts())?;
    }
    driver.spawn_first_worker()?;
    let source = Arc::new(SharedSource::new(jobs));
    driver.set_source(source.clone());
    // The driver hears the tenure before anything can be read: no job may start while the progress
    // holds the consumer.
    driver.heed(&unstarted.tenure);
    let (desk, bell) = (driver.clone(), unstarted.bell.clone());
    // The reader is made on the stack of its thread: the values that a thread is started with take
    // memory on the heap.
    driver.spawn("wl-reader", move || Reader::new(source, desk, bell, poll_every, time::now()).run())
}

/// Hands the progress to the part that saves: the store's writer, or a thread that the caller
/// starts. The name stays in use until the consumer has ended.
fn hand_over<P: Progress, T>(
    mut progress: P,
    keeps_all: bool,
    core: &mut Core<T>,
) -> (Arc<dyn Saves>, Option<Saver<P>>) {
    if let Some(saves) = shared_writer(&mut progress) {
        core.roster.keep_name(Box::new(progress));
        return (saves, None);
    }
    let progress = Arc::new(Mutex::new(progress));
    let (handle, saver) = saver(progress.clone(), keeps_all);
    core.roster.keep_name(Box::new(progress));
    (Arc::new(handle), Some(saver))
}

/// Cleans up if the start fails: it closes the bell, so that the source can forget its wake-up,
/// ends the tenure, which steers nothing then, and gives the watermark back as long as no driver
/// ends it.
pub(super) struct Unstarted {
    pub(super) bell: Arc<Bell>,
    tenure: Tenure,
    /// The watermark, until there is a driver that ends it.
    pub(super) watermark: Option<Watermark>,
    started: bool,
}

impl Unstarted {
    fn new() -> Self {
        Self { bell: Arc::default(), tenure: Tenure::new(), watermark: None, started: false }
    }
}

impl Drop for Unstarted {
    fn drop(&mut self) {
        if !self.started {
            self.bell.close();
            self.tenure.end();
            self.watermark.iter().for_each(Watermark::release);
        }
    }
}
