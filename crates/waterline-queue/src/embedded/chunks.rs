//! Calls for all jobs of a state, in several writes of bounded size.

use crate::embedded::engine::Embedded;
use crate::embedded::reader::Reader;
use crate::engine::{QueueEngine, QueueNo};
use crate::rules::causes::CausesFirst;
use crate::types::error::QueueError;
use crate::types::job::{JobId, JobState};
use waterline::Error;

/// The most jobs changed in one write, counting the ones that they wait for.
const CHUNK: usize = 1000;

impl Embedded {
    /// Removes the jobs that are in a state now.
    pub(super) fn purge(&self, queue: QueueNo, state: JobState) -> Result<u64, QueueError> {
        let mut count = 0;
        self.in_chunks(queue, state, |ids| {
            let changed = ids.len();
            count += self.call(queue, "purge a queue", move |step| step.remove_waiting(state, &ids))?;
            Ok(changed)
        })?;
        Ok(count)
    }

    /// Requeues the jobs that are dead now, so that each meets the ones that it waited for alive.
    /// If the process ends between two writes, the rest stays dead.
    pub(super) fn requeue_dead(&self, queue: QueueNo) -> Result<u64, QueueError> {
        let mut count = 0;
        self.in_chunks(queue, JobState::Dead, |ids| {
            let (mut order, mut changed) = (CausesFirst::new(ids), 0);
            loop {
                let ids = self.read(queue, |look| look.next_dead(&mut order))?;
                if ids.is_empty() {
                    return Ok(changed);
                }
                changed += ids.len();
                count += self.call(queue, "requeue dead jobs", move |step| step.requeue_all(&ids))?;
            }
        })?;
        Ok(count)
    }

    /// Changes all jobs that are in a state now, however many come meanwhile. `change` is given
    /// some of them, and returns how many it took out of the state.
    fn in_chunks(
        &self,
        queue: QueueNo,
        state: JobState,
        mut change: impl FnMut(Vec<JobId>) -> Result<usize, QueueError>,
    ) -> Result<(), QueueError> {
        let mut left = self.counts(queue).of_state(state);
        while left > 0 {
            let mut ids = Vec::new();
            self.read(queue, |look| {
                look.each(state, None, |id, _| {
                    ids.push(id.to_owned());
                    Ok(ids.len() < CHUNK)
                })
            })?;
            if ids.is_empty() {
                break;
            }
            // Another call may have taken all of them.
            left = left.saturating_sub(change(ids)?.max(1) as u64);
        }
        Ok(())
    }
}

impl Reader<'_> {
    /// Returns the dead jobs to requeue next: none of them waited for a later one.
    fn next_dead(&self, order: &mut CausesFirst) -> Result<Vec<JobId>, QueueError> {
        let (mut ids, mut waits) = (Vec::new(), 0);
        while ids.len() + waits < CHUNK {
            let next = order.next(|id| {
                let others = self.waited_for(id)?;
                waits += others.as_ref().map_or(0, Vec::len);
                Ok::<_, QueueError>(others)
            })?;
            let Some(next) = next else { break };
            ids.push(next);
        }
        Ok(ids)
    }

    /// Returns what a dead job still waited for when it died, sorted; `None`: it is not dead.
    fn waited_for(&self, id: &str) -> Result<Option<Vec<JobId>>, QueueError> {
        let row = match self.row(id) {
            // Requeuing it finds the damage, and sets it aside.
            Err(QueueError::Store(Error::Corrupt { .. })) => return Ok(Some(Vec::new())),
            row => row?.filter(|row| row.state == JobState::Dead),
        };
        let Some(row) = row else { return Ok(None) };
        let mut others = Vec::new();
        if row.extras().after > 0 {
            for pair in self.kv.scan(&self.queue.rows, &self.queue.keys.all_awaits(Some(id))) {
                let (_, other) = pair.map_err(Error::from)?;
                others.push(String::from_utf8_lossy(&other).into_owned());
            }
            others.sort_unstable();
        }
        Ok(Some(others))
    }
}
