//! The job of a lease, and the calls that end or change it if the lease holds.

use crate::engine::{Beside, Edit, Ending};
use crate::in_hand::InHand;
use crate::rules::ends::End;
use crate::types::ended::AttemptEnd;
use crate::types::error::QueueError;
use crate::types::job::JobState;
use waterline::seam::Changes;

/// A job whose lease may be over.
pub(super) struct Hold {
    pub(super) job: InHand,
    pub(super) ended: bool,
}

impl Hold {
    pub(super) fn new(job: InHand) -> Self {
        let hold = Self { job, ended: false };
        hold.prolong();
        hold
    }

    fn prolong(&self) -> bool {
        let queue = &self.job.queue;
        queue.engine.renew(&self.job.held(), Some(queue.shared.options.lease))
    }

    /// Shows how far the job is, and prolongs the lease.
    pub(super) fn show(&self, fraction: f64, note: &str) -> Result<(), QueueError> {
        if self.ended {
            return Err(self.job.halt());
        }
        self.job.show(fraction, note)?;
        self.prolong();
        Ok(())
    }

    pub(super) fn end(
        &mut self,
        end: End,
        data: Option<Vec<u8>>,
        effects: Changes,
    ) -> Result<Option<JobState>, QueueError> {
        let ending = Ending { job: self.job.held(), end: end.clone(), data, durations: None };
        let ends = std::slice::from_ref(&ending);
        self.end_by(&end, |job| {
            let turned = match job.queue.embedded() {
                Some(embedded) => embedded.turn_with(ends, None, Beside::Alone, effects)?,
                None => job.queue.engine.turn(ends, None, Beside::Alone)?,
            };
            Ok(turned.ended.into_iter().next().flatten())
        })
    }

    /// Ends the attempt by this call, which answers with the state of the job; `None`: the lease
    /// had ended.
    pub(super) fn end_by(
        &mut self,
        end: &End,
        call: impl FnOnce(&InHand) -> Result<Option<Option<JobState>>, QueueError>,
    ) -> Result<Option<JobState>, QueueError> {
        let state = self.held_by(|job| call(job)?.ok_or_else(|| job.halt()))?;
        self.ended = true;
        self.log(&AttemptEnd::of(end, state));
        Ok(state)
    }

    /// Ends the attempt as failed. If it has ended already, that is not logged as a lost lease.
    pub(super) fn fail_if_held(&mut self, error: &str) -> Result<Option<JobState>, QueueError> {
        let end = End::Failed { error: error.to_owned(), at: None };
        let ending = Ending { job: self.job.held(), end: end.clone(), data: None, durations: None };
        let turned = self.job.queue.engine.turn(&[ending], None, Beside::Alone)?;
        self.ended = true;
        let state = turned.ended.into_iter().next().flatten().ok_or_else(|| self.job.halt())?;
        self.log(&AttemptEnd::of(&end, state));
        Ok(state)
    }

    /// Gives the job back as if it had not been claimed.
    pub(super) fn put_back(&mut self) -> Result<Option<JobState>, QueueError> {
        let end = End::PutBack { error: "nobody took it from its claim".to_owned() };
        self.end(end, None, Changes::default())
    }

    /// Changes the job, and renews the lease.
    ///
    /// If the lease has ended since the change, the next call fails: this one has made its writes.
    pub(super) fn edit(&mut self, edit: Edit, effects: Changes) -> Result<(), QueueError> {
        let is_renewal = matches!(edit, Edit::Nothing) && effects.is_empty();
        self.held_by(|job| match job.queue.embedded() {
            Some(embedded) => embedded.edit_with(&job.held(), edit, effects).map(|row| job.note(&row)),
            None => job.edit(edit),
        })?;
        if self.prolong() || !is_renewal { Ok(()) } else { Err(self.job.halt()) }
    }

    fn held_by<R>(&mut self, call: impl FnOnce(&InHand) -> Result<R, QueueError>) -> Result<R, QueueError> {
        let answer = if self.ended || !self.job.holds() {
            if !self.ended {
                // The silence may have ended the lease, with no call since that noticed it.
                self.job.queue.catch_up();
            }
            Err(self.job.halt())
        } else {
            call(&self.job)
        };
        if matches!(answer, Err(QueueError::Halt { .. })) && !std::mem::replace(&mut self.ended, true) {
            self.log(&AttemptEnd::Lost);
        }
        answer
    }

    fn log(&self, ended: &AttemptEnd) {
        let InHand { queue, id, row, .. } = &self.job;
        queue.shared.log_end((id, &row.kind, row.failures.saturating_add(1)), ended);
    }
}
