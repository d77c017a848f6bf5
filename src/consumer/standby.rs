//! The start of a consumer whose name another one holds: it waits for it, then starts as usual.

use super::acquire::{Acquired, acquire};
use super::launch::{Assembled, Checked, Handed, Opened, hand_over, spawn};
use super::{Builder, Consumer, inspect::Unstarted};
use crate::base::{Error, config, error::describe, guard::drop_guarded, sync::Arc, time::Now};
use crate::driver::tenure::{NameInUse, is_outage};
use crate::driver::{Driver, handlers::standby::Takeover};
#[cfg(feature = "metrics")]
use crate::observe::metrics;
use crate::progress::{Commits, Life, Progress, close_unused};
use crate::reader::{SharedSource, Source};
use crate::run::{Runner, mode::Settings};
use crate::saver::SaverThread;
use crate::source::Jobs;
use crate::window::Window;
use std::time::Instant;

impl<J: Jobs, P: Progress> Builder<J, P> {
    /// Makes the start wait while another consumer holds the name: a *hot standby*.
    ///
    /// `start` returns at once, and the consumer takes over by itself once the name is free.
    /// Default: the start fails with [`Error::InUse`] or [`Error::Leased`], since most second
    /// consumers of a name are a mistake.
    ///
    /// This needs a progress that can tell a living holder from a dead one: that of a
    /// [`Store`](crate::Store), or one of yours with a lease. With a progress whose `acquire` takes
    /// the name in any case, as the first steps of the page [`your_database`](crate::your_database)
    /// do, no standby waits: two of them take the name from each other again and again.
    ///
    /// While it waits, the status has [`State::Waiting`](crate::State::Waiting) and
    /// [`Blocked::InUse`](crate::Blocked::InUse), and the source is not called. The consumer calls
    /// [`Progress::acquire`] again when the other one's lease expires, at least every 500 ms, at
    /// most every 20 ms, and at once when a consumer of this process gives the name back, or the
    /// engine [hears](crate::Tenure::try_now) that another process does. A stop ends the wait as
    /// soon as a call under way has returned.
    ///
    /// The settings of its [`Handle`](crate::Handle), an index to stop at, and calls of
    /// [`wait_for`](crate::Handle::wait_for) hold across the takeover. Followers of its
    /// [`watermark`](Self::watermark) wait with it. A redrive is [`Error::InUse`] until then.
    /// Metrics are set only from the takeover on, and leave those of the other consumer alone.
    ///
    /// Any other error that is found at once comes from `start`. If it is found later, the consumer
    /// halts with it, and [`Consumer::join`] returns it: for example [`Error::Corrupt`]. An
    /// unreachable storage ([`Error::Progress`]) ends no wait: the consumer retries after a pause
    /// of up to 5 s, and its status has [`Blocked::Progress`](crate::Blocked::Progress) meanwhile.
    ///
    /// If the gate of the source depends on a consumer that ended meanwhile, this one takes over
    /// and waits: [`Status::ended_upstream`](crate::Status::ended_upstream) names the ended one.
    ///
    /// The previous holder may still live, and only be slow or cut off. The storage fences it: see
    /// [the rules](Progress#the-rules). Pass [`Job::fence`](crate::Job::fence) to sinks of your
    /// own, so that they can refuse what it still writes.
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline::{Blocked, Consumer, MemoryJobs, State, Store};
    ///
    /// let (store, jobs) = (Store::in_memory(), MemoryJobs::new());
    /// let start = || Consumer::builder(jobs.clone(), store.progress("p")).standby().start(|_| Ok(()));
    /// let (first, second) = (start()?, start()?);
    /// jobs.push("for the first one");
    /// assert!(first.handle().wait_for(0, Duration::from_secs(20)));
    /// assert_eq!(second.handle().status().state, State::Waiting);
    /// assert!(matches!(second.handle().status().blocked, Blocked::InUse { .. }));
    ///
    /// first.stop()?;
    /// jobs.push("for the second one");
    /// assert!(second.handle().wait_for(1, Duration::from_secs(20)));
    /// second.stop()?;
    /// # Ok::<(), waterline::Error>(())
    /// ```
    #[doc(alias = "consumer group")]
    pub fn standby(mut self) -> Self {
        self.standby = true;
        self
    }

    /// Starts the consumer as a standby that waits for its name.
    pub(super) fn stand_by<R>(
        mut self,
        checked: Checked,
        refusal: NameInUse,
        commits: Option<Box<dyn Commits<P>>>,
        runner: R,
        mut unstarted: Unstarted,
    ) -> Result<Consumer, Error>
    where
        R: FnOnce(&Arc<Driver>, Settings) -> Arc<dyn Runner<J::Job>> + Send + 'static,
    {
        let watermark = self.watermark.clone().unwrap_or_default();
        unstarted.reserve(&watermark, Some(refusal.name.clone()), Vec::new())?;
        #[cfg(feature = "metrics")]
        let metrics = self.metrics.then(|| metrics::ToCome::new(&refusal.name));
        #[cfg(feature = "metrics")]
        metrics.iter().for_each(|metrics| self.observers.push(Box::new(metrics.clone())));
        // Nothing is read before there is a head, so this placeholder window starts nothing.
        let mut window = Window::begin(0, checked.limits);
        self.stop_at.into_iter().for_each(|last| window.stop_at(last));
        let now = self.clock.when_asked();
        let due = now.get() + refusal.pause();
        let mut core = self.equip(window, checked, refusal.name.clone());
        core.await_name(refusal, &now);
        let driver = Driver::waiting(core, unstarted.bell.clone(), watermark.clone());
        unstarted.hand_watermark_on();
        self.watermark = Some(watermark);
        // From here on, dropping the consumer stops everything that was started.
        let consumer = Consumer::new(driver.clone());
        driver.heed(&unstarted.tenure);
        let standby = Standby {
            builder: self,
            driver: driver.clone(),
            unstarted,
            checked,
            commits,
            runner,
            due,
            #[cfg(feature = "metrics")]
            metrics,
        };
        driver.spawn("wl-standby", Box::new(move || standby.run())).inspect_err(|_| driver.tries_no_more())?;
        driver.begin();
        Ok(consumer)
    }
}

/// The part of a start that waits for the name.
struct Standby<J: Jobs, P, R> {
    builder: Builder<J, P>,
    driver: Arc<Driver>,
    unstarted: Unstarted,
    checked: Checked,
    /// Writes the results of jobs with each save, if there are any.
    commits: Option<Box<dyn Commits<P>>>,
    runner: R,
    due: Instant,
    #[cfg(feature = "metrics")]
    metrics: Option<metrics::ToCome>,
}

impl<J, P, R> Standby<J, P, R>
where
    J: Jobs,
    P: Progress,
    R: FnOnce(&Arc<Driver>, Settings) -> Arc<dyn Runner<J::Job>>,
{
    /// Waits for the name, then completes the start. A stop ends the wait.
    fn run(mut self) {
        let acquired = self.wait();
        self.driver.tries_no_more();
        let opened = acquired.and_then(|acquired| acquired.map(|acquired| self.open(acquired)).transpose());
        match opened {
            Ok(Some(opened)) => return self.take_over(opened),
            Ok(None) => {}
            Err(error) => self.driver.fail_late(error),
        }
        drop_guarded(self);
    }

    /// Tries to take the name until it succeeds. Returns `None` if the consumer has ended.
    fn wait(&mut self) -> Result<Option<Acquired>, Error> {
        while self.driver.sleep_until_try(self.due) {
            match self.try_now() {
                // A try may take long. If the consumer has ended meanwhile, it opens no life.
                Ok(acquired) => return Ok(self.driver.still_waits().then_some(acquired)),
                Err(error) => self.refused(error, &self.builder.clock.when_asked())?,
            }
        }
        Ok(None)
    }

    fn try_now(&mut self) -> Result<Acquired, Error> {
        acquire(&mut self.builder.progress, self.checked.keeps, &self.unstarted.tenure)
    }

    /// Schedules the next try, or returns the error if it is neither a name in use nor an outage.
    fn refused(&mut self, error: Error, now: &Now) -> Result<(), Error> {
        if is_outage(&error) {
            self.due = now.get() + self.driver.waits_out(&error, now);
            return Ok(());
        }
        let refusal = NameInUse::of(error)?;
        self.due = now.get() + refusal.pause();
        self.driver.waits_on(refusal, now);
        Ok(())
    }

    /// Asks the source, with the settings as they are now.
    fn open(&mut self, acquired: Acquired) -> Result<Opened, Error> {
        (self.checked.limits, self.builder.stop_at) = self.driver.asked_meanwhile();
        self.builder.open(
            self.checked,
            acquired,
            self.commits.as_deref_mut().map(|commits| commits as _),
            &mut self.unstarted,
        )
    }

    /// Hands everything to the driver, and starts the threads.
    fn take_over(self, opened: Opened) {
        let Self { builder, driver, mut unstarted, checked, commits, runner, .. } = self;
        let Opened { mut acquired, inspected, window, recovered } = opened;
        // No other consumer has the name now, so these metrics are this one's.
        #[cfg(feature = "metrics")]
        self.metrics.into_iter().for_each(|metrics| metrics.begin(inspected.watermark.name()));
        let reading = builder.reading();
        let Builder { jobs, key, progress, clock, poll_every, on_processed, attempt_timeout, .. } = builder;
        let pool = driver.pool(runner(&driver, checked.settings));
        let source: Arc<dyn Source> = Arc::new(SharedSource::new(jobs, clock.clone()).by_key(key));
        let Handed { saves, saver, name } = hand_over(progress, checked.saver_keeps(commits), &clock);
        let takeover = Takeover {
            window,
            last_processed: acquired.last_processed(),
            met: inspected.met,
            fence: acquired.fence,
            recovered,
            pool,
            source: source.clone(),
            saves: saves.clone(),
            name,
        };
        match driver.take_over(takeover) {
            Ok(true) => saves.meet(driver.live_parking()),
            Ok(false) => {}
            Err(takeover) => {
                drop_guarded((on_processed, source));
                return give_back(*takeover, saver, &mut acquired);
            }
        }
        drop(saves);
        driver.listen();
        let poll_every = poll_every.or((!inspected.subscribed).then_some(config::DEFAULT_POLL));
        let timed = attempt_timeout.is_some();
        let assembled = Assembled { driver: driver.clone(), timed, saver, source, poll_every, reading, on_processed };
        if let Err(error) = spawn(assembled, &unstarted) {
            return driver.fail_late(error);
        }
        unstarted.started = true;
        driver.taken_over();
        inspected.watermark.announce();
    }
}

/// Gives the name back: the consumer was stopped during its takeover, and nothing has run.
fn give_back<P: Progress>(mut takeover: Takeover, saver: Option<SaverThread<P>>, acquired: &mut Acquired) {
    let opened = takeover.recovered.as_ref().filter(|recovered| recovered.max_crashes.is_some());
    if let Some(life) = opened.and_then(|recovered| recovered.life.as_ref()) {
        let closed = Life { open: false, ended: life.opened, ..life.clone() };
        let name = acquired.name.as_deref().unwrap_or("unnamed");
        let outcome = match (saver, &mut acquired.opening) {
            (Some(saver), Some(saved)) => saver.close_unused(&closed, saved, name),
            _ => close_unused(&mut *takeover.name, &closed),
        };
        if let Err(error) = outcome {
            tracing::warn!(
                consumer = name,
                error = describe(&error),
                "a life without jobs could not be closed; the next one is careful"
            );
        }
    }
    drop_guarded(takeover);
}
