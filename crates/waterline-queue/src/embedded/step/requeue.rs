//! Dead jobs that run again. One that died while waiting waits again for jobs that still live.

use crate::embedded::step::Step;
use crate::types::job::{JobId, JobState};
use crate::types::row::Row;
use waterline::BoxError;

impl Step<'_, '_> {
    /// Requeues these dead jobs, and returns how many. One that is gone or no longer dead by now is
    /// no error. A job waits only for jobs that come before it or live already.
    pub(crate) fn requeue_all(&mut self, ids: &[JobId]) -> Result<u64, BoxError> {
        let mut count = 0;
        for id in ids {
            if self.txn.row_in(JobState::Dead, id)?.is_some() {
                count += u64::from(self.requeue(id)?);
            }
        }
        Ok(count)
    }

    /// Makes a dead job ready, as if it were pushed again, or waiting if jobs live that it waited
    /// for when it died. Returns false if it is not dead.
    pub(crate) fn requeue(&mut self, id: &str) -> Result<bool, BoxError> {
        let row = self.txn.row(id)?.ok_or_else(|| self.txn.queue.not_found(id))?;
        if row.state != JobState::Dead {
            return Ok(false);
        }
        let on = self.txn.waits_again(id, &row)?;
        self.txn.leave(id, &row)?;
        let state = if on.is_empty() { JobState::Ready } else { JobState::Waiting };
        let mut row = Row { state, failures: 0, crashes: 0, due: 0, named: false, ..row };
        self.txn.begin_anew(&mut row);
        if let Some(extras) = &mut row.extras {
            // A requeued job is to run however late it is.
            (extras.expires, extras.after) = (None, 0);
        }
        self.txn.clear_progress(id, &mut row)?;
        self.txn.register_again(id, &row)?;
        self.txn.wait_for(id, &mut row, &on)?;
        self.txn.enter(id, &mut row)?;
        self.txn.tell(id, Some(state), None);
        Ok(true)
    }
}
