//! Handlers whose kinds are types, and the settings that the types have.

use crate::handle::Queue;
use crate::runner::builder::RunnerBuilder;
use crate::runner::handler::Finisher;
use crate::runner::outcome::Outcome;
use crate::runner::running::Running;
use crate::types::config::ConfigError;
use crate::types::limit::LimitOf;
use crate::types::typed::{TypedJob, limit_of};
use std::any::type_name;
use std::time::Duration;
use waterline::{BoxError, Effects};

impl RunnerBuilder {
    /// Runs jobs of this type with this function, as [`on`](Self::on) does for a string.
    ///
    /// [`TypedJob`] has an example, and sets how long an attempt may take
    /// ([`ATTEMPT_TIMEOUT`](TypedJob::ATTEMPT_TIMEOUT)). Its [`limit`](TypedJob::limit) must be one
    /// of the queue.
    pub fn job<J, F>(self, handler: F) -> Self
    where
        J: TypedJob,
        F: Fn(&Running, J) -> Result<Outcome, BoxError> + Send + Sync + 'static,
    {
        self.typed::<J>().on(J::KIND, handler)
    }

    /// Runs jobs of this type as [`on_transactional`](Self::on_transactional) does.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{DrainLimits, NewJob, Outcome, Queue, QueueOptions, Runner, TypedJob};
    ///
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Order(i64);
    ///
    /// impl TypedJob for Order {
    ///     const KIND: &'static str = "order";
    /// }
    ///
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Parcel(i64);
    ///
    /// impl TypedJob for Parcel {
    ///     const KIND: &'static str = "parcel";
    /// }
    ///
    /// let store = Store::in_memory();
    /// let queue = Queue::open(&store, "orders", QueueOptions::default())?;
    /// queue.push_job(&Order(3))?;
    /// let (next, stock) = (queue.clone(), store.table("stock")?);
    /// Runner::builder(&queue)
    ///     .job_transactional(move |_job, Order(pieces), effects| {
    ///         effects.add(&stock, "pieces", -pieces)?;
    ///         next.push_with(effects, NewJob::of(&Parcel(pieces))?)?;
    ///         Ok(Outcome::Done)
    ///     })
    ///     .job(|_job, Parcel(_pieces)| Ok(Outcome::Done))
    ///     .drain(DrainLimits::default())?;
    /// # assert_eq!((queue.counts().finished, store.table("stock")?.counter("pieces")?), (2, -3));
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    pub fn job_transactional<J, F>(self, handler: F) -> Self
    where
        J: TypedJob,
        F: Fn(&Running, J, &mut Effects) -> Result<Outcome, BoxError> + Send + Sync + 'static,
    {
        self.typed::<J>().on_transactional(J::KIND, handler)
    }

    /// Runs jobs of this type as [`on_deferred`](Self::on_deferred) does.
    ///
    /// ```
    /// # use waterline::Store;
    /// # use waterline_queue::{DrainLimits, Queue, QueueOptions, Runner, TypedJob};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Page(String);
    /// # impl TypedJob for Page {
    /// #     const KIND: &'static str = "page";
    /// # }
    /// # let queue = Queue::open(&Store::in_memory(), "pages", QueueOptions::default())?;
    /// queue.push_job(&Page("/".into()))?;
    /// Runner::builder(&queue)
    ///     .job_deferred(|_job, Page(path), done| {
    ///         std::thread::spawn(move || if path.is_empty() { done.fail("no page") } else { done.complete() });
    ///     })
    ///     .drain(DrainLimits::default())?;
    /// # assert_eq!(queue.counts().finished, 1);
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    pub fn job_deferred<J, F>(self, handler: F) -> Self
    where
        J: TypedJob,
        F: Fn(Running, J, Finisher) + Send + Sync + 'static,
    {
        self.typed::<J>().on_deferred(J::KIND, handler)
    }

    /// Runs jobs of this type as futures, as [`on_async`](Self::on_async) does.
    ///
    /// The future of a job that is removed, or whose lease is lost, is dropped at its next await
    /// point, and its slot is free: at once if this process removes it, otherwise with the next
    /// renewal of leases ([`Queue::remove`](crate::Queue::remove)). So work that must not be cut
    /// short must have no await point in it.
    ///
    /// ```
    /// # use waterline::Store;
    /// # use waterline_queue::{DrainLimits, Outcome, Queue, QueueOptions, Runner, TypedJob};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Page(String);
    /// # impl TypedJob for Page {
    /// #     const KIND: &'static str = "page";
    /// # }
    /// # let queue = Queue::open(&Store::in_memory(), "pages", QueueOptions::default())?;
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    /// queue.push_job(&Page("/".into()))?;
    /// let builder = Runner::builder(&queue).job_async(|_job, page: Page| async move {
    ///     println!("{}", page.0);
    ///     Ok(Outcome::Done)
    /// });
    /// assert_eq!(runtime.block_on(builder.drain_async(DrainLimits::default()))?.finished, 1);
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    #[cfg(feature = "tokio")]
    pub fn job_async<J, F, Fut>(self, handler: F) -> Self
    where
        J: TypedJob,
        F: Fn(Running, J) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Outcome, BoxError>> + Send + 'static,
    {
        self.typed::<J>().on_async(J::KIND, handler)
    }

    /// Runs jobs of this type as futures that may also write, as
    /// [`on_transactional_async`](Self::on_transactional_async) does.
    ///
    /// ```
    /// # use waterline::Store;
    /// # use waterline_queue::{DrainLimits, Outcome, Queue, QueueOptions, Runner, TypedJob};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Page(String);
    /// # impl TypedJob for Page {
    /// #     const KIND: &'static str = "page";
    /// # }
    /// # let store = Store::in_memory();
    /// # let queue = Queue::open(&store, "pages", QueueOptions::default())?;
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    /// queue.push_job(&Page("/".into()))?;
    /// let seen = store.table("seen")?;
    /// let builder = Runner::builder(&queue).job_transactional_async(move |_job, Page(path), mut effects| {
    ///     let seen = seen.clone();
    ///     async move {
    ///         effects.put(&seen, path, "")?;
    ///         Ok((Outcome::Done, effects))
    ///     }
    /// });
    /// assert_eq!(runtime.block_on(builder.drain_async(DrainLimits::default()))?.finished, 1);
    /// assert!(store.table("seen")?.get("/")?.is_some());
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    #[cfg(feature = "tokio")]
    pub fn job_transactional_async<J, F, Fut>(self, handler: F) -> Self
    where
        J: TypedJob,
        F: Fn(Running, J, Effects) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(Outcome, Effects), BoxError>> + Send + 'static,
    {
        self.typed::<J>().on_transactional_async(J::KIND, handler)
    }

    /// Notes the settings that the type has for its kind.
    pub(crate) fn typed<J: TypedJob>(mut self) -> Self {
        let noted = limit_of::<J>().map(|limit| self.wanted.extend(limit.map(|limit| (limit, type_name::<J>()))));
        self.refuse(noted);
        if let Some(after) = J::ATTEMPT_TIMEOUT {
            // The runner's own setting for the kind wins, wherever the call stands.
            self.times.of_kinds.entry(J::KIND.to_owned()).or_insert(after);
        }
        self
    }

    /// Sets how long an attempt of this kind may take, in place of the limit of the
    /// [runner](Self::attempt_timeout) and of its type. [`Duration::MAX`] is no limit. 0 is
    /// refused, and so is a kind without a handler, which may be misspelt.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use waterline::Store;
    /// # use waterline_queue::{DrainLimits, Outcome, Queue, QueueOptions, Runner};
    /// # let queue = Queue::open(&Store::in_memory(), "films", QueueOptions::default())?;
    /// Runner::builder(&queue)
    ///     .on("poster", |_job, _film: u64| Ok(Outcome::Done))
    ///     .on("transcode", |_job, _film: u64| Ok(Outcome::Done))
    ///     .attempt_timeout(Duration::from_secs(10))
    ///     .attempt_timeout_of("transcode", Duration::from_secs(3600))
    ///     .drain(DrainLimits::default())?;
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    pub fn attempt_timeout_of(mut self, kind: impl Into<String>, timeout: Duration) -> Self {
        self.times.of_kinds.insert(kind.into(), timeout);
        self
    }

    /// Refuses timeouts of unhandled kinds, and types whose limit their queue lacks.
    pub(super) fn check_kinds(&self) -> Result<(), ConfigError> {
        if let Some(kind) = self.times.of_kinds.keys().filter(|kind| !self.handlers.contains_key(*kind)).min() {
            let why =
                format!("the runner has a timeout for the kind {kind:?}, and no handler: add one, or correct the kind");
            return Err(ConfigError::Handler { fault: "timeout", kind: Some(kind.clone()), why });
        }
        let queues = self.source.queues();
        for (limit, job) in &self.wanted {
            let LimitOf::Kind(kind) = &limit.of else { continue };
            let lacks = |queue: &&&Queue| !queue.shared.options.limits.contains(limit);
            let lacking = match self.group.as_ref().and_then(|group| group.queue_of(kind)) {
                Some(taker) => queues.iter().find(|queue| queue.number == taker.number).filter(lacks),
                // Such jobs are pushed into a queue directly.
                None if queues.iter().all(|queue| lacks(&queue)) => queues.first(),
                None => None,
            };
            if let Some(queue) = lacking {
                let (kind, queue) = (kind.clone(), queue.name().to_owned());
                return Err(ConfigError::LimitMissing { kind, queue, job });
            }
        }
        Ok(())
    }
}
