//! Jobs that wait for others, against a simple model: random graphs, deaths, removals, pushes of
//! ids that are there, failed writes and crashes. After each step each job is in the state that
//! the model says, and waits for as many. So a job runs once all that it waits for have ended, and
//! not before.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, UNIX_EPOCH};
use waterline::queue::{
    Accept, Clock, JobState, Lease, NewJob, OnDead, PushOutcome, Queue, QueueError, QueueOptions, Retention,
};
use waterline::testing::FaultyStore;
use waterline::{Error, Retry};

const BEGIN: u64 = 1_800_000_000_000;
const PAUSE: u64 = 2_000;
const RETENTION: u64 = 5_000;
const DEAD_FOR: u64 = 9_000;
const IDS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

// The model.

#[derive(Clone, Debug)]
struct Job {
    state: JobState,
    /// 0: from the push on.
    due: u64,
    after: BTreeSet<usize>,
    on_dead: OnDead,
    failures: u32,
    crashes: u32,
    resubmit: Option<u64>,
    kept_until: u64,
}

#[derive(Clone, Debug, Default)]
struct Model {
    now: u64,
    jobs: BTreeMap<usize, Job>,
    were: BTreeSet<usize>,
}

#[derive(Clone, Debug)]
struct Spec {
    id: usize,
    after: BTreeSet<usize>,
    on_dead: OnDead,
    delay: u64,
}

#[derive(Debug, PartialEq)]
enum Answer {
    Added,
    Duplicate,
    Rescheduled,
    Resubmit,
    NotFound(usize),
    Cycle,
    Runs,
}

fn waits(state: JobState) -> bool {
    matches!(state, JobState::Scheduled | JobState::Ready | JobState::Waiting)
}

fn ended(state: JobState) -> bool {
    matches!(state, JobState::Finished | JobState::Dead)
}

impl Model {
    fn due_state(&self, due: u64) -> JobState {
        if due <= self.now { JobState::Ready } else { JobState::Scheduled }
    }

    /// True if the job waits for the other one, maybe through more of them.
    fn reaches(&self, from: usize, to: usize) -> bool {
        from == to || self.jobs.get(&from).is_some_and(|job| job.after.iter().any(|next| self.reaches(*next, to)))
    }

    fn push(&mut self, spec: &Spec) -> Answer {
        let (mut after, mut died) = (BTreeSet::new(), false);
        for other in &spec.after {
            if *other == spec.id {
                return Answer::Cycle;
            }
            match self.jobs.get(other).map(|job| job.state) {
                None if self.were.contains(other) => {}
                None => return Answer::NotFound(*other),
                Some(JobState::Finished) => {}
                Some(JobState::Dead) if spec.on_dead == OnDead::Run => {}
                Some(JobState::Dead) if spec.on_dead == OnDead::Die => died = true,
                Some(_) => drop(after.insert(*other)),
            }
        }
        if after.iter().any(|other| self.reaches(*other, spec.id)) {
            return Answer::Cycle;
        }
        if died {
            after.clear();
        }
        let due = if spec.delay == 0 { 0 } else { self.now + spec.delay };
        let state = if after.is_empty() { self.due_state(due) } else { JobState::Waiting };
        let mut new =
            Job { state, due, after, on_dead: spec.on_dead, failures: 0, crashes: 0, resubmit: None, kept_until: 0 };
        let answer = match self.jobs.get_mut(&spec.id) {
            Some(old) if waits(old.state) => {
                let is_same = spec.after.is_empty()
                    || !died && new.after == old.after && (new.after.is_empty() || new.on_dead == old.on_dead);
                if old.due == due && is_same {
                    return Answer::Duplicate;
                }
                (new.failures, new.crashes) = (old.failures, old.crashes);
                Answer::Rescheduled
            }
            Some(old) if old.state == JobState::Running => {
                if died || !new.after.is_empty() {
                    return Answer::Runs;
                }
                old.resubmit = Some(due);
                return Answer::Resubmit;
            }
            _ => Answer::Added,
        };
        self.jobs.insert(spec.id, new);
        if died {
            self.die(spec.id);
        }
        answer
    }

    /// Tells those who wait for a job that it has ended.
    fn tell(&mut self, id: usize, died: bool) {
        let told: Vec<_> = self.jobs.iter().filter(|(_, job)| job.after.contains(&id)).map(|(id, _)| *id).collect();
        for other in told {
            let Some(job) = self.jobs.get(&other).cloned().filter(|job| job.after.contains(&id)) else { continue };
            match job.on_dead {
                OnDead::Die if died => self.die(other),
                OnDead::Hold if died => {}
                _ => {
                    let state = self.due_state(job.due);
                    let job = self.jobs.get_mut(&other).unwrap();
                    job.after.remove(&id);
                    job.state = if job.after.is_empty() { state } else { JobState::Waiting };
                }
            }
        }
    }

    fn die(&mut self, id: usize) {
        let kept_until = self.now + DEAD_FOR;
        let job = self.jobs.get_mut(&id).unwrap();
        (job.state, job.kept_until) = (JobState::Dead, kept_until);
        job.after.clear();
        self.tell(id, true);
    }

    fn remove(&mut self, id: usize) {
        self.jobs.remove(&id);
        self.were.insert(id);
        self.tell(id, false);
    }

    fn keep_house(&mut self) {
        for id in 0..IDS.len() {
            let now = self.now;
            match self.jobs.get_mut(&id) {
                Some(job) if job.state == JobState::Scheduled && job.due <= now => job.state = JobState::Ready,
                Some(job) if ended(job.state) && job.kept_until <= now => self.remove(id),
                _ => {}
            }
        }
    }

    fn claim(&mut self, id: usize) {
        let now = self.now;
        let job = self.jobs.get_mut(&id).unwrap();
        assert_eq!(job.state, JobState::Ready, "{} runs too early, or once too often", IDS[id]);
        job.state = JobState::Running;
        job.resubmit = job.resubmit.filter(|due| *due > now);
    }

    fn end(&mut self, id: usize, end: End) {
        let now = self.now;
        let scheduled = |due| if due <= now { JobState::Ready } else { JobState::Scheduled };
        let job = self.jobs.get_mut(&id).unwrap();
        let crashes = job.crashes;
        let dies = match end {
            End::Finish => {
                (job.failures, job.crashes) = (0, 0);
                if let Some(due) = job.resubmit.take() {
                    (job.state, job.due) = (scheduled(due), due);
                    return;
                }
                (job.state, job.kept_until) = (JobState::Finished, now + RETENTION);
                return self.tell(id, false);
            }
            End::Retry => {
                job.failures += 1;
                job.failures >= 2
            }
            End::Bury => {
                job.failures += 1;
                true
            }
            End::Crash => {
                job.crashes += 1;
                job.crashes >= 2
            }
            End::Snooze => false,
        };
        match job.resubmit {
            Some(due) if dies && job.crashes == crashes => {
                (job.state, job.due, job.failures, job.resubmit) = (scheduled(due), due, 0, None);
            }
            _ if dies => {
                job.resubmit = None;
                self.die(id);
            }
            _ => {
                job.due = match end {
                    End::Retry => now + PAUSE,
                    End::Snooze => now + 1000,
                    _ => 0,
                };
                job.state = scheduled(job.due);
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Finish,
    Retry,
    Bury,
    Snooze,
    Crash,
}

// The steps.

#[derive(Clone, Debug)]
enum Op {
    Push(Spec),
    PushAll(Vec<Spec>),
    Batch(Vec<Spec>, Spec),
    Claim,
    End(usize, End),
    Remove(usize),
    Requeue(usize),
    Purge,
    Advance(u64),
    /// The process dies.
    Crash,
    /// The write of this step fails.
    Fail(Box<Op>),
    /// The process dies, and the write of this step is lost.
    Lose(Box<Op>),
}

fn specs() -> impl Strategy<Value = Spec> {
    let on_dead = prop_oneof![Just(OnDead::Die), Just(OnDead::Run), Just(OnDead::Hold)];
    let delay = prop_oneof![4 => Just(0), 1 => Just(1000u64)];
    let after = prop_oneof![1 => Just(BTreeSet::new()), 3 => prop::collection::btree_set(0..IDS.len(), 1..4)];
    (0..IDS.len(), after, on_dead, delay).prop_map(|(id, after, on_dead, delay)| Spec { id, after, on_dead, delay })
}

fn ends() -> impl Strategy<Value = End> {
    prop_oneof![4 => Just(End::Finish), 1 => Just(End::Retry), 2 => Just(End::Bury), 1 => Just(End::Snooze)]
}

fn ops() -> impl Strategy<Value = Op> {
    let plain = prop_oneof![
        8 => specs().prop_map(Op::Push),
        2 => prop::collection::vec(specs(), 2..4).prop_map(Op::PushAll),
        2 => (prop::collection::vec(specs(), 1..4), specs()).prop_map(|(jobs, then)| Op::Batch(jobs, then)),
        8 => Just(Op::Claim),
        8 => (0..8usize, ends()).prop_map(|(which, end)| Op::End(which, end)),
        2 => (0..IDS.len()).prop_map(Op::Remove),
        2 => (0..IDS.len()).prop_map(Op::Requeue),
    ];
    let plain = plain.boxed();
    prop_oneof![
        16 => plain.clone(),
        1 => Just(Op::Purge),
        3 => (1..4000u64).prop_map(Op::Advance),
        1 => Just(Op::Crash),
        1 => plain.clone().prop_map(|op| Op::Fail(Box::new(op))),
        1 => plain.prop_map(|op| Op::Lose(Box::new(op))),
    ]
}

struct Bench {
    disk: FaultyStore,
    queue: Queue,
    clock: Clock,
    leases: Vec<(usize, Lease)>,
    model: Model,
}

fn open(disk: &FaultyStore, clock: &Clock) -> Queue {
    let options = QueueOptions::default()
        .clock(clock.clone())
        .lease(Duration::from_secs(1_000_000))
        .retry(Retry::fixed(Duration::from_millis(PAUSE)).max_attempts(2))
        .retention(Retention::For(Duration::from_millis(RETENTION)))
        .dead_for(Duration::from_millis(DEAD_FOR))
        .max_crashes(2);
    Queue::open(&disk.store(), "q", options).unwrap()
}

fn new(spec: &Spec) -> NewJob {
    let job = NewJob::new("k", &()).unwrap().id(IDS[spec.id]);
    let job = job.after(spec.after.iter().map(|other| IDS[*other])).on_dead(spec.on_dead);
    if spec.delay > 0 { job.delay(Duration::from_millis(spec.delay)) } else { job }
}

fn number(id: &str) -> usize {
    IDS.iter().position(|known| *known == id).unwrap()
}

fn answer(outcome: &PushOutcome) -> Answer {
    match outcome {
        PushOutcome::Added => Answer::Added,
        PushOutcome::Duplicate(_) => Answer::Duplicate,
        PushOutcome::Rescheduled => Answer::Rescheduled,
        PushOutcome::Resubmit => Answer::Resubmit,
        other => panic!("{other:?}"),
    }
}

fn refusal(error: QueueError) -> Option<Answer> {
    match error {
        QueueError::NotFound { id } => Some(Answer::NotFound(number(&id))),
        QueueError::Cycle { .. } => Some(Answer::Cycle),
        QueueError::AlreadyRuns { .. } => Some(Answer::Runs),
        QueueError::Store(Error::Store { .. }) => None,
        other => panic!("{other:?}"),
    }
}

impl Bench {
    fn new() -> Self {
        let clock = Clock::manual(UNIX_EPOCH + Duration::from_millis(BEGIN));
        let disk = FaultyStore::new().unwrap();
        let queue = open(&disk, &clock);
        Self { disk, queue, clock, leases: Vec::new(), model: Model { now: BEGIN, ..Model::default() } }
    }

    /// Pushes these, and compares the answers, unless the write has failed.
    fn push(&mut self, specs: &[Spec], is_batch: bool) {
        let pushed = match specs.split_last() {
            Some((last, jobs)) if is_batch => self.queue.push_batch(jobs.iter().map(new), new(last)),
            _ => self.queue.push_all(specs.iter().map(new)),
        };
        let found = match pushed {
            Ok(pushed) => pushed.iter().map(|pushed| answer(&pushed.outcome)).collect(),
            Err(error) => match refusal(error) {
                Some(refusal) => vec![refusal],
                None => return,
            },
        };
        let (before, mut answers) = (self.model.clone(), Vec::new());
        for (place, spec) in specs.iter().enumerate() {
            let mut spec = spec.clone();
            if is_batch && place == specs.len() - 1 {
                spec.after.extend(specs[..place].iter().map(|other| other.id));
            }
            let answer = self.model.push(&spec);
            if matches!(answer, Answer::NotFound(_) | Answer::Cycle | Answer::Runs) {
                self.model = before;
                assert_eq!(found, [answer]);
                return;
            }
            answers.push(answer);
        }
        self.model.keep_house();
        assert_eq!(found, answers);
    }

    fn claim(&mut self) {
        let claimed = match self.queue.accept(Accept::new()) {
            Err(error) => return assert!(refusal(error).is_none()),
            Ok(claimed) => claimed,
        };
        self.model.keep_house();
        match claimed {
            Some(lease) => {
                let id = number(lease.id());
                self.model.claim(id);
                self.leases.push((id, lease));
            }
            None => assert!(self.model.jobs.values().all(|job| job.state != JobState::Ready), "a job is ready"),
        }
    }

    fn end(&mut self, which: usize, end: End) {
        if self.leases.is_empty() {
            return;
        }
        let which = which % self.leases.len();
        let (id, lease) = &mut self.leases[which];
        let ended = match end {
            End::Finish => lease.finish(None),
            End::Retry => lease.retry("it fails"),
            End::Bury => lease.bury("no way"),
            _ => lease.snooze(UNIX_EPOCH + Duration::from_millis(self.model.now + 1000)),
        };
        let id = *id;
        match ended {
            Err(QueueError::Halt { .. }) => {
                // It was removed meanwhile.
                self.leases.remove(which);
            }
            Err(error) => assert!(refusal(error).is_none()),
            Ok(_) => {
                self.leases.remove(which);
                self.model.end(id, end);
            }
        }
    }

    fn crash(&mut self) {
        self.disk = self.disk.after_crash().unwrap();
        self.leases.drain(..).for_each(std::mem::forget);
        self.queue = open(&self.disk, &self.clock);
        let running: Vec<_> =
            self.model.jobs.iter().filter(|(_, job)| job.state == JobState::Running).map(|(id, _)| *id).collect();
        running.into_iter().for_each(|id| self.model.end(id, End::Crash));
    }

    fn step(&mut self, op: &Op) {
        match op {
            Op::Push(spec) => self.push(std::slice::from_ref(spec), false),
            Op::PushAll(specs) => self.push(specs, false),
            Op::Batch(jobs, then) => {
                let mut all = jobs.clone();
                all.push(then.clone());
                self.push(&all, true);
            }
            Op::Claim => self.claim(),
            Op::End(which, end) => self.end(*which, *end),
            Op::Remove(id) => match self.queue.remove(IDS[*id]) {
                Ok(()) => {
                    assert!(self.model.jobs.contains_key(id));
                    self.model.remove(*id);
                }
                Err(QueueError::NotFound { .. }) => assert!(!self.model.jobs.contains_key(id)),
                Err(error) => assert!(refusal(error).is_none()),
            },
            Op::Requeue(id) => match self.queue.requeue(IDS[*id]) {
                Ok(is_dead) => {
                    let job = self.model.jobs.get_mut(id).unwrap();
                    assert_eq!(is_dead, job.state == JobState::Dead);
                    if is_dead {
                        (job.state, job.due, job.failures, job.crashes) = (JobState::Ready, 0, 0, 0);
                    }
                }
                Err(QueueError::NotFound { .. }) => assert!(!self.model.jobs.contains_key(id)),
                Err(error) => assert!(refusal(error).is_none()),
            },
            Op::Purge => {
                let open: Vec<_> =
                    self.model.jobs.iter().filter(|(_, job)| !ended(job.state)).map(|(id, _)| *id).collect();
                assert_eq!(self.queue.purge().unwrap(), open.len() as u64);
                open.iter().for_each(|id| drop(self.model.jobs.remove(id)));
                self.model.were.extend(open);
            }
            Op::Advance(millis) => {
                self.clock.advance(Duration::from_millis(*millis));
                self.model.now += millis;
            }
            Op::Crash => self.crash(),
            Op::Fail(op) => {
                self.disk.fail(0..1);
                self.step(op);
                self.disk.heal();
            }
            Op::Lose(op) => {
                let before = self.model.clone();
                self.disk.freeze_at(0);
                self.step(op);
                self.model = before;
                self.crash();
            }
        }
    }

    fn check(&self) {
        let mut counts = BTreeMap::new();
        for (id, name) in IDS.iter().enumerate() {
            let found = self.queue.get(name).unwrap();
            let wanted = self.model.jobs.get(&id);
            assert_eq!(
                found.as_ref().map(|job| (job.state, job.waits_for as usize, job.failures, job.crashes)),
                wanted.map(|job| (job.state, job.after.len(), job.failures, job.crashes)),
                "{name}: {wanted:?}",
            );
            wanted.iter().for_each(|job| *counts.entry(job.state).or_insert(0u64) += 1);
        }
        for state in [JobState::Scheduled, JobState::Ready, JobState::Running, JobState::Waiting] {
            let count = counts.get(&state).copied().unwrap_or(0);
            assert_eq!(self.queue.counts().of_state(state), count, "{state:?}");
            assert_eq!(self.queue.list(state, None, 99).unwrap().len() as u64, count, "{state:?}");
        }
    }

    /// Runs everything to its end. A job that still waits is held up by a dead one.
    fn run_out(&mut self) {
        for _ in 0..200 {
            while !self.leases.is_empty() {
                self.end(0, End::Finish);
            }
            self.claim();
            if self.leases.is_empty() {
                self.step(&Op::Advance(1000));
            }
        }
        self.check();
        assert!(self.model.jobs.is_empty(), "{:?} is left", self.model.jobs);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn jobs_that_wait_for_others_do_as_the_model_says(ops in prop::collection::vec(ops(), 1..80)) {
        let mut bench = Bench::new();
        for op in &ops {
            bench.step(op);
            bench.check();
        }
        bench.run_out();
    }
}
