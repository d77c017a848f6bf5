//! The lock of the core. Whoever has it sees the core whole: the [tray](crate::driver::tray) is
//! taken back first.

use crate::base::clock::Clock;
use crate::base::sync::{Condvar, Mutex, MutexGuard, lock_awake, wait_until};
use crate::base::time::coarse;
use crate::commit::changes::Changes;
use crate::crew::Crew;
use crate::driver::Driver;
use crate::driver::core::Core;
use crate::driver::flights::Flight;
use crate::driver::tray::{MOST, Taken, Tray, is_begun_here};
use crate::run::Assignment;
use crate::run::worker::Report;
use std::ops::{Deref, DerefMut};
use std::time::Instant;

/// The core, under its lock, and the tray of its threads.
pub(crate) struct WholeCore {
    core: Mutex<Core>,
    /// Locked alone, or by somebody who has the core.
    tray: Mutex<Tray>,
}

/// The core in the hands of one thread.
pub(crate) struct CoreGuard<'a> {
    core: MutexGuard<'a, Core>,
    tray: &'a Mutex<Tray>,
}

impl WholeCore {
    pub(in crate::driver) fn new(core: Core) -> Self {
        Self { core: Mutex::new(core), tray: Mutex::default() }
    }

    #[inline]
    pub(in crate::driver) fn lock(&self) -> CoreGuard<'_> {
        self.whole(self.core.lock())
    }

    /// The same for a thread that others wait for.
    pub(in crate::driver) fn lock_awake(&self) -> CoreGuard<'_> {
        self.whole(lock_awake(&self.core))
    }

    #[inline]
    fn whole<'a>(&'a self, core: MutexGuard<'a, Core>) -> CoreGuard<'a> {
        let mut core = CoreGuard { core, tray: &self.tray };
        core.make_whole();
        core
    }

    /// Leaves the report of a success in the tray, and takes a job from there. `None`: the core
    /// takes the report, and has the next job.
    #[inline]
    pub(super) fn next_in_tray<T: Send + 'static>(&self, report: &mut Option<Report>) -> Option<Assignment<T>> {
        self.tray.lock().next(report)
    }
}

impl CoreGuard<'_> {
    /// Sleeps until somebody wakes the caller, or until the deadline. True: the deadline came.
    pub(in crate::driver) fn wait_until(&mut self, condvar: &Condvar, deadline: Option<Instant>) -> bool {
        let timed_out = wait_until(condvar, &mut self.core, deadline);
        self.make_whole();
        timed_out
    }

    /// The same by this clock.
    pub(in crate::driver) fn wait_by(&mut self, clock: &Clock, condvar: &Condvar, until: Option<Instant>) -> bool {
        let timed_out = clock.wait(condvar, &mut self.core, until);
        self.make_whole();
        timed_out
    }

    /// Waits until all threads of the crew are gone, as [`Crew::wait_gone`] does.
    pub(in crate::driver) fn wait_gone(&mut self, crew: &Crew<Driver>, deadline: Option<Instant>) -> bool {
        let gone = crew.wait_gone(&mut self.core, deadline);
        self.make_whole();
        gone
    }

    /// Runs this without the lock.
    pub(in crate::driver) fn unlocked<R>(&mut self, run: impl FnOnce() -> R) -> R {
        let answer = MutexGuard::unlocked(&mut self.core, run);
        self.make_whole();
        answer
    }

    /// Gives the lock to those who wait for it, and takes it again.
    pub(in crate::driver) fn bump(&mut self) {
        MutexGuard::bump(&mut self.core);
        self.make_whole();
    }

    #[inline]
    fn make_whole(&mut self) {
        if self.core.running.has_tray {
            self.take_tray_back();
        }
    }

    /// Tells the core what happened to the jobs of the tray. It all fits: jobs have begun in their
    /// order, and no more of them ran at a time than may.
    fn take_tray_back(&mut self) {
        let core = &mut *self.core;
        core.running.has_tray = false;
        let mut tray = self.tray.lock();
        let Taken { begun, done, jobs, opened } = tray.close();
        core.reading.prefetch.take_back(jobs);
        let now = core.clock.when_asked();
        while let Some((token, index)) = tray.take_other() {
            let token = core.token_of(token, index);
            let surplus = core.report(token, Ok(()), &mut Changes::default(), &now);
            debug_assert!(surplus.is_none(), "a success has no error");
        }
        drop(tray);
        let started = opened.unwrap_or_else(|| now.coarse());
        core.workers.took(begun.end - begun.start, started);
        (0..begun.end - begun.start).for_each(|_| core.reading.prefetch.hand_out());
        let (mut next, mut left) = (begun.start, done);
        while next < begun.end {
            let count = u64::from(left.trailing_ones()).min(begun.end - next);
            core.saving.done += count;
            core.window.handle_begun_and_done(count);
            next += count;
            if next < begun.end {
                // It runs.
                let run = core.window.poll_run();
                debug_assert_eq!(run.map(|run| run.index), Some(next), "the tray has the jobs that come next");
                core.running.flights.begin(Flight::new(next, 1, false, started));
                next += 1;
            }
            left = left.checked_shr(u32::try_from(count + 1).unwrap_or(u32::MAX)).unwrap_or(0);
        }
        if core.reading.prefetch.is_tight() {
            core.window.set_room(core.reading.prefetch.room());
        }
    }

    /// Puts the next jobs into the tray, if they are so short that it is worth it. Nothing may be
    /// done with the core afterwards.
    #[inline]
    pub(super) fn fill_tray(mut self) {
        let most = self.core.workers.handful().min(MOST);
        if most > 1 && self.core.running.takes_tray && self.core.reading.supervises {
            self.fill_tray_with(most);
        }
    }

    fn fill_tray_with(&mut self, most: u64) {
        let core = &mut *self.core;
        let plain = !core.fates.has_records && core.saving.writing.is_none() && !core.ending.abandoned;
        let jobs = core.window.next_in_a_row(most);
        if !plain || jobs.end <= jobs.start + 1 {
            return;
        }
        let Some(values) = core.reading.prefetch.lend() else { return };
        let free = core.window.limits().max_processing.saturating_sub(core.window.in_flight());
        self.tray.lock().open(jobs, values, free, core.tenancy.fence, core.workers.last_taken().unwrap_or_else(coarse));
        core.running.has_tray = true;
    }
}

impl Core {
    /// Returns the token of a flight that was reported with this one, which may be that of a tray.
    pub(super) fn token_of(&self, token: usize, index: u64) -> usize {
        if !is_begun_here(token) {
            return token;
        }
        // It is one of the youngest, since the others of its tray are done.
        self.running.flights.find(index).unwrap_or(token)
    }
}

impl Deref for CoreGuard<'_> {
    type Target = Core;

    #[inline]
    fn deref(&self) -> &Core {
        &self.core
    }
}

impl DerefMut for CoreGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Core {
        &mut self.core
    }
}
