//! The rules by which jobs are compared with others: unique ones, skipped ones, roots, and expiry.

use super::model::{Job, Kept, Model, RETENTION, Until, waits};
use std::collections::{BTreeMap, BTreeSet};
use waterline::queue::{JobState, Skipped};

const DAY: u64 = 86_400_000;

/// The things that a queue remembers of jobs.
#[derive(Clone, Debug, Default)]
pub struct Compared {
    /// The owner of each page, and the end of its window.
    unique: BTreeMap<u8, (String, Option<u64>)>,
    /// The order of the last run of each page that succeeded, and the time until which it counts.
    executed: BTreeMap<u8, (u64, u64)>,
    /// The newest root of each tree, and the time until which it counts.
    roots: BTreeMap<u8, (u64, u64)>,
    pub expiring: BTreeSet<(u64, String)>,
}

impl Compared {
    /// Forgets all whose time is over.
    pub fn forget(&mut self, wall: u64) {
        self.unique.retain(|_, (_, until)| until.is_none_or(|until| until > wall));
        self.executed.retain(|_, (_, until)| *until > wall);
        self.roots.retain(|_, (_, until)| *until > wall);
    }
}

impl Model {
    /// Returns the job that refuses a new one.
    pub fn twin(&self, new: &Job, wall: u64) -> Option<String> {
        let page = new.more.page.filter(|_| new.more.unique.is_some())?;
        let (owner, until) = self.compared.unique.get(&page)?;
        let refuses = |job: &Job| match job.more.unique {
            _ if job.more.page != Some(page) => false,
            Some(Until::Claimed) => waits(job.state),
            Some(Until::Done) => !matches!(job.state, JobState::Finished | JobState::Dead),
            Some(Until::Window(_)) => true,
            None => false,
        };
        let refuses = match until {
            Some(until) => *until > wall,
            None => self.jobs.get(owner).is_some_and(refuses),
        };
        refuses.then(|| owner.clone())
    }

    pub fn register(&mut self, id: &str, job: &Job, wall: u64) {
        if let (Some(page), Some(unique)) = (job.more.page, job.more.unique) {
            let until = if let Until::Window(window) = unique { Some(wall + window) } else { None };
            self.compared.unique.insert(page, (id.to_owned(), until));
        }
        if let Some((tree, time, true)) = job.more.root {
            let old = self.compared.roots.get(&tree).filter(|(_, until)| *until > wall);
            if old.is_none_or(|(old, _)| *old <= time) {
                self.compared.roots.insert(tree, (time, wall + 28 * DAY));
            }
        }
    }

    pub fn register_again(&mut self, id: &str, job: &Job, wall: u64) {
        let is_window = matches!(job.more.unique, Some(Until::Window(_)));
        if !is_window && job.more.unique.is_some() && self.twin(job, wall).is_none() {
            self.compared.unique.extend(job.more.page.map(|page| (page, (id.to_owned(), None))));
        }
    }

    fn release(&mut self, id: &str, job: &Job) {
        if let Some(page) = job.more.page.filter(|_| job.more.unique.is_some())
            && self.compared.unique.get(&page).is_some_and(|(owner, _)| owner == id)
        {
            self.compared.unique.remove(&page);
        }
    }

    pub fn release_claimed(&mut self, id: &str) {
        let job = self.jobs[id].clone();
        if let Some(expires) = self.jobs.get_mut(id).unwrap().more.expires.take() {
            self.compared.expiring.remove(&(expires, id.to_owned()));
        }
        if job.more.unique == Some(Until::Claimed) {
            self.release(id, &job);
            let more = &mut self.jobs.get_mut(id).unwrap().more;
            more.unique = None;
            more.page = more.page.filter(|_| more.skips_from.is_some());
        }
    }

    /// A job has ended, was removed, or was replaced.
    pub fn settle(&mut self, id: &str, job: &Job, is_removed: bool) {
        if let Some(expires) = job.more.expires {
            self.compared.expiring.remove(&(expires, id.to_owned()));
        }
        if is_removed || !matches!(job.more.unique, Some(Until::Window(_))) {
            self.release(id, job);
        }
    }

    pub fn remove(&mut self, id: &str, is_wanted: bool, wall: u64) -> bool {
        let Some(job) = self.jobs.get(id).cloned() else { return false };
        self.forget(id);
        self.settle(id, &job, is_wanted);
        self.tell(id, false, wall);
        true
    }

    pub fn begin_anew(&self, job: &mut Job) {
        job.more.skips_from = job.more.skips_from.map(|_| self.next_order());
    }

    pub fn note_executed(&mut self, run: &Job, wall: u64) {
        if let (Some(page), Some(_)) = (run.more.page, run.more.skips_from) {
            let old = self.compared.executed.get(&page).filter(|(_, until)| *until > wall);
            let order = old.map_or(0, |(order, _)| *order).max(run.order);
            self.compared.executed.insert(page, (order, wall + DAY));
        }
    }

    /// Ends a job that is not to run, if this is one.
    pub fn is_unrun(&mut self, id: &str, wall: u64) -> bool {
        let job = &self.jobs[id];
        if job.more.expires.is_some_and(|expires| expires <= wall) {
            self.expired(id, wall);
            return true;
        }
        let newest = job.more.root.and_then(|(tree, ..)| self.compared.roots.get(&tree));
        let newest = newest.filter(|(_, until)| *until > wall);
        let is_old = newest.is_some_and(|(newest, _)| job.more.root.is_some_and(|(_, time, _)| time < *newest));
        let is_first = job.failures == 0 && job.crashes == 0;
        let last = job.more.page.and_then(|page| self.compared.executed.get(&page)).filter(|(_, until)| *until > wall);
        let is_done = is_first && last.is_some_and(|(order, _)| job.more.skips_from.is_some_and(|from| *order >= from));
        let skipped = match (is_old, is_done) {
            (true, _) => Skipped::Superseded,
            (_, true) => Skipped::Executed,
            _ => return false,
        };
        let mut job = job.clone();
        (job.state, job.more.skipped) = (JobState::Finished, Some(skipped));
        let kept = job.retention.unwrap_or(Kept::For(RETENTION));
        self.keep(id, job, kept, wall);
        true
    }

    fn expired(&mut self, id: &str, wall: u64) {
        self.die(id, "it expired: no worker had taken it in time".to_owned(), wall);
    }

    /// Looks at so many entries of jobs that expire.
    pub fn expire(&mut self, most: usize, wall: u64) {
        let over: Vec<_> = self.compared.expiring.iter().take(most).filter(|(at, _)| *at <= wall).cloned().collect();
        for (at, id) in over {
            self.compared.expiring.remove(&(at, id.clone()));
            if self.jobs.get(&id).filter(|job| waits(job.state)).is_some_and(|job| job.more.expires == Some(at)) {
                self.expired(&id, wall);
            }
        }
    }
}
