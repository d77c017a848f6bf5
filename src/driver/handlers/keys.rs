//! Order by key: what becomes of jobs as they are read, and who starts once a key is free.
//!
//! A job behind another one is decided on as it is read, not when a worker asks. So the window
//! knows at each moment how many jobs can start.

use crate::base::{Index, time::Now};
use crate::driver::core::Core;
use crate::driver::keys::{Keys, MOST_BEHIND, Place};
use crate::driver::outbox::Ctx;
use crate::driver::prefetch::{Kept, Sorted};
use crate::reader::{Key, Payloads, Weights};
use std::ops::RangeInclusive;
use std::time::Instant;

impl Core {
    /// Orders jobs by key from now on, before anything was read.
    pub(crate) fn order_by_key(&mut self, until_saved: bool) {
        self.running.keys = Some(Keys::new(until_saved));
        self.out.passed = Some(Vec::new());
    }

    /// Returns what becomes of a new job that was read: it is kept as one that may start, or waits
    /// behind another one, or is not needed, since an earlier life has done it.
    pub(super) fn keep(
        &mut self,
        index: Index,
        weight: usize,
        key: Option<Key>,
        sorted: &Sorted,
        now: Instant,
    ) -> Kept {
        if self.window.is_done(index) {
            return Kept::No;
        }
        let Some(keys) = &mut self.running.keys else { return Kept::New };
        let place = keys.enter(index, key);
        // It failed in an earlier life, and its back-off begins only now.
        let waits = keys.unread.remove(&index);
        if place == Place::Free && !waits {
            return Kept::New;
        }
        if waits {
            self.window.handle_failed_earlier(index);
            if place == Place::Free {
                self.failed_jobs.failures.arm(index, now);
                self.out.reader = true;
            }
            return Kept::No;
        }
        self.window.handle_behind(index);
        let has_room = self.reading.prefetch.has_room_behind(sorted.behind().saturating_add(weight));
        if has_room { Kept::Behind { index, weight } } else { Kept::No }
    }

    /// Takes in a job that was read again, the first of these. Returns true if it is a redriven one
    /// that has to wait behind the job that has its key.
    pub(super) fn take_in_again_one(
        &mut self,
        index: Index,
        weight: usize,
        key: Option<Key>,
        jobs: &mut dyn Payloads,
    ) -> bool {
        let is_behind = self.is_behind_again(index, key);
        let prefetch = &mut self.reading.prefetch;
        match is_behind {
            false => prefetch.add_again(index, jobs, weight),
            true if prefetch.has_room_behind(weight) => prefetch.add_behind(index, jobs, weight),
            true => jobs.pass(1),
        }
        self.failed_jobs.failures.was_read(index);
        is_behind
    }

    fn is_behind_again(&mut self, index: Index, key: Option<Key>) -> bool {
        let Some(keys) = &mut self.running.keys else { return false };
        // Beside a job that runs alone nothing else does, and what it waits for could not start.
        let waits = self.window.is_redriven(index) && self.failed_jobs.quarantine.alone() != Some(index);
        waits && keys.enter(index, key) == Place::Behind
    }

    /// Lets redriven jobs wait that were read while another job has their key.
    pub(super) fn wait_behind(&mut self, behind: Vec<Index>) {
        for index in behind {
            let waits = self.window.handle_behind_again(index);
            debug_assert!(waits, "job {index} was read again");
        }
        self.fit_behind();
    }

    /// Notes that a job succeeded: its key is free now, or once a save with its effects is on disk.
    #[cold]
    pub(super) fn done_by_key(&mut self, index: Index) {
        if self.running.keys.as_mut().is_some_and(|keys| keys.done(index)) {
            self.free_key(index);
        }
    }

    /// Frees the keys of jobs that were passed, or whose effects are on disk.
    #[cold]
    pub(in crate::driver) fn free_keys(&mut self) {
        let passed = self.out.passed.as_mut().map(std::mem::take).unwrap_or_default();
        passed.into_iter().for_each(|index| self.free_key(index));
    }

    /// Lets the next job of the key start that this one had.
    fn free_key(&mut self, index: Index) {
        let Some(keys) = &mut self.running.keys else { return };
        if let Some(next) = keys.leave(index) {
            if self.reading.prefetch.no_longer_behind(next) {
                let waited = self.window.handle_ready(next);
                debug_assert!(waited, "job {next} waited behind {index}");
            } else {
                // It is read again, or waits for the rest of its back-off.
                let now = self.clock.now();
                self.failed_jobs.failures.wait_for_value(next, now);
                self.failed_jobs.failures.arm(next, now);
                self.out.reader = true;
            }
        }
        self.fit_behind();
    }

    /// Reads nothing new while too many jobs wait behind others.
    fn fit_behind(&mut self) {
        if let Some(keys) = &self.running.keys {
            self.window.set_crowded(keys.behind() >= MOST_BEHIND);
        }
    }

    /// Forgets the jobs in a gap that failed in an earlier life, and whose keys were never known.
    pub(super) fn forget_unread(&mut self, gap: &RangeInclusive<Index>, now: &Now) {
        let Some(keys) = &mut self.running.keys else { return };
        let unread = keys.unread.range(gap.clone()).copied();
        let gone: Vec<Index> = unread.filter(|index| self.window.is_done(*index)).collect();
        for index in gone {
            keys.unread.remove(&index);
            self.failed_jobs
                .gone(index, &mut Ctx { window: &mut self.window, ending: &mut self.ending, out: &mut self.out, now });
        }
    }
}

/// The weights and keys of jobs, one by one. Without an order by key no job has one.
pub(super) fn with_keys(weights: Weights, keys: Vec<Option<Key>>) -> impl Iterator<Item = (usize, Option<Key>)> {
    weights.zip(keys.into_iter().chain(std::iter::repeat(None)))
}
