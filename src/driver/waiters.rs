//! Waiters for processed jobs: threads and tasks that wait for an index, and `on_processed`.

use crate::base::Index;
use crate::base::sync::{Arc, Condvar};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// An index, and a number that is unique among the waiters.
pub(crate) type WaiterKey = (Index, u64);

/// A thread or task that waits for an index.
pub(crate) enum Waiter {
    Thread(Arc<Condvar>),
    #[cfg(feature = "tokio")]
    Task(std::task::Waker),
}

impl Waiter {
    pub(super) fn wake(self) {
        match self {
            Self::Thread(thread) => _ = thread.notify_one(),
            #[cfg(feature = "tokio")]
            Self::Task(task) => task.wake(),
        }
    }
}

/// The threads in `wait_for`, and the tasks in its future.
#[derive(Default)]
pub(crate) struct Waiters {
    /// The waiters that were not called.
    asleep: BTreeMap<WaiterKey, Waiter>,
    /// The waiters to be woken once the lock is free.
    called: Vec<Waiter>,
    /// The number of the next waiter.
    next: u64,
    /// How often a waiter was called.
    #[cfg(test)]
    pub(crate) calls: u64,
}

impl Waiters {
    pub(super) fn enter(&mut self, index: Index, waiter: Waiter) -> WaiterKey {
        let place = (index, self.next);
        self.next += 1;
        self.asleep.insert(place, waiter);
        place
    }

    /// Removes a waiter. A called one has left already. A task has to be dropped without the lock.
    pub(super) fn leave(&mut self, place: WaiterKey) -> Option<Waiter> {
        self.asleep.remove(&place)
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.asleep.len()
    }

    pub(super) fn highest(&self) -> Option<Index> {
        self.asleep.last_key_value().map(|((index, _), _)| *index)
    }

    pub(super) fn call_highest(&mut self) {
        let highest = self.asleep.pop_last();
        self.call(highest);
    }

    /// Calls the waiters whose index is reached. Returns true if there are any.
    pub(super) fn call_up_to(&mut self, last: Index) -> bool {
        let before = self.called.len();
        while self.asleep.first_key_value().is_some_and(|((index, _), _)| *index <= last) {
            let lowest = self.asleep.pop_first();
            self.call(lowest);
        }
        self.called.len() > before
    }

    fn call(&mut self, waiter: Option<(WaiterKey, Waiter)>) {
        #[cfg(test)]
        {
            self.calls += u64::from(waiter.is_some());
        }
        self.called.extend(waiter.map(|(_, waiter)| waiter));
    }

    /// Takes the called waiters. The caller wakes them.
    pub(super) fn take_called(&mut self) -> Vec<Waiter> {
        std::mem::take(&mut self.called)
    }
}

/// The news for `on_processed`.
#[derive(Default)]
pub(crate) struct Announcing {
    /// True if there is an `on_processed`.
    pub(crate) wanted: bool,
    /// The processed jobs that are not announced yet.
    news: Option<RangeInclusive<Index>>,
    /// True during a call of `on_processed`.
    calling: bool,
}

impl Announcing {
    /// Adds the jobs that the saved watermark has passed. Returns true if they are to be announced.
    pub(super) fn note(&mut self, run: RangeInclusive<Index>) -> bool {
        if self.wanted {
            let start = self.news.take().map_or(*run.start(), |earlier| *earlier.start());
            self.news = Some(start..=*run.end());
        }
        self.wanted
    }

    /// Takes the jobs processed since the last call.
    pub(super) fn take(&mut self) -> Option<RangeInclusive<Index>> {
        let news = self.news.take();
        self.calling = news.is_some();
        news
    }

    /// True if a call of `on_processed` runs or is about to.
    pub(super) fn is_under_way(&self) -> bool {
        self.calling || self.news.is_some()
    }

    /// Ends the calls of `on_processed`.
    pub(super) fn silence(&mut self) {
        *self = Self::default();
    }
}
