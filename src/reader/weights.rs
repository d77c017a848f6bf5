//! The weights of jobs, in order. Equal neighbours share an entry, so each of them costs nothing.

use std::collections::VecDeque;

/// The weights of jobs in bytes, in the order of the jobs.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    equal: VecDeque<Equal>,
}

#[derive(Debug)]
struct Equal {
    jobs: usize,
    weight: usize,
}

impl Weights {
    /// Makes the weights of this many equal jobs.
    pub(crate) fn equal(jobs: usize, weight: usize) -> Self {
        Self { equal: VecDeque::from_iter((jobs > 0).then_some(Equal { jobs, weight })) }
    }

    #[inline]
    pub(crate) fn push(&mut self, jobs: usize, weight: usize) {
        match self.equal.back_mut() {
            Some(last) if last.weight == weight => last.jobs += jobs,
            _ => self.equal.push_back(Equal { jobs, weight }),
        }
    }

    pub(crate) fn append(&mut self, more: Weights) {
        more.equal.into_iter().for_each(|Equal { jobs, weight }| self.push(jobs, weight));
    }

    pub(crate) fn total(&self) -> usize {
        self.equal.iter().fold(0, |sum, equal| sum.saturating_add(equal.jobs.saturating_mul(equal.weight)))
    }
}

impl FromIterator<usize> for Weights {
    #[inline]
    fn from_iter<I: IntoIterator<Item = usize>>(weights: I) -> Self {
        let mut all = Self::default();
        weights.into_iter().for_each(|weight| all.push(1, weight));
        all
    }
}

/// Takes the weights one by one.
impl Iterator for Weights {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let first = self.equal.front_mut()?;
        let weight = first.weight;
        first.jobs -= 1;
        if first.jobs == 0 {
            self.equal.pop_front();
        }
        Some(weight)
    }
}
