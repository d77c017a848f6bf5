//! Waiting for what becomes of a job.

use super::state::QueueState;
use super::step::Happened;
use crate::base::sync::{Arc, Condvar, Mutex, wait_until};
use crate::queue::error::QueueError;
use crate::queue::job::{JobId, JobState};
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

/// The state of a job, as a [`Subscription`] saw it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Seen {
    /// Its state; `None` if it was removed.
    pub state: Option<JobState>,
    /// The data that its workers have left, if any.
    pub data: Option<serde_json::Value>,
}

/// A look at one job that is told of its changes, from [`Queue::subscribe`]. Changes that come
/// faster than they are waited for are told as one: the last one. So a wait never misses the end.
///
/// [`Queue::subscribe`]: crate::queue::Queue::subscribe
pub struct Subscription {
    queue: Arc<QueueState>,
    id: JobId,
    slot: Arc<Slot>,
    /// The number of the change that was told last.
    told: u64,
}

#[derive(Default)]
struct Slot {
    state: Mutex<Told>,
    changed: Condvar,
}

#[derive(Default)]
struct Told {
    /// Counts the changes.
    changes: u64,
    state: Option<JobState>,
    data: Option<Vec<u8>>,
}

/// Those who wait for jobs, by id.
#[derive(Default)]
pub(super) struct Subscribers(Mutex<HashMap<JobId, Vec<Arc<Slot>>>>);

impl Subscribers {
    pub(super) fn tell(&self, told: Vec<Happened>) {
        let slots = self.0.lock();
        if slots.is_empty() {
            return;
        }
        for happened in told {
            let Happened::Seen { id, state, data } = happened else { continue };
            for slot in slots.get(&id).into_iter().flatten() {
                let mut told = slot.state.lock();
                told.changes += 1;
                told.state = state;
                if let Some(data) = &data {
                    told.data.clone_from(data);
                }
                slot.changed.notify_all();
            }
        }
    }

    /// Makes all who wait look at the clock again.
    pub(super) fn ring(&self) {
        for slot in self.0.lock().values().flatten() {
            // The lock makes sure that the thread sleeps, or has not looked yet.
            drop(slot.state.lock());
            slot.changed.notify_all();
        }
    }

    fn add(&self, id: &str, slot: &Arc<Slot>) {
        self.0.lock().entry(id.to_owned()).or_default().push(slot.clone());
    }

    fn remove(&self, id: &str, slot: &Arc<Slot>) {
        let mut slots = self.0.lock();
        if let Some(of_id) = slots.get_mut(id) {
            of_id.retain(|other| !Arc::ptr_eq(other, slot));
            if of_id.is_empty() {
                slots.remove(id);
            }
        }
    }
}

impl Subscription {
    /// Subscribes first, and reads the state after that, so that no change is lost in between.
    pub(super) fn new(
        queue: &Arc<QueueState>,
        id: &str,
        read: impl FnOnce() -> Result<Option<(JobState, Option<Vec<u8>>)>, QueueError>,
    ) -> Result<Self, QueueError> {
        let slot = Arc::new(Slot::default());
        queue.subscribers.add(id, &slot);
        let me = Self { queue: queue.clone(), id: id.to_owned(), slot, told: 0 };
        let (state, data) = read()?.ok_or_else(|| QueueError::NotFound { id: id.to_owned() })?;
        {
            let mut told = me.slot.state.lock();
            if told.changes == 0 {
                (told.state, told.data) = (Some(state), data);
            } else if told.state == Some(state) && told.data.is_none() {
                // The change was told without the data of before.
                told.data = data;
            }
        }
        Ok(me)
    }

    /// Returns the state of the job, as it was last told.
    #[must_use]
    pub fn state(&self) -> Option<JobState> {
        self.slot.state.lock().state
    }

    /// Waits until the job changes its state or its data, or was removed. `None`: the time is over.
    /// A change that came since the last wait is told at once. It blocks its thread.
    ///
    /// # Errors
    /// [`QueueError::Payload`] if the data is no JSON.
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<Seen>, QueueError> {
        let told = self.told;
        self.wait_until(timeout, |slot| slot.changes > told)
    }

    /// Waits until the job is in this state, which may be now. `None`: the time is over, or the job
    /// was removed ([`state`](Self::state) tells which). A job that finishes with
    /// [`Retention::Drop`](crate::queue::Retention::Drop) is told as finished. One that dies is
    /// not: so wait for some time only, and look at the state, or use [`wait`](Self::wait).
    ///
    /// # Errors
    /// [`QueueError::Payload`] if the data is no JSON.
    pub fn wait_for(&mut self, state: JobState, timeout: Duration) -> Result<Option<Seen>, QueueError> {
        let seen = self.wait_until(timeout, |slot| slot.state.is_none() || slot.state == Some(state))?;
        Ok(seen.filter(|seen| seen.state == Some(state)))
    }

    fn wait_until(&mut self, timeout: Duration, is_over: impl Fn(&Told) -> bool) -> Result<Option<Seen>, QueueError> {
        let deadline = self.queue.moment().now.checked_add(timeout);
        let mut told = self.slot.state.lock();
        while !is_over(&told) {
            // Read under the lock, so that a clock which is set from now on rings a sleeper.
            let at = self.queue.moment();
            let rest = deadline.map(|deadline| deadline.saturating_duration_since(at.now));
            if rest.is_some_and(|rest| rest.is_zero()) {
                return Ok(None);
            }
            wait_until(&self.slot.changed, &mut told, self.queue.options.clock.deadline(&at, rest));
        }
        self.told = told.changes;
        let (state, data) = (told.state, told.data.clone());
        drop(told);
        let data = data.map(|data| super::job::from_json(&data)).transpose();
        let data = data.map_err(|source| QueueError::Payload { id: self.id.clone(), source })?;
        Ok(Some(Seen { state, data }))
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.queue.subscribers.remove(&self.id, &self.slot);
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("id", &self.id).field("state", &self.state()).finish_non_exhaustive()
    }
}
