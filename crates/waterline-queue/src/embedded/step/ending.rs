//! The ends of attempts, and of jobs.

use crate::embedded::keys::List;
use crate::embedded::step::Step;
use crate::rules::ends;
use crate::rules::ends::{End, Next, Over, Past, Run};
use crate::types::ended::AttemptEnd;
use crate::types::error::is_damage;
use crate::types::events::Line;
use crate::types::job::{JobState, Retention};
use crate::types::related::Skipped;
use crate::types::row::Row;
use tracing::Level;
use waterline::BoxError;

impl Step<'_, '_> {
    /// Notes that the runner stops while the job runs: if the process ends now, that is no crash.
    pub(crate) fn note_stop(&mut self, id: &str, token: u64) -> Result<(), BoxError> {
        let mut row = self.txn.leased(id, token)?;
        row.extras_mut().is_stopping = true;
        Ok(self.txn.write_row(id, &row)?)
    }

    /// Ends an attempt. Returns the new state of the job; `None`: its row is gone.
    pub(crate) fn end(
        &mut self,
        id: &str,
        token: u64,
        end: End,
        data: Option<&[u8]>,
        run: &Run,
    ) -> Result<Option<JobState>, BoxError> {
        match self.txn.leased(id, token) {
            Ok(row) => self.end_row(id, row, end, data, run),
            Err(error) => {
                if is_damage(&error) {
                    // This is written only if the caller goes on with other ends.
                    self.txn.set_aside(id, Some(JobState::Running), &error)?;
                    self.txn.release_leases(id, Some(token))?;
                }
                Err(error)
            }
        }
    }

    /// Takes back a job whose worker was silent or has stopped, or sets it aside if damaged.
    pub(crate) fn take_back(&mut self, id: &str, token: u64, is_stopping: bool, run: &Run) -> Result<(), BoxError> {
        let Some(row) = self.txn.row_in(JobState::Running, id)?.filter(|row| row.has_lease(token)) else {
            // The lease is over, or its damaged entry did not say whose it was.
            return self.txn.release_leases(id, Some(token));
        };
        let is_stopping = is_stopping || row.extras().is_stopping;
        let end = ends::end_of_lease(Over::Silent(self.txn.queue.options.lease), is_stopping);
        let state = self.end(id, token, end.clone(), None, run)?;
        if let End::Failed { error, .. } = &end {
            self.txn.log(Level::WARN, id, &row, |job| Line::TakenBack { job, error: error.clone() });
        }
        if let AttemptEnd::Dead { error } = AttemptEnd::of(&end, state) {
            self.txn.log(Level::WARN, id, &row, |job| Line::Died { job, error });
        }
        Ok(())
    }

    pub(super) fn end_row(
        &mut self,
        id: &str,
        mut row: Row,
        end: End,
        data: Option<&[u8]>,
        run: &Run,
    ) -> Result<Option<JobState>, BoxError> {
        let options = &self.txn.queue.options;
        let past = Past {
            failures: row.failures,
            crashes: row.crashes,
            retry: row.retry.unwrap_or(options.retry),
            max_crashes: options.max_crashes,
            resubmit: row.resubmit,
            is_healed: options.heal_after.is_some_and(|heal_after| run.lasted >= heal_after),
        };
        let retention = row.retention.unwrap_or(options.retention);
        let dead_for = Retention::For(options.dead_for);
        if row.extras.is_some() {
            self.txn.keep_progress(id, &row, run)?;
        }
        self.txn.leave(id, &row)?;
        if let Some(data) = data {
            self.txn.set_data(id, &mut row, data)?;
        }
        let chance = if end == End::Finished { 1.0 } else { self.txn.chance() };
        if end == End::Finished && row.extras.is_some() {
            self.txn.note_executed(id, &row)?;
        }
        let is_crash = end == End::Crashed;
        let is_suspect = ends::is_suspect(row.extras().is_suspect, row.crashes, &end);
        let next = ends::next(&past, end, self.txn.at.wall, chance);
        // A failed attempt has not covered a push made meanwhile, so the row keeps that.
        let again = if matches!(next, Next::Wait { .. }) { 0 } else { row.take_resubmit() };
        let kept = match next {
            Next::Finish => {
                row.state = JobState::Finished;
                ends::kept_until(retention, self.txn.at.wall)
            }
            Next::Die { failures, crashes, error } => {
                if is_crash {
                    // No worker is left to log it.
                    self.txn.log(Level::WARN, id, &row, |job| Line::Died { job, error: error.clone() });
                }
                (row.state, row.failures, row.crashes, row.error) = (JobState::Dead, failures, crashes, error);
                ends::kept_until(dead_for, self.txn.at.wall)
            }
            Next::Anew { due, crashes, error } => {
                (row.failures, row.crashes, row.due, row.error) = (0, crashes, due, error.unwrap_or_default());
                row.named = again == 0;
                row.state = ends::waiting(due, self.txn.at.wall);
                self.txn.begin_anew(&mut row);
                self.txn.clear_progress(id, &mut row)?;
                Some(0)
            }
            Next::Wait { due, named, failures, crashes, error } => {
                (row.failures, row.crashes, row.due, row.named) = (failures, crashes, due, named);
                row.error = error.unwrap_or(row.error);
                row.state = ends::waiting(due, self.txn.at.wall);
                Some(0)
            }
        };
        let is_suspect = is_suspect && row.state.waits();
        if is_suspect != row.extras().is_suspect {
            row.extras_mut().is_suspect = is_suspect;
        }
        row.place = kept.unwrap_or(0);
        self.txn.tell_row(id, &row, data);
        if row.state.is_ended() {
            self.settle(id, &mut row, false)?;
        }
        if kept.is_none() {
            // It can never be requeued, so no job waits for it any more.
            self.end_waits(id, &mut row, false)?;
            self.txn.erase(id, &row)?;
            return Ok(None);
        }
        self.txn.enter_given(id, &mut row, if again > 0 { again } else { self.txn.at.wall })?;
        Ok(Some(row.state))
    }

    /// Ends a job that waits without running it: it is dead, or finished as skipped. One that dies
    /// before all that it waits for have ended keeps their ids, for a requeue.
    pub(super) fn end_unrun(&mut self, id: &str, mut row: Row, end: Unrun) -> Result<(), BoxError> {
        let options = &self.txn.queue.options;
        let after = row.extras().after;
        if row.state == JobState::Waiting {
            self.txn.leave_lists(id, after)?;
        }
        if after > 0 {
            row.extras_mut().after = 0;
        }
        self.txn.leave(id, &row)?;
        let retention = match end {
            Unrun::Skipped(reason) => {
                self.txn.log(Level::DEBUG, id, &row, |job| Line::Skipped { job, why: reason });
                row.extras_mut().skipped = Some(reason);
                row.state = JobState::Finished;
                row.retention.unwrap_or(options.retention)
            }
            Unrun::Dead(error) => {
                self.txn.log(Level::WARN, id, &row, |job| Line::Died { job, error: error.clone() });
                (row.state, row.error) = (JobState::Dead, error);
                Retention::For(options.dead_for)
            }
        };
        let kept = ends::kept_until(retention, self.txn.at.wall);
        row.place = kept.unwrap_or(0);
        self.txn.tell_row(id, &row, None);
        self.settle(id, &mut row, false)?;
        if kept.is_none() || row.state != JobState::Dead {
            self.txn.wait_no_more(id, after)?;
        } else if after > 0 {
            row.extras_mut().after = after;
        }
        if kept.is_none() {
            self.end_waits(id, &mut row, false)?;
            return Ok(self.txn.erase(id, &row)?);
        }
        Ok(self.txn.enter(id, &mut row)?)
    }

    /// Does what the end of a job means to others: releases its mark, and tells jobs that wait.
    /// `row.state` is the new state, or the one in which it was removed.
    pub(super) fn settle(&mut self, id: &str, row: &mut Row, is_removed: bool) -> Result<(), BoxError> {
        let Some(extras) = &row.extras else { return Ok(()) };
        if let Some(expires) = extras.expires {
            self.txn.remove_entry(List::Expiring, expires, id)?;
        }
        self.txn.release_ended(id, row, is_removed)?;
        self.end_waits(id, row, !is_removed && row.state == JobState::Dead)
    }

    /// Returns how a job ends that need not run at all.
    pub(super) fn unrun(&mut self, id: &str, row: &Row) -> Option<Unrun> {
        match row.extras().expires {
            Some(expires) if expires <= self.txn.at.wall => Some(Unrun::expired()),
            _ => self.txn.skips(id, row).map(Unrun::Skipped),
        }
    }
}

/// The end of a job that does not run.
#[derive(Clone, Debug)]
pub(super) enum Unrun {
    Skipped(Skipped),
    Dead(String),
}

impl Unrun {
    /// The end of a job that no worker took in time.
    pub(super) fn expired() -> Self {
        Self::Dead("it expired: no worker had taken it in time".to_owned())
    }

    /// The end of a job that waited for one that is dead.
    pub(super) fn of_death(of: &str) -> Self {
        Self::Dead(format!("the job {of:?} is dead, and this one was to run after it"))
    }
}
