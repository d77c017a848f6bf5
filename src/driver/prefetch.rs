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
    /// Failed jobs that were read again, and jobs behind others, with their weights.
    again: BTreeMap<Index, (Box<dyn Payloads>, usize)>,
    /// The weight of all of them.
    bytes: usize,
    /// The weight of the jobs behind others.
    behind: usize,
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
    /// Numbers of consecutive jobs, each with what becomes of them.
    runs: Vec<(usize, Kept)>,
    /// The weights of the jobs kept as new ones.
    weights: Weights,
    /// The weight of the jobs kept behind others.
    behind: usize,
}

/// What becomes of the value of a job that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// It is the next new job.
    New,
    /// It waits behind another job.
    Behind { index: Index, weight: usize },
    /// It is not needed, or there is no room for it.
    No,
}

impl Sorted {
    /// Adds the next job.
    #[inline]
    pub(super) fn push(&mut self, kept: Kept, weight: usize) {
        match kept {
            Kept::New => self.weights.push(1, weight),
            Kept::Behind { weight, .. } => self.behind = self.behind.saturating_add(weight),
            Kept::No => {}
        }
        match self.runs.last_mut() {
            Some((jobs, last)) if *last == kept => *jobs += 1,
            _ => self.runs.push((1, kept)),
        }
    }

    /// Returns the weight of the jobs kept behind others.
    pub(super) fn behind(&self) -> usize {
        self.behind
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
        for (jobs, kept) in sorted.runs {
            match kept {
                Kept::New => self.append(read, jobs),
                Kept::Behind { index, weight } => self.add_behind(index, read, weight),
                Kept::No => read.pass(jobs),
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

    /// True if the values of jobs behind others may weigh this much more. They take half of the
    /// memory at most: the rest is for jobs that may start.
    pub(super) fn has_room_behind(&self, weight: usize) -> bool {
        self.behind.saturating_add(weight) <= self.limit / 2
    }

    /// Adds a job behind another one, the first of those that were read.
    pub(super) fn add_behind(&mut self, index: Index, read: &mut dyn Payloads, weight: usize) {
        self.behind = self.behind.saturating_add(weight);
        self.add_again(index, read, weight);
    }

    /// Notes that a job waits behind no other one any more. Returns false if its value was not
    /// kept.
    pub(super) fn no_longer_behind(&mut self, index: Index) -> bool {
        let weight = self.again.get(&index).map(|(_, weight)| *weight);
        self.behind -= weight.unwrap_or(0);
        weight.is_some()
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
                .for_each(|(kept, weight)| sorted.push(if *kept { Kept::New } else { Kept::No }, *weight));
            jobs.add_sorted(&mut *abcde, sorted);
            assert_eq!((jobs.bytes, [(); 2].map(|()| abcde.pop_first())), (bytes, [Some('e'), Some('b')]));
            assert_eq!(kept.map(|_| jobs.take(None)), kept.map(Some));
        }
    }

    #[test]
    fn jobs_behind_others_take_half_of_the_memory() {
        let (mut jobs, mut abc, mut sorted) = (Prefetch::new(1000), read("abc"), Sorted::default());
        sorted.push(Kept::New, 100);
        sorted.push(Kept::Behind { index: 1, weight: 300 }, 300);
        assert_eq!(sorted.behind(), 300);
        sorted.push(Kept::No, 300);
        jobs.add_sorted(&mut *abc, sorted);
        assert_eq!((jobs.bytes, jobs.behind, jobs.has_again(1), jobs.has_again(2)), (400, 300, true, false));
        assert!(jobs.has_room_behind(200) && !jobs.has_room_behind(201));
        assert!(jobs.no_longer_behind(1) && !jobs.no_longer_behind(2));
        jobs.hand_out_again(1);
        assert_eq!((jobs.take(Some(1)), jobs.bytes, jobs.behind), (Some('b'), 100, 0));
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
