//! The state of the source as far as it is known, and the jobs that were read from it.

use super::calls::{Calls, InVain, SOURCE_RETRY};
use super::failed_jobs::Unread;
use super::prefetch::Prefetch;
use crate::base::guard::drop_guarded;
use crate::base::index::BoxError;
use crate::base::sync::Arc;
use crate::crew::workers::Workers;
use crate::reader::{Ask, Payloads, ReadRuns};
use crate::window::Window;
use std::time::Instant;

/// Values of the user that are to be dropped without the lock.
pub(crate) struct Surplus {
    pub(super) jobs: Box<dyn Payloads>,
    pub(super) error: Option<BoxError>,
}

impl Surplus {
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.len() == 0 && self.error.is_none()
    }

    pub(crate) fn drop_guarded(self) {
        drop(self.jobs);
        drop_guarded(self.error);
    }
}

/// The state of the source as far as it is known, and the jobs that were read from it.
pub(crate) struct Reading {
    /// The fetch that waits to be carried out, or is being carried out.
    pub(super) fetch: Option<Ask>,
    /// True once the reader or a worker has taken the fetch.
    pub(super) taken: bool,
    /// True if the reader is to note that a job which should be there was not read.
    pub(super) note: bool,
    pub(crate) calls: Calls,
    /// The asks for the head, and the reads of the next new job, that brought nothing.
    pub(super) looks: InVain,
    pub(super) news: InVain,
    /// The time at which the source is asked for its head again, after it could not be.
    pub(super) look_again: Option<Instant>,
    /// The time at which the source is asked for new jobs again, after one could not be read.
    pub(super) read_again: Option<Instant>,
    /// True if the last read took less time than it takes to wake the reader.
    pub(crate) quick: bool,
    /// True if the reader has nothing to read, and only looks at the workers from time to time.
    pub(crate) supervises: bool,
    /// The time at which the read under way began.
    pub(crate) call: Option<Instant>,
    /// The time since which the reader asks for the head, or waits to ask while a worker reads.
    pub(crate) look: Option<Instant>,
    /// True if a look is put off until all known jobs are read.
    pub(super) look_waits: bool,
    /// True once the head was seen.
    pub(crate) seen: bool,
    pub(crate) look_error: Option<String>,
    /// The reason of the source why it has no job above its head yet.
    pub(crate) waits_for: Option<String>,
    /// The state of an end at the head, which the next look decides.
    pub(crate) bounding: Bounding,
    /// The reason why the first new job could not be read, if the source was asked for it.
    pub(crate) unread: Option<Unread>,
    /// The jobs that were read and are not handed out yet.
    pub(crate) prefetch: Prefetch,
    /// The source, for workers that read for themselves.
    pub(crate) runs: Option<Arc<dyn ReadRuns>>,
}

impl Reading {
    pub(super) fn new(max_read_ahead: usize) -> Self {
        Self {
            fetch: None,
            taken: false,
            note: false,
            calls: Calls::new(SOURCE_RETRY, None),
            looks: InVain::default(),
            news: InVain::default(),
            look_again: None,
            read_again: None,
            quick: false,
            supervises: false,
            call: None,
            look: None,
            look_waits: false,
            seen: false,
            look_error: None,
            waits_for: None,
            bounding: Bounding::No,
            unread: None,
            prefetch: Prefetch::new(max_read_ahead),
            runs: None,
        }
    }

    /// True if a job is to be read that the source is known to have: a new one, or a failed one.
    #[inline]
    pub(super) fn has_unread(&self, window: &Window) -> bool {
        self.waits() || window.has_unread()
    }

    /// True if a fetch waits to be carried out.
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

    pub(super) fn leaves_to_workers(&self, workers: &Workers, window: &Window) -> bool {
        // If the user has set the number of threads, no thread can replace one that reads.
        self.quick && self.supervises && workers.fixed.is_none() && !window.is_stopping()
    }

    /// True if there is something that a worker would read for itself.
    #[inline]
    pub(super) fn is_for_workers(&self, workers: &Workers, window: &Window) -> bool {
        self.waits() && self.leaves_to_workers(workers, window) && self.runs.is_some()
    }

    /// Asks for new jobs again, if the pause for that is over.
    pub(super) fn end_pause(&mut self, now: Instant, window: &mut Window) {
        if self.read_again.take_if(|again| *again <= now).is_some() {
            window.handle_readable();
        }
    }

    /// Tells the window how many jobs fit into the memory that is left.
    pub(super) fn fit_prefetch(&mut self, window: &mut Window) {
        let room = self.prefetch.fit(window.limits().read_ahead());
        window.set_room(room);
    }
}

/// The state of the wish to end at the head of the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Bounding {
    #[default]
    No,
    /// The next look decides. A look that has already begun may have seen less.
    Wanted,
    /// The source is being asked.
    Looking,
}
