//! Failed jobs: where each of them stands until it is handed out again.
//!
//! A failed job waits for its back-off, is then *due*, is read again and is then *ready*. Due jobs are read, and ready jobs
//! are handed out, in the order in which they became due. The window has no clock, so that order is the order of the calls.

use crate::base::index::Index;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::mem::take;
use core::ops::RangeInclusive;

/// The place of a failed job in the order in which jobs became due.
type Place = u64;

/// The failed jobs of a window.
#[derive(Debug, Default)]
pub(super) struct Retries {
    /// Jobs whose back-off is not over.
    waiting: BTreeSet<Index>,
    /// Jobs that are to be read again.
    due: Queue,
    /// Jobs that are being read, in index order.
    reading: Vec<(Index, Place)>,
    /// Jobs that were read and can be handed out.
    read: Queue,
    /// Jobs that the source did not have. They are due again after the next look.
    missing: BTreeMap<Index, Place>,
    next_place: Place,
}

impl Retries {
    /// A job failed.
    pub(super) fn wait(&mut self, index: Index) -> bool {
        self.waiting.insert(index)
    }

    /// The back-off of a job is over. False when the job does not wait for one.
    pub(super) fn due(&mut self, index: Index, closed_from: Index) -> bool {
        if !self.waiting.remove(&index) {
            return false;
        }
        self.due.insert(index, self.next_place, closed_from);
        self.next_place += 1;
        true
    }

    /// The source was looked at: a job that was missing may be there now.
    pub(super) fn seek_missing(&mut self, closed_from: Index) {
        for (index, place) in take(&mut self.missing) {
            self.due.insert(index, place, closed_from);
        }
    }

    /// The window has moved or changed its width.
    #[inline]
    pub(super) fn reach(&mut self, closed_from: Index) {
        self.due.reach(closed_from);
        self.read.reach(closed_from);
    }

    /// The first run to be read again, of at most this many jobs: the job that has been due the longest and its neighbours.
    ///
    /// The run begins with that job and not with a lower neighbour. A source may answer with the first job of a run alone,
    /// and that has to be the one whose turn it is.
    pub(super) fn next_run(&self, most: u64) -> Option<RangeInclusive<Index>> {
        let first = self.due.first().filter(|_| most > 0)?;
        let mut end = first;
        while end - first + 1 < most && self.due.places.contains_key(&(end + 1)) {
            end += 1;
        }
        Some(first..=end)
    }

    /// These jobs are being read.
    pub(super) fn begin_read(&mut self, run: &RangeInclusive<Index>) {
        let places = run.clone().filter_map(|index| self.due.remove(index).map(|place| (index, place)));
        self.reading = places.collect();
    }

    /// So many of the jobs being read are ready. The rest is left for [`rest_is_due`](Self::rest_is_due) and the like.
    pub(super) fn end_read(&mut self, count: usize, closed_from: Index) {
        for (index, place) in self.reading.drain(..count.min(self.reading.len())) {
            self.read.insert(index, place, closed_from);
        }
    }

    /// What is left of the jobs being read keeps its turn.
    pub(super) fn rest_is_due(&mut self, closed_from: Index) {
        for (index, place) in self.reading.drain(..) {
            self.due.insert(index, place, closed_from);
        }
    }

    /// The first of those that are left is not there until the next look.
    pub(super) fn first_is_missing(&mut self) {
        if !self.reading.is_empty() {
            self.missing.extend([self.reading.remove(0)]);
        }
    }

    /// What is left of the jobs being read waits for another back-off.
    pub(super) fn rest_waits(&mut self) {
        self.waiting.extend(self.reading.drain(..).map(|(index, _)| index));
    }

    /// Whether a job is ready that the window lets start.
    #[inline]
    pub(super) fn can_start(&self) -> bool {
        !self.read.order.is_empty()
    }

    /// The job to be handed out: the one that has been due the longest.
    #[inline]
    pub(super) fn start(&mut self) -> Option<Index> {
        let index = self.read.first()?;
        self.read.remove(index);
        Some(index)
    }

    /// How many jobs are ready, also above the window.
    #[inline]
    pub(super) fn len_read(&self) -> u64 {
        (self.read.order.len() + self.read.above.len()) as u64
    }

    /// Whether a job of the window is due.
    #[inline]
    pub(super) fn has_due(&self) -> bool {
        !self.due.order.is_empty()
    }
}

/// Jobs in the order in which they became due. Jobs above the window wait beside it.
#[derive(Debug, Default)]
struct Queue {
    order: BTreeMap<Place, Index>,
    /// The turn of each job of the window.
    places: BTreeMap<Index, Place>,
    /// The turn of each job above the window, which was narrowed since that job started.
    above: BTreeMap<Index, Place>,
}

impl Queue {
    fn insert(&mut self, index: Index, place: Place, closed_from: Index) {
        if index < closed_from {
            self.order.insert(place, index);
            self.places.insert(index, place);
        } else {
            self.above.insert(index, place);
        }
    }

    fn remove(&mut self, index: Index) -> Option<Place> {
        let place = self.places.remove(&index)?;
        self.order.remove(&place);
        Some(place)
    }

    #[inline]
    fn first(&self) -> Option<Index> {
        self.order.first_key_value().map(|(_, index)| *index)
    }

    #[inline]
    fn reach(&mut self, closed_from: Index) {
        if self.places.last_key_value().is_some_and(|(index, _)| *index >= closed_from) {
            for (index, place) in self.places.split_off(&closed_from) {
                self.order.remove(&place);
                self.above.insert(index, place);
            }
        }
        while let Some(first) = self.above.first_entry().filter(|first| *first.key() < closed_from) {
            let (index, place) = first.remove_entry();
            self.insert(index, place, closed_from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(indices: impl IntoIterator<Item = Index>) -> Retries {
        let mut retries = Retries::default();
        for index in indices {
            assert!(retries.wait(index) && retries.due(index, 100));
        }
        retries
    }

    #[test]
    fn a_run_begins_with_the_job_that_was_due_first_and_has_its_upper_neighbours() {
        let mut retries = failed([5, 3, 7, 6, 4]);
        assert_eq!(retries.next_run(64), Some(5..=7));
        assert_eq!(retries.next_run(2), Some(5..=6));
        assert_eq!(retries.next_run(0), None);
        retries.begin_read(&(5..=7));
        assert_eq!(retries.next_run(64), Some(3..=4));
        retries.end_read(1, 100);
        retries.rest_is_due(100);
        assert_eq!(retries.next_run(64), Some(3..=4), "job 3 was due before jobs 6 and 7");
        assert_eq!(retries.start(), Some(5));
    }

    #[test]
    fn ready_jobs_start_in_the_order_in_which_they_became_due() {
        let mut retries = failed([8, 2, 9, 1]);
        for run in [1..=1, 8..=9, 2..=2] {
            retries.begin_read(&run);
            retries.end_read(run.count(), 100);
        }
        let started: Vec<_> = core::iter::from_fn(|| retries.start()).collect();
        assert_eq!(started, [8, 2, 9, 1]);
    }

    #[test]
    fn a_window_that_was_narrowed_keeps_the_turns_of_the_jobs_above_it() {
        let mut retries = failed([8, 2, 9]);
        retries.reach(5);
        assert_eq!((retries.next_run(64), retries.len_read()), (Some(2..=2), 0));
        retries.reach(9);
        assert_eq!(retries.next_run(64), Some(8..=8));
        retries.begin_read(&(8..=8));
        retries.end_read(1, 9);
        retries.reach(5);
        assert!(!retries.can_start() && retries.len_read() == 1);
        retries.reach(10);
        assert_eq!(retries.start(), Some(8));
    }

    #[test]
    fn a_job_that_cannot_be_read_waits_alone_or_until_the_next_look() {
        let mut retries = failed(1..=4);
        retries.begin_read(&(1..=4));
        retries.end_read(1, 100);
        retries.first_is_missing();
        retries.rest_is_due(100);
        assert_eq!(retries.next_run(64), Some(3..=4));
        retries.seek_missing(100);
        assert_eq!(retries.next_run(64), Some(2..=4), "job 2 kept its turn");
        retries.begin_read(&(2..=4));
        retries.rest_waits();
        assert!(!retries.has_due() && retries.due(3, 100) && !retries.due(3, 100));
    }
}
