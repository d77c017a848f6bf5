//! The simple model of a queue: maps, and the rules as the documentation says them.

use std::collections::BTreeMap;
use std::time::Duration;
use waterline::Retry;
use waterline::queue::{Counts, JobState, PushOutcome};

/// Jobs that are moved beside each push and each claim, and beside a claim that finds nothing.
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
    pub pushed: u64,
    /// 0: from the push on.
    pub due: u64,
    pub since: u64,
    pub resubmit: Option<u64>,
    pub data: Option<u64>,
    pub error: String,
    /// Ready: its place in the row. Running: its token.
    pub order: u64,
    /// Finished or dead: the time at which it goes; `None`: never.
    pub kept_until: Option<u64>,
    /// Running: the end of its lease on the monotonic clock.
    pub deadline: u64,
}

#[derive(Clone, Debug)]
pub struct Push {
    pub id: String,
    pub job: Job,
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
                _ => &mut counts.dead,
            } += 1;
        }
        counts
    }

    /// Returns the ids of the jobs in a state, in the order in which a queue lists them.
    pub fn list(&self, state: JobState) -> Vec<String> {
        let mut jobs: Vec<_> = self.jobs.iter().filter(|(_, job)| job.state == state).collect();
        jobs.sort_by_key(|(id, job)| match state {
            JobState::Scheduled => (0, job.due, (*id).clone()),
            JobState::Ready => (job.priority, job.order, String::new()),
            JobState::Running => (0, job.order, String::new()),
            _ => (0, job.kept_until.unwrap_or(u64::MAX), (*id).clone()),
        });
        jobs.into_iter().map(|(id, _)| id.clone()).collect()
    }

    fn enter(&mut self, id: &str, mut job: Job, wall: u64) {
        job.since = wall;
        job.order = self.next_order;
        self.next_order += 1;
        self.jobs.insert(id.to_owned(), job);
    }

    pub fn push(&mut self, push: &Push, wall: u64) -> PushOutcome {
        let mut new = push.job.clone();
        new.state = waiting(new.due, wall);
        let Some(old) = self.jobs.get_mut(&push.id) else {
            self.enter(&push.id, new, wall);
            return PushOutcome::Added;
        };
        match old.state {
            JobState::Running => {
                old.resubmit = Some(new.due);
                PushOutcome::Resubmit
            }
            JobState::Scheduled | JobState::Ready if old.due == new.due => PushOutcome::Duplicate(push.id.clone()),
            JobState::Scheduled | JobState::Ready => {
                (new.failures, new.crashes, new.error) = (old.failures, old.crashes, old.error.clone());
                self.enter(&push.id, new, wall);
                PushOutcome::Rescheduled
            }
            _ => {
                self.enter(&push.id, new, wall);
                PushOutcome::Added
            }
        }
    }

    /// Makes due jobs ready, and removes those whose time is over: so many of each.
    pub fn keep_house(&mut self, most: usize, wall: u64) {
        for id in self.list(JobState::Scheduled).into_iter().take(most) {
            let job = self.jobs[&id].clone();
            if job.due <= wall {
                self.enter(&id, Job { state: JobState::Ready, ..job }, wall);
            }
        }
        for state in [JobState::Finished, JobState::Dead] {
            for id in self.list(state).into_iter().take(most) {
                if self.jobs[&id].kept_until.is_some_and(|until| until <= wall) {
                    self.jobs.remove(&id);
                }
            }
        }
    }

    pub fn pushed(&mut self, pushes: &[Push], wall: u64) -> Vec<PushOutcome> {
        let outcomes = pushes.iter().map(|push| self.push(push, wall)).collect();
        self.keep_house(SOME.0, wall);
        outcomes
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
        let claimed = self.claim(most, time.wall);
        let Some(id) = claimed else {
            self.keep_house(SOME.1, time.wall);
            return None;
        };
        let mut job = self.jobs[&id].clone();
        job.state = JobState::Running;
        // This run answers the pushes whose time has come.
        job.resubmit = job.resubmit.filter(|due| *due > time.wall);
        job.deadline = time.now + LEASE;
        self.enter(&id, job, time.wall);
        self.claims += 1;
        Some(id)
    }

    fn claim(&self, most: Option<u64>, wall: u64) -> Option<String> {
        if wall < self.paused_until {
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
        match end {
            End::Finished(data) => {
                job.data = data.or(job.data);
                job.crashes = 0;
                job.failures = 0;
                if let Some(due) = resubmit {
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
        self.enter(id, job, wall);
        state
    }

    fn keep(&mut self, id: &str, mut job: Job, kept: Kept, wall: u64) -> Option<JobState> {
        let state = job.state;
        job.kept_until = match kept {
            Kept::Not => {
                self.jobs.remove(id);
                return None;
            }
            Kept::For(time) => Some(wall + time),
            Kept::Always => None,
        };
        self.enter(id, job, wall);
        Some(state)
    }

    pub fn requeue(&mut self, id: &str, wall: u64) -> bool {
        let job = self.jobs[id].clone();
        if job.state != JobState::Dead {
            return false;
        }
        let ready = Job { state: JobState::Ready, failures: 0, crashes: 0, due: 0, kept_until: None, ..job };
        self.enter(id, ready, wall);
        true
    }

    pub fn requeue_dead(&mut self, wall: u64) -> u64 {
        let dead = self.list(JobState::Dead);
        dead.iter().map(|id| u64::from(self.requeue(id, wall))).sum()
    }

    pub fn purge(&mut self, writes: &mut Writes) -> u64 {
        let mut count = 0;
        for state in [JobState::Scheduled, JobState::Ready, JobState::Running] {
            let ids = self.list(state);
            for id in &ids {
                self.jobs.remove(id);
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
    }
}

fn waiting(due: u64, wall: u64) -> JobState {
    if due <= wall { JobState::Ready } else { JobState::Scheduled }
}
