//! Jobs with any mix of settings in one queue, through failures, deaths of the process and clocks
//! that are set: each job is in one place, the counters are right, and everything comes to its end.

use common::queues::{DAY, SECOND, noon};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use waterline::fuzzing::Disk;
use waterline::queue::{
    Accept, Clash, Clock, JobState, Lease, Limit, Limits, NewJob, OnDead, Outcome, Priority, Queue, QueueError,
    QueueOptions, Rate, Reached, Retention, Runner, Unique,
};
use waterline::{Retry, Store};

const STATES: [JobState; 6] =
    [JobState::Scheduled, JobState::Ready, JobState::Running, JobState::Finished, JobState::Dead, JobState::Waiting];

/// The settings of a job, as one number for each: 0 is mostly none.
#[derive(Clone, Copy, Debug)]
struct Mix {
    id: u8,
    delay: u8,
    priority: u8,
    unique: u8,
    clash: u8,
    skips: bool,
    root: u8,
    expires: u8,
    key: u8,
    cost: u8,
    after: u8,
    on_dead: u8,
    meta: bool,
    drops: bool,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Push(Mix),
    Claim,
    /// Ends a lease: with success, a failure, a burial, a snooze, or not at all.
    End(u8, u8),
    Remove(u8),
    Requeue(u8),
    Purge,
    /// A runner with so many slots runs jobs until none is left, or so many. Each handler ends its
    /// attempt by the next of these bytes, and some push a job before.
    Drain(u8, Option<u8>, [u8; 8], Mix),
    Pause(Option<u16>),
    Resume,
    /// Writes fail: so many, from one that comes soon.
    Fail(u8, u8),
    /// Another call, by its number, for a lease, and with a job.
    Other(u8, u8, Mix),
    /// A new process with other limits.
    Reopen(u8),
    Advance(u16),
    Jump(i32),
    Crash,
    Freeze(u8),
}

fn mix() -> impl Strategy<Value = Mix> {
    let first = (0..12u8, 0..4u8, 0..4u8, 0..8u8, 0..3u8, any::<bool>(), 0..12u8);
    let second = (0..9u8, 0..4u8, 0..3u8, 0..20u8, 0..3u8, any::<bool>(), any::<bool>());
    (first, second).prop_map(|((id, delay, priority, unique, clash, skips, root), rest)| {
        let (expires, key, cost, after, on_dead, meta, drops) = rest;
        Mix { id, delay, priority, unique, clash, skips, root, expires, key, cost, after, on_dead, meta, drops }
    })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        24 => mix().prop_map(Op::Push),
        12 => Just(Op::Claim),
        10 => (any::<u8>(), 0..6u8).prop_map(|(lease, end)| Op::End(lease, end)),
        2 => (0..8u8).prop_map(Op::Remove),
        2 => (0..8u8).prop_map(Op::Requeue),
        1 => Just(Op::Purge),
        5 => (1..4u8, proptest::option::of(1..9u8), any::<[u8; 8]>(), mix()).prop_map(|(slots, jobs, ends, mix)| Op::Drain(slots, jobs, ends, mix)),
        1 => proptest::option::of(0..9000u16).prop_map(Op::Pause),
        3 => Just(Op::Resume),
        1 => (0..3u8, 0..4u8).prop_map(|(a, b)| Op::Fail(a, b)),
        6 => (0..8u8, 0..255u8, mix()).prop_map(|(a, b, m)| Op::Other(a, b, m)),
        2 => (0..12u8).prop_map(Op::Reopen),
        4 => (0..9000u16).prop_map(Op::Advance),
        1 => (-90_000..90_000i32).prop_map(Op::Jump),
        2 => Just(Op::Crash),
        1 => (0..4u8).prop_map(Op::Freeze),
    ]
}

/// The settings with this number: a bound or none, and one of several sets of limits.
fn options(clock: &Clock, set: u8) -> QueueOptions {
    let options = QueueOptions::default()
        .clock(clock.clone())
        .retry(Retry::fixed(SECOND).max_attempts(3))
        .retention(Retention::For(10 * SECOND))
        .dead_for(100 * SECOND)
        .max_crashes(3);
    let options = if set & 1 != 0 { options.max_waiting(4) } else { options };
    match set / 2 % 6 {
        0 => options
            .limit(Limit::each_key().at_once(1))
            .limit(Limit::kind("a").rate(Rate::new(3, SECOND).burst(4)))
            .limit(Limit::queue().at_once(3)),
        1 => options
            .limit(Limit::queue().at_once(2).rate(Rate::new(2, SECOND).burst(3)))
            .limit(Limit::each_key().rate(Rate::new(1, SECOND))),
        2 => options
            .limit(Limit::each_key().at_once(2).rate(Rate::new(1, 7 * SECOND).burst(3)))
            .limit(Limit::kind("a").at_once(1))
            .limit(Limit::kind("b").at_once(2).rate(Rate::new(3, SECOND).burst(4))),
        3 => options.limit(Limit::key("key0").at_once(1)).limit(Limit::kind("b").at_once(1)),
        4 => options.limit(Limit::queue().rate(Rate::new(1, 3 * SECOND).burst(2))).limit(Limit::kind("a").at_once(1)),
        _ => options,
    }
}

fn job(mix: Mix) -> NewJob {
    let job = NewJob::new(if mix.id.is_multiple_of(2) { "a" } else { "b" }, &(mix.id % 4)).unwrap();
    let job = if mix.id < 6 { job.id(format!("id{}", mix.id)) } else { job };
    let job = job.delay(u32::from(mix.delay / 2) * SECOND);
    let priorities = [Priority::Normal, Priority::Urgent, Priority::Low, Priority::High];
    let job = job.priority(priorities[usize::from(mix.priority)]);
    let clash = [Clash::Keep, Clash::Replace, Clash::Earliest][usize::from(mix.clash)];
    let unique = match mix.unique {
        0 => Some(Unique::until_claimed()),
        1 => Some(Unique::until_done()),
        2 => Some(Unique::within(20 * SECOND)),
        _ => None,
    };
    let job = unique.into_iter().fold(job, |job, unique| job.unique(unique.on_clash(clash)));
    let job = if mix.skips { job.skip_if_executed() } else { job };
    let job = if mix.root > 1 && mix.root < 4 { job.root("tree", noon() + u32::from(mix.root) * SECOND) } else { job };
    let job = if mix.expires == 1 { job.expires(5 * SECOND) } else { job };
    let job = if mix.key < 2 { job.key(format!("key{}", mix.key)) } else { job };
    let job = job.cost(u32::from(mix.cost) * 3 + 1);
    let job = if mix.after < 6 { job.after([format!("id{}", mix.after)]) } else { job };
    let job = job.on_dead([OnDead::Die, OnDead::Run, OnDead::Hold][usize::from(mix.on_dead)]);
    let job = if mix.meta { job.meta("m", &1).unwrap() } else { job };
    if mix.drops { job.retention(Retention::Drop) } else { job }
}

/// A process, and the leases of its jobs.
struct Life {
    disk: Disk,
    clock: Clock,
    store: Store,
    set: u8,
    queue: Queue,
    leases: Vec<Lease>,
}

impl Life {
    fn begin(disk: Disk, clock: Clock, set: u8) -> Self {
        let store = disk.open(&Store::options()).unwrap();
        let queue = Queue::open(&store, "q", options(&clock, set)).unwrap();
        Self { disk, clock, store, set, queue, leases: Vec::new() }
    }

    fn crash(self) -> Self {
        let disk = self.disk.after_crash();
        self.leases.into_iter().for_each(std::mem::forget);
        Self::begin(disk, self.clock, self.set)
    }

    fn step(mut self, op: Op) -> Self {
        let id = |id: u8| format!("id{id}");
        match op {
            Op::Push(mix) => match self.queue.push(job(mix)) {
                Ok(_)
                | Err(
                    QueueError::Full { .. }
                    | QueueError::Store(waterline::Error::Store { .. })
                    | QueueError::NotFound { .. }
                    | QueueError::Cycle { .. }
                    | QueueError::AlreadyRuns { .. },
                ) => {}
                Err(error) => panic!("{error:?}"),
            },
            Op::Claim => self.leases.extend(self.queue.accept(Accept::new()).ok().flatten()),
            Op::End(lease, end) if !self.leases.is_empty() => {
                let at = usize::from(lease) % self.leases.len();
                let mut lease = self.leases.swap_remove(at);
                let ended = match end {
                    0..3 => lease.finish(None),
                    3 => lease.retry("it fails"),
                    4 => lease.bury("no way"),
                    _ => lease.snooze(noon()),
                };
                assert!(
                    matches!(
                        ended,
                        Ok(_) | Err(QueueError::Halt { .. } | QueueError::Store(waterline::Error::Store { .. }))
                    ),
                    "{ended:?}"
                );
                if matches!(ended, Err(QueueError::Store(_))) {
                    self.leases.push(lease);
                }
            }
            Op::End(..) => {}
            Op::Remove(number) => drop(self.queue.remove(id(number))),
            Op::Requeue(number) => drop(self.queue.requeue(id(number))),
            Op::Purge => drop(self.queue.purge()),
            Op::Advance(millis) => self.clock.advance(Duration::from_millis(millis.into())),
            Op::Jump(millis) => {
                let back = Duration::from_millis(millis.unsigned_abs().into());
                self.clock.set_wall(if millis < 0 { noon() - back } else { noon() + back });
            }
            Op::Drain(slots, jobs, ends, mix) => self.run(usize::from(slots), jobs.map(u64::from), ends, mix),
            Op::Pause(millis) => drop(self.queue.pause(millis.map(|millis| Duration::from_millis(millis.into())))),
            Op::Resume => drop(self.queue.resume()),
            Op::Fail(from, n) => self.disk.fail(u64::from(from)..u64::from(from + n)),
            Op::Reopen(set) => {
                self.disk.fail(0..0);
                self.set = set;
                return self.crash();
            }
            Op::Other(what, which, mix) => self.other(what, which, mix),
            Op::Crash => return self.crash(),
            Op::Freeze(writes) => self.disk.freeze_at(u64::from(writes)),
        }
        self
    }

    /// A call that may fail, since a write does.
    fn other(&mut self, what: u8, which: u8, mix: Mix) {
        let n = self.leases.len().max(1);
        let lease = self.leases.get_mut(usize::from(which) % n);
        match (what, lease) {
            (0, Some(lease)) => drop(lease.update(Some(1.into()))),
            (1, Some(lease)) => drop(lease.progress(0.5, "x")),
            (2, Some(lease)) => drop(lease.resubmit(if which < 128 { None } else { Some(noon() + 3 * SECOND) })),
            (3, Some(lease)) => drop(lease.set_meta("z", if which < 128 { None } else { Some(1.into()) })),
            (4, _) => drop(self.queue.requeue_dead()),
            (5, _) => {
                let other = Mix { id: which % 8, after: 7, ..mix };
                drop(
                    self.queue
                        .push_batch([job(other), job(Mix { id: 7, ..other })], job(Mix { id: (which / 8) % 8, ..mix })),
                );
            }
            (6, _) => drop(self.store.write(|effects| effects.enqueue(&self.queue, job(mix)).map(drop))),
            (7, _) => drop(
                self.queue.accept(Accept::new().max_run_at(noon() + 5 * SECOND)).map(|lease| self.leases.extend(lease)),
            ),
            _ => {}
        }
    }

    /// Drains the queue by a runner. It ends, and no job is left that could be claimed.
    fn run(&self, slots: usize, jobs: Option<u64>, ends: [u8; 8], mix: Mix) {
        let ended = Arc::new(AtomicUsize::new(0));
        let budget = Arc::new(AtomicUsize::new(0));
        let (queue, clock) = (self.queue.clone(), self.clock.clone());
        let handler = {
            let ended = ended.clone();
            move |job: &waterline::queue::Running, _: u8| {
                let n = ended.fetch_add(1, Ordering::SeqCst);
                let end = ends.get(n).copied().unwrap_or(0);
                if end >= 192 {
                    let _ = queue.push(self::job(mix));
                }
                match end % 8 {
                    1 => Err("it fails".into()),
                    2 => Ok(Outcome::Dead("no".into())),
                    3 => Ok(Outcome::Snooze(noon())),
                    4 => {
                        clock.advance(SECOND);
                        Ok(Outcome::Done)
                    }
                    5 => {
                        let _ = queue.remove(job.id());
                        Ok(Outcome::Done)
                    }
                    _ => Ok(Outcome::Done),
                }
            }
        };
        let limits = jobs.map_or(Limits::default(), |jobs| Limits::default().jobs(jobs));
        let builder = Runner::builder(&self.queue)
            .on("a", handler.clone())
            .on_transactional("b", {
                let (queue, budget) = (self.queue.clone(), budget.clone());
                move |running: &waterline::queue::Running, payload: u8, effects| {
                    if mix.meta && budget.fetch_add(1, Ordering::SeqCst) < 5 {
                        effects.enqueue(&queue, job(mix))?;
                    }
                    handler(running, payload)
                }
            })
            .max_processing(slots);
        let summary = builder.drain(limits).unwrap();
        if summary.reached != Reached::Jobs {
            self.disk.fail(0..0);
            assert!(self.queue.accept(Accept::new()).unwrap().is_none(), "{summary}");
        }
    }

    /// Each job is listed in one state, and the counters agree.
    fn check(&self) {
        let mut seen = std::collections::BTreeSet::new();
        for state in STATES {
            let jobs = self.queue.list(state, None, usize::MAX).unwrap();
            let ids: Vec<_> = jobs.iter().map(|job| job.id.as_str()).collect();
            assert_eq!(self.queue.counts().of_state(state), jobs.len() as u64, "{state:?}: {ids:?}");
            for job in &jobs {
                assert!(seen.insert(job.id.clone()), "{} is in two places", job.id);
                assert_eq!(self.queue.get(&job.id).unwrap().as_ref(), Some(job));
            }
        }
    }

    /// Runs all that is left, until nothing is.
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
                self.clock.advance(20 * SECOND);
            }
            self.leases.extend(claimed);
        }
        self.check();
        self.clock.advance(DAY);
        assert!(self.queue.accept(Accept::new()).unwrap().is_none());
        self.clock.advance(DAY);
        assert!(self.queue.accept(Accept::new()).unwrap().is_none());
        let counts = self.queue.counts();
        assert!(
            STATES.iter().all(|state| counts.of_state(*state) == 0),
            "{counts:?}: {}",
            self.queue.status().unwrap()
        );
        for _ in 0..4 {
            self.clock.advance(29 * DAY);
            assert!(self.queue.accept(Accept::new()).unwrap().is_none());
        }
        // The durations stay until the queue is opened, and claimed entries of ready logs until
        // they are many.
        let is_left = |part: u8, family: &str| match family {
            "waterline.queue" => !b"ht".contains(&part),
            _ => family == "waterline.ready" && part > 4,
        };
        let records = self.disk.records().into_iter().filter(|(_, key, _)| !key.starts_with(&[u8::MAX; 4]));
        let left: Vec<_> = records.filter(|(family, key, _)| key.len() > 4 && is_left(key[4], family)).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn jobs_with_any_mix_of_settings_are_in_one_place_and_come_to_their_end(
        ops in proptest::collection::vec(op(), 1..80), set in 0..12u8,
    ) {
        let clock = Clock::manual(noon());
        let mut life = Life::begin(Disk::default(), clock, set);
        for op in ops {
            life = life.step(op);
            life.check();
        }
        life.disk.fail(0..0);
        let life = life.crash();
        life.check();
        life.drain();
    }
}
