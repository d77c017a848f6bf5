//! Calls about the progress of a job.

use crate::queue::embedded::intent::call;
use crate::queue::embedded::state::shown::Showed;
use crate::queue::handle::Queue;
use crate::queue::words::error::QueueError;
use crate::queue::words::job::JobState;
use crate::queue::words::progress::JobProgress;
use crate::queue::words::row::Row;

impl Queue {
    /// Shows the progress of a running job. Readers in this process see it at once, and the store
    /// gets it from time to time. Returns the row if it was written.
    pub(crate) fn show(&self, id: &str, token: u64, fraction: f64, note: &str) -> Result<Option<Row>, QueueError> {
        let at = self.state.moment();
        let progress = JobProgress::new(fraction, note, at.wall)?;
        match self.state.show(id, token, &progress, at.now) {
            Showed::Halt => return Err(self.inner().halt(id)),
            Showed::InMemory => return Ok(None),
            Showed::Due => {}
        }
        let of = id.to_owned();
        let written = call(&self.store, &self.state, "write the progress of a job", move |step| {
            step.put_progress(&of, token, &progress)
        });
        if written.is_err() {
            self.state.progress_was_not_written(token);
        }
        written.map(Some)
    }

    /// Returns the progress of a job with this row: that which its worker shows, or the stored one.
    pub(crate) fn progress_of(&self, id: &str, row: &Row) -> Result<Option<JobProgress>, QueueError> {
        let shown = if row.state == JobState::Running { self.state.shown(row.place) } else { None };
        if shown.is_some() || !row.extras().has_progress {
            return Ok(shown);
        }
        let bytes = self.bytes(&self.state.keys.progress(id))?;
        Ok(bytes.map(|bytes| self.state.decode_progress(id, &bytes)).transpose()?)
    }

    /// Returns the progress of a running job.
    pub(crate) fn progress(&self, id: &str) -> Result<Option<JobProgress>, QueueError> {
        self.row(id)?.map_or(Ok(None), |row| self.progress_of(id, &row))
    }
}
