//! Waiters for a change of any job.

use crate::types::events::Event;
use crate::types::job::{JobId, JobState, time};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;
use waterline::seam::{Called, Tasks};

/// How many changes are kept for a watch. It bounds the memory of a slow one.
const MOST: usize = 4096;

/// A change in a queue, from a [`Watch`](crate::Watch).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueChange {
    /// A job has a new state or new data. `None`: it is gone.
    #[non_exhaustive]
    Job {
        /// The id of the job.
        id: JobId,
        /// Its state.
        state: Option<JobState>,
    },
    /// The queue hands out no job until this time; `None`: until it is resumed.
    #[non_exhaustive]
    Paused {
        /// When it ends.
        until: Option<SystemTime>,
    },
    /// The pause of the queue was ended. (A pause that ends by its time is not announced.)
    Resumed,
    /// Changes were lost: not taken in time, or being written when the watch began.
    #[non_exhaustive]
    Missed {
        /// How many changes were lost.
        changes: u64,
    },
}

#[derive(Default)]
pub(crate) struct Buffer {
    pub(crate) waiting: Mutex<WatcherState>,
    pub(crate) changed: Condvar,
}

#[derive(Default)]
pub(crate) struct WatcherState {
    pub(crate) changes: VecDeque<QueueChange>,
    pub(crate) missed: u64,
    /// Counts the changes, and the calls to look at the clock again.
    pub(crate) calls: u64,
    pub(crate) tasks: Tasks,
}

impl WatcherState {
    pub(crate) fn next(&mut self) -> Option<QueueChange> {
        match std::mem::take(&mut self.missed) {
            0 => self.changes.pop_front(),
            changes => Some(QueueChange::Missed { changes }),
        }
    }
}

impl Buffer {
    /// Wakes the waiting threads now, and the tasks later, by this list.
    fn call(&self, waiting: &mut WatcherState, called: &mut Called) {
        waiting.calls += 1;
        self.changed.notify_all();
        waiting.tasks.call(usize::MAX, called);
    }
}

#[derive(Default)]
pub(crate) struct Watchers {
    buffers: Mutex<Vec<Arc<Buffer>>>,
    /// Their number, which every push checks.
    count: AtomicUsize,
}

impl Watchers {
    pub(super) fn is_any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    pub(crate) fn tell(&self, told: &[Event], called: &mut Called) {
        if !self.is_any() {
            return;
        }
        let changes: Vec<_> = told.iter().filter_map(QueueChange::of).collect();
        for buffer in self.buffers.lock().iter().filter(|_| !changes.is_empty()) {
            let mut waiting = buffer.waiting.lock();
            waiting.changes.extend(changes.iter().cloned());
            let surplus = waiting.changes.len().saturating_sub(MOST);
            waiting.changes.drain(..surplus);
            waiting.missed += surplus as u64;
            buffer.call(&mut waiting, called);
        }
    }

    /// Notes in all current watches that they have missed this many changes.
    pub(crate) fn miss(&self, changes: u64, called: &mut Called) {
        if changes == 0 || !self.is_any() {
            return;
        }
        for buffer in self.buffers.lock().iter() {
            let mut waiting = buffer.waiting.lock();
            waiting.missed += changes;
            buffer.call(&mut waiting, called);
        }
    }

    /// Makes the waiting threads look at the clock again.
    pub(crate) fn ring(&self) {
        for buffer in self.buffers.lock().iter() {
            buffer.waiting.lock().calls += 1;
            buffer.changed.notify_all();
        }
    }

    /// Makes the waiting tasks look at the clock again.
    #[cfg(any(feature = "tokio", test, feature = "testing"))]
    pub(crate) fn ring_tasks(&self, called: &mut Called) {
        for buffer in self.buffers.lock().iter() {
            buffer.call(&mut buffer.waiting.lock(), called);
        }
    }

    pub(crate) fn add(&self, buffer: &Arc<Buffer>) {
        let mut buffers = self.buffers.lock();
        buffers.push(buffer.clone());
        self.count.store(buffers.len(), Ordering::Release);
    }

    pub(crate) fn remove(&self, buffer: &Arc<Buffer>) {
        let mut buffers = self.buffers.lock();
        buffers.retain(|other| !Arc::ptr_eq(other, buffer));
        self.count.store(buffers.len(), Ordering::Release);
    }
}

impl QueueChange {
    fn of(happened: &Event) -> Option<Self> {
        match happened {
            Event::Seen { id, state, .. } => Some(Self::Job { id: id.clone(), state: *state }),
            Event::Paused { until: 0 } => Some(Self::Resumed),
            Event::Paused { until } => Some(Self::Paused { until: (*until < u64::MAX).then(|| time(*until)) }),
            Event::Claimed { .. }
            | Event::Kept { .. }
            | Event::Released { .. }
            | Event::Lost { .. }
            | Event::Line(_)
            | Event::Anew { .. } => None,
        }
    }
}
