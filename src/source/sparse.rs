//! The answer of a source whose indices have gaps.

use crate::base::{BoxError, Error, Index, config::check_zero};
use std::ops::RangeInclusive;

/// The jobs of a run and the gaps between them, as [`Jobs::read_sparse`](crate::Jobs) reports them.
///
/// It is filled in index order. [`job`](Self::job) reports a job, and that nothing between the last
/// one and this one will ever be a job. [`none_through`](Self::none_through) reports that nothing
/// up to an index is left. An unreported index stays open: the consumer asks for it again.
///
/// ```
/// use waterline::{Item, Sparse};
///
/// let mut read = Sparse::new(10);
/// read.job(10, "a");
/// read.job(13, "b");
/// read.none_through(19);
/// assert_eq!(read.next(), 20);
/// let items: Vec<_> = read.into_iter().collect();
/// assert_eq!(items, [Item::Job(10, "a"), Item::None(11..=12), Item::Job(13, "b"), Item::None(14..=19)]);
/// ```
#[derive(Clone, Debug)]
pub struct Sparse<T> {
    first: Index,
    /// The last index and the number of jobs that were requested.
    last: Index,
    most: usize,
    jobs: Vec<T>,
    steps: Steps,
    fault: Option<SparseError>,
}

/// Where the indices of jobs jump: the number of jobs before the gap, and one past its last index.
/// Both ascend. Usually there is none, so the list is boxed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Steps(Option<Box<List>>);

#[derive(Clone, Debug, Default)]
struct List {
    all: Vec<(usize, Index)>,
}

impl Steps {
    /// Forgets what comes after the job behind this many.
    pub(crate) fn cut(&mut self, jobs: usize) {
        self.0.iter_mut().for_each(|list| list.all.retain(|(before, _)| *before <= jobs));
    }

    /// Makes an answer begin with `at`, above its first index. False if a job is there before.
    pub(crate) fn begin_at(&mut self, at: Index) -> bool {
        let Some(list) = &mut self.0 else { return false };
        match list.all.first() {
            Some((0, end)) if *end > at => true,
            Some((0, end)) if *end == at => {
                list.all.remove(0);
                true
            }
            _ => false,
        }
    }
}

impl std::ops::Deref for Steps {
    type Target = [(usize, Index)];

    #[inline]
    fn deref(&self) -> &Self::Target {
        self.0.as_ref().map_or(&[], |list| &list.all)
    }
}

/// A part of a [`Sparse`]: a job, or a gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item<T> {
    /// The job at this index.
    Job(Index, T),
    /// None of these indices will ever be a job.
    None(RangeInclusive<Index>),
}

/// A fault of a source: it contradicts itself, or reports what was not requested.
///
/// The consumer treats it as an error of the source: it keeps what was reported before the fault,
/// backs off, and asks again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SparseError {
    /// A job at an index about which the source has already reported.
    #[error(
        "the source shows job {index} after it has said what is there below {next}: show jobs in ascending order, and call an \
         index missing for good only if no job will ever be there"
    )]
    OutOfOrder {
        /// The index of the job.
        index: Index,
        /// The lowest index about which nothing was reported.
        next: Index,
    },
    /// A job above the requested run. A gap may extend beyond the run, but a job may not.
    #[error("the source shows job {index}, which is outside of the run that ends at {last}: show no job above the run")]
    OutsideRun {
        /// The index of the job.
        index: Index,
        /// The last index of the run.
        last: Index,
    },
    /// More jobs than were requested.
    #[error("the source returned {jobs} jobs when {most} were asked for: stop after that many")]
    TooMany {
        /// The number of jobs.
        jobs: usize,
        /// How many jobs were requested.
        most: usize,
    },
    /// A read that does not start at the lowest index about which nothing was reported.
    #[error("the source is read from {start} into an answer that goes on at {next}: read from there")]
    ReadElsewhere {
        /// The first index of the read.
        start: Index,
        /// The lowest index about which nothing was reported.
        next: Index,
    },
}

impl<T> Sparse<T> {
    /// Creates an empty answer that begins with this index.
    #[must_use]
    pub fn new(first: Index) -> Self {
        Self::within(first, Index::MAX - 1, usize::MAX)
    }

    /// Creates one for at most `most` jobs up to the index `last`.
    pub(crate) fn within(first: Index, last: Index, most: usize) -> Self {
        Self { first, last, most, jobs: Vec::new(), steps: Steps::default(), fault: None }
    }

    /// Reassembles an answer from its parts.
    #[cfg(feature = "testing")]
    pub(crate) fn of(first: Index, jobs: Vec<T>, steps: Steps) -> Self {
        Self { jobs, steps, ..Self::new(first) }
    }

    /// Reports the job at this index, and that nothing since the last one will ever be a job.
    ///
    /// A job below [`next`](Self::next) contradicts what was reported, and one above the run was
    /// not requested. Such a job is dropped, and so is all that is reported after it. The read then
    /// counts as failed, with a [`SparseError`].
    #[inline]
    pub fn job(&mut self, index: Index, job: T) {
        let next = self.next();
        if index == next && index <= self.last && self.jobs.len() < self.most && self.fault.is_none() {
            self.jobs.push(job);
        } else {
            self.job_apart(index, job, next);
        }
    }

    fn job_apart(&mut self, index: Index, job: T, next: Index) {
        if self.fault.is_some() {
            return;
        }
        self.fault = if index < next {
            Some(SparseError::OutOfOrder { index, next })
        } else if index > self.last {
            Some(SparseError::OutsideRun { index, last: self.last })
        } else if self.jobs.len() >= self.most {
            Some(SparseError::TooMany { jobs: self.jobs.len() + 1, most: self.most })
        } else {
            self.go_on_at(index, next);
            self.jobs.push(job);
            None
        };
    }

    /// Reports that nothing from [`next`](Self::next) up to and including this index will ever be a
    /// job.
    ///
    /// The index may lie beyond the run. Below `next` it has no effect.
    pub fn none_through(&mut self, last: Index) {
        let next = self.next();
        if last >= next && self.fault.is_none() {
            self.go_on_at(last.saturating_add(1), next);
        }
    }

    fn go_on_at(&mut self, index: Index, next: Index) {
        if index > next {
            let steps = &mut self.steps.0.get_or_insert_default().all;
            match steps.last_mut() {
                Some((jobs, step)) if *jobs == self.jobs.len() => *step = index,
                _ => steps.push((self.jobs.len(), index)),
            }
        }
    }

    /// Returns the lowest index about which nothing was reported.
    #[inline]
    #[must_use]
    pub fn next(&self) -> Index {
        next_of(self.first, &self.steps, self.jobs.len())
    }

    /// Returns the first contradiction in the answer, if any. Everything after it was dropped.
    ///
    /// An adapter that takes an answer apart passes it on as the error of its own read.
    #[must_use]
    pub fn fault(&self) -> Option<&SparseError> {
        self.fault.as_ref()
    }

    /// Returns the jobs, for a source without gaps to append the next ones.
    #[inline]
    pub(crate) fn dense(&mut self) -> &mut Vec<T> {
        &mut self.jobs
    }

    /// Removes everything from the job with this position on, and returns these jobs.
    fn cut(&mut self, jobs: usize) -> Vec<T> {
        self.steps.0.iter_mut().for_each(|steps| steps.all.retain(|(before, _)| *before < jobs));
        self.jobs.split_off(jobs)
    }

    /// Takes the answer apart: the jobs, the steps, the unrequested jobs, and the first fault.
    pub(crate) fn into_parts(mut self) -> (Vec<T>, Steps, Vec<T>, Option<SparseError>) {
        let mut surplus = Vec::new();
        // Jobs that were appended without checking their number.
        if self.jobs.len() > self.most {
            let (jobs, most) = (self.jobs.len(), self.most);
            surplus = self.cut(most);
            self.fault = Some(SparseError::TooMany { jobs, most });
        }
        let dense_from = self.steps.last().map_or(self.first, |(_, index)| *index);
        let next = self.next();
        if next > dense_from && next - 1 > self.last {
            let (index, last) = (dense_from.max(self.last + 1), self.last);
            let within = (last + 1).saturating_sub(dense_from);
            let before = self.steps.last().map_or(0, |(jobs, _)| *jobs);
            surplus.extend(self.cut(before + usize::try_from(within).unwrap_or(usize::MAX)));
            self.fault = Some(SparseError::OutsideRun { index, last });
        }
        (self.jobs, self.steps, surplus, self.fault)
    }
}

/// Returns the lowest index about which an answer that begins with `first` says nothing.
#[inline]
pub(crate) fn next_of(first: Index, steps: &[(usize, Index)], jobs: usize) -> Index {
    let (before, index) = steps.last().copied().unwrap_or((0, first));
    index.saturating_add((jobs - before) as u64)
}

/// Returns the run of at most `most` indices that a source without gaps reads into this answer.
pub(super) fn dense_run<T>(
    run: &RangeInclusive<Index>,
    most: usize,
    into: &Sparse<T>,
) -> Result<RangeInclusive<Index>, BoxError> {
    check_zero("most", most == 0, "a read for 0 jobs says nothing: use 1 at least for `most`").map_err(Error::from)?;
    let (start, next) = (*run.start(), into.next());
    if start != next {
        return Err(SparseError::ReadElsewhere { start, next }.into());
    }
    Ok(start..=start.saturating_add(most as u64 - 1).min(*run.end()))
}

/// Yields the answer in index order, up to its [`fault`](Sparse::fault).
impl<T> IntoIterator for Sparse<T> {
    type Item = Item<T>;
    type IntoIter = IntoIter<T>;

    fn into_iter(self) -> IntoIter<T> {
        let next = self.first;
        let steps = self.steps.0.map(|list| list.all).unwrap_or_default();
        IntoIter { next, taken: 0, jobs: self.jobs.into_iter(), steps: steps.into_iter().peekable() }
    }
}

/// The items of a [`Sparse`], in index order.
#[derive(Debug)]
pub struct IntoIter<T> {
    next: Index,
    taken: usize,
    jobs: std::vec::IntoIter<T>,
    steps: std::iter::Peekable<std::vec::IntoIter<(usize, Index)>>,
}

impl<T> Iterator for IntoIter<T> {
    type Item = Item<T>;

    fn next(&mut self) -> Option<Item<T>> {
        let index = self.next;
        if let Some((_, end)) = self.steps.next_if(|(before, _)| *before == self.taken) {
            self.next = end;
            return Some(Item::None(index..=end - 1));
        }
        let job = self.jobs.next()?;
        (self.next, self.taken) = (index + 1, self.taken + 1);
        Some(Item::Job(index, job))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    enum Say {
        Job(Index),
        NoneThrough(Index),
    }

    fn say() -> impl Strategy<Value = Say> {
        let index = || prop_oneof![20 => 0..60u64, 1 => Just(Index::MAX - 1), 1 => Just(Index::MAX)];
        prop_oneof![3 => index().prop_map(Say::Job), 1 => index().prop_map(Say::NoneThrough)]
    }

    proptest! {
        #[test]
        fn an_answer_yields_all_up_to_the_first_fault(
            first in 0..5u64,
            last in 30..50u64,
            most in 1..9usize,
            said in proptest::collection::vec(say(), 0..20),
        ) {
            let mut said = said;
            // Mostly in order, so that an answer gets long.
            said.sort_by_key(|say| match say { Say::Job(index) | Say::NoneThrough(index) => index / 7 });
            let (mut read, mut is_job, mut next, mut fault) = (Sparse::within(first, last, most), Vec::new(), first, false);
            for say in said {
                match say {
                    Say::Job(index) => read.job(index, index),
                    Say::NoneThrough(index) => read.none_through(index),
                }
                fault |= matches!(say, Say::Job(index) if index < next || index > last
                    || is_job.iter().filter(|is_job| **is_job).count() >= most);
                let end = match say { _ if fault => next, Say::Job(index) => index, Say::NoneThrough(index) => index.saturating_add(1) };
                if end.max(next) - next > 100 {
                    // The lists below must stay short.
                    return Ok(());
                }
                is_job.resize(is_job.len().max((end.max(next) - first) as usize), false);
                next = next.max(end);
                if let Say::Job(_) = say && !fault {
                    is_job.push(true);
                    next += 1;
                }
                prop_assert_eq!(read.next(), next);
                prop_assert_eq!(read.fault().is_some(), fault);
            }
            let (mut seen, mut after) = (Vec::new(), false);
            let (jobs, steps, surplus, error) = read.clone().into_parts();
            prop_assert_eq!((jobs.len(), surplus.len(), error.is_some()), (is_job.iter().filter(|is| **is).count(), 0, fault));
            prop_assert_eq!(next_of(first, &steps, jobs.len()), next);
            for item in read {
                match item {
                    Item::Job(index, job) => {
                        prop_assert_eq!((index, job), (first + seen.len() as u64, index));
                        seen.push(true);
                        after = false;
                    }
                    Item::None(gap) => {
                        prop_assert!(!after, "two gaps beside each other are one");
                        prop_assert_eq!(*gap.start(), first + seen.len() as u64);
                        seen.extend(gap.map(|_| false));
                        after = true;
                    }
                }
            }
            prop_assert_eq!(seen, is_job);
        }
    }

    #[test]
    fn unrequested_jobs_are_taken_out_of_an_answer() {
        let mut read = Sparse::within(5, 9, 3);
        read.dense().extend([5, 6, 7, 8]);
        let (jobs, _, surplus, fault) = read.into_parts();
        assert_eq!((jobs, surplus, fault), (vec![5, 6, 7], vec![8], Some(SparseError::TooMany { jobs: 4, most: 3 })));
        let mut read = Sparse::within(5, 9, 30);
        read.none_through(7);
        read.dense().extend([8, 9, 10, 11]);
        let (jobs, steps, surplus, fault) = read.into_parts();
        assert_eq!((jobs, &*steps, surplus), (vec![8, 9], &[(0, 8)][..], vec![10, 11]));
        assert_eq!(fault, Some(SparseError::OutsideRun { index: 10, last: 9 }));
    }

    #[test]
    fn a_gap_to_the_highest_index_is_the_end() {
        let mut read = Sparse::<()>::new(3);
        read.none_through(Index::MAX);
        assert_eq!(read.next(), Index::MAX);
        read.job(Index::MAX, ());
        assert!(matches!(read.fault(), Some(SparseError::OutsideRun { .. })), "it is never a job");
        assert_eq!(read.into_iter().collect::<Vec<_>>(), [Item::None(3..=Index::MAX - 1)]);
    }
}
