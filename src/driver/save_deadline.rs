//! How long workers wait for the saver thread before one of them does an overdue save.
//!
//! While busy threads occupy every core, the saver may wait tens of milliseconds for one. A worker
//! that has just reported a job has a core, so it makes the save if none has begun in time. On a
//! free core the saver should come first: then jobs run while it writes.

use crate::base::time::Now;
use crate::commit::SAVE_PACE;
use std::time::{Duration, Instant};

/// The wait beyond the save pace. The saver has woken up by then if a core is free.
const GRACE: Duration = Duration::from_micros(250);

/// After a late save, only one in this many gets the grace. On busy cores the saver sometimes
/// preempts a thread that holds the driver's lock, and its save is late all the same.
const RARELY: u32 = 16;

/// The time between two reads of an exact clock: each costs a third of a short job.
const LOOK_EVERY: Duration = Duration::from_micros(60);

/// The most jobs between two reads of the clock: jobs may become longer meanwhile.
const MOST_JOBS: u64 = 256;

#[derive(Debug)]
pub(super) struct SaveDeadline {
    /// The count of done jobs at which the clock is read next. It is all that a job looks at, and
    /// it changes rarely, so each core caches it.
    look_at: u64,
    /// The save that was requested and has not begun.
    wait: Option<SaveWait>,
    late: bool,
    /// The number of requested saves.
    saves: u32,
    /// False if workers cannot save, so the deadline never comes.
    ends: bool,
}

#[derive(Debug)]
struct SaveWait {
    until: Instant,
    looked: Instant,
    /// The number of jobs between two reads of the clock.
    stride: u64,
}

impl SaveDeadline {
    /// Makes a deadline that comes only if workers can save.
    pub(super) fn new(ends: bool) -> Self {
        Self { look_at: u64::MAX, wait: None, late: false, saves: 0, ends }
    }

    /// Begins to wait for a save requested now, after `done` jobs. It is due within the save pace.
    pub(super) fn begin(&mut self, now: Instant, done: u64) {
        if !self.ends {
            return;
        }
        self.saves = self.saves.wrapping_add(1);
        let graceful = !self.late || self.saves.is_multiple_of(RARELY);
        let until = now + if graceful { SAVE_PACE + GRACE } else { SAVE_PACE };
        self.late = false;
        self.wait = Some(SaveWait { until, looked: now, stride: 1 });
        self.look_at = done + 1;
    }

    /// Ends the wait: the save has begun.
    pub(super) fn end(&mut self) {
        self.wait = None;
        self.look_at = u64::MAX;
    }

    /// Returns true if the worker that has just reported a job has to make the save.
    #[inline]
    pub(super) fn is_overdue(&mut self, done: u64, now: &Now) -> bool {
        done >= self.look_at && self.look(now.of_machine(), done)
    }

    #[inline(never)]
    fn look(&mut self, now: Instant, done: u64) -> bool {
        let Some(wait) = &mut self.wait else { return false };
        let often = now.saturating_duration_since(wait.looked) < LOOK_EVERY;
        wait.stride = if often { (wait.stride * 2).min(MOST_JOBS) } else { (wait.stride / 2).max(1) };
        wait.looked = now;
        self.look_at = done + wait.stride;
        // Time does not pass in a model.
        let overdue = now >= wait.until || cfg!(waterline_loom);
        if overdue {
            // If another thread is writing, its batch may not include this save.
            wait.until = now + GRACE;
            self.late = true;
        }
        overdue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many jobs of this length run before one of them has to make the save, and how
    /// often the clock is read.
    fn jobs_until_overdue(deadline: &mut SaveDeadline, begun: Instant, each: Duration) -> (u32, u32) {
        deadline.begin(begun, 0);
        let mut looks = 0;
        let overdue = (1..).find(|job| {
            let now = begun + each * *job;
            let is_due = u64::from(*job) >= deadline.look_at;
            looks += u32::from(is_due);
            is_due && deadline.look(now, (*job).into())
        });
        (overdue.unwrap(), looks)
    }

    #[test]
    fn few_clock_reads_notice_an_overdue_save() {
        for (nanos, most_jobs, most_looks) in
            [(50, 30_000, 120), (1_000, 1_400, 50), (10_000, 140, 40), (1_000_000, 2, 2)]
        {
            let each = Duration::from_nanos(nanos);
            let (jobs, looks) = jobs_until_overdue(&mut SaveDeadline::new(true), Instant::now(), each);
            assert!(each * jobs >= SAVE_PACE + GRACE, "{nanos} {jobs}");
            assert!(jobs <= most_jobs && looks <= most_looks, "{nanos} {jobs} {looks}");
        }
    }

    #[test]
    fn after_a_late_save_only_one_in_16_gets_grace() {
        let (mut deadline, begun, each) = (SaveDeadline::new(true), Instant::now(), Duration::from_micros(10));
        let is_graceful =
            |deadline: &mut SaveDeadline| each * jobs_until_overdue(deadline, begun, each).0 >= SAVE_PACE + GRACE;
        let graceful = (0..3 * RARELY).filter(|_| is_graceful(&mut deadline)).count();
        assert_eq!(graceful, 1 + 3, "the first, and every sixteenth");
        // This one is in time.
        deadline.begin(begun, 0);
        deadline.end();
        assert!(!deadline.is_overdue(1_000_000, &Now::at(begun)));
        assert!(is_graceful(&mut deadline));
    }
}
