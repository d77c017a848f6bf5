//! The handle of a runner.

use crate::runner::pool::Pool;
use crate::types::config::ConfigError;
use crate::types::error::QueueError;
#[cfg(doc)]
use crate::{Finisher, Queue, RunnerBuilder};
use std::fmt;
use std::sync::Arc;
use std::sync::Weak;
use std::time::Duration;

/// Runs the jobs of a queue, with a handler for each kind: see [`Runner::builder`].
///
/// A queue has at most one runner. A dropped runner stops, as by [`stop`](Self::stop), and waits as
/// long. If its jobs are futures and it is dropped within a runtime, it is only asked to stop,
/// since waiting there could hold them up.
///
/// ```
/// use std::time::Duration;
/// use waterline::Store;
/// use waterline_queue::{AttemptEnd, JobState, NewJob, Outcome, Queue, QueueOptions, Runner};
///
/// let queue = Queue::open(&Store::in_memory(), "mail", QueueOptions::default())?;
/// let runner = Runner::builder(&queue)
///     .on("welcome", |job, address: String| {
///         println!("attempt {} for {address}", job.attempt());
///         Ok(Outcome::Done)
///     })
///     .teardown(|job, ended| if let AttemptEnd::Dead { error } = ended { eprintln!("{}: {error}", job.id()) })
///     .max_processing(8)
///     .start()?;
/// let id = queue.push(NewJob::new("welcome", "ann@example.org")?)?.id;
/// queue.subscribe(&id)?.wait_for(JobState::Finished, Duration::from_secs(60))?.expect("it is sent");
/// runner.stop_within(Duration::from_secs(30))?;
/// # Ok::<(), waterline_queue::QueueError>(())
/// ```
pub struct Runner {
    pub(super) pool: Option<Arc<Pool>>,
}

impl Runner {
    /// Hands out no more jobs, waits for the running ones, and returns when their ends are written.
    /// It blocks the calling thread, so a single-threaded runtime completes no futures meanwhile.
    ///
    /// On a thread of the runner itself, and in a hook or a future of a job, it does not wait.
    ///
    /// # Errors
    /// [`QueueError::Config`] with [`ConfigError::OwnThread`] where it did not wait,
    /// [`QueueError::Store`] with [`Error::Thread`](waterline::Error::Thread) if a thread panicked.
    #[doc(alias = "graceful shutdown")]
    pub fn stop(mut self) -> Result<(), QueueError> {
        self.pool.take().map_or(Ok(()), |pool| pool.stop(None))
    }

    /// Stops as [`stop`](Self::stop) does, but gives up the jobs that still run after this time:
    ///
    /// * A future is dropped. Once it is gone, its job is handed back: it is ready, the attempt
    ///   does not count, and its data and progress stay.
    /// * A function keeps its lease for [`QueueOptions::lease`](crate::QueueOptions::lease), and
    ///   its result by then counts. After that its job is handed back, too, and so is that of a
    ///   future that blocks its thread.
    /// * A [`Finisher`] no longer has an effect, and its job is handed back after the same time.
    ///
    /// If the process ends before that, it is no crash of these jobs: each stop notes in the store
    /// which jobs run. They are ready when the program starts again, or, on PostgreSQL, once their
    /// leases are over, and nothing is counted. Only a death without a stop is a crash.
    ///
    /// It blocks the calling thread: a single-threaded runtime completes no futures meanwhile, so
    /// call `stop_within_async` there.
    ///
    /// # Errors
    /// [`QueueError::StopTimeout`] with the jobs that still run.
    #[doc(alias("drain", "graceful shutdown"))]
    pub fn stop_within(mut self, limit: Duration) -> Result<(), QueueError> {
        self.pool.take().map_or(Ok(()), |pool| pool.stop(Some(limit)))
    }

    /// Sets how many jobs run at once, at least 1, while the runner runs: see
    /// [`RunnerBuilder::max_processing`]. If it is raised, more jobs start at once. If it is
    /// lowered, running jobs go on, and none starts until fewer are left. It never waits, so a
    /// handler may call it too.
    ///
    /// ```
    /// # use waterline::Store;
    /// # use waterline_queue::{Outcome, Queue, QueueError, QueueOptions, Runner};
    /// # let queue = Queue::open(&Store::in_memory(), "thumbnails", QueueOptions::default())?;
    /// let runner = Runner::builder(&queue).on("png", |_job, _name: String| Ok(Outcome::Done)).max_processing(2).start()?;
    /// runner.set_max_processing(16)?;         // the users sleep
    /// assert!(matches!(runner.set_max_processing(0), Err(QueueError::Config(_))));
    /// # runner.stop()?;
    /// # Ok::<(), QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Config`] with [`ConfigError::Zero`](waterline::ConfigError::Zero): to claim
    /// nothing, [pause](Queue::pause) the queue.
    pub fn set_max_processing(&self, jobs: usize) -> Result<(), QueueError> {
        waterline::seam::check_max_processing(jobs)?;
        self.pool.iter().for_each(|pool| pool.resize(jobs));
        Ok(())
    }

    /// Returns how many jobs run.
    #[must_use]
    pub fn processing(&self) -> usize {
        self.pool.as_ref().map_or(0, |pool| pool.in_flight())
    }
}

impl Runner {
    /// Returns a handle to watch and resize the runner, from any thread. It keeps nothing alive.
    ///
    /// ```
    /// # use waterline::Store;
    /// # use waterline_queue::{Outcome, Queue, QueueError, QueueOptions, Runner};
    /// # let queue = Queue::open(&Store::in_memory(), "thumbnails", QueueOptions::default())?;
    /// let runner = Runner::builder(&queue).on("png", |_job, _name: String| Ok(Outcome::Done)).max_processing(2).start()?;
    /// let handle = runner.handle();
    /// handle.set_max_processing(16)?;
    /// assert_eq!((handle.queues(), handle.slots()), (&["thumbnails".to_owned()][..], Some(16)));
    /// runner.stop()?;
    /// assert_eq!(handle.slots(), None);
    /// # Ok::<(), QueueError>(())
    /// ```
    #[must_use]
    pub fn handle(&self) -> RunnerHandle {
        let queues = self.pool.iter().flat_map(|pool| pool.source().queues());
        let queues = queues.map(|queue| queue.name().to_owned()).collect();
        RunnerHandle { pool: self.pool.as_ref().map(Arc::downgrade).unwrap_or_default(), queues }
    }
}

/// Watches and steers a [`Runner`], from any thread. Made by [`Runner::handle`].
#[derive(Clone)]
pub struct RunnerHandle {
    pool: Weak<Pool>,
    queues: Vec<String>,
}

impl RunnerHandle {
    /// Returns the names of the queues whose jobs it runs.
    #[must_use]
    pub fn queues(&self) -> &[String] {
        &self.queues
    }

    /// Returns how many jobs run.
    #[must_use]
    pub fn processing(&self) -> usize {
        self.pool.upgrade().map_or(0, |pool| pool.in_flight())
    }

    /// Returns how many jobs run at once at most; `None` once the runner has ended.
    #[must_use]
    pub fn slots(&self) -> Option<usize> {
        self.pool.upgrade().and_then(|pool| pool.source().first().shared.slots())
    }

    /// Sets how many jobs run at once, if it still runs: see [`Runner::set_max_processing`].
    ///
    /// # Errors
    /// The same as [`Runner::set_max_processing`].
    pub fn set_max_processing(&self, jobs: usize) -> Result<(), QueueError> {
        waterline::seam::check_max_processing(jobs)?;
        self.pool.upgrade().iter().for_each(|pool| pool.resize(jobs));
        Ok(())
    }
}

impl fmt::Debug for RunnerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunnerHandle").field("queues", &self.queues).finish_non_exhaustive()
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        #[cfg(feature = "tokio")]
        if let Some(pool) = self.pool.take_if(|pool| pool.must_not_wait()) {
            return pool.let_go();
        }
        let Some(pool) = self.pool.take() else { return };
        match pool.stop(None) {
            // On its own thread it stops without waiting.
            Ok(()) | Err(QueueError::Config(ConfigError::OwnThread)) => {}
            Err(error) => {
                let (queue, error) = (pool.source().name(), error.report());
                tracing::error!(target: "waterline", queue, error, "a runner that was dropped did not stop well");
            }
        }
    }
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner").field("processing", &self.processing()).finish_non_exhaustive()
    }
}
