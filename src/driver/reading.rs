//! What is known about the source, and the jobs read from it.

use super::calls::{Calls, InVain};
use super::{failed_jobs::Unread, prefetch::Prefetch};
use crate::base::{BoxError, Index, guard::drop_guarded, sync::Arc, time::Now};
use crate::reader::{Ask, Fetched, Payloads, ReadRuns, Reads};
use crate::threads::workers::Workers;
use crate::window::Window;
use std::time::Instant;

/// Values of the user that have to be dropped without the lock.
pub(crate) struct Surplus {
    pub(super) jobs: Box<dyn Payloads>,
    pub(super) error: Option<BoxError>,
    /// Failures that were told.
    pub(super) failures: Vec<(Index, Fetched)>,
}

impl Surplus {
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.len() == 0 && self.error.is_none() && self.failures.is_empty()
    }

    pub(crate) fn drop_guarded(self) {
        drop(self.jobs);
        drop_guarded(self.error);
        self.failures.into_iter().for_each(drop_guarded);
    }
}

#[derive(Default)]
pub(crate) struct Reading {
    /// The fetch that is waiting or under way.
    pub(super) fetch: Option<Ask>,
    /// True once the reader or a worker has taken the fetch.
    pub(super) taken: bool,
    /// True if the reader has to note that a job which should exist was not read.
    pub(super) note: bool,
    pub(crate) calls: Calls,
    /// The fruitless asks for the head, and the fruitless reads of the next new job.
    pub(super) looks: InVain,
    pub(super) news: InVain,
    /// When to ask for the head again after a failure.
    pub(super) look_again: Option<Instant>,
    /// When to read new jobs again after one could not be read.
    pub(super) read_again: Option<Instant>,
    /// True if the last read took less time than waking the reader would.
    pub(crate) quick: bool,
    /// True if the reader has nothing to read and only supervises the workers.
    pub(crate) supervises: bool,
    /// When the read under way began.
    pub(crate) call: Option<Instant>,
    /// When the reader began to ask for the head, or to wait while a worker reads.
    pub(crate) look: Option<Instant>,
    /// True if a look is delayed until all known jobs are read.
    pub(super) look_waits: bool,
    /// True once the head was seen.
    pub(crate) seen: bool,
    pub(crate) look_error: Option<String>,
    /// Why the source has no job above its head yet, in its own words.
    pub(crate) waits_for: Option<String>,
    /// Whether the next look decides where to end.
    pub(crate) bounding: Bounding,
    /// Why the first new job could not be read, if that was tried.
    pub(crate) unread: Option<Unread>,
    /// The jobs that are read and not handed out.
    pub(crate) prefetch: Prefetch,
    /// The source, for workers that read.
    pub(crate) runs: Option<Arc<dyn ReadRuns>>,
    /// Several reads at once, if that is set.
    pub(crate) reads: Option<Arc<Reads>>,
    /// How many workers make calls.
    pub(super) helpers: usize,
}

/// Who makes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    None,
    Worker,
    Reader,
}

impl Reading {
    pub(super) fn new(max_read_ahead: usize) -> Self {
        Self { prefetch: Prefetch::new(max_read_ahead), ..Self::default() }
    }

    /// True if the source is known to have a job to be read, new or failed.
    #[inline]
    pub(super) fn has_unread(&self, window: &Window) -> bool {
        self.waits() || window.has_unread()
    }

    /// True if a fetch is waiting.
    #[inline]
    pub(super) fn waits(&self) -> bool {
        self.fetch.is_some() && !self.taken
    }

    pub(super) fn take_fetch(&mut self, now: Instant) -> Option<Ask> {
        let run = self.fetch.filter(|_| !self.taken)?;
        self.taken = true;
        self.call = Some(now);
        Some(run)
    }

    /// Returns since when the call has been under way that the consumer waits for.
    pub(super) fn since(&self) -> Option<Instant> {
        match &self.reads {
            Some(reads) => reads.since(),
            None => self.call,
        }
    }

    /// Returns who is to make one of several calls into a source of functions: a worker without a
    /// job, of which one stays free for a job, or the reader, which then can do nothing else.
    #[inline]
    pub(super) fn caller(&self, workers: &Workers, window: &Window, now: &Now) -> Caller {
        // The clock is read only if somebody asks for the time.
        self.reads.as_ref().map_or(Caller::None, |reads| self.caller_of(reads, workers, window, now))
    }

    #[cold]
    fn caller_of(&self, reads: &Reads, workers: &Workers, window: &Window, now: &Now) -> Caller {
        if !reads.are_functions() || window.is_stopping() || window.has_ended() {
            return Caller::None;
        }
        let is_one_free = self.helpers + window.in_flight() + 1 < workers.most(window.limits().max_processing);
        match is_one_free {
            true if reads.has_call(now.get()) => Caller::Worker,
            false if reads.is_awaited(now.get()) => Caller::Reader,
            _ => Caller::None,
        }
    }

    pub(super) fn leaves_to_workers(&self, workers: &Workers, window: &Window) -> bool {
        self.quick && self.supervises && !workers.is_strict && !window.is_stopping()
    }

    /// True if a worker would read the waiting fetch itself.
    #[inline]
    pub(super) fn is_for_workers(&self, workers: &Workers, window: &Window) -> bool {
        self.waits() && self.leaves_to_workers(workers, window) && self.runs.is_some()
    }

    /// Asks for new jobs again once the pause is over.
    pub(super) fn end_pause(&mut self, now: Instant, window: &mut Window) {
        if self.read_again.take_if(|again| *again <= now).is_some() {
            window.handle_readable();
        }
    }

    /// Tells the window how many jobs fit into the remaining memory.
    pub(super) fn fit_prefetch(&mut self, window: &mut Window) {
        let room = self.prefetch.fit(window.read_ahead());
        window.set_room(room);
    }
}

/// The progress of a request to end at the head of the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Bounding {
    #[default]
    No,
    /// The next look decides. A look that has already begun may have seen too little.
    Wanted,
    /// The source is being asked.
    Looking,
}
