//! The current activity of a queue, for a page that shows it.

use crate::engine::Traffic;
use crate::handle::Queue;
use crate::types::durations::Durations;
use crate::types::error::QueueError;
use crate::types::run_times::RunTimes;
use crate::types::used::{LimitUse, Related};
use crate::types::worker::{SHOWN, WorkerInfo};
use std::collections::BTreeMap;
use std::time::Duration;

/// The activity of a queue in this process, from [`Queue::activity`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Activity {
    /// How many jobs were pushed since the queue was opened, including those of periodic jobs.
    /// `None` here and below: the database of the queue does not count them.
    pub pushed: Option<u64>,
    /// How many attempts were started since the queue was opened.
    pub started: Option<u64>,
    /// How many attempts ended since the queue was opened.
    pub ended: Option<u64>,
    /// How many slots the runner has; `None`: there is no runner.
    pub slots: Option<usize>,
    /// The [gate](super::RunnerBuilder::gate) of the runner that is closed, and for how long.
    pub closed_gate: Option<(String, Duration)>,
    /// The durations of the attempts of each kind that succeeded.
    pub run_times: BTreeMap<String, RunTimes>,
}

impl Queue {
    /// Returns what the queue does in this process, without reading the store.
    ///
    /// Rates are differences: take two of these, and divide by the time between them.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{Accept, NewJob, Queue, QueueOptions};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default())?;
    /// queue.push_all((0..3).map(|n| NewJob::new("k", &n).unwrap()))?;
    /// queue.accept(Accept::new())?.expect("a job is ready").finish(None)?;
    /// let activity = queue.activity();
    /// assert_eq!((activity.pushed, activity.started, activity.ended), (Some(3), Some(1), Some(1)));
    /// assert_eq!(activity.slots, None);
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    #[must_use]
    pub fn activity(&self) -> Activity {
        let traffic = self.engine.traffic(self.number);
        let of = |count: fn(&Traffic) -> u64| traffic.as_ref().map(count);
        let now = self.moment().now;
        let closed = self.shared.trouble().closed;
        Activity {
            pushed: of(|traffic| traffic.pushed),
            started: of(|traffic| traffic.started),
            ended: of(|traffic| traffic.ended),
            slots: self.shared.slots(),
            closed_gate: closed.map(|(name, since)| (name, now.saturating_duration_since(since))),
            run_times: self.shared.averages.run_times(),
        }
    }

    /// Returns the workers of the queue, each with the jobs that it has.
    ///
    /// In a [`Store`](waterline::Store) that is this process, while it has a runner, waits in
    /// [`accept`](Self::accept), or has a job. In a read-only store it is the other process, with
    /// its running jobs; nothing more is known of it.
    ///
    /// In a database that many processes share, it is each worker with a sign of life within a day
    /// that has not stopped properly since: up to 256, the most recent first. A worker gives a sign
    /// of life with its claims, while it waits for jobs, and when it renews its leases: three times
    /// per lease, and each second at most. What it reports about itself is as old as that. Its jobs
    /// are as the database has them now, up to 10,000 of all workers. Two workers with the same
    /// name differ in the time at which they began.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{Accept, NewJob, Queue, QueueOptions};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default())?;
    /// queue.push(NewJob::new("mail", &1)?)?;
    /// assert!(queue.workers()?.is_empty());
    /// let lease = queue.accept(Accept::new())?.expect("a job is ready");
    /// let workers = queue.workers()?;
    /// assert_eq!(workers[0].process, Some(std::process::id()));
    /// assert_eq!((workers[0].busy, &*workers[0].jobs[0].kind), (1, "mail"));
    /// # drop(lease);
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Store`] when the database cannot be read.
    pub fn workers(&self) -> Result<Vec<WorkerInfo>, QueueError> {
        self.catch_up();
        self.engine.workers(self.number, SHOWN)
    }

    /// Returns the limits of the queue and how full they are.
    ///
    /// These are the limits that its options name, and those of up to 64 single keys that have
    /// jobs. The one of [each key](crate::LimitOf::EachKey) has only its settings: what runs and is
    /// held counts for the single key. It reads one record per limit. In a database that many
    /// processes share, up to 64 keys that the options name are included, too, and about 10,000
    /// jobs held by limits are counted.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{Accept, Limit, NewJob, Queue, QueueOptions};
    ///
    /// let options = QueueOptions::default().limit(Limit::kind("mail").at_once(1));
    /// let queue = Queue::open(&Store::in_memory(), "q", options)?;
    /// queue.push_all((0..3).map(|n| NewJob::new("mail", &n).unwrap()))?;
    /// let lease = queue.accept(Accept::new())?.expect("a job is ready");
    /// assert!(queue.accept(Accept::new())?.is_none());
    /// let limits = queue.limits()?;
    /// assert_eq!((limits[0].at_once, limits[0].running, limits[0].held), (Some(1), 1, 2));
    /// # drop(lease);
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Store`] when the database cannot be read.
    pub fn limits(&self) -> Result<Vec<LimitUse>, QueueError> {
        self.engine.limits(self.number)
    }

    /// Returns the jobs that this one waits for, and those that wait for it: at most `most` of
    /// each. A job that does not exist has none.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{NewJob, Queue, QueueOptions};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default())?;
    /// queue.push(NewJob::new("fetch", &())?.id("a"))?;
    /// queue.push(NewJob::new("index", &())?.id("b").after(["a"]))?;
    /// assert_eq!(queue.related("b", 100)?.waits_for, ["a"]);
    /// assert_eq!(queue.related("a", 100)?.awaited_by, ["b"]);
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`get`](Self::get).
    pub fn related(&self, id: impl AsRef<str>, most: usize) -> Result<Related, QueueError> {
        self.engine.related(self.number, id.as_ref(), most)
    }

    /// Returns how long successful attempts of each kind take in a [`Runner`](crate::Runner).
    ///
    /// It is the time from the claim to the result of the handler. A kind that has never succeeded
    /// is missing. The call reads nothing of the store.
    ///
    /// The averages survive a restart except for the last 10 seconds: they are stored with the end
    /// of a job, and cost no write of their own. They are dropped after 30 days without a success.
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{DrainLimits, NewJob, Outcome, Queue, QueueOptions, Runner};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "mail", QueueOptions::default())?;
    /// queue.push_all([NewJob::new("welcome", "ann")?, NewJob::new("welcome", "bob")?])?;
    /// Runner::builder(&queue).on("welcome", |_job, _to: String| Ok(Outcome::Done)).drain(DrainLimits::default())?;
    /// for (kind, durations) in queue.durations() {
    ///     println!("{kind}: {:?}", durations.mean);
    /// }
    /// assert_eq!(queue.durations()["welcome"].count, 2);
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    #[must_use]
    pub fn durations(&self) -> BTreeMap<String, Durations> {
        self.shared.averages.all()
    }
}
