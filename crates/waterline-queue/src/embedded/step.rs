//! The transitions of jobs: each is a part of one atomic batch.
//!
//! The files below move jobs. [`txn`](crate::embedded::txn) keeps their records, and
//! [`rules`](crate::rules) decide where they go.
//!
//! - `pushing`: new jobs, and those whose id or twin is there already
//! - `claiming`, `kinds`, `held`: which job a worker gets: any, one of some kinds, one that a limit
//!   held
//! - `ending`, `telling`: the ends of attempts and jobs, and what they mean to waiting jobs
//! - `requeue`: dead jobs that run again
//! - `ticking`, `time`: periodic jobs, maintenance, and the recovery after a crash
//! - `damage`, `recount`: jobs and entries that cannot be read

use crate::embedded::txn::Txn;
use crate::embedded::txn::edges::UntoldEnd;
use crate::engine::Claimed;
use crate::types::error::{QueueError, is_damage};
use crate::types::events::Event;
use crate::types::job::{JobId, JobState};
use crate::types::periodic::Periodic;
use crate::types::row::Row;
use std::collections::VecDeque;
use std::sync::Arc;
use waterline::{BoxError, Error};

mod claiming;
mod damage;
mod ending;
mod held;
mod kinds;
mod pushing;
mod recount;
mod requeue;
mod telling;
mod ticking;
mod time;

#[derive(Clone, Debug)]
pub(crate) enum ClaimResult {
    Job(Box<Claimed>),
    Nothing,
    /// Nothing so far, but there may be more: look again.
    Again,
}

/// One transition within a batch.
pub(crate) struct Step<'s, 'k> {
    pub(crate) txn: Txn<'s, 'k>,
    /// The registered periodic jobs, if one may have a tick.
    periodics: Vec<Arc<Periodic>>,
    /// Ends that the waiting jobs still have to be told.
    endings: VecDeque<UntoldEnd>,
    is_telling: bool,
    /// Whether a job was claimed in the same turn, and another may follow.
    pub(crate) has_claimed: bool,
    pub(crate) room: Room,
}

/// The room that a push needs in a queue with `max_waiting`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// None: a push of the queue's own is never refused.
    Any,
    /// There must be room now.
    Now,
    /// There must have been room when the batch began. Otherwise a write that pushes more jobs than
    /// may ever wait would be refused for good.
    AtBegin,
}

impl<'s, 'k> Step<'s, 'k> {
    pub(crate) fn new(txn: Txn<'s, 'k>, periodics: Vec<Arc<Periodic>>) -> Self {
        Self { txn, periodics, endings: VecDeque::new(), is_telling: false, has_claimed: false, room: Room::Any }
    }
}

impl Step<'_, '_> {
    // Steering.

    /// Removes a job in any state. Its worker, if any, learns it from its next call.
    pub(crate) fn remove(&mut self, id: &str) -> Result<(), BoxError> {
        match self.txn.row(id) {
            Err(error) if is_damage(&error) => self.remove_damaged(id),
            // It was set aside, so no state counts it.
            Ok(_) if self.txn.forget_damaged(id)? => self.remove_damaged(id),
            row => {
                let row = row?.ok_or_else(|| self.txn.queue.not_found(id))?;
                self.remove_row(id, row, true)
            }
        }
    }

    /// Removes a job: on request, or because its retention is over.
    fn remove_row(&mut self, id: &str, mut row: Row, is_wanted: bool) -> Result<(), BoxError> {
        self.txn.leave(id, &row)?;
        if row.state == JobState::Running {
            self.txn.staged.tell(Event::Lost { token: row.place });
        }
        self.settle(id, &mut row, is_wanted)?;
        // Also jobs that waited for a requeue of it wait no more.
        self.end_waits(id, &mut row, false)?;
        self.txn.erase(id, &row)?;
        self.txn.tell(id, None, Some(None));
        Ok(())
    }

    /// Removes those of these jobs that are in this state and have not ended. Returns how many.
    pub(crate) fn remove_waiting(&mut self, state: JobState, ids: &[JobId]) -> Result<u64, BoxError> {
        let mut count = 0;
        for id in ids {
            let row = self.txn.row_in(state, id)?.filter(|row| !row.state.is_ended());
            if let Some(row) = row {
                self.remove_row(id, row, true)?;
                count += 1;
            }
        }
        Ok(count)
    }
}

/// Wraps an error for the writer, which carries boxed errors.
impl From<Error> for Box<QueueError> {
    fn from(error: Error) -> Self {
        Box::new(error.into())
    }
}
