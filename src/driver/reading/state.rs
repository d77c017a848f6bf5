//! The state of the source as far as it is known, and the jobs that were read from it.

use crate::base::guard::drop_guarded;
use crate::base::index::BoxError;
use crate::base::sync::Arc;
use crate::driver::prefetch::Prefetch;
use crate::reader::{Ask, Outcome, Payloads, ReadRuns};
use std::time::Instant;

/// Values of the user that are to be dropped without the lock.
pub(crate) struct Surplus {
    pub(in crate::driver) jobs: Box<dyn Payloads>,
    pub(in crate::driver) error: Option<BoxError>,
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
    pub(in crate::driver) fetch: Option<Ask>,
    /// True once the reader or a worker has taken the fetch.
    pub(in crate::driver) taken: bool,
    /// The outcome of a read that did not go well, for the reader to note.
    pub(in crate::driver) note: Option<Outcome>,
    /// True if the last read took less time than it takes to wake the reader.
    pub(crate) quick: bool,
    /// True if the reader has nothing to read, and only looks at the workers from time to time.
    pub(crate) supervises: bool,
    /// The time at which the read under way began.
    pub(crate) call: Option<Instant>,
    /// The time since which the reader asks for the head, or waits to ask while a worker reads.
    pub(crate) look: Option<Instant>,
    /// True if a look is put off until all known jobs are read.
    pub(in crate::driver) look_waits: bool,
    /// True once the head was seen.
    pub(crate) seen: bool,
    pub(crate) look_error: Option<String>,
    /// The state of an end at the head, which the next look decides.
    pub(crate) bounding: Bounding,
    /// The reason why the first new job could not be read, if the source was asked for it.
    pub(crate) unread: Option<Unread>,
    /// The jobs that were read and are not handed out yet.
    pub(crate) prefetch: Prefetch,
    /// The source, for workers that read for themselves.
    pub(crate) runs: Option<Arc<dyn ReadRuns>>,
    /// True if the reader sleeps until a deadline that has changed, or does not know yet that it
    /// has to end.
    pub(in crate::driver) rouse: bool,
}

impl Reading {
    pub(in crate::driver) fn new(max_read_ahead: usize) -> Self {
        Self {
            fetch: None,
            taken: false,
            note: None,
            quick: false,
            supervises: false,
            call: None,
            look: None,
            look_waits: false,
            seen: false,
            look_error: None,
            bounding: Bounding::No,
            unread: None,
            prefetch: Prefetch::new(max_read_ahead),
            runs: None,
            rouse: false,
        }
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

/// The reason why a job could not be read.
#[derive(Clone, Debug)]
pub(crate) enum Unread {
    Missing,
    Failed(String),
}
