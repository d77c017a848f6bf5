//! Random calls: how they are drawn, and how a failure shows them.

use crate::bench::*;
use fastrand::Rng;
use std::fmt;
use std::time::Duration;
use waterline::Retry;
use waterline_queue::testing::QueueModel;
use waterline_queue::{
    Accept, CatchUp, Clash, Limit, NewJob, OnDead, Overlap, Priority, QueueOptions, Rate, Retention, Root, Unique,
};

/// Which calls a life has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Profile {
    /// Calls of each kind.
    Plain,
    /// Jobs that wait for others.
    Workflows,
    /// Workers whose leases the process renews, and crashes.
    Deaths,
    /// Limits, and a bound on waiting jobs.
    Limits,
    /// Failing writes, and a disk that stops taking them.
    Faults,
}

/// The id of a job: a given one, or one that the queue has generated.
#[derive(Clone, Copy)]
pub(super) enum Id {
    Own(&'static str),
    Made(usize),
}

/// The end of a lease, or a call of a worker that goes on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    Finish,
    Retry,
    RetryAt(Duration),
    Snooze(Duration),
    Bury,
    GiveBack,
    Update(u8),
    Show(u8),
    Meta(u8),
    Resubmit(Option<Duration>),
    Keep,
    Leave,
    /// Writes of the worker's own, alone or with the end of the job.
    Write,
    FinishWith,
}

/// A job to push.
#[derive(Clone, Default)]
pub(super) struct Spec {
    id: Option<&'static str>,
    kind: &'static str,
    payload: u8,
    delay: Option<Duration>,
    priority: Option<Priority>,
    retry: Option<u32>,
    unique: Option<(Until, Clash)>,
    skips: bool,
    root: Option<Duration>,
    leaf: bool,
    retention: Option<Retention>,
    expires: Option<Duration>,
    after: Vec<Id>,
    on_dead: Option<OnDead>,
    meta: Option<u8>,
    key: Option<&'static str>,
    cost: u32,
}

#[derive(Clone, Copy, Debug)]
enum Until {
    Claimed,
    Done,
    Within(Duration),
}

#[derive(Clone, Debug)]
pub(super) enum Call {
    Push(Spec),
    PushAll(Vec<Spec>),
    Batch(Vec<Spec>, Spec),
    /// Pushes in a write of the user's.
    Enqueue(Vec<Spec>),
    /// Claims a job that is due by a time, or of a kind. The process may renew its lease.
    Accept(Option<Duration>, Option<&'static str>, bool),
    /// Claims a job that has been due for this long.
    AcceptOld(Duration),
    Work(usize, Work),
    SetMeta(Id, Option<u8>),
    Remove(Id),
    Requeue(Id),
    RunNow(Id),
    RequeueDead,
    Purge,
    Pause(Option<Duration>),
    Resume,
    SetNote(u8, Option<Duration>),
    AddNote(i64),
    RemoveNote,
    Periodic(Duration, Overlap, CatchUp, Spec),
    RemovePeriodic,
    Advance(Duration),
    /// Sets the wall clock back (true) or forward by this time.
    Set(Duration, bool),
    Reopen,
    Crash,
    /// The next call's write with this number fails.
    Fail(u64),
    /// The write with this number and all later ones only seem to succeed.
    Stop(u64),
}

const OWN: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// The ids that are given.
pub(super) fn own_ids() -> [&'static str; 6] {
    OWN
}

/// The times of all settings, so that they coincide.
const TIMES: [Duration; 8] = [
    MILLI,
    Duration::from_millis(500),
    SECOND,
    Duration::from_secs(30),
    MINUTE,
    Duration::from_secs(300),
    DAY,
    Duration::from_secs(8 * 86_400),
];

fn any<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.usize(..of.len())]
}

/// Draws a value in this percentage of cases.
fn some<T>(rng: &mut Rng, percent: u32, make: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    (rng.u32(..100) < percent).then(|| make(rng))
}

fn time(rng: &mut Rng) -> Duration {
    any(rng, &TIMES)
}

fn kind(rng: &mut Rng) -> &'static str {
    any(rng, &["k", "l"])
}

fn id(rng: &mut Rng) -> Id {
    if rng.u8(..4) > 0 { Id::Own(any(rng, &OWN)) } else { Id::Made(rng.usize(..4)) }
}

/// Draws a job to wait for, mostly one that exists.
fn awaited(rng: &mut Rng) -> Id {
    if rng.u8(..4) > 0 { Id::Own(any(rng, &OWN[..4])) } else { id(rng) }
}

/// Returns the options of a queue in lives of this profile. `set` chooses its limits.
pub(super) fn options(profile: Profile, set: u8, takes_turns: bool) -> QueueOptions {
    let options = QueueOptions::default()
        .lease(MINUTE)
        .retry(Retry::fixed(SECOND).max_attempts(2))
        .retention(Retention::For(5 * MINUTE))
        .max_crashes(4);
    if profile == Profile::Faults {
        let retry = Retry::exponential(SECOND, 20 * SECOND).max_attempts(4).jitter(0.5);
        return options.retry(retry).dead_for(2 * MINUTE).max_crashes(3);
    }
    if profile != Profile::Limits {
        return options;
    }
    let rate = Rate::new(1, 30 * SECOND).burst(3);
    let limits = match set % 4 {
        // A store keeps held jobs in lines of their own, and claims others past them.
        _ if takes_turns => Vec::new(),
        0 => vec![Limit::each_key().at_once(1), Limit::kind("k").at_once(2), Limit::queue().at_once(3)],
        1 => vec![Limit::key("x").at_once(2).rate(rate), Limit::kind("l").rate(rate)],
        2 => vec![Limit::queue().at_once(2)],
        _ => vec![Limit::kind("k").at_once(1), Limit::kind("l").at_once(1)],
    };
    limits.into_iter().fold(options.max_waiting(4 + u64::from(set % 8)), QueueOptions::limit)
}

impl Profile {
    fn bare(self, rng: &mut Rng) -> Spec {
        let until = |rng: &mut Rng| match rng.u8(..3) {
            0 => Until::Claimed,
            1 => Until::Done,
            _ => Until::Within(time(rng)),
        };
        let clash = |rng: &mut Rng| any(rng, &[Clash::Keep, Clash::Replace, Clash::Earliest]);
        let retention = |rng: &mut Rng| match rng.u8(..3) {
            0 => Retention::Keep,
            1 => Retention::Drop,
            _ => Retention::For(time(rng)),
        };
        let priority = |rng: &mut Rng| any(rng, &[Priority::Urgent, Priority::High, Priority::Normal, Priority::Low]);
        // Twins and skipped jobs would hide the others.
        let often = if matches!(self, Self::Plain | Self::Faults) { 30 } else { 8 };
        let limited = if self == Self::Limits { 60 } else { 0 };
        Spec {
            kind: kind(rng),
            payload: rng.u8(..2),
            priority: some(rng, 20, priority),
            retry: some(rng, 20, |rng| rng.u32(1..3)),
            unique: some(rng, often, |rng| (until(rng), clash(rng))),
            skips: rng.u32(..100) < often / 2,
            root: some(rng, if self == Self::Faults { 25 } else { often / 3 }, time),
            leaf: self == Self::Faults && rng.bool(),
            retention: some(rng, 30, retention),
            expires: some(rng, often / 2, time),
            key: some(rng, limited, |rng| any(rng, &["x", "y"])),
            cost: if self == Self::Limits { rng.u32(1..4) } else { 1 },
            ..Spec::default()
        }
    }

    fn spec(self, rng: &mut Rng) -> Spec {
        let after = match self {
            Self::Workflows => 60,
            Self::Faults => 30,
            _ => 15,
        };
        let after =
            some(rng, after, |rng| (0..rng.usize(1..4)).map(|_| awaited(rng)).collect::<Vec<_>>()).unwrap_or_default();
        let on_dead = |rng: &mut Rng| any(rng, &[OnDead::Die, OnDead::Run, OnDead::Hold]);
        let on_dead = if after.is_empty() { None } else { Some(on_dead(rng)) };
        Spec {
            id: some(rng, 80, |rng| any(rng, &OWN[..4])),
            delay: some(rng, 30, time),
            meta: some(rng, 10, |rng| rng.u8(..)),
            after,
            on_dead,
            ..self.bare(rng)
        }
    }

    fn specs(self, rng: &mut Rng, most: usize) -> Vec<Spec> {
        (0..rng.usize(..=most)).map(|_| self.spec(rng)).collect()
    }

    fn work(self, rng: &mut Rng) -> Work {
        match rng.u32(..20) {
            0..4 => Work::Finish,
            4..7 => Work::Retry,
            7 => Work::RetryAt(time(rng)),
            8 => Work::Snooze(time(rng)),
            9..11 => Work::Bury,
            11 if self == Self::Workflows => Work::Bury,
            11 => Work::GiveBack,
            12 => Work::Update(rng.u8(..)),
            13 => Work::Show(rng.u8(..=100)),
            14 => Work::Meta(rng.u8(..)),
            15 => Work::Resubmit(some(rng, 50, time)),
            16 => Work::Leave,
            _ if self == Self::Deaths => Work::Keep,
            _ => Work::Finish,
        }
    }

    /// Draws a fault of the disk, or a call that only a store has.
    fn fault(self, rng: &mut Rng) -> Option<Call> {
        Some(match rng.u32(..100) {
            0..7 => Call::Fail(rng.u64(..3)),
            7..10 => Call::Stop(rng.u64(..3)),
            10..13 => Call::Enqueue(self.enqueued(rng)),
            13..16 => Call::AcceptOld(time(rng)),
            16..19 => Call::Work(rng.usize(..3), Work::Write),
            19..25 => Call::Work(rng.usize(..3), Work::FinishWith),
            _ => return None,
        })
    }

    /// Draws jobs that a model can push one by one, while a store finds their order.
    fn enqueued(self, rng: &mut Rng) -> Vec<Spec> {
        let mut specs = self.specs(rng, 3);
        if specs.len() > 1 {
            specs.iter_mut().for_each(|spec| (spec.after, spec.on_dead) = (Vec::new(), None));
        }
        specs
    }

    pub(super) fn call(self, rng: &mut Rng) -> Call {
        if self == Self::Faults
            && let Some(call) = self.fault(rng)
        {
            return call;
        }
        let is_kept = self == Self::Deaths && rng.u8(..4) > 0;
        // A tick per minute over several days would make too many jobs.
        let every = |rng: &mut Rng| any(rng, &[12 * HOUR, DAY]);
        match rng.u32(..100) {
            0..20 => Call::Push(self.spec(rng)),
            20..22 => Call::PushAll(self.specs(rng, 3)),
            22..24 => Call::Batch(self.specs(rng, 2), self.spec(rng)),
            // An engine may claim others past a job that a limit holds.
            24..44 if self == Self::Limits => Call::Accept(None, some(rng, 20, kind), is_kept),
            24..44 if self == Self::Faults => Call::Accept(some(rng, 30, time), some(rng, 10, kind), is_kept),
            24..44 => Call::Accept(some(rng, 10, time), some(rng, 20, kind), is_kept),
            44..60 => Call::Work(rng.usize(..3), self.work(rng)),
            60..62 => Call::SetMeta(id(rng), some(rng, 70, |rng| rng.u8(..))),
            62..65 => Call::Remove(id(rng)),
            65..68 => Call::Requeue(id(rng)),
            68..71 => Call::RunNow(id(rng)),
            71..73 => Call::RequeueDead,
            73 => Call::Purge,
            74 => Call::Pause(some(rng, 70, time)),
            75..78 => Call::Resume,
            78 => Call::SetNote(rng.u8(..), some(rng, 50, time)),
            79 => Call::AddNote(rng.i64(..)),
            80 => Call::RemoveNote,
            81 if self != Self::Deaths => {
                let overlap = any(rng, &[Overlap::Skip, Overlap::Allow]);
                let catch_up = any(rng, &[CatchUp::None, CatchUp::One, CatchUp::All]);
                Call::Periodic(every(rng), overlap, catch_up, self.bare(rng))
            }
            82 => Call::RemovePeriodic,
            83..86 if self == Self::Plain => Call::Set(time(rng), rng.bool()),
            83..90 if self == Self::Deaths => Call::Crash,
            86 | 87 => Call::Reopen,
            88 | 89 => Call::Crash,
            _ => Call::Advance(time(rng)),
        }
    }
}

impl Spec {
    /// Returns the job. The closure returns the ids that a queue has generated.
    pub(super) fn job(&self, named: impl Fn(Id) -> String) -> NewJob {
        let job = NewJob::new(self.kind, &self.payload).unwrap().cost(self.cost.max(1));
        let job = self.id.iter().fold(job, |job, id| job.id(*id));
        let job = self.delay.into_iter().fold(job, NewJob::delay);
        let job = self.priority.into_iter().fold(job, NewJob::priority);
        let job = self.retry.into_iter().fold(job, |job, most| job.retry(Retry::fixed(MINUTE).max_attempts(most)));
        let job = self.unique.into_iter().fold(job, |job, (until, clash)| {
            let unique = match until {
                Until::Claimed => Unique::until_claimed(),
                Until::Done => Unique::until_done(),
                Until::Within(time) => Unique::within(time),
            };
            job.unique(unique.on_clash(clash))
        });
        let job = if self.skips { job.skip_if_executed() } else { job };
        let job = self.root.into_iter().fold(job, |job, time| job.root("tree", noon() + time));
        let job = if self.leaf { self.root.into_iter().fold(job, |job, time| job.leaf(&root(time))) } else { job };
        let job = self.retention.into_iter().fold(job, NewJob::retention);
        let job = self.expires.into_iter().fold(job, NewJob::expires);
        let job = self.meta.into_iter().fold(job, |job, value| job.meta("by", &value).unwrap());
        let job = self.key.into_iter().fold(job, NewJob::key);
        let after: Vec<_> = self.after.iter().map(|id| named(*id)).collect();
        let job = if after.is_empty() { job } else { job.after(&after) };
        self.on_dead.into_iter().fold(job, NewJob::on_dead)
    }
}

/// Returns the root with this time, as a worker sees it.
fn root(time: Duration) -> Root {
    let queue = QueueModel::new().open("roots", QueueOptions::default()).unwrap();
    queue.push(NewJob::new("k", &()).unwrap().root("tree", noon() + time)).unwrap();
    queue.accept(Accept::new()).unwrap().unwrap().root().unwrap().clone()
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(id) => f.write_str(id),
            Self::Made(n) => write!(f, "~{n}"),
        }
    }
}

fn debug<T: fmt::Debug>(of: &Option<T>) -> Option<&dyn fmt::Debug> {
    of.as_ref().map(|of| of as &dyn fmt::Debug)
}

/// Shows only the settings that the job has.
impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}({})", self.id.unwrap_or("~"), self.kind, self.payload)?;
        let settings: [(&str, Option<&dyn fmt::Debug>); 12] = [
            ("delay", debug(&self.delay)),
            ("priority", debug(&self.priority)),
            ("attempts", debug(&self.retry)),
            ("unique", debug(&self.unique)),
            ("skips", self.skips.then_some(&self.skips as &dyn fmt::Debug)),
            (if self.leaf { "leaf" } else { "root" }, debug(&self.root)),
            ("retention", debug(&self.retention)),
            ("expires", debug(&self.expires)),
            ("after", (!self.after.is_empty()).then_some(&self.after as &dyn fmt::Debug)),
            ("on_dead", debug(&self.on_dead)),
            ("meta", debug(&self.meta)),
            ("key", debug(&self.key)),
        ];
        for (name, value) in settings {
            value.map_or(Ok(()), |value| write!(f, " {name}={value:?}"))?;
        }
        if self.cost > 1 { write!(f, " cost={}", self.cost) } else { Ok(()) }
    }
}
