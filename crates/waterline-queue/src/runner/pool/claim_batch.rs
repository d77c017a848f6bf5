//! The claim batch: jobs that a thread has claimed besides the one that it runs, and the ends that
//! it has not written yet. A write costs as much as several short jobs, so a thread that runs short
//! ones claims several in one write, and writes their ends in the next one.
//!
//! No thread owns what is in the claim batch. A job in it has a slot, so each of the other threads
//! may run it. The first thread in the line watches, and takes a job or writes the ends as soon as
//! a job turns out to be long.

use crate::engine::Claimed;
use crate::runner::attempt::Report;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

#[derive(Default)]
pub(super) struct ClaimBatch {
    /// Claimed jobs that have not started, in the order of their claims. Each has a reserved slot.
    jobs: VecDeque<Claimed>,
    ends: Vec<Report>,
}

impl ClaimBatch {
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.ends.is_empty()
    }

    pub(super) fn has_jobs(&self) -> bool {
        !self.jobs.is_empty()
    }

    pub(super) fn put(&mut self, jobs: Vec<Claimed>) {
        self.jobs.extend(jobs);
    }

    /// Takes the next job. In exchange the ends of the caller stay in the claim batch.
    pub(super) fn swap(&mut self, ends: &mut Vec<Report>) -> Option<Claimed> {
        let job = self.jobs.pop_front()?;
        self.ends.append(ends);
        Some(job)
    }

    pub(super) fn take_ends(&mut self, ends: &mut Vec<Report>) {
        ends.append(&mut self.ends);
    }

    /// Takes out the jobs that have not started.
    pub(super) fn take_jobs(&mut self) -> VecDeque<Claimed> {
        std::mem::take(&mut self.jobs)
    }
}

/// How many jobs are claimed in one write: more and more while the jobs of a claim take less time
/// than the write. So no end waits much longer than writing it takes, whatever the database is.
/// Longer jobs are claimed one by one, each by the thread that runs it.
pub(super) struct BatchSizer {
    most: usize,
    /// When the last write ended, and how long it took.
    last: Option<(Instant, Duration)>,
}

impl Default for BatchSizer {
    fn default() -> Self {
        Self { most: 1, last: None }
    }
}

impl BatchSizer {
    /// Returns how many jobs to claim in the write that starts now.
    pub(super) fn next(&mut self, now: Instant) -> usize {
        if let Some((ended, wrote)) = self.last {
            let ran = now.saturating_duration_since(ended);
            if ran <= wrote {
                self.most = self.most.saturating_mul(2);
            } else if ran > 2 * wrote {
                self.most = 1;
            }
        }
        self.most
    }

    /// Notes a write that started at `begun`, ended now, and claimed this many jobs.
    pub(super) fn wrote(&mut self, begun: Instant, now: Instant, claimed: usize) {
        self.last = Some((now, now.saturating_duration_since(begun)));
        // It does not grow while there are no more jobs.
        self.most = self.most.min(claimed.max(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many of 40 jobs the next writes claim, if jobs and writes take this time.
    fn claims(batch_sizer: &mut BatchSizer, now: &mut Instant, job: u64, write: u64) -> [usize; 6] {
        std::array::from_fn(|_| {
            let jobs = batch_sizer.next(*now).min(40);
            let begun = *now;
            *now += Duration::from_nanos(write);
            batch_sizer.wrote(begun, *now, jobs);
            *now += Duration::from_nanos(job) * u32::try_from(jobs).unwrap();
            jobs
        })
    }

    #[test]
    fn short_jobs_are_claimed_in_batches_and_long_ones_singly() {
        let (mut batch_sizer, mut now) = (BatchSizer::default(), Instant::now());
        for (job, expected) in [
            (1, [1, 2, 4, 8, 16, 32]),
            (1, [40; 6]),
            (40, [40; 6]),
            (2_001, [40, 1, 1, 1, 1, 1]),
            (100, [1, 2, 4, 8, 16, 16]),
            (1_001, [16, 1, 1, 1, 1, 1]),
        ] {
            assert_eq!(claims(&mut batch_sizer, &mut now, job, 1_000), expected, "{job}");
        }
    }
}
