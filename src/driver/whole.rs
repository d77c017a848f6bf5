//! The lock of the core. Taking it first takes back the [tray](crate::driver::handoff), so that the
//! holder sees the whole core.

use crate::base::counted::{Counted, Holds, waits};
use crate::base::sync::{Condvar, Mutex, MutexGuard, lock_awake, wait_until};
use crate::base::{clock::Clock, time::coarse};
use crate::commit::changes::Changes;
use crate::driver::handoff::{HandoffBuffer, MOST, Taken, is_begun_here};
use crate::driver::{core::Core, flights::Flight};
use crate::run::{Assignment, worker::Report};
use crate::threads::{Host, Threads};
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::time::Instant;

/// The fewest jobs in a row that are worth a tray, if short jobs would fill a larger one.
const FEW: u64 = 16;

/// The jobs that come from the core after one of the tray went on elsewhere.
const PAST_A_TASK: u64 = 256;

/// The most jobs in flight with which the tray is filled. Its jobs have no tokens of their own, so
/// the core looks for their flights behind all that are older.
const MOST_OLDER: usize = 1_024;

/// The core under its lock, and the tray.
pub(crate) struct WholeCore {
    core: Mutex<Core>,
    /// Locked alone, or by a thread that has the core. Absent if jobs are never short.
    handoff: OnceLock<Box<Apart>>,
}

/// The tray and its lock, on cache lines of their own.
#[derive(Default)]
#[repr(align(128))]
struct Apart(Mutex<HandoffBuffer>);

/// The locked core.
pub(crate) struct CoreGuard<'a> {
    core: MutexGuard<'a, Core>,
    handoff: &'a OnceLock<Box<Apart>>,
    holds: Holds,
}

impl WholeCore {
    pub(in crate::driver) fn new(core: Core) -> Self {
        Self { core: Mutex::new(core), handoff: OnceLock::new() }
    }

    #[inline]
    pub(in crate::driver) fn lock(&self) -> CoreGuard<'_> {
        let waits = waits(Counted::Core);
        self.whole(self.core.lock(), waits.over())
    }

    /// Locks the core on a thread that others wait for.
    pub(in crate::driver) fn lock_awake(&self) -> CoreGuard<'_> {
        let waits = waits(Counted::Core);
        self.whole(lock_awake(&self.core), waits.over())
    }

    #[inline]
    fn whole<'a>(&'a self, core: MutexGuard<'a, Core>, holds: Holds) -> CoreGuard<'a> {
        let mut core = CoreGuard { core, handoff: &self.handoff, holds };
        core.make_whole();
        core
    }

    /// Leaves the report of a success in the tray, and takes a job from it. `None`: the core has to
    /// take the report, and has the next job.
    #[inline]
    pub(super) fn next_in_tray<T: Send + 'static>(&self, report: &mut Option<Report>) -> Option<Assignment<T>> {
        let handoff = self.handoff.get()?;
        let waits = waits(Counted::Tray);
        let mut handoff = handoff.0.lock();
        let _holds = waits.over();
        handoff.next(report)
    }
}

impl CoreGuard<'_> {
    /// Sleeps until a wake-up or the deadline. Returns true at the deadline.
    pub(in crate::driver) fn wait_until(&mut self, condvar: &Condvar, deadline: Option<Instant>) -> bool {
        self.given_up(|core| wait_until(condvar, core, deadline))
    }

    /// Like `wait_until`, by this clock.
    pub(in crate::driver) fn wait_by(&mut self, clock: &Clock, condvar: &Condvar, until: Option<Instant>) -> bool {
        self.given_up(|core| clock.wait(condvar, core, until))
    }

    /// Waits until all threads are gone, as [`Threads::wait_gone`] does.
    pub(in crate::driver) fn wait_gone(&mut self, threads: &Threads<impl Host>, deadline: Option<Instant>) -> bool {
        self.given_up(|core| threads.wait_gone(core, deadline))
    }

    pub(in crate::driver) fn unlocked<R>(&mut self, run: impl FnOnce() -> R) -> R {
        self.given_up(|core| MutexGuard::unlocked(core, run))
    }

    /// Lets waiting threads have the lock, and takes it again.
    pub(in crate::driver) fn bump(&mut self) {
        self.given_up(|core| MutexGuard::bump(core));
    }

    /// Calls what gives the lock up for a moment.
    fn given_up<R>(&mut self, call: impl FnOnce(&mut MutexGuard<'_, Core>) -> R) -> R {
        self.holds = Holds::default();
        let answer = call(&mut self.core);
        self.holds = waits(Counted::Core).over();
        self.make_whole();
        answer
    }

    #[inline]
    fn make_whole(&mut self) {
        if self.core.running.has_tray {
            self.take_tray_back();
        }
    }

    /// Tells the core what happened to the jobs of the tray. The core's rules hold: jobs have begun
    /// in order, and no more at a time than may.
    fn take_tray_back(&mut self) {
        let core = &mut *self.core;
        core.running.has_tray = false;
        let Some(handoff) = self.handoff.get() else { return };
        let mut handoff = handoff.0.lock();
        let Taken { begun, done, jobs, opened } = handoff.close();
        core.reading.prefetch.take_back(jobs);
        let now = core.clock.when_asked();
        while let Some((token, index)) = handoff.take_other() {
            let token = core.token_of(token, index);
            let surplus = core.report(token, Ok(()), &mut Changes::default(), &now);
            debug_assert!(surplus.is_none(), "a success has no error");
        }
        drop(handoff);
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

    /// Fills the tray with the next jobs if they are short. The core must not be used afterwards.
    #[inline]
    pub(super) fn fill_tray(mut self) {
        let core = &*self.core;
        let most = core.workers.handful().min(MOST);
        let is_worth_it =
            most > 1 && core.window.next() >= core.running.tray_from && core.window.in_flight() < MOST_OLDER;
        if is_worth_it && core.running.takes_buffer && core.reading.supervises {
            self.fill_tray_with(most);
        }
    }

    fn fill_tray_with(&mut self, most: u64) {
        let core = &mut *self.core;
        let plain = !core.failed_jobs.has_records && core.saving.writing.is_none() && !core.ending.abandoned;
        let jobs = core.window.next_in_a_row(most);
        let found = jobs.end - jobs.start;
        if !plain || found == 0 {
            return;
        }
        if found < most.min(FEW) {
            // There are gaps, or the read run is short. Looking again for each job would cost, too.
            core.running.tray_from = jobs.start.saturating_add(FEW);
            return;
        }
        let Some(values) = core.reading.prefetch.lend() else { return };
        let free = core.window.limits().max_processing.saturating_sub(core.window.in_flight());
        self.handoff.get_or_init(Box::default).0.lock().open(
            jobs,
            values,
            free,
            core.tenancy.fence,
            core.workers.last_taken.unwrap_or_else(coarse),
        );
        core.running.has_tray = true;
    }
}

impl Core {
    /// Leaves the tray empty for a while.
    pub(super) fn leave_tray(&mut self) {
        self.running.tray_from = self.window.next().saturating_add(PAST_A_TASK);
    }

    /// Returns the token of a flight that was reported with this token, maybe one of the tray.
    pub(super) fn token_of(&self, token: usize, index: u64) -> usize {
        if !is_begun_here(token) {
            return token;
        }
        // Few are older: the tray is filled only while few are in flight.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{caught::Caught, retry::Retry, sync::Arc};
    use crate::driver::{Driver, failed_jobs::Failures, samples};
    use crate::run::{JobPort, Task};

    /// A consumer that has read jobs 0 to 9 and fills the tray for three workers.
    fn driver() -> Arc<Driver> {
        let mut core = samples::core(3, 99, Instant::now());
        samples::read(&mut core, 10);
        core.failed_jobs.failures = Failures::new(Retry::fixed(std::time::Duration::ZERO));
        core.workers.threads = 3;
        core.workers.always = Some(4);
        core.running.takes_buffer = true;
        core.reading.supervises = true;
        samples::driver(core)
    }

    fn from_core(driver: &Driver, report: Option<Report>) -> Assignment<u64> {
        match driver.next(&mut { report }, &mut Changes::default()) {
            Some(Task::Run(assignment)) => assignment,
            _ => panic!("a job can run"),
        }
    }

    fn at_hand(driver: &Driver, report: &mut Option<Report>) -> Option<Assignment<u64>> {
        driver.next_at_hand(report)
    }

    fn success(assignment: &Assignment<u64>) -> Option<Report> {
        Some(Report { token: assignment.token, index: assignment.job.index, outcome: Ok(()) })
    }

    #[test]
    fn the_lock_shows_what_began_and_ended_in_the_tray() {
        let driver = driver();
        let first = from_core(&driver, None);
        let [second, third] = [(); 2].map(|()| at_hand(&driver, &mut None).expect("two more may run"));
        assert!(at_hand(&driver, &mut None).is_none(), "three run");
        let fourth = at_hand(&driver, &mut success(&second)).expect("one of three is done");
        assert_eq!(
            [&first, &second, &third, &fourth].map(|one| (one.job.index, one.job.payload)),
            [(0, 0), (1, 1), (2, 2), (3, 3)]
        );
        let core = driver.core.lock();
        let window = &core.window;
        assert_eq!((window.in_flight(), window.next(), window.done_ahead(), core.saving.done), (3, 4, 1, 1));
        let mut running: Vec<_> = core.running.flights.iter().map(|flight| flight.index).collect();
        running.sort_unstable();
        assert_eq!(running, [0, 2, 3]);
        drop(core);
        assert!(at_hand(&driver, &mut None).is_none(), "the tray was taken back");
        let fifth = from_core(&driver, success(&third));
        let sixth = at_hand(&driver, &mut success(&first)).expect("it is laid out anew");
        assert_eq!((fifth.job.payload, sixth.job.payload), (4, 5));
        assert_eq!(driver.core.lock().window.lowest_undone(), 3, "the reports of earlier jobs count");
    }

    #[test]
    fn a_failed_job_of_the_tray_is_tried_again() {
        let driver = driver();
        let _first = from_core(&driver, None);
        let second = at_hand(&driver, &mut None).expect("it is laid out");
        let mut failure = success(&second);
        failure.iter_mut().for_each(|report| report.outcome = Err(Caught::boxed("refused".into())));
        assert!(at_hand(&driver, &mut failure).is_none());
        let third = from_core(&driver, failure.take());
        assert_eq!((third.job.index, driver.core.lock().failed_jobs.failures.waiting(1).is_some()), (2, true));
    }

    #[test]
    fn the_lock_closes_the_tray() {
        let driver = driver();
        let first = from_core(&driver, None);
        driver.core.lock().window.set_paused(true);
        let mut report = success(&first);
        assert!(at_hand(&driver, &mut report).is_none() && report.is_some());
        let core = driver.core.lock();
        assert_eq!((core.window.in_flight(), core.window.next()), (1, 1));
    }

    #[test]
    fn too_short_a_run_of_jobs_fills_no_tray() {
        let driver = driver();
        // Only nine more jobs are read.
        driver.core.lock().workers.always = Some(64);
        let mut report = None;
        for index in 0..10 {
            let assignment = from_core(&driver, report.take());
            assert_eq!(assignment.job.index, index);
            report = success(&assignment);
            assert!(at_hand(&driver, &mut None).is_none(), "{index}");
        }
        assert_eq!(driver.core.lock().running.tray_from, 1 + FEW);
    }

    #[test]
    fn long_jobs_fill_no_tray() {
        let driver = driver();
        {
            let mut core = driver.core.lock();
            let begun = Instant::now();
            core.workers.always = None;
            core.workers.supervised_from(begun);
            core.workers.took(2, coarse());
            core.workers.look(3, begun + std::time::Duration::from_millis(1), true);
        }
        let _first = from_core(&driver, None);
        assert!(at_hand(&driver, &mut None).is_none());
    }
}
