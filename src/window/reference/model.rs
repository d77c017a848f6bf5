//! The true state of a window, in sets.

use crate::base::Index;
use crate::window::Limits;
use alloc::collections::{BTreeMap, BTreeSet};
use core::ops::RangeInclusive;

/// Why nothing new is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    Missing,
    Failed,
}

#[derive(Debug, Default)]
pub(super) struct Reference {
    pub(super) first: Index,
    pub(super) disk: Option<Index>,
    /// True if saves also contain the jobs done above the watermark.
    pub(super) keeps: bool,
    /// The jobs above the watermark that are done on disk.
    pub(super) disk_ahead: BTreeSet<Index>,
    /// The jobs that were done when this life began, and the gaps.
    pub(super) restored: BTreeSet<Index>,
    /// The indices above the watermark found to be gaps before any of them was a job.
    pub(super) gaps: BTreeSet<Index>,
    /// The indices that the source called gaps before they were done.
    pub(super) found: BTreeSet<Index>,
    /// The number of indices found to be gaps.
    pub(super) absent: u64,
    pub(super) head: Option<Index>,
    /// The last index that the gate lets through; `None` if it lets nothing through.
    pub(super) gate: Option<Index>,
    pub(super) limits: Limits,
    pub(super) stop_at: Option<Index>,
    /// The jobs that started in this life.
    pub(super) started: BTreeSet<Index>,
    pub(super) read: BTreeSet<Index>,
    pub(super) running: BTreeSet<Index>,
    pub(super) aside: BTreeSet<Index>,
    pub(super) done: BTreeSet<Index>,
    pub(super) waiting: BTreeSet<Index>,
    /// The jobs that are read and wait behind others.
    pub(super) behind: BTreeSet<Index>,
    /// The jobs that had failed when this life began, and those that were read behind others.
    pub(super) held: BTreeSet<Index>,
    /// The jobs that are done because they were parked.
    pub(super) parked: BTreeSet<Index>,
    /// The parked jobs that are to run once more, or that run.
    pub(super) redriven: BTreeSet<Index>,
    /// True if the record of a parked job has changed since the last save began.
    pub(super) changed: bool,
    pub(super) due: BTreeSet<Index>,
    /// The due jobs that are missing, until the next look or the end of their pause.
    pub(super) missing: BTreeSet<Index>,
    /// Why nothing new is read.
    pub(super) hold: Option<Hold>,
    /// The new job that is read alone, since it was missing at the last read.
    pub(super) alone: Option<Index>,
    pub(super) retries_read: BTreeSet<Index>,
    /// The place of each failed job in the order in which jobs became due.
    pub(super) places: BTreeMap<Index, u64>,
    pub(super) next_place: u64,
    /// True if the job that was handed out last was a retry.
    pub(super) retried: bool,
    pub(super) fetch: Option<RangeInclusive<Index>>,
    /// How many more jobs may be read, by their weight.
    pub(super) room: u64,
    pub(super) save_due: bool,
    /// True if a job finished since the last save began.
    pub(super) unwritten: bool,
    /// The save under way: its watermark, and what is done above it.
    pub(super) saving: Option<(Option<Index>, BTreeSet<Index>)>,
    /// The jobs in the save under way that are not on disk.
    pub(super) writing: BTreeSet<Index>,
    pub(super) announced: Index,
    /// The only job that may start.
    pub(super) only: Option<Index>,
    pub(super) paused: bool,
    pub(super) full: bool,
    /// True if too many jobs wait behind others.
    pub(super) crowded: bool,
    pub(super) stopping: bool,
    pub(super) abandoned_save: bool,
    pub(super) finished: bool,
}

impl Reference {
    pub(super) fn begin(first: Index, disk: Option<Index>, limits: Limits, stop_at: Option<Index>) -> Self {
        let announced = disk.map_or(first, |d| d + 1);
        let open = Self { gate: Some(Index::MAX), room: u64::MAX, ..Self::default() };
        Self { first, disk, limits, stop_at, announced, ..open }
    }

    pub(super) fn base(&self) -> Index {
        self.disk.map_or(self.first, |d| d + 1)
    }

    pub(super) fn next(&self) -> Index {
        self.undone_from(self.started.last().map_or(self.start(), |i| i + 1).max(self.base()))
    }

    /// Returns the lowest index from this one on that was neither done nor failed earlier.
    pub(super) fn undone_from(&self, index: Index) -> Index {
        (index..Index::MAX).find(|i| !self.restored.contains(i) && !self.held.contains(i)).unwrap_or(Index::MAX)
    }

    /// Returns the lowest index that was not read.
    pub(super) fn unread(&self) -> Index {
        let next = self.next();
        self.undone_from(self.read.last().map_or(next, |i| i + 1).max(next))
    }

    /// True if a job is held, and undone jobs below it have not started.
    pub(super) fn is_held(&self, index: Index) -> bool {
        self.held.contains(&index) && index >= self.next()
    }

    /// Returns the indices done above the lowest undone one.
    pub(super) fn ahead(&self) -> BTreeSet<Index> {
        self.done.range(self.lowest_undone()..).copied().collect()
    }

    /// Reads nothing new for now, since this job cannot be read. A done job is not needed.
    pub(super) fn hold_new(&mut self, wanted: Index, hold: Hold) {
        if !self.done.contains(&wanted) {
            (self.hold, self.alone) = (Some(hold), (hold == Hold::Missing).then_some(wanted));
        }
    }

    pub(super) fn needs_save(&self) -> bool {
        self.lowest_undone() > self.base() || self.changed || self.keeps && self.unwritten
    }

    /// Returns the first index of this life: the lowest that it started, or the next one.
    pub(super) fn start(&self) -> Index {
        self.started.first().copied().unwrap_or_else(|| self.base())
    }

    pub(super) fn lowest_undone(&self) -> Index {
        (self.base()..Index::MAX).find(|i| !self.done.contains(i)).unwrap_or(Index::MAX)
    }

    pub(super) fn may_start(&self, index: Index) -> bool {
        self.head.is_some_and(|head| index <= head)
            && self.gate.is_some_and(|gate| index <= gate)
            && self.stop_at.is_none_or(|last| index <= last)
            && self.is_in_window(index)
    }

    pub(super) fn expected_run(&self) -> Option<(Index, bool)> {
        if self.paused
            || self.full
            || self.stopping
            || self.finished
            || self.running.len() >= self.limits.max_processing
        {
            return None;
        }
        if let Some(only) = self.only {
            let starts = self.running.is_empty() && self.retries_read.contains(&only) && self.reaches(only);
            return starts.then_some((only, true));
        }
        let new = Some(self.next()).filter(|next| self.read.contains(next) && self.may_start(*next));
        let again = self.first_of(&self.retries_read);
        match (again, new) {
            (Some(_), Some(new)) if self.retried => Some((new, false)),
            (Some(again), _) => Some((again, true)),
            (None, new) => new.map(|new| (new, false)),
        }
    }

    /// Returns the first of these jobs to become due that may start.
    pub(super) fn first_of(&self, failed: &BTreeSet<Index>) -> Option<Index> {
        failed.iter().copied().filter(|index| self.reaches(*index)).min_by_key(|index| self.places[index])
    }

    pub(super) fn is_in_window(&self, index: Index) -> bool {
        index.saturating_sub(self.base()) < self.limits.max_search_ahead
    }

    /// True if the window lets a failed job with this index start.
    pub(super) fn reaches(&self, index: Index) -> bool {
        let ends_below = self.stop_at.is_some_and(|last| index > last);
        self.is_in_window(index) && !self.is_held(index) && !ends_below || self.redriven.contains(&index)
    }

    /// True if no read job can start, whatever else holds it.
    pub(super) fn starved(&self) -> bool {
        let next = self.next();
        self.first_of(&self.retries_read).is_none() && !(self.read.contains(&next) && self.may_start(next))
    }

    pub(super) fn drained(&self) -> bool {
        let reached = self.stop_at.is_some_and(|last| self.base() > last) && self.redriven.is_empty();
        (self.stopping || reached)
            && self.running.is_empty()
            && !self.save_due
            && (self.abandoned_save || !self.needs_save())
    }
}
