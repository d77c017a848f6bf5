//! Shared parts of the tests, beside the crate's own `testing`: a scripted source, a manual clock,
//! and ways to wait.
#![allow(missing_docs, missing_debug_implementations, clippy::missing_panics_doc, reason = "only tests use it")]

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant, SystemTime};
use waterline::{BoxError, Clock, Consumer, Handle, Index, Jobs, MemoryJobs, MemoryProgress, Status, Wakeup};

mod damage;
pub mod database;
#[cfg(unix)]
pub mod dying;
mod engine;
pub mod every_write;
pub mod modes;
mod place;
pub mod queues;
#[cfg(feature = "_disk")]
pub mod raw;
#[cfg(feature = "metrics")]
pub mod recorder;
mod soak;
pub mod tree;

pub use damage::damages;
pub use engine::{a_directory, a_directory_of, engine, engine_of, on_engine};
#[cfg(feature = "_disk")]
pub use engine::{make_in, open_in};
pub use place::{Place, a_store, on_store, theirs};
pub use soak::{cases, seed, seeds, size};
pub use waterline::testing::{FaultyProgress, StartedJob, manual_worker};

/// Longer than anything here takes on the slowest machine. Only a failing test waits for it.
pub const LONG: Duration = Duration::from_secs(60);
pub const HOUR: Duration = Duration::from_secs(3600);

/// The limit of a call (`wait_for`, `stop_within`) that is to run out. Such limits are real time
/// whatever the clock, and a late return does no harm.
pub const LIMIT: Duration = Duration::from_millis(1);

/// How long a test watches for something that must not happen. It is real time, since no event
/// reports that: a slow machine may hide a bug, but never fails a sound library.
pub const QUIET: Duration = Duration::from_millis(30);

thread_local! {
    /// The outer `Some` marks the thread of a test. A panic sets the inner one, which is dropped
    /// when the test goes on or ends.
    static WATCHED: Cell<Option<Option<Sender<()>>>> = const { Cell::new(None) };
}

/// Watches this test: if it panics and then hangs, the process aborts with the text of the panic. A
/// failing test may drop a consumer whose job waits for the test, for ever, and libtest would keep
/// the text. Most helpers here call this.
pub fn watch() {
    static HOOK: Once = Once::new();
    let thread = std::thread::current();
    // A worker survives panics of its jobs.
    if std::thread::panicking() || thread.name().is_some_and(|name| name.starts_with("wl-")) {
        return;
    }
    WATCHED.set(Some(None));
    HOOK.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if WATCHED.take().is_some() {
                let (alive, ended) = bounded(0);
                WATCHED.set(Some(Some(alive)));
                let text = format!("{:?}: {panic}", std::thread::current().name());
                std::thread::spawn(move || abort_unless(&ended, &text));
            }
            others(panic);
        }));
    });
}

fn abort_unless(ended: &Receiver<()>, text: &str) {
    if ended.recv_timeout(2 * LONG) == Err(RecvTimeoutError::Timeout) {
        // Past the capture of libtest.
        let _ = writeln!(std::io::stderr(), "a test failed, and hangs since then: {text}");
        std::process::abort();
    }
}

#[track_caller]
pub fn until(handle: &Handle, what: &str, wanted: impl Fn(&Status) -> bool) -> Status {
    watch();
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

#[track_caller]
pub fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    watch();
    let deadline = Instant::now() + LONG;
    while !is_true() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::park_timeout(Duration::from_micros(200));
    }
}

/// A clock that stands still until the test lets time pass.
///
/// The threads of a consumer take a moment to reach their waits, so a test lets time pass in steps
/// until it sees the effect: no single step is known to be enough.
#[derive(Debug)]
pub struct Time {
    clock: Clock,
    begun: SystemTime,
    passed: Mutex<Duration>,
}

impl Default for Time {
    fn default() -> Self {
        Self::new()
    }
}

impl Time {
    #[must_use]
    pub fn new() -> Self {
        watch();
        let begun = SystemTime::now();
        Self { clock: Clock::manual(begun), begun, passed: Mutex::default() }
    }

    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock.clone()
    }

    #[must_use]
    pub fn wall(&self) -> SystemTime {
        self.begun + self.passed()
    }

    #[must_use]
    pub fn passed(&self) -> Duration {
        *self.passed.lock()
    }

    pub fn pass(&self, by: Duration) {
        let mut passed = self.passed.lock();
        *passed += by;
        self.clock.advance(by);
    }

    /// Lets this much time pass, again and again, until a condition is true.
    #[track_caller]
    pub fn steps(&self, by: Duration, what: &str, mut is_true: impl FnMut() -> bool) {
        eventually(what, || {
            let is_true = is_true();
            if !is_true {
                self.pass(by);
            }
            is_true
        });
    }

    /// Lets this much time pass, again and again, until the status is as wanted.
    #[track_caller]
    pub fn until(&self, by: Duration, handle: &Handle, what: &str, wanted: impl Fn(&Status) -> bool) -> Status {
        until(handle, what, |status| {
            let is_wanted = wanted(status);
            if !is_wanted {
                self.pass(by);
            }
            is_wanted
        })
    }
}

/// Runs this on another thread, and fails if it does not end.
#[track_caller]
pub fn ends<R: Send + 'static>(what: &str, run: impl FnOnce() -> R + Send + 'static) -> R {
    watch();
    let (done, is_done) = bounded(1);
    std::thread::spawn(move || {
        let _ = done.send(run());
    });
    is_done.recv_timeout(LONG).unwrap_or_else(|_| panic!("{what} does not end"))
}

/// Lets other threads run for a moment. Many yields would take minutes on a busy machine, since
/// each hands a whole time slice to another process.
pub fn rest() {
    std::thread::park_timeout(Duration::from_micros(20));
}

/// Returns the number of threads of all consumers and stores of this process, by their names, or 0
/// where the system does not tell.
pub fn own_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("wl-")).count()
}

/// Returns the jobs 0 to `n - 1`.
pub fn numbers(n: u64) -> MemoryJobs<u64> {
    watch();
    (0..n).collect()
}

pub fn builder<J: Jobs>(jobs: J, progress: &MemoryProgress) -> waterline::Builder<J, MemoryProgress> {
    watch();
    Consumer::builder(jobs, progress.clone())
}

/// A source that follows the test's script. Each job is its index.
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
    /// Holds calls after they were announced.
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

/// Holds the calls of a source. Dropping it lets them all through.
pub struct SourceGate {
    pub entered: Receiver<&'static str>,
    pass: Sender<()>,
}

impl SourceGate {
    /// Waits for a call of this name, and lets others through.
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
        watch();
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

    /// Makes the source notify, so that it is not polled.
    #[must_use]
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

    /// Returns the number of other owners of this source.
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
        // The answer is fixed here: it misses changes that come while the call is held.
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

/// A script that tells its first index when the test says so.
pub struct SlowFirst(Script, Sender<()>, Receiver<()>);

impl SlowFirst {
    /// Returns the source, a message for each call, and the sender of answers.
    pub fn new(script: &Script) -> (Self, Receiver<()>, Sender<()>) {
        let ((enter, entered), (pass, passed)) = (unbounded(), unbounded());
        (Self(script.clone(), enter, passed), entered, pass)
    }
}

impl Jobs for SlowFirst {
    type Job = Index;

    fn first(&self) -> Result<Index, BoxError> {
        self.1.send(())?;
        let _ = self.2.recv();
        self.0.first()
    }

    fn head(&self) -> Result<Option<Index>, BoxError> {
        self.0.head()
    }

    fn at_index(&self, index: Index) -> Result<Option<Index>, BoxError> {
        self.0.at_index(index)
    }
}

/// Collects the ranges of `on_processed`, and panics at a gap.
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

    /// Returns the number of owners, including the test.
    pub fn owners(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    pub fn all(&self) -> Option<RangeInclusive<Index>> {
        let ranges = self.0.lock();
        Some(*ranges.first()?.start()..=*ranges.last()?.end())
    }
}
