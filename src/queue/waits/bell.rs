//! A wait for jobs of several queues at once: each of them rings.

use crate::base::sync::{Condvar, Mutex, wait_until};
use crate::queue::words::wanted::Wanted;
use std::time::Instant;

/// The place where the threads of a group sleep. Each queue of the group rings it whenever it wakes
/// its own threads, so nobody asks one queue after the other.
///
/// A queue rings under its own lock. So nobody asks a queue while it holds the lock in here.
#[derive(Default)]
pub(crate) struct Bell {
    heard: Mutex<Heard>,
    /// Threads that wait for a job sleep here.
    changed: Condvar,
    /// Threads that could take no job now sleep here, so that they use up no wake-up of another.
    called: Condvar,
    /// Threads that wait for room sleep here.
    room: Condvar,
}

#[derive(Default)]
struct Heard {
    /// Counts the changes that a sleeper has to look at.
    news: u64,
    asleep: usize,
    /// The number of those who are asleep, but do not take each job.
    picky: usize,
    /// The number of those who sleep although there may be a job.
    full: usize,
    /// The number of those who wait for room for a job of theirs.
    blocked: usize,
}

impl Bell {
    /// Returns the number of changes so far. A thread asks before it looks at the queues.
    pub(crate) fn news(&self) -> u64 {
        self.heard.lock().news
    }

    /// True if a thread waits for a job.
    pub(crate) fn is_awaited(&self) -> bool {
        self.heard.lock().asleep > 0
    }

    /// Returns the number of threads that sleep until there is a job.
    #[cfg(test)]
    pub(crate) fn asleep(&self) -> usize {
        self.heard.lock().asleep
    }

    /// Notes so many new jobs, and wakes a thread for each.
    pub(crate) fn ring(&self, jobs: u64) {
        let mut heard = self.heard.lock();
        heard.news += 1;
        if heard.picky > 0 {
            // The one who is woken may not take the job that another one takes.
            self.changed.notify_all();
            return;
        }
        for _ in 0..jobs.min(heard.asleep as u64) {
            self.changed.notify_one();
        }
    }

    /// Makes every thread that waits look again.
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

    /// Makes the threads look again that wait for room.
    pub(crate) fn ring_room(&self) {
        let mut heard = self.heard.lock();
        if heard.blocked > 0 {
            heard.news += 1;
            self.room.notify_all();
        }
    }

    /// Makes the threads look again that could take no job, since a slot may be free now.
    pub(crate) fn slot_is_free(&self) {
        let mut heard = self.heard.lock();
        // A thread that falls asleep for want of a slot has not counted itself yet.
        heard.news += 1;
        if heard.full > 0 {
            self.called.notify_all();
        }
    }

    /// Sleeps until there may be room, or until the time that the answer of `until` has, without an
    /// end for `None` in it. It is asked with the lock, so that no change is missed. Without an
    /// answer nobody sleeps.
    pub(crate) fn sleep_for_room(&self, until: impl FnOnce() -> Option<Option<Instant>>) {
        let mut heard = self.heard.lock();
        heard.blocked += 1;
        if let Some(until) = until() {
            wait_until(&self.room, &mut heard, until);
        }
        heard.blocked -= 1;
    }

    /// Sleeps until there is news, or until this time; `None`: without an end.
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

/// The jobs that a thread takes when it is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    Each,
    /// Those that are due by a time of its own, or of some kinds.
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
