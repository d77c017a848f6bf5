//! Gaps among what was read: indices at which there will never be a job.

use crate::base::index::Index;
use crate::base::time::Now;
use crate::commit::changes::Changes;
use crate::driver::core::Core;
use crate::observe::{Event, Kind};
use crate::reader::{Ask, Weights};
use std::ops::RangeInclusive;

/// A part of an answer: some jobs, and the gap behind them.
struct Part {
    /// The index of the first job, if there are jobs.
    first: Index,
    jobs: usize,
    gap: Option<RangeInclusive<Index>>,
}

impl Part {
    fn indices(&self) -> Option<RangeInclusive<Index>> {
        (self.jobs > 0).then(|| self.first..=self.first + (self.jobs as u64 - 1))
    }
}

/// Returns the parts of an answer that begins with `first`.
fn parts(first: Index, jobs: usize, steps: &[(usize, Index)]) -> impl Iterator<Item = Part> {
    let (mut index, mut taken) = (first, 0);
    let ends = steps.iter().map(|(before, end)| (*before, Some(*end))).chain([(jobs, None)]);
    ends.map(move |(before, end)| {
        let (first, jobs) = (index, before - taken);
        let behind = first + jobs as u64;
        taken = before;
        index = end.unwrap_or(behind);
        Part { first, jobs, gap: end.map(|end| behind..=end - 1) }
    })
}

impl<T: Send + 'static> Core<T> {
    /// Takes in new jobs and the gaps between them. It gives back the jobs that an earlier life has
    /// done, and those above a gap that is not settled as a whole.
    pub(super) fn take_in_new_with_gaps(
        &mut self,
        first: Index,
        jobs: Vec<T>,
        steps: &[(usize, Index)],
        mut weights: Weights,
    ) -> Vec<T> {
        let open_below = self.source_gate();
        let parts = parts(first, jobs.len(), steps);
        let (mut jobs, mut done, mut undone, mut kept) = (jobs.into_iter(), Vec::new(), Vec::new(), Weights::default());
        for part in parts {
            if let Some(run) = part.indices() {
                for ((index, job), weight) in run.clone().zip(&mut jobs).zip(&mut weights) {
                    if self.window.is_done(index) {
                        done.push(job);
                    } else {
                        undone.push(job);
                        kept.push(1, weight);
                    }
                }
                self.window.handle_part(run);
            }
            if let Some(gap) = part.gap {
                self.forget_records(&gap);
                if !self.window.handle_gap(gap, open_below) {
                    break;
                }
            }
        }
        self.reading.prefetch.add(undone, kept);
        done.extend(jobs);
        done
    }

    /// Takes in failed jobs that were read again, and passes those that are gaps now. A parked job
    /// that was to run once more stays parked.
    pub(super) fn take_in_again_with_gaps(
        &mut self,
        run: Ask,
        jobs: Vec<T>,
        steps: &[(usize, Index)],
        mut weights: Weights,
        now: &Now,
    ) -> Vec<T> {
        let parts = parts(run.first, jobs.len(), steps);
        let mut jobs = jobs.into_iter();
        for part in parts {
            if let Some(indices) = part.indices() {
                for ((index, job), weight) in indices.clone().zip(&mut jobs).zip(&mut weights) {
                    self.reading.prefetch.add_again(index, job, weight);
                    self.failures.was_read(index);
                }
                self.window.handle_part(indices);
            }
            let Some(gap) = part.gap else { continue };
            let gap = *gap.start()..=run.last.min(*gap.end());
            self.window.handle_gap(gap.clone(), Index::MAX);
            for index in gap {
                if self.window.is_redriven(index) {
                    self.withdraw(index, now);
                } else {
                    self.gone(index, now);
                }
            }
        }
        jobs.collect()
    }

    /// A failed job is a gap now, and the window has passed it. A suspect may have been a gap when
    /// an earlier life recorded it, and then there is nothing to say.
    fn gone(&mut self, index: Index, now: &Now) {
        self.outlived(index);
        let crashes = self.parking.as_ref().and_then(|parking| parking.crashes(index)).unwrap_or(0);
        let has_run = crashes > 0 || self.failures.has_run(index);
        let attempt = self.failures.waiting(index).map_or(0, |failed| failed.attempt);
        self.failures.forget(index);
        self.forget_records(&(index..=index));
        self.no_suspect(index);
        self.hold_turn();
        if has_run {
            self.tell(&Event::new(Kind::Gone, index).attempt(attempt), now);
        }
    }

    /// Removes the records of jobs that are gaps now. Parked jobs keep theirs.
    fn forget_records(&mut self, gap: &RangeInclusive<Index>) {
        for index in self.pending_within(gap) {
            let mut changes = Changes::default();
            self.unpark(index, &mut changes);
            self.take_changes(&mut changes, index, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_an_answer_are_its_jobs_and_the_gaps_behind_them() {
        let seen =
            |jobs, steps: &[_]| parts(10, jobs, steps).map(|part| (part.indices(), part.gap)).collect::<Vec<_>>();
        assert_eq!(seen(2, &[]), [(Some(10..=11), None)]);
        assert_eq!(seen(0, &[(0, 15)]), [(None, Some(10..=14)), (None, None)]);
        let parts = [(Some(10..=10), Some(11..=11)), (Some(12..=13), Some(14..=19)), (None, None)];
        assert_eq!(seen(3, &[(1, 12), (3, 20)]), parts);
        let parts = [(None, Some(10..=11)), (Some(12..=12), Some(13..=Index::MAX - 1)), (None, None)];
        assert_eq!(seen(1, &[(0, 12), (1, Index::MAX)]), parts);
    }
}
