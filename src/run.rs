//! The modes in which jobs run, and the loop of a worker, which reports a job and takes the next
//! one until there is none.
//!
//! * [`direct`]: a job is done when the worker returns. It may have effects, which are written
//!   atomically with its completion.
//! * [`deferred`]: a job is done when its token says so, on any thread.
//! * [`batched`]: several jobs are done, or have failed, together.
//! * `asynchronous`: jobs are futures, in most of these modes (feature `tokio`).
//! * [`ordered`]: a job is done when the sink has taken its result, in index order.
//! * [`writing`]: a job is done when a user's transaction has its result.
//!
//! [`mode`] refuses settings that do not fit a mode.

#[cfg(feature = "tokio")]
pub(crate) mod asynchronous;
pub(crate) mod batched;
pub(crate) mod deferred;
pub(crate) mod direct;
pub(crate) mod mode;
pub(crate) mod ordered;
pub(crate) mod worker;
pub(crate) mod writing;

use crate::base::{Index, caught::Caught, guard::drop_guarded};
use crate::commit::changes::Changes;
use crate::run::worker::{Job, Report};

/// A job to run, and the token to report it with.
pub(crate) struct Assignment<T> {
    pub(crate) token: usize,
    pub(crate) job: Job<T>,
}

/// Jobs that run together, and then the report of their one attempt.
pub(crate) struct Batch<T> {
    /// The jobs, until they run.
    pub(crate) jobs: Vec<Job<T>>,
    pub(crate) tickets: Vec<Ticket>,
    /// The outcome of the attempt.
    pub(crate) outcome: Result<(), Box<Caught>>,
}

/// A job that was handed out, without its value: what a report needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    pub(crate) token: usize,
    pub(crate) index: Index,
    pub(crate) attempt: u32,
    /// True if the job was handed out before.
    pub(crate) again: bool,
}

/// The job whose result goes to the sink next, and the token to report it with.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) index: Index,
    pub(crate) token: usize,
}

/// A worker's next task.
pub(crate) enum Task<T> {
    Run(Assignment<T>),
    /// A result waits for the sink, and no other thread will hand it over.
    Deliver(Delivery),
}

pub(crate) trait JobPort<T>: Send + Sync + 'static {
    /// Reports a job, with effects that count if it succeeded, and takes the next task in the same
    /// critical section: a turn at the sink that follows from the report, or a job. Sleeps while
    /// there is none. `None`: the thread has to end.
    ///
    /// The report is taken out of its place field by field: copying it would cost more than the
    /// lock.
    fn next(&self, report: &mut Option<Report>, effects: &mut Changes) -> Option<Task<T>>;

    /// Does the same without the lock, if the report is a success and the next job is at hand.
    /// `None`: [`next`](Self::next) has to take the report, if it is still there, and has the next
    /// job. Called only in a [plain](Runner::is_plain) mode.
    fn next_at_hand(&self, report: &mut Option<Report>) -> Option<Assignment<T>>;

    /// Hears that a job at hand goes on elsewhere. So the next ones probably do, too, and come from
    /// the core, where each has a token of its own.
    fn goes_on(&self);

    /// Reports the batch that has run, if there is one, and replaces it with the next. Returns
    /// false if the thread has to end.
    fn next_batch(&self, batch: &mut Batch<T>, effects: &mut Changes) -> bool;
}

/// Runs jobs in one mode, on worker threads.
pub(crate) trait Runner<T>: Send + Sync + 'static {
    /// Runs a job. Returns `None` if its [`Done`](worker::Done) token will report it. Leaves its
    /// effects in the buffer, which is empty before.
    fn run(&self, Assignment { token, job }: Assignment<T>, effects: &mut Changes) -> Option<Report> {
        let index = job.index;
        Some(Report { token, index, outcome: self.run_batch(vec![job], effects) })
    }

    /// Hands a waiting result to the sink, and returns its report. Only jobs that were set aside,
    /// in mode *ordered*, get a turn.
    fn deliver(&self, turn: Delivery) -> Option<Report> {
        debug_assert!(false, "job {} has a turn, and there is no sink", turn.index);
        None
    }

    /// True if a success leaves neither effects nor a result, so that jobs may come from the tray.
    fn is_plain(&self) -> bool {
        false
    }

    /// True if jobs run in batches, by [`run_batch`](Self::run_batch).
    fn runs_batches(&self) -> bool {
        false
    }

    /// Runs a batch, whose jobs are done or fail together. Leaves effects like [`run`](Self::run).
    fn run_batch(&self, jobs: Vec<Job<T>>, _effects: &mut Changes) -> Result<(), Box<Caught>> {
        debug_assert!(false, "this mode runs no batches");
        drop_guarded(jobs);
        Ok(())
    }

    /// Does all the work of a worker thread, in the context that the mode needs.
    fn attend(&self, work: &mut dyn FnMut()) {
        work();
    }

    /// Hears that a successful job has failed after all, so its result is not needed.
    fn forget(&self, _index: Index) {}

    /// Hears that the attempt at this job is overdue. The job itself was told already.
    fn overdue(&self, _index: Index) {}

    /// Ends running jobs, if the mode can. They no longer count and are not awaited.
    fn abandon(&self) {}
}

/// Runs a worker thread until it has to end.
pub(crate) fn work<T: 'static>(port: &impl JobPort<T>, runner: &dyn Runner<T>) {
    runner.attend(&mut || {
        if runner.runs_batches() {
            return work_in_batches(port, runner);
        }
        let mut report = None;
        let mut effects = Changes::default();
        let is_plain = runner.is_plain();
        loop {
            if is_plain && let Some(assignment) = port.next_at_hand(&mut report) {
                report = runner.run(assignment, &mut effects);
                if report.is_none() {
                    port.goes_on();
                }
                continue;
            }
            let Some(task) = port.next(&mut report, &mut effects) else { break };
            match task {
                Task::Run(assignment) => report = runner.run(assignment, &mut effects),
                Task::Deliver(turn) => report = runner.deliver(turn),
            }
        }
    });
}

fn work_in_batches<T: 'static>(port: &impl JobPort<T>, runner: &dyn Runner<T>) {
    let mut batch = Batch { jobs: Vec::new(), tickets: Vec::new(), outcome: Ok(()) };
    let mut effects = Changes::default();
    while port.next_batch(&mut batch, &mut effects) {
        batch.outcome = runner.run_batch(std::mem::take(&mut batch.jobs), &mut effects);
    }
}

/// The user's callback after a successful attempt, before the job counts as done.
pub(crate) type OnJobDone = dyn Fn(Index) + Send + Sync;
