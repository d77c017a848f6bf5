//! Waiters for a change of a job.

use crate::notify::watchers::Watchers;
use crate::types::events::Event;
use crate::types::job::{JobId, JobState};
use crate::types::progress::JobProgress;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::Arc;
use waterline::seam::{Called, Tasks};

#[derive(Default)]
pub(crate) struct Slot {
    pub(crate) state: Mutex<Told>,
    pub(crate) changed: Condvar,
}

#[derive(Default)]
pub(crate) struct Told {
    pub(crate) changes: u64,
    /// Counts the calls to look at the clock again.
    pub(crate) calls: u64,
    pub(crate) state: Option<JobState>,
    pub(crate) data: Option<Vec<u8>>,
    pub(crate) error: Option<String>,
    pub(crate) progress: Option<JobProgress>,
    /// True if a read has announced this state, which the write that made it may announce again.
    pub(crate) is_by_look: bool,
    pub(crate) bell: Option<Arc<SubscriberBell>>,
    pub(crate) tasks: Tasks,
}

impl Slot {
    /// Wakes the waiting threads, and adds the tasks to the list of those to wake.
    fn call(&self, told: &mut Told, called: &mut Called) {
        self.ring(told);
        told.tasks.call(usize::MAX, called);
    }

    fn ring(&self, told: &Told) {
        self.changed.notify_all();
        if let Some(bell) = &told.bell {
            *bell.rung.lock() += 1;
            bell.changed.notify_all();
        }
    }
}

/// Wakes a thread that waits for several jobs at once.
#[derive(Default)]
pub(crate) struct SubscriberBell {
    pub(crate) rung: Mutex<u64>,
    pub(crate) changed: Condvar,
}

/// A job with a subscription, and how many changes were announced when a read of it began.
pub struct Watched {
    id: JobId,
    slot: Arc<Slot>,
    changes: u64,
}

impl Watched {
    /// Returns the id of the job.
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watched").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A job as it is stored: its state, its data, its error and its progress.
pub(crate) type Read = (JobState, Option<Vec<u8>>, Option<String>, Option<JobProgress>);

/// The waiters for jobs, by id.
#[derive(Default)]
pub(crate) struct Subscribers {
    slots: Mutex<HashMap<JobId, Vec<Arc<Slot>>>>,
    pub(crate) watchers: Watchers,
}

impl Subscribers {
    /// True if there is any waiter. Otherwise new jobs are not announced.
    pub(crate) fn is_any(&self) -> bool {
        self.watchers.is_any() || !self.slots.lock().is_empty()
    }

    pub(crate) fn tell(&self, told: Vec<Event>, called: &mut Called) {
        let slots = self.slots.lock();
        if slots.is_empty() {
            return;
        }
        for happened in told {
            let (id, state, data, error) = match happened {
                Event::Seen { id, state, data, error } => (id, state, data, error),
                // The state that it has then is announced next.
                Event::Anew { id } => {
                    let of_id = slots.get(&id).into_iter().flatten();
                    of_id.for_each(|slot| slot.state.lock().progress = None);
                    continue;
                }
                Event::Claimed { .. }
                | Event::Kept { .. }
                | Event::Released { .. }
                | Event::Lost { .. }
                | Event::Line(_)
                | Event::Paused { .. } => {
                    continue;
                }
            };
            for slot in slots.get(&id).into_iter().flatten() {
                let mut told = slot.state.lock();
                let is_known =
                    told.state == state && told.error == error && data.as_ref().is_none_or(|data| told.data == *data);
                if std::mem::take(&mut told.is_by_look) && is_known {
                    continue;
                }
                told.changes += 1;
                (told.state, told.error) = (state, error.clone());
                if let Some(data) = &data {
                    told.data.clone_from(data);
                }
                if state.is_none() {
                    told.progress = None;
                }
                slot.call(&mut told, called);
            }
        }
    }

    pub(crate) fn tell_progress(&self, id: &str, progress: &JobProgress, called: &mut Called) {
        let slots = self.slots.lock();
        if slots.is_empty() {
            return;
        }
        for slot in slots.get(id).into_iter().flatten() {
            let mut told = slot.state.lock();
            told.changes += 1;
            (told.state, told.error, told.progress) = (Some(JobState::Running), None, Some(progress.clone()));
            slot.call(&mut told, called);
        }
    }

    /// True if any job has a subscription.
    pub(crate) fn has_slots(&self) -> bool {
        !self.slots.lock().is_empty()
    }

    /// Returns the jobs with subscriptions, except those whose first state is still being read.
    pub(crate) fn watched(&self) -> Vec<Watched> {
        let watched = |(id, slot): (&JobId, &Arc<Slot>)| {
            let told = slot.state.lock();
            let is_read = told.state.is_some() || told.changes > 0;
            is_read.then(|| Watched { id: id.clone(), slot: slot.clone(), changes: told.changes })
        };
        let slots = self.slots.lock();
        slots.iter().flat_map(|(id, of_id)| of_id.iter().map(move |slot| (id, slot))).filter_map(watched).collect()
    }

    /// Announces what a read has found of a job (`None`: there is no such job), unless changes were
    /// announced since the read began. Returns true if that is new.
    pub(crate) fn correct(&self, watched: &Watched, read: Option<Read>, called: &mut Called) -> bool {
        let mut told = watched.slot.state.lock();
        let has_ended = told.state.is_some_and(JobState::is_ended);
        let (state, data, error, progress) = match read {
            Some((state, data, error, progress)) => (Some(state), data, error, progress),
            // An ended job that is no longer kept is no news.
            None if has_ended || told.state.is_none() => return false,
            None => (None, told.data.clone(), None, None),
        };
        // Its time is by another clock.
        let shown = |progress: &Option<JobProgress>| progress.as_ref().map(|one| (one.fraction, one.note.clone()));
        let is_same = told.state == state && told.data == data && told.error == error;
        if told.changes != watched.changes || is_same && shown(&told.progress) == shown(&progress) {
            return false;
        }
        told.changes += 1;
        told.is_by_look = true;
        (told.state, told.data, told.error, told.progress) = (state, data, error, progress);
        watched.slot.call(&mut told, called);
        true
    }

    /// Makes the waiting threads look at the clock, and at what is due, again.
    pub(crate) fn ring(&self) {
        self.watchers.ring();
        for slot in self.slots.lock().values().flatten() {
            let mut told = slot.state.lock();
            told.calls += 1;
            slot.ring(&told);
        }
    }

    /// Makes the waiting tasks look at the clock again.
    #[cfg(any(feature = "tokio", test, feature = "testing"))]
    pub(crate) fn ring_tasks(&self, called: &mut Called) {
        self.watchers.ring_tasks(called);
        for slot in self.slots.lock().values().flatten() {
            let mut told = slot.state.lock();
            told.calls += 1;
            told.tasks.call(usize::MAX, called);
        }
    }

    pub(crate) fn add(&self, id: &str, slot: &Arc<Slot>) {
        self.slots.lock().entry(id.to_owned()).or_default().push(slot.clone());
    }

    pub(crate) fn remove(&self, id: &str, slot: &Arc<Slot>) {
        let mut slots = self.slots.lock();
        if let Some(of_id) = slots.get_mut(id) {
            of_id.retain(|other| !Arc::ptr_eq(other, slot));
            if of_id.is_empty() {
                slots.remove(id);
            }
        }
    }
}
