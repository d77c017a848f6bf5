//! The prefetch buffer: jobs that are read and not handed out, and how much memory they take.

use crate::base::Index;
use crate::reader::{Payloads, Weights};
use std::collections::BTreeMap;

/// The length of a read before the weight of any job is known.
const FIRST_RUN: u64 = 8;

#[derive(Default)]
pub(crate) struct Prefetch {
    /// The values of the new jobs in order; `None` before the first read. The first belongs to the
    /// window's `next`, or to the job that was just handed out and not yet taken.
    new: Option<Box<dyn Payloads>>,
    /// The weights of the new jobs.
    weights: Weights,
    /// Failed jobs that were read again, with their weights.
    again: BTreeMap<Index, (Box<dyn Payloads>, usize)>,
    /// The weight of all of them.
    bytes: usize,
    /// The weight at which reading stops.
    limit: usize,
    /// The expected weight of the next job; `None` before the first read.
    expected: Option<usize>,
    /// True if a full buffer might exceed the limit.
    tight: bool,
}

/// A read run, some of whose jobs are kept.
#[derive(Default)]
pub(super) struct Sorted {
    /// Numbers of consecutive jobs, each with whether they are kept.
    runs: Vec<(usize, bool)>,
    /// The weights of the kept jobs.
    weights: Weights,
}

impl Sorted {
    /// Adds the next job.
    #[inline]
    pub(super) fn push(&mut self, is_kept: bool, weight: usize) {
        if is_kept {
            self.weights.push(1, weight);
        }
        match self.runs.last_mut() {
            Some((jobs, last)) if *last == is_kept => *jobs += 1,
            _ => self.runs.push((1, is_kept)),
        }
    }
}

impl Prefetch {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, tight: true, ..Self::default() }
    }

    /// Adds new jobs, all of which are kept.
    pub(super) fn add(&mut self, read: &mut dyn Payloads, weights: Weights) {
        let all = read.len();
        self.append(read, all);
        self.weigh(weights);
    }

    /// Adds the new jobs that are kept. The others stay in `read`.
    pub(super) fn add_sorted(&mut self, read: &mut dyn Payloads, sorted: Sorted) {
        for (jobs, is_kept) in sorted.runs {
            if is_kept {
                self.append(read, jobs);
            } else {
                read.pass(jobs);
            }
        }
        self.weigh(sorted.weights);
    }

    fn append(&mut self, read: &mut dyn Payloads, jobs: usize) {
        if jobs == 0 {
            // A list without jobs may have been made where their type is unknown.
            return;
        }
        match &mut self.new {
            Some(new) => new.append(read, jobs),
            None => self.new = Some(read.split_first(jobs)),
        }
    }

    fn weigh(&mut self, weights: Weights) {
        self.bytes = self.bytes.saturating_add(weights.total());
        self.weights.append(weights);
    }

    /// Adds the first of the failed jobs that were read again.
    pub(super) fn add_again(&mut self, index: Index, read: &mut dyn Payloads, weight: usize) {
        self.bytes = self.bytes.saturating_add(weight);
        self.again.insert(index, (read.split_first(1), weight));
    }

    /// Hands out the first new job, to be [taken](Self::take) next.
    #[inline]
    pub(super) fn hand_out(&mut self) {
        self.bytes = self.bytes.saturating_sub(self.weights.next().unwrap_or_default());
    }

    /// Hands out a failed job, to be [taken](Self::take) next.
    pub(super) fn hand_out_again(&mut self, index: Index) {
        let weight = self.again.get_mut(&index).map_or(0, |(_, weight)| std::mem::take(weight));
        self.bytes = self.bytes.saturating_sub(weight);
    }

    /// Takes the value of the job that was just handed out: this failed one, or the new one.
    #[inline]
    pub(super) fn take<T: Send + 'static>(&mut self, again: Option<Index>) -> Option<T> {
        match again {
            None => self.new.as_mut()?.pop_first(),
            Some(index) => self.take_again(index)?.pop_first(),
        }
    }

    /// Lends out the values of the new jobs. Until they are [taken back](Self::take_back), no job
    /// is added or handed out.
    pub(super) fn lend(&mut self) -> Option<Box<dyn Payloads>> {
        self.new.take()
    }

    /// Takes back the lent values, without those of the jobs that have begun.
    pub(super) fn take_back(&mut self, new: Option<Box<dyn Payloads>>) {
        debug_assert!(self.new.is_none(), "all of them were lent");
        self.new = new;
    }

    #[cold]
    fn take_again(&mut self, index: Index) -> Option<Box<dyn Payloads>> {
        self.again.remove(&index).map(|(job, _)| job)
    }

    /// True if this failed job was read again.
    pub(super) fn has_again(&self, index: Index) -> bool {
        self.again.contains_key(&index)
    }

    /// Learns from the total weight of a run of this many jobs. A heavier run counts at once, since
    /// reading too much costs memory; a lighter one counts little by little, since reading too
    /// little only costs a call.
    pub(super) fn learn(&mut self, jobs: usize, weight: usize) {
        if jobs > 0 {
            let mean = weight.div_ceil(jobs);
            let before = self.expected.unwrap_or(mean);
            self.expected = Some(mean.max(before - before / 4 + mean.min(before) / 4));
        }
    }

    /// Returns how many jobs may be read now, if at most `most` wait at a time.
    pub(super) fn fit(&mut self, most: u64) -> u64 {
        let Some(expected) = self.expected else { return FIRST_RUN };
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        self.tight = self.bytes.saturating_add(expected.saturating_mul(most)) > self.limit;
        if self.tight { self.room() } else { u64::MAX }
    }

    /// True if the room changes with each job handed out.
    #[inline]
    pub(super) fn is_tight(&self) -> bool {
        self.tight
    }

    /// Returns how many jobs may be read now.
    pub(super) fn room(&self) -> u64 {
        match self.expected {
            None => FIRST_RUN,
            Some(expected) => (self.limit.saturating_sub(self.bytes) / expected.max(1)) as u64,
        }
    }

    /// Takes all jobs, which have to be dropped without the lock.
    pub(super) fn take_all(&mut self) -> Self {
        std::mem::replace(self, Self::new(self.limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(all: &[usize]) -> Weights {
        all.iter().copied().collect()
    }

    fn read(jobs: &str) -> Box<dyn Payloads> {
        <dyn Payloads>::new(jobs.chars().collect::<Vec<_>>())
    }

    #[test]
    fn handing_out_a_job_gives_back_its_weight() {
        let mut jobs = Prefetch::new(1000);
        assert_eq!(jobs.fit(64), FIRST_RUN);
        jobs.add(&mut *read("abcde"), weights(&[10, 10, 500, 500, 20]));
        jobs.add_again(7, &mut *read("z"), 60);
        assert_eq!(jobs.bytes, 1100);
        jobs.hand_out_again(7);
        assert_eq!((jobs.take(Some(7)), jobs.has_again(7)), (Some('z'), false));
        let left = ['a', 'b', 'c', 'd', 'e'].map(|job| {
            jobs.hand_out();
            assert_eq!(jobs.take(None), Some(job));
            jobs.bytes
        });
        assert_eq!(left, [1030, 1020, 520, 20, 0]);
        assert_eq!((jobs.take::<char>(None), jobs.take::<char>(Some(7))), (None, None));
    }

    #[test]
    fn unkept_jobs_stay_in_the_list_and_weigh_nothing() {
        let mut jobs = Prefetch::new(1000);
        for (kept, bytes) in [(['a', 'c', 'd'], 1101), (['a', 'c', 'd'], 2202)] {
            let (mut abcde, mut sorted) = (read("abcde"), Sorted::default());
            [(true, 1), (false, 10), (true, 100), (true, 1000)]
                .iter()
                .for_each(|(kept, weight)| sorted.push(*kept, *weight));
            jobs.add_sorted(&mut *abcde, sorted);
            assert_eq!((jobs.bytes, [(); 2].map(|()| abcde.pop_first())), (bytes, [Some('e'), Some('b')]));
            assert_eq!(kept.map(|_| jobs.take(None)), kept.map(Some));
        }
    }

    #[test]
    fn the_expected_weight_bounds_a_run() {
        let mut jobs = Prefetch::new(1000);
        jobs.learn(8, 8);
        assert_eq!((jobs.fit(64), jobs.is_tight()), (u64::MAX, false));
        jobs.learn(64, 6400);
        assert_eq!((jobs.fit(64), jobs.is_tight()), (10, true));
        jobs.add(&mut *read("ab"), weights(&[300, 300]));
        assert_eq!(jobs.room(), 4);
        jobs.add(&mut *read("c"), weights(&[5000]));
        assert_eq!(jobs.room(), 0, "the window reads one when nothing else can start");
        jobs.learn(10, 0);
        assert_eq!(jobs.expected, Some(75), "a lighter run counts little by little");
        jobs.learn(1, usize::MAX);
        assert_eq!(jobs.fit(u64::MAX), 0);
    }
}
