//! The bells of the groups that a queue is in.

use crate::base::sync::Arc;
use crate::queue::embedded::state::{Live, QueueState};
use crate::queue::waits::bell::Bell;
use std::sync::Weak;

impl QueueState {
    /// Rings this bell from now on whenever the queue wakes its own threads.
    pub(in crate::queue) fn hang(&self, bell: &Arc<Bell>) {
        let mut live = self.live.lock();
        live.bells.retain(|bell| bell.strong_count() > 0);
        live.bells.push(Arc::downgrade(bell));
    }
}

impl Live {
    /// Rings for so many new jobs, or for a change that each sleeper has to see.
    pub(crate) fn ring_bells(&self, jobs: Option<u64>) {
        for bell in self.bells.iter().filter_map(Weak::upgrade) {
            match jobs {
                Some(jobs) => bell.ring(jobs),
                None => bell.ring_all(),
            }
        }
    }

    /// True if a thread waits for a job of the queue, or of a group that it is in.
    pub(in crate::queue) fn is_awaited(&self) -> bool {
        self.asleep > 0 || self.bells.iter().filter_map(Weak::upgrade).any(|bell| bell.is_awaited())
    }
}
