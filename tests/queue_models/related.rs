//! The rules of jobs that wait for others.

use super::model::{Job, Model, Push, waiting};
use std::collections::{BTreeSet, VecDeque};
use waterline::queue::{JobState, OnDead};

/// The things that a queue remembers of jobs for those that wait for them.
#[derive(Clone, Debug, Default)]
pub struct Related {
    /// The ids of jobs that have gone.
    gone: BTreeSet<String>,
    /// Ends that are still to be told: the id of the job, and true if it has died.
    ends: VecDeque<(String, bool)>,
    is_telling: bool,
}

/// A reason to push nothing.
#[derive(Debug, PartialEq)]
pub enum Refusal {
    NotFound(String),
    Cycle,
    AlreadyRuns,
}

/// The jobs that a job is to wait for, or one of them that is dead, so that this job dies too.
#[derive(Debug, Default)]
pub struct Waits {
    pub on: BTreeSet<String>,
    pub died: Option<String>,
    /// Those of the push that have not ended, and those that have died.
    pub all: BTreeSet<String>,
}

impl Waits {
    pub fn is_over(&self) -> bool {
        self.on.is_empty() && self.died.is_none()
    }

    /// True if the push names no jobs, or those that the old job waits for already.
    pub fn are_those_of(&self, old: &Job, push: &Push) -> bool {
        let is_same = self.died.is_none() && self.on == old.after;
        push.after.is_empty() || is_same && (self.on.is_empty() || push.job.on_dead == old.on_dead)
    }
}

impl Model {
    /// Returns what the job of a push is to wait for if it takes this id.
    pub fn waits(&self, id: &str, push: &Push) -> Result<Waits, Refusal> {
        let old = self.jobs.get(id).filter(|old| old.state == JobState::Waiting && push.after.is_empty());
        if let Some(old) = old {
            return Ok(Waits { on: old.after.clone(), ..Waits::default() });
        }
        let mut waits = Waits::default();
        for other in &push.after {
            if other == id {
                return Err(Refusal::Cycle);
            }
            match (self.jobs.get(other).map(|job| job.state), push.job.on_dead) {
                (None, _) if self.related.gone.contains(other) => {}
                (None, _) => return Err(Refusal::NotFound(other.clone())),
                (Some(JobState::Finished), _) | (Some(JobState::Dead), OnDead::Run) => {}
                (Some(JobState::Dead), OnDead::Die) => {
                    waits.all.insert(other.clone());
                    waits.died = waits.died.or_else(|| Some(other.clone()));
                }
                (Some(_), _) => drop(waits.on.insert(other.clone())),
            }
        }
        if waits.on.iter().any(|other| self.reaches(other, id)) {
            return Err(Refusal::Cycle);
        }
        if waits.died.is_some() {
            waits.all.append(&mut waits.on);
        }
        Ok(waits)
    }

    /// Returns what a dead job waits for when it is requeued.
    pub fn waits_again(&self, id: &str, job: &Job) -> BTreeSet<String> {
        let lives = |other: &str| self.jobs.get(other).is_some_and(|job| !job.state.is_ended());
        job.waited_for.iter().filter(|other| lives(other) && !self.reaches(other, id)).cloned().collect()
    }

    /// True if the job waits for the other one, maybe through more of them.
    fn reaches(&self, from: &str, to: &str) -> bool {
        from == to || self.jobs.get(from).is_some_and(|job| job.after.iter().any(|next| self.reaches(next, to)))
    }

    /// Tells those who wait for a job that it has ended.
    pub fn tell(&mut self, id: &str, died: bool, wall: u64) {
        self.related.ends.push_back((id.to_owned(), died));
        // The death of one that is told is told after this end.
        if std::mem::replace(&mut self.related.is_telling, true) {
            return;
        }
        while let Some((of, died)) = self.related.ends.pop_front() {
            // Those whom its death leaves waiting are told of its other ends, after the others.
            for held_up in if died { &[false][..] } else { &[false, true] } {
                let told = self.jobs.iter().filter(|(_, job)| (job.on_dead == OnDead::Hold) == *held_up);
                let told: Vec<_> = told.filter(|(_, job)| job.after.contains(&of)).map(|(id, _)| id.clone()).collect();
                told.iter().for_each(|id| self.tell_one(id, &of, died, wall));
            }
        }
        self.related.is_telling = false;
    }

    fn tell_one(&mut self, id: &str, of: &str, died: bool, wall: u64) {
        let mut job = self.jobs[id].clone();
        if died && job.on_dead == OnDead::Die {
            return self.die_after(id, of, wall);
        }
        job.after.remove(of);
        if job.after.is_empty() {
            job.state = waiting(job.due, wall);
            // Until it is due, the time is that at which it was given its due time.
            let given = (job.state == JobState::Scheduled).then_some(job.since);
            self.enter(id, job, given.unwrap_or(wall));
        } else {
            self.jobs.insert(id.to_owned(), job);
        }
    }

    pub fn die_after(&mut self, id: &str, of: &str, wall: u64) {
        self.die(id, format!("the job {of:?} is dead, and this one was to run after it"), wall);
    }

    pub fn forget(&mut self, id: &str) {
        self.leave(id);
        self.jobs.remove(id);
        self.related.gone.insert(id.to_owned());
    }
}
