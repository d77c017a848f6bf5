//! Waiting for the changes and the end of a job.

use crate::handle::Queue;
use crate::notify::subscribers::{Read, Slot, SubscriberBell, Told};
use crate::notify::waiting::wait_until;
use crate::types::error::QueueError;
use crate::types::job::{JobId, JobState};
use crate::types::progress::JobProgress;
use crate::watch::Watch;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use waterline::seam::ClockExt;

/// The state of a job, as a [`Subscription`] saw it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Seen {
    /// Its state; `None` if it was removed.
    pub state: Option<JobState>,
    /// The data that its workers have left, if any.
    pub data: Option<serde_json::Value>,
    /// The error of which it died; `None` if it is not dead.
    pub error: Option<String>,
    /// The last progress that its worker has shown, if any.
    pub progress: Option<JobProgress>,
}

/// Follows the changes of one job, from [`Queue::subscribe`].
///
/// If changes come faster than the caller waits for them, a wait returns only the last one. So it
/// never misses the end.
///
/// A wait needs no worker in this process: it notices by itself that the worker of the job is
/// silent, and whatever else falls due. A subscription keeps the store of its queue open.
pub struct Subscription {
    pub(super) queue: Queue,
    id: JobId,
    pub(super) slot: Arc<Slot>,
    /// The number of the change that was last returned.
    pub(super) told: u64,
}

impl Queue {
    /// Subscribes to the changes of a job.
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline::Store;
    /// use waterline_queue::{Accept, JobState, NewJob, Queue, QueueOptions};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default())?;
    /// let id = queue.push(NewJob::new("k", &1)?)?.id;
    /// let mut subscription = queue.subscribe(&id)?;
    /// let mut lease = queue.accept(Accept::new())?.expect("a job is ready");
    /// lease.finish(Some("as good as new".into()))?;
    /// let seen = subscription.wait_for(JobState::Finished, Duration::from_secs(60))?.expect("it is");
    /// assert_eq!(seen.data, Some("as good as new".into()));
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::NotFound`] for an unknown id, [`QueueError::Store`] when the database fails,
    /// and with [`Error::ReadOnly`](waterline::Error::ReadOnly) for a queue of a read-only store,
    /// where no change is announced.
    pub fn subscribe(&self, id: impl AsRef<str>) -> Result<Subscription, QueueError> {
        let id = id.as_ref();
        self.writable()?;
        self.catch_up();
        Subscription::new(self, id, || {
            let (engine, number) = (&self.engine, self.number);
            let Some(row) = engine.row(number, id)? else { return Ok(None) };
            let data = if row.has_data { engine.data(number, id)? } else { None };
            let has_progress = row.state == JobState::Running || row.extras().has_progress;
            let progress = if has_progress { engine.progress(number, id)? } else { None };
            let error = Some(row.error).filter(|_| row.state == JobState::Dead);
            Ok(Some((row.state, data, error, progress)))
        })
    }

    /// Watches all jobs of the queue: every push, claim, end, removal and pause from now on.
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline::Store;
    /// use waterline_queue::{NewJob, Queue, QueueOptions};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default())?;
    /// let mut watch = queue.watch();
    /// queue.push(NewJob::new("k", &1)?.id("a"))?;
    /// while let Some(change) = watch.wait(Duration::ZERO) {
    ///     println!("{change:?}");         // Job { id: "a", state: Some(Ready) }
    /// }
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    pub fn watch(&self) -> Watch {
        Watch::new(self)
    }
}

impl Subscription {
    /// Subscribes first, and reads the state after that, so that no change is lost in between.
    pub(crate) fn new(
        queue: &Queue,
        id: &str,
        read: impl FnOnce() -> Result<Option<Read>, QueueError>,
    ) -> Result<Self, QueueError> {
        let slot = Arc::new(Slot::default());
        queue.shared.subscribers.add(id, &slot);
        let me = Self { queue: queue.clone(), id: id.to_owned(), slot, told: 0 };
        let (state, data, error, progress) = read()?.ok_or_else(|| queue.not_found(id))?;
        {
            let mut told = me.slot.state.lock();
            if told.changes == 0 {
                (told.state, told.data, told.error, told.progress) = (Some(state), data, error, progress);
            } else if told.state == Some(state) {
                // The change came without the rest, which stays.
                told.data = told.data.take().or(data);
                told.progress = told.progress.take().or(progress);
            }
        }
        Ok(me)
    }

    /// Returns the state of the job as last announced.
    #[must_use]
    pub fn state(&self) -> Option<JobState> {
        self.slot.state.lock().state
    }

    /// Waits until the job changes its state, data or progress, or is removed. Blocks its thread.
    ///
    /// Returns at once if a change came since the last wait, and `None` after the timeout.
    ///
    /// # Errors
    /// [`QueueError::Payload`] if the data is not JSON.
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<Seen>, QueueError> {
        let told = self.told;
        self.wait_until(timeout, |slot| slot.changes > told)
    }

    /// Waits until the job is in this state, which may be now.
    ///
    /// Returns `None` after the timeout, or if the job was removed ([`state`](Self::state) tells
    /// which). It sees a job that finishes with [`Retention::Drop`](crate::Retention::Drop) as
    /// finished. It does not return if the job dies: so wait for some time only, and look at the
    /// state, or use [`wait`](Self::wait).
    ///
    /// # Errors
    /// [`QueueError::Payload`] if the data is not JSON.
    pub fn wait_for(&mut self, state: JobState, timeout: Duration) -> Result<Option<Seen>, QueueError> {
        let seen = self.wait_until(timeout, |slot| slot.state.is_none() || slot.state == Some(state))?;
        Ok(seen.filter(|seen| seen.state == Some(state)))
    }

    /// Waits until the job has ended, which may be now, and returns how.
    ///
    /// It is finished, with the data of its workers; it is dead, with its error; it cannot be read
    /// ([`JobState::Damaged`]); or it was removed, and has no state. `None`: the timeout has
    /// passed. A job that fails and is retried has not ended.
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline::Store;
    /// use waterline_queue::{Accept, JobState, NewJob, Queue, QueueOptions};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default())?;
    /// let id = queue.push(NewJob::new("k", &1)?)?.id;
    /// queue.accept(Accept::new())?.expect("a job is ready").bury("no such customer")?;
    /// let end = queue.subscribe(&id)?.wait_ended(Duration::from_secs(60))?.expect("it has ended");
    /// assert_eq!((end.state, end.error.as_deref()), (Some(JobState::Dead), Some("no such customer")));
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Payload`] if the data is not JSON.
    pub fn wait_ended(&mut self, timeout: Duration) -> Result<Option<Seen>, QueueError> {
        self.wait_until(timeout, has_ended)
    }

    /// Waits until one of several jobs, of any queues, changes as for [`wait`](Self::wait).
    ///
    /// Returns its index in the list; `None` after the timeout (by the clock of the first one's
    /// queue), or if the list is empty. It blocks its thread.
    ///
    /// ```
    /// use std::time::Duration;
    /// use waterline::Store;
    /// use waterline_queue::{Accept, NewJob, Queue, QueueOptions, Subscription};
    ///
    /// let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default())?;
    /// let pushed = queue.push_all((0..2).map(|n| NewJob::new("k", &n).unwrap()))?;
    /// let mut all = pushed.iter().map(|job| queue.subscribe(&job.id)).collect::<Result<Vec<_>, _>>()?;
    /// queue.remove(&pushed[1].id)?;
    /// let (place, seen) = Subscription::wait_any(&mut all, Duration::from_secs(60))?.expect("it has changed");
    /// assert_eq!((place, seen.state), (1, None));
    /// # Ok::<(), waterline_queue::QueueError>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`wait`](Self::wait).
    pub fn wait_any(subscriptions: &mut [Self], timeout: Duration) -> Result<Option<(usize, Seen)>, QueueError> {
        Self::wait_among(subscriptions, None, timeout)
    }

    /// Waits until one of several jobs is in this state, which may be now.
    ///
    /// Returns the first one in the list: so take out those that were returned. `None`: the timeout
    /// has passed, or all were removed. Otherwise it works as [`wait_any`](Self::wait_any).
    ///
    /// # Errors
    /// The same as [`wait`](Self::wait).
    pub fn wait_any_for(
        subscriptions: &mut [Self],
        state: JobState,
        timeout: Duration,
    ) -> Result<Option<(usize, Seen)>, QueueError> {
        Self::wait_among(subscriptions, Some(state), timeout)
    }

    fn wait_among(
        subscriptions: &mut [Self],
        wanted: Option<JobState>,
        timeout: Duration,
    ) -> Result<Option<(usize, Seen)>, QueueError> {
        let Some(first) = subscriptions.first() else { return Ok(None) };
        let (queue, bell) = (first.queue.clone(), Arc::new(SubscriberBell::default()));
        let deadline = queue.moment().now.checked_add(timeout);
        subscriptions.iter().for_each(|one| one.slot.state.lock().bell = Some(bell.clone()));
        let found = loop {
            let rung = *bell.rung.lock();
            let next = subscriptions.iter().filter_map(|one| one.queue.do_all()).min();
            let is_over = |one: &Self| {
                let slot = one.slot.state.lock();
                if wanted.is_some() { slot.state == wanted } else { slot.changes > one.told }
            };
            if let Some(place) = subscriptions.iter().position(is_over) {
                break Some(place);
            }
            let are_gone = wanted.is_some() && subscriptions.iter().all(|one| one.state().is_none());
            let at = queue.moment();
            let rest = deadline.map(|deadline| deadline.saturating_duration_since(at.now));
            if are_gone || rest.is_some_and(|rest| rest.is_zero()) {
                break None;
            }
            let mut now = bell.rung.lock();
            // A job that has changed since the look, or a clock that was set, has rung.
            if *now == rung {
                let pause = rest.into_iter().chain(next).min();
                wait_until(&bell.changed, &mut now, queue.clock().deadline(at.after(pause)));
            }
        };
        subscriptions.iter().for_each(|one| one.slot.state.lock().bell = None);
        let Some(place) = found else { return Ok(None) };
        let seen = subscriptions[place].take()?;
        Ok(Some((place, seen)))
    }

    /// Returns the last change, and notes that it was returned.
    pub(super) fn take(&mut self) -> Result<Seen, QueueError> {
        let told = self.slot.state.lock();
        self.told = told.changes;
        let (state, data, progress) = (told.state, told.data.clone(), told.progress.clone());
        let error = told.error.clone();
        drop(told);
        let data = data.map(|data| crate::types::json::from_json(&data)).transpose();
        let data = data.map_err(|source| QueueError::Payload { id: self.id.clone(), source })?;
        Ok(Seen { state, data, error, progress })
    }

    fn wait_until(&mut self, timeout: Duration, is_over: impl Fn(&Told) -> bool) -> Result<Option<Seen>, QueueError> {
        let deadline = self.queue.moment().now.checked_add(timeout);
        let mut told = self.slot.state.lock();
        loop {
            let seen = (told.changes, told.calls);
            drop(told);
            let next = self.queue.do_all();
            told = self.slot.state.lock();
            if is_over(&told) {
                break;
            }
            // Read under the lock, so that setting the clock from now on rings a sleeper.
            let at = self.queue.moment();
            let rest = deadline.map(|deadline| deadline.saturating_duration_since(at.now));
            if rest.is_some_and(|rest| rest.is_zero()) {
                return Ok(None);
            }
            if (told.changes, told.calls) == seen {
                let pause = rest.into_iter().chain(next).min();
                wait_until(&self.slot.changed, &mut told, self.queue.clock().deadline(at.after(pause)));
            }
        }
        drop(told);
        self.take().map(Some)
    }
}

/// True if the job has ended, was removed or cannot be read.
pub(super) fn has_ended(told: &Told) -> bool {
    told.state.is_none_or(|state| state.is_ended() || state == JobState::Damaged)
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.queue.shared.subscribers.remove(&self.id, &self.slot);
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("id", &self.id).field("state", &self.state()).finish_non_exhaustive()
    }
}
