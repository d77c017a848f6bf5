//! Claiming jobs: for a caller's loop, and for the threads of a runner.

use crate::engine::{Beside, Claim, Claimed, Peek};
use crate::handle::Queue;
use crate::lease::Lease;
use crate::notify::bell::Takes;
use crate::notify::shared::Wake;
use crate::types::config::ConfigError;
use crate::types::error::QueueError;
#[cfg(doc)]
use crate::types::job::JobState;
use crate::types::job::millis;
use crate::types::options::LONGEST_SLEEP;
use crate::types::wanted::Wanted;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use waterline::seam::ClockExt;

/// How many rounds of maintenance one read runs at most.
const ROUNDS: usize = 16;

/// The settings of a call of [`Queue::accept`].
///
/// By default it takes a job that is due, and returns at once if there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Accept {
    pub(super) timeout: Option<Duration>,
    max_run_at: Option<SystemTime>,
    kinds: Option<Arc<[String]>>,
}

impl Accept {
    /// Returns the default settings: a due job, and no waiting.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits for a job for this time at most. [`Duration::MAX`] waits without end.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Takes only a job that is due by this time.
    ///
    /// A time in the future hands out jobs before they are due, if none is ready. With a time in
    /// the past, the first 256 ready jobs of each priority are looked at.
    pub fn max_run_at(mut self, time: SystemTime) -> Self {
        self.max_run_at = Some(time);
        self
    }

    /// Takes only jobs of these kinds, in the order of the queue, behind any number of others.
    ///
    /// Jobs of other kinds keep their places. Without any kind it takes none.
    ///
    /// A ready job of another kind on the way moves to the line of its kind, once, and costs later
    /// claims nothing. Of the jobs held by a [`Limit`], it takes the first one of a limit that has
    /// room, among the first 256 such limits; with [`max_run_at`](Self::max_run_at) it looks at the
    /// first 256 jobs that are not due.
    ///
    /// [`Limit`]: crate::Limit
    ///
    /// ```
    /// use waterline::Store;
    /// use waterline_queue::{Accept, NewJob, Queue, QueueOptions};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "images", QueueOptions::default())?;
    /// queue.push_all([NewJob::new("video", "b")?, NewJob::new("png", "a")?])?;
    /// // This worker has no codec for videos.
    /// let mut lease = queue.accept(Accept::new().kinds(["png", "gif"]))?.expect("a job of a kind of these");
    /// assert_eq!(lease.kind(), "png");
    /// lease.finish(None)?;
    /// assert!(queue.accept(Accept::new().kinds(["png", "gif"]))?.is_none());
    /// assert_eq!(queue.counts().ready, 1);
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    pub fn kinds<K: Into<String>>(mut self, kinds: impl IntoIterator<Item = K>) -> Self {
        let mut kinds: Vec<_> = kinds.into_iter().map(Into::into).collect();
        kinds.sort_unstable();
        kinds.dedup();
        self.kinds = Some(kinds.into());
        self
    }

    /// Returns which jobs it takes.
    pub(super) fn wanted(&self) -> Result<Wanted, ConfigError> {
        Ok(Wanted { due_by: self.max_run_at.map(millis).transpose()?, kinds: self.kinds.clone() })
    }
}

impl Queue {
    /// Claims the next job for the caller: the first ready one of the highest priority.
    ///
    /// Returns `None` if there is none, if [limits](crate::Limit) hold all of them, or while the
    /// queue is paused. The claim is written before this returns. It blocks its thread for
    /// [`Accept::timeout`] at most.
    ///
    /// Any number of threads may call it, also beside a [`Runner`](crate::Runner). This loop works
    /// until no job has come for some time:
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline::Store;
    /// use waterline_queue::{Accept, NewJob, Queue, QueueOptions};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "thumbnails", QueueOptions::default())?;
    /// queue.push_all([NewJob::new("png", "cat")?, NewJob::new("png", "dog")?, NewJob::new("gif", "")?])?;
    /// while let Some(mut lease) = queue.accept(Accept::new().timeout(Duration::from_millis(1)))? {
    ///     let name: String = lease.payload()?;
    ///     match lease.kind() {
    ///         "png" if !name.is_empty() => lease.finish(Some(format!("{name}.png").into()))?,
    ///         kind => lease.bury(format!("no thumbnail of {name:?} as {kind}"))?,
    ///     };
    /// }
    /// assert_eq!((queue.counts().finished, queue.counts().dead), (2, 1));
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Config`] for a time beyond the year 9999, [`QueueError::Store`] when the
    /// database fails. An unreadable job is set aside ([`JobState::Damaged`]), and is no error.
    pub fn accept(&self, accept: Accept) -> Result<Option<Lease>, QueueError> {
        let wanted = accept.wanted()?;
        let deadline = accept.timeout.and_then(|timeout| self.moment().now.checked_add(timeout));
        let takes = Takes::of(&wanted);
        loop {
            let news = self.shared.bell.news();
            if let Some(claimed) = self.claim(&wanted)? {
                return Ok(Some(Lease::new(self.clone(), claimed)));
            }
            let is_over = deadline.is_some_and(|deadline| deadline <= self.moment().now);
            if accept.timeout.is_none() || is_over {
                return Ok(None);
            }
            self.sleep(news, deadline, takes);
        }
    }

    /// Claims the next job, and runs a round of maintenance in the same write.
    pub(super) fn claim(&self, wanted: &Wanted) -> Result<Option<Claimed>, QueueError> {
        loop {
            let claim = Claim { queue: self.number, most: 1, wanted: wanted.clone() };
            let turned = self.engine.turn(&[], Some(claim), Beside::Tidy)?;
            if let Some(claimed) = turned.claimed.into_iter().next() {
                self.pass_on(wanted.kinds.as_deref());
                return Ok(Some(claimed));
            }
            if !turned.again {
                return Ok(None);
            }
        }
    }

    /// Runs one bounded round of maintenance, for a runner that claims nothing.
    pub(super) fn tidy(&self) -> Result<(), QueueError> {
        self.engine.run_maintenance(self.number)
    }

    /// Runs due maintenance before a read, whose answer is then true even if no worker runs.
    ///
    /// If the store takes no write, or with a long backlog, the read shows what is stored.
    pub(super) fn catch_up(&self) {
        self.catch_up_with(|peek| peek.next_time);
    }

    /// Runs all due maintenance before a wait. Returns the time until the next, if there is one.
    pub(super) fn do_all(&self) -> Option<Duration> {
        self.catch_up_with(|peek| peek.next_change)
    }

    /// Tells those who watch the queue what has happened so far.
    pub(super) fn hear(&self) {
        self.engine.hear(self.number);
    }

    fn catch_up_with(&self, next: fn(&Peek) -> Option<Duration>) -> Option<Duration> {
        if self.shared.options.admin {
            return None;
        }
        for _ in 0..ROUNDS {
            let next = next(&self.peek());
            if next.is_none_or(|next| !next.is_zero()) {
                return next;
            }
            if self.tidy().is_err() {
                break;
            }
        }
        Some(LONGEST_SLEEP)
    }

    // Sleep.

    /// Sleeps until there is news, until maintenance is due, or until the deadline.
    ///
    /// A thread that takes no job is not woken for one. Returns true if maintenance is due now.
    pub(super) fn sleep(&self, news: u64, deadline: Option<Instant>, takes: Takes) -> bool {
        let at = self.moment();
        let next = self.peek().next_change;
        let rest = deadline.map(|deadline| deadline.saturating_duration_since(at.now));
        let pause = next.into_iter().chain(rest).min();
        if pause.is_some_and(|pause| pause.is_zero()) {
            return next.is_some_and(|next| next.is_zero()) && self.shared.bell.news() == news;
        }
        self.shared.bell.sleep(news, self.clock().deadline(at.after(pause)), takes);
        false
    }

    /// Wakes one waiting thread if more jobs of these kinds are ready than the caller takes.
    pub(super) fn pass_on(&self, kinds: Option<&[String]>) {
        if self.shared.bell.is_awaited() && self.peek_for(kinds).ready > 0 {
            self.call_one();
        }
    }

    /// Wakes one thread that waits for a job, since there may be one.
    pub(super) fn call_one(&self) {
        self.shared.wake(Wake { jobs: 1, ..Wake::default() });
        self.shared.settle();
    }
}
