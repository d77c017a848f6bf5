//! Jobs with any mix of settings and limits, through failures, crashes and clock changes. Each job
//! is in one place, no limit is exceeded, the counts are right, and every job ends.

use crate::ops::{Act, BEGIN, Drain, Op, STATES, Spec, Trouble, at, id, steps};
use common::HOUR;
use common::cases;
use common::queues::{SECOND, open_anew};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use waterline::fuzzing::Disk;
use waterline::{Error, Retry, Store};
use waterline_queue::{
    Accept, Clock, DrainLimits, JobInfo, JobState, Lease, Limit, LimitOf, NewJob, Outcome, Queue, QueueError,
    QueueOptions, Rate, Reached, Retention, Runner, Running,
};

/// Returns one of several sets of limits: how many jobs run at once, and their rate.
fn limits(set: u8) -> Vec<(LimitOf, Option<u32>, Option<Rate>)> {
    let (queue, each_key) = (LimitOf::Queue, LimitOf::EachKey);
    let (kind, key) = (|kind: &str| LimitOf::Kind(kind.to_owned()), |key: &str| LimitOf::Key(key.to_owned()));
    let rate = |tokens, seconds, burst| Some(Rate::new(tokens, seconds * SECOND).burst(burst));
    match set % 7 {
        0 => vec![(each_key, Some(1), None), (kind("k0"), Some(2), rate(3, 1, 4)), (queue, Some(3), None)],
        1 => vec![(queue, Some(2), rate(2, 1, 3)), (each_key, None, rate(1, 1, 1))],
        2 => {
            vec![(each_key, Some(2), rate(1, 7, 3)), (kind("k0"), Some(1), None), (kind("k1"), Some(2), rate(3, 1, 4))]
        }
        3 => vec![(key("key0"), Some(1), None), (kind("k1"), Some(1), None)],
        4 => vec![(queue, None, rate(1, 3, 2)), (kind("k0"), Some(1), None)],
        5 => vec![(key("key0"), Some(2), rate(5, 1, 3)), (queue, None, rate(5, 1, 3))],
        _ => Vec::new(),
    }
}

/// Returns the options with this number: a bound or none, and a set of limits.
fn options(clock: &Clock, set: u8) -> QueueOptions {
    let options = QueueOptions::default()
        .clock(clock.clone())
        .retry(Retry::fixed(SECOND).max_attempts(3))
        .retention(Retention::For(10 * SECOND))
        .dead_for(100 * SECOND)
        .max_crashes(3);
    let options = if set & 1 != 0 { options.max_waiting(4) } else { options };
    limits(set / 2).into_iter().fold(options, |options, (of, at_once, rate)| {
        let limit = match of {
            LimitOf::Queue => Limit::queue(),
            LimitOf::Kind(kind) => Limit::kind(kind),
            LimitOf::Key(key) => Limit::key(key),
            _ => Limit::each_key(),
        };
        let limit = at_once.into_iter().fold(limit, Limit::at_once);
        options.limit(rate.into_iter().fold(limit, Limit::rate))
    })
}

/// Asserts that a call succeeded, or failed for a reason that any life may bring.
fn done<T: std::fmt::Debug>(answer: Result<T, QueueError>) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer),
        Err(
            QueueError::Full { .. }
            | QueueError::Halt { .. }
            | QueueError::NotFound { .. }
            | QueueError::Cycle { .. }
            | QueueError::AlreadyRuns { .. }
            | QueueError::Store(Error::Store { .. }),
        ) => None,
        Err(other) => panic!("{other:?}"),
    }
}

/// A process, and the leases of its jobs.
struct Life {
    disk: Disk,
    clock: Clock,
    wall: u64,
    store: Store,
    set: u8,
    queue: Queue,
    leases: Vec<Lease>,
    payload: Arc<AtomicU64>,
}

fn job(spec: &Spec, payload: &AtomicU64, wall: u64) -> NewJob {
    spec.job(payload.fetch_add(1, Ordering::SeqCst), wall)
}

impl Life {
    fn begin(disk: Disk, clock: Clock, wall: u64, set: u8) -> Self {
        let store = disk.open(&Store::options()).unwrap();
        let queue = Queue::open(&store, "q", options(&clock, set)).unwrap();
        Self { disk, clock, wall, store, set, queue, leases: Vec::new(), payload: Arc::default() }
    }

    fn crash(self) -> Self {
        let disk = self.disk.after_crash();
        // What these leases still write to the dead process's disk is lost.
        drop(self.leases);
        Self { payload: self.payload, ..Self::begin(disk, self.clock, self.wall, self.set) }
    }

    /// Closes the queue, which gives running jobs back, and opens it with these options.
    fn reopen(&mut self, set: u8) {
        self.disk.fail(0..0);
        self.leases.clear();
        self.set = set;
        drop(std::mem::replace(&mut self.queue, Queue::open(&self.store, "other", QueueOptions::default()).unwrap()));
        self.queue = open_anew(&self.store, &options(&self.clock, set));
    }

    fn jobs(&self, specs: &[Spec]) -> Vec<NewJob> {
        specs.iter().map(|spec| job(spec, &self.payload, self.wall)).collect()
    }

    fn step(mut self, trouble: Trouble, op: &Op) -> Self {
        match trouble {
            Trouble::No => {}
            Trouble::Fail(write) => self.disk.fail(write..write + 1),
            Trouble::Freeze(write) => self.disk.freeze_at(write),
        }
        match op {
            Op::Push(spec) => drop(done(self.queue.push(job(spec, &self.payload, self.wall)))),
            Op::PushAll(specs) => drop(done(self.queue.push_all(self.jobs(specs)))),
            Op::Batch(specs) => {
                let mut jobs = self.jobs(specs);
                let last = jobs.pop().unwrap();
                done(self.queue.push_batch(jobs, last));
            }
            Op::Enqueue(specs) => {
                let mut jobs = self.jobs(specs).into_iter();
                let pushed = self.store.write(|all| jobs.try_for_each(|job| self.queue.push_with(all, job).map(drop)));
                done(pushed.map_err(QueueError::from));
            }
            Op::Accept(most) => {
                let accept = most.map(|most| Accept::new().max_run_at(at(self.wall.saturating_add_signed(most))));
                self.leases.extend(done(self.queue.accept(accept.unwrap_or_default())).flatten());
            }
            Op::Act(lease, act) if !self.leases.is_empty() => self.act(lease % self.leases.len(), *act),
            Op::Act(..) => {}
            Op::Remove(number) => drop(done(self.queue.remove(id(*number)))),
            Op::Requeue(number) => drop(done(self.queue.requeue(id(*number)))),
            Op::RequeueDead => drop(done(self.queue.requeue_dead())),
            Op::Purge => drop(done(self.queue.purge())),
            Op::Pause(millis) => drop(done(self.queue.pause(millis.map(Duration::from_millis)))),
            Op::Resume => drop(done(self.queue.resume())),
            Op::Advance(millis) => {
                self.clock.advance(Duration::from_millis(*millis));
                self.wall += millis;
            }
            Op::Jump(millis) => {
                self.wall = self.wall.saturating_add_signed(*millis);
                self.clock.set_wall(at(self.wall));
            }
            Op::Reopen(set) => self.reopen(*set),
            Op::Crash => return self.crash(),
            Op::Drain(drain) => self.run(drain),
        }
        self.disk.fail(0..0);
        self
    }

    fn act(&mut self, number: usize, act: Act) {
        match act {
            // Its worker may call later, or never.
            Act::Leak => {}
            Act::Drop => drop(self.leases.swap_remove(number)),
            act => drop(done(act.call(&mut self.leases[number], &self.store, self.wall))),
        }
    }

    /// Drains the queue with a runner, and asserts that no job is left to claim.
    fn run(&self, drain: &Drain) {
        let ended = Arc::new(AtomicUsize::new(0));
        let Drain { slots, jobs, ends, pushes } = *drain;
        let (queue, clock, payload, wall) = (self.queue.clone(), self.clock.clone(), self.payload.clone(), self.wall);
        let handler = {
            let payload = payload.clone();
            move |running: &Running, _: serde_json::Value| {
                let end = ends.get(ended.fetch_add(1, Ordering::SeqCst)).copied().unwrap_or(0);
                if end >= 192 {
                    done(queue.push(job(&pushes, &payload, wall)));
                }
                match end % 8 {
                    1 => Err("it fails".into()),
                    2 => Ok(Outcome::Dead("no".into())),
                    3 => Ok(Outcome::Snooze(at(wall))),
                    4 => {
                        clock.advance(SECOND);
                        Ok(Outcome::Done)
                    }
                    5 => {
                        done(queue.remove(running.id()));
                        Ok(Outcome::Done)
                    }
                    _ => Ok(Outcome::Done),
                }
            }
        };
        let limits = jobs.map_or(DrainLimits::default(), |jobs| DrainLimits::default().jobs(jobs));
        let builder = Runner::builder(&self.queue)
            .on("k0", handler.clone())
            .on("k2", handler.clone())
            .on_transactional("k1", {
                let (queue, budget) = (self.queue.clone(), AtomicUsize::new(usize::from(ends[0] % 6)));
                move |running: &Running, data: serde_json::Value, effects| {
                    let left = budget.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
                    if left.is_ok() {
                        queue.push_with(effects, job(&pushes, &payload, wall))?;
                    }
                    handler(running, data)
                }
            })
            .max_processing(slots);
        let summary = builder.drain(limits).unwrap();
        if summary.reached != Reached::Jobs {
            self.disk.fail(0..0);
            assert!(self.queue.accept(Accept::new()).unwrap().is_none(), "{summary}");
        }
    }

    /// Asserts that each job is in one state, the counts agree, and no limit is exceeded.
    fn check(&self) {
        let mut seen = BTreeSet::new();
        for state in STATES {
            let jobs = self.queue.list(state, None, usize::MAX).unwrap();
            let ids: Vec<_> = jobs.iter().map(|job| job.id.as_str()).collect();
            assert_eq!(self.queue.counts().of_state(state), jobs.len() as u64, "{state:?}: {ids:?}");
            for job in &jobs {
                assert!(seen.insert(job.id.clone()), "{} is in two places", job.id);
                assert_eq!(self.queue.get(&job.id).unwrap().as_ref(), Some(job));
            }
            if state == JobState::Running {
                limits(self.set / 2).iter().for_each(|(of, at_once, _)| check_limit(of, *at_once, &jobs));
            }
        }
    }

    /// Runs all jobs to their end.
    fn drain(mut self) {
        self.disk.fail(0..0);
        self.queue.resume().unwrap();
        for _ in 0..2_000 {
            while let Some(mut lease) = self.leases.pop() {
                let ended = lease.finish(None);
                assert!(matches!(ended, Ok(_) | Err(QueueError::Halt { .. })), "{ended:?}");
            }
            let claimed = self.queue.accept(Accept::new()).unwrap();
            if claimed.is_none() {
                let counts = self.queue.counts();
                if counts.scheduled + counts.ready + counts.running + counts.waiting == 0 {
                    break;
                }
                self.clock.advance(HOUR);
            }
            self.leases.extend(claimed);
        }
        self.check();
        for job in self.queue.list(JobState::Finished, None, usize::MAX).unwrap() {
            done(self.queue.remove(job.id));
        }
        for _ in 0..8 {
            self.clock.advance(29 * 24 * HOUR);
            assert!(self.queue.accept(Accept::new()).unwrap().is_none());
        }
        let counts = self.queue.counts();
        assert!(
            STATES.iter().all(|state| counts.of_state(*state) == 0),
            "{counts:?}: {}",
            self.queue.status().unwrap()
        );
        // Durations stay until the queue is opened; claimed entries, until there are many.
        let is_left = |part: u8, family: &str| match family {
            "waterline.queue" => !b"ht".contains(&part),
            _ => family == "waterline.ready" && part > 4,
        };
        let records = self.disk.records().into_iter().filter(|(_, key, _)| !key.starts_with(&[u8::MAX; 4]));
        let left: Vec<_> = records.filter(|(family, key, _)| key.len() > 4 && is_left(key[4], family)).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// Asserts that no more jobs run than a limit allows.
fn check_limit(of: &LimitOf, at_once: Option<u32>, running: &[JobInfo]) {
    let place = |job: &JobInfo| match of {
        LimitOf::Queue => Some(String::new()),
        LimitOf::Kind(kind) => Some(job.kind.clone()).filter(|of_job| of_job == kind),
        LimitOf::Key(key) => job.key.clone().filter(|of_job| of_job == key),
        _ => job.key.clone(),
    };
    let mut counts = BTreeMap::<_, u32>::new();
    running.iter().filter_map(place).for_each(|place| *counts.entry(place).or_default() += 1);
    let is_kept = counts.values().all(|count| at_once.is_none_or(|most| *count <= most));
    assert!(is_kept, "{of:?} allows {at_once:?}: {running:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(128), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn jobs_with_any_settings_stay_in_one_place_and_end(
        steps in steps(), set in any::<u8>(),
    ) {
        let mut life = Life::begin(Disk::default(), Clock::manual(at(BEGIN)), BEGIN, set);
        for (trouble, op) in &steps {
            life = life.step(*trouble, op);
            life.check();
        }
        let life = life.crash();
        life.check();
        life.drain();
    }
}
