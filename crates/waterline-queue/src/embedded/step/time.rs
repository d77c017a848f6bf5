//! The work that time brings: due jobs, expired rows, and the jobs of a process that has died.

use crate::embedded::keys::List;
use crate::embedded::step::Step;
use crate::embedded::step::ending::Unrun;
use crate::rules::ends::{End, Over, Run, end_of_lease};
use crate::types::events::{Damaged, Event};
use crate::types::job::{JobId, JobState};
use waterline::BoxError;

impl Step<'_, '_> {
    /// Runs one bounded round of maintenance: makes due jobs ready, pushes those of periodic jobs,
    /// and removes what has expired, up to `most` of each.
    pub(crate) fn run_maintenance(&mut self, most: usize) -> Result<(), BoxError> {
        let wall = self.txn.at.wall;
        if self.txn.queue.options.admin {
            return Ok(());
        }
        self.txn.follow_clock()?;
        if self.txn.staged.from.ticks() <= wall {
            self.tick(most)?;
        }
        if self.txn.staged.from.of(List::Refills) <= wall {
            for (at, limit) in self.txn.take_listed(List::Refills, most)? {
                self.txn.refill(at, &limit)?;
            }
        }
        if self.txn.staged.from.of(List::Scheduled) <= wall {
            for (at, id) in self.txn.take_listed(List::Scheduled, most)? {
                let row = self.txn.row_in(JobState::Scheduled, &id)?;
                let row = row.filter(|row| row.state == JobState::Scheduled && row.due == at);
                match row {
                    Some(mut row) => {
                        self.txn.leave(&id, &row)?;
                        row.state = JobState::Ready;
                        self.txn.enter(&id, &mut row)?;
                        self.txn.tell(&id, Some(JobState::Ready), None);
                    }
                    None => self.txn.remove_entry(List::Scheduled, at, &id)?,
                }
            }
        }
        if self.txn.staged.from.of(List::Expiring) <= wall {
            for (at, id) in self.txn.take_listed(List::Expiring, most)? {
                self.expire(at, &id)?;
            }
        }
        if self.txn.staged.from.of(List::Marks) <= wall {
            for (at, entry) in self.txn.take_listed(List::Marks, most)? {
                self.txn.forget_mark(at, &entry)?;
            }
        }
        if self.txn.staged.from.of(List::Untold) < u64::MAX {
            self.tell_untold(most)?;
        }
        if self.txn.staged.from.of(List::Gone) <= wall {
            self.txn.forget_gone()?;
        }
        for (list, state) in [(List::Finished, JobState::Finished), (List::Dead, JobState::Dead)] {
            if self.txn.staged.from.of(list) > wall {
                continue;
            }
            for (at, id) in self.txn.take_listed(list, most)? {
                match self.txn.row_in(state, &id)?.filter(|row| row.state == state && row.place == at) {
                    Some(row) => self.remove_row(&id, row, false)?,
                    None => self.txn.remove_entry(list, at, &id)?,
                }
            }
        }
        self.find_lost().map(drop)
    }

    /// Pauses the queue until this time; 0 resumes it.
    pub(crate) fn pause(&mut self, until: u64) {
        let wall = self.txn.at.wall;
        let head = self.txn.head();
        (head.paused_until, head.paused_since) = (until, wall);
        self.txn.staged.tell(Event::Paused { until });
    }

    /// Ends a job that still waits at its expiry.
    fn expire(&mut self, at: u64, id: &str) -> Result<(), BoxError> {
        let row = self.txn.row_in(None, id)?;
        let row = row.filter(|row| row.extras().expires == Some(at) && row.state.waits());
        match row {
            Some(row) => self.end_unrun(id, row, Unrun::expired()),
            // It runs, or the entry is stale. A job that waits again gets a new entry.
            None => Ok(self.txn.remove_entry(List::Expiring, at, id)?),
        }
    }

    /// Takes over from a process that has died: each of its running jobs counts a crash, unless its
    /// runner was stopping. Returns the number of crashes.
    pub(crate) fn recover(&mut self, running: &[(u64, Result<JobId, String>)]) -> Result<u64, BoxError> {
        self.txn.follow_clock()?;
        self.txn.head().epoch += 1;
        self.txn.staged.life = self.txn.staged.head.next_token;
        let (mut count, mut is_lost) = (0, false);
        for (token, id) in running {
            let id = match id {
                Ok(id) => id,
                Err(error) => {
                    // The recount finds the job that lost it.
                    let place = format!("{token} of the running jobs");
                    self.txn.log_damage(Damaged::Entry { place, error: error.clone() });
                    self.txn.delete(self.txn.rows(), &self.txn.queue.keys.running(*token))?;
                    continue;
                }
            };
            let row = self.txn.row_in(JobState::Running, id)?;
            match row.filter(|row| row.has_lease(*token)) {
                Some(row) => {
                    let end = end_of_lease(Over::Died, row.extras().is_stopping);
                    let is_crash = end == End::Crashed;
                    self.end_row(id, row, end, None, &Run::default())?;
                    count += u64::from(is_crash);
                }
                // Its row is damaged, or the entry should name another job.
                None => {
                    self.txn.delete(self.txn.rows(), &self.txn.queue.keys.running(*token))?;
                    is_lost = true;
                }
            }
        }
        is_lost |= self.txn.staged.head.counts[JobState::Running.number()] > 0;
        for id in self.txn.all_damaged()? {
            // Its row may have been restored.
            is_lost |= self.txn.row(&id).is_ok();
        }
        if is_lost {
            self.recount()?;
        }
        self.txn.look_at_limits()?;
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
    fn jobs_that_crashed_together_twice_spread_out() {
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
        // Each waits for a random time within a second, so few of them meet.
        assert!(scheduled.len() >= 8 && due.len() >= scheduled.len() - 3, "{due:?}");
    }

    #[test]
    fn a_crashed_job_is_claimed_alone_next_time() {
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
        // The last one has met no crash yet, and now comes first.
        for ids in [&["0", "1", "2"][..], &["3"], &["0"], &["1"]] {
            let claimed = claim();
            assert_eq!(claimed.iter().map(|job| &*job.id).collect::<Vec<_>>(), ids);
            assert_eq!(died(&claimed), ids.len() as u64);
        }
        assert_eq!(["0", "1", "2", "3"].map(|id| queue.get(id).unwrap().unwrap().crashes), [2, 2, 1, 1]);
    }
}
