//! Tasks that wait for one event. The event wakes each of them; a task that is dropped leaves the
//! list.

use crate::base::sync::Mutex;
use std::collections::BTreeMap;
use std::task::Waker;

/// The tasks that wait. Mostly there is none, and an idle consumer is to be small.
#[derive(Debug, Default)]
pub(crate) struct Wakers(Mutex<Option<Box<Waiting>>>);

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    wakers: BTreeMap<u64, Waker>,
}

impl Wakers {
    /// Puts a task on the list, in its place if it has one. The task looks for its event after
    /// that, so it misses none.
    pub(crate) fn enter(&self, place: &mut Option<u64>, waker: Waker) {
        let mut list = self.0.lock();
        let waiting = list.get_or_insert_default();
        let at = *place.get_or_insert_with(|| {
            waiting.next += 1;
            waiting.next
        });
        let before = waiting.wakers.insert(at, waker);
        // The last waker of a task may drop the task, so it is dropped without the lock.
        drop(list);
        drop(before);
    }

    /// Takes a task off the list.
    pub(crate) fn leave(&self, place: Option<u64>) {
        let waker = place.and_then(|at| self.0.lock().as_mut()?.wakers.remove(&at));
        drop(waker);
    }

    /// Wakes all of them. The caller holds no lock.
    pub(crate) fn wake_all(&self) {
        let wakers = self.0.lock().as_mut().map(|waiting| std::mem::take(&mut waiting.wakers));
        wakers.into_iter().flatten().for_each(|(_, waker)| waker.wake());
    }
}
