//! The threads that wait for a job of a queue: their sleep, and the calls that wake them.

use crate::base::sync::wait_until;
use crate::queue::embedded::state::{Live, QueueState};
use crate::queue::waits::bell::Takes;
use std::time::Instant;

impl QueueState {
    /// Returns the number of changes so far. A thread asks before it looks for a job.
    pub(in crate::queue) fn news(&self) -> u64 {
        self.live.lock().news
    }

    /// Sleeps until there is news, until time brings something, or until the deadline. A thread
    /// that takes no job is not woken for one. True: there is something to do that time has
    /// brought.
    pub(in crate::queue) fn sleep(&self, news: u64, deadline: Option<Instant>, takes: Takes) -> bool {
        let mut live = self.live.lock();
        if live.news != news {
            return false;
        }
        let at = self.moment();
        let next = live.next_change(&at);
        let pause = match (next, deadline.map(|deadline| deadline.saturating_duration_since(at.now))) {
            (Some(next), Some(rest)) => Some(next.min(rest)),
            (next, rest) => next.or(rest),
        };
        if pause.is_some_and(|pause| pause.is_zero()) {
            return next.is_some_and(|next| next.is_zero());
        }
        let until = self.options.clock.deadline(at.after(pause));
        if takes != Takes::Nothing {
            let picky = usize::from(takes == Takes::Some);
            live.asleep += 1;
            live.picky += picky;
            while live.news == news && !wait_until(&self.changed, &mut live, until) {}
            live.asleep -= 1;
            live.picky -= picky;
        } else {
            live.full += 1;
            wait_until(&self.called, &mut live, until);
            live.full -= 1;
        }
        false
    }

    pub(in crate::queue) fn wake(&self, live: &mut Live, jobs: u64) {
        live.news += 1;
        live.ring_bells(Some(jobs));
        if live.picky > 0 {
            // The one who is woken may not take the job that another one takes.
            self.changed.notify_all();
            return;
        }
        for _ in 0..jobs.min(live.asleep as u64) {
            self.changed.notify_one();
        }
    }

    pub(in crate::queue) fn wake_all(&self, live: &mut Live) {
        live.news += 1;
        live.ring_bells(None);
        if live.asleep > 0 {
            self.changed.notify_all();
        }
        if live.full > 0 {
            self.called.notify_all();
        }
        if live.blocked > 0 {
            self.room.notify_all();
        }
    }

    /// Wakes one thread that waits, since there is more than the caller takes.
    pub(in crate::queue) fn pass_on(&self) {
        let mut live = self.live.lock();
        if live.asleep > 0 && live.ready() > 0 {
            self.wake(&mut live, 1);
        }
    }

    /// Makes the threads look again that could take no job, since a slot may be free now. One that
    /// is about to sleep for that reason has to see it too.
    pub(in crate::queue) fn slot_is_free(&self) {
        let mut live = self.live.lock();
        live.news += 1;
        if live.full > 0 {
            self.called.notify_all();
        }
    }

    /// Makes every thread that waits look again.
    pub(in crate::queue) fn ring(&self) {
        self.wake_all(&mut self.live.lock());
    }

    /// Makes the next call look for the next tick of each periodic job.
    pub(in crate::queue) fn look_for_ticks(&self) {
        let mut live = self.live.lock();
        live.from.set_ticks(0);
        self.wake_all(&mut live);
    }
}
