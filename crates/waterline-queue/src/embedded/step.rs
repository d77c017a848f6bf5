//! The transitions of jobs: each is a part of one atomic batch.
//!
//! This file and those below move jobs, [`txn`](crate::embedded::txn) keeps their records, and
//! [`rules`](crate::rules) decide where to.

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

/// The answer to a claim.
#[derive(Clone, Debug)]
pub(crate) enum ClaimResult {
    Job(Box<Claimed>),
    Nothing,
    /// Only stale entries so far: look again.
    Again,
}

/// One transition within a batch.
pub(crate) struct Step<'s, 'k> {
    pub(crate) txn: Txn<'s, 'k>,
    /// The periodic jobs that are registered, if one may have a tick.
    periodics: Vec<Arc<Periodic>>,
    /// Ends that still have to be told to those who wait for them.
    endings: VecDeque<UntoldEnd>,
    /// Whether it tells ends.
    is_telling: bool,
    /// Whether it has claimed a job, and may claim another one.
    pub(crate) has_claimed: bool,
    pub(crate) room: Room,
}

/// The room that a push has to find in a queue in which only so many jobs may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// The queue makes the push, which is never refused.
    Any,
    /// There must be room now.
    Now,
    /// There must have been room when the batch began. A write that pushes more jobs than may ever
    /// wait would otherwise be refused for good.
    AtBegin,
}

impl<'s, 'k> Step<'s, 'k> {
    pub(crate) fn new(txn: Txn<'s, 'k>, periodics: Vec<Arc<Periodic>>) -> Self {
        Self { txn, periodics, endings: VecDeque::new(), is_telling: false, has_claimed: false, room: Room::Any }
    }
}

impl Step<'_, '_> {
    // Steering.

    /// Removes a job in any state. A worker that has it learns it from its next call.
    pub(crate) fn remove(&mut self, id: &str) -> Result<(), BoxError> {
        match self.txn.row(id) {
            Err(error) if is_damage(&error) => self.remove_damaged(id),
            // It was set aside, and is counted nowhere.
            Ok(_) if self.txn.forget_damaged(id)? => self.remove_damaged(id),
            row => {
                let row = row?.ok_or_else(|| self.txn.queue.not_found(id))?;
                self.remove_row(id, row, true)
            }
        }
    }

    /// Removes a job, since somebody wants that, or because its time to be kept is over.
    fn remove_row(&mut self, id: &str, mut row: Row, is_wanted: bool) -> Result<(), BoxError> {
        self.txn.leave(id, &row)?;
        if row.state == JobState::Running {
            self.txn.staged.tell(Event::Lost { token: row.place });
        }
        self.settle(id, &mut row, is_wanted)?;
        // Those who waited for it to come back to life wait no more.
        self.end_waits(id, &mut row, false)?;
        self.txn.erase(id, &row)?;
        self.txn.tell(id, None, Some(None));
        Ok(())
    }

    /// Removes these jobs of a state if they still wait or run. Returns how many.
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

/// Makes an error of the queue one that a writer can carry.
impl From<Error> for Box<QueueError> {
    fn from(error: Error) -> Self {
        Box::new(error.into())
    }
}
