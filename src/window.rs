//! The pure core of a consumer: decides which index is read, run, saved and announced next.
//!
//! The window has no I/O, clock, thread or randomness. The caller reports events with `handle_*`,
//! takes jobs to run from [`Window::poll_run`], and takes everything else to do from
//! [`Window::poll`]. After each event, call `poll` until it returns `None`.
//!
//! With [`Window::keep_done_ahead`], a save also contains the jobs done above the watermark, and
//! says which of them are new. After a restart, [`Window::restore`] tells the window of these jobs,
//! and it hands none of them out again.
//!
//! The page [`design`](crate::design#the-window) shows the bounds of the window and the cost of
//! each event. Each bound is one past the last index of its range, so that nothing is ever
//! subtracted from 0 or added to [`Index::MAX`]. A property test compares the window with a simple
//! model of the same promises, made of sets, in `window/reference.rs`.

use crate::base::Index;
use alloc::collections::BTreeSet;
use core::ops::RangeInclusive;

/// Returns the reach of the failed jobs; a macro, to borrow only this field beside the retries.
macro_rules! reach {
    ($window:ident) => {
        $crate::window::retries::Startable { closed_from: $window.tried_again_below(), redriven: &$window.redriven }
    };
}

mod ahead;
pub(crate) mod batches;
mod behind;
mod bits;
mod exclusive;
mod fetching;
mod found;
mod gaps;
mod in_a_row;
mod parked;
mod queries;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod reference;
mod retries;
mod revoked;
mod settings;

pub use self::ahead::AheadContent;
use self::ahead::AheadJobs;
use self::found::FoundGaps;
use self::retries::Retries;

/// The last index that can be a job.
const LAST_JOB: Index = Index::MAX - 1;

/// The least read-ahead (prefetch) in jobs, so that a source may be read in runs, which is cheaper.
const MIN_READ_AHEAD: u64 = 64;

/// The limits on the jobs in flight and on the width of the window above the watermark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The highest number of jobs in flight; at least 1.
    pub max_processing: usize,
    /// The width of the window: no job above the watermark plus this number starts. At least 1;
    /// [`u64::MAX`] means no limit.
    pub max_search_ahead: u64,
}

impl Limits {
    /// Returns the read-ahead (prefetch): the most jobs that are read and not yet started.
    pub(crate) fn read_ahead(self) -> u64 {
        (self.max_processing as u64).saturating_mul(2).max(MIN_READ_AHEAD)
    }
}

/// The next thing that the caller must do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Read these jobs, in order. Answer with [`Window::handle_fetched`],
    /// [`Window::handle_missing`] or [`Window::handle_unreadable`]. If there are gaps, as many jobs
    /// may lie further apart, up to [`Window::fetch_through`]: answer with [`Window::handle_part`]
    /// and [`Window::handle_gap`] first. The window asks for one fetch at a time.
    Fetch(RangeInclusive<Index>),
    /// Save the progress, since a job has finished. When the write begins, call
    /// [`Window::handle_saving`] for its content. Answer with [`Window::handle_saved`] or
    /// [`Window::handle_save_abandoned`]. The window asks for one save at a time.
    Save,
    /// Announce that these indices are processed and saved. Announcements ascend and leave no gap.
    Announce(RangeInclusive<Index>),
    /// End: nothing is in flight, everything done is saved, and nothing more starts. Comes once,
    /// last.
    Finish,
}

/// The content of a save at this moment.
#[derive(Debug)]
#[non_exhaustive]
pub struct SaveContent<'a> {
    /// The watermark: everything up to and including this index is processed. `None` if not even
    /// the first index is.
    pub last_processed: Option<Index>,
    /// The lowest index that is not done.
    pub next: Index,
    /// The indices that are done above `next`, if the progress keeps them.
    pub ahead: AheadContent<'a>,
}

/// A job for the worker that asked for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The index of the job.
    pub index: Index,
    /// True if the job failed before.
    pub retry: bool,
}

/// The state of one consumer's stream; see the [module](self).
#[derive(Debug, Default)]
pub struct Window {
    limits: Limits,
    head: Option<Index>,
    /// One past the last index that the gate lets through.
    gate: Index,
    stop_at: Option<Index>,
    /// True if the watermark exists: it was loaded, or something was saved.
    any_saved: bool,
    saved: Index,
    saving: SaveState,
    done: Index,
    next: Index,
    read: Index,
    /// The number of new jobs that are read and have not started. Jobs done earlier do not count.
    unstarted: u64,
    ahead: AheadJobs,
    in_flight: usize,
    retries: Retries,
    /// The failed jobs of an earlier life, and the jobs behind others, that `next` has not passed.
    held: BTreeSet<Index>,
    /// True if too many jobs wait behind others.
    crowded: bool,
    /// True if the job that was handed out last was a retry.
    retried: bool,
    /// Why nothing new is read for now.
    hold: Hold,
    /// The index that the source did not have at the last read.
    missing: Option<Index>,
    fetch: Option<Fetch>,
    /// True if the last fetch was for retries.
    fetched_again: bool,
    /// How many more jobs may be read, by their weight.
    room: u64,
    /// The read-ahead that several reads at once need.
    least_read_ahead: u64,
    announce: Option<RangeInclusive<Index>>,
    paused: bool,
    /// True if too much waits for a save.
    full: bool,
    stopping: bool,
    /// The only job that may start.
    only: Option<Index>,
    /// The parked jobs that are to run once more, or that run.
    redriven: BTreeSet<Index>,
    /// True if the record of a parked job has changed since the last save began.
    changed: bool,
    /// True if the source said that there are gaps.
    gaps: bool,
    /// The number of indices found to be gaps.
    absent: u64,
    /// The gaps found above the watermark.
    found: FoundGaps,
    /// True once saving was given up for good.
    abandoned_save: bool,
    ended: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SaveState {
    #[default]
    No,
    Due,
    /// Being written: everything below this index.
    Writing(Index),
}

/// Why nothing new is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Hold {
    #[default]
    No,
    /// The source did not have the index `read`. A look at the source ends the pause early.
    Missing,
    /// The source failed at the index `read`.
    Failed,
}

/// The fetch under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fetch {
    New,
    Again,
}

impl Window {
    /// Creates the window of a stream that begins at the index `first`, with nothing processed.
    pub fn begin(first: Index, limits: Limits) -> Self {
        let (saved, done, next, read) = (first, first, first, first);
        Self { limits, saved, done, next, read, gate: Index::MAX, room: u64::MAX, ..Self::default() }
    }

    /// Creates the window of a stream that is processed up to and including `last_processed`, which
    /// is below [`Index::MAX`].
    pub fn resume(last_processed: Index, limits: Limits) -> Self {
        Self { any_saved: true, ..Self::begin(last_processed.saturating_add(1), limits) }
    }

    /// Reports the head after a look at the source. Missing jobs may be there now.
    pub fn handle_head(&mut self, head: Option<Index>) {
        self.head = head.map(|head| head.min(LAST_JOB));
        if self.hold == Hold::Missing {
            self.hold = Hold::No;
        }
        self.retries.seek_missing(reach!(self));
    }

    /// Reports that a job in flight succeeded. Changes nothing and returns false if it cannot be in
    /// flight.
    // Without inlining, the call costs a short job a thirtieth of its time.
    #[inline(always)]
    pub fn handle_done(&mut self, index: Index) -> bool {
        if !self.may_be_in_flight(index) {
            return self.end_redriven(index);
        }
        self.in_flight -= 1;
        self.done = self.ahead.insert(index, self.done);
        true
    }

    /// Reports that a job in flight failed. It holds the watermark back, unless it is
    /// [redriven](Self::handle_redriven). Changes nothing and returns false if it cannot be in
    /// flight.
    pub fn handle_failed(&mut self, index: Index) -> bool {
        if !self.may_be_in_flight(index) {
            return self.end_redriven(index);
        }
        self.in_flight -= 1;
        self.retries.wait(index)
    }

    /// Reports that the back-off of a failed job is over, or that a
    /// [redriven](Self::handle_redriven) job may run. Jobs are read and handed out again in the
    /// order of these calls; a missing one keeps its place. Changes nothing and returns false if
    /// the job does not wait.
    pub fn handle_due(&mut self, index: Index) -> bool {
        self.retries.due(index, reach!(self))
    }

    /// Reports that a save is about to be written, or written again. Returns its content as it is
    /// now, or `None` if no save was requested.
    pub fn handle_saving(&mut self) -> Option<SaveContent<'_>> {
        if self.saving == SaveState::No {
            return None;
        }
        self.saving = SaveState::Writing(self.done);
        self.changed = false;
        let last_processed = (self.any_saved || self.done > self.saved).then(|| self.done - 1);
        Some(SaveContent { last_processed, next: self.done, ahead: self.ahead.begin_save(self.done) })
    }

    /// Reports that the save under way is on disk.
    pub fn handle_saved(&mut self) {
        let SaveState::Writing(end) = self.saving else {
            debug_assert!(false, "no save is being written");
            return;
        };
        self.saving = SaveState::No;
        self.ahead.end_save();
        if end == self.saved {
            return;
        }
        let first = self.announce.take().map_or(self.saved, |run| *run.start());
        self.announce = Some(first..=end - 1);
        self.saved = end;
        self.any_saved = true;
        self.retries.reach(reach!(self));
    }

    /// Reports that the save under way was given up. The window requests no other save, and stops.
    pub fn handle_save_abandoned(&mut self) {
        self.saving = SaveState::No;
        self.abandoned_save = true;
        self.stopping = true;
    }

    /// Stops the window: nothing more starts. Jobs in flight finish and are saved; retries are not
    /// awaited.
    pub fn handle_stop(&mut self) {
        self.stopping = true;
    }

    /// Stops the window without the jobs in flight, which are no longer awaited or counted.
    pub fn handle_abandoned(&mut self) {
        self.stopping = true;
        self.in_flight = 0;
    }

    /// Returns the next thing to do, other than running a job. Poll until `None`.
    #[inline]
    pub fn poll(&mut self) -> Option<Action> {
        if let Some(run) = self.announce.take() {
            return Some(Action::Announce(run));
        }
        if self.needs_save() && self.saving == SaveState::No && !self.abandoned_save {
            self.saving = SaveState::Due;
            return Some(Action::Save);
        }
        if let Some(run) = self.poll_fetch() {
            return Some(Action::Fetch(run));
        }
        if self.is_drained() && !self.ended {
            self.ended = true;
            return Some(Action::Finish);
        }
        None
    }

    /// Returns a job for the worker that asks. Not part of [`poll`](Self::poll), so that a job is
    /// in flight only once a worker has it, and a pause or a lower limit never takes one back.
    ///
    /// Retries and new jobs take turns, so neither waits for the end of the other. Not even the
    /// retry that the watermark waits for always goes first: with a back-off of zero it would
    /// always be due, and nothing else would run.
    // Without inlining, the call costs a short job a thirtieth of its time.
    #[inline(always)]
    pub fn poll_run(&mut self) -> Option<Run> {
        if !self.has_slot() {
            return None;
        }
        if self.only.is_some() {
            return self.start_alone();
        }
        let new = self.can_start_new();
        let again = if new && self.retried { None } else { self.retries.start() };
        let run = match again {
            Some(index) => Run { index, retry: true },
            None if new => {
                let index = self.next;
                self.next += 1;
                self.unstarted -= 1;
                self.pass_restored();
                Run { index, retry: false }
            }
            None => return None,
        };
        self.retried = run.retry;
        self.in_flight += 1;
        Some(run)
    }

    /// True if [`poll_run`](Self::poll_run) would return a job.
    #[inline]
    pub fn can_run(&self) -> bool {
        self.has_slot()
            && if self.only.is_some() {
                self.can_start_alone()
            } else {
                self.retries.can_start() || self.can_start_new()
            }
    }

    /// True if a new job is read and may start.
    #[inline]
    fn can_start_new(&self) -> bool {
        self.next < self.read.min(self.bound())
    }

    #[inline]
    fn has_slot(&self) -> bool {
        self.starts_jobs() && self.in_flight < self.limits.max_processing
    }

    #[inline]
    fn starts_jobs(&self) -> bool {
        !self.paused && !self.full && !self.stopping && !self.ended
    }

    #[inline]
    fn may_be_in_flight(&self, index: Index) -> bool {
        self.in_flight > 0 && (self.done..self.next).contains(&index) && !self.ahead.contains(index)
    }

    /// Moves `next` and `read` past the jobs that were done, or had failed, in an earlier life, and
    /// past those behind others.
    #[inline]
    fn pass_restored(&mut self) {
        self.next = self.ahead.pass(self.next);
        if !self.held.is_empty() {
            return self.pass_held();
        }
        self.read = self.ahead.next_undone(self.read.max(self.next));
    }

    /// True if a job is done that is in no save yet, or if the record of a parked job has changed.
    #[inline]
    fn needs_save(&self) -> bool {
        self.done > self.saved || self.changed || self.ahead.needs_save()
    }

    /// One past the highest index of the window.
    #[inline]
    fn closed_from(&self) -> Index {
        self.saved.saturating_add(self.limits.max_search_ahead)
    }

    /// One past the highest index that may start for the first time.
    #[inline]
    fn bound(&self) -> Index {
        let Some(head) = self.head else { return 0 };
        let last = head.min(self.stop_at.unwrap_or(LAST_JOB)).min(LAST_JOB);
        self.starts_below().min(last + 1).min(self.gate)
    }

    #[inline]
    fn is_drained(&self) -> bool {
        let reached = self.stop_at.is_some_and(|last| self.saved > last) && self.redriven.is_empty();
        (self.stopping || reached)
            && self.in_flight == 0
            && self.saving == SaveState::No
            && (!self.needs_save() || self.abandoned_save)
    }
}
