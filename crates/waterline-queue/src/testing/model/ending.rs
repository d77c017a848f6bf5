//! Ends of attempts, and of jobs that never run.

use crate::rules::causes::CausesFirst;
use crate::rules::ends;
use crate::rules::ends::{End, Next, Past, Run};
use crate::testing::model::job::{Job, ModelMark};
use crate::testing::model::jobs::{Jobs, ModelResult};
use crate::testing::model::marks::DAY;
use crate::types::error::QueueError;
use crate::types::events::{Event, Line};
use crate::types::job::{JobId, JobState, Retention};
use crate::types::related::Skipped;
use crate::types::row::Row;
use crate::types::unique::Until;
use std::collections::BTreeSet;
use waterline::seam::Moment;

impl Jobs {
    pub(super) fn end(
        &mut self,
        id: &str,
        end: End,
        data: Option<Vec<u8>>,
        run: &Run,
        at: &Moment,
    ) -> Option<JobState> {
        let row = self.all.get(id)?.row.clone();
        let past = Past {
            failures: row.failures,
            crashes: row.crashes,
            retry: row.retry.unwrap_or(self.options.retry),
            max_crashes: self.options.max_crashes,
            resubmit: row.resubmit,
            is_healed: self.options.heal_after.is_some_and(|heal_after| run.lasted >= heal_after),
        };
        if let Some((_, fingerprint)) = row.extras().skips_from.zip(row.extras().fingerprint)
            && end == End::Finished
        {
            let number = self.mark('e', &fingerprint.text(), at).map_or(0, |old| old.number).max(row.place);
            let mark = ModelMark::kept_for(DAY, number, at);
            self.marks.insert(('e', fingerprint.text()), mark);
        }
        let is_suspect = ends::is_suspect(row.extras().is_suspect, row.crashes, &end);
        let is_crash = end == End::Crashed;
        let next = ends::next(&past, end, at.wall, at.chance);
        let mut row = row;
        let again = if matches!(next, Next::Wait { .. }) { 0 } else { row.take_resubmit() };
        let mut is_anew = false;
        let kept = match next {
            Next::Finish => {
                row.state = JobState::Finished;
                ends::kept_until(row.retention.unwrap_or(self.options.retention), at.wall)
            }
            Next::Die { failures, crashes, error } => {
                if is_crash {
                    self.line(id, &row, |job| Line::Died { job, error: error.clone() });
                }
                (row.state, row.failures, row.crashes, row.error) = (JobState::Dead, failures, crashes, error);
                ends::kept_until(Retention::For(self.options.dead_for), at.wall)
            }
            Next::Anew { due, crashes, error } => {
                (row.failures, row.crashes, row.due, row.error) = (0, crashes, due, error.unwrap_or_default());
                row.named = again == 0;
                row.state = ends::waiting(due, at.wall);
                self.begin_anew(&mut row);
                is_anew = true;
                Some(0)
            }
            Next::Wait { due, named, failures, crashes, error } => {
                (row.failures, row.crashes, row.due, row.named) = (failures, crashes, due, named);
                row.error = error.unwrap_or(row.error);
                row.state = ends::waiting(due, at.wall);
                Some(0)
            }
        };
        let is_suspect = is_suspect && row.state.waits();
        if is_suspect != row.extras().is_suspect {
            row.extras_mut().is_suspect = is_suspect;
        }
        let job = self.all.get_mut(id)?;
        if is_anew && job.progress.take().is_some() {
            self.told.push(Event::Anew { id: id.to_owned() });
        }
        if let Some(data) = &data {
            (job.data, row.has_data) = (Some(data.clone()), true);
        }
        row.since = if again > 0 { again } else { at.wall };
        let state = self.settle(id, row, kept, data.map(Some), at);
        self.leave_attempt(id);
        state
    }

    /// Ends a waiting job that is not to run: it finishes without a run, or is dead.
    pub(super) fn end_unrun(&mut self, id: &str, end: Result<Skipped, String>, at: &Moment) {
        let Some(mut row) = self.all.get(id).map(|job| job.row.clone()) else { return };
        let retention = match end {
            Ok(why) => {
                self.line(id, &row, |job| Line::Skipped { job, why });
                row.extras_mut().skipped = Some(why);
                row.state = JobState::Finished;
                row.retention.unwrap_or(self.options.retention)
            }
            Err(error) => {
                self.line(id, &row, |job| Line::Died { job, error: error.clone() });
                (row.state, row.error) = (JobState::Dead, error);
                Retention::For(self.options.dead_for)
            }
        };
        let kept = ends::kept_until(retention, at.wall);
        self.settle(id, row, kept, None, at);
    }

    /// Puts a job into the state of this row, and applies its end to those that wait for it.
    pub(super) fn settle(
        &mut self,
        id: &str,
        mut row: Row,
        kept: Option<u64>,
        data: Option<Option<Vec<u8>>>,
        at: &Moment,
    ) -> Option<JobState> {
        row.place = kept.unwrap_or(0);
        let (state, given, copy) = (row.state, row.since, row.clone());
        let job = self.all.get_mut(id)?;
        job.row = row;
        self.enter_given(id, given, at);
        self.tell(id, data);
        if state.is_ended() {
            self.release_ended(id, &copy, false);
            self.end_waits(id, state == JobState::Dead, at);
        }
        if kept.is_none() {
            let job = self.all.remove(id)?;
            self.forget(id, &job, false, at);
            return None;
        }
        Some(state)
    }

    pub(super) fn requeue(&mut self, id: &str, at: &Moment) -> ModelResult<bool> {
        let mut row = self.job_mut(id)?.row.clone();
        if row.state != JobState::Dead {
            return Ok(false);
        }
        let after = self.waits_again(id);
        let state = if after.is_empty() { JobState::Ready } else { JobState::Waiting };
        (row.state, row.failures, row.crashes, row.due, row.named) = (state, 0, 0, 0, false);
        self.begin_anew(&mut row);
        if let Some(extras) = &mut row.extras {
            extras.expires = None;
        }
        let fingerprint = row.extras().unique.zip(row.extras().fingerprint);
        if let Some((Until::Claimed | Until::Done, fingerprint)) = fingerprint
            && self.mark('u', &fingerprint.text(), at).is_none()
        {
            self.marks.insert(
                ('u', fingerprint.text()),
                ModelMark { number: 0, until: 0, since: at.wall, id: id.to_owned() },
            );
        }
        let job = self.job_mut(id)?;
        (job.row, job.after) = (row, after);
        if job.progress.take().is_some() {
            self.told.push(Event::Anew { id: id.to_owned() });
        }
        self.enter(id, at);
        self.tell(id, None);
        Ok(true)
    }

    /// Returns the jobs for which a dead one waited that have not ended and do not wait for it.
    fn waits_again(&self, id: &str) -> BTreeSet<JobId> {
        let lives = |other: &str| self.all.get(other).is_some_and(|job| !job.row.state.is_ended());
        let others = self.all.get(id).map(|job| &job.after).into_iter().flatten();
        others.filter(|other| lives(other) && !self.waits_for(other, id)).cloned().collect()
    }

    pub(super) fn requeue_dead(&mut self, at: &Moment) -> ModelResult<u64> {
        // In the order of their list, except that those that others waited for come first.
        let is_dead = |job: &Job| job.row.state == JobState::Dead;
        let mut ids = self.ids(is_dead);
        ids.sort_by_key(|id| self.list_place(id, &self.all[id]));
        let count = ids.len() as u64;
        let mut order = CausesFirst::new(ids);
        let next = |order: &mut CausesFirst, jobs: &Self| {
            let dead = |id: &str| jobs.all.get(id).filter(|job| is_dead(job));
            order.next(|id| Ok::<_, QueueError>(dead(id).map(|job| job.after.iter().cloned().collect())))
        };
        while let Some(id) = next(&mut order, self)? {
            self.requeue(&id, at)?;
        }
        Ok(count)
    }
}
