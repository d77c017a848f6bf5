//! Watching all jobs of a queue.

use crate::handle::Queue;
use crate::notify::waiting::wait_until;
use crate::notify::watchers::{Buffer, QueueChange, WatcherState};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use waterline::seam::ClockExt;

/// Follows all jobs of a queue, from [`Queue::watch`](crate::Queue::watch).
///
/// It returns the changes since it was made, in the order in which they were written, and keeps the
/// last 4,096 that were not taken. To follow one job, a [`Subscription`](crate::Subscription) is
/// better: it never misses the end.
///
/// A wait needs no worker in this process: it notices by itself what falls due. A watch keeps the
/// store of its queue open. On a server, it tells of other processes if the engine does:
/// [`which_queue`](crate::which_queue).
pub struct Watch {
    pub(super) queue: Queue,
    pub(super) buffer: Arc<Buffer>,
}

impl Watch {
    pub(crate) fn new(queue: &Queue) -> Self {
        let buffer = Arc::new(Buffer::default());
        queue.shared.subscribers.watchers.add(&buffer);
        // What others are told now has happened before.
        queue.hear();
        *buffer.waiting.lock() = WatcherState::default();
        Self { queue: queue.clone(), buffer }
    }

    /// Waits for the next change; `None` after the timeout. It blocks its thread.
    pub fn wait(&mut self, timeout: Duration) -> Option<QueueChange> {
        let deadline = self.queue.moment().now.checked_add(timeout);
        let mut waiting = self.buffer.waiting.lock();
        loop {
            // If there is a change already, the queue need not be looked at.
            if let Some(change) = waiting.next() {
                return Some(change);
            }
            let calls = waiting.calls;
            drop(waiting);
            let next = self.queue.do_all();
            self.queue.hear();
            waiting = self.buffer.waiting.lock();
            if let Some(change) = waiting.next() {
                return Some(change);
            }
            // Read under the lock, so that setting the clock from now on rings a sleeper.
            let at = self.queue.moment();
            let rest = deadline.map(|deadline| deadline.saturating_duration_since(at.now));
            if rest.is_some_and(|rest| rest.is_zero()) {
                return None;
            }
            if waiting.calls == calls {
                let pause = rest.into_iter().chain(next).min();
                wait_until(&self.buffer.changed, &mut waiting, self.queue.clock().deadline(at.after(pause)));
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.queue.shared.subscribers.watchers.remove(&self.buffer);
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("queue", &self.queue.name()).finish_non_exhaustive()
    }
}
