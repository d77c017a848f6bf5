//! Watching all jobs of a queue.

use super::Queue;
use super::step::Happened;
use crate::base::sync::{Arc, Condvar, Mutex, Ordering, wait_until};
use crate::queue::job::{JobId, JobState, time};
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, SystemTime};

/// The most changes that wait for one who watches. It bounds the memory of one who is too slow.
const MOST: usize = 4096;

/// A change in a queue, for one who watches it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueChange {
    /// A job is in this state, with another one or with other data before. `None`: it is gone.
    #[non_exhaustive]
    Job {
        /// The id of the job.
        id: JobId,
        /// Its state.
        state: Option<JobState>,
    },
    /// The queue hands out no job until this time; `None`: until somebody resumes it.
    #[non_exhaustive]
    Paused {
        /// The time at which it ends.
        until: Option<SystemTime>,
    },
    /// Somebody has ended the pause of the queue. (Nothing tells that its time is over.)
    Resumed,
    /// So many changes were lost here, since nobody took them in time.
    #[non_exhaustive]
    Missed {
        /// The number of changes.
        changes: u64,
    },
}

/// A look at all jobs of a queue, from [`Queue::watch`](crate::queue::Queue::watch). It has the
/// changes since it was made, in the order in which they were written.
///
/// It keeps the last 4,096 changes that nobody has taken. To follow one job, a
/// [`Subscription`](crate::queue::Subscription) is better: it never misses the end.
///
/// A wait needs no worker beside it: it notices by itself what time brings. A watch keeps the store
/// of its queue open.
pub struct Watch {
    queue: Queue,
    buffer: Arc<Buffer>,
}

#[derive(Default)]
struct Buffer {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    changes: VecDeque<QueueChange>,
    missed: u64,
    /// Counts the changes, and the calls to look at the clock again.
    calls: u64,
}

/// Those who watch a queue.
#[derive(Default)]
pub(super) struct Watchers {
    buffers: Mutex<Vec<Arc<Buffer>>>,
    /// Their number, which every push looks at.
    count: AtomicUsize,
}

impl Watchers {
    /// True if somebody watches. Otherwise nobody has to be told of new jobs.
    pub(super) fn is_any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    pub(super) fn tell(&self, told: &[Happened]) {
        if !self.is_any() {
            return;
        }
        let changes: Vec<_> = told.iter().filter_map(QueueChange::of).collect();
        for buffer in self.buffers.lock().iter().filter(|_| !changes.is_empty()) {
            let mut waiting = buffer.waiting.lock();
            waiting.changes.extend(changes.iter().cloned());
            waiting.calls += 1;
            let surplus = waiting.changes.len().saturating_sub(MOST);
            waiting.changes.drain(..surplus);
            waiting.missed += surplus as u64;
            buffer.changed.notify_all();
        }
    }

    /// Makes all who wait look at the clock again.
    pub(super) fn ring(&self) {
        for buffer in self.buffers.lock().iter() {
            buffer.waiting.lock().calls += 1;
            buffer.changed.notify_all();
        }
    }

    fn add(&self, buffer: &Arc<Buffer>) {
        let mut buffers = self.buffers.lock();
        buffers.push(buffer.clone());
        self.count.store(buffers.len(), Ordering::Release);
    }

    fn remove(&self, buffer: &Arc<Buffer>) {
        let mut buffers = self.buffers.lock();
        buffers.retain(|other| !Arc::ptr_eq(other, buffer));
        self.count.store(buffers.len(), Ordering::Release);
    }
}

impl QueueChange {
    fn of(happened: &Happened) -> Option<Self> {
        match happened {
            Happened::Seen { id, state, .. } => Some(Self::Job { id: id.clone(), state: *state }),
            Happened::Paused { until: 0 } => Some(Self::Resumed),
            Happened::Paused { until } => Some(Self::Paused { until: (*until < u64::MAX).then(|| time(*until)) }),
            Happened::Claimed { .. } | Happened::Released { .. } | Happened::Line(_) | Happened::Anew { .. } => None,
        }
    }
}

impl Watch {
    pub(super) fn new(queue: &Queue) -> Self {
        let buffer = Arc::new(Buffer::default());
        queue.inner().subscribers.watchers.add(&buffer);
        Self { queue: queue.clone(), buffer }
    }

    /// Waits for the next change. `None`: the time is over. It blocks its thread.
    pub fn wait(&mut self, timeout: Duration) -> Option<QueueChange> {
        let deadline = self.queue.inner().moment().now.checked_add(timeout);
        let mut waiting = self.buffer.waiting.lock();
        loop {
            let calls = waiting.calls;
            drop(waiting);
            let next = self.queue.do_all();
            waiting = self.buffer.waiting.lock();
            if waiting.missed > 0 {
                return Some(QueueChange::Missed { changes: std::mem::take(&mut waiting.missed) });
            }
            if let Some(change) = waiting.changes.pop_front() {
                return Some(change);
            }
            // Read under the lock, so that a clock which is set from now on rings a sleeper.
            let at = self.queue.inner().moment();
            let rest = deadline.map(|deadline| deadline.saturating_duration_since(at.now));
            if rest.is_some_and(|rest| rest.is_zero()) {
                return None;
            }
            if waiting.calls == calls {
                let pause = rest.into_iter().chain(next).min();
                wait_until(
                    &self.buffer.changed,
                    &mut waiting,
                    self.queue.inner().options.clock.deadline(at.after(pause)),
                );
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.queue.inner().subscribers.watchers.remove(&self.buffer);
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("queue", &self.queue.name()).finish_non_exhaustive()
    }
}
