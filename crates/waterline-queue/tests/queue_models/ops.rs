//! Random calls of a queue: pushes, ends of attempts, runners, and faults of the disk.

use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use waterline::{Retry, Store};
use waterline_queue::{
    Accept, Clash, JobState, Lease, NewJob, OnDead, Priority, Queue, QueueError, QueueOptions, Retention, Root, Unique,
};

pub const STATES: [JobState; 6] =
    [JobState::Scheduled, JobState::Ready, JobState::Running, JobState::Finished, JobState::Dead, JobState::Waiting];
const PRIORITIES: [Priority; 4] = [Priority::Urgent, Priority::High, Priority::Normal, Priority::Low];

/// The wall time of the first step, in milliseconds since 1970.
pub const BEGIN: u64 = 1_800_000_000_000;
const DAY: i64 = 86_400_000;

/// The number of ids that jobs may have.
const IDS: u8 = 8;

/// A job to push. Times are relative to the wall clock, in milliseconds.
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
    limited: LimitSpec,
}

/// The settings that compare a job with others.
#[derive(Clone, Copy, Debug)]
struct CompareSpec {
    page: u8,
    until: Option<u8>,
    clash: u8,
    skips: bool,
    root: Option<(u8, u64, bool)>,
    expires: Option<u64>,
}

/// The settings for limits, and whether the job has metadata.
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
    /// Jobs of a batch, the last of which waits for the others.
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
    /// Closes the queue, and opens it with the options of this number.
    Reopen(u8),
    Crash,
    Drain(Drain),
}

/// A drain by a runner with this many slots, up to a number of jobs. The handlers end their
/// attempts as these bytes say, and some push a job first.
#[derive(Clone, Copy, Debug)]
pub struct Drain {
    pub slots: usize,
    pub jobs: Option<u64>,
    pub ends: [u8; 8],
    pub pushes: Spec,
}

/// A fault of the disk that begins with a step, by the number of the write.
#[derive(Clone, Copy, Debug)]
pub enum Trouble {
    No,
    Fail(u64),
    Freeze(u64),
}

/// Whole seconds, in milliseconds, so that times coincide.
fn whole(seconds: std::ops::Range<u64>) -> impl Strategy<Value = u64> {
    seconds.prop_map(|seconds| 1000 * seconds)
}

fn due() -> impl Strategy<Value = Due> {
    prop_oneof![
        4 => Just(Due::Now),
        1 => (0..30_000u64).prop_map(Due::After),
        2 => whole(0..12).prop_map(Due::After),
        1 => (-30_000..90_000i64).prop_map(|at| Due::At(at / 10_000 * 10_000)),
        1 => Just(Due::At(i64::MIN)),
    ]
}

fn spec() -> impl Strategy<Value = Spec> {
    let id = proptest::option::weighted(0.7, 0..6u8);
    let (retry, retention) = (proptest::option::weighted(0.3, 0..3u8), proptest::option::weighted(0.4, 0..4u8));
    let priority = prop_oneof![1 => 0..4usize, 1 => Just(2)];
    let compared = proptest::option::weighted(0.5, compare_spec());
    (id, due(), priority, retry, retention, compared, after(), 0..3u8, limit_spec()).prop_map(
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

fn compare_spec() -> impl Strategy<Value = CompareSpec> {
    let until = proptest::option::weighted(0.6, 0..4u8);
    let root = proptest::option::weighted(0.3, (0..2u8, 0..4u64, any::<bool>()));
    let expires = proptest::option::weighted(0.3, whole(1..30));
    (0..3u8, until, 0..3u8, any::<bool>(), root, expires)
        .prop_map(|(page, until, clash, skips, root, expires)| CompareSpec { page, until, clash, skips, root, expires })
}

/// Draws up to 3 ids.
fn after() -> impl Strategy<Value = u8> {
    let some = proptest::collection::vec(0..IDS, 1..4).prop_map(|ids| ids.iter().fold(0, |all, id| all | 1 << id));
    prop_oneof![1 => Just(0u8), 1 => some]
}

fn act() -> impl Strategy<Value = Act> {
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
        2 => Just(Act::Bury),
        2 => proptest::option::of(soon()).prop_map(Act::Resubmit),
        1 => Just(Act::Drop),
        1 => Just(Act::Leak),
    ];
    prop_oneof![24 => acts, 2 => Just(Act::Progress), 2 => any::<bool>().prop_map(Act::SetMeta)]
}

fn op() -> impl Strategy<Value = Op> {
    let specs = |sizes: std::ops::Range<usize>| proptest::collection::vec(spec(), sizes);
    let ops = prop_oneof![
        10 => spec().prop_map(Op::Push),
        2 => specs(0..12).prop_map(Op::PushAll),
        2 => specs(0..4).prop_map(Op::Enqueue),
        12 => Just(Op::Accept(None)),
        14 => (any::<usize>(), act()).prop_map(|(lease, act)| Op::Act(lease, act)),
        2 => (0..12u8).prop_map(Op::Remove),
        2 => (0..12u8).prop_map(Op::Requeue),
        1 => Just(Op::RequeueDead),
        1 => Just(Op::Purge),
        1 => Just(Op::Resume),
        5 => prop_oneof![0..3_000u64, whole(0..100), whole(0..12), Just(60_000), Just(50_000)].prop_map(Op::Advance),
        1 => prop_oneof![Just(DAY), Just(-DAY), -5_000..5_000i64].prop_map(Op::Jump),
        1 => any::<u8>().prop_map(Op::Reopen),
        3 => Just(Op::Crash),
    ];
    let timed = prop_oneof![
        1 => (-30_000..60_000i64).prop_map(|at| Op::Accept(Some(at))),
        3 => (-8..12i64).prop_map(|seconds| Op::Accept(Some(1000 * seconds))),
        1 => proptest::option::of(0..60_000u64).prop_map(Op::Pause),
    ];
    let batch = specs(1..5).prop_map(Op::Batch);
    let drain = (1..4usize, proptest::option::of(1..9u64), any::<[u8; 8]>(), spec());
    let drain = drain.prop_map(|(slots, jobs, ends, pushes)| Op::Drain(Drain { slots, jobs, ends, pushes }));
    prop_oneof![57 => ops, 5 => timed, 3 => batch, 4 => drain]
}

/// Draws a step of a life: a fault of the disk, and a call.
fn step() -> impl Strategy<Value = (Trouble, Op)> {
    let trouble = prop_oneof![
        12 => Just(Trouble::No),
        1 => (0..3u64).prop_map(Trouble::Fail),
        1 => (0..6u64).prop_map(Trouble::Freeze),
    ];
    (trouble, op())
}

pub fn steps() -> impl Strategy<Value = Vec<(Trouble, Op)>> {
    proptest::collection::vec(step(), 1..80)
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
    fn after(&self) -> BTreeSet<String> {
        (0..IDS).filter(|number| self.after & 1 << number != 0).map(id).collect()
    }

    pub fn job(&self, payload: u64, wall: u64) -> NewJob {
        let page = self.compared.map_or(9, |compared| compared.page);
        // Twins have the same kind.
        let kind = if self.compared.is_some() { 0 } else { payload % 3 };
        let new = NewJob::new(format!("k{kind}"), &json!({ "n": payload, "page": page })).unwrap();
        let new = new.priority(PRIORITIES[self.priority]);
        let new = match self.due {
            Due::Now => new,
            Due::After(delay) => new.delay(Duration::from_millis(delay)),
            Due::At(relative) => new.run_at(at(wall.saturating_add_signed(relative))),
        };
        let new = self.id.map(id).into_iter().fold(new, NewJob::id);
        let retry = self.retry.map(|retry| match retry {
            0 => Retry::none(),
            1 => Retry::fixed(Duration::from_secs(3)).max_attempts(2),
            _ => Retry::fixed(Duration::ZERO),
        });
        let new = retry.into_iter().fold(new, NewJob::retry);
        let retention = self.retention.map(|retention| match retention {
            0 => Retention::Drop,
            1 => Retention::Keep,
            2 => Retention::For(Duration::ZERO),
            _ => Retention::For(Duration::from_secs(5)),
        });
        let new = retention.into_iter().fold(new, NewJob::retention);
        let on_dead = [OnDead::Die, OnDead::Run, OnDead::Hold][usize::from(self.on_dead)];
        let new = self.limited.of(new.after(self.after()).on_dead(on_dead));
        self.compared.iter().fold(new, |new, compared| compared.of(new))
    }
}

impl LimitSpec {
    fn of(&self, new: NewJob) -> NewJob {
        let new = self.key.iter().fold(new, |new, key| new.key(format!("key{key}"))).cost(self.cost);
        if self.has_meta { new.meta("m", &1).unwrap() } else { new }
    }
}

impl CompareSpec {
    fn of(&self, mut new: NewJob) -> NewJob {
        let clash = [Clash::Keep, Clash::Replace, Clash::Earliest][usize::from(self.clash)];
        if let Some(until) = self.until {
            let unique = match until {
                0 => Unique::until_claimed(),
                1 => Unique::until_done(),
                2 => Unique::within(Duration::from_secs(200)),
                _ => Unique::within(Duration::ZERO),
            };
            new = new.unique(unique.only(["page"]).on_clash(clash));
            // Without the fields of a unique job, the fingerprint would be that of no other job.
            new = if self.skips { new.skip_if_executed() } else { new };
        }
        if let Some((tree, time, is_root)) = self.root {
            let time = BEGIN + time;
            new = new.root(tree.to_string(), at(time));
            new = if is_root { new } else { new.leaf(&root(tree, time)) };
        }
        self.expires.into_iter().fold(new, |new, expires| new.expires(Duration::from_millis(expires)))
    }
}

/// Returns a root as a worker sees it.
fn root(tree: u8, time: u64) -> Root {
    let other = Queue::open(&Store::in_memory(), "roots", QueueOptions::default()).unwrap();
    other.push(NewJob::new("k", &()).unwrap().root(tree.to_string(), at(time))).unwrap();
    let lease = other.accept(Accept::new()).unwrap().unwrap();
    lease.root().unwrap().clone()
}

impl Act {
    /// Makes this call of a lease. `Drop` and `Leak` are not calls.
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
