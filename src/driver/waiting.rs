//! Threads in `wait_for`. Each is woken once: when its index has come, or when it no longer can. So those that wait cost a save
//! nothing, however many they are.

use super::Driver;
use super::core::Core;
use crate::base::index::Index;
use crate::base::sync::{Arc, Condvar, MutexGuard};
use std::time::Instant;

impl<T: Send + 'static> Core<T> {
    /// Calls those whose index can no longer come; whether there are any. If an index cannot come, no higher one can.
    #[cold]
    pub(super) fn call_in_vain(&mut self) -> bool {
        let mut any = false;
        while self.waiters.highest().is_some_and(|index| self.never(index)) {
            self.waiters.call_highest();
            any = true;
        }
        any
    }
}

impl<T: Send + 'static> Driver<T> {
    /// Sleeps until it is called, or until this time. The caller looks for itself what has become of its index.
    pub(super) fn wait_called(&self, core: &mut MutexGuard<'_, Core<T>>, index: Index, deadline: Option<Instant>) {
        let called = Arc::new(Condvar::new());
        let place = core.waiters.enter(index, called.clone());
        match deadline {
            Some(deadline) => {
                called.wait_until(core, deadline);
            }
            None => called.wait(core),
        }
        core.waiters.leave(place);
    }

    /// Wakes those who were called, without the lock.
    pub(super) fn wake_called(&self) {
        let called = self.core.lock().waiters.take_called();
        for waiter in called {
            waiter.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::retry::Retry;
    use crate::driver::control::Control;
    use crate::progress::{SaveDesk, Saves};
    use crate::source::watermark::Watermark;
    use crate::window::{Limits, Window};
    use std::thread::JoinHandle;
    use std::time::Duration;

    /// The test saves for itself.
    struct ByHand;

    impl Saves for ByHand {
        fn save(&self, _: Arc<dyn SaveDesk>, _: bool) {}

        fn hurry(&self) {}
    }

    const JOBS: u64 = 1000;

    /// A driver that has read all jobs, and no thread to run them.
    fn driver() -> Arc<Driver<()>> {
        let mut window = Window::begin(0, Limits { max_processing: 1000, max_search_ahead: 10_000 });
        window.handle_head(Some(JOBS - 1));
        while window.poll().is_some() {}
        window.handle_fetched(JOBS);
        let mut core = Core::new(window, Retry::none(), usize::MAX);
        core.workers.fixed = Some(0);
        Driver::new(core, Arc::default(), Watermark::new(), Arc::new(ByHand))
    }

    /// The next job is run and saved.
    fn step(driver: &Driver<()>) {
        let mut core = driver.core.lock();
        let run = core.window.poll_run().expect("all is read");
        assert!(core.window.handle_done(run.index));
        driver.settle(core);
        assert!(driver.checkpoint().is_some());
        driver.saved();
    }

    fn waiter(driver: &Arc<Driver<()>>, index: Index) -> JoinHandle<bool> {
        let driver = driver.clone();
        std::thread::spawn(move || driver.wait_for(index, Duration::MAX))
    }

    #[test]
    fn a_save_wakes_those_alone_whose_index_has_come_and_the_end_all_others() {
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
    fn a_failure_wakes_nobody_while_the_job_is_tried_again() {
        let mut core: Core<()> =
            Core::new(Window::begin(0, Limits { max_processing: 1, max_search_ahead: 9 }), Retry::none(), usize::MAX);
        let place = core.waiters.enter(3, Arc::default());
        core.rouse_waiters = true;
        let wakes = core.drain();
        assert_eq!((wakes.called, core.waiters.calls), (false, 0));
        core.stop_at(2);
        let wakes = core.drain();
        assert_eq!((wakes.called, core.waiters.calls), (true, 1), "it ends below");
        core.waiters.leave(place);
    }
}
