//! Pushes: what a push does to a job with its id, to its twin, and to those that it waits for.

use crate::rules::ends;
use crate::rules::pushing::{Again, Push, has_room, push_again};
use crate::testing::model::job::Job;
use crate::testing::model::jobs::{Jobs, ModelResult};
use crate::types::error::QueueError;
use crate::types::events::Event;
use crate::types::job::{JobId, JobState, PushOutcome, Pushed, made_number};
use crate::types::related::Effect;
use crate::types::unique::Clash;
use std::collections::BTreeSet;
use waterline::seam::Moment;

/// The jobs that a push is to wait for, and one of them that is dead, so that it dies too.
type AwaitedJobs = (BTreeSet<JobId>, Option<JobId>);

impl Jobs {
    pub(super) fn push_batch(&mut self, pushes: &[Push], at: &Moment) -> ModelResult<Vec<Pushed>> {
        let is_batch = pushes.iter().any(|push| push.awaited_by.is_some());
        let mut pushed: Vec<Pushed> = Vec::new();
        for (n, push) in pushes.iter().enumerate() {
            let mut push = push.clone();
            if is_batch && n + 1 == pushes.len() {
                push.after.extend(pushed.iter().map(|pushed| pushed.id.clone()));
                push.after.sort_unstable();
            }
            pushed.push(self.push(&push, true, at)?);
        }
        Ok(pushed)
    }

    pub(super) fn push(&mut self, push: &Push, is_bounded: bool, at: &Moment) -> ModelResult<Pushed> {
        let push = &*push.of_time(at.wall);
        let id = &push.id;
        self.next_id = self.next_id.max(push.made.map_or(0, |made| made + 1));
        let old = self.all.get(id).map(|job| job.row.clone());
        let (waits, died) = self.waits(id, push)?;
        if let Some(twin) = self.twin_of(push, at) {
            return self.push_to_twin(&twin, push, at);
        }
        let has_waits = !waits.is_empty() || died.is_some();
        let again = match old.as_ref().map(|old| push_again(old.state, old.due, push.row.due)) {
            Some(Again::Same) if died.is_some() => Some(Again::Move),
            Some(Again::Same) if !push.after.is_empty() && !self.waits_so(id, push, &waits) => Some(Again::Move),
            Some(Again::Flag) if has_waits => {
                return Err(QueueError::AlreadyRuns { queue: self.name.clone(), id: id.clone() });
            }
            again => again,
        };
        match again {
            Some(Again::Same) => Ok(pushed(id, PushOutcome::Duplicate(id.clone()))),
            Some(Again::Flag) => {
                let row = &mut self.job_mut(id)?.row;
                (row.resubmit, row.resubmitted) = (Some(push.row.due), push.reckoned_at(at.wall));
                Ok(pushed(id, PushOutcome::Resubmit))
            }
            _ => {
                if is_bounded && old.is_none_or(|old| old.state.is_ended()) {
                    self.check_room()?;
                }
                self.place(id, push, (waits, died), again == Some(Again::Move), at);
                let outcome = if again == Some(Again::Move) { PushOutcome::Rescheduled } else { PushOutcome::Added };
                Ok(pushed(id, outcome))
            }
        }
    }

    pub(super) fn waits_so(&self, id: &str, push: &Push, waits: &BTreeSet<JobId>) -> bool {
        let job = &self.all[id];
        job.after == *waits && (waits.is_empty() || job.row.extras().on_dead == push.row.extras().on_dead)
    }

    pub(super) fn check_room(&self) -> ModelResult<()> {
        match self.options.max_waiting {
            Some(max_waiting) if !has_room(self.waiting(), Some(max_waiting)) => {
                Err(QueueError::Full { queue: self.name.clone(), max_waiting })
            }
            _ => Ok(()),
        }
    }

    /// Puts a job into the place of a new one, or of an old one with its id.
    pub(super) fn place(&mut self, id: &str, push: &Push, (waits, died): AwaitedJobs, is_moved: bool, at: &Moment) {
        let mut row = push.row.clone();
        row.state =
            if waits.is_empty() || died.is_some() { ends::waiting(row.due, at.wall) } else { JobState::Waiting };
        if let Some(old) = self.all.get(id).map(|job| job.row.clone()) {
            self.release_ended(id, &old, true);
            self.is_next_alone &= !old.extras().is_suspect || !old.state.waits();
            if self.all[id].progress.is_some() {
                self.told.push(Event::Anew { id: id.to_owned() });
            }
            if is_moved {
                (row.failures, row.crashes, row.error) = (old.failures, old.crashes, old.error.clone());
                if old.extras().is_suspect {
                    row.extras_mut().is_suspect = true;
                }
            }
            if push.after.is_empty() && !waits.is_empty() {
                row.extras_mut().on_dead = old.extras().on_dead;
            }
        }
        self.begin_anew(&mut row);
        let meta = serde_json::from_slice(&push.meta).unwrap_or_default();
        let (payload, lease) = (push.payload.clone(), None);
        let beside = self.beside_of(id, is_moved);
        let after = if died.is_none() { waits.clone() } else { BTreeSet::new() };
        let job = Job { row, payload, data: None, meta, progress: None, after, lease, beside };
        self.all.insert(id.to_owned(), job);
        self.gone.remove(id);
        self.enter(id, at);
        self.register(id, push.window, at);
        self.tell(id, Some(None));
        if let Some(of) = died {
            let error = format!("the job {of:?} is dead, and this one was to run after it");
            self.all.get_mut(id).into_iter().for_each(|job| job.after = waits.clone());
            self.end_unrun(id, Err(error), at);
        }
    }

    pub(super) fn push_to_twin(&mut self, id: &str, push: &Push, at: &Moment) -> ModelResult<Pushed> {
        let old = self.all.get(id).map(|job| job.row.clone());
        match (push.clash, old) {
            (Clash::Replace, Some(old)) if old.state.waits() => {
                let waits = self.waits(id, push)?;
                self.place(id, push, waits, true, at);
                Ok(pushed(id, PushOutcome::Rescheduled))
            }
            (Clash::Earliest, Some(old)) if old.state == JobState::Scheduled && push.row.due < old.due => {
                self.make_due(id, push.row.due, push.row.named, at)?;
                Ok(pushed(id, PushOutcome::Rescheduled))
            }
            _ => Ok(pushed(id, PushOutcome::Duplicate(id.to_owned()))),
        }
    }

    fn make_due(&mut self, id: &str, due: u64, named: bool, at: &Moment) -> ModelResult<()> {
        let row = &mut self.job_mut(id)?.row;
        (row.due, row.named, row.state) = (due, named, ends::waiting(due, at.wall));
        self.enter(id, at);
        self.tell(id, None);
        Ok(())
    }

    pub(super) fn run_now(&mut self, id: &str, at: &Moment) -> ModelResult<bool> {
        let is_scheduled = self.job_mut(id)?.row.state == JobState::Scheduled;
        if is_scheduled {
            self.make_due(id, 0, false, at)?;
        }
        Ok(is_scheduled)
    }

    pub(super) fn waits(&self, id: &str, push: &Push) -> ModelResult<AwaitedJobs> {
        let old = self.all.get(id).filter(|job| job.row.state == JobState::Waiting);
        if let Some(old) = old.filter(|_| push.after.is_empty()) {
            return Ok((old.after.clone(), None));
        }
        let cycle = |through: &str| QueueError::Cycle {
            queue: self.name.clone(),
            id: id.to_owned(),
            through: Some(through.to_owned()),
        };
        let (mut on, mut died) = (BTreeSet::new(), None);
        for other in &push.after {
            if other == id {
                return Err(cycle(id));
            }
            let Some(job) = self.all.get(other) else {
                if self.gone.contains_key(other) || made_number(other).is_some_and(|number| number < self.next_id) {
                    continue;
                }
                return Err(self.not_found(other));
            };
            let effect = push.row.extras().on_dead.effect(job.row.state == JobState::Dead);
            match effect {
                Effect::Counts if job.row.state.is_ended() => {}
                Effect::Dies if job.row.state.is_ended() => {
                    on.insert(other.clone());
                    died = died.or_else(|| Some(other.clone()));
                }
                _ => drop(on.insert(other.clone())),
            }
        }
        match on.iter().find(|through| self.waits_for(through, id)) {
            Some(through) => Err(cycle(through)),
            None => Ok((on, died)),
        }
    }

    /// True if a job waits for another one, directly or through others.
    pub(super) fn waits_for(&self, id: &str, of: &str) -> bool {
        let (mut search, mut seen) = (vec![id], BTreeSet::new());
        while let Some(next) = search.pop() {
            let job = self.all.get(next).filter(|job| job.row.state == JobState::Waiting);
            for other in job.iter().flat_map(|job| &job.after) {
                if other == of {
                    return true;
                }
                if seen.insert(other) {
                    search.push(other);
                }
            }
        }
        false
    }

    /// Applies the end of a job to those that wait for it. A job that dies with it applies its own
    /// end after that.
    pub(super) fn end_waits(&mut self, of: &str, died: bool, at: &Moment) {
        self.endings.push_back((of.to_owned(), died));
        if std::mem::replace(&mut self.is_telling, true) {
            return;
        }
        while let Some((of, died)) = self.endings.pop_front() {
            let mut told = self.ids(|job| job.row.state == JobState::Waiting && job.after.contains(&of));
            told.sort_by_key(|id| self.turn_to_hear(&self.all[id]));
            for id in told {
                self.end_wait(&id, &of, died, at);
            }
        }
        self.is_telling = false;
    }

    fn end_wait(&mut self, id: &str, of: &str, died: bool, at: &Moment) {
        let Some(job) = self.all.get_mut(id) else { return };
        match job.row.extras().on_dead.effect(died) {
            Effect::Waits => {}
            Effect::Dies => {
                let error = format!("the job {of:?} is dead, and this one was to run after it");
                self.end_unrun(id, Err(error), at);
            }
            Effect::Counts => {
                job.after.remove(of);
                job.row.extras_mut().after = job.after.len() as u32;
                if job.after.is_empty() {
                    job.row.state = ends::waiting(job.row.due, at.wall);
                    let given = job.row.since;
                    self.enter_given(id, given, at);
                    self.tell(id, None);
                }
            }
        }
    }
}

fn pushed(id: &str, outcome: PushOutcome) -> Pushed {
    Pushed { id: id.to_owned(), outcome }
}
