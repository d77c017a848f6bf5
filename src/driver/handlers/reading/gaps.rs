//! Gaps in what was read: indices that will never have a job.

use crate::base::{Index, time::Now};
use crate::driver::{core::Core, prefetch::Sorted};
use crate::reader::{Ask, Key, Payloads};
use std::ops::RangeInclusive;

/// A part of an answer: jobs, followed by a gap.
struct AnswerPart {
    /// The index of the first job, if there are jobs.
    first: Index,
    jobs: usize,
    gap: Option<RangeInclusive<Index>>,
}

impl AnswerPart {
    fn indices(&self) -> Option<RangeInclusive<Index>> {
        (self.jobs > 0).then(|| self.first..=self.first + (self.jobs as u64 - 1))
    }
}

/// Splits an answer that begins at `first`.
fn parts(first: Index, jobs: usize, steps: &[(usize, Index)]) -> impl Iterator<Item = AnswerPart> {
    let (mut index, mut taken) = (first, 0);
    let ends = steps.iter().map(|(before, end)| (*before, Some(*end))).chain([(jobs, None)]);
    ends.map(move |(before, end)| {
        let (first, jobs) = (index, before - taken);
        let behind = first + jobs as u64;
        taken = before;
        index = end.unwrap_or(behind);
        AnswerPart { first, jobs, gap: end.map(|end| behind..=end - 1) }
    })
}

impl Core {
    /// Takes in new jobs and the gaps between them. Drops jobs that an earlier life has done, and
    /// those above a gap that could not be settled as a whole.
    pub(super) fn take_in_new_with_gaps(
        &mut self,
        first: Index,
        jobs: &mut dyn Payloads,
        steps: &[(usize, Index)],
        mut all: impl Iterator<Item = (usize, Option<Key>)>,
        now: &Now,
    ) {
        let open_below = self.failed_jobs.quarantine.gate;
        let parts = parts(first, jobs.len(), steps);
        let mut sorted = Sorted::default();
        for part in parts {
            if let Some(run) = part.indices() {
                for (index, (weight, key)) in run.clone().zip(&mut all) {
                    let kept = self.keep(index, weight, key, &sorted, now.get());
                    sorted.push(kept, weight);
                }
                self.window.handle_part(run);
            }
            if let Some(gap) = part.gap {
                let whole = self.window.handle_gap(gap.clone(), open_below);
                let (failed_jobs, mut at) = self.failed_jobs(now);
                failed_jobs.forget_records(&gap, &mut at);
                self.forget_unread(&gap, now);
                if !whole {
                    break;
                }
            }
        }
        self.reading.prefetch.add_sorted(jobs, sorted);
    }

    /// Takes in failed jobs that were read again, and passes those that have become gaps. A
    /// redriven job that is a gap stays parked. Returns those that have to wait behind others.
    pub(super) fn take_in_again_with_gaps(
        &mut self,
        run: Ask,
        jobs: &mut dyn Payloads,
        steps: &[(usize, Index)],
        mut all: impl Iterator<Item = (usize, Option<Key>)>,
        now: &Now,
    ) -> Vec<Index> {
        let mut behind = Vec::new();
        let parts = parts(run.first, jobs.len(), steps);
        for part in parts {
            if let Some(indices) = part.indices() {
                for (index, (weight, key)) in indices.clone().zip(&mut all) {
                    if self.take_in_again_one(index, weight, key, jobs) {
                        behind.push(index);
                    }
                }
                self.window.handle_part(indices);
            }
            let Some(gap) = part.gap else { continue };
            let gap = *gap.start()..=run.last.min(*gap.end());
            self.window.handle_gap(gap.clone(), Index::MAX);
            let (failed_jobs, mut at) = self.failed_jobs(now);
            for index in gap {
                if at.window.is_redriven(index) {
                    failed_jobs.withdraw(index, &mut at);
                } else {
                    failed_jobs.gone(index, &mut at);
                }
            }
        }
        behind
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::BoxError;
    use crate::progress::load_earlier;
    use crate::{Consumer, Jobs, Retry, Sparse, Store};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    /// Jobs 0 and 5, between gaps. Job 5 may be deleted.
    #[derive(Clone, Default)]
    struct Rows(Arc<AtomicBool>);

    impl Jobs for Rows {
        type Job = Index;

        fn head(&self) -> Result<Option<Index>, BoxError> {
            Ok(Some(9))
        }

        fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
            Ok(Some(index))
        }

        fn read_sparse(&self, run: RangeInclusive<Index>, _: usize, into: &mut Sparse<Index>) -> Result<(), BoxError> {
            let deleted = self.0.load(Ordering::SeqCst);
            let rows = [0, 5].into_iter().filter(|row| run.contains(row) && (*row == 0 || !deleted));
            rows.for_each(|row| into.job(row, row));
            into.none_through(*run.end());
            Ok(())
        }
    }

    #[test]
    fn a_failed_job_that_is_a_gap_leaves_no_record() {
        let (store, rows) = (Store::in_memory(), Rows::default());
        let records = || {
            let earlier = load_earlier(&mut store.progress("p"), true).unwrap().unwrap();
            earlier.jobs.iter().map(|job| job.index).collect::<Vec<_>>()
        };
        for (deleted, left) in [(false, vec![0, 5]), (true, vec![0])] {
            rows.0.store(deleted, Ordering::SeqCst);
            let builder = Consumer::builder(rows.clone(), store.progress("p")).max_processing(2).max_crashes(3);
            let retry = Retry::fixed(Duration::from_secs(if deleted { 0 } else { 3_600 }));
            let consumer = builder.retry(retry).start(|_| Err("no".into())).unwrap();
            let handle = consumer.handle();
            let settled = || if deleted { handle.status().done_ahead == 9 } else { handle.status().failed == 2 };
            while !settled() {
                std::thread::park_timeout(Duration::from_millis(1));
            }
            consumer.stop().unwrap();
            assert_eq!(records(), left);
        }
    }

    #[test]
    fn an_answer_splits_into_jobs_and_gaps() {
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
