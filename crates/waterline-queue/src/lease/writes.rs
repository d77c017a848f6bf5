//! The writes of a caller that a call on a lease makes.

use crate::engine::Edit;
#[cfg(doc)]
use crate::lease::Lease;
use crate::lease::hold::Hold;
use crate::rules::ends::{End, When};
use crate::types::data::JobData;
use crate::types::error::QueueError;
use crate::types::job::{JobState, millis};
use std::fmt;
use std::time::SystemTime;
use waterline::BoxError;
use waterline::seam::{Changes, describe};

/// A [`Lease`] with writes of yours, from [`Lease::with`].
///
/// Each call does what the call of [`Lease`] with the same name does, and makes your writes in the
/// same atomic write: both happen, or neither. The errors are those of that call and of
/// [`Store::write`](waterline::Store::write), since a write may be refused: then the lease is as it
/// was. A returned state is the one after the writes, one of which may push the job anew.
#[must_use = "the writes are made by a call on this, and by nothing else"]
pub struct LeaseWrites<'a> {
    hold: &'a mut Hold,
    effects: Changes,
}

impl<'a> LeaseWrites<'a> {
    pub(super) fn new(hold: &'a mut Hold, effects: Changes) -> Self {
        Self { hold, effects }
    }

    /// Makes the writes, and replaces the data of the job if there is some: see [`Lease::update`].
    ///
    /// # Errors
    /// The same as [`Lease::update`] and [`Store::write`](waterline::Store::write).
    pub fn update(self, data: impl Into<JobData>) -> Result<(), QueueError> {
        let data = self.data(data.into())?;
        self.hold.edit(data.map_or(Edit::Nothing, Edit::Data), self.effects)
    }

    /// Makes the writes, and ends the job with success and this data: see [`Lease::finish`].
    ///
    /// # Errors
    /// The same as [`update`](Self::update).
    pub fn finish(self, data: impl Into<JobData>) -> Result<Option<JobState>, QueueError> {
        let data = self.data(data.into())?;
        self.hold.end(End::Finished, data, self.effects)
    }

    /// Makes the writes, and ends the attempt as failed: see [`Lease::retry`].
    ///
    /// # Errors
    /// The same as [`Lease::retry`] and [`Store::write`](waterline::Store::write).
    pub fn retry(self, error: impl Into<BoxError>) -> Result<Option<JobState>, QueueError> {
        self.end(End::Failed { error: describe(&*error.into()), at: None })
    }

    /// Makes the writes, ends the attempt as failed, and sets the time of the next one: see
    /// [`Lease::retry_at`].
    ///
    /// # Errors
    /// The same as [`Lease::retry_at`] and [`Store::write`](waterline::Store::write).
    pub fn retry_at(self, time: SystemTime, error: impl Into<BoxError>) -> Result<Option<JobState>, QueueError> {
        let at = Some(millis(time)?);
        self.end(End::Failed { error: describe(&*error.into()), at })
    }

    /// Makes the writes, and ends the attempt without counting it: see [`Lease::snooze`].
    ///
    /// # Errors
    /// The same as [`retry_at`](Self::retry_at).
    pub fn snooze(self, until: SystemTime) -> Result<Option<JobState>, QueueError> {
        let at = When::At(millis(until)?);
        self.end(End::Snoozed { at })
    }

    /// Makes the writes, and ends the job as failed for good: see [`Lease::bury`].
    ///
    /// # Errors
    /// The same as [`retry`](Self::retry).
    pub fn bury(self, reason: impl Into<BoxError>) -> Result<Option<JobState>, QueueError> {
        self.end(End::Buried { reason: describe(&*reason.into()) })
    }

    /// Makes the writes, and makes the job run once more when this run has succeeded: see
    /// [`Lease::resubmit`].
    ///
    /// # Errors
    /// The same as [`retry_at`](Self::retry_at).
    pub fn resubmit(self, run_at: Option<SystemTime>) -> Result<(), QueueError> {
        let due = run_at.map_or(Ok(0), millis)?;
        self.hold.edit(Edit::Resubmit(due), self.effects)
    }

    fn data(&self, data: JobData) -> Result<Option<Vec<u8>>, QueueError> {
        let job = &self.hold.job;
        data.json(&job.id, &job.queue.shared.options)
    }

    fn end(self, end: End) -> Result<Option<JobState>, QueueError> {
        self.hold.end(end, None, self.effects)
    }
}

impl fmt::Debug for LeaseWrites<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseWrites").field("id", &self.hold.job.id).finish_non_exhaustive()
    }
}
