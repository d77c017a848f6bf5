//! Futures that wait for a change of a job, or of any job of a queue.

use crate::awaiting::keeper::Waiting;
use crate::awaiting::off_thread::off_thread;
use crate::notify::subscribers::Told;
use crate::notify::watchers::{QueueChange, WatcherState};
use crate::subscription::{Seen, Subscription, has_ended};
use crate::types::error::QueueError;
use crate::types::job::JobState;
use crate::watch::Watch;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use waterline::seam::{wait_at, within};

impl Subscription {
    /// Waits until the job changes: the future of [`wait`](Self::wait). It may be dropped at any
    /// time, and the next wait then reports the change.
    ///
    /// # Errors
    /// The same as [`wait`](Self::wait).
    ///
    /// # Panics
    /// If it has to wait, and the runtime was built without
    /// [`enable_time`](tokio::runtime::Builder::enable_time); if it has to wait for a time, and
    /// there is no runtime. Outside of a runtime it notices only writes: no job is promoted and no
    /// lease expires while it waits.
    pub async fn wait_async(&mut self, timeout: Duration) -> Result<Option<Seen>, QueueError> {
        let told = self.told;
        self.comes(timeout, move |slot| slot.changes > told).await
    }

    /// Waits until the job is in this state: the future of [`wait_for`](Self::wait_for). It may be
    /// dropped at any time.
    ///
    /// # Errors
    /// The same as [`wait_for`](Self::wait_for).
    ///
    /// # Panics
    /// As [`wait_async`](Self::wait_async) does.
    pub async fn wait_for_async(&mut self, state: JobState, timeout: Duration) -> Result<Option<Seen>, QueueError> {
        let is_over = move |slot: &Told| slot.state.is_none() || slot.state == Some(state);
        Ok(self.comes(timeout, is_over).await?.filter(|seen| seen.state == Some(state)))
    }

    /// Waits until the job has ended: the future of [`wait_ended`](Self::wait_ended). It may be
    /// dropped at any time, as when the client that waits for a result has gone.
    /// [`push_async`](crate::Queue::push_async) has an example.
    ///
    /// # Errors
    /// The same as [`wait_ended`](Self::wait_ended).
    ///
    /// # Panics
    /// As [`wait_async`](Self::wait_async) does.
    pub async fn wait_ended_async(&mut self, timeout: Duration) -> Result<Option<Seen>, QueueError> {
        self.comes(timeout, has_ended).await
    }

    async fn comes(
        &mut self,
        timeout: Duration,
        is_over: impl Fn(&Told) -> bool + Sync,
    ) -> Result<Option<Seen>, QueueError> {
        let mut waiting = Waiting::new(&self.queue, timeout);
        waiting.do_all().await;
        loop {
            let calls = self.slot.state.lock().calls;
            let sleep = waiting.sleep();
            let look = |told: &mut Told| (is_over(told) || told.calls != calls).then(|| is_over(told));
            let comes = wait_at(&self.slot.state, |told| &mut told.tasks, look);
            match within(sleep.unwrap_or_default(), comes).await {
                Some(true) => return self.take().map(Some),
                _ if sleep.is_none() => return Ok(None),
                _ => {}
            }
        }
    }

    /// Waits until one of several jobs changes: the future of [`wait_any`](Self::wait_any). It may
    /// be dropped at any time.
    ///
    /// # Errors
    /// The same as [`wait_any`](Self::wait_any).
    ///
    /// # Panics
    /// As [`wait_async`](Self::wait_async) does.
    pub async fn wait_any_async(
        subscriptions: &mut [Self],
        timeout: Duration,
    ) -> Result<Option<(usize, Seen)>, QueueError> {
        Self::comes_among(subscriptions, None, timeout).await
    }

    /// Waits until one of several jobs is in this state: the future of
    /// [`wait_any_for`](Self::wait_any_for). It may be dropped at any time.
    ///
    /// # Errors
    /// The same as [`wait_any_for`](Self::wait_any_for).
    ///
    /// # Panics
    /// As [`wait_async`](Self::wait_async) does.
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
        let mut waits: Vec<Waiting> = Vec::new();
        for one in &*subscriptions {
            if !waits.iter().any(|other| Arc::ptr_eq(&other.queue.shared, &one.queue.shared)) {
                let waiting = Waiting::new(&one.queue, timeout);
                waiting.do_all().await;
                waits.push(waiting);
            }
        }
        let is_over = |one: &Self, slot: &Told| match wanted {
            Some(_) => slot.state == wanted,
            None => slot.changes > one.told,
        };
        let place = loop {
            let seen = |slot: &Told| (slot.changes, slot.calls);
            let looks: Vec<_> = subscriptions.iter().map(|one| seen(&one.slot.state.lock())).collect();
            if let Some(place) = subscriptions.iter().position(|one| is_over(one, &one.slot.state.lock())) {
                break place;
            }
            let are_gone = wanted.is_some() && subscriptions.iter().all(|one| one.state().is_none());
            let sleeps: Option<Vec<_>> = waits.iter_mut().map(Waiting::sleep).collect();
            let sleep = sleeps.and_then(|sleeps| sleeps.into_iter().min());
            let Some(limit) = sleep.filter(|_| !are_gone) else { return Ok(None) };
            let mut comes: Vec<_> = std::iter::zip(&*subscriptions, looks)
                .map(|(one, before)| {
                    let look = move |slot: &mut Told| (is_over(one, slot) || seen(slot) != before).then_some(());
                    Box::pin(wait_at(&one.slot.state, |told| &mut told.tasks, look))
                })
                .collect();
            let one_comes = poll_fn(|context| {
                let ready = comes.iter_mut().any(|one| one.as_mut().poll(context).is_ready());
                if ready { Poll::Ready(()) } else { Poll::Pending }
            });
            within(limit, one_comes).await;
        };
        let seen = subscriptions[place].take()?;
        Ok(Some((place, seen)))
    }
}

impl Watch {
    /// Waits for the next change: the future of [`wait`](Self::wait). It may be dropped at any
    /// time, and loses no change.
    ///
    /// # Panics
    /// As [`Subscription::wait_async`] does.
    pub async fn wait_async(&mut self, timeout: Duration) -> Option<QueueChange> {
        let there = self.buffer.waiting.lock().next();
        if there.is_some() {
            return there;
        }
        let mut wait = Waiting::new(&self.queue, timeout);
        wait.do_all().await;
        if self.queue.shared.hears {
            let queue = self.queue.clone();
            off_thread(move || queue.hear()).await.unwrap_or_else(|_| self.queue.hear());
        }
        loop {
            let calls = self.buffer.waiting.lock().calls;
            let sleep = wait.sleep();
            let look = |waiting: &mut WatcherState| match waiting.next() {
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
