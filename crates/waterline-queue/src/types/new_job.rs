//! A new job, and its settings.

use crate::types::config::ConfigError;
use crate::types::error::QueueError;
use crate::types::job::{JobId, Priority, Retention, after, check_id, check_key, check_kind, check_length, millis};
use crate::types::json::{from_json, to_json};
use crate::types::meta;
use crate::types::meta::Meta;
use crate::types::related::{OnDead, Root};
use crate::types::unique::Unique;
use serde::Serialize;
use std::time::{Duration, SystemTime};
use waterline::seam::check_zero;
use waterline::{Retry, seam};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DueTime {
    Now,
    After(Duration),
    At(SystemTime),
}

impl DueTime {
    /// Returns the time in milliseconds since 1970; 0: at once.
    pub(crate) fn at(self, wall: u64) -> Result<u64, ConfigError> {
        match self {
            Self::Now => Ok(0),
            Self::After(delay) => after(wall, delay).ok_or(ConfigError::RunAt),
            Self::At(time) => millis(time),
        }
    }
}

/// A job to be pushed: its kind, its payload and its settings. See
/// [`Queue::push`](crate::Queue::push).
///
/// ```
/// use std::time::Duration;
/// use waterline::Retry;
/// use waterline_queue::{NewJob, Priority};
///
/// let job = NewJob::new("welcome", &"ann@example.org")?
///     .id("user:42")
///     .delay(Duration::from_secs(60))
///     .priority(Priority::High)
///     .retry(Retry::fixed(Duration::from_secs(5)).max_attempts(3));
/// # let _ = job;
/// # Ok::<(), waterline_queue::QueueError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct NewJob {
    pub(crate) kind: String,
    pub(crate) payload: Vec<u8>,
    pub(crate) id: Option<JobId>,
    pub(crate) due: DueTime,
    pub(crate) priority: Priority,
    pub(crate) retry: Option<Retry>,
    pub(crate) retention: Option<Retention>,
    pub(crate) unique: Option<Unique>,
    pub(crate) skips_executed: bool,
    pub(crate) root: Option<Root>,
    pub(crate) is_root: bool,
    pub(crate) expires: Option<Duration>,
    pub(crate) after: Vec<JobId>,
    pub(crate) on_dead: OnDead,
    pub(crate) meta: Meta,
    pub(crate) key: Option<String>,
    pub(crate) cost: u32,
}

impl NewJob {
    /// Makes a job of this kind (1 to 255 bytes), by which a [`Runner`](crate::Runner) finds its
    /// handler. The payload is stored as JSON.
    ///
    /// # Errors
    /// [`QueueError::Payload`] if the payload cannot be turned into JSON.
    pub fn new(kind: impl Into<String>, payload: &(impl Serialize + ?Sized)) -> Result<Self, QueueError> {
        let kind = kind.into();
        let payload = to_json(&kind, payload)?;
        let (priority, due) = (Priority::default(), DueTime::Now);
        Ok(Self {
            kind,
            payload,
            id: None,
            due,
            priority,
            retry: None,
            retention: None,
            unique: None,
            skips_executed: false,
            root: None,
            is_root: false,
            expires: None,
            after: Vec::new(),
            on_dead: OnDead::Die,
            meta: Meta::new(),
            key: None,
            cost: 1,
        })
    }

    /// Gives the job an id of yours: 1 to 255 bytes, not beginning with `~`.
    ///
    /// An existing job with this id is treated as [`Queue::push`](crate::Queue::push) says. If the
    /// job is [`unique`](Self::unique) too, that is checked first.
    pub fn id(mut self, id: impl Into<JobId>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Runs the job after this time since the push, rounded up to milliseconds. Default: at once.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.due = DueTime::After(delay);
        self
    }

    /// Runs the job at this time; a past time means at once. It is by the wall clock, so that a
    /// plan survives restarts: if that is set forward, the job runs earlier.
    pub fn run_at(mut self, time: SystemTime) -> Self {
        self.due = DueTime::At(time);
        self
    }

    /// Sets its priority. The default is [`Priority::Normal`].
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the number of attempts and the back-off of this job, in place of
    /// [`QueueOptions::retry`](crate::QueueOptions::retry). [`Retry::none`] is one attempt.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = Some(retry);
        self
    }

    /// Sets how long its row is kept after it has finished, in place of the queue's setting.
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = Some(retention);
        self
    }

    /// Refuses twins of the job. Default: it may have any number of twins.
    ///
    /// A job with the same [`id`](Self::id) is a twin as well, if its kind and payload are the
    /// same. So a client that got no answer may push once more: as long as the job refuses twins,
    /// it is neither moved nor run again. With another payload it is no twin, and the id decides.
    pub fn unique(mut self, unique: Unique) -> Self {
        self.unique = Some(unique);
        self
    }

    /// Skips the job if a twin has *started* after the push of this job, and has succeeded.
    ///
    /// That twin has seen all that this job was pushed for. The job is finished without a run
    /// ([`Skipped::Executed`](crate::Skipped)).
    ///
    /// Twins are compared as [`Unique`] does, by its fields if the job is unique too, and only with
    /// jobs that have this setting. A job that has failed or crashed is never skipped. Successes
    /// are remembered for 24 hours.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{Accept, JobState, NewJob, Queue, QueueOptions, Skipped};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "pages", QueueOptions::default())?;
    /// let ids = ["one", "two"].map(|id| {
    ///     let render = NewJob::new("render", "/").unwrap().id(id).skip_if_executed();
    ///     queue.push(render).unwrap().id
    /// });
    /// queue.accept(Accept::new())?.expect("a job is ready").finish(None)?;
    /// assert!(queue.accept(Accept::new())?.is_none());       // the first one did the work of both
    /// assert_eq!(queue.get("two")?.and_then(|job| job.skipped), Some(Skipped::Executed));
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    pub fn skip_if_executed(mut self) -> Self {
        self.skips_executed = true;
        self
    }

    /// Makes the job the root of a tree, as of this time. 1 to 255 bytes name the tree.
    ///
    /// The push registers it. From then on, every job of an older root with this signature is
    /// skipped when it is claimed ([`Skipped::Superseded`](crate::Skipped)). Jobs of a root of the
    /// same time run.
    ///
    /// So a second "refresh all" cancels the rest of the first. A root is registered for 28 days.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use waterline::Store;
    /// use waterline_queue::{DrainLimits, NewJob, Outcome, Queue, QueueOptions, Runner};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "pages", QueueOptions::default())?;
    /// let now = SystemTime::now();
    /// for at in [now - Duration::from_secs(60), now] {
    ///     queue.push(NewJob::new("refresh all", &())?.root("template:box", at))?;
    /// }
    /// let leaves = queue.clone();
    /// let summary = Runner::builder(&queue)
    ///     .on("refresh all", move |job, ()| {
    ///         let root = job.root().expect("it was pushed with one");
    ///         leaves.push(NewJob::new("refresh", "/")?.leaf(root))?;      // with the root's own time
    ///         Ok(Outcome::Done)
    ///     })
    ///     .on("refresh", |_job, _page: String| Ok(Outcome::Done))
    ///     .drain(DrainLimits::default())?;
    /// assert_eq!(summary.finished, 2);        // the newer root and its leaf
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    pub fn root(mut self, signature: impl Into<String>, timestamp: SystemTime) -> Self {
        (self.root, self.is_root) = (Some(Root::new(signature, timestamp)), true);
        self
    }

    /// Makes the job a leaf of this root, which it gets from the job that pushes it:
    /// [`Running::root`](crate::Running::root), [`Lease::root`](crate::Lease::root).
    ///
    /// [`Root::new`] makes it from a stored name and time. A leaf registers nothing. It must not
    /// get a time of its own, or the jobs of an old root would count as new.
    pub fn leaf(mut self, root: &Root) -> Self {
        (self.root, self.is_root) = (Some(root.clone()), false);
        self
    }

    /// Gives up the job if no worker has taken it for this long since the push: it is dead then,
    /// and does not run. Default: it waits without end.
    ///
    /// The time ends with the first claim. A job that waits for its next attempt, or was pushed
    /// once more while it ran, no longer expires, nor does a dead one that is requeued.
    pub fn expires(mut self, after: Duration) -> Self {
        self.expires = Some(after);
        self
    }

    /// Runs the job only when these jobs of its queue have ended.
    ///
    /// Until then it is [`JobState::Waiting`](crate::JobState). Its delay counts from the push, as
    /// always. A second call adds more jobs.
    ///
    /// A job has ended when it finished or died for good (see [`on_dead`](Self::on_dead)), was
    /// skipped, or was removed, by a caller or by its retention, but not when it is retried, or was
    /// pushed once more while it ran. The end of the last one makes this job ready in the same
    /// write.
    ///
    /// An id that never existed is refused ([`QueueError::NotFound`]). An id of yours is remembered
    /// after its row is gone, for [`QueueOptions::ids_for`](crate::QueueOptions::ids_for). Jobs of
    /// one [`push_all`](crate::Queue::push_all) may name earlier ones, and those of one atomic
    /// write any other ([`Queue::push_with`](crate::Queue::push_with)).
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{Accept, JobState, NewJob, Queue, QueueOptions};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "import", QueueOptions::default())?;
    /// let load = queue.push(NewJob::new("load", "orders.csv")?)?.id;
    /// let count = queue.push(NewJob::new("count", "orders")?.after([&load]))?.id;
    /// assert_eq!(queue.state(&count)?, Some(JobState::Waiting));
    /// queue.accept(Accept::new())?.expect("the load is ready").finish(None)?;
    /// assert_eq!(queue.state(&count)?, Some(JobState::Ready));
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    pub fn after(mut self, ids: impl IntoIterator<Item = impl Into<JobId>>) -> Self {
        self.after.extend(ids.into_iter().map(Into::into));
        self
    }

    /// Sets what happens to the job when one that it waits for dies, or is dead at the push.
    /// Default: it dies too ([`OnDead::Die`]), and with it those that wait for it.
    pub fn on_dead(mut self, on_dead: OnDead) -> Self {
        self.on_dead = on_dead;
        self
    }

    /// Gives the job a value of metadata, for what does not belong in its payload.
    ///
    /// It is stored as JSON, in one record for all values of a job, and stays over retries and
    /// further runs. The worker and others may change it later
    /// ([`Queue::set_meta`](crate::Queue::set_meta)).
    ///
    /// A push that gives a job a new payload gives it new metadata as well: the old one is gone.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{DrainLimits, NewJob, Outcome, Queue, QueueOptions, Runner};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "mail", QueueOptions::default())?;
    /// queue.push(NewJob::new("welcome", "ann")?.id("a").meta("request", &[7, 1])?)?;
    /// Runner::builder(&queue)
    ///     .on("welcome", |job, _name: String| {
    ///         assert_eq!(job.meta()?["request"], serde_json::json!([7, 1]));
    ///         job.set_meta("server", Some("mx3".into()))?;
    ///         Ok(Outcome::Done)
    ///     })
    ///     .drain(DrainLimits::default())?;
    /// assert_eq!(queue.get("a")?.expect("it is kept").meta["server"], "mx3");
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Payload`] if the value cannot be turned into JSON. The push refuses a key that
    /// does not have 1 to 255 bytes, and more than 64 KiB for all values ([`QueueError::Config`]).
    pub fn meta(mut self, key: impl Into<String>, value: &(impl Serialize + ?Sized)) -> Result<Self, QueueError> {
        let text = to_json(&self.kind, value)?;
        let value = from_json(&text).map_err(|source| QueueError::Payload { id: self.kind.clone(), source })?;
        self.meta.insert(key.into(), value);
        Ok(self)
    }

    /// Sets the key of its limits: 1 to 255 bytes, for example the tenant that it works for. See
    /// [`Limit::each_key`](crate::Limit::each_key). Default: none.
    #[doc(alias = "partition")]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets how many tokens each attempt takes from the rates of its limits, for example one per
    /// item of its work. Default: 1. 0 is refused. A job that costs more than a burst waits for a
    /// full bucket, and leaves a debt, by which the next job starts later.
    pub fn cost(mut self, tokens: u32) -> Self {
        self.cost = tokens;
        self
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        check_kind(&self.kind)?;
        self.after.iter().try_for_each(|id| check_length(id))?;
        self.id.as_deref().map_or(Ok(()), check_id)?;
        self.root.as_ref().map_or(Ok(()), Root::check)?;
        if !self.meta.is_empty() {
            self.meta.keys().try_for_each(|key| meta::check_key(key))?;
            meta::check_text(&meta::text(&self.meta))?;
        }
        self.key.as_deref().map_or(Ok(()), check_key)?;
        let why = "the cost of the job is 0: use 1 at least, or no rate for such jobs";
        check_zero("cost", self.cost == 0, why)?;
        self.retry.map_or(Ok(()), |retry| Ok(seam::check_retry(&retry)?))
    }
}
