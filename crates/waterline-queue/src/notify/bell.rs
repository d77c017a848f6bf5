//! Waiting for jobs of several queues at once: each of them rings.

use crate::notify::waiting::wait_until;
use crate::types::wanted::Wanted;
use parking_lot::{Condvar, Mutex};
use std::time::Instant;
#[cfg(feature = "tokio")]
use waterline::seam::wait_at;
use waterline::seam::{Called, Tasks};

/// Where the threads of a group sleep. Each queue of the group rings it whenever it wakes its own
/// threads, so no thread has to poll the queues in turn.
///
/// A queue rings under its own lock, so do not call a queue under the lock in here.
#[derive(Default)]
pub(crate) struct Bell {
    heard: Mutex<Heard>,
    /// Threads that wait for a job sleep here.
    changed: Condvar,
    /// Threads without a free slot sleep here, so that they use up no wake-up of another.
    called: Condvar,
    /// Threads that wait for room sleep here.
    room: Condvar,
}

#[derive(Default)]
struct Heard {
    /// Counts the changes that a sleeper has to look at.
    news: u64,
    asleep: usize,
    /// How many sleepers do not take every job.
    picky: usize,
    /// How many sleep although there may be a job.
    full: usize,
    /// How many wait for room to push a job.
    blocked: usize,
    /// The tasks that wait for a job. Those that do not take every job count as picky, too.
    tasks: Tasks,
    /// The tasks that wait for room.
    blocked_tasks: Tasks,
}

impl Bell {
    /// Returns the number of changes so far. A thread reads it before it looks at the queues.
    pub(crate) fn news(&self) -> u64 {
        self.heard.lock().news
    }

    /// True if a thread or a task waits for a job.
    pub(crate) fn is_awaited(&self) -> bool {
        let heard = self.heard.lock();
        heard.asleep > 0 || !heard.tasks.is_empty()
    }

    #[cfg(test)]
    pub(crate) fn asleep(&self) -> usize {
        self.heard.lock().asleep
    }

    /// Notes this many new jobs, and wakes a thread and a task for each.
    pub(crate) fn ring(&self, jobs: u64, called: &mut Called) {
        let mut heard = self.heard.lock();
        heard.news += 1;
        if heard.picky > 0 {
            // The one that is woken may not take the job that another one takes.
            self.changed.notify_all();
            heard.tasks.call(usize::MAX, called);
            return;
        }
        heard.tasks.call(usize::try_from(jobs).unwrap_or(usize::MAX), called);
        for _ in 0..jobs.min(heard.asleep as u64) {
            self.changed.notify_one();
        }
    }

    /// Makes every waiting thread look again.
    pub(crate) fn ring_all(&self) {
        let mut heard = self.heard.lock();
        heard.news += 1;
        if heard.asleep > 0 {
            self.changed.notify_all();
        }
        if heard.full > 0 {
            self.called.notify_all();
        }
        if heard.blocked > 0 {
            self.room.notify_all();
        }
    }

    /// Makes every waiting task look again.
    #[cfg(any(feature = "tokio", test, feature = "testing"))]
    pub(crate) fn call_all(&self, called: &mut Called) {
        let mut heard = self.heard.lock();
        heard.news += 1;
        heard.tasks.call(usize::MAX, called);
        heard.blocked_tasks.call(usize::MAX, called);
    }

    /// Wakes callers that wait for queue capacity.
    pub(crate) fn ring_room(&self, called: &mut Called) {
        let mut heard = self.heard.lock();
        // Whoever looks now has not counted itself yet.
        heard.news += 1;
        heard.blocked_tasks.call(usize::MAX, called);
        if heard.blocked > 0 {
            self.room.notify_all();
        }
    }

    /// Wakes threads without a free slot, since one may be free now.
    pub(crate) fn slot_is_free(&self) {
        let mut heard = self.heard.lock();
        // A thread that falls asleep for want of a slot has not counted itself yet.
        heard.news += 1;
        if heard.full > 0 {
            self.called.notify_all();
        }
    }

    /// Looks whether there is room, and otherwise sleeps until there may be some, or until the time
    /// that `until` returns (`Some(None)`: without end). If it returns `None`, this does not sleep.
    pub(crate) fn sleep_for_room(&self, until: impl FnOnce() -> Option<Option<Instant>>) {
        let news = {
            let mut heard = self.heard.lock();
            heard.blocked += 1;
            heard.news
        };
        // Not under the lock: it may ask a server, and what is said to that is read in here.
        let until = until();
        let mut heard = self.heard.lock();
        if let Some(until) = until.filter(|_| heard.news == news) {
            wait_until(&self.room, &mut heard, until);
        }
        heard.blocked -= 1;
    }

    /// Sleeps until there is news, or until this time; `None`: without end.
    pub(crate) fn sleep(&self, news: u64, until: Option<Instant>, takes: Takes) {
        let mut heard = self.heard.lock();
        if takes == Takes::Nothing {
            if heard.news == news {
                heard.full += 1;
                wait_until(&self.called, &mut heard, until);
                heard.full -= 1;
            }
            return;
        }
        let picky = usize::from(takes == Takes::Some);
        heard.asleep += 1;
        heard.picky += picky;
        while heard.news == news && !wait_until(&self.changed, &mut heard, until) {}
        heard.asleep -= 1;
        heard.picky -= picky;
    }
}

#[cfg(feature = "tokio")]
impl Bell {
    /// Waits, as a task, until there is news.
    pub(crate) async fn heard(&self, news: u64, takes: Takes) {
        let picky = usize::from(takes == Takes::Some);
        self.heard.lock().picky += picky;
        let _picky = Picky(self, picky);
        wait_at(&self.heard, |heard| &mut heard.tasks, |heard| (heard.news != news).then_some(())).await;
    }

    /// Waits, as a task, until there is news, after a look for room.
    pub(crate) async fn room(&self, news: u64) {
        let look = |heard: &mut Heard| (heard.news != news).then_some(());
        wait_at(&self.heard, |heard| &mut heard.blocked_tasks, look).await;
    }
}

/// Counts as a task that may not take every job, until it is dropped.
#[cfg(feature = "tokio")]
struct Picky<'a>(&'a Bell, usize);

#[cfg(feature = "tokio")]
impl Drop for Picky<'_> {
    fn drop(&mut self) {
        self.0.heard.lock().picky -= self.1;
    }
}

/// Which jobs a thread takes when it is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    Each,
    /// Only those of some kinds, or due by a time of its own.
    Some,
    /// None, since its slots are taken.
    Nothing,
}

impl Takes {
    /// Returns what a thread takes that wants these jobs.
    pub(crate) fn of(wanted: &Wanted) -> Self {
        if wanted.due_by.is_some() || wanted.kinds.is_some() { Self::Some } else { Self::Each }
    }
}
