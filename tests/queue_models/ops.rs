//! Random calls of a queue: the jobs that are pushed, the ends of attempts, and the troubles of the
//! disk. A profile says which of them come, and how often.

use crate::model::{DEAD_FOR, Job, Kept, LEASE, More, Push, Until};
use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use waterline::queue::{
    Accept, Clash, JobState, Lease, NewJob, OnDead, Priority, Queue, QueueError, QueueOptions, Retention, Root, Unique,
};
use waterline::{Retry, Store};

pub const STATES: [JobState; 6] =
    [JobState::Scheduled, JobState::Ready, JobState::Running, JobState::Finished, JobState::Dead, JobState::Waiting];
pub const PRIORITIES: [Priority; 4] = [Priority::Urgent, Priority::High, Priority::Normal, Priority::Low];

/// The time of the first step, in milliseconds since 1970, and a day.
pub const BEGIN: u64 = 1_800_000_000_000;
pub const DAY: u64 = 86_400_000;

/// The number of ids that tests give to their jobs.
pub const IDS: u8 = 8;

/// The calls of a random life.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Profile {
    /// Jobs that wait for no other one, in a queue without limits.
    Plain,
    /// Jobs that wait for others. No job is passed by a claim, and none is claimed before its time:
    /// a job that it ends so may make another one ready behind the place of the look.
    Workflows,
    /// Jobs with all settings, and runners.
    Mixed,
}

/// A job to be pushed. Times are relative to the clock on the wall, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    id: Option<u8>,
    due: Due,
    priority: usize,
    retry: Option<u8>,
    retention: Option<u8>,
    compared: Option<CompareSpec>,
    /// The ids that the job waits for, one bit each.
    after: u8,
    on_dead: u8,
    limited: Option<LimitSpec>,
}

/// The settings by which a job is compared with others.
#[derive(Clone, Copy, Debug)]
struct CompareSpec {
    page: u8,
    until: Option<u8>,
    clash: u8,
    skips: bool,
    root: Option<(u8, u64, bool)>,
    expires: Option<u64>,
}

/// The settings that a model knows nothing of.
#[derive(Clone, Copy, Debug)]
struct LimitSpec {
    key: Option<u8>,
    cost: u32,
    has_meta: bool,
}

#[derive(Clone, Copy, Debug)]
enum Due {
    Now,
    After(u64),
    At(i64),
}

#[derive(Clone, Copy, Debug)]
pub enum Act {
    Heartbeat,
    Update(u64),
    Write,
    Finish(Option<u64>),
    FinishWith,
    Retry,
    RetryAt(i64),
    Snooze(i64),
    Bury,
    Resubmit(Option<i64>),
    Drop,
    Leak,
    Progress,
    SetMeta(bool),
}

#[derive(Clone, Debug)]
pub enum Op {
    Push(Spec),
    PushAll(Vec<Spec>),
    /// Jobs, and the last one waits for all others.
    Batch(Vec<Spec>),
    Enqueue(Vec<Spec>),
    Accept(Option<i64>),
    Act(usize, Act),
    Remove(u8),
    Requeue(u8),
    RequeueDead,
    Purge,
    Pause(Option<u64>),
    Resume,
    Advance(u64),
    Jump(i64),
    /// The queue is closed, and opened again, maybe with other options.
    Reopen(u8),
    Crash,
    Drain(Drain),
}

/// A runner with so many slots runs jobs until none is left, or so many. Each handler ends its
/// attempt by the next of these bytes, and some push a job before.
#[derive(Clone, Copy, Debug)]
pub struct Drain {
    pub slots: usize,
    pub jobs: Option<u64>,
    pub ends: [u8; 8],
    pub pushes: Spec,
}

/// The trouble that begins with a step, by the number of the write.
#[derive(Clone, Copy, Debug)]
pub enum Trouble {
    No,
    Fail(u64),
    Freeze(u64),
}

/// Whole seconds, in milliseconds, so that times meet.
fn whole(seconds: std::ops::Range<u64>) -> impl Strategy<Value = u64> {
    seconds.prop_map(|seconds| 1000 * seconds)
}

impl Profile {
    fn due(self) -> impl Strategy<Value = Due> {
        prop_oneof![
            if self == Self::Workflows { 24 } else { 4 } => Just(Due::Now),
            1 => (0..30_000u64).prop_map(Due::After),
            2 => whole(0..12).prop_map(Due::After),
            1 => (-30_000..90_000i64).prop_map(|at| Due::At(at / 10_000 * 10_000)),
            1 => Just(Due::At(i64::MIN)),
        ]
    }

    fn spec(self) -> impl Strategy<Value = Spec> {
        let id = match self {
            Self::Workflows => proptest::option::weighted(0.9, 0..IDS),
            Self::Plain | Self::Mixed => proptest::option::weighted(0.7, 0..6u8),
        };
        let (retry, retention) = (proptest::option::weighted(0.3, 0..3u8), proptest::option::weighted(0.4, 0..4u8));
        let priority = prop_oneof![1 => 0..4usize, 1 => Just(2)];
        let compared = if self == Self::Workflows { 0.2 } else { 0.5 };
        let compared = proptest::option::weighted(compared, self.compare_spec());
        let limited = limit_spec().prop_map(move |limited| Some(limited).filter(|_| self == Self::Mixed));
        (id, self.due(), priority, retry, retention, compared, self.after(), 0..3u8, limited).prop_map(
            |(id, due, priority, retry, retention, compared, after, on_dead, limited)| Spec {
                id,
                due,
                priority,
                retry,
                retention,
                compared,
                after,
                on_dead,
                limited,
            },
        )
    }

    fn compare_spec(self) -> impl Strategy<Value = CompareSpec> {
        let until = proptest::option::weighted(0.6, 0..4u8);
        let root = proptest::option::weighted(0.3, (0..2u8, 0..4u64, any::<bool>()));
        let expires = proptest::option::weighted(0.3, whole(1..30));
        let passes = self != Self::Workflows;
        (0..3u8, until, 0..3u8, any::<bool>(), root, expires).prop_map(
            move |(page, until, clash, skips, root, expires)| CompareSpec {
                page,
                until,
                clash,
                skips: passes && skips,
                root: root.filter(|_| passes),
                expires,
            },
        )
    }

    /// Returns up to 3 of the ids.
    fn after(self) -> impl Strategy<Value = u8> {
        let some = proptest::collection::vec(0..IDS, 1..4).prop_map(|ids| ids.iter().fold(0, |all, id| all | 1 << id));
        let after = prop_oneof![1 => Just(0u8), if self == Self::Workflows { 3 } else { 1 } => some];
        after.prop_map(move |after| if self == Self::Plain { 0 } else { after })
    }

    fn act(self) -> BoxedStrategy<Act> {
        let soon = || -20_000..40_000i64;
        let acts = prop_oneof![
            1 => Just(Act::Heartbeat),
            2 => any::<u64>().prop_map(Act::Update),
            1 => Just(Act::Write),
            4 => proptest::option::of(0..9u64).prop_map(Act::Finish),
            3 => Just(Act::FinishWith),
            4 => Just(Act::Retry),
            1 => soon().prop_map(Act::RetryAt),
            2 => soon().prop_map(Act::Snooze),
            if self == Self::Workflows { 6 } else { 2 } => Just(Act::Bury),
            2 => proptest::option::of(soon()).prop_map(Act::Resubmit),
            1 => Just(Act::Drop),
            1 => Just(Act::Leak),
        ];
        match self {
            Self::Mixed => {
                prop_oneof![24 => acts, 2 => Just(Act::Progress), 2 => any::<bool>().prop_map(Act::SetMeta)].boxed()
            }
            _ => acts.boxed(),
        }
    }

    fn op(self) -> BoxedStrategy<Op> {
        let specs = |sizes: std::ops::Range<usize>| proptest::collection::vec(self.spec(), sizes);
        let ops = prop_oneof![
            10 => self.spec().prop_map(Op::Push),
            2 => specs(0..if self == Self::Workflows { 4 } else { 12 }).prop_map(Op::PushAll),
            2 => specs(0..4).prop_map(Op::Enqueue),
            12 => Just(Op::Accept(None)),
            14 => (any::<usize>(), self.act()).prop_map(|(lease, act)| Op::Act(lease, act)),
            2 => (0..12u8).prop_map(Op::Remove),
            2 => (0..12u8).prop_map(Op::Requeue),
            1 => Just(Op::RequeueDead),
            1 => Just(Op::Purge),
            1 => Just(Op::Resume),
            5 => prop_oneof![0..3_000u64, whole(0..100), whole(0..12), Just(LEASE), Just(DEAD_FOR / 2)].prop_map(Op::Advance),
            1 => prop_oneof![Just(DAY as i64), Just(-(DAY as i64)), -5_000..5_000i64].prop_map(Op::Jump),
            1 => any::<u8>().prop_map(Op::Reopen),
            3 => Just(Op::Crash),
        ];
        let timed = prop_oneof![
            1 => (-30_000..60_000i64).prop_map(|at| Op::Accept(Some(at))),
            3 => (-8..12i64).prop_map(|seconds| Op::Accept(Some(1000 * seconds))),
            1 => proptest::option::of(0..60_000u64).prop_map(Op::Pause),
        ];
        let batch = specs(1..5).prop_map(Op::Batch);
        let drain = (1..4usize, proptest::option::of(1..9u64), any::<[u8; 8]>(), self.spec());
        let drain = drain.prop_map(|(slots, jobs, ends, pushes)| Op::Drain(Drain { slots, jobs, ends, pushes }));
        match self {
            Self::Plain => prop_oneof![57 => ops, 5 => timed].boxed(),
            Self::Workflows => prop_oneof![57 => ops, 3 => batch].boxed(),
            Self::Mixed => prop_oneof![57 => ops, 5 => timed, 3 => batch, 4 => drain].boxed(),
        }
    }

    /// Returns a step of a life: a trouble of the disk, and a call.
    pub fn step(self) -> impl Strategy<Value = (Trouble, Op)> {
        let trouble = prop_oneof![
            12 => Just(Trouble::No),
            1 => (0..3u64).prop_map(Trouble::Fail),
            1 => (0..6u64).prop_map(Trouble::Freeze),
        ];
        (trouble, self.op())
    }

    /// Returns the steps of a life.
    pub fn steps(self) -> impl Strategy<Value = Vec<(Trouble, Op)>> {
        proptest::collection::vec(self.step(), 1..80)
    }
}

fn limit_spec() -> impl Strategy<Value = LimitSpec> {
    let key = proptest::option::weighted(0.4, 0..2u8);
    (key, 0..4u32, any::<bool>()).prop_map(|(key, cost, has_meta)| LimitSpec { key, cost: 3 * cost + 1, has_meta })
}

pub fn at(wall: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(wall)
}

pub fn id(number: u8) -> String {
    format!("id{number}")
}

impl Spec {
    /// Returns the ids that the job waits for.
    pub fn after(&self) -> BTreeSet<String> {
        (0..IDS).filter(|number| self.after & 1 << number != 0).map(id).collect()
    }

    /// Returns this job for the queue and for its model. An id that the queue makes is not known
    /// yet.
    pub fn job(&self, payload: u64, wall: u64) -> (NewJob, Push) {
        let page = self.compared.map_or(9, |compared| compared.page);
        // Twins have one kind.
        let kind = if self.compared.is_some() { 0 } else { payload % 3 };
        let kind = format!("k{kind}");
        let new = NewJob::new(&kind, &json!({ "n": payload, "page": page })).unwrap();
        let new = new.priority(PRIORITIES[self.priority]);
        let (new, due) = match self.due {
            Due::Now => (new, 0),
            Due::After(delay) => (new.delay(Duration::from_millis(delay)), wall + delay),
            Due::At(relative) => {
                let due = wall.saturating_add_signed(relative);
                (new.run_at(at(due)), due)
            }
        };
        let own_id = self.id.map(id);
        let new = own_id.iter().fold(new, |new, id| new.id(id));
        let retry = self.retry.map(|retry| match retry {
            0 => Retry::none(),
            1 => Retry::fixed(Duration::from_secs(3)).max_attempts(2),
            _ => Retry::fixed(Duration::ZERO),
        });
        let new = retry.iter().fold(new, |new, retry| new.retry(*retry));
        let retention = self.retention.map(|retention| match retention {
            0 => (Retention::Drop, Kept::Not),
            1 => (Retention::Keep, Kept::Always),
            2 => (Retention::For(Duration::ZERO), Kept::Not),
            _ => (Retention::For(Duration::from_secs(5)), Kept::For(5000)),
        });
        let new = retention.iter().fold(new, |new, retention| new.retention(retention.0));
        let on_dead = [OnDead::Die, OnDead::Run, OnDead::Hold][usize::from(self.on_dead)];
        let after = self.after();
        let new = new.after(&after).on_dead(on_dead);
        let new = self.limited.iter().fold(new, |new, limited| limited.of(new));
        let (new, more, clash) = self
            .compared
            .map_or_else(|| (new.clone(), More::default(), Clash::Keep), |compared| compared.of(new.clone(), wall));
        let job = Job {
            state: JobState::Ready,
            kind,
            payload,
            priority: self.priority,
            retry,
            retention: retention.map(|retention| retention.1),
            failures: 0,
            crashes: 0,
            suspect: false,
            pushed: wall,
            due,
            since: 0,
            resubmit: None,
            reckoned: if matches!(self.due, Due::After(_)) { wall } else { 0 },
            data: None,
            error: String::new(),
            order: 0,
            kept_until: None,
            deadline: 0,
            more,
            after: BTreeSet::new(),
            waited_for: BTreeSet::new(),
            on_dead,
        };
        (new, Push { id: own_id.unwrap_or_default(), job, clash, after })
    }
}

impl LimitSpec {
    fn of(&self, new: NewJob) -> NewJob {
        let new = self.key.iter().fold(new, |new, key| new.key(format!("key{key}"))).cost(self.cost);
        if self.has_meta { new.meta("m", &1).unwrap() } else { new }
    }
}

impl CompareSpec {
    /// Gives a job the settings by which it is compared with others.
    fn of(&self, mut new: NewJob, wall: u64) -> (NewJob, More, Clash) {
        let clash = [Clash::Keep, Clash::Replace, Clash::Earliest][usize::from(self.clash)];
        let mut more = More { page: Some(self.page), ..More::default() };
        if let Some(until) = self.until {
            let second = Duration::from_secs(1);
            let (unique, until) = match until {
                0 => (Unique::until_claimed(), Until::Claimed),
                1 => (Unique::until_done(), Until::Done),
                2 => (Unique::within(200 * second), Until::Window(200_000)),
                _ => (Unique::within(Duration::ZERO), Until::Window(0)),
            };
            new = new.unique(unique.only(["page"]).on_clash(clash));
            more.unique = Some(until);
        }
        // Without fields of a unique job, no other one has the same fingerprint.
        if self.skips && self.until.is_some() {
            new = new.skip_if_executed();
            more.skips_from = Some(0);
        }
        more.page = more.page.filter(|_| more.unique.is_some());
        if let Some((tree, time, is_root)) = self.root {
            let time = BEGIN + time;
            new = new.root(tree.to_string(), at(time));
            if !is_root {
                new = new.leaf(&root(tree, time));
            }
            more.root = Some((tree, time, is_root));
        }
        if let Some(expires) = self.expires {
            new = new.expires(Duration::from_millis(expires));
            more.expires = Some(wall + expires);
        }
        (new, more, clash)
    }
}

/// Returns a root as a job has it that was pushed with it.
fn root(tree: u8, time: u64) -> Root {
    let other = Queue::open(&Store::in_memory(), "roots", QueueOptions::default()).unwrap();
    other.push(NewJob::new("k", &()).unwrap().root(tree.to_string(), at(time))).unwrap();
    let lease = other.accept(Accept::new()).unwrap().unwrap();
    lease.root().unwrap().clone()
}

impl Act {
    /// Makes this call of a lease, which is neither dropped nor leaked.
    pub fn call(self, lease: &mut Lease, store: &Store, wall: u64) -> Result<Option<JobState>, QueueError> {
        let effects = store.table("effects").unwrap();
        let id = lease.id().to_owned();
        let count = |writes: &mut waterline::Effects| writes.add(&effects, id.as_bytes(), 1);
        let at = |relative: i64| at(wall.saturating_add_signed(relative));
        match self {
            Self::Heartbeat => lease.update(None).map(|()| None),
            Self::Update(data) => lease.update(Some(data.into())).map(|()| None),
            Self::Write => lease.write(count).map(|()| None),
            Self::Finish(data) => lease.finish(data.map(Into::into)),
            Self::FinishWith => lease.finish_with(count),
            Self::Retry => lease.retry("it fails"),
            Self::RetryAt(relative) => lease.retry_at(at(relative), "it fails too"),
            Self::Snooze(relative) => lease.snooze(at(relative)),
            Self::Bury => lease.bury("no way"),
            Self::Resubmit(relative) => lease.resubmit(relative.map(at)).map(|()| None),
            Self::Progress => lease.progress(0.5, "x").map(|()| None),
            Self::SetMeta(is_set) => lease.set_meta("z", is_set.then(|| 1.into())).map(|()| None),
            Self::Drop | Self::Leak => unreachable!(),
        }
    }
}
