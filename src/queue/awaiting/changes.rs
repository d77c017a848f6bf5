//! The waits for a change of a job, or of any job of a queue, as futures.

use crate::base::sync::Arc;
use crate::base::wakers::{off_thread, wait_at, within};
use crate::queue::handle::Queue;
use crate::queue::subscription::{Seen, Subscription, has_ended};
use crate::queue::waits::shared::Keeper;
use crate::queue::waits::subscribers::Told;
use crate::queue::waits::watchers::{QueueChange, Waiting};
use crate::queue::watch::Watch;
use crate::queue::words::error::QueueError;
use crate::queue::words::job::JobState;
use crate::queue::words::options::LONGEST_SLEEP;
use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

impl Subscription {
    /// Waits until the job changes, without a thread: the future of [`wait`](Self::wait). It may be
    /// dropped at any time: the next wait tells the change.
    ///
    /// # Errors
    /// Those of [`wait`](Self::wait).
    ///
    /// # Panics
    /// If it has to wait for a time, and the runtime was built without
    /// [`enable_time`](tokio::runtime::Builder::enable_time), or there is none.
    pub async fn wait_async(&mut self, timeout: Duration) -> Result<Option<Seen>, QueueError> {
        let told = self.told;
        self.comes(timeout, move |slot| slot.changes > told).await
    }

    /// Waits until the job is in this state, without a thread: the future of
    /// [`wait_for`](Self::wait_for). It may be dropped at any time.
    ///
    /// # Errors
    /// Those of [`wait_for`](Self::wait_for).
    ///
    /// # Panics
    /// It panics as [`wait_async`](Self::wait_async) does.
    pub async fn wait_for_async(&mut self, state: JobState, timeout: Duration) -> Result<Option<Seen>, QueueError> {
        let is_over = move |slot: &Told| slot.state.is_none() || slot.state == Some(state);
        Ok(self.comes(timeout, is_over).await?.filter(|seen| seen.state == Some(state)))
    }

    /// Waits until the job has ended, without a thread: the future of
    /// [`wait_ended`](Self::wait_ended). It may be dropped at any time, as when a client that waits
    /// for a result has gone. [`Queue::push_async`] has an example.
    ///
    /// # Errors
    /// Those of [`wait_ended`](Self::wait_ended).
    ///
    /// # Panics
    /// It panics as [`wait_async`](Self::wait_async) does.
    pub async fn wait_ended_async(&mut self, timeout: Duration) -> Result<Option<Seen>, QueueError> {
        self.comes(timeout, has_ended).await
    }

    async fn comes(
        &mut self,
        timeout: Duration,
        is_over: impl Fn(&Told) -> bool + Sync,
    ) -> Result<Option<Seen>, QueueError> {
        let mut lookout = Lookout::new(&self.queue, timeout);
        loop {
            let calls = self.slot.state.lock().calls;
            let next = lookout.do_all().await;
            let sleep = lookout.sleep(next);
            let look = |told: &mut Told| (is_over(told) || told.calls != calls).then(|| is_over(told));
            let comes = wait_at(&self.slot.state, |told| &mut told.tasks, look);
            match within(sleep.unwrap_or_default(), comes).await {
                Some(true) => return self.take().map(Some),
                _ if sleep.is_none() => return Ok(None),
                _ => {}
            }
        }
    }

    /// Waits until one of several jobs changes, without a thread: the future of
    /// [`wait_any`](Self::wait_any). It may be dropped at any time.
    ///
    /// # Errors
    /// Those of [`wait_any`](Self::wait_any).
    ///
    /// # Panics
    /// It panics as [`wait_async`](Self::wait_async) does.
    pub async fn wait_any_async(
        subscriptions: &mut [Self],
        timeout: Duration,
    ) -> Result<Option<(usize, Seen)>, QueueError> {
        Self::comes_among(subscriptions, None, timeout).await
    }

    /// Waits until one of several jobs is in this state, without a thread: the future of
    /// [`wait_any_for`](Self::wait_any_for). It may be dropped at any time.
    ///
    /// # Errors
    /// Those of [`wait_any_for`](Self::wait_any_for).
    ///
    /// # Panics
    /// It panics as [`wait_async`](Self::wait_async) does.
    pub async fn wait_any_for_async(
        subscriptions: &mut [Self],
        state: JobState,
        timeout: Duration,
    ) -> Result<Option<(usize, Seen)>, QueueError> {
        Self::comes_among(subscriptions, Some(state), timeout).await
    }
    async fn comes_among(
        subscriptions: &mut [Self],
        wanted: Option<JobState>,
        timeout: Duration,
    ) -> Result<Option<(usize, Seen)>, QueueError> {
        let mut lookouts: Vec<Lookout> = Vec::new();
        for one in &*subscriptions {
            if !lookouts.iter().any(|other| Arc::ptr_eq(&other.queue.shared, &one.queue.shared)) {
                lookouts.push(Lookout::new(&one.queue, timeout));
            }
        }
        let place = loop {
            let looks: Vec<_> = subscriptions.iter().map(|one| (one.told, one.slot.state.lock().calls)).collect();
            let mut next = None;
            for lookout in &mut lookouts {
                next = lookout.do_all().await.into_iter().chain(next).min();
            }
            let Some(first) = lookouts.first() else { return Ok(None) };
            let sleep = first.sleep(next);
            let mut waits: Vec<_> = std::iter::zip(&*subscriptions, looks)
                .map(|(one, (told, calls))| {
                    let is_over = move |slot: &Told| match wanted {
                        Some(_) => slot.state == wanted,
                        None => slot.changes > told,
                    };
                    let look = move |slot: &mut Told| (is_over(slot) || slot.calls != calls).then(|| is_over(slot));
                    Box::pin(wait_at(&one.slot.state, |told| &mut told.tasks, look))
                })
                .collect();
            let are_gone = || wanted.is_some() && subscriptions.iter().all(|one| one.state().is_none());
            let one_comes = poll_fn(|context| {
                let ready = waits.iter_mut().enumerate().find_map(|(place, wait)| match wait.as_mut().poll(context) {
                    Poll::Ready(is_over) => Some(is_over.then_some(place)),
                    Poll::Pending => None,
                });
                match ready {
                    Some(place) => Poll::Ready(place),
                    None if are_gone() => Poll::Ready(None),
                    None => Poll::Pending,
                }
            });
            let come = within(sleep.unwrap_or_default(), one_comes).await.flatten();
            drop(waits);
            match come {
                Some(place) => break place,
                None if sleep.is_none() || are_gone() => return Ok(None),
                None => {}
            }
        };
        let seen = subscriptions[place].take()?;
        Ok(Some((place, seen)))
    }
}

impl Watch {
    /// Waits for the next change without a thread: the future of [`wait`](Self::wait). It may be
    /// dropped at any time, and loses no change.
    ///
    /// # Panics
    /// It panics as [`Subscription::wait_async`] does.
    pub async fn wait_async(&mut self, timeout: Duration) -> Option<QueueChange> {
        let mut lookout = Lookout::new(&self.queue, timeout);
        loop {
            let calls = self.buffer.waiting.lock().calls;
            let next = lookout.do_all().await;
            let sleep = lookout.sleep(next);
            let look = |waiting: &mut Waiting| match waiting.next() {
                None => (waiting.calls != calls).then_some(None),
                change => Some(change),
            };
            let comes = wait_at(&self.buffer.waiting, |waiting| &mut waiting.tasks, look);
            match within(sleep.unwrap_or_default(), comes).await.flatten() {
                None if sleep.is_none() => return None,
                None => {}
                change => return change,
            }
        }
    }
}

/// The look of a task at what time brings while it waits. One task for each queue looks after that
/// for all of them, so a thousand that wait cost no more than one.
struct Lookout {
    queue: Queue,
    deadline: Option<Instant>,
    keeper: Option<Keeper>,
    /// It has waited for another keeper before.
    has_waited: bool,
}

impl Lookout {
    fn new(queue: &Queue, timeout: Duration) -> Self {
        let deadline = queue.moment().now.checked_add(timeout);
        Self { queue: queue.clone(), deadline, keeper: None, has_waited: false }
    }

    /// Does what is to be done, if this is the task that does. Returns the time until more comes;
    /// `None`: nothing does.
    async fn do_all(&mut self) -> Option<Duration> {
        if self.keeper.is_none() {
            self.keeper = self.queue.shared.keep();
        }
        let next = self.queue.glance().next_change;
        let is_keeper = self.keeper.is_some();
        if !next.is_some_and(|next| next.is_zero()) {
            // The others look later, since nobody may poll the keeper.
            return if is_keeper { next } else { next.map(|next| next + LONGEST_SLEEP) };
        }
        if !is_keeper && !std::mem::replace(&mut self.has_waited, true) {
            return Some(LONGEST_SLEEP);
        }
        let queue = self.queue.clone();
        // Without a runtime it has to block its thread.
        off_thread(move || queue.do_all()).await.unwrap_or_else(|_| self.queue.do_all())
    }

    /// Returns the longest sleep, if `next` is the time until time brings something. `None`: the
    /// time of the wait is over.
    fn sleep(&self, next: Option<Duration>) -> Option<Duration> {
        let now = self.queue.moment().now;
        let rest = self.deadline.map(|deadline| deadline.saturating_duration_since(now));
        let is_over = rest.is_some_and(|rest| rest.is_zero());
        (!is_over).then(|| self.queue.limit(rest.into_iter().chain(next).min()))
    }
}
