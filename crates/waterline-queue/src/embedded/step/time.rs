//! The work that time brings: jobs that are due, rows whose time is over, and jobs of a process
//! that has died.

use crate::embedded::codec::durations::Pair;
use crate::embedded::keys::{List, split_entry};
use crate::embedded::step::Step;
use crate::embedded::step::claiming::expired;
use crate::rules::ends::{End, Over, Run, end_of_lease};
use crate::types::events::{Damaged, Event};
use crate::types::job::{JobId, JobState};
use waterline::BoxError;
use waterline::seam::KeyRange;

impl Step<'_, '_> {
    /// Makes due jobs ready, makes those of periodic jobs, and removes rows whose time is over:
    /// some of each.
    pub(crate) fn run_maintenance(&mut self, most: usize) -> Result<(), BoxError> {
        let wall = self.at.wall;
        if self.queue.options.admin {
            return Ok(());
        }
        self.follow_clock()?;
        if self.staged.from.ticks() <= wall {
            self.tick(most)?;
        }
        if self.staged.from.of(List::Refills) <= wall {
            for (at, limit) in self.take_listed(List::Refills, most)? {
                self.refill(at, &limit)?;
            }
        }
        if self.staged.from.of(List::Scheduled) <= wall {
            for (at, id) in self.take_listed(List::Scheduled, most)? {
                let row = self.row_in(JobState::Scheduled, &id)?;
                let row = row.filter(|row| row.state == JobState::Scheduled && row.due == at);
                match row {
                    Some(mut row) => {
                        self.leave(&id, &row)?;
                        row.state = JobState::Ready;
                        self.enter(&id, &mut row)?;
                        self.tell(&id, Some(JobState::Ready), None);
                    }
                    None => self.remove_entry(List::Scheduled, at, &id)?,
                }
            }
        }
        if self.staged.from.of(List::Expiring) <= wall {
            for (at, id) in self.take_listed(List::Expiring, most)? {
                self.expire(at, &id)?;
            }
        }
        if self.staged.from.of(List::Marks) <= wall {
            for (at, entry) in self.take_listed(List::Marks, most)? {
                self.forget_mark(at, &entry)?;
            }
        }
        if self.staged.from.of(List::Untold) < u64::MAX {
            self.tell_untold(most)?;
        }
        if self.staged.from.of(List::Gone) <= wall {
            self.forget_gone()?;
        }
        for (list, state) in [(List::Finished, JobState::Finished), (List::Dead, JobState::Dead)] {
            if self.staged.from.of(list) > wall {
                continue;
            }
            for (at, id) in self.take_listed(list, most)? {
                match self.row_in(state, &id)?.filter(|row| row.state == state && row.place == at) {
                    Some(row) => self.remove_row(&id, row, false)?,
                    None => self.remove_entry(list, at, &id)?,
                }
            }
        }
        Ok(())
    }

    /// Pauses the queue until this time; 0: not any more.
    pub(crate) fn pause(&mut self, until: u64) {
        let wall = self.at.wall;
        let head = self.head();
        (head.paused_until, head.paused_since) = (until, wall);
        self.staged.tell(Event::Paused { until });
    }

    /// Ends a job that waits although it was to have begun by this time.
    fn expire(&mut self, at: u64, id: &str) -> Result<(), BoxError> {
        let row = self.row_in(None, id)?;
        let row = row.filter(|row| row.extras().expires == Some(at) && row.state.waits());
        match row {
            Some(row) => self.end_unrun(id, row, expired()),
            // It runs, or the entry is stale. A job that waits once more enters it again.
            None => Ok(self.remove_entry(List::Expiring, at, id)?),
        }
    }

    /// Returns the entries of a list whose time has come, and notes where the next look begins.
    fn take_listed(&mut self, list: List, most: usize) -> Result<Vec<(u64, JobId)>, BoxError> {
        let (listed, next) = self.listed(list, self.at.wall, most)?;
        self.staged.from.set(list, next);
        Ok(listed)
    }

    /// Returns the first entries of a list up to this time, and the number of the entry behind
    /// them; `u64::MAX` if there is none.
    pub(super) fn listed(&mut self, list: List, until: u64, most: usize) -> Result<(Vec<(u64, JobId)>, u64), BoxError> {
        let keys = self.queue.keys;
        let from = keys.entries_from(list, self.staged.from.of(list));
        let (mut listed, mut unreadable, mut next) = (Vec::new(), Vec::new(), u64::MAX);
        for pair in self.batch.rows(&self.queue.entries, KeyRange { from, to: Some(keys.entries_end(list)) }) {
            let (key, _): Pair = pair?;
            let Some((at, id)) = split_entry(&key) else {
                unreadable.push(key);
                continue;
            };
            if at > until || listed.len() == most {
                next = at;
                break;
            }
            listed.push((at, id.to_owned()));
        }
        if !unreadable.is_empty() {
            // Nobody knows whose they were.
            unreadable.iter().try_for_each(|key| self.delete(self.entries(), key))?;
            self.recount()?;
        }
        Ok((listed, next))
    }

    /// Takes over from a process that has died: its running jobs count a crash each, but not those
    /// whose runner was stopping. Returns the number of crashes.
    pub(crate) fn recover(&mut self, running: &[(u64, Result<JobId, String>)]) -> Result<u64, BoxError> {
        self.follow_clock()?;
        self.head().epoch += 1;
        self.staged.life = self.staged.head.next_token;
        let (mut count, mut is_lost) = (0, false);
        for (token, id) in running {
            let id = match id {
                Ok(id) => id,
                Err(error) => {
                    // The job that has lost it is found by the count.
                    let place = format!("{token} of the running jobs");
                    self.log_damage(Damaged::Entry { place, error: error.clone() });
                    self.delete(self.rows(), &self.queue.keys.running(*token))?;
                    continue;
                }
            };
            let row = self.row_in(JobState::Running, id)?;
            match row.filter(|row| row.has_lease(*token)) {
                Some(row) => {
                    let end = end_of_lease(Over::Died, row.extras().is_stopping);
                    let is_crash = end == End::Crashed;
                    self.end_row(id, row, end, None, &Run::default())?;
                    count += u64::from(is_crash);
                }
                // Its row is damaged, or the entry of another job names it.
                None => {
                    self.delete(self.rows(), &self.queue.keys.running(*token))?;
                    is_lost = true;
                }
            }
        }
        is_lost |= self.staged.head.counts[JobState::Running.number()] > 0;
        for id in self.all_damaged()? {
            // Somebody may have restored its row.
            is_lost |= self.row(&id).is_ok();
        }
        if is_lost {
            self.recount()?;
        }
        self.look_at_limits()?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use crate::accept::Accept;
    use crate::engine::{Beside, Claim, Claimed};
    use crate::handle::Queue;
    use crate::types::job::JobState;
    use crate::types::new_job::NewJob;
    use crate::types::options::QueueOptions;
    use crate::types::wanted::Wanted;
    use std::collections::BTreeSet;
    use waterline::Store;

    #[test]
    fn jobs_that_were_running_when_their_process_died_a_second_time_part() {
        let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default()).unwrap();
        queue.push_all((0..10).map(|n| NewJob::new("k", &n).unwrap())).unwrap();
        let mut leases = Vec::new();
        for life in 0..2 {
            let claimed: Vec<_> = (0..10).map(|_| queue.accept(Accept::new()).unwrap().unwrap()).collect();
            let running: Vec<_> = (life * 10..).zip(claimed.iter().map(|lease| Ok(lease.id().to_owned()))).collect();
            let died = queue.call(move |step| step.recover(&running));
            assert_eq!(died.unwrap(), 10);
            leases.extend(claimed);
        }
        let scheduled = queue.list(JobState::Scheduled, None, 10).unwrap();
        let due: BTreeSet<_> = scheduled.iter().map(|job| job.run_at).collect();
        // Each waits for a time of its own within a second, so few of them meet.
        assert!(scheduled.len() >= 8 && due.len() >= scheduled.len() - 3, "{due:?}");
    }

    #[test]
    fn a_job_that_has_met_a_crash_is_claimed_alone_so_the_next_crash_counts_for_no_other() {
        let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default()).unwrap();
        queue.push_all((0..4).map(|n| NewJob::new("k", &n).unwrap().id(n.to_string()))).unwrap();
        let claim = || {
            let claim = Claim { queue: queue.number, most: 3, wanted: Wanted::default() };
            queue.engine.turn(&[], Some(claim), Beside::Tidy).unwrap().claimed
        };
        let died = |claimed: &[Claimed]| {
            let running: Vec<_> = claimed.iter().map(|job| (job.row.place, Ok(job.id.clone()))).collect();
            queue.call(move |step| step.recover(&running)).unwrap()
        };
        // The last one has met no crash so far, and is before the others now.
        for ids in [&["0", "1", "2"][..], &["3"], &["0"], &["1"]] {
            let claimed = claim();
            assert_eq!(claimed.iter().map(|job| &*job.id).collect::<Vec<_>>(), ids);
            assert_eq!(died(&claimed), ids.len() as u64);
        }
        assert_eq!(["0", "1", "2", "3"].map(|id| queue.get(id).unwrap().unwrap().crashes), [2, 2, 1, 1]);
    }
}
