//! The simple model of a queue: maps, and the rules as the documentation says them.

use super::compared::Compared;
use super::related::{Refusal, Related, Waits};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use waterline::Retry;
use waterline::queue::{Clash, Counts, JobState, OnDead, PushOutcome, Skipped};

/// Jobs that are moved beside each claim, and beside each push and a claim that finds nothing.
const SOME: (usize, usize) = (8, 64);

pub const LEASE: u64 = 60_000;
pub const DEAD_FOR: u64 = 100_000;
pub const RETENTION: u64 = 50_000;
pub const MAX_CRASHES: u32 = 3;

/// The back-off of jobs that have none of their own.
pub fn retry() -> Retry {
    Retry::exponential(Duration::from_secs(1), Duration::from_secs(20)).max_attempts(4).jitter(0.5)
}

/// The two clocks, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Time {
    pub wall: u64,
    pub now: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kept {
    Not,
    For(u64),
    Always,
}

/// The settings by which a job is compared with others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct More {
    /// Jobs with the same number are twins.
    pub page: Option<u8>,
    pub unique: Option<Until>,
    /// The job is skipped for a run of a twin from this order on.
    pub skips_from: Option<u64>,
    /// The tree, the time, and true for the root itself.
    pub root: Option<(u8, u64, bool)>,
    pub expires: Option<u64>,
    pub skipped: Option<Skipped>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Until {
    Claimed,
    Done,
    /// Until so many milliseconds after the push.
    Window(u64),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    pub state: JobState,
    pub kind: String,
    pub payload: u64,
    /// 0 to 3; 0 is the most urgent.
    pub priority: usize,
    pub retry: Option<Retry>,
    pub retention: Option<Kept>,
    pub failures: u32,
    pub crashes: u32,
    /// It runs alone.
    pub suspect: bool,
    pub pushed: u64,
    /// 0: from the push on.
    pub due: u64,
    pub since: u64,
    pub resubmit: Option<u64>,
    /// The time from which the due time of that push was reckoned; 0: the user named it.
    pub reckoned: u64,
    pub data: Option<u64>,
    pub error: String,
    /// Ready: its place in the row. Running: its token.
    pub order: u64,
    /// Finished or dead: the time at which it goes; `None`: never.
    pub kept_until: Option<u64>,
    /// Running: the end of its lease on the monotonic clock.
    pub deadline: u64,
    pub more: More,
    /// Waiting: the jobs whose ends it waits for.
    pub after: BTreeSet<String>,
    /// Dead: those that it still waited for then.
    pub waited_for: BTreeSet<String>,
    pub on_dead: OnDead,
}

#[derive(Clone, Debug)]
pub struct Push {
    pub id: String,
    pub job: Job,
    pub clash: Clash,
    pub after: BTreeSet<String>,
}

#[derive(Clone, Debug)]
pub enum End {
    Finished(Option<u64>),
    Failed(String, Option<u64>),
    Snoozed(u64),
    Buried(String),
    Crashed,
}

#[derive(Clone, Debug, Default)]
pub struct Model {
    pub jobs: BTreeMap<String, Job>,
    pub effects: BTreeMap<String, i64>,
    pub paused_until: u64,
    claims: u64,
    next_order: u64,
    pub compared: Compared,
    pub related: Related,
    /// A suspect waits for the end of the jobs that run, and nothing else begins.
    alone_next: bool,
}

/// The states after each write that one call surely makes.
pub type Writes = Vec<Model>;

impl Model {
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for job in self.jobs.values() {
            *match job.state {
                JobState::Scheduled => &mut counts.scheduled,
                JobState::Ready => &mut counts.ready,
                JobState::Running => &mut counts.running,
                JobState::Finished => &mut counts.finished,
                JobState::Waiting => &mut counts.waiting,
                _ => &mut counts.dead,
            } += 1;
        }
        counts
    }

    pub fn next_order(&self) -> u64 {
        self.next_order
    }

    /// Returns the ids of the jobs in a state, in the order in which a queue lists them.
    pub fn list(&self, state: JobState) -> Vec<String> {
        let mut jobs: Vec<_> = self.jobs.iter().filter(|(_, job)| job.state == state).collect();
        jobs.sort_by_key(|(id, job)| match state {
            JobState::Scheduled => (0, job.due, (*id).clone()),
            JobState::Ready => (job.priority, job.order, String::new()),
            JobState::Running => (0, job.order, String::new()),
            JobState::Waiting => (0, job.since, (*id).clone()),
            _ => (0, job.kept_until.unwrap_or(u64::MAX), (*id).clone()),
        });
        jobs.into_iter().map(|(id, _)| id.clone()).collect()
    }

    /// A job leaves its place.
    pub fn leave(&mut self, id: &str) {
        if self.jobs.get(id).is_some_and(|job| job.suspect && waits(job.state)) {
            self.alone_next = false;
        }
    }

    pub fn enter(&mut self, id: &str, mut job: Job, wall: u64) {
        self.leave(id);
        job.suspect &= waits(job.state) || job.state == JobState::Running;
        job.since = wall;
        if job.state != JobState::Waiting {
            job.after.clear();
        }
        if job.state != JobState::Dead {
            job.waited_for.clear();
        }
        if let Some(expires) = job.more.expires.filter(|_| waits(job.state)) {
            self.compared.expiring.insert((expires, id.to_owned()));
        }
        job.order = self.next_order;
        self.next_order += 1;
        self.jobs.insert(id.to_owned(), job);
    }

    pub fn push(&mut self, push: &Push, wall: u64) -> Result<(String, PushOutcome), Refusal> {
        let (id, due) = (&push.id, push.job.due);
        let after = self.waits(id, push)?;
        if let Some(twin) = self.twin(&push.job, wall) {
            let outcome = self.clash(&twin, push, wall)?;
            return Ok((twin, outcome));
        }
        let is_moved = match self.jobs.get_mut(id) {
            Some(old) if old.state == JobState::Running && after.is_over() => {
                (old.resubmit, old.reckoned) = (Some(due), push.job.reckoned);
                return Ok((id.clone(), PushOutcome::Resubmit));
            }
            Some(old) if old.state == JobState::Running => return Err(Refusal::AlreadyRuns),
            Some(old) if waits(old.state) && old.due == due && after.are_those_of(old, push) => {
                return Ok((id.clone(), PushOutcome::Duplicate(id.clone())));
            }
            old => old.is_some_and(|old| waits(old.state)),
        };
        Ok((id.clone(), self.place(id, push, after, is_moved, wall)))
    }

    /// Puts a job into the place of a new one, or of an old one of its id.
    fn place(&mut self, id: &str, push: &Push, after: Waits, is_moved: bool, wall: u64) -> PushOutcome {
        let mut new = push.job.clone();
        new.state = if after.on.is_empty() { waiting(new.due, wall) } else { JobState::Waiting };
        new.after = after.on;
        if let Some(old) = self.jobs.get(id).cloned() {
            self.settle(id, &old, true);
            if push.after.is_empty() && !new.after.is_empty() {
                new.on_dead = old.on_dead;
            }
            if is_moved {
                (new.failures, new.crashes, new.error, new.suspect) =
                    (old.failures, old.crashes, old.error, old.suspect);
            }
        }
        self.begin_anew(&mut new);
        self.register(id, &new, wall);
        self.enter(id, new, wall);
        if let Some(of) = after.died {
            self.jobs.get_mut(id).into_iter().for_each(|job| job.after.clone_from(&after.all));
            self.die_after(id, &of, wall);
        }
        if is_moved { PushOutcome::Rescheduled } else { PushOutcome::Added }
    }

    fn clash(&mut self, twin: &str, push: &Push, wall: u64) -> Result<PushOutcome, Refusal> {
        let old = self.jobs.get(twin).cloned();
        Ok(match (push.clash, old) {
            (Clash::Replace, Some(old)) if waits(old.state) => {
                let after = self.waits(twin, push)?;
                self.place(twin, push, after, true, wall)
            }
            (Clash::Earliest, Some(old)) if old.state == JobState::Scheduled && push.job.due < old.due => {
                let due = push.job.due;
                self.enter(twin, Job { due, state: waiting(due, wall), ..old }, wall);
                PushOutcome::Rescheduled
            }
            _ => PushOutcome::Duplicate(twin.to_owned()),
        })
    }

    /// Makes due jobs ready, and removes those whose time is over: so many of each.
    pub fn keep_house(&mut self, most: usize, wall: u64) {
        for id in self.list(JobState::Scheduled).into_iter().take(most) {
            let job = self.jobs[&id].clone();
            if job.due <= wall {
                self.enter(&id, Job { state: JobState::Ready, ..job }, wall);
            }
        }
        self.expire(most, wall);
        self.compared.forget(wall);
        for state in [JobState::Finished, JobState::Dead] {
            for id in self.list(state).into_iter().take(most) {
                if self.jobs[&id].kept_until.is_some_and(|until| until <= wall) {
                    self.remove(&id, false, wall);
                }
            }
        }
    }

    /// Pushes jobs. The last one of a batch waits for all others, or for their twins.
    pub fn pushed(
        &mut self,
        pushes: &[Push],
        is_batch: bool,
        wall: u64,
    ) -> Result<Vec<(String, PushOutcome)>, Refusal> {
        self.keep_house(SOME.1, wall);
        let mut outcomes: Vec<(String, PushOutcome)> = Vec::new();
        for (place, push) in pushes.iter().enumerate() {
            let mut push = push.clone();
            if is_batch && place == pushes.len() - 1 {
                push.after.extend(outcomes.iter().map(|(id, _)| id.clone()));
            }
            outcomes.push(self.push(&push, wall)?);
        }
        Ok(outcomes)
    }

    /// Somebody looks, so what time has brought is done.
    pub fn look(&mut self, time: Time, writes: &mut Writes) {
        self.take_back(time, writes);
        self.keep_house(SOME.1, time.wall);
    }

    /// Takes back the jobs whose workers are silent, each in a write of its own.
    pub fn take_back(&mut self, time: Time, writes: &mut Writes) {
        let mut silent: Vec<_> = self.jobs.iter().filter(|(_, job)| job.state == JobState::Running).collect();
        silent.retain(|(_, job)| job.deadline <= time.now);
        silent.sort_by_key(|(_, job)| (job.deadline, job.order));
        let silent: Vec<String> = silent.into_iter().map(|(id, _)| id.clone()).collect();
        for id in silent {
            let error = format!("its worker was silent for {:?}", Duration::from_millis(LEASE));
            self.end(&id, End::Failed(error, None), time.wall);
            writes.push(self.clone());
        }
    }

    /// Claims a job, and returns its id.
    pub fn accept(&mut self, most: Option<u64>, time: Time, writes: &mut Writes) -> Option<String> {
        self.take_back(time, writes);
        self.keep_house(SOME.0, time.wall);
        let is_past = most.is_some_and(|most| most < time.wall);
        let id = loop {
            // A job that need not run leaves its place, and the next one is looked at.
            let mut skipped = false;
            let claimed = loop {
                match self.claim(most, time.wall) {
                    Some(id) if self.is_unrun(&id, time.wall) => skipped = true,
                    claimed => break claimed,
                }
            };
            let is_held = claimed.as_ref().is_some_and(|id| self.jobs[id].suspect && self.runs().next().is_some());
            self.alone_next |= is_held;
            match claimed.filter(|_| !is_held) {
                Some(id) => break id,
                // A look that begins behind the front is made again.
                None if is_past && skipped && !is_held => {
                    writes.push(self.clone());
                    self.keep_house(SOME.0, time.wall);
                }
                None => {
                    self.keep_house(SOME.1, time.wall);
                    return None;
                }
            }
        };
        self.release_claimed(&id);
        let mut job = self.jobs[&id].clone();
        job.state = JobState::Running;
        // This run answers the pushes whose time has come.
        job.resubmit = job.resubmit.filter(|due| *due > time.wall);
        job.deadline = time.now + LEASE;
        self.enter(&id, job, time.wall);
        self.alone_next = false;
        self.claims += 1;
        Some(id)
    }

    /// Returns the jobs that run in this life.
    fn runs(&self) -> impl Iterator<Item = &Job> {
        self.jobs.values().filter(|job| job.state == JobState::Running)
    }

    fn claim(&self, most: Option<u64>, wall: u64) -> Option<String> {
        let is_alone = self.runs().any(|job| job.suspect) || self.alone_next && self.runs().next().is_some();
        if wall < self.paused_until || is_alone {
            return None;
        }
        let past = most.filter(|most| *most < wall).unwrap_or(u64::MAX);
        let ready: Vec<String> = self.list(JobState::Ready);
        let ready: Vec<&String> = ready.iter().filter(|id| self.jobs[*id].due <= past).collect();
        let priorities = ready.iter().map(|id| self.jobs[*id].priority);
        let priority = if self.claims % 8 == 7 { priorities.max() } else { priorities.min() };
        match priority {
            Some(priority) => ready.into_iter().find(|id| self.jobs[*id].priority == priority).cloned(),
            None if past == u64::MAX => {
                let first = self.list(JobState::Scheduled).into_iter().next()?;
                most.filter(|most| self.jobs[&first].due <= *most).map(|_| first)
            }
            None => None,
        }
    }

    /// Ends an attempt. Returns the state that the job has then.
    pub fn end(&mut self, id: &str, end: End, wall: u64) -> Option<JobState> {
        let mut job = self.jobs[id].clone();
        let resubmit = job.resubmit;
        let mut dies = false;
        job.suspect = false;
        match end {
            End::Finished(data) => {
                self.note_executed(&job, wall);
                job.data = data.or(job.data);
                if let Some(due) = resubmit {
                    (job.failures, job.crashes) = (0, 0);
                    job.error = String::new();
                    return Some(self.anew(id, job, due, wall));
                }
                let kept = job.retention.unwrap_or(Kept::For(RETENTION));
                job.state = JobState::Finished;
                return self.keep(id, job, kept, wall);
            }
            End::Snoozed(at) => job.due = at,
            End::Failed(error, at) => {
                job.failures += 1;
                job.error = error;
                match job.retry.unwrap_or_else(retry).delay(job.failures, 1.0) {
                    Some(pause) => job.due = at.unwrap_or(wall + pause.as_millis() as u64),
                    None => dies = true,
                }
            }
            End::Buried(reason) => {
                job.failures += 1;
                job.error = reason;
                dies = true;
            }
            End::Crashed => {
                job.crashes += 1;
                job.suspect = job.crashes == 2;
                if job.crashes >= MAX_CRASHES {
                    job.error = format!("its process died {} times while it ran", job.crashes);
                    job.resubmit = None;
                    job.state = JobState::Dead;
                    return self.keep(id, job, Kept::For(DEAD_FOR), wall);
                }
                // At once, then 1 s, 2 s and so on.
                job.due = if job.crashes == 1 { 0 } else { wall + (1000 << (job.crashes - 2)) };
            }
        }
        match resubmit {
            Some(due) if dies => {
                job.failures = 0;
                Some(self.anew(id, job, due, wall))
            }
            None if dies => {
                job.state = JobState::Dead;
                self.keep(id, job, Kept::For(DEAD_FOR), wall)
            }
            _ => {
                job.state = waiting(job.due, wall);
                let state = job.state;
                self.enter(id, job, wall);
                Some(state)
            }
        }
    }

    fn anew(&mut self, id: &str, mut job: Job, due: u64, wall: u64) -> JobState {
        (job.resubmit, job.due, job.state) = (None, due, waiting(due, wall));
        let state = job.state;
        self.begin_anew(&mut job);
        // Until it is due, the time is that at which it was given its due time.
        let given = (state == JobState::Scheduled && job.reckoned > 0).then_some(job.reckoned);
        self.enter(id, job, given.unwrap_or(wall));
        state
    }

    pub(super) fn keep(&mut self, id: &str, mut job: Job, kept: Kept, wall: u64) -> Option<JobState> {
        let state = job.state;
        self.settle(id, &job, false);
        job.kept_until = match kept {
            Kept::Not => {
                self.forget(id);
                self.tell(id, false, wall);
                return None;
            }
            Kept::For(time) => Some(wall + time),
            Kept::Always => None,
        };
        self.enter(id, job, wall);
        self.tell(id, state == JobState::Dead, wall);
        Some(state)
    }

    /// Ends a job that is not to run any more.
    pub fn die(&mut self, id: &str, error: String, wall: u64) {
        let waited_for = self.jobs[id].after.clone();
        let job = Job { state: JobState::Dead, error, waited_for, ..self.jobs[id].clone() };
        self.keep(id, job, Kept::For(DEAD_FOR), wall);
    }

    pub fn requeue(&mut self, id: &str, wall: u64) -> bool {
        let job = self.jobs[id].clone();
        if job.state != JobState::Dead {
            return false;
        }
        let after = self.waits_again(id, &job);
        let state = if after.is_empty() { JobState::Ready } else { JobState::Waiting };
        let mut anew = Job { state, after, failures: 0, crashes: 0, due: 0, kept_until: None, ..job };
        anew.more.expires = None;
        self.begin_anew(&mut anew);
        self.register_again(id, &anew, wall);
        self.enter(id, anew, wall);
        true
    }

    pub fn requeue_dead(&mut self, wall: u64) -> u64 {
        let mut seen = BTreeSet::new();
        self.list(JobState::Dead).iter().map(|id| self.requeue_from(id, &mut seen, wall)).sum()
    }

    /// Requeues a dead job behind the dead ones that it waited for.
    fn requeue_from(&mut self, id: &str, seen: &mut BTreeSet<String>, wall: u64) -> u64 {
        let dead = self.jobs.get(id).filter(|job| job.state == JobState::Dead);
        let Some(waited_for) = dead.map(|job| job.waited_for.clone()) else { return 0 };
        if !seen.insert(id.to_owned()) {
            return 0;
        }
        let before: u64 = waited_for.iter().map(|other| self.requeue_from(other, seen, wall)).sum();
        before + u64::from(self.requeue(id, wall))
    }

    pub fn purge(&mut self, wall: u64, writes: &mut Writes) -> u64 {
        let mut count = 0;
        for state in [JobState::Waiting, JobState::Scheduled, JobState::Ready, JobState::Running] {
            let ids = self.list(state);
            for id in &ids {
                self.remove(id, true, wall);
                count += 1;
            }
            if !ids.is_empty() {
                writes.push(self.clone());
            }
        }
        count
    }

    /// The process has died, and another one opens the queue.
    pub fn crash(&mut self, wall: u64) {
        for id in self.list(JobState::Running) {
            self.end(&id, End::Crashed, wall);
        }
        self.alone_next = false;
    }
}

pub fn waits(state: JobState) -> bool {
    matches!(state, JobState::Scheduled | JobState::Ready | JobState::Waiting)
}

pub fn waiting(due: u64, wall: u64) -> JobState {
    if due <= wall { JobState::Ready } else { JobState::Scheduled }
}
