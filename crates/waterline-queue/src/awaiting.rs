//! The calls of a queue as futures, which block no thread.

mod changes;
mod keeper;
mod off_thread;

use crate::accept::Accept;
use crate::awaiting::keeper::Waiting;
use crate::awaiting::off_thread::off_thread;
use crate::bound::pause_for_room;
use crate::group::Group;
use crate::group::members::Members;
use crate::handle::Queue;
use crate::lease::Lease;
use crate::notify::bell::Takes;
use crate::subscription::Subscription;
use crate::types::error::QueueError;
use crate::types::info::JobInfo;
use crate::types::job::{JobId, JobState, Pushed};
use crate::types::new_job::NewJob;
use crate::types::page::Page;
use crate::types::typed::TypedJob;
use std::time::Duration;
use tokio::runtime::Handle;
use waterline::seam::{ClockExt, within};

impl Queue {
    /// Makes a blocking call of the queue on the runtime's pool for such calls, and awaits its
    /// answer. Use it for each call that has no future of its own.
    ///
    /// Once the future was polled, the call is made, even if the future is dropped before it is
    /// ready. Only a runtime that shuts down may prevent it.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{NewJob, Queue, QueueError, QueueOptions};
    ///
    /// # tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
    /// let queue = Queue::open(&Store::in_memory(), "mail", QueueOptions::default())?;
    /// let jobs = vec![NewJob::new("welcome", "ann")?, NewJob::new("welcome", "bob")?];
    /// queue.run_async(|queue| queue.push_all(jobs)).await?;
    /// assert_eq!(queue.run_async(|queue| queue.purge()).await?, 2);
    /// # Ok::<(), QueueError>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// The same as the call, and [`QueueError::Store`] with
    /// [`Error::Runtime`](waterline::Error::Runtime) outside of a runtime, or if it shuts down
    /// before the call has begun.
    ///
    /// # Panics
    /// If the call panics.
    pub async fn run_async<R, F>(&self, call: F) -> Result<R, QueueError>
    where
        R: Send + 'static,
        F: FnOnce(&Self) -> Result<R, QueueError> + Send + 'static,
    {
        let queue = self.clone();
        off_thread(move || call(&queue)).await?
    }

    /// Pushes a job without blocking the thread: the future of [`push`](Self::push).
    ///
    /// A future that is dropped before it was polled pushes nothing. After that the job may be
    /// pushed although the caller never gets the answer. So give a job an [`id`](NewJob::id) of
    /// yours, or make it [`unique`](NewJob::unique), if its client may ask once more.
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline::Store;
    /// use waterline_queue::{JobState, NewJob, Outcome, Queue, QueueError, QueueOptions, Runner};
    ///
    /// # tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
    /// let queue = Queue::open(&Store::in_memory(), "greetings", QueueOptions::default())?;
    /// let runner = Runner::builder(&queue)
    ///     .on_async("greet", |_job, name: String| async move {
    ///         Ok(Outcome::DoneWith(format!("hello, {name}").into()))
    ///     })
    ///     .start()?;
    ///
    /// let id = queue.push_async(NewJob::new("greet", "ann")?).await?.id;
    /// let end = queue.subscribe_async(&id).await?.wait_ended_async(Duration::from_secs(60)).await?;
    /// let end = end.expect("it has ended");
    /// assert_eq!((end.state, end.data), (Some(JobState::Finished), Some("hello, ann".into())));
    /// runner.stop_async().await?;
    /// # Ok::<(), QueueError>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// The same as [`push`](Self::push) and [`run_async`](Self::run_async).
    pub async fn push_async(&self, job: NewJob) -> Result<Pushed, QueueError> {
        self.run_async(|queue| queue.push(job)).await
    }

    /// Pushes a job whose kind is a type: the future of [`push_job`](Self::push_job). See
    /// [`push_async`](Self::push_async) for what happens if it is dropped.
    ///
    /// # Errors
    /// The same as [`push_job`](Self::push_job) and [`run_async`](Self::run_async).
    pub fn push_job_async<'q, J: TypedJob>(
        &'q self,
        job: &J,
    ) -> impl Future<Output = Result<Pushed, QueueError>> + Send + use<'q, J> {
        // The future does not hold the job itself, which need not be `Sync`.
        let job = NewJob::of(job);
        async { self.push_async(job?).await }
    }

    /// Pushes a job, and waits for room if the queue is full: the future of
    /// [`push_within`](Self::push_within).
    ///
    /// While it waits it costs no thread, and if it is dropped then, nothing is pushed. If it is
    /// dropped while it writes, the job may be pushed: see [`push_async`](Self::push_async).
    ///
    /// # Errors
    /// The same as [`push_within`](Self::push_within) and [`run_async`](Self::run_async).
    ///
    /// # Panics
    /// If it has to wait, and the runtime was built without
    /// [`enable_time`](tokio::runtime::Builder::enable_time).
    pub async fn push_within_async(&self, job: NewJob, timeout: Duration) -> Result<Pushed, QueueError> {
        let mut waiting = Waiting::new(self, timeout);
        let prepare = |queue: &Self| {
            queue.ask_before_push(&job)?;
            Ok(queue.engine.prepare(queue.number, vec![job])?)
        };
        let pushes = self.run_async(prepare).await?;
        loop {
            let again = pushes.clone();
            match self.run_async(|queue| queue.push_if_room(again)).await? {
                Ok(pushed) => return Ok(pushed),
                Err(full) if !self.room_came(&mut waiting).await => return Err(full),
                Err(_) => {}
            }
        }
    }

    /// Waits until there is room. Returns false at the deadline.
    async fn room_came(&self, waiting: &mut Waiting) -> bool {
        loop {
            let news = self.shared.bell.news();
            let peek = self.peek();
            match waiting.sleep() {
                _ if peek.has_room => return true,
                None => return false,
                Some(limit) => {
                    let pause = self.limit(pause_for_room(&peek, None, self.moment().wall));
                    within(limit.min(pause), self.shared.bell.room(news)).await
                }
            };
        }
    }

    /// Returns the job with this id: the future of [`get`](Self::get).
    ///
    /// # Errors
    /// The same as [`get`](Self::get) and [`run_async`](Self::run_async).
    pub async fn get_async(&self, id: impl Into<JobId>) -> Result<Option<JobInfo>, QueueError> {
        let id = id.into();
        self.run_async(|queue| queue.get(id)).await
    }

    /// Lists jobs in this state: the future of [`list`](Self::list).
    ///
    /// # Errors
    /// The same as [`list`](Self::list) and [`run_async`](Self::run_async).
    pub async fn list_async(
        &self,
        state: JobState,
        from: Option<&JobInfo>,
        limit: usize,
    ) -> Result<Vec<JobInfo>, QueueError> {
        let from = from.cloned();
        self.run_async(move |queue| queue.list(state, from.as_ref(), limit)).await
    }

    /// Lists a page of jobs in this state: the future of [`page`](Self::page).
    ///
    /// # Errors
    /// The same as [`page`](Self::page) and [`run_async`](Self::run_async).
    pub async fn page_async(&self, state: JobState, cursor: Option<&str>, limit: usize) -> Result<Page, QueueError> {
        let cursor = cursor.map(str::to_owned);
        self.run_async(move |queue| queue.page(state, cursor.as_deref(), limit)).await
    }

    /// Claims the next job, waiting without a thread: the future of [`accept`](Self::accept).
    ///
    /// It may be dropped at any time, as in a `select!`: a job that it has claimed by then is put
    /// back, as if it had not been claimed.
    ///
    /// The calls of a [`Lease`] block their thread while they write. In a task make them by
    /// [`run_async`](Self::run_async):
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{Accept, NewJob, Queue, QueueError, QueueOptions};
    ///
    /// # tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
    /// let queue = Queue::open(&Store::in_memory(), "mail", QueueOptions::default())?;
    /// queue.push_async(NewJob::new("welcome", "ann")?).await?;
    /// while let Some(mut lease) = queue.accept_async(Accept::new()).await? {
    ///     println!("welcome, {}", lease.payload::<String>()?);
    ///     queue.run_async(move |_| lease.finish(None)).await?;
    /// }
    /// assert_eq!(queue.counts().finished, 1);
    /// # Ok::<(), QueueError>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// The same as [`accept`](Self::accept) and [`run_async`](Self::run_async).
    ///
    /// # Panics
    /// If it has to wait, and the runtime was built without
    /// [`enable_time`](tokio::runtime::Builder::enable_time).
    pub async fn accept_async(&self, accept: Accept) -> Result<Option<Lease>, QueueError> {
        let queue = self.clone();
        accepted(&Members::of_one(self.clone()), accept, move |accept| queue.accept(accept)).await
    }

    /// Subscribes to the changes of a job: the future of [`subscribe`](Self::subscribe).
    ///
    /// # Errors
    /// The same as [`subscribe`](Self::subscribe) and [`run_async`](Self::run_async).
    pub async fn subscribe_async(&self, id: impl Into<JobId>) -> Result<Subscription, QueueError> {
        let id = id.into();
        self.run_async(|queue| queue.subscribe(id)).await
    }

    /// Returns the longest sleep of a task that looks again after this pause. A manual clock rings.
    fn limit(&self, pause: Option<Duration>) -> Duration {
        pause.filter(|_| !self.clock().is_manual()).unwrap_or(Duration::MAX)
    }
}

impl Group {
    /// Pushes a job whose kind is a type: the future of [`push_job`](Self::push_job).
    ///
    /// # Errors
    /// The same as [`push_job`](Self::push_job) and [`Queue::run_async`].
    pub fn push_job_async<'g, J: TypedJob>(
        &'g self,
        job: &J,
    ) -> impl Future<Output = Result<Pushed, QueueError>> + Send + use<'g, J> {
        let job = NewJob::of(job);
        async { self.push_async(job?).await }
    }

    /// Pushes a job into the queue of its kind: the future of [`push`](Self::push). See
    /// [`Queue::push_async`] for what happens if it is dropped.
    ///
    /// # Errors
    /// The same as [`push`](Self::push) and [`Queue::run_async`].
    pub async fn push_async(&self, job: NewJob) -> Result<Pushed, QueueError> {
        self.routed(&job)?.push_async(job).await
    }

    /// Claims the next job of one of the queues: the future of [`accept`](Self::accept). See
    /// [`Queue::accept_async`].
    ///
    /// # Errors
    /// The same as [`accept`](Self::accept) and [`Queue::run_async`].
    ///
    /// # Panics
    /// As [`Queue::accept_async`] does.
    pub async fn accept_async(&self, accept: Accept) -> Result<Option<Lease>, QueueError> {
        let group = self.clone();
        accepted(self.members(), accept, move |accept| group.accept(accept)).await
    }
}

/// Waits until this claim from these queues has a job, or the timeout has passed.
async fn accepted<F>(members: &Members, accept: Accept, claim: F) -> Result<Option<Lease>, QueueError>
where
    F: Fn(Accept) -> Result<Option<Lease>, QueueError> + Clone + Send + 'static,
{
    let timeout = accept.timeout.unwrap_or_default();
    let mut waits: Vec<_> = members.queues().map(|queue| Waiting::new(queue, timeout)).collect();
    let mut at_once = accept.clone();
    at_once.timeout = None;
    let takes = Takes::of(&accept.wanted()?);
    loop {
        let news = members.bell().news();
        let (claim, at_once) = (claim.clone(), at_once.clone());
        if let Some(lease) = off_thread(move || claim(at_once).map(ClaimedLease)).await??.take() {
            return Ok(Some(lease));
        }
        let mut sleep = None;
        for waiting in &mut waits {
            sleep = waiting.sleep();
        }
        let Some(limit) = sleep else { return Ok(None) };
        // A task that was woken for a job, and is dropped before it looks, wakes another one.
        let mut sleeper = PassesOn { members, sleeps: true };
        within(limit, members.bell().heard(news, takes)).await;
        sleeper.sleeps = false;
    }
}

/// A job that was claimed for a future, and is put back if that is dropped too early.
struct ClaimedLease(Option<Lease>);

impl ClaimedLease {
    fn take(mut self) -> Option<Lease> {
        self.0.take()
    }
}

impl Drop for ClaimedLease {
    fn drop(&mut self) {
        let Some(mut lease) = self.0.take() else { return };
        lease.leave_untaken();
        // The write may not block a thread of the runtime. A runtime that shuts down drops the
        // call, and the lease with it.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn_blocking(|| drop(lease));
        }
    }
}

struct PassesOn<'a> {
    members: &'a Members,
    sleeps: bool,
}

impl Drop for PassesOn<'_> {
    fn drop(&mut self) {
        if self.sleeps {
            self.members.pass_on(None);
        }
    }
}
