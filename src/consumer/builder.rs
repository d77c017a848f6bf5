//! The builder: the settings of a consumer, their checks, and the start.

use super::Consumer;
use crate::base::config::{
    self, ConfigError, OnExhausted, check_attempt_timeout, check_index, check_max_crashes, check_max_processing,
    check_read_ahead, check_search_ahead, check_zero,
};
use crate::base::{BoxError, Error, Index, clock::Clock, retry::Retry, sync::Arc};
use crate::driver::SOURCE_RETRY;
use crate::observe::{events::Observer, observers::OnStall};
use crate::progress::{Owned, Progress};
use crate::reader::KeyOf;
use crate::run::mode::{Asked, Mode};
use crate::run::worker::{Closure, Done, Job, Worker};
use crate::run::{OnJobDone, deferred::Deferred, direct::Direct};
use crate::source::{Jobs, watermark::Watermark};
use crate::window::Limits;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

pub(super) type OnProcessed = Box<dyn Fn(RangeInclusive<Index>) + Send>;

/// Configures a [`Consumer`]; created by [`Consumer::builder`]. The start checks the values.
#[must_use = "nothing happens before it is started"]
pub struct Builder<J: Jobs, P> {
    pub(super) jobs: J,
    /// Makes the keys of jobs, if jobs of one key run in order.
    pub(super) key: Option<KeyOf<J::Job>>,
    pub(super) progress: P,
    /// The index to start at. The inner value is `None` if it is no valid index.
    pub(super) start_at: Option<Option<Index>>,
    pub(super) max_processing: usize,
    /// The settings that only some modes accept.
    pub(super) asked: Asked,
    pub(super) max_search_ahead: u64,
    pub(super) retry: Retry,
    pub(super) attempt_timeout: Option<Duration>,
    pub(super) on_exhausted: OnExhausted,
    pub(super) max_crashes: Option<u32>,
    pub(super) clock: Clock,
    pub(super) poll_every: Option<Duration>,
    pub(super) source_retry: Retry,
    pub(super) source_timeout: Option<Duration>,
    pub(super) max_reading: usize,
    pub(super) stop_at: Option<Index>,
    pub(super) on_job_done: Option<Arc<OnJobDone>>,
    pub(super) on_processed: Option<OnProcessed>,
    pub(super) max_read_ahead: usize,
    pub(super) watermark: Option<Watermark>,
    pub(super) standby: bool,
    /// What belongs to the progress.
    pub(super) owns: Vec<Owned>,
    pub(super) observers: Vec<Box<dyn Observer>>,
    pub(super) on_stall: Vec<(Duration, Box<OnStall>)>,
    #[cfg(feature = "metrics")]
    pub(super) metrics: bool,
}

impl Consumer {
    /// Returns a builder for a consumer of these jobs that saves its watermark in this progress.
    ///
    /// Nothing happens before it is started.
    pub fn builder<J: Jobs, P: Progress>(jobs: J, progress: P) -> Builder<J, P> {
        Builder::new(jobs, progress)
    }
}

impl<J: Jobs, P: Progress> Builder<J, P> {
    pub(super) fn new(jobs: J, progress: P) -> Self {
        Self {
            jobs,
            key: None,
            progress,
            start_at: None,
            max_processing: config::available_parallelism(),
            asked: Asked::default(),
            max_search_ahead: config::DEFAULT_SEARCH_AHEAD,
            retry: Retry::none(),
            attempt_timeout: None,
            on_exhausted: OnExhausted::Halt,
            max_crashes: None,
            clock: Clock::default(),
            poll_every: None,
            source_retry: SOURCE_RETRY,
            source_timeout: None,
            max_reading: 1,
            stop_at: None,
            on_job_done: None,
            on_processed: None,
            max_read_ahead: config::DEFAULT_READ_AHEAD,
            watermark: None,
            standby: false,
            owns: Vec::new(),
            observers: Vec::new(),
            on_stall: Vec::new(),
            #[cfg(feature = "metrics")]
            metrics: false,
        }
    }

    /// Sets the first index, used as long as nothing is saved. Default: [`Jobs::first`].
    ///
    /// It is ignored once anything is saved, even if only a job above the first unfinished one.
    #[doc(alias = "backfill")]
    pub fn start_at(mut self, index: Index) -> Self {
        self.start_at = Some((index < Index::MAX).then_some(index));
        self
    }

    /// Like [`start_at`](Self::start_at), with the last index that is already processed.
    pub fn start_after(mut self, index: Index) -> Self {
        self.start_at = Some(index.checked_add(1).filter(|next| *next < Index::MAX));
        self
    }

    /// Limits the jobs in flight. Default: the available parallelism.
    ///
    /// A higher number helps only jobs that wait for something. With 1, jobs run one at a time. The
    /// consumer starts threads as jobs need them, and never more than this. A thread that has been
    /// idle for ten seconds ends; the last one stays.
    pub fn max_processing(mut self, n: usize) -> Self {
        self.max_processing = n;
        self
    }

    /// Limits the threads that call the closure of [`start_deferred`](Self::start_deferred).
    ///
    /// With any other start this is [`Error::Config`]: there the threads follow `max_processing`.
    /// Default: the available parallelism, and never more than `max_processing`.
    pub fn threads(mut self, n: usize) -> Self {
        self.asked.threads = Some(n);
        self
    }

    /// Limits the width of the window: no job above watermark + `n` starts. Default: 10 000.
    ///
    /// So one slow job among thousands holds up no other. With 1, jobs run strictly one after the
    /// other, and each is saved before the next one starts. If the progress keeps only the
    /// watermark, this also limits how many jobs run again in the next life.
    pub fn max_search_ahead(mut self, n: u64) -> Self {
        self.max_search_ahead = n;
        self
    }

    /// Removes the limit of the window: jobs start however far above the watermark.
    ///
    /// Then a stuck job holds up no other. Each job that finished above it costs a few bits, and
    /// does not run again once it is saved. (If the progress keeps only the watermark, all these
    /// jobs run again in the next life.)
    ///
    /// A stream with gaps ([`Jobs::read_sparse`]) still has a limit: after its first gap nothing
    /// further than 2²⁷ above the watermark starts. So the bits take at most 16 MiB.
    pub fn unlimited_search_ahead(mut self) -> Self {
        self.max_search_ahead = u64::MAX;
        self
    }

    /// Limits the bytes of the read-ahead (prefetch) buffer. Default: 64 MiB.
    ///
    /// All jobs that were read and not yet handed out count, with their [`Jobs::weight`], so a
    /// source of large blocks does not fill the memory. 0 is refused. Whatever this limit is, at
    /// most max(64, 2 × `max_processing`) jobs are read ahead.
    ///
    /// A job's weight is known only once it is read. So the first run is short, and later runs are
    /// as long as the mean weight allows. Each time that jobs get heavier, one run can exceed the
    /// limit. A single job is read whatever it weighs.
    pub fn max_read_ahead(mut self, bytes: usize) -> Self {
        self.max_read_ahead = bytes;
        self
    }

    /// Sets how often and how soon a failed job is retried. Default: [`Retry::none`].
    ///
    /// An attempt that ends with an error while the consumer stops does not count: the job is put
    /// back, and the next life runs it. It neither halts the consumer nor parks the job, unless the
    /// failure is [permanent](crate::Failure::permanent).
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Limits the time of each attempt. Default: no limit.
    ///
    /// An attempt that takes longer fails with [`Error::AttemptTimeout`] and counts like any other
    /// failed attempt: the [`Retry`] and [`on_exhausted`](Self::on_exhausted) decide what follows.
    /// A time of zero is refused. There is no limit by default, since only you know how long a job
    /// may take, and since an attempt that is cut off may have had half of its effects.
    ///
    /// The time begins when the attempt is handed to its thread, and goes on during a pause and a
    /// stop. It is exact to within a tick of the system's timer (1 to 16 ms). Running code cannot
    /// be ended from outside, so what happens depends on how the consumer was started:
    ///
    /// * [`start_deferred`](Self::start_deferred): the attempt fails at once. Its token can be used
    ///   later, and changes nothing then. From that moment [`Done::is_stopping`] is true. The code
    ///   behind the attempt may go on, **beside `max_processing`**, and beside the next attempt of
    ///   the same job. Neither a stop nor [`Consumer::join`] waits for it. But each token keeps the
    ///   name of the progress in use until it is used or dropped, even after the end.
    /// * `start_async` and its variants (feature `tokio`): the task drops the future and fails
    ///   then, so the next attempt never runs beside this one. A future that blocks its thread is
    ///   dropped once it gives the thread back, unless it is ready then.
    /// * [`start`](Self::start), [`start_worker`](Self::start_worker),
    ///   [`start_ordered`](Self::start_ordered) (for the work; the sink has no timeout),
    ///   `start_transactional` and the starts with batches: nothing can end a thread. The job is
    ///   told: [`Job::is_stopping`] is true on its thread, and
    ///   [`Status::blocked`](crate::Status::blocked) names the job once the watermark waits for it.
    ///   The attempt counts by its result, however late. If that is `Ok`, the work is done, and a
    ///   transactional job has its effects. If it is an error, the attempt has failed.
    ///
    /// A dedicated thread, `wl-timeouts`, notices the timeouts. It calls the
    /// [observers](Self::observe) of a deferred attempt, so an observer that hangs holds up the
    /// timeouts.
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline::{Consumer, Error, MemoryJobs, MemoryProgress, Retry};
    ///
    /// let (forget, forgotten) = crossbeam_channel::unbounded();
    /// let jobs: MemoryJobs<_> = (0..1).collect();
    /// let consumer = Consumer::builder(jobs, MemoryProgress::new())
    ///     .attempt_timeout(Duration::from_millis(20))
    ///     .retry(Retry::fixed(Duration::ZERO).max_attempts(2))
    ///     .start_deferred(move |_, done| _ = forget.send(done))?;      // it never answers
    /// let Err(Error::Job { attempt: 2, source, .. }) = consumer.join() else { panic!("it failed twice") };
    /// assert!(matches!(source.downcast_ref(), Some(Error::AttemptTimeout { index: 0, .. })));
    /// forgotten.iter().for_each(|done| done.complete());              // too late: nothing happens
    /// # Ok::<(), Error>(())
    /// ```
    pub fn attempt_timeout(mut self, after: Duration) -> Self {
        self.attempt_timeout = Some(after);
        self
    }

    /// Sets what happens to a job that has used up its attempts. Default: [`OnExhausted::Halt`].
    pub fn on_exhausted(mut self, then: OnExhausted) -> Self {
        self.on_exhausted = then;
        self
    }

    /// Limits how often a job may kill its process: by an abort, stack overflow, or lack of memory.
    ///
    /// Then the job is parked with [`OnExhausted::Park`], or the consumer halts with
    /// [`Error::Crashed`](crate::Error::Crashed). At least 1. Default: 5 with `Park`, else no
    /// limit, so that a long job survives any number of forced restarts.
    ///
    /// The process dies at most this many times plus two for one job, and no other job is blamed.
    /// After the first death, jobs are recorded in the store before they start, many in one write.
    /// After the second, the recorded ones run alone, one after the other, and the store counts
    /// before each of them. A death counts only for the job that runs alone. A job whose attempt
    /// succeeds, or ends with an error, is cleared. If that attempt fails, the other jobs have at
    /// least four times as long as it took before the next one, whatever the back-off is. A process
    /// killed from outside looks the same as one that a job kills, so choose a number above 1.
    ///
    /// It costs two small writes for each life of the consumer, and nothing for each job. The
    /// attempts of failed jobs are stored too, so the next life goes on counting them, and waits
    /// for the rest of their back-off. It needs the progress of a [`Store`](crate::Store), or one
    /// that [keeps records](crate::Progress::keeps_records).
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, Retry, Store};
    /// use std::time::Duration;
    ///
    /// let (store, jobs) = (Store::in_memory(), (0..1).collect::<MemoryJobs<_>>());
    /// let retry = Retry::fixed(Duration::from_millis(20));
    /// let life = || Consumer::builder(jobs.clone(), store.progress("p")).retry(retry).max_crashes(3);
    /// let (say, said) = crossbeam_channel::unbounded();
    /// let first = life().start(move |job| {
    ///     say.send(job.attempt)?;
    ///     Err("not yet".into())
    /// })?;
    /// said.recv()?;
    /// first.stop()?;
    /// // The next life goes on with the attempt after the last one.
    /// let last = said.iter().last().unwrap_or(1);
    /// life().stop_at(0).start(move |job| Ok(assert_eq!(job.attempt, last + 1)))?.join()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn max_crashes(mut self, n: u32) -> Self {
        self.max_crashes = Some(n);
        self
    }

    /// Polls the source for new jobs at this interval, in addition to wake-ups.
    ///
    /// Default: every second, unless the source took the [`Wakeup`](crate::Wakeup).
    pub fn poll_every(mut self, interval: Duration) -> Self {
        self.poll_every = Some(interval);
        self
    }

    /// Sets the clock, for tests. Default: the system's.
    ///
    /// With `Clock::manual` (feature `testing`) a test lets hours pass at once. The consumer uses
    /// the clock for everything that it decides by time: the back-off of jobs, of the source and of
    /// saves, polls, the pace of saves, batches that wait for more jobs, the timeouts of attempts,
    /// stalls, measurements, and the tries of a [`standby`](Self::standby). The times in statuses,
    /// events and records are those of this clock.
    ///
    /// Some waits use the machine's own time, whatever the clock is: the timeout of a call that
    /// waits, such as [`Handle::wait_for`](crate::Handle::wait_for) and [`Consumer::stop_within`];
    /// the idle time of the pool's threads; and the writer of a [`Store`](crate::Store), which
    /// serves all users of the store at its own pace and retries by itself. On a manual clock a
    /// [pace](Progress::pace) of a millisecond or less is none.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Ends the consumer once everything up to and including this index is processed.
    ///
    /// Where indices begin is up to the source: those of a [`JobLog`](crate::JobLog) begin with 1,
    /// those of a [`MemoryJobs`](crate::MemoryJobs) with 0. If the index is above the head, the
    /// consumer waits for it. If it is below the watermark, the consumer ends at once. If `stop_at`
    /// is called several times, the lowest index holds; the
    /// [`stop_at`](crate::PipelineBuilder::stop_at) of a pipeline counts as a call for its first
    /// stage. If an upstream has ended below the index, [`Consumer::join`] returns an error.
    pub fn stop_at(mut self, index: Index) -> Self {
        self.stop_at = Some(lowest_end(self.stop_at, index));
        self
    }

    /// Calls this closure after each successful attempt, before the job counts as done.
    ///
    /// It runs on the thread that reports the attempt, and a panic in it fails the attempt. A
    /// transactional job can still fail after this call, when its effects are written: see
    /// [`Effects::add`](crate::Effects::add) and `Queue::push_with`. A later attempt then calls it
    /// again.
    pub fn on_job_done(mut self, callback: impl Fn(Index) + Send + Sync + 'static) -> Self {
        self.on_job_done = Some(Arc::new(callback));
        self
    }

    /// Calls this closure with each range of indices that was processed and saved.
    ///
    /// The calls come in order, without a gap, one at a time, on their own thread. A slow closure
    /// holds up no save; the ranges that come meanwhile are merged. A panic in it halts the
    /// consumer. A crash between a save and its call loses the call, so read the watermark at the
    /// start.
    pub fn on_processed(mut self, callback: impl Fn(RangeInclusive<Index>) + Send + 'static) -> Self {
        self.on_processed = Some(Box::new(callback));
        self
    }

    /// Publishes the watermark into this one, made with [`Watermark::new`].
    ///
    /// Other consumers can then be gated by it before this one starts. A watermark that another
    /// consumer uses, or has used, is [`Error::Config`].
    pub fn watermark(mut self, watermark: Watermark) -> Self {
        self.watermark = Some(watermark);
        self
    }

    /// Starts the consumer with a closure that runs one job.
    ///
    /// # Errors
    /// * [`Error::Config`] if a value was refused.
    /// * [`Error::InUse`], [`Error::Leased`], [`Error::Corrupt`], [`Error::NotFound`] and
    ///   [`Error::Progress`] from the progress.
    /// * [`Error::Fenced`] if the progress lost its name meanwhile.
    /// * [`Error::Source`] if the source fails to say where it begins.
    /// * [`Error::Truncated`] if the source begins above the next index.
    /// * [`Error::Spawn`] if a thread cannot be started.
    ///
    /// With [`standby`](Self::standby) the consumer waits after [`Error::InUse`] and
    /// [`Error::Leased`]. An error of [`Jobs::head`] is none of these: the consumer retries, and
    /// its status shows it.
    #[doc(alias = "at least once")]
    pub fn start<F>(self, run: F) -> Result<Consumer, Error>
    where
        F: Fn(Job<J::Job>) -> Result<(), BoxError> + Send + Sync + 'static,
    {
        self.start_worker(Closure(run))
    }

    /// Starts the consumer with a worker.
    ///
    /// # Errors
    /// The errors of [`start`](Self::start).
    pub fn start_worker(self, worker: impl Worker<J::Job>) -> Result<Consumer, Error> {
        self.launch(Mode::Direct, |driver, _| Arc::new(Direct { worker, spans: driver.spans() }))
    }

    /// Starts the consumer with a closure that only begins a job.
    ///
    /// The job is done when its [`Done`] token says so, from any thread or task; until then it is
    /// in flight.
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
    /// The errors of [`start`](Self::start).
    pub fn start_deferred(self, start: impl Fn(Job<J::Job>, Done) + Send + Sync + 'static) -> Result<Consumer, Error> {
        let timed = self.attempt_timeout.is_some();
        self.launch(Mode::Deferred, move |driver, _| {
            Arc::new(Deferred { start, reports: driver.clone(), timed, spans: driver.spans() })
        })
    }

    /// Checks the settings that all modes share.
    pub(super) fn validate(&self) -> Result<Limits, ConfigError> {
        check_max_processing(self.max_processing)?;
        check_search_ahead(self.max_search_ahead)?;
        check_read_ahead(self.max_read_ahead)?;
        self.retry.validate()?;
        let why = "the time of on_stall is zero, so each job would be a stall: use a second or more";
        check_zero("on_stall", self.on_stall.iter().any(|(after, _)| after.is_zero()), why)?;
        check_attempt_timeout(self.attempt_timeout)?;
        check_index("start_at", self.start_at.map_or(0, |first| first.unwrap_or(Index::MAX)))?;
        check_index("stop_at", self.stop_at.unwrap_or(0))?;
        let why = "poll_every is zero, so the consumer would never sleep: use a millisecond or more, or let the source ring its \
                   `Wakeup`";
        check_zero("poll_every", self.poll_every == Some(Duration::ZERO), why)?;
        check_max_crashes(self.max_crashes)?;
        let why = "the budget of parked jobs is 0, so none could be parked: use 1 or more, or `OnExhausted::Halt`";
        check_zero("budget", self.on_exhausted == OnExhausted::Park { budget: 0 }, why)?;
        Ok(Limits { max_processing: self.max_processing, max_search_ahead: self.max_search_ahead })
    }
}

/// Returns the lower of two indices to stop at, or [`Index::MAX`] if one is: the start refuses it.
pub(crate) fn lowest_end(earlier: Option<Index>, index: Index) -> Index {
    match earlier {
        Some(earlier) if index < Index::MAX && earlier < Index::MAX => earlier.min(index),
        Some(earlier) => earlier.max(index),
        None => index,
    }
}

impl<J: Jobs, P> fmt::Debug for Builder<J, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("max_processing", &self.max_processing)
            .field("max_search_ahead", &self.max_search_ahead)
            .field("retry", &self.retry)
            .field("stop_at", &self.stop_at)
            .finish_non_exhaustive()
    }
}
