//! Jobs that were read without gaps between them.

use crate::base::{Index, time::Now};
use crate::driver::handlers::keys::with_keys;
use crate::driver::{core::Core, prefetch::Sorted};
use crate::reader::{Key, Payloads, Weights};

impl Core {
    /// Takes in jobs that were read again. Returns those that have to wait behind others.
    pub(super) fn take_in_again(
        &mut self,
        first: Index,
        jobs: &mut dyn Payloads,
        all: impl Iterator<Item = (usize, Option<Key>)>,
    ) -> Vec<Index> {
        let mut behind = Vec::new();
        for (index, (weight, key)) in (first..).zip(all) {
            if self.take_in_again_one(index, weight, key, jobs) {
                behind.push(index);
            }
        }
        behind
    }

    /// Takes in new jobs. Drops those that an earlier life has done: they were read only because
    /// they are between two undone jobs.
    pub(super) fn take_in_new(
        &mut self,
        start: Index,
        jobs: &mut dyn Payloads,
        weights: Weights,
        keys: Vec<Option<Key>>,
        now: &Now,
    ) {
        if self.running.keys.is_none() && !self.window.has_restored(start) {
            return self.reading.prefetch.add(jobs, weights);
        }
        let mut sorted = Sorted::default();
        for (index, (weight, key)) in (start..).zip(with_keys(weights, keys)) {
            let kept = self.keep(index, weight, key, &sorted, now.get());
            sorted.push(kept, weight);
        }
        self.reading.prefetch.add_sorted(jobs, sorted);
    }
}
