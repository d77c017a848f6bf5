//! The builder: what a user sets, checked when it is started, and how a consumer is put together.

use super::Consumer;
use crate::base::config::{self, ConfigError, OnExhausted, check_max_processing, check_read_ahead, check_search_ahead};
use crate::base::error::Error;
use crate::base::guard::guarded;
use crate::base::index::{BoxError, Index};
use crate::base::retry::Retry;
use crate::base::sync::{Arc, Mutex};
use crate::driver::{Core, Driver};
use crate::notifier::notify;
use crate::progress::{Progress, Saves};
use crate::reader::{Reader, Turns};
use crate::run::deferred::Deferred;
use crate::run::direct::Direct;
use crate::run::mode::{Asked, Mode, Settings};
use crate::run::worker::{Closure, Done, Job, Worker};
use crate::run::{OnJobDone, Runner};
use crate::saver::saver;
use crate::source::Jobs;
use crate::source::wakeup::{Bell, Wakeup};
use crate::source::watermark::Watermark;
use crate::window::{Limits, Window};
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

type OnProcessed = Box<dyn Fn(RangeInclusive<Index>) + Send>;

/// Sets up a [`Consumer`]; made by [`Consumer::builder`]. Values are checked when it is started.
#[must_use = "nothing happens before it is started"]
pub struct Builder<J, P> {
    jobs: J,
    pub(super) progress: P,
    /// The index to start at, and `None` within when it cannot be one.
    start_at: Option<Option<Index>>,
    max_processing: usize,
    /// The settings of some modes alone.
    pub(super) asked: Asked,
    max_search_ahead: u64,
    retry: Retry,
    on_exhausted: OnExhausted,
    poll_every: Option<Duration>,
    stop_at: Option<Index>,
    on_job_done: Option<Arc<OnJobDone>>,
    on_processed: Option<OnProcessed>,
    max_read_ahead: usize,
    watermark: Option<Watermark>,
    stall_after: Option<Duration>,
}

impl<J: Jobs, P: Progress> Builder<J, P> {
    pub(super) fn new(jobs: J, progress: P) -> Self {
        Self {
            jobs,
            progress,
            start_at: None,
            max_processing: config::available_parallelism(),
            asked: Asked::default(),
            max_search_ahead: config::DEFAULT_SEARCH_AHEAD,
            retry: Retry::none(),
            on_exhausted: OnExhausted::Halt,
            poll_every: None,
            stop_at: None,
            on_job_done: None,
            on_processed: None,
            max_read_ahead: config::DEFAULT_READ_AHEAD,
            watermark: None,
            stall_after: None,
        }
    }

    /// The first index while nothing is saved; ignored once something is, be it only what is done above the first job that
    /// is not. Default: [`Jobs::first`].
    pub fn start_at(mut self, index: Index) -> Self {
        self.start_at = Some((index < Index::MAX).then_some(index));
        self
    }

    /// [`start_at`](Self::start_at) the index after this one, for those who name the last one that is processed already.
    pub fn start_after(mut self, index: Index) -> Self {
        self.start_at = Some(index.checked_add(1).filter(|next| *next < Index::MAX));
        self
    }

    /// Jobs in flight at most. Default: the available parallelism, since more only helps jobs that wait; 1 is one at a time.
    ///
    /// Threads are started as jobs need them, and never more than this. One that has had nothing to do for ten seconds ends;
    /// the last one stays.
    pub fn max_processing(mut self, n: usize) -> Self {
        self.max_processing = n;
        self
    }

    /// Threads at most that call the closure of [`start_deferred`](Self::start_deferred), where it is
    /// [`Error::Config`] otherwise: elsewhere threads follow `max_processing` and are started as needed. Default: the
    /// available parallelism, and never more than `max_processing`.
    pub fn threads(mut self, n: usize) -> Self {
        self.asked.threads = Some(n);
        self
    }

    /// No job above watermark + this is started. Default: 10 000, wide enough that one slow job among thousands holds up
    /// none. With a progress that keeps nothing but the watermark it bounds what runs again in the next life. 1 is strictly one after the other, each saved before the next.
    pub fn max_search_ahead(mut self, n: u64) -> Self {
        self.max_search_ahead = n;
        self
    }

    /// Jobs are started however far above the watermark: a stuck job then holds up no other, and what finished above it
    /// costs a few bits each, and does not run again once it is saved. (With a progress that keeps nothing but the watermark, all of
    /// it runs again in the next life.)
    pub fn unlimited_search_ahead(mut self) -> Self {
        self.max_search_ahead = u64::MAX;
        self
    }

    /// Limits the prefetch buffer: the bytes of all jobs that were read and not yet handed out,
    /// counted with [`Jobs::weight`]. Default: 64 MiB, so that a source of large blocks does not fill
    /// the memory. 0 is refused.
    ///
    /// At most max(64, 2 × `max_processing`) jobs are read ahead, whatever this limit is. The weight
    /// of a job is known only once it is read. So the first run is short, and the next ones are as
    /// long as the mean weight allows. Each time that jobs get heavier, one run can pass the limit.
    /// One job is read whatever it weighs.
    pub fn max_read_ahead(mut self, bytes: usize) -> Self {
        self.max_read_ahead = bytes;
        self
    }

    /// Whether and when a failed job is tried again. Default: [`Retry::none`].
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// What becomes of a job whose retries are used up. Default: [`OnExhausted::Halt`].
    pub fn on_exhausted(mut self, then: OnExhausted) -> Self {
        self.on_exhausted = then;
        self
    }

    /// Looks for new jobs on a timer, too. Default: every second, unless the source took the [`Wakeup`].
    pub fn poll_every(mut self, interval: Duration) -> Self {
        self.poll_every = Some(interval);
        self
    }

    /// Processes everything up to and including this index, and then ends by itself. Above the head
    /// it waits for it; below what is processed it ends at once. If it is called several times,
    /// the lowest index holds. The [`stop_at`](crate::PipelineBuilder::stop_at) of a pipeline counts
    /// as a call for its first stage. If an upstream has ended below, [`Consumer::join`] says so.
    pub fn stop_at(mut self, index: Index) -> Self {
        self.stop_at = Some(lowest_end(self.stop_at, index));
        self
    }

    /// Called after each successful attempt, on the thread that reports it, before the job counts
    /// as done. A panic in it fails the attempt. A transactional job can still fail after the call,
    /// when its effects are written: see [`Effects::add`](crate::Effects::add).
    pub fn on_job_done(mut self, callback: impl Fn(Index) + Send + Sync + 'static) -> Self {
        self.on_job_done = Some(Arc::new(callback));
        self
    }

    /// Called with what was processed since the last call, once that is saved: in order, without a gap, one call at a time, on
    /// a thread of its own. While it is busy ranges are merged, and no save is held up. A panic in it halts the consumer. A
    /// crash between a save and this call loses the call: read the watermark at start.
    pub fn on_processed(mut self, callback: impl Fn(RangeInclusive<Index>) + Send + 'static) -> Self {
        self.on_processed = Some(Box::new(callback));
        self
    }

    /// Publishes into this watermark, which was made with [`Watermark::new`] so that others could be gated by it before this
    /// consumer is started. One that is, or was, another consumer's is [`Error::Config`].
    pub fn watermark(mut self, watermark: Watermark) -> Self {
        self.watermark = Some(watermark);
        self
    }

    /// For tests: so long the watermark stands still before a line says so, in place of ten seconds.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn stall_after(mut self, patience: Duration) -> Self {
        self.stall_after = Some(patience);
        self
    }

    /// Starts, with a closure that runs one job.
    ///
    /// # Errors
    /// [`Error::Config`] for a value that was refused; [`Error::InUse`], [`Error::Corrupt`], [`Error::NotFound`] and
    /// [`Error::Progress`] from the progress; [`Error::Source`] when the source does not say where it begins; [`Error::Truncated`] when it begins above
    /// the next index; [`Error::Spawn`] when a thread cannot be started. A failing head is retried and shown in the status.
    pub fn start<F>(self, run: F) -> Result<Consumer, Error>
    where
        F: Fn(Job<J::Job>) -> Result<(), BoxError> + Send + Sync + 'static,
    {
        self.start_worker(Closure(run))
    }

    /// Starts, with a worker.
    ///
    /// # Errors
    /// Those of [`start`](Self::start).
    pub fn start_worker(self, worker: impl Worker<J::Job>) -> Result<Consumer, Error> {
        self.launch(Mode::Direct, |_, _| Arc::new(Direct(worker)))
    }

    /// Starts, with a closure that only begins a job, which is done when its [`Done`] token says so: from any thread or
    /// task. The job counts as in flight until then.
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, MemoryProgress};
    ///
    /// let jobs: MemoryJobs<_> = (0..8).collect();
    /// Consumer::builder(jobs, MemoryProgress::new())
    ///     .max_processing(4)
    ///     .stop_at(7)
    ///     .start_deferred(|job, done| {
    ///         std::thread::spawn(move || if job.payload < 8 { done.complete() } else { done.fail("too large") });
    ///     })?
    ///     .join()?;
    /// # Ok::<(), waterline::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`start`](Self::start).
    pub fn start_deferred(self, start: impl Fn(Job<J::Job>, Done) + Send + Sync + 'static) -> Result<Consumer, Error> {
        self.launch(Mode::Deferred, |driver, _| Arc::new(Deferred { start, reports: driver.clone() }))
    }

    fn validate(&self) -> Result<Limits, ConfigError> {
        check_max_processing(self.max_processing)?;
        check_search_ahead(self.max_search_ahead)?;
        check_read_ahead(self.max_read_ahead)?;
        self.retry.validate()?;
        match (self.start_at, self.stop_at, self.poll_every) {
            (Some(None), _, _) => Err(ConfigError::StartAtMax),
            (_, Some(Index::MAX), _) => Err(ConfigError::StopAtMax),
            (_, _, Some(Duration::ZERO)) => Err(ConfigError::PollEveryZero),
            _ => Ok(Limits { max_processing: self.max_processing, max_search_ahead: self.max_search_ahead }),
        }
    }

    /// With a fixed number of threads, or with effects of which so many bytes may wait.
    pub(super) fn launch<R>(self, mode: Mode, runner: R) -> Result<Consumer, Error>
    where
        R: FnOnce(&Arc<Driver<J::Job>>, Settings) -> Arc<dyn Runner<J::Job>>,
    {
        let settings = mode.settings(self.asked)?;
        let limits = self.validate()?;
        let Self { jobs, mut progress, start_at, retry, poll_every, stop_at, on_job_done, on_processed, .. } = self;
        let OnExhausted::Halt = self.on_exhausted;
        let loaded = acquire(&mut progress)?;
        let seat = progress.writer();
        let restored = seat.as_ref().map(|seat| seat.restored.clone()).unwrap_or_default();
        let watermark = self.watermark.unwrap_or_default();
        let upstreams = upstreams(&jobs)?;
        watermark.reserve(progress.label(), upstreams.clone())?;
        let mut unstarted = Unstarted { bell: Arc::default(), watermark: Some(watermark.clone()), started: false };
        let bell = unstarted.bell.clone();
        let wakeup = Wakeup::new(bell.clone(), watermark.clone());
        // Once anything is saved the stream has its beginning, though there may be no watermark yet.
        let begun = restored.next.or(start_at.flatten());
        let First { first, next, subscribed } = first_look(&jobs, loaded, begun, wakeup)?;
        // A run that has reached its end needs nothing of the source any more.
        if first > next && stop_at.is_none_or(|last| last >= next) {
            return Err(Error::Truncated { next, first });
        }
        if stop_at.is_none_or(|last| last >= next) {
            check_upstreams(&watermark, &upstreams, next)?;
        }
        let mut window = loaded.map_or_else(|| Window::begin(next, limits), |last| Window::resume(last, limits));
        if seat.is_some() {
            window.keep_done_ahead();
            window.restore(restored.done);
        }
        if let Some(index) = stop_at {
            window.stop_at(index);
        }
        let mut core = Core::new(window, retry, self.max_read_ahead);
        core.announces = on_processed.is_some();
        core.on_job_done = on_job_done;
        core.workers.fixed = settings.threads;
        core.upstreams = upstreams;
        self.stall_after.into_iter().for_each(|patience| core.stalls.patience = patience);
        core.effects.limit = settings.effects.unwrap_or(usize::MAX);
        let (saves, saver): (Arc<dyn Saves>, _) = if let Some(seat) = seat {
            core.claim = Some(Box::new(progress));
            (seat.saves, None)
        } else {
            let progress = Arc::new(Mutex::new(progress));
            let (seat, saver) = saver(progress.clone());
            core.claim = Some(Box::new(progress));
            (Arc::new(seat), Some(saver))
        };
        // Not before nothing can be refused any more, and before anybody looks at a gate that goes by it.
        loaded.into_iter().for_each(|last| watermark.publish(last));
        watermark.begin(next);
        let driver = Driver::new(core, bell.clone(), watermark.clone(), saves);
        unstarted.watermark = None;
        driver.listen();
        driver.set_runner(runner(&driver, settings));
        // From here on, dropping it stops whatever was started.
        let consumer = Consumer { control: driver.clone(), left: false };
        if let Some(saver) = saver {
            driver.spawn("wl-saver", move || saver.run())?;
        }
        if let Some(callback) = on_processed {
            let desk = driver.clone();
            driver.spawn("wl-notifier", move || notify(&desk, callback))?;
        }
        driver.spawn_first_worker()?;
        let poll_every = poll_every.or((!subscribed).then_some(config::DEFAULT_POLL));
        let source = Arc::new(Turns::new(jobs));
        driver.set_source(source.clone());
        let reader = Reader { source, desk: driver.clone(), bell, poll_every };
        driver.spawn("wl-reader", move || reader.run())?;
        unstarted.started = true;
        driver.begin();
        // Those that were started before, and wait for what an earlier life has processed, are told so by nobody else.
        watermark.announce();
        Ok(consumer)
    }
}

/// The lower one of two indices to stop at. [`Index::MAX`], which is refused at start, is refused
/// beside a lower one too.
pub(crate) fn lowest_end(earlier: Option<Index>, index: Index) -> Index {
    match earlier {
        Some(earlier) if index < Index::MAX && earlier < Index::MAX => earlier.min(index),
        Some(earlier) => earlier.max(index),
        None => index,
    }
}

/// Takes the progress name, and loads the watermark.
fn acquire(progress: &mut impl Progress) -> Result<Option<Index>, Error> {
    let loaded = guarded(|| Ok(progress.acquire())).map_err(|source| Error::Progress { source })??;
    match loaded.map(|checkpoint| checkpoint.last_processed) {
        Some(Index::MAX) => {
            let reason = format!("its watermark is {}, which is never a job", Index::MAX);
            Err(Error::Corrupt { name: "progress".to_owned(), reason })
        }
        last => Ok(last),
    }
}

/// What the source says at start.
struct First {
    first: Index,
    next: Index,
    subscribed: bool,
}

fn first_look(
    jobs: &impl Jobs,
    loaded: Option<Index>,
    start_at: Option<Index>,
    wakeup: Wakeup,
) -> Result<First, Error> {
    let wanted = loaded.map(|last| last + 1).or(start_at);
    let failed = |source| Error::Source { index: wanted.unwrap_or(0), source };
    let subscribed = guarded(|| Ok(jobs.subscribe(wakeup))).map_err(failed)?;
    let first = guarded(|| jobs.first()).map_err(failed)?;
    Ok(First { first, next: wanted.unwrap_or(first), subscribed })
}

fn upstreams(jobs: &impl Jobs) -> Result<Vec<Watermark>, Error> {
    let upstreams = guarded(|| Ok(jobs.upstreams())).map_err(|source| Error::Source { index: 0, source })?;
    Ok(Watermark::distinct(upstreams))
}

/// A gate that can never let through the first job is refused.
fn check_upstreams(watermark: &Watermark, upstreams: &[Watermark], next: Index) -> Result<(), ConfigError> {
    match upstreams.iter().find(|upstream| upstream.ended_below(next)) {
        None => Ok(()),
        Some(upstream) => Err(ConfigError::UpstreamEnded {
            consumer: watermark.name(),
            upstream: upstream.name(),
            next,
            last_processed: upstream.last_processed(),
        }),
    }
}

/// A bell that is closed when the start fails, so that the source can forget its wake-up; and a watermark that then is
/// nobody's, until there is a driver which ends it.
struct Unstarted {
    bell: Arc<Bell>,
    watermark: Option<Watermark>,
    started: bool,
}

impl Drop for Unstarted {
    fn drop(&mut self) {
        if !self.started {
            self.bell.close();
            self.watermark.iter().for_each(Watermark::release);
        }
    }
}

impl<J, P> fmt::Debug for Builder<J, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("max_processing", &self.max_processing)
            .field("max_search_ahead", &self.max_search_ahead)
            .field("retry", &self.retry)
            .field("stop_at", &self.stop_at)
            .finish_non_exhaustive()
    }
}
