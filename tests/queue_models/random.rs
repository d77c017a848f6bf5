//! Queues against a simple model: random calls, clocks that jump, writes that fail, crashes between
//! any two writes. After each step the queue says of each job what the model says. So a job that
//! waits for others runs once all of them have ended, and not before.

use crate::model::{self, DEAD_FOR, End, Job, LEASE, MAX_CRASHES, Model, Push, RETENTION, Time, Writes};
use crate::ops::{Act, BEGIN, DAY, IDS, Op, PRIORITIES, Profile, STATES, Spec, Trouble, at, id};
use crate::related::Refusal;
use common::cases;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::Duration;
use waterline::queue::{
    Accept, Clock, JobInfo, JobState, Lease, NewJob, PushOutcome, Queue, QueueError, QueueOptions, Retention,
};
use waterline::testing::FaultyStore;
use waterline::{Durability, Error};

/// A lease, and the claim that it is from.
struct Held {
    lease: Lease,
    id: String,
    order: u64,
}

/// The real queue and its model.
struct Pair {
    disk: FaultyStore,
    durability: Durability,
    options: QueueOptions,
    clock: Clock,
    queue: Queue,
    model: Model,
    time: Time,
    /// The highest time that the clock on the wall has shown.
    highest: u64,
    leases: Vec<Held>,
    /// The leases of silent workers, who do nothing with them. They keep the queue open.
    silent: Vec<Held>,
    /// The number of the write that freezes the disk, and the state from before it.
    freeze_in: Option<u64>,
    frozen: Option<Model>,
    ids: BTreeSet<String>,
    payload: u64,
}

fn open(disk: &FaultyStore, options: &QueueOptions) -> Result<Queue, QueueError> {
    Queue::open(&disk.store(), "q", options.clone())
}

/// Checks that a call whose write has failed says so.
fn failed<T: std::fmt::Debug>(answer: &Result<T, QueueError>) {
    assert!(matches!(answer, Err(QueueError::Store(Error::Store { .. }))), "a write has failed: {answer:?}");
}

fn halted<T: std::fmt::Debug>(answer: &Result<T, QueueError>) {
    assert!(matches!(answer, Err(QueueError::Halt { .. })), "the lease is over: {answer:?}");
}

/// Returns the reason for which a call has pushed nothing.
fn refusal(error: &QueueError) -> Refusal {
    match error {
        QueueError::NotFound { id, .. } => Refusal::NotFound(id.clone()),
        QueueError::Cycle { .. } => Refusal::Cycle,
        QueueError::AlreadyRuns { .. } => Refusal::AlreadyRuns,
        other => panic!("{other:?}"),
    }
}

impl Pair {
    fn new(durability: Durability) -> Self {
        let clock = Clock::manual(at(BEGIN));
        let disk = FaultyStore::with_durability(durability).unwrap();
        let options = QueueOptions::default()
            .clock(clock.clone())
            .lease(Duration::from_millis(LEASE))
            .retry(model::retry())
            .retention(Retention::For(Duration::from_millis(RETENTION)))
            .dead_for(Duration::from_millis(DEAD_FOR))
            .max_crashes(MAX_CRASHES);
        let queue = open(&disk, &options).unwrap();
        Self {
            disk,
            durability,
            options,
            clock,
            queue,
            model: Model::default(),
            time: Time { wall: BEGIN, now: 0 },
            highest: BEGIN,
            leases: Vec::new(),
            silent: Vec::new(),
            freeze_in: None,
            frozen: None,
            ids: BTreeSet::new(),
            payload: 0,
        }
    }

    fn wall(&self, relative: i64) -> u64 {
        self.time.wall.saturating_add_signed(relative)
    }

    /// Returns the same job for both sides.
    fn job(&mut self, spec: &Spec) -> (NewJob, Push) {
        self.payload += 1;
        spec.job(self.payload, self.time.wall)
    }

    /// Takes the ids that the queue has made, which nobody else has.
    fn name(&mut self, pushes: &mut [Push], ids: impl Iterator<Item = String>) {
        for (push, id) in pushes.iter_mut().zip(ids) {
            if push.id.is_empty() {
                assert!(id.starts_with('~') && !self.model.jobs.contains_key(&id), "{id} is in use");
                push.id = id;
            }
            self.ids.insert(push.id.clone());
        }
    }

    /// Makes one step on both sides, and compares the answers.
    fn step(&mut self, trouble: Trouble, op: &Op) {
        match trouble {
            Trouble::Freeze(write) if self.freeze_in.is_none() && self.frozen.is_none() => {
                self.disk.freeze_at(write);
                self.freeze_in = Some(write);
            }
            Trouble::Fail(write) => self.disk.fail(write..write + 1),
            _ => {}
        }
        let failing = match trouble {
            Trouble::Fail(write) => Some(write),
            _ => None,
        };
        let mut run = Run::on(&self.disk, failing, &self.model);
        match op {
            Op::Push(spec) => self.push(&mut run, std::slice::from_ref(spec), How::One),
            Op::PushAll(specs) => self.push(&mut run, specs, How::All),
            Op::Batch(specs) => self.push(&mut run, specs, How::Batch),
            Op::Enqueue(specs) => self.push(&mut run, specs, How::Enqueued),
            Op::Accept(most) => self.accept(&mut run, *most),
            Op::Act(lease, act) if !self.leases.is_empty() => {
                let lease = lease % self.leases.len();
                self.act(&mut run, lease, *act);
            }
            Op::Act(..) => {}
            Op::Remove(id) | Op::Requeue(id) => {
                self.steer_one(&mut run, &self.some_id(*id), matches!(op, Op::Remove(_)));
            }
            Op::RequeueDead | Op::Purge | Op::Pause(_) | Op::Resume => self.steer(&mut run, op),
            Op::Advance(by) => {
                self.clock.advance(Duration::from_millis(*by));
                (self.time.wall, self.time.now) = (self.time.wall + by, self.time.now + by);
                self.highest = self.highest.max(self.time.wall);
            }
            Op::Jump(by) => {
                // A clock that goes back by more takes times with it: `both` compares that.
                self.time.wall = self.wall(*by).max(self.highest - 1_000);
                self.highest = self.highest.max(self.time.wall);
                self.clock.set_wall(at(self.time.wall));
            }
            Op::Reopen(_) => return self.reopen(&mut run),
            Op::Crash => return self.crash(trouble),
            Op::Drain(_) => unreachable!("the model runs no runners"),
        }
        self.end(run);
    }

    /// Removes or requeues a job, which may be unknown.
    fn steer_one(&self, run: &mut Run, id: &str, removes: bool) {
        let model = &mut run.next;
        let is_known = model.jobs.contains_key(id);
        let (answer, want) = match removes {
            true => (self.queue.remove(id).map(|()| true), model.remove(id, true, self.time.wall)),
            false => (self.queue.requeue(id), is_known && model.requeue(id, self.time.wall)),
        };
        match run.has_failed(&self.disk) {
            true => failed(&answer),
            false if is_known => assert_eq!(answer.unwrap(), want),
            false => assert!(matches!(answer, Err(QueueError::NotFound { .. })), "{answer:?}"),
        }
    }

    fn steer(&self, run: &mut Run, op: &Op) {
        match op {
            Op::RequeueDead => {
                let answer = self.queue.requeue_dead();
                let want = run.next.requeue_dead(self.time.wall);
                run.is_answered(&self.disk, answer, want);
            }
            Op::Purge => {
                let answer = self.queue.purge();
                let want = run.next.purge(self.time.wall, &mut run.writes);
                run.is_answered(&self.disk, answer, want);
            }
            Op::Pause(time) => {
                let answer = self.queue.pause(time.map(Duration::from_millis));
                run.next.paused_until = time.map_or(u64::MAX, |time| self.time.wall + time);
                run.is_answered(&self.disk, answer, ());
            }
            Op::Resume => {
                let answer = self.queue.resume();
                run.next.paused_until = 0;
                run.is_answered(&self.disk, answer, ());
            }
            _ => {}
        }
    }

    /// Takes over the state of the model after a step, or that before the write that has failed.
    fn end(&mut self, run: Run) {
        let (made, is_failed) = (self.disk.writes() - run.before, run.has_failed(&self.disk));
        let sure = run.writes.len() as u64;
        assert!(made <= sure + 1 && (is_failed || made >= sure), "{made} writes, where {sure} are sure");
        let states = std::iter::once(self.model.clone()).chain(run.writes).chain([run.next]);
        let mut states: Vec<Model> = states.collect();
        if let Some(write) = self.freeze_in {
            // A write that fails is counted too.
            match made > write {
                true => (self.freeze_in, self.frozen) = (None, Some(states[write as usize].clone())),
                false => self.freeze_in = Some(write - made),
            }
        }
        if is_failed {
            states.truncate(made as usize);
        }
        self.model = states.pop().unwrap();
    }

    fn some_id(&self, number: u8) -> String {
        if number < IDS {
            return id(number);
        }
        let made = self.ids.iter().filter(|id| id.starts_with('~')).nth_back(usize::from(number - IDS));
        made.map_or_else(|| "~7777".to_owned(), Clone::clone)
    }

    fn push(&mut self, run: &mut Run, specs: &[Spec], how: How) {
        let (mut jobs, mut pushes): (Vec<_>, Vec<_>) = specs.iter().map(|spec| self.job(spec)).unzip();
        let answer = match how {
            How::One => self.queue.push(jobs.remove(0)).map(|pushed| vec![pushed]),
            How::All => self.queue.push_all(jobs),
            How::Batch => {
                let last = jobs.pop().unwrap();
                self.queue.push_batch(jobs, last)
            }
            How::Enqueued => return self.enqueue(run, jobs, &mut pushes),
        };
        if run.has_failed(&self.disk) {
            return failed(&answer);
        }
        let pushed = answer.map(|pushed| pushed.into_iter().map(|pushed| (pushed.id, pushed.outcome)).collect());
        let pushed: Result<Vec<_>, _> = pushed.map_err(|error| refusal(&error));
        // An id that the queue made for a job that was not pushed is seen by nobody.
        let unseen = |number| format!("~unseen {number} of {}", self.payload);
        let ids = (0..pushes.len()).map(|number| match &pushed {
            Ok(pushed) if pushed[number].1 == PushOutcome::Added => pushed[number].0.clone(),
            _ => unseen(number),
        });
        let ids: Vec<_> = ids.collect();
        self.name(&mut pushes, ids.into_iter());
        if !pushes.is_empty() {
            let want = run.next.pushed(&pushes, matches!(how, How::Batch), self.time.wall);
            assert_eq!(pushed, want);
            run.undo_if(want.is_err(), &self.model);
        }
    }

    /// Pushes jobs in a write of the user's.
    fn enqueue(&mut self, run: &mut Run, jobs: Vec<NewJob>, pushes: &mut [Push]) {
        let mut ids = Vec::new();
        let written = self.disk.store().write(|effects| {
            for job in jobs {
                ids.push(effects.enqueue(&self.queue, job)?);
            }
            Ok(())
        });
        let written = written.map_err(QueueError::from);
        if run.has_failed(&self.disk) {
            return failed(&written);
        }
        self.name(pushes, ids.into_iter());
        let want = self.enqueued(run, pushes);
        assert_eq!(written.map_err(|error| refusal(&error)), want);
        run.undo_if(want.is_err(), &self.model);
    }

    /// Pushes jobs in an order that works. Those that are refused come again after the others, the
    /// other way round.
    fn enqueued(&self, run: &mut Run, pushes: &[Push]) -> Result<(), Refusal> {
        let mut left: Vec<_> = pushes.iter().enumerate().collect();
        loop {
            let (count, mut refused) = (left.len(), Vec::new());
            for (place, push) in left {
                let before = run.next.clone();
                let pushed = run.next.pushed(std::slice::from_ref(push), false, self.time.wall);
                if let Err(refusal) = pushed {
                    run.next = before;
                    refused.push((place, push, refusal));
                }
            }
            if refused.is_empty() {
                return Ok(());
            }
            if refused.len() == count {
                let first = refused.into_iter().min_by_key(|(place, ..)| *place);
                return first.map_or(Ok(()), |(.., refusal)| Err(refusal));
            }
            left = refused.into_iter().rev().map(|(place, push, _)| (place, push)).collect();
        }
    }

    fn accept(&mut self, run: &mut Run, most: Option<i64>) {
        let most = most.map(|most| self.wall(most));
        let accept = most.iter().fold(Accept::new(), |accept, most| accept.max_run_at(at(*most)));
        let answer = self.queue.accept(accept);
        let want = run.next.accept(most, self.time, &mut run.writes);
        if run.has_failed(&self.disk) {
            return failed(&answer);
        }
        let lease = answer.unwrap();
        assert_eq!(lease.as_ref().map(|lease| lease.id().to_owned()), want);
        if let (Some(lease), Some(id)) = (lease, want) {
            let job = &run.next.jobs[&id];
            assert_eq!(
                (
                    lease.kind(),
                    lease.attempt(),
                    lease.crashes(),
                    lease.payload::<serde_json::Value>().unwrap()["n"].as_u64().unwrap()
                ),
                (job.kind.as_str(), job.failures + 1, job.crashes, job.payload)
            );
            assert_eq!((lease.data(), lease.is_resubmitted()), (job.data.map(Into::into), job.resubmit.is_some()));
            self.leases.push(Held { lease, id, order: job.order });
        }
    }

    /// Uses a lease, which may be over.
    fn act(&mut self, run: &mut Run, number: usize, act: Act) {
        let (time, wall) = (self.time, self.time.wall);
        let (id, order) = (self.leases[number].id.clone(), self.leases[number].order);
        let holds = |job: &Job| job.state == JobState::Running && job.order == order && job.deadline > time.now;
        let holds = run.next.jobs.get(&id).is_some_and(holds);
        let soon = |relative: i64| wall.saturating_add_signed(relative);
        if matches!(act, Act::Leak | Act::Drop) {
            return self.release(run, number, matches!(act, Act::Leak), holds);
        }
        let answer = act.call(&mut self.leases[number].lease, &self.disk.store(), wall);
        if !holds {
            run.next.take_back(time, &mut run.writes);
            return if run.has_failed(&self.disk) { failed(&answer) } else { halted(&answer) };
        }
        let model = &mut run.next;
        let job = model.jobs.get_mut(&id).unwrap();
        match act {
            Act::Heartbeat => {}
            Act::Update(data) => job.data = Some(data),
            Act::Resubmit(relative) => (job.resubmit, job.reckoned) = (Some(relative.map_or(0, soon)), 0),
            Act::Write | Act::FinishWith => *model.effects.entry(id.clone()).or_default() += 1,
            _ => {}
        }
        let end = match act {
            Act::Finish(data) => Some(End::Finished(data)),
            Act::FinishWith => Some(End::Finished(None)),
            Act::Retry => Some(End::Failed("it fails".to_owned(), None)),
            Act::RetryAt(relative) => Some(End::Failed("it fails too".to_owned(), Some(soon(relative)))),
            Act::Snooze(relative) => Some(End::Snoozed(soon(relative))),
            Act::Bury => Some(End::Buried("no way".to_owned())),
            _ => None,
        };
        let want = match end {
            Some(end) => model.end(&id, end, wall),
            None => {
                model.jobs.get_mut(&id).unwrap().deadline = time.now + LEASE;
                None
            }
        };
        let is_resubmitted = model.jobs.get(&id).is_some_and(|job| job.resubmit.is_some());
        if run.has_failed(&self.disk) {
            return failed(&answer);
        }
        assert_eq!(answer.unwrap(), want, "{act:?}");
        let still = matches!(act, Act::Heartbeat | Act::Update(_) | Act::Write | Act::Resubmit(_));
        assert!(!still || self.leases[number].lease.is_resubmitted() == is_resubmitted);
    }

    /// Leaves a lease to a silent worker, or drops it. A drop gives the job back, if the lease
    /// still holds.
    fn release(&mut self, run: &mut Run, number: usize, leaks: bool, holds: bool) {
        let held = self.leases.swap_remove(number);
        if leaks {
            self.silent.push(held);
            return;
        }
        let Held { lease, id, .. } = held;
        drop(lease);
        if holds {
            let error = "its lease was dropped before the job had ended".to_owned();
            run.next.end(&id, End::Failed(error, None), self.time.wall);
        } else if run.made(&self.disk) > 0 {
            // It has not ended before, so it looked for leases that are over.
            run.next.take_back(self.time, &mut run.writes);
        }
    }

    /// Drops all handles, and opens the queue again in the same process.
    fn reopen(&mut self, run: &mut Run) {
        self.disk.heal();
        run.failing = None;
        while !self.leases.is_empty() {
            let mut one = Run::on(&self.disk, None, &self.model);
            self.act(&mut one, 0, Act::Drop);
            self.end(one);
        }
        let before = self.disk.writes();
        // The queue of another name is as it was, and the old one is dropped.
        self.queue = Queue::open(&self.disk.store(), "other", self.options.clone()).unwrap();
        let other = self.disk.writes() - before;
        self.queue = open(&self.disk, &self.options).unwrap();
        let made = self.disk.writes() - before;
        assert!(!self.silent.is_empty() || made > other, "it was opened anew");
        if let Some(write) = self.freeze_in {
            (self.freeze_in, self.frozen) =
                if made > write { (None, Some(self.model.clone())) } else { (Some(write - made), None) };
        }
        if self.silent.is_empty() {
            // Those that nobody holds were running for nobody.
            self.model.crash(self.time.wall);
        }
    }

    /// The process dies, and another one opens the queue.
    fn crash(&mut self, trouble: Trouble) {
        self.disk.heal();
        let disk = match self.durability {
            Durability::Synced => self.disk.after_power_loss().unwrap(),
            _ => self.disk.after_crash().unwrap(),
        };
        // Nobody sees what these leases still write to the disk of the dead process.
        self.leases.clear();
        self.silent.clear();
        (self.disk, self.freeze_in) = (disk, None);
        if let Some(frozen) = self.frozen.take() {
            self.model = frozen;
        }
        if let Trouble::Fail(write) = trouble {
            self.disk.fail(write..write + 1);
            if write == 0 {
                failed(&open(&self.disk, &self.options));
            }
        }
        self.queue = open(&self.disk, &self.options).unwrap();
        self.disk.heal();
        self.model.crash(self.time.wall);
    }

    /// Compares everything that is seen of the queue with the model.
    fn check(&mut self) {
        let mut run = Run::on(&self.disk, None, &self.model);
        let counts = self.queue.counts();
        run.next.look(self.time, &mut run.writes);
        self.end(run);
        let (queue, model) = (&self.queue, &self.model);
        assert_eq!(counts, model.counts());
        assert_eq!(queue.counts(), model.counts());
        let mut seen = BTreeSet::new();
        for state in STATES {
            let jobs = queue.list(state, None, usize::MAX).unwrap();
            let ids: Vec<_> = jobs.iter().map(|job| job.id.clone()).collect();
            assert_eq!(ids, model.list(state), "{state:?}");
            assert_eq!(queue.counts().of_state(state), ids.len() as u64);
            for job in jobs {
                compare(&job, &model.jobs[&job.id]);
                assert_eq!(queue.get(&job.id).unwrap().as_ref(), Some(&job));
                assert!(seen.insert(job.id), "a job is in two places");
            }
            let (mut paged, mut from) = (Vec::new(), None);
            while let Some(job) = queue.list(state, from.as_ref(), 2).unwrap().pop() {
                paged.push(job.id.clone());
                from = Some(job);
            }
            let last_of_pages = ids.chunks(2).filter_map(<[String]>::last).cloned().collect::<Vec<_>>();
            assert_eq!(paged, last_of_pages, "{state:?}");
        }
        for id in self.ids.iter().filter(|id| !seen.contains(*id)) {
            assert_eq!((queue.get(id).unwrap(), queue.state(id).unwrap()), (None, None), "{id}");
        }
        let effects = self.disk.store().table("effects").unwrap();
        for id in &self.ids {
            let count = effects.counter(id).unwrap();
            assert_eq!(count, model.effects.get(id).copied().unwrap_or(0), "the effects of {id}");
        }
        assert!(queue.status().unwrap().to_string().contains("the queue"));
    }

    /// Runs everything to its end: each job comes out.
    fn drain(&mut self) {
        self.step(Trouble::No, &Op::Resume);
        for _ in 0..10_000 {
            let waiting = self.model.counts();
            if waiting.ready + waiting.scheduled + waiting.running + waiting.waiting == 0 {
                return;
            }
            self.step(Trouble::No, &Op::Accept(None));
            let has_job = |held: &Held| self.model.jobs.get(&held.id).is_some_and(|job| job.order == held.order);
            match self.leases.last().is_some_and(has_job) {
                true => self.step(Trouble::No, &Op::Act(self.leases.len() - 1, Act::FinishWith)),
                false => self.step(Trouble::No, &Op::Advance(DAY / 2)),
            }
            self.check();
        }
        panic!("{:?} never come out", self.model.counts());
    }
}

/// One step: its trouble, and the state of the model after it.
struct Run {
    before: u64,
    failing: Option<u64>,
    next: Model,
    writes: Writes,
}

enum How {
    One,
    All,
    Batch,
    Enqueued,
}

impl Run {
    fn on(disk: &FaultyStore, failing: Option<u64>, model: &Model) -> Self {
        Self { before: disk.writes(), failing, next: model.clone(), writes: Writes::new() }
    }

    fn made(&self, disk: &FaultyStore) -> u64 {
        disk.writes() - self.before
    }

    /// True if a write of this step has failed.
    fn has_failed(&self, disk: &FaultyStore) -> bool {
        self.failing.is_some_and(|write| self.made(disk) > write)
    }

    /// Goes back to the state before this step, if nothing of it was done.
    fn undo_if(&mut self, is_refused: bool, before: &Model) {
        if is_refused {
            self.next = before.clone();
        }
    }

    fn is_answered<R: PartialEq + std::fmt::Debug>(&self, disk: &FaultyStore, answer: Result<R, QueueError>, want: R) {
        if self.has_failed(disk) { failed(&answer) } else { assert_eq!(answer.unwrap(), want) }
    }
}

fn compare(real: &JobInfo, model: &Job) {
    let ended = matches!(model.state, JobState::Finished | JobState::Dead);
    assert_eq!((real.state, &real.kind), (model.state, &model.kind), "{real:?}");
    assert_eq!(real.priority, PRIORITIES[model.priority], "{real:?}");
    assert_eq!((real.failures, real.crashes), (model.failures, model.crashes), "{real:?}");
    assert_eq!(real.runs_alone, model.suspect, "{real:?}");
    assert_eq!((real.pushed_at, real.since), (at(model.pushed), at(model.since)), "{real:?}");
    assert_eq!(real.run_at, (model.due > 0).then(|| at(model.due)), "{real:?}");
    assert_eq!(real.kept_until, model.kept_until.filter(|_| ended).map(at), "{real:?}");
    assert_eq!(real.resubmitted, model.resubmit.is_some(), "{real:?}");
    assert_eq!(real.error.as_deref().unwrap_or(""), model.error, "{real:?}");
    assert_eq!(real.payload::<serde_json::Value>().unwrap()["n"].as_u64().unwrap(), model.payload, "{real:?}");
    assert_eq!(real.data, model.data.map(Into::into), "{real:?}");
    assert_eq!((real.skipped, real.expires_at), (model.more.skipped, model.more.expires.map(at)), "{real:?}");
    assert_eq!((real.waits_for as usize, &real.key), (model.after.len(), &None), "{real:?}");
    let root = model.more.root.map(|(tree, time, _)| (tree.to_string(), at(time)));
    assert_eq!(real.root.clone().map(|root| (root.signature, root.timestamp)), root, "{real:?}");
}

fn live(durability: Durability, steps: &[(Trouble, Op)]) {
    let mut pair = Pair::new(durability);
    for (trouble, op) in steps {
        pair.step(*trouble, op);
        pair.disk.heal();
        pair.check();
    }
    pair.step(Trouble::No, &Op::Crash);
    pair.check();
    pair.drain();
}

fn durability() -> impl Strategy<Value = Durability> {
    prop_oneof![Just(Durability::Buffered), Just(Durability::Synced)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(128), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_queue_does_what_its_model_does(durability in durability(), steps in Profile::Plain.steps()) {
        live(durability, &steps);
    }

    #[test]
    fn jobs_that_wait_for_others_do_as_the_model_says(durability in durability(), steps in Profile::Workflows.steps()) {
        live(durability, &steps);
    }
}
