//! What the tests have in common: jobs that wait to be told how they end, a source and a progress that misbehave on demand.
#![allow(dead_code)]

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use waterline::{
    BoxError, Checkpoint, Consumer, Error, Handle, Index, Job, Jobs, MemoryJobs, MemoryProgress, Progress, Status,
    Wakeup,
};

/// Longer than anything here takes on the slowest machine; only a failing test waits for it.
pub const LONG: Duration = Duration::from_secs(20);
pub const HOUR: Duration = Duration::from_secs(3600);

/// A running job, in the hands of the test.
pub struct Running {
    pub index: Index,
    pub attempt: u32,
    reply: Sender<Verdict>,
}

enum Verdict {
    Succeed,
    Fail(String),
    Panic,
}

impl Running {
    pub fn succeed(self) {
        let _ = self.reply.send(Verdict::Succeed);
    }

    pub fn fail(self, why: &str) {
        let _ = self.reply.send(Verdict::Fail(why.to_owned()));
    }

    pub fn panic(self) {
        let _ = self.reply.send(Verdict::Panic);
    }
}

/// The jobs that run, as they start.
pub struct Stage(Receiver<Running>);

impl Stage {
    /// A worker whose jobs wait for the test, and the test's side of it.
    pub fn new<T>() -> (impl Fn(Job<T>) -> Result<(), BoxError> + Send + Sync + 'static, Self) {
        let (started, stage) = unbounded();
        let worker = move |job: Job<T>| {
            let (reply, verdict) = bounded(1);
            // A test that has ended lets its jobs go.
            let _ = started.send(Running { index: job.index, attempt: job.attempt, reply });
            // A test that fails must not hang in its consumer's drop, so patience has an end.
            match verdict.recv_timeout(2 * LONG) {
                Ok(Verdict::Succeed) => Ok(()),
                Ok(Verdict::Fail(why)) => Err(why.into()),
                Ok(Verdict::Panic) => panic!("as the test wished"),
                Err(_) => Err("the test let go of this job".into()),
            }
        };
        (worker, Self(stage))
    }

    /// The next job that starts.
    pub fn next(&self) -> Running {
        self.0.recv_timeout(LONG).expect("a job starts")
    }

    /// The next `n` jobs that start, by index.
    pub fn take(&self, n: usize) -> BTreeMap<Index, Running> {
        (0..n).map(|_| self.next()).map(|running| (running.index, running)).collect()
    }

    /// Nobody started since the last look.
    pub fn is_quiet(&self) -> bool {
        self.0.is_empty()
    }
}

/// Waits until the status is as wanted.
#[track_caller]
pub fn until(handle: &Handle, what: &str, wanted: impl Fn(&Status) -> bool) -> Status {
    let deadline = Instant::now() + LONG;
    loop {
        let status = handle.status();
        if wanted(&status) {
            return status;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}: {status:#?}");
        std::thread::park_timeout(Duration::from_micros(200));
    }
}

/// Waits until something of the test's own is true.
#[track_caller]
pub fn eventually(what: &str, is_true: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_true() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::park_timeout(Duration::from_micros(200));
    }
}

/// The live threads of all consumers and stores of this process, by their names; 0 where the system does not tell.
pub fn own_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("wl-")).count()
}

/// 0, 1, 2, … up to and without `n`.
pub fn numbers(n: u64) -> MemoryJobs<u64> {
    (0..n).collect()
}

pub fn builder<J: Jobs>(jobs: J, progress: &MemoryProgress) -> waterline::Builder<J, MemoryProgress> {
    Consumer::builder(jobs, progress.clone())
}

/// A source that does what the test says; the job at an index is the index.
#[derive(Clone, Default)]
pub struct Script(Arc<Scripted>);

#[derive(Default)]
pub struct Scripted {
    state: Mutex<ScriptState>,
    pub heads: AtomicU64,
    pub reads: AtomicU64,
    pub firsts: AtomicU64,
}

#[derive(Default)]
struct ScriptState {
    first: Index,
    head: Option<Index>,
    gaps: BTreeSet<Index>,
    failing: BTreeMap<Index, Fault>,
    head_fault: Option<Fault>,
    /// Calls wait here, after they were announced.
    gate: Option<(Sender<&'static str>, Receiver<()>)>,
    wakeups: Vec<Wakeup>,
    subscribes: bool,
}

#[derive(Clone, Copy)]
pub enum Fault {
    Error,
    Panic,
}

impl Fault {
    fn strike(self, what: &str) -> BoxError {
        match self {
            Fault::Error => format!("{what} fails as scripted").into(),
            Fault::Panic => panic!("{what} panics as scripted"),
        }
    }
}

/// Holds a source's calls back; dropping it lets them all through.
pub struct SourceGate {
    pub entered: Receiver<&'static str>,
    pass: Sender<()>,
}

impl SourceGate {
    /// Waits for a call of this name and lets every other one through.
    pub fn wait_for(&self, name: &str) {
        loop {
            let entered = self.entered.recv_timeout(LONG).expect("the source is called");
            if entered == name {
                return;
            }
            self.pass();
        }
    }

    pub fn pass(&self) {
        self.pass.send(()).expect("the source waits");
    }
}

impl Script {
    pub fn up_to(head: Index) -> Self {
        let script = Self::default();
        script.set_head(Some(head));
        script
    }

    pub fn set_head(&self, head: Option<Index>) {
        self.0.state.lock().head = head;
    }

    pub fn set_first(&self, first: Index) {
        self.0.state.lock().first = first;
    }

    pub fn gap(&self, index: Index) {
        self.0.state.lock().gaps.insert(index);
    }

    pub fn fill(&self, index: Index) {
        self.0.state.lock().gaps.remove(&index);
    }

    pub fn fail_at(&self, index: Index, fault: Fault) {
        self.0.state.lock().failing.insert(index, fault);
    }

    pub fn heal(&self) {
        let mut state = self.0.state.lock();
        state.failing.clear();
        state.head_fault = None;
    }

    pub fn fail_head(&self, fault: Fault) {
        self.0.state.lock().head_fault = Some(fault);
    }

    /// From now on the source keeps its wake-ups.
    pub fn subscribing(self) -> Self {
        self.0.state.lock().subscribes = true;
        self
    }

    pub fn ring(&self) -> Vec<bool> {
        self.0.state.lock().wakeups.iter().map(Wakeup::ring).collect()
    }

    pub fn gated(&self) -> SourceGate {
        let (enter, entered) = unbounded();
        let (pass, passed) = unbounded();
        self.0.state.lock().gate = Some((enter, passed));
        SourceGate { entered, pass }
    }

    pub fn ungate(&self) {
        self.0.state.lock().gate = None;
    }

    pub fn calls(&self) -> &Scripted {
        &self.0
    }

    /// Who still has this source, beside the test.
    pub fn owners(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }

    fn pass_gate(&self, name: &'static str) {
        let gate = self.0.state.lock().gate.clone();
        if let Some((enter, passed)) = gate {
            let _ = enter.send(name);
            let _ = passed.recv();
        }
    }
}

impl Jobs for Script {
    type Job = Index;

    fn first(&self) -> Result<Index, BoxError> {
        self.0.firsts.fetch_add(1, Ordering::SeqCst);
        Ok(self.0.state.lock().first)
    }

    fn head(&self) -> Result<Option<Index>, BoxError> {
        self.0.heads.fetch_add(1, Ordering::SeqCst);
        let (head, fault) = {
            let state = self.0.state.lock();
            (state.head, state.head_fault)
        };
        // The answer is fixed before the call returns: what comes meanwhile is not in it.
        self.pass_gate("head");
        fault.map_or(Ok(head), |fault| Err(fault.strike("head")))
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        self.0.reads.fetch_add(1, Ordering::SeqCst);
        self.pass_gate("at_index");
        let state = self.0.state.lock();
        let fault = state.failing.get(&index).copied();
        let there =
            index >= state.first && state.head.is_some_and(|head| index <= head) && !state.gaps.contains(&index);
        drop(state);
        match fault {
            Some(fault) => Err(fault.strike("at_index")),
            None => Ok(there.then_some(index)),
        }
    }

    fn subscribe(&self, wakeup: Wakeup) -> bool {
        let mut state = self.0.state.lock();
        state.wakeups.push(wakeup);
        state.subscribes
    }
}

/// A progress in memory that fails on demand, and insists that the watermark never goes back.
#[derive(Clone, Default)]
pub struct Faulty {
    inner: MemoryProgress,
    pub faults: Arc<Faults>,
}

#[derive(Default)]
pub struct Faults {
    failing: Mutex<Option<Fault>>,
    pub attempts: AtomicU64,
    pub saves: Mutex<Vec<Index>>,
    pub gate: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl Faulty {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn fail(&self, fault: Option<Fault>) {
        *self.faults.failing.lock() = fault;
    }

    pub fn attempts(&self) -> u64 {
        self.faults.attempts.load(Ordering::SeqCst)
    }

    pub fn saves(&self) -> Vec<Index> {
        self.faults.saves.lock().clone()
    }

    pub fn last_processed(&self) -> Option<Index> {
        self.inner.last_processed()
    }

    /// Saves wait until the sender is used or dropped; the receiver says that one has begun.
    pub fn gated(&self) -> (Receiver<()>, Sender<()>) {
        let (enter, entered) = unbounded();
        let (pass, passed) = unbounded();
        *self.faults.gate.lock() = Some((enter, passed));
        (entered, pass)
    }
}

impl Progress for Faulty {
    fn acquire(&mut self) -> Result<Option<Checkpoint>, Error> {
        self.inner.acquire()
    }

    fn save(&mut self, checkpoint: &Checkpoint) -> Result<(), BoxError> {
        self.faults.attempts.fetch_add(1, Ordering::SeqCst);
        let gate = self.faults.gate.lock().clone();
        if let Some((enter, passed)) = gate {
            let _ = enter.send(());
            let _ = passed.recv();
        }
        let fault = *self.faults.failing.lock();
        if let Some(fault) = fault {
            return Err(fault.strike("the disk"));
        }
        let mut saves = self.faults.saves.lock();
        let before = saves.last().copied().or(self.inner.last_processed());
        assert!(before.is_none_or(|before| before < checkpoint.last_processed), "promise 7: progress never goes back");
        saves.push(checkpoint.last_processed);
        self.inner.save(checkpoint)
    }
}

/// Collects what `on_processed` is called with, and insists that there is no gap.
#[derive(Clone, Default)]
pub struct Announced(Arc<Mutex<Vec<RangeInclusive<Index>>>>);

impl Announced {
    pub fn callback(&self) -> impl Fn(RangeInclusive<Index>) + Send + 'static {
        let ranges = self.0.clone();
        move |run| {
            let mut ranges = ranges.lock();
            if let Some(last) = ranges.last() {
                assert_eq!(*run.start(), last.end() + 1, "announcements have no gap");
            }
            ranges.push(run);
        }
    }

    pub fn all(&self) -> Option<RangeInclusive<Index>> {
        let ranges = self.0.lock();
        Some(*ranges.first()?.start()..=*ranges.last()?.end())
    }
}
