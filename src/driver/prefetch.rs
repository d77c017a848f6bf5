//! Jobs that were read and not yet handed out (the prefetch buffer), and how much memory they take.

use crate::base::guard::Guarded;
use crate::base::index::Index;
use crate::reader::Weights;
use std::collections::{BTreeMap, VecDeque};

/// The length of a run while no weight of a job is known.
const FIRST_RUN: u64 = 8;

/// The jobs of one consumer that were read and not yet handed out.
pub(crate) struct Prefetch<T> {
    /// New jobs, in index order. The first is the window's `next`.
    new: VecDeque<T>,
    /// The weights of the new jobs.
    weights: Weights,
    /// Failed jobs that were read again, and their weights.
    again: BTreeMap<Index, (T, usize)>,
    /// The weight of all of them together.
    bytes: usize,
    /// The most that they should weigh.
    limit: usize,
    /// The weight that the next job is expected to have; `None` before the first was read.
    expected: Option<usize>,
    /// True if a full buffer might weigh more than the limit.
    tight: bool,
}

impl<T> Prefetch<T> {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            new: VecDeque::new(),
            weights: Weights::default(),
            again: BTreeMap::new(),
            bytes: 0,
            limit,
            expected: None,
            tight: true,
        }
    }

    pub(super) fn add(&mut self, jobs: impl IntoIterator<Item = T>, weights: Weights) {
        self.new.extend(jobs);
        self.bytes = self.bytes.saturating_add(weights.total());
        self.weights.append(weights);
    }

    pub(super) fn add_again(&mut self, index: Index, job: T, weight: usize) {
        self.bytes = self.bytes.saturating_add(weight);
        self.again.insert(index, (job, weight));
    }

    /// Takes the first new job.
    #[inline]
    pub(super) fn take(&mut self) -> Option<T> {
        let job = self.new.pop_front()?;
        self.bytes = self.bytes.saturating_sub(self.weights.next().unwrap_or_default());
        Some(job)
    }

    pub(super) fn take_again(&mut self, index: Index) -> Option<T> {
        let (job, weight) = self.again.remove(&index)?;
        self.bytes = self.bytes.saturating_sub(weight);
        Some(job)
    }

    /// True if this failed job was read again.
    pub(super) fn has_again(&self, index: Index) -> bool {
        self.again.contains_key(&index)
    }

    /// Notes the total weight of a run of this many jobs. A heavier run counts at once, since a run
    /// that is too long costs memory. A lighter run counts little by little, since a run that is
    /// too short only costs a call.
    pub(super) fn learn(&mut self, jobs: usize, weight: usize) {
        if jobs > 0 {
            let mean = weight.div_ceil(jobs);
            let before = self.expected.unwrap_or(mean);
            self.expected = Some(mean.max(before - before / 4 + mean.min(before) / 4));
        }
    }

    /// Returns the number of jobs that may be read now, if no more than `most` wait at a time.
    pub(super) fn fit(&mut self, most: u64) -> u64 {
        let Some(expected) = self.expected else { return FIRST_RUN };
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        self.tight = self.bytes.saturating_add(expected.saturating_mul(most)) > self.limit;
        if self.tight { self.room() } else { u64::MAX }
    }

    /// True if the room changes with each job that is handed out.
    #[inline]
    pub(super) fn is_tight(&self) -> bool {
        self.tight
    }

    /// Returns the number of jobs that may be read now.
    pub(super) fn room(&self) -> u64 {
        match self.expected {
            None => FIRST_RUN,
            Some(expected) => (self.limit.saturating_sub(self.bytes) / expected.max(1)) as u64,
        }
    }

    /// Takes out all jobs, which are to be dropped without the lock.
    pub(super) fn drain(&mut self) -> Vec<Guarded<T>> {
        let again = std::mem::take(&mut self.again).into_values().map(|(job, _)| job);
        std::mem::take(&mut self.new).into_iter().chain(again).map(Guarded::new).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(all: &[usize]) -> Weights {
        all.iter().copied().collect()
    }

    #[test]
    fn the_weight_of_every_job_is_given_back_when_it_is_handed_out() {
        let mut jobs = Prefetch::new(1000);
        assert_eq!(jobs.fit(64), FIRST_RUN);
        jobs.add("abcde".chars(), weights(&[10, 10, 500, 500, 20]));
        jobs.add_again(7, 'z', 60);
        assert_eq!(jobs.bytes, 1100);
        assert_eq!(jobs.take_again(7), Some('z'));
        let mut left = Vec::new();
        while jobs.take().is_some() {
            left.push(jobs.bytes);
        }
        assert_eq!(left, [1030, 1020, 520, 20, 0]);
        assert_eq!(jobs.take_again(7), None);
    }

    #[test]
    fn a_run_is_as_long_as_the_expected_weight_allows() {
        let mut jobs = Prefetch::<()>::new(1000);
        jobs.learn(8, 8);
        assert_eq!((jobs.fit(64), jobs.is_tight()), (u64::MAX, false));
        jobs.learn(64, 6400);
        assert_eq!((jobs.fit(64), jobs.is_tight()), (10, true));
        jobs.add([(), ()], weights(&[300, 300]));
        assert_eq!(jobs.room(), 4);
        jobs.add([()], weights(&[5000]));
        assert_eq!(jobs.room(), 0, "the window reads one when nothing else can start");
        jobs.learn(10, 0);
        assert_eq!(jobs.expected, Some(75), "a lighter run counts little by little");
        jobs.learn(1, usize::MAX);
        assert_eq!(jobs.fit(u64::MAX), 0);
    }
}
