//! Waiters for processed jobs: the thread that calls `on_processed`, and callers of `wait_for`.
//!
//! Each waiter is woken once, when its index is processed or can no longer be. So a save costs the
//! same however many wait.

use crate::base::guard::{drop_guarded, guarded};
use crate::base::sync::{Arc, Condvar};
use crate::base::{Error, Index, caught::Caught, time};
use crate::driver::{Driver, core::Core, waiters::Waiter, whole::CoreGuard};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};
#[cfg(feature = "tokio")]
use {
    crate::driver::waiters::WaiterKey,
    std::task::{Poll, Waker},
};

impl Core {
    /// Returns whether the watermark has reached this index; `None` while it still may and time is
    /// left.
    pub(super) fn has_come(&self, index: Index, timed_out: bool) -> Option<bool> {
        if self.window.last_processed().is_some_and(|last| last >= index) {
            return Some(true);
        }
        (timed_out || self.never(index)).then_some(false)
    }
}

impl Driver {
    /// Waits until the watermark reaches this index. Returns false if it does not.
    pub(crate) fn wait_for(&self, index: Index, timeout: Duration) -> bool {
        // A deadline beyond the end of the clock means no deadline.
        let deadline = time::now().checked_add(timeout);
        let mut timed_out = timeout.is_zero();
        let mut core = self.core.lock();
        loop {
            match core.has_come(index, timed_out) {
                Some(has_come) => return has_come,
                None => timed_out = Self::sleep_until_called(&mut core, index, deadline),
            }
        }
    }

    /// Sleeps until this thread is called, or until the deadline; then returns true. The caller
    /// then checks its index again.
    fn sleep_until_called(core: &mut CoreGuard<'_>, index: Index, deadline: Option<Instant>) -> bool {
        let called = Arc::new(Condvar::new());
        let place = core.waiters.enter(index, Waiter::Thread(called.clone()));
        let timed_out = core.wait_until(&called, deadline);
        let _itself = core.waiters.leave(place);
        timed_out
    }

    /// Returns whether the watermark has reached this index. While it still may, the task keeps a
    /// place in the list of waiters and is woken when that changes.
    #[cfg(feature = "tokio")]
    pub(crate) fn poll_wait_for(&self, index: Index, place: &mut Option<WaiterKey>, waker: &Waker) -> Poll<bool> {
        let waiter = Waiter::Task(waker.clone());
        let mut core = self.core.lock();
        let before = place.take().and_then(|place| core.waiters.leave(place));
        let has_come = core.has_come(index, false);
        let waiter = match has_come {
            Some(_) => Some(waiter),
            None => {
                *place = Some(core.waiters.enter(index, waiter));
                None
            }
        };
        // Dropping the last waker of a task may drop the task, so that happens without the lock.
        drop(core);
        drop((before, waiter));
        has_come.map_or(Poll::Pending, Poll::Ready)
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn wait_for_no_more(&self, place: Option<WaiterKey>) {
        let waiter = place.and_then(|place| self.core.lock().waiters.leave(place));
        drop(waiter);
    }

    /// Calls `on_processed`, one call at a time, in order and without a gap, until the end.
    pub(crate) fn notify(&self, callback: impl Fn(RangeInclusive<Index>)) {
        while let Some(run) = self.news() {
            let index = *run.end();
            let called = guarded(|| {
                callback(run);
                Ok(())
            });
            if let Err(panic) = called {
                self.callback_panicked(index, panic.into());
                break;
            }
        }
        drop_guarded(callback);
    }

    /// Sleeps until something was saved. Returns `None` once nothing will be any more.
    fn news(&self) -> Option<RangeInclusive<Index>> {
        let mut core = self.core.lock();
        loop {
            if let Some(run) = core.announcing.take() {
                return Some(run);
            }
            // A `stop` may wait for the last call, which is over now.
            self.changed.notify_all();
            if core.window.has_ended() {
                return None;
            }
            core.wait_until(&self.news, None);
        }
    }

    fn callback_panicked(&self, index: Index, failure: Caught) {
        let text = format!("on_processed {}", failure.text);
        let error = Error::Callback { index, source: failure.error };
        drop_guarded(self.step(|core, now| {
            core.announcing.silence();
            core.ctx(now).halt(index, text, error, &failure.text)
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::time::Now;
    use crate::driver::samples;
    use crate::progress::SavePort;
    use std::thread::JoinHandle;

    /// A driver that has read some jobs, without a thread to run them.
    fn driver() -> Arc<Driver> {
        let mut core = samples::core(1000, 10_000, Instant::now());
        samples::read(&mut core, 1000);
        core.workers.fixed = Some(0);
        samples::driver(core)
    }

    /// Runs and saves the next job.
    fn step(driver: &Driver) {
        let mut core = driver.core.lock();
        let run = core.window.poll_run().expect("all is read");
        assert!(core.window.handle_done(run.index));
        driver.settle(core, &Now::when_asked());
        assert!(driver.checkpoint().is_some());
        driver.saved();
    }

    fn waiter(driver: &Arc<Driver>, index: Index) -> JoinHandle<bool> {
        let driver = driver.clone();
        std::thread::spawn(move || driver.wait_for(index, Duration::MAX))
    }

    #[test]
    fn a_save_wakes_only_waiters_whose_index_has_come() {
        let driver = driver();
        let early: Vec<_> = (0..10).map(|n| waiter(&driver, 10 * n)).collect();
        let late: Vec<_> = (0..40).map(|n| waiter(&driver, 500 + n / 2)).collect();
        let counts = || {
            let core = driver.core.lock();
            (core.waiters.calls, core.waiters.count())
        };
        while counts().1 < 50 {
            std::thread::yield_now();
        }
        (0..100).for_each(|_| step(&driver));
        assert!(early.into_iter().all(|waiter| waiter.join().unwrap()));
        assert_eq!(counts(), (10, 40), "of 5,000 calls, had each save woken all");
        driver.request_stop();
        assert!(late.into_iter().all(|waiter| !waiter.join().unwrap()), "it can no longer come");
        assert_eq!(counts(), (50, 0));
    }

    #[test]
    fn a_retried_failure_wakes_no_waiter() {
        let now = Instant::now();
        let mut core = samples::core(1, 9, now);
        let place = core.waiters.enter(3, Waiter::Thread(Arc::default()));
        core.out.waiters = true;
        let wakes = core.drain(&Now::at(now));
        assert_eq!((wakes.called, core.waiters.calls), (false, 0));
        core.stop_at(2);
        let wakes = core.drain(&Now::at(now));
        assert_eq!((wakes.called, core.waiters.calls), (true, 1), "it ends below");
        assert!(core.waiters.leave(place).is_none());
    }
}
