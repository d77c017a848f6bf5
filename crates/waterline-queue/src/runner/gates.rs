//! Gates: conditions outside of the queue without which a runner claims no job.

#[cfg(doc)]
use crate::RunnerBuilder;
use crate::types::config::{ConfigError, check_name};
use parking_lot::Mutex;
use std::fmt;
use std::time::{Duration, Instant};
use waterline::seam::{check_zero, describe, guarded};

/// How long an answer holds: short enough for a disk that fills up, and long enough that a gate
/// which asks the system costs nothing compared to the jobs.
const EVERY: Duration = Duration::from_secs(2);

/// A condition for [`RunnerBuilder::gate`]: while it is closed, the runner claims no job, so no
/// attempt is counted. Running jobs go on.
///
/// A gate is asked before a claim, and its answer holds for 2 seconds ([`every`](Self::every)). It
/// is asked on a thread of the runner, one call at a time. It should answer at once: nothing is
/// claimed meanwhile, and the ends of deferred jobs and of futures wait too. A gate that panics is
/// closed, and each panic is logged.
///
/// A gate is not told that a job has ended. To count what jobs use, use the hooks
/// [`before`](RunnerBuilder::before) and [`teardown`](RunnerBuilder::teardown).
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use std::time::Duration;
/// use waterline::Store;
/// use waterline_queue::{DrainLimits, NewJob, Outcome, Queue, QueueOptions, Reached, Runner, RunnerGate};
///
/// let queue = Queue::open(&Store::in_memory(), "mail", QueueOptions::default())?;
/// queue.push(NewJob::new("welcome", "ann")?)?;
/// let writable = Arc::new(AtomicBool::new(false));
/// let drain = || {
///     let writable = writable.clone();
///     Runner::builder(&queue)
///         .on("welcome", |_job, _to: String| Ok(Outcome::Done))
///         .gate(RunnerGate::new("the database takes writes", move || writable.load(Ordering::Relaxed)))
///         .gate(RunnerGate::below("load", 8.0, || 0.5).every(Duration::from_secs(10)))
///         .drain(DrainLimits::default())
/// };
/// assert_eq!(drain()?.reached, Reached::Gate);
/// writable.store(true, Ordering::Relaxed);
/// assert_eq!(drain()?.finished, 1);
/// # Ok::<(), waterline_queue::QueueError>(())
/// ```
#[must_use = "a gate does nothing until a runner has it"]
pub struct RunnerGate {
    pub(crate) name: String,
    pub(crate) every: Duration,
    pub(crate) is_open: Box<dyn Fn() -> bool + Send + Sync>,
}

impl RunnerGate {
    /// Makes a gate that is open while this returns true. [`Queue::status`](crate::Queue::status)
    /// and the log name a closed gate by its name, of 1 to 255 bytes.
    pub fn new(name: impl Into<String>, is_open: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { name: name.into(), every: EVERY, is_open: Box::new(is_open) }
    }

    /// Makes a gate that is open while this value is below the threshold: memory in use, a load, a
    /// replica's lag. It is closed at the threshold, above it, and for NaN.
    pub fn below(name: impl Into<String>, threshold: f64, value: impl Fn() -> f64 + Send + Sync + 'static) -> Self {
        Self::new(name, move || value() < threshold)
    }

    /// Sets how long an answer holds, and so how soon a gate that opens is noticed. Default: 2
    /// seconds. 0 is refused: a closed gate would be asked without a pause.
    pub fn every(mut self, time: Duration) -> Self {
        self.every = time;
        self
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        check_name("gate", &self.name)?;
        let why = format!("the answers of the gate {:?} hold for no time: use some milliseconds at least", self.name);
        Ok(check_zero("gate", self.every.is_zero(), &why)?)
    }

    /// Calls the user's code.
    fn ask(&self, queue: &str) -> bool {
        guarded(|| Ok((self.is_open)())).unwrap_or_else(|panic| {
            let error = describe(&*panic);
            tracing::error!(target: "waterline", queue, gate = self.name, error, "a gate panicked, so it counts as closed");
            false
        })
    }
}

impl fmt::Debug for RunnerGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunnerGate").field("name", &self.name).field("every", &self.every).finish_non_exhaustive()
    }
}

/// The gates of a runner, and their last answers.
#[derive(Default)]
pub(super) struct Gates {
    gates: Vec<RunnerGate>,
    answers: Mutex<Vec<Option<GateAnswer>>>,
}

#[derive(Clone, Copy)]
struct GateAnswer {
    is_open: bool,
    /// Until when it holds; `None`: forever.
    until: Option<Instant>,
}

pub(super) struct Closed<'a> {
    pub(super) name: &'a str,
    /// When it is asked again; `None`: never, since that is beyond the end of the clock.
    pub(super) until: Option<Instant>,
}

impl GateAnswer {
    fn holds(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

impl Gates {
    pub(super) fn new(gates: Vec<RunnerGate>) -> Self {
        let answers = Mutex::new(vec![None; gates.len()]);
        Self { gates, answers }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.gates.is_empty()
    }

    /// True if all are open by answers that still hold. It calls no gate.
    pub(super) fn are_open(&self, now: Instant) -> bool {
        self.answers.lock().iter().all(|answer| answer.is_some_and(|answer| answer.is_open && answer.holds(now)))
    }

    /// Returns the first closed gate. It asks those whose answers no longer hold, without a lock:
    /// only one thread may call it at a time.
    pub(super) fn closed(&self, queue: &str, now: Instant) -> Option<Closed<'_>> {
        for (n, gate) in self.gates.iter().enumerate() {
            let kept = self.answers.lock()[n].filter(|answer| answer.holds(now));
            let answer =
                kept.unwrap_or_else(|| GateAnswer { is_open: gate.ask(queue), until: now.checked_add(gate.every) });
            self.answers.lock()[n] = Some(answer);
            if !answer.is_open {
                return Some(Closed { name: &gate.name, until: answer.until });
            }
        }
        None
    }
}
