//! Tasks that wait for one event, or for so long at most. The event wakes each of them; a task that
//! is dropped leaves the list.

use crate::base::sync::Mutex;
use crate::base::time;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Poll, Waker};
use std::time::Duration;

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

    /// Waits, as a task, until this has an answer. It is asked now, and each time that all are
    /// woken.
    pub(crate) async fn wait<R>(&self, mut answer: impl FnMut() -> Option<R>) -> R {
        let mut seat = Seat { wakers: self, place: None };
        poll_fn(move |context| {
            self.enter(&mut seat.place, context.waker().clone());
            answer().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Wakes all of them. The caller holds no lock.
    pub(crate) fn wake_all(&self) {
        let wakers = self.0.lock().as_mut().map(|waiting| std::mem::take(&mut waiting.wakers));
        wakers.into_iter().flatten().for_each(|(_, waker)| waker.wake());
    }
}

/// The place of a task, which leaves the list when it is dropped.
struct Seat<'a> {
    wakers: &'a Wakers,
    place: Option<u64>,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.wakers.leave(self.place);
    }
}

/// Awaits this for a time. A limit beyond the end of the clock never comes.
pub(crate) async fn within<R>(limit: Duration, future: impl Future<Output = R>) -> Option<R> {
    if time::now().checked_add(limit).is_none() {
        return Some(future.await);
    }
    let mut future = pin!(future);
    if limit.is_zero() {
        return poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(ready) => Poll::Ready(Some(ready)),
            Poll::Pending => Poll::Ready(None),
        })
        .await;
    }
    tokio::time::timeout(limit, future).await.ok()
}
