//! Futures that wait for an event.

use super::{Called, Tasks};
use crate::base::{sync::Mutex, time};
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Poll, Waker};
use std::time::Duration;

/// The tasks that wait: usually none, so the list is boxed to keep an idle consumer small.
#[derive(Debug, Default)]
pub struct Wakers(Mutex<Option<Box<Tasks>>>);

impl Wakers {
    /// Puts a task on the list, or updates it in its place. The task checks for its event after
    /// that, so it misses none.
    pub(crate) fn enter(&self, place: &mut Option<u64>, waker: &Waker) {
        let before = self.0.lock().get_or_insert_default().enter(place, waker);
        drop(before);
    }

    pub(crate) fn leave(&self, place: Option<u64>) {
        let waker = self.0.lock().as_mut().and_then(|tasks| tasks.leave(place));
        drop(waker);
    }

    /// Waits asynchronously until `answer` returns `Some`. It is called now, and after each wake of
    /// all.
    pub async fn wait<R>(&self, mut answer: impl FnMut() -> Option<R>) -> R {
        let mut seat = Seat { at: None, leave: |at| self.leave(at) };
        poll_fn(move |context| {
            self.enter(&mut seat.at, context.waker());
            answer().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Wakes all of them. The caller must hold no lock.
    pub fn wake_all(&self) {
        let mut called = Called::default();
        self.0.lock().iter_mut().for_each(|tasks| tasks.call(usize::MAX, &mut called));
        called.wake();
    }
}

/// A task's place in the list, which it leaves when it is dropped.
struct Seat<L: FnMut(Option<u64>)> {
    at: Option<u64>,
    leave: L,
}

impl<L: FnMut(Option<u64>)> Drop for Seat<L> {
    fn drop(&mut self) {
        (self.leave)(self.at);
    }
}

/// Waits asynchronously until `look` at the locked state returns `Some`. It is called now, and
/// after each wake of these tasks.
#[cfg(feature = "seam")]
pub async fn wait_at<S, R>(
    state: &Mutex<S>,
    tasks: fn(&mut S) -> &mut Tasks,
    mut look: impl FnMut(&mut S) -> Option<R>,
) -> R {
    let leave = |at| {
        let waker = tasks(&mut state.lock()).leave(at);
        drop(waker);
    };
    let mut seat = Seat { at: None, leave };
    poll_fn(move |context| {
        let mut state = state.lock();
        if let Some(answer) = look(&mut state) {
            return Poll::Ready(answer);
        }
        let before = tasks(&mut state).enter(&mut seat.at, context.waker());
        drop(state);
        drop(before);
        Poll::Pending
    })
    .await
}

/// Awaits the future for this time. A limit beyond the end of the clock never comes.
pub async fn within<R>(limit: Duration, future: impl Future<Output = R>) -> Option<R> {
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
