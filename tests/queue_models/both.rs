//! Random calls on a queue in a store and on the model side by side: each answer, and all that the
//! two queues show after it, is the same.

use common::queues::{Bench, DAY, MILLI, MINUTE, SECOND, noon};
use common::{HOUR, cases, size};
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::{Duration, SystemTime};
use waterline::Retry;
use waterline::queue::{
    Accept, CatchUp, Clash, Clock, Every, JobInfo, JobState, Lease, NewJob, OnDead, Overlap, PeriodicInfo, Priority,
    Queue, QueueError, QueueOptions, QueueStatus, Retention, Unique, Waits,
};
use waterline::testing::FaultyStore;

/// The end of a lease, or a call of a worker that goes on.
#[derive(Clone, Debug)]
enum Work {
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
}

#[derive(Clone, Debug)]
enum Op {
    Push(NewJob),
    PushAll(Vec<NewJob>),
    Batch(Vec<NewJob>, NewJob),
    Accept(Option<Duration>, Option<&'static str>),
    Work(usize, Work),
    SetMeta(&'static str, Option<u8>),
    Remove(&'static str),
    Requeue(&'static str),
    RunNow(&'static str),
    RequeueDead,
    Purge,
    Pause(Option<Duration>),
    Resume,
    SetNote(u8, Option<Duration>),
    AddNote(i64),
    RemoveNote,
    Periodic(Duration, Overlap, CatchUp, NewJob),
    RemovePeriodic,
    Advance(Duration),
    /// Sets the clock on the wall: back (true) or forward by this time.
    Set(Duration, bool),
    Reopen,
    Crash,
}

const IDS: [&str; 6] = ["a", "b", "c", "d", "~0", "~3"];
const STATES: [JobState; 7] = [
    JobState::Scheduled,
    JobState::Ready,
    JobState::Running,
    JobState::Finished,
    JobState::Dead,
    JobState::Waiting,
    JobState::Damaged,
];

fn id() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&IDS[..])
}

/// A time of the size of the settings below.
fn time() -> impl Strategy<Value = Duration> {
    prop::sample::select(vec![MILLI, 500 * MILLI, SECOND, 30 * SECOND, MINUTE, 5 * MINUTE, DAY, 8 * DAY])
}

fn unique() -> impl Strategy<Value = Unique> {
    let until = prop_oneof![Just(Unique::until_claimed()), Just(Unique::until_done()), time().prop_map(Unique::within)];
    let clash = prop::sample::select(vec![Clash::Keep, Clash::Replace, Clash::Earliest]);
    (until, clash).prop_map(|(unique, clash)| unique.on_clash(clash))
}

/// A job without an id, with some settings.
fn bare() -> impl Strategy<Value = NewJob> {
    let priority = prop::sample::select(vec![Priority::Urgent, Priority::High, Priority::Normal, Priority::Low]);
    let retention = prop_oneof![Just(Retention::Keep), Just(Retention::Drop), time().prop_map(Retention::For)];
    let retry = (1..3u32).prop_map(|most| Retry::fixed(MINUTE).max_attempts(most));
    let content = (prop::sample::select(vec!["k", "l"]), 0..2u8);
    let kept = (weighted(0.3, retention), weighted(0.15, time()));
    let twins = (weighted(0.3, unique()), any::<u8>(), weighted(0.1, time()));
    let plan = (content, weighted(0.2, priority), weighted(0.2, retry), twins, kept);
    plan.prop_map(|((kind, payload), priority, retry, (unique, skips, root), (retention, expires))| {
        let job = NewJob::new(kind, &payload).unwrap();
        let job = priority.into_iter().fold(job, NewJob::priority);
        let job = retry.into_iter().fold(job, NewJob::retry);
        let job = unique.into_iter().fold(job, NewJob::unique);
        let job = if skips > 223 { job.skip_if_executed() } else { job };
        let job = root.into_iter().fold(job, |job, time| job.root("tree", noon() + time));
        let job = retention.into_iter().fold(job, NewJob::retention);
        expires.into_iter().fold(job, NewJob::expires)
    })
}

fn job() -> impl Strategy<Value = NewJob> {
    let on_dead = prop::sample::select(vec![OnDead::Die, OnDead::Run, OnDead::Hold]);
    let own = weighted(0.8, prop::sample::select(&IDS[..4]));
    (bare(), own, weighted(0.3, time()), weighted(0.3, (vec(id(), 1..3), on_dead)), weighted(0.1, any::<u8>()))
        .prop_map(|(job, id, delay, after, meta)| {
            let job = id.into_iter().fold(job, NewJob::id);
            let job = delay.into_iter().fold(job, NewJob::delay);
            let job = after.into_iter().fold(job, |job, (after, on_dead)| job.after(after).on_dead(on_dead));
            meta.into_iter().fold(job, |job, value| job.meta("by", &value).unwrap())
        })
}

fn work() -> impl Strategy<Value = Work> {
    prop_oneof![
        4 => Just(Work::Finish),
        3 => Just(Work::Retry),
        1 => time().prop_map(Work::RetryAt),
        1 => time().prop_map(Work::Snooze),
        2 => Just(Work::Bury),
        1 => Just(Work::GiveBack),
        1 => any::<u8>().prop_map(Work::Update),
        1 => (0..=100u8).prop_map(Work::Show),
        1 => any::<u8>().prop_map(Work::Meta),
        1 => weighted(0.5, time()).prop_map(Work::Resubmit),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let overlap = prop::sample::select(vec![Overlap::Skip, Overlap::Allow]);
    let catch_up = prop::sample::select(vec![CatchUp::None, CatchUp::One, CatchUp::All]);
    let kind = prop::sample::select(vec!["k", "l"]);
    // A tick of each minute of some days would be too many jobs.
    let every = prop::sample::select(vec![12 * HOUR, DAY]);
    prop_oneof![
        12 => job().prop_map(Op::Push),
        1 => vec(job(), 0..4).prop_map(Op::PushAll),
        1 => (vec(job(), 0..3), job()).prop_map(|(jobs, then)| Op::Batch(jobs, then)),
        12 => (weighted(0.1, time()), weighted(0.2, kind)).prop_map(|(early, kind)| Op::Accept(early, kind)),
        10 => (0..3usize, work()).prop_map(|(lease, work)| Op::Work(lease, work)),
        1 => (id(), weighted(0.7, any::<u8>())).prop_map(|(id, value)| Op::SetMeta(id, value)),
        2 => id().prop_map(Op::Remove),
        2 => id().prop_map(Op::Requeue),
        2 => id().prop_map(Op::RunNow),
        1 => Just(Op::RequeueDead),
        1 => Just(Op::Purge),
        1 => weighted(0.7, time()).prop_map(Op::Pause),
        2 => Just(Op::Resume),
        1 => (any::<u8>(), weighted(0.5, time())).prop_map(|(value, time)| Op::SetNote(value, time)),
        1 => any::<i64>().prop_map(Op::AddNote),
        1 => Just(Op::RemoveNote),
        1 => (every, overlap, catch_up, bare()).prop_map(|(every, overlap, catch_up, job)| Op::Periodic(every, overlap, catch_up, job)),
        1 => Just(Op::RemovePeriodic),
        8 => time().prop_map(Op::Advance),
        2 => (time(), any::<bool>()).prop_map(|(time, is_back)| Op::Set(time, is_back)),
        2 => Just(Op::Reopen),
        2 => Just(Op::Crash),
    ]
}

/// One of the two queues, with the leases that its worker has.
struct Side {
    bench: Bench,
    leases: Vec<Lease>,
    wall: SystemTime,
    /// True once the clock was set back. Then the first ready job may not be the oldest one.
    is_back: bool,
}

/// Returns the answer of a call as text.
fn said(answer: Result<impl Debug, QueueError>) -> String {
    match answer {
        // Each of the jobs through which it would wait for itself is a right answer.
        Err(QueueError::Cycle { .. }) => "a cycle".to_owned(),
        Err(error) => error.to_string(),
        Ok(answer) => format!("{answer:?}"),
    }
}

fn shown(job: &JobInfo) -> String {
    // The place of a job is a number of its engine, and the last field.
    let text = format!("{job:?}");
    text.rsplit_once(", place:").unwrap().0.to_owned()
}

impl Side {
    fn act(&mut self, op: &Op) -> String {
        let (queue, wall) = (&self.bench.queue, self.wall);
        match op.clone() {
            Op::Push(job) => said(queue.push(job)),
            Op::PushAll(jobs) => said(queue.push_all(jobs)),
            Op::Batch(jobs, then) => said(queue.push_batch(jobs, then)),
            Op::Accept(early, kind) => {
                let accept = early.map(|early| wall + early).into_iter().fold(Accept::new(), Accept::max_run_at);
                let accept = kind.into_iter().fold(accept, |accept, kind| accept.kinds([kind]));
                let lease = queue.accept(accept).unwrap();
                let text = lease.as_ref().map(|lease| (lease.id().to_owned(), lease.attempt(), lease.crashes()));
                self.leases.extend(lease);
                format!("{text:?}")
            }
            Op::Work(n, work) => self.work(n, work),
            Op::SetMeta(id, value) => said(queue.set_meta(id, "by", value.map(Into::into))),
            Op::Remove(id) => said(queue.remove(id)),
            Op::Requeue(id) => said(queue.requeue(id)),
            Op::RunNow(id) => said(queue.run_now(id)),
            Op::RequeueDead => said(queue.requeue_dead()),
            Op::Purge => said(queue.purge()),
            Op::Pause(time) => said(queue.pause(time)),
            Op::Resume => said(queue.resume()),
            Op::SetNote(value, None) => said(queue.notes("k").unwrap().set("n", value)),
            Op::SetNote(value, Some(time)) => said(queue.notes("k").unwrap().set_for("n", value, time)),
            Op::AddNote(by) => said(queue.notes("k").unwrap().add("n", by)),
            Op::RemoveNote => said(queue.notes("k").unwrap().remove("n")),
            Op::Periodic(every, overlap, catch_up, job) => {
                said(queue.periodic("p", Every::new(every), job).overlap(overlap).catch_up(catch_up).start())
            }
            Op::RemovePeriodic => said(queue.remove_periodic("p")),
            Op::Advance(time) => {
                self.bench.clock.advance(time);
                self.wall += time;
                String::new()
            }
            Op::Set(time, is_back) => {
                // A call notes the time before and after. (A crash may lose what was noted.)
                let note = || assert!(queue.accept(Accept::new().kinds(["none"])).unwrap().is_none());
                note();
                self.wall = if is_back { wall - time } else { wall + time };
                self.is_back |= is_back;
                self.bench.clock.set_wall(self.wall);
                note();
                String::new()
            }
            Op::Reopen => {
                self.leases.clear();
                self.bench.reopen();
                String::new()
            }
            Op::Crash => {
                self.bench = self.bench.next_life();
                // These speak to the process that has died.
                self.leases.clear();
                String::new()
            }
        }
    }

    fn work(&mut self, n: usize, work: Work) -> String {
        if n >= self.leases.len() {
            return String::new();
        }
        let at = |time: Duration| self.wall + time;
        let lease = &mut self.leases[n];
        match work {
            Work::Finish => said(lease.finish(Some(1.into()))),
            Work::Retry => said(lease.retry("it fails")),
            Work::RetryAt(time) => said(lease.retry_at(at(time), "it fails")),
            Work::Snooze(time) => said(lease.snooze(at(time))),
            Work::Bury => said(lease.bury("no way")),
            Work::GiveBack => format!("{:?}", drop(self.leases.remove(n))),
            Work::Update(data) => said(lease.update(Some(data.into()))),
            Work::Show(percent) => {
                // The store gets the progress of a job each half second, so a crash loses what is
                // shown sooner.
                self.bench.clock.advance(SECOND);
                self.wall += SECOND;
                said(lease.progress(f64::from(percent) / 100.0, "so far"))
            }
            Work::Meta(value) => said(lease.set_meta("by", Some(value.into()))),
            Work::Resubmit(time) => said(lease.resubmit(time.map(at))),
        }
    }

    /// Returns all that the queue shows, and checks that one who looks from beside sees it too.
    fn looks(&self) -> Vec<String> {
        let mut all = stored(&self.bench.queue);
        let status = self.bench.queue.status().unwrap();
        // Of two jobs that have waited equally long, either is the oldest one.
        let age = |status: &QueueStatus| status.oldest_ready.as_ref().map(|(_, age)| *age);
        if let Some(beside) = self.bench.beside() {
            assert_eq!(stored(&beside), all, "beside the process (left) and within it");
            let seen = beside.status().unwrap();
            // Only the process itself knows that a job is to run alone, and when the next tick is.
            if !matches!(status.waits, Waits::Alone { .. } | Waits::NothingReady { .. }) {
                assert_eq!(format!("{:?}", seen.waits), format!("{:?}", status.waits));
            }
            assert_eq!(age(&seen), age(&status));
        }
        all.push(format!("{:?}", self.bench.queue.periodics().unwrap()));
        let age = age(&status).filter(|_| !self.is_back);
        let waits = match status.waits {
            // Of two jobs that began together, either is the oldest one.
            Waits::Alone { runs, since, .. } => format!("alone {runs} {since:?}"),
            // The model takes a claim for one that looks at each job, and a store looks at some.
            Waits::OtherKinds | Waits::NoWorker | Waits::No => "some may begin".to_owned(),
            waits => format!("{waits:?}"),
        };
        all.push(format!("{waits} {age:?}"));
        all
    }
}

/// Returns what is stored of a queue.
fn stored(queue: &Queue) -> Vec<String> {
    let mut all = vec![format!("{:?}", queue.counts())];
    let mut known: BTreeSet<_> = IDS.map(str::to_owned).into();
    for state in STATES {
        let listed = queue.list(state, None, usize::MAX).unwrap();
        known.extend(listed.iter().map(|job| job.id.clone()));
        let (mut paged, mut next) = (Vec::new(), None);
        loop {
            let page = queue.page(state, next.as_deref(), 2).unwrap();
            paged.extend(page.jobs);
            next = page.next;
            if next.is_none() {
                break;
            }
        }
        assert_eq!(paged, listed, "the pages of the {state} jobs (left) and their list");
        all.push(format!("{state:?}: {:?}", listed.iter().map(|job| &job.id).collect::<Vec<_>>()));
    }
    all.extend(known.iter().map(|id| format!("{:?}", queue.get(id).unwrap().as_ref().map(shown))));
    all.push(format!("{:?}", queue.notes("k").unwrap().list(None, 9).unwrap()));
    let ticks = |of: &PeriodicInfo| (of.name.clone(), of.last_tick, of.last_run.clone(), of.skipped);
    all.push(format!("{:?}", queue.periodics().unwrap().iter().map(ticks).collect::<Vec<_>>()));
    all
}

fn options() -> QueueOptions {
    QueueOptions::default().retry(Retry::fixed(SECOND).max_attempts(2)).retention(Retention::For(5 * MINUTE))
}

fn live(ops: &[Op]) {
    let clock = || Clock::manual(noon());
    let store = Bench::on_disk(FaultyStore::new().unwrap(), &clock(), options());
    let mut both = [store, Bench::on_model(&clock(), options())].map(|bench| Side {
        bench,
        leases: Vec::new(),
        wall: noon(),
        is_back: false,
    });
    for (n, op) in ops.iter().enumerate() {
        let [store, model] = both.each_mut().map(|side| (side.act(op), side.looks()));
        assert_eq!(store, model, "the store (left) and the model differ after call {n}, {op:?}");
    }
}

/// The same calls in each small run; a soak draws those of its seed.
fn config() -> ProptestConfig {
    let drawn = ProptestConfig::default();
    let rng_seed = size(RngSeed::Fixed(0), drawn.rng_seed);
    ProptestConfig { cases: cases(80), failure_persistence: None, rng_seed, ..drawn }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_queue_in_a_store_and_the_model_answer_and_show_the_same(ops in vec(op(), 1..60)) {
        live(&ops);
    }
}
