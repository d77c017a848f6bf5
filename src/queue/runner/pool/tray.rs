//! The tray: jobs that a thread has claimed beside the one that it runs, and the ends that it has
//! not written yet. A write costs as much as several short jobs, so a thread that runs short ones
//! claims several in one write, and writes their ends in the next one.
//!
//! Nobody owns what lies in the tray. A job in it has a slot, so each of the other threads may run
//! it. The first thread in the line watches, and takes a job or writes the ends as soon as a job
//! turns out to be long.

use crate::queue::engine::Claimed;
use crate::queue::runner::attempt::Report;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

#[derive(Default)]
pub(super) struct Tray {
    /// The jobs that were claimed and have not begun, in the order of their claims. A slot is
    /// reserved for each.
    jobs: VecDeque<Claimed>,
    ends: Vec<Report>,
}

impl Tray {
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.ends.is_empty()
    }

    pub(super) fn put(&mut self, jobs: Vec<Claimed>) {
        self.jobs.extend(jobs);
    }

    /// Takes the next job. The ends of the caller then stay in the tray.
    pub(super) fn swap(&mut self, ends: &mut Vec<Report>) -> Option<Claimed> {
        let job = self.jobs.pop_front()?;
        self.ends.append(ends);
        Some(job)
    }

    pub(super) fn take_ends(&mut self, ends: &mut Vec<Report>) {
        ends.append(&mut self.ends);
    }

    /// Takes out the jobs that nobody has begun.
    pub(super) fn take_jobs(&mut self) -> VecDeque<Claimed> {
        std::mem::take(&mut self.jobs)
    }
}

/// The number of jobs that a thread claims in one write: it grows while the jobs of a claim take
/// less time than the write. So no end waits for much longer than it takes to write it, whatever
/// the database is.
pub(super) struct Pace {
    most: usize,
    /// The beginning of the first job that was claimed in the last write, and the time which that
    /// write took.
    last: Option<(Instant, Duration)>,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { most: 1, last: None }
    }

    /// Begins anew: the thread has waited for a job.
    pub(super) fn reset(&mut self) {
        *self = Self::new();
    }

    /// Returns the number of jobs to be claimed in the write that begins now.
    pub(super) fn next(&mut self, now: Instant) -> usize {
        if let Some((begun, wrote)) = self.last {
            let ran = now.saturating_duration_since(begun);
            self.most = if ran <= wrote { self.most.saturating_mul(2) } else { (self.most / 2).max(1) };
        }
        self.most
    }

    /// Notes the write that began then and ends now.
    pub(super) fn wrote(&mut self, begun: Instant, now: Instant) {
        self.last = Some((now, now.saturating_duration_since(begun)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of jobs that are claimed, if each takes this time, and each write that one.
    fn claims(job: u64, write: u64) -> Vec<usize> {
        let (mut pace, mut now) = (Pace::new(), Instant::now());
        let mut claim = || {
            let jobs = pace.next(now);
            let begun = now;
            now += Duration::from_nanos(write);
            pace.wrote(begun, now);
            now += Duration::from_nanos(job) * u32::try_from(jobs).unwrap();
            jobs
        };
        (0..6).map(|_| claim()).collect()
    }

    #[test]
    fn short_jobs_are_claimed_in_numbers_that_take_as_long_as_a_write_and_long_jobs_one_by_one() {
        assert_eq!(claims(1, 1_000), [1, 2, 4, 8, 16, 32]);
        assert_eq!(claims(100, 1_000), [1, 2, 4, 8, 16, 8]);
        assert_eq!(claims(1_001, 1_000), [1; 6]);
        assert_eq!(claims(3_000_000, 20_000), [1; 6]);
    }
}
