//! The pure core: which index may be read, run, saved and announced next.
//!
//! No I/O, no clock, no threads, no randomness. Events go in through `handle_*`, starts come out of [`Window::poll_run`] and
//! everything else out of [`Window::poll`]. After each event, poll until `None`; every event costs O(1) amortised whatever
//! the window's width (that of a failed job O(log of the jobs that failed and wait)), and a job that finished above the
//! watermark costs one bit.
//!
//! Where what finished above the watermark is saved too ([`Window::keep_done_ahead`]), a save says what is new since the last
//! one, and a new life is told of it all by [`Window::restore`] and hands out none of it.
//!
//! ```text
//!   first            saved         done          next           read       bound
//!     │  processed     │  not yet    │  in flight   │  read, not  │  to be   │
//!     │  and saved     │  saved      │  or finished │  started    │  read    │
//!     └────────────────┴─────────────┴──────────────┴─────────────┴──────────┘
//!                      └ watermark + 1                bound ≤ saved + max_search_ahead
//! ```
//!
//! All five are "one past the last", so that nothing is ever subtracted from 0 or added to [`Index::MAX`].
//! The same promises written naively, with sets, are in `window/reference.rs`; a property test holds the two together.

use crate::base::index::Index;
use core::ops::RangeInclusive;

mod ahead;
mod aside;
mod bits;
mod fetching;
mod queries;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod reference;
mod retries;
mod revoked;

use self::ahead::DoneAhead;
pub use self::ahead::SaveAhead;
use self::retries::Retries;

/// No job beyond this is ever read: [`Index::MAX`] itself is never a job.
const LAST_JOB: Index = Index::MAX - 1;

/// At least this many jobs are read ahead, so that a source that is cheap by the run is read by the run.
const MIN_READ_AHEAD: u64 = 64;

/// How much may be in flight, and how far above the watermark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Jobs in flight at most; at least 1.
    pub max_processing: usize,
    /// No job above watermark + this is started; at least 1. [`u64::MAX`]: no limit.
    pub max_search_ahead: u64,
}

impl Limits {
    /// Jobs that are read and not yet started at most.
    pub(crate) fn read_ahead(self) -> u64 {
        (self.max_processing as u64).saturating_mul(2).max(MIN_READ_AHEAD)
    }
}

/// What the window wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Read these jobs, in order; answer with [`Window::handle_fetched`], [`Window::handle_missing`] or
    /// [`Window::handle_unreadable`]. One at a time.
    Fetch(RangeInclusive<Index>),
    /// Something finished and can be saved: when it is written, ask [`Window::handle_saving`] for what to write, and answer
    /// with [`Window::handle_saved`] or [`Window::handle_save_abandoned`]. One at a time.
    Save,
    /// These indices are processed and saved. Gap-free and ascending.
    Announce(RangeInclusive<Index>),
    /// Nothing is in flight, everything that finished is saved, nothing more will start. Once, and last.
    Finish,
}

/// What is to be written, as of now.
#[derive(Debug)]
#[non_exhaustive]
pub struct Save<'a> {
    /// Everything up to and including this index is processed; `None`: not even the first one.
    pub last_processed: Option<Index>,
    /// The lowest index that is not done.
    pub next: Index,
    /// What is done above it, where that is kept.
    pub ahead: SaveAhead<'a>,
}

/// A job to hand to the worker that asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Which one.
    pub index: Index,
    /// Whether it was handed out before, and failed.
    pub retry: bool,
}

/// The state of one consumer's stream; see the [module](self).
#[derive(Debug)]
pub struct Window {
    limits: Limits,
    head: Option<Index>,
    /// One past the last index that the gate lets through.
    gate: Index,
    stop_at: Option<Index>,
    /// Whether the watermark exists: something was loaded or saved.
    any_saved: bool,
    saved: Index,
    saving: SaveState,
    done: Index,
    next: Index,
    read: Index,
    /// Read, not started, and not done in an earlier life.
    unstarted: u64,
    ahead: DoneAhead,
    in_flight: usize,
    retries: Retries,
    /// The last job that was handed out was a retry.
    retried: bool,
    /// The source did not have (or give) index `read`: nothing new is read until the next look.
    new_held: bool,
    fetch: Option<Fetch>,
    /// The last fetch was for retries.
    fetched_again: bool,
    /// Jobs that may be read by their weight.
    room: u64,
    announce: Option<RangeInclusive<Index>>,
    paused: bool,
    /// Too much waits for a save.
    full: bool,
    stopping: bool,
    /// A save was given up for good.
    abandoned_save: bool,
    ended: bool,
}

/// Where the save is that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SaveState {
    No,
    Due,
    /// Everything below this index is being written.
    Writing(Index),
}

/// The fetch that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fetch {
    New,
    Again,
}

impl Window {
    /// A stream of which nothing is processed yet, to begin with the index `first`.
    #[must_use]
    pub fn begin(first: Index, limits: Limits) -> Self {
        Self {
            limits,
            head: None,
            gate: Index::MAX,
            stop_at: None,
            any_saved: false,
            saved: first,
            saving: SaveState::No,
            done: first,
            next: first,
            read: first,
            unstarted: 0,
            ahead: DoneAhead::default(),
            in_flight: 0,
            retries: Retries::default(),
            retried: false,
            // Nothing is known of the source before the first look.
            new_held: true,
            fetch: None,
            fetched_again: false,
            room: u64::MAX,
            announce: None,
            paused: false,
            full: false,
            stopping: false,
            abandoned_save: false,
            ended: false,
        }
    }

    /// A stream of which everything up to and including `last_processed` (below [`Index::MAX`]) is processed.
    #[must_use]
    pub fn resume(last_processed: Index, limits: Limits) -> Self {
        Self { any_saved: true, ..Self::begin(last_processed.saturating_add(1), limits) }
    }

    /// What finishes above the watermark is to be saved too.
    pub fn keep_done_ahead(&mut self) {
        self.ahead.keep();
    }

    /// These were done in an earlier life, though some index below them was not. To be said before anything else happens.
    pub fn restore(&mut self, done: impl IntoIterator<Item = RangeInclusive<Index>>) {
        for run in done {
            self.ahead.restore(*run.start().max(&self.done)..=*run.end().min(&LAST_JOB));
        }
        // First what starts next: its bits are forgotten once all below them are done.
        self.pass_restored();
        self.done = self.ahead.advance(self.done);
    }

    /// Ends by itself once everything up to and including this index is processed and saved, and nothing above it runs. Of
    /// several such indices the lowest holds.
    pub fn stop_at(&mut self, index: Index) {
        self.stop_at = Some(self.stop_at.map_or(index, |earlier| earlier.min(index)));
    }

    /// New limits. Lowering one takes nothing back that is in flight.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
        self.retries.reach(self.closed_from());
    }

    /// While paused nothing starts, neither a new job nor a retry.
    pub fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// While so much waits for a save that it is full, nothing starts either.
    pub fn set_full(&mut self, full: bool) {
        self.full = full;
    }

    /// The source was looked at: this is its head, and what was missing may be there now.
    pub fn handle_head(&mut self, head: Option<Index>) {
        self.head = head.map(|head| head.min(LAST_JOB));
        self.new_held = false;
        self.retries.seek_missing(self.closed_from());
    }

    /// A job that is in flight succeeded. False, and nothing changes, when it cannot be in flight.
    #[inline]
    pub fn handle_done(&mut self, index: Index) -> bool {
        if !self.may_be_in_flight(index) {
            return false;
        }
        self.in_flight -= 1;
        self.done = self.ahead.insert(index, self.done);
        true
    }

    /// A job that is in flight failed; it is no longer in flight, and stands in the way of the watermark. False, and nothing
    /// changes, when it cannot be in flight.
    pub fn handle_failed(&mut self, index: Index) -> bool {
        if !self.may_be_in_flight(index) {
            return false;
        }
        self.in_flight -= 1;
        self.retries.wait(index)
    }

    /// The back-off of a failed job is over. False, and nothing changes, when it does not wait for one. Of two such jobs the
    /// one that is named here first is read and handed out first.
    pub fn handle_due(&mut self, index: Index) -> bool {
        self.retries.due(index, self.closed_from())
    }

    /// A save is about to be written, or written again: what is true now. `None` when no save was asked for.
    pub fn handle_saving(&mut self) -> Option<Save<'_>> {
        if self.saving == SaveState::No {
            return None;
        }
        self.saving = SaveState::Writing(self.done);
        let last_processed = (self.any_saved || self.done > self.saved).then(|| self.done - 1);
        Some(Save { last_processed, next: self.done, ahead: self.ahead.begin_save(self.done) })
    }

    /// What was being written is on the disk.
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
        self.retries.reach(self.closed_from());
    }

    /// The save under way, and any later one, is given up.
    pub fn handle_save_abandoned(&mut self) {
        self.saving = SaveState::No;
        self.abandoned_save = true;
        self.stopping = true;
    }

    /// From now on nothing starts; what is in flight finishes and is saved, and retries are not awaited.
    pub fn handle_stop(&mut self) {
        self.stopping = true;
    }

    /// Nothing that is in flight is awaited any longer, nor counted.
    pub fn handle_abandoned(&mut self) {
        self.stopping = true;
        self.in_flight = 0;
    }

    /// What is to be done next, other than running jobs. Poll until `None`.
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

    /// The job for a worker that asks for one. Apart from [`poll`](Self::poll), so that a job counts as in flight only once
    /// a worker has it, and pausing or lowering a limit never has to take one back.
    ///
    /// Retries and new jobs take turns, so neither waits for the end of the other. No retry goes first for good, be it the
    /// one that the watermark waits for: with a back-off of zero it would always be due.
    #[inline]
    pub fn poll_run(&mut self) -> Option<Run> {
        if !self.has_slot() {
            return None;
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

    /// Whether [`poll_run`](Self::poll_run) would hand out a job.
    #[inline]
    #[must_use]
    pub fn can_run(&self) -> bool {
        self.has_slot() && (self.retries.can_start() || self.can_start_new())
    }

    /// Whether a job was read that may start for the first time.
    #[inline]
    fn can_start_new(&self) -> bool {
        self.next < self.read.min(self.bound())
    }

    #[inline]
    fn has_slot(&self) -> bool {
        !self.paused && !self.full && !self.stopping && !self.ended && self.in_flight < self.limits.max_processing
    }

    #[inline]
    fn may_be_in_flight(&self, index: Index) -> bool {
        self.in_flight > 0 && (self.done..self.next).contains(&index) && !self.ahead.contains(index)
    }

    /// Neither what starts next nor what is read next is done already.
    #[inline]
    fn pass_restored(&mut self) {
        self.next = self.ahead.pass(self.next);
        self.read = self.ahead.next_undone(self.read.max(self.next));
    }

    /// Whether something finished that no save under way, or done, has.
    #[inline]
    fn needs_save(&self) -> bool {
        self.done > self.saved || self.ahead.needs_save()
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
        self.closed_from().min(last + 1).min(self.gate)
    }

    #[inline]
    fn is_drained(&self) -> bool {
        let reached = self.stop_at.is_some_and(|last| self.saved > last);
        (self.stopping || reached)
            && self.in_flight == 0
            && self.saving == SaveState::No
            && (!self.needs_save() || self.abandoned_save)
    }
}
