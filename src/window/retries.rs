//! Failed jobs, from their failure until they are handed out again.
//!
//! A failed job first *waits* for its back-off. Then it is *due*, to be read again, and then
//! *read*, to be handed out. Both happen in the order in which jobs became due: that of the calls
//! of `due`, since the window has no clock.

use crate::base::Index;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::mem::take;
use core::ops::RangeInclusive;

/// The place of a failed job in the order in which jobs became due.
type DuePlace = u64;

/// The failed jobs of a window, boxed, since there are usually none.
#[derive(Debug, Default)]
pub(super) struct Retries(Option<Box<Queues>>);

/// The jobs that may start: those below an index, and redriven ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Startable<'a> {
    pub(super) closed_from: Index,
    pub(super) redriven: &'a BTreeSet<Index>,
}

impl Startable<'_> {
    #[inline]
    fn has(self, index: Index) -> bool {
        index < self.closed_from || self.redriven.contains(&index)
    }
}

/// Forwards these calls to the queues, if there are any.
macro_rules! forward {
    ($retries:ty, $queues:ident: $($(#[$attribute:meta])* $name:ident($($argument:ident: $type:ty),*) $(-> $answer:ty)?;)*) => {
        impl Retries {
            $($(#[$attribute])* pub(super) fn $name(self: $retries, $($argument: $type),*) $(-> $answer)? {
                self.0.$queues().map(|queues| queues.$name($($argument),*)).unwrap_or_default()
            })*
        }
    };
}

impl Retries {
    pub(super) fn wait(&mut self, index: Index) -> bool {
        self.0.get_or_insert_default().wait(index)
    }

    pub(super) fn behind(&mut self, index: Index) {
        self.0.get_or_insert_default().behind.insert(index);
    }

    /// Returns the read jobs that may start, in order.
    pub(super) fn read_in_turn(&self) -> impl Iterator<Item = Index> {
        self.0.iter().flat_map(|queues| queues.read.order.values().copied())
    }
}

forward! {
    &Self, as_ref:
    next_run(most: u64) -> Option<RangeInclusive<Index>>;
    run_of(index: Index) -> Option<RangeInclusive<Index>>;
    is_read(index: Index) -> bool;
    #[inline]
    can_start() -> bool;
    #[inline]
    first_read() -> Option<Index>;
    #[inline]
    len_read() -> u64;
    #[inline]
    has_due() -> bool;
}

forward! {
    &mut Self, as_mut:
    forget(index: Index) -> bool;
    withdraw(index: Index) -> bool;
    take(index: Index) -> bool;
    due(index: Index, reach: Startable<'_>) -> bool;
    ready(index: Index, reach: Startable<'_>) -> bool;
    read_waits(index: Index) -> bool;
    seek_missing(reach: Startable<'_>);
    #[inline]
    reach(reach: Startable<'_>);
    begin_read(run: &RangeInclusive<Index>);
    end_read(count: usize, reach: Startable<'_>);
    end_part(last: Index, reach: Startable<'_>);
    end_absent(last: Index, redriven: &BTreeSet<Index>) -> Vec<Index>;
    rest_is_due(reach: Startable<'_>);
    first_is_missing();
    rest_waits();
    #[inline]
    start() -> Option<Index>;
}

#[derive(Debug, Default)]
struct Queues {
    /// Jobs that back off.
    waiting: BTreeSet<Index>,
    /// Jobs that are read and wait behind others.
    behind: BTreeSet<Index>,
    /// Jobs to be read again.
    due: Queue,
    /// Jobs that are being read, in index order.
    reading: Vec<(Index, DuePlace)>,
    /// Jobs that are read and can be handed out.
    read: Queue,
    /// Jobs that the source did not have, due again after a pause or the next look.
    missing: BTreeMap<Index, DuePlace>,
    next_place: DuePlace,
}

impl Queues {
    /// Adds a job that failed. Returns false if it waits already.
    fn wait(&mut self, index: Index) -> bool {
        self.waiting.insert(index)
    }

    /// Removes a job that backs off. Returns false if it does not.
    fn forget(&mut self, index: Index) -> bool {
        self.waiting.remove(&index)
    }

    /// Removes a job that is not being read and was not read. Returns false if there is none.
    fn withdraw(&mut self, index: Index) -> bool {
        self.waiting.remove(&index)
            || self.missing.remove(&index).is_some()
            || self.due.remove(index).is_some()
            || self.due.above.remove(&index).is_some()
    }

    /// Makes a job due that backs off, is missing, or waited behind another one. Returns false if
    /// it does not wait.
    fn due(&mut self, index: Index, reach: Startable<'_>) -> bool {
        if let Some(place) = self.missing.remove(&index) {
            self.due.insert(index, place, reach);
            return true;
        }
        if !self.waiting.remove(&index) && !self.behind.remove(&index) {
            return false;
        }
        self.due.insert(index, self.next_place, reach);
        self.next_place += 1;
        true
    }

    /// Makes a job start that waited behind another one. Returns false if it did not.
    fn ready(&mut self, index: Index, reach: Startable<'_>) -> bool {
        let waits = self.behind.remove(&index);
        if waits {
            self.read.insert(index, self.next_place, reach);
            self.next_place += 1;
        }
        waits
    }

    /// Makes a read job wait behind another one. Returns false if it is not read, or may not start.
    fn read_waits(&mut self, index: Index) -> bool {
        self.read.remove(index).is_some() && self.behind.insert(index)
    }

    /// Makes the missing jobs due after a look at the source, which may have them now.
    fn seek_missing(&mut self, reach: Startable<'_>) {
        for (index, place) in take(&mut self.missing) {
            self.due.insert(index, place, reach);
        }
    }

    /// Follows a window that has moved or changed its width.
    #[inline]
    fn reach(&mut self, reach: Startable<'_>) {
        self.due.reach(reach);
        self.read.reach(reach);
    }

    /// Returns the next run to read again, of at most `most` jobs: the job that has been due the
    /// longest, and its upper neighbours.
    ///
    /// The run never begins with a lower neighbour: a source may return only the first job, and
    /// that has to be the one that has been due the longest.
    fn next_run(&self, most: u64) -> Option<RangeInclusive<Index>> {
        let first = self.due.first().filter(|_| most > 0)?;
        let mut end = first;
        while end - first + 1 < most && self.due.places.contains_key(&(end + 1)) {
            end += 1;
        }
        Some(first..=end)
    }

    /// Returns the run of this one job, if it has to be read again.
    fn run_of(&self, index: Index) -> Option<RangeInclusive<Index>> {
        self.due.places.contains_key(&index).then_some(index..=index)
    }

    fn begin_read(&mut self, run: &RangeInclusive<Index>) {
        let places = run.clone().filter_map(|index| self.due.remove(index).map(|place| (index, place)));
        self.reading = places.collect();
    }

    /// Takes in the first `count` jobs being read. The caller decides about the others:
    /// [`rest_is_due`](Self::rest_is_due), [`first_is_missing`](Self::first_is_missing) or
    /// [`rest_waits`](Self::rest_waits).
    fn end_read(&mut self, count: usize, reach: Startable<'_>) {
        for (index, place) in self.reading.drain(..count.min(self.reading.len())) {
            self.read.insert(index, place, reach);
        }
    }

    /// Takes in the jobs being read up to this one.
    fn end_part(&mut self, last: Index, reach: Startable<'_>) {
        self.end_read(self.reading_up_to(last), reach);
    }

    /// Removes the jobs being read up to this one, which are gone. Redriven ones become missing,
    /// and the others are returned.
    fn end_absent(&mut self, last: Index, redriven: &BTreeSet<Index>) -> Vec<Index> {
        let absent = self.reading.drain(..self.reading_up_to(last)).collect::<Vec<_>>();
        let (missing, gone): (Vec<_>, _) = absent.into_iter().partition(|(index, _)| redriven.contains(index));
        self.missing.extend(missing);
        gone.into_iter().map(|(index, _): (Index, DuePlace)| index).collect()
    }

    /// Returns the number of jobs being read up to this one.
    fn reading_up_to(&self, last: Index) -> usize {
        self.reading.partition_point(|(index, _)| *index <= last)
    }

    /// Makes the other jobs being read due again, in their places.
    fn rest_is_due(&mut self, reach: Startable<'_>) {
        for (index, place) in self.reading.drain(..) {
            self.due.insert(index, place, reach);
        }
    }

    /// Notes that the source does not have the first of the other jobs being read.
    fn first_is_missing(&mut self) {
        if !self.reading.is_empty() {
            self.missing.extend([self.reading.remove(0)]);
        }
    }

    /// Makes the other jobs being read back off again.
    fn rest_waits(&mut self) {
        self.waiting.extend(self.reading.drain(..).map(|(index, _)| index));
    }

    /// True if a read job may start.
    #[inline]
    fn can_start(&self) -> bool {
        !self.read.order.is_empty()
    }

    /// True if this job is read and may start.
    fn is_read(&self, index: Index) -> bool {
        self.read.places.contains_key(&index)
    }

    /// Returns the read job that starts next: the one that has been due the longest.
    #[inline]
    fn first_read(&self) -> Option<Index> {
        self.read.first()
    }

    #[inline]
    fn start(&mut self) -> Option<Index> {
        let index = self.first_read()?;
        self.read.remove(index);
        Some(index)
    }

    /// Hands out this job. Returns false if it is not read, or may not start.
    fn take(&mut self, index: Index) -> bool {
        self.read.remove(index).is_some()
    }

    /// Returns the number of read jobs, with those above the window.
    #[inline]
    fn len_read(&self) -> u64 {
        (self.read.order.len() + self.read.above.len()) as u64
    }

    /// True if a job is due that may start.
    #[inline]
    fn has_due(&self) -> bool {
        !self.due.order.is_empty()
    }
}

/// Jobs in the order in which they became due. Jobs above the window are kept apart.
#[derive(Debug, Default)]
struct Queue {
    order: BTreeMap<DuePlace, Index>,
    /// The places of jobs that may start.
    places: BTreeMap<Index, DuePlace>,
    /// The places of jobs above the window, which was narrowed since they started.
    above: BTreeMap<Index, DuePlace>,
}

impl Queue {
    fn insert(&mut self, index: Index, place: DuePlace, reach: Startable<'_>) {
        if reach.has(index) {
            self.order.insert(place, index);
            self.places.insert(index, place);
        } else {
            self.above.insert(index, place);
        }
    }

    fn remove(&mut self, index: Index) -> Option<DuePlace> {
        let place = self.places.remove(&index)?;
        self.order.remove(&place);
        Some(place)
    }

    #[inline]
    fn first(&self) -> Option<Index> {
        self.order.first_key_value().map(|(_, index)| *index)
    }

    #[inline]
    fn reach(&mut self, reach: Startable<'_>) {
        if self.places.last_key_value().is_some_and(|(index, _)| *index >= reach.closed_from) {
            for (index, place) in self.places.split_off(&reach.closed_from) {
                self.order.remove(&place);
                self.insert(index, place, reach);
            }
        }
        while let Some(first) = self.above.first_entry().filter(|first| *first.key() < reach.closed_from) {
            let (index, place) = first.remove_entry();
            self.insert(index, place, reach);
        }
    }
}
