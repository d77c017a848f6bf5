//! The timeouts of attempts, and the thread that notices their ends.

use super::pool::Pool;
use crate::base::sync::{Arc, Condvar, Mutex, wait_until};
use crate::queue::clock::Waits;
use std::collections::BTreeSet;
use std::collections::HashMap;
use std::time::{Duration, Instant};

pub(super) struct Timeouts {
    after: Duration,
    ends: Mutex<Ends>,
    bell: Condvar,
}

/// The ends of the attempts in flight.
#[derive(Default)]
struct Ends {
    by_time: BTreeSet<(Instant, u64)>,
    by_token: HashMap<u64, Instant>,
    /// True once no attempt is left, and none will begin.
    over: bool,
}

impl Timeouts {
    pub(super) fn new(after: Duration) -> Self {
        Self { after, ends: Mutex::default(), bell: Condvar::new() }
    }

    /// Notes that an attempt begins.
    pub(super) fn begin(&self, token: u64, now: Instant) {
        // An end beyond the end of the clock never comes.
        let Some(end) = now.checked_add(self.after) else { return };
        let mut ends = self.ends.lock();
        ends.by_token.insert(token, end);
        ends.by_time.insert((end, token));
        // All attempts have the same time, so only the first one changes the sleep.
        if ends.by_time.len() == 1 {
            self.bell.notify_one();
        }
    }

    pub(super) fn forget(&self, token: u64) {
        let mut ends = self.ends.lock();
        if let Some(end) = ends.by_token.remove(&token) {
            ends.by_time.remove(&(end, token));
        }
    }

    /// Ends the thread. The caller may hold the lock of the pool, so this side never asks the pool
    /// while it holds its own.
    pub(super) fn close(&self) {
        self.ends.lock().over = true;
        self.bell.notify_all();
    }

    /// The loop of the thread.
    pub(super) fn watch(&self, pool: &Arc<Pool>) {
        let state = pool.queue().inner();
        loop {
            let overdue = {
                let mut ends = self.ends.lock();
                if ends.over {
                    return;
                }
                // Read under the lock, so that a clock which is set from now on rings a sleeper.
                let at = state.moment();
                match ends.by_time.first().copied() {
                    Some((end, token)) if end <= at.now => {
                        ends.by_time.remove(&(end, token));
                        ends.by_token.remove(&token);
                        token
                    }
                    next => {
                        let pause = next.map(|(end, _)| end.saturating_duration_since(at.now));
                        wait_until(&self.bell, &mut ends, state.options.clock.deadline(&at, pause));
                        continue;
                    }
                }
            };
            pool.overdue(overdue, self.after);
        }
    }
}

impl Waits for Timeouts {
    fn clock_was_set(&self) {
        // The lock makes sure that the thread sleeps, or has not looked yet.
        drop(self.ends.lock());
        self.bell.notify_all();
    }
}
