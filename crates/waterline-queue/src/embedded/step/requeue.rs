//! Dead jobs that run again. One that died while it waited for others waits for them again, as far
//! as they live.

use crate::embedded::keys::split_waiting;
use crate::embedded::step::Step;
use crate::embedded::step::waiting::{SEARCH, list_in};
use crate::types::error::is_damage;
use crate::types::job::{JobId, JobState};
use crate::types::row::Row;
use std::collections::HashSet;
use waterline::BoxError;
use waterline::seam::KeyRange;

impl Step<'_, '_> {
    /// Requeues these dead jobs, and returns their number. One that is gone by now, or no longer
    /// dead, is no error. A job waits only for those that come before it, or live already.
    pub(crate) fn requeue_all(&mut self, ids: &[JobId]) -> Result<u64, BoxError> {
        let mut count = 0;
        for id in ids {
            if self.row_in(JobState::Dead, id)?.is_some() {
                count += u64::from(self.requeue(id)?);
            }
        }
        Ok(count)
    }

    /// Makes a dead job ready, as if it were pushed anew, or lets it wait for those that it waited
    /// for when it died, if they live. Returns false if it is not dead.
    pub(crate) fn requeue(&mut self, id: &str) -> Result<bool, BoxError> {
        let row = self.row(id)?.ok_or_else(|| self.queue.not_found(id))?;
        if row.state != JobState::Dead {
            return Ok(false);
        }
        let on = self.waits_again(id, &row)?;
        self.leave(id, &row)?;
        let state = if on.is_empty() { JobState::Ready } else { JobState::Waiting };
        let mut row = Row { state, failures: 0, crashes: 0, due: 0, named: false, ..row };
        self.begin_anew(&mut row);
        if let Some(extras) = &mut row.extras {
            // Somebody wants it to run, however late it is.
            (extras.expires, extras.after) = (None, 0);
        }
        self.clear_progress(id, &mut row)?;
        self.register_again(id, &row)?;
        self.wait_for(id, &mut row, &on)?;
        self.enter(id, &mut row)?;
        self.tell(id, Some(state), None);
        Ok(true)
    }

    /// Returns those of the jobs for which a dead one waited that live, and do not wait for it.
    fn waits_again(&mut self, id: &str, row: &Row) -> Result<Vec<(JobId, Option<u64>)>, BoxError> {
        if row.extras().after == 0 {
            return Ok(Vec::new());
        }
        let mut others: Vec<JobId> = self.waits_of(id)?.into_iter().map(|(other, _)| other).collect();
        others.sort_unstable();
        others.dedup();
        let (mut on, mut behind) = (Vec::new(), None);
        for other in others {
            let of = match self.row(&other) {
                // It cannot end, so nobody waits for it.
                Err(error) if is_damage(&error) => continue,
                of => of?,
            };
            let Some(of) = of.filter(|of| !of.state.is_ended()) else { continue };
            if of.state == JobState::Waiting {
                let behind = match &mut behind {
                    Some(behind) => behind,
                    none => none.insert(self.behind(row)?),
                };
                if behind.as_ref().is_none_or(|behind| behind.contains(&other)) {
                    continue;
                }
            }
            on.push((other, list_in(&of, row.extras().on_dead)));
        }
        Ok(on)
    }

    /// Returns the jobs that wait for this one, also through others. `None`: too many to be sure.
    ///
    /// Mostly there is none, as only [`OnDead::Hold`](crate::OnDead::Hold) waits for a dead
    /// job. To search from the other side would take as long as the chain before the job is, and
    /// the whole chain is requeued job by job.
    fn behind(&mut self, row: &Row) -> Result<Option<HashSet<JobId>>, BoxError> {
        let (queue, keys) = (self.queue, self.queue.keys);
        let lists = |row: &Row| [row.extras().awaited, row.extras().held_up];
        let (mut seen, mut search) = (HashSet::new(), Vec::from(lists(row)));
        while let Some(list) = search.pop() {
            let Some(list) = list else { continue };
            let mut waiting = Vec::new();
            for pair in self.batch.rows(&queue.rows, KeyRange::prefix(&keys.waiting(list, ""))).take(SEARCH) {
                waiting.extend(split_waiting(&pair?.0).map(str::to_owned));
            }
            if waiting.len() == SEARCH {
                return Ok(None);
            }
            for id in waiting {
                // An entry without this record is stale.
                if self.batch.get(&queue.rows, &keys.awaits(&id, list))?.is_none() || seen.contains(&id) {
                    continue;
                }
                match self.row(&id) {
                    Err(error) if is_damage(&error) => {}
                    row => search.extend(row?.filter(|row| row.state == JobState::Waiting).iter().flat_map(lists)),
                }
                seen.insert(id);
            }
            if seen.len() >= SEARCH {
                return Ok(None);
            }
        }
        Ok(Some(seen))
    }
}
