//! The starts of a consumer whose jobs are futures on a tokio runtime.

use super::writing::Writer;
use super::{Builder, Consumer};
use crate::base::{BoxError, Error, Index, sync::Arc};
use crate::driver::Driver;
use crate::effects::Effects;
use crate::progress::{Commits, Progress, StoreProgress, Transactional};
use crate::run::asynchronous::{Asynchronous, Completion, WithEffects, has_shut_down};
use crate::run::mode::{Mode, Settings};
use crate::run::{ordered::Sink, worker::Job, writing::Results};
use crate::source::Jobs;
use tokio::runtime::Handle;

impl<J: Jobs, P: Progress> Builder<J, P> {
    /// Starts the consumer with an async closure: each job is a future on this tokio runtime.
    ///
    /// The job is done when the future returns `Ok`, and failed if it returns an error or panics.
    /// No job holds a thread while it waits, so [`max_processing`](Self::max_processing) may be ten
    /// thousand.
    ///
    /// A few threads of the consumer (at most one for each core) take the jobs. Such a thread calls
    /// the closure and polls the future once, in the context of the runtime. If the future is ready
    /// then, the job was never a task. Otherwise the future becomes a task of its own, which the
    /// runtime polls from then on. So code that blocks before the first `.await` holds up other
    /// jobs; put it into `spawn_blocking`. Within the first poll there is no task
    /// (`tokio::task::id` panics).
    ///
    /// A stop awaits the running jobs. After the limit of [`stop_within`](Consumer::stop_within)
    /// each of their futures is woken and dropped at its next poll. In a job, [`Job::is_stopping`]
    /// says that the consumer stops, and a call that waits for the end of this same consumer
    /// returns at once, as on one of its threads.
    ///
    /// The runtime must be driven until the consumer has ended. A `multi_thread` runtime drives
    /// itself. A `current_thread` runtime runs only within its `block_on`: outside of it, jobs that
    /// need more than one poll stay in flight, and a stop waits for them. On the thread of that
    /// runtime await the end with [`Consumer::stop_async`] or [`Consumer::join_async`]; `stop` and
    /// `join` would wait there for ever. A consumer dropped within the context of a runtime is only
    /// asked to stop, and the error of its end is logged.
    ///
    /// If the runtime shuts down first, the running jobs fail without a retry: the consumer halts
    /// with [`Error::Job`], whose source is [`Error::Runtime`]. They run again in the next life.
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline::{Consumer, MemoryJobs, MemoryProgress};
    ///
    /// let runtime = tokio::runtime::Runtime::new()?;
    /// let jobs: MemoryJobs<u64> = (0..2_000).collect();
    /// let consumer = Consumer::builder(jobs, MemoryProgress::new())
    ///     .max_processing(1_000)
    ///     .stop_at(1_999)
    ///     .start_async(runtime.handle(), |job| async move {
    ///         tokio::time::sleep(Duration::from_millis(5)).await;      // a request, for example
    ///         if job.payload < 2_000 { Ok(()) } else { Err("too large".into()) }
    ///     })?;
    /// runtime.block_on(consumer.join_async())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`start`](Self::start), and [`Error::Runtime`] if the runtime has shut down.
    pub fn start_async<F, Fut>(self, runtime: &Handle, run: F) -> Result<Consumer, Error>
    where
        F: Fn(Job<J::Job>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        self.launch_futures(Mode::Direct, None, runtime, |_, _| (run, ()))
    }

    /// Starts the consumer with an async closure for the jobs and a `sink` that takes the results
    /// in index order.
    ///
    /// This is [`start_ordered`](Self::start_ordered) with jobs that are futures, as in
    /// [`start_async`](Self::start_async). The sink is a function. It runs on a thread of the
    /// consumer, never on one of the runtime, so it may block.
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, MemoryProgress};
    ///
    /// let runtime = tokio::runtime::Runtime::new()?;
    /// let jobs: MemoryJobs<_> = ["one", "two", "three"].into_iter().collect();
    /// let (send, results) = crossbeam_channel::unbounded();
    /// Consumer::builder(jobs, MemoryProgress::new())
    ///     .stop_at(2)
    ///     .start_ordered_async(
    ///         runtime.handle(),
    ///         |job| async move {
    ///             tokio::task::yield_now().await;                         // a request, for example
    ///             Ok(job.payload.len())
    ///         },
    ///         move |index, length| Ok(send.send((index, length))?),
    ///     )?
    ///     .join()?;
    /// assert_eq!(results.iter().collect::<Vec<_>>(), [(0, 3), (1, 3), (2, 5)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`start_async`](Self::start_async).
    pub fn start_ordered_async<R, F, Fut, S>(self, runtime: &Handle, work: F, sink: S) -> Result<Consumer, Error>
    where
        R: Send + 'static,
        F: Fn(Job<J::Job>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, BoxError>> + Send + 'static,
        S: FnMut(Index, R) -> Result<(), BoxError> + Send + 'static,
    {
        self.launch_futures(Mode::Ordered, None, runtime, |_, _| (work, Sink::new(sink)))
    }

    /// Starts a consumer whose jobs are futures. `parts` makes the futures and their completion.
    fn launch_futures<R, F, Fut, C>(
        mut self,
        mode: Mode,
        commits: Option<Box<dyn Commits<P>>>,
        runtime: &Handle,
        parts: impl FnOnce(&Arc<Driver>, Settings) -> (F, C) + Send + 'static,
    ) -> Result<Consumer, Error>
    where
        R: 'static,
        F: Fn(Job<J::Job>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, BoxError>> + Send + 'static,
        C: Completion<R>,
    {
        if has_shut_down(runtime) {
            return Err(Error::Runtime);
        }
        let runtime = runtime.clone();
        self.asked.futures = true;
        let mut consumer = self.launch_with(mode, commits, |driver, settings| {
            let (start, completion) = parts(driver, settings);
            Arc::new(Asynchronous::new(start, completion, runtime, driver.clone()))
        })?;
        consumer.on_runtime = true;
        Ok(consumer)
    }
}

impl<J: Jobs> Builder<J, StoreProgress> {
    /// Starts the consumer with an async closure whose effects are made *exactly once*.
    ///
    /// This is [`start_transactional`](Self::start_transactional) with jobs that are futures, as in
    /// [`start_async`](Self::start_async). A future gets its [`Effects`] by value and hands them
    /// back when it succeeds. Those of a failed attempt are dropped. A future that hands back the
    /// effects of another attempt has failed.
    ///
    /// ```
    /// use waterline::{Consumer, MemoryJobs, Store};
    ///
    /// let runtime = tokio::runtime::Runtime::new()?;
    /// let store = Store::in_memory();
    /// let sizes = store.table("sizes")?;
    /// let pages: MemoryJobs<_> = (0..100).map(|n| format!("/page/{n}")).collect();
    /// let table = sizes.clone();
    /// Consumer::builder(pages, store.progress("sizes"))
    ///     .max_processing(100)
    ///     .stop_at(99)
    ///     .start_transactional_async(runtime.handle(), move |job, mut effects| {
    ///         let sizes = table.clone();
    ///         async move {
    ///             tokio::task::yield_now().await;                         // a request, for example
    ///             effects.add(&sizes, "bytes", i64::try_from(job.payload.len())?)?;
    ///             effects.put(&sizes, &job.payload, job.payload.len().to_string())?;
    ///             Ok(effects)
    ///         }
    ///     })?
    ///     .join()?;
    /// assert_eq!(sizes.counter("bytes")?, 790);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`start_async`](Self::start_async).
    pub fn start_transactional_async<F, Fut>(self, runtime: &Handle, run: F) -> Result<Consumer, Error>
    where
        F: Fn(Job<J::Job>, Effects) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Effects, BoxError>> + Send + 'static,
    {
        let store = self.progress.store().home();
        self.launch_futures(Mode::Transactional, None, runtime, move |_, settings| {
            let limit = settings.effects.unwrap_or(usize::MAX);
            let start = move |job| {
                let (effects, mark) = Effects::of_future(store, limit);
                let running = run(job, effects);
                async move { running.await?.finish_future(mark) }
            };
            (start, WithEffects)
        })
    }
}

impl<J: Jobs, P: Transactional> Builder<J, P> {
    /// Starts the consumer with an async closure for the jobs and `write` for their results,
    /// *exactly once*.
    ///
    /// This is [`start_writing`](Self::start_writing) with jobs that are futures, as in
    /// [`start_async`](Self::start_async). `write` is a function: it runs on the thread that has
    /// the connection. The example of [`Transactional`] needs no other change.
    ///
    /// # Errors
    /// The errors of [`start_writing`](Self::start_writing) and [`start_async`](Self::start_async).
    pub fn start_writing_async<R, F, Fut, W>(self, runtime: &Handle, run: F, write: W) -> Result<Consumer, Error>
    where
        R: Send + 'static,
        F: Fn(Job<J::Job>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, BoxError>> + Send + 'static,
        W: FnMut(&mut P::Tx<'_>, &[(Index, R)]) -> Result<(), BoxError> + Send + 'static,
    {
        let results: Results<R> = Arc::default();
        let writer = Writer::new(write, &results);
        self.launch_futures(Mode::Writing, Some(writer), runtime, |_, _| (run, results))
    }
}
