//! A worker whose jobs wait until the test ends them.

use crate::base::{BoxError, Index, sync::Mutex, time};
use crate::run::worker::{Job, Worker};
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a job may take to start, in real time. Only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Creates a worker whose jobs wait until the test ends them, and the test's side of it.
///
/// With it a test decides in which order jobs finish, without sleeping. Clones of the worker serve
/// several consumers, or successive lives of one.
///
/// ```
/// use waterline::testing::manual_worker;
/// use waterline::{Consumer, MemoryJobs, MemoryProgress};
///
/// let (worker, started) = manual_worker();
/// let jobs: MemoryJobs<_> = (0..3).collect();
/// let consumer = Consumer::builder(jobs, MemoryProgress::new())
///     .max_processing(2)
///     .stop_at(2)
///     .start_worker(worker)?;
///
/// started.job(1).succeed();
/// started.job(2).succeed(); // in the place of job 1
/// assert_eq!(consumer.handle().last_processed_index(), None, "job 0 still runs");
/// started.job(0).succeed();
/// consumer.join()?;
/// # Ok::<(), waterline::Error>(())
/// ```
#[must_use]
pub fn manual_worker() -> (ManualWorker, StartedJobs) {
    let (started, jobs) = unbounded();
    (ManualWorker { started }, StartedJobs { jobs, passed_over: Mutex::default() })
}

/// A worker whose jobs wait for the test; created by [`manual_worker`].
///
/// A job fails by itself when its [`StartedJob`] or the [`StartedJobs`] are dropped, and after two
/// minutes. So a failing test does not hang in the drop of its consumer.
#[derive(Clone, Debug)]
pub struct ManualWorker {
    started: Sender<StartedJob>,
}

impl<T> Worker<T> for ManualWorker {
    fn run(&self, job: Job<T>) -> Result<(), BoxError> {
        let (reply, verdict) = bounded(1);
        let running = StartedJob { index: job.index, attempt: job.attempt, reply };
        if self.started.send(running).is_err() {
            return Err("the test has ended".into());
        }
        match verdict.recv_timeout(2 * PATIENCE) {
            Ok(Instruction::Succeed) => Ok(()),
            Ok(Instruction::Fail(error)) => Err(error),
            Ok(Instruction::Panic) => panic!("the test made job {} panic", job.index),
            Err(_) => Err("the test let go of this job".into()),
        }
    }
}

/// The jobs of a [`ManualWorker`], as they start.
#[derive(Debug)]
pub struct StartedJobs {
    jobs: Receiver<StartedJob>,
    /// Jobs that started before one that the test requested by its index.
    passed_over: Mutex<BTreeMap<Index, StartedJob>>,
}

impl StartedJobs {
    /// Returns the job with this index once it starts, and keeps jobs that start before it.
    ///
    /// Workers race to start jobs, so use this for a certain job, not [`next`](Self::next).
    ///
    /// # Panics
    /// If the job does not start within a minute, or if one index starts twice.
    #[track_caller]
    pub fn job(&self, index: Index) -> StartedJob {
        let deadline = time::now() + PATIENCE;
        let mut passed_over = self.passed_over.lock();
        loop {
            if let Some(job) = passed_over.remove(&index) {
                return job;
            }
            match self.jobs.recv_deadline(deadline) {
                Ok(job) => keep(&mut passed_over, job),
                Err(_) => panic!("job {index} did not start within {PATIENCE:?}"),
            }
        }
    }

    /// Returns the next job that starts: any of them if there are several.
    ///
    /// # Panics
    /// If no job starts within a minute.
    #[track_caller]
    pub fn next(&self) -> StartedJob {
        self.next_within(PATIENCE).unwrap_or_else(|| panic!("no job started within {PATIENCE:?}"))
    }

    /// Returns the next job that starts, or `None` if none does in this time.
    #[must_use = "a job that is dropped fails"]
    pub fn next_within(&self, limit: Duration) -> Option<StartedJob> {
        let passed_over = self.passed_over.lock().pop_first();
        passed_over.map(|(_, job)| job).or_else(|| self.jobs.recv_timeout(limit).ok())
    }

    /// Returns the next `n` jobs that start, by index.
    ///
    /// # Panics
    /// If one of them does not start within a minute, or if one index starts twice.
    #[track_caller]
    #[must_use = "a job that is dropped fails"]
    pub fn take(&self, n: usize) -> BTreeMap<Index, StartedJob> {
        let mut taken = BTreeMap::new();
        for _ in 0..n {
            keep(&mut taken, self.next());
        }
        taken
    }

    /// True if the test has taken every job that started.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.passed_over.lock().is_empty() && self.jobs.is_empty()
    }
}

#[track_caller]
fn keep(jobs: &mut BTreeMap<Index, StartedJob>, job: StartedJob) {
    let index = job.index;
    assert!(jobs.insert(index, job).is_none(), "job {index} started twice at a time");
}

#[derive(Debug)]
enum Instruction {
    Succeed,
    Fail(BoxError),
    Panic,
}

/// A running job that the test controls. Dropping it fails the job.
#[derive(Debug)]
#[must_use = "a job that is dropped fails; say how it ends"]
#[non_exhaustive]
pub struct StartedJob {
    /// The index of the job in its stream.
    pub index: Index,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    reply: Sender<Instruction>,
}

impl StartedJob {
    /// Makes the job return `Ok`.
    pub fn succeed(self) {
        self.end(Instruction::Succeed);
    }

    /// Makes the job return this error.
    pub fn fail(self, error: impl Into<BoxError>) {
        self.end(Instruction::Fail(error.into()));
    }

    /// Makes the job panic.
    pub fn panic(self) {
        self.end(Instruction::Panic);
    }

    fn end(self, verdict: Instruction) {
        // The job may have stopped waiting, and then this is not received.
        let _ = self.reply.send(verdict);
    }
}
