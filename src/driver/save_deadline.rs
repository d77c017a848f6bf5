//! The time for which the pool leaves a save that is due to the thread that saves. After it, a
//! thread of the pool makes the save.
//!
//! The thread that saves has to wait for a core when busy threads have them all: for tens of
//! milliseconds, if those are many. A thread of the pool that has just reported a job has a core,
//! so it makes the save when nobody has begun it in time. Where a core is free, the saving thread
//! should come first: then jobs run while it writes.

use crate::base::time::Now;
use crate::commit::SAVE_PACE;
use std::time::{Duration, Instant};

/// The wait beyond the pace: the saving thread has woken up by then, if there is a core for it.
const GRACE: Duration = Duration::from_micros(250);

/// After a late save only every sixteenth of the next ones gets the grace. While all cores are
/// busy, the saving thread sometimes takes its core from a thread that holds the driver's lock, and
/// then makes a save that is late all the same.
const RARELY: u32 = 16;

/// The time from one look at an exact clock to the next: such a look costs a third of a short job.
const LOOK_EVERY: Duration = Duration::from_micros(60);

/// The largest number of jobs between two looks: the jobs may get longer meanwhile.
const MOST_JOBS: u64 = 256;

#[derive(Debug)]
pub(super) struct Patience {
    /// The count of done jobs at which the clock is read next. A job looks at nothing else; this
    /// changes seldom, so each core keeps a copy.
    look_at: u64,
    /// The save that is asked for and not begun.
    wait: Option<Wait>,
    /// True if the last save was late.
    lost: bool,
    /// The number of saves that were asked for.
    saves: u32,
    /// False if the threads of the pool cannot save, so that the patience never ends.
    ends: bool,
}

#[derive(Debug)]
struct Wait {
    until: Instant,
    looked: Instant,
    /// The jobs from one look at the clock to the next.
    stride: u64,
}

impl Patience {
    /// Makes a patience that ends only if the threads of the pool can save.
    pub(super) fn new(ends: bool) -> Self {
        Self { look_at: u64::MAX, wait: None, lost: false, saves: 0, ends }
    }

    /// Begins to wait for a save that was asked for now, when so many jobs were done. It is due
    /// within the pace.
    pub(super) fn begin(&mut self, now: Instant, done: u64) {
        if !self.ends {
            return;
        }
        self.saves = self.saves.wrapping_add(1);
        let graceful = !self.lost || self.saves.is_multiple_of(RARELY);
        let until = now + if graceful { SAVE_PACE + GRACE } else { SAVE_PACE };
        self.lost = false;
        self.wait = Some(Wait { until, looked: now, stride: 1 });
        self.look_at = done + 1;
    }

    /// Ends the wait: the save was begun.
    pub(super) fn end(&mut self) {
        self.wait = None;
        self.look_at = u64::MAX;
    }

    /// True if the thread that has just reported a job is to make the save.
    #[inline]
    pub(super) fn is_lost(&mut self, done: u64, now: &Now) -> bool {
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
        let lost = now >= wait.until || cfg!(waterline_loom);
        if lost {
            // If another thread is writing, this save may not be in its batch.
            wait.until = now + GRACE;
            self.lost = true;
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the jobs, each of this length, until one of them is to make the save; and the looks
    /// at the clock.
    fn jobs_until_lost(patience: &mut Patience, begun: Instant, each: Duration) -> (u32, u32) {
        patience.begin(begun, 0);
        let mut looks = 0;
        let lost = (1..).find(|job| {
            let now = begun + each * *job;
            let is_due = u64::from(*job) >= patience.look_at;
            looks += u32::from(is_due);
            is_due && patience.look(now, (*job).into())
        });
        (lost.unwrap(), looks)
    }

    #[test]
    fn few_clock_reads_notice_an_overdue_save() {
        for (nanos, most_jobs, most_looks) in
            [(50, 30_000, 120), (1_000, 1_400, 50), (10_000, 140, 40), (1_000_000, 2, 2)]
        {
            let each = Duration::from_nanos(nanos);
            let (jobs, looks) = jobs_until_lost(&mut Patience::new(true), Instant::now(), each);
            assert!(each * jobs >= SAVE_PACE + GRACE, "{nanos} {jobs}");
            assert!(jobs <= most_jobs && looks <= most_looks, "{nanos} {jobs} {looks}");
        }
    }

    #[test]
    fn after_a_late_save_only_one_in_16_gets_grace() {
        let (mut patience, begun, each) = (Patience::new(true), Instant::now(), Duration::from_micros(10));
        let is_graceful =
            |patience: &mut Patience| each * jobs_until_lost(patience, begun, each).0 >= SAVE_PACE + GRACE;
        let graceful = (0..3 * RARELY).filter(|_| is_graceful(&mut patience)).count();
        assert_eq!(graceful, 1 + 3, "the first, and every sixteenth");
        // It makes one in time.
        patience.begin(begun, 0);
        patience.end();
        assert!(!patience.is_lost(1_000_000, &Now::at(begun)));
        assert!(is_graceful(&mut patience));
    }
}
