//! Jobs that are futures, in the modes *direct*, *transactional*, *ordered* and *writing*.
//!
//! What a mode does with the output of a future is its [`Completion`].
//!
//! A worker polls each future once, in the context of the runtime. A future that is ready then
//! costs no task. Any other becomes a task, which polls it at once and from then on; so the waker
//! of the first poll may do nothing, since a future only has to wake the waker of its last poll.
//!
//! Each poll runs as on a thread of the consumer: a job can ask whether the consumer stops, and
//! does not wait for its own end.

use super::worker::{Job, Report, Reported};
use super::{Assignment, Delivery, Runner};
use crate::base::guard::{drop_guarded, guarded};
use crate::base::sync::{Arc, AtomicBool, Mutex, Ordering};
use crate::base::{BoxError, Error, Index, caught::Caught};
use crate::commit::changes::Changes;
use crate::threads::Own;
use crate::threads::stopping::{Overdue, StopFlags, Stopping};
use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Weak;
use std::task::{Context, Poll, Waker};
use tokio::runtime::Handle;

/// Takes the reports of tasks, and makes threads that poll them count as the consumer's own.
pub(crate) trait TaskPort: Reported {
    /// Makes the calling thread one of the consumer's own until the returned guard is dropped.
    fn enter(&self) -> Own;
    /// Returns the flag of a stopping consumer.
    fn stopping(&self) -> Stopping;
    fn timed_out(&self, token: usize, index: Index) -> Error;
    /// Reports an attempt with its effects, which count if it succeeded.
    fn report_with(&self, report: Report, effects: &mut Changes);
    /// Sets a job aside whose result waits for the sink, and leaves its turn to a worker.
    fn leave_turn(&self, token: usize);
}

/// What a mode does with the output of a future that succeeded.
pub(crate) trait Completion<R>: Send + Sync + 'static {
    /// True if the outputs are nothing, so that jobs may come from the tray.
    const PLAIN: bool = false;
    /// True if a sink takes the outputs.
    const ORDERED: bool = false;

    /// Keeps the output, or leaves its effects in the buffer, before the attempt is reported.
    fn keep(&self, index: Index, output: R, effects: &mut Changes);

    /// Ends a success on a worker. Returns its report, perhaps that its result waits for the sink.
    fn end(&self, report: Report) -> Report {
        report
    }

    /// Does the work of [`Runner::deliver`].
    fn deliver(&self, _turn: Delivery) -> Option<Report> {
        None
    }

    /// Does the work of [`Runner::forget`].
    fn forget(&self, _index: Index) {}
}

/// A job that is done when its future is.
impl Completion<()> for () {
    const PLAIN: bool = true;

    fn keep(&self, _: Index, (): (), _: &mut Changes) {}
}

/// A job whose effects are written with its completion.
pub(crate) struct WithEffects;

impl Completion<Changes> for WithEffects {
    fn keep(&self, _: Index, output: Changes, effects: &mut Changes) {
        *effects = output;
    }
}

/// Jobs that end when their futures do.
pub(crate) struct Asynchronous<F, C> {
    runtime: Handle,
    port: Arc<dyn TaskPort>,
    tasks: Arc<RunningTasks>,
    /// A task does not own it: a task may be dropped after the end of the consumer.
    completion: Arc<C>,
    /// Last, so that nothing is left to drop if its destructor panics.
    start: F,
}

impl<F, C> Asynchronous<F, C> {
    pub(crate) fn new(start: F, completion: C, runtime: Handle, port: Arc<dyn TaskPort>) -> Self {
        Self { runtime, port, tasks: Arc::default(), completion: Arc::new(completion), start }
    }
}

impl<T, F, Fut, R, C> Runner<T> for Asynchronous<F, C>
where
    T: Send + 'static,
    F: Fn(Job<T>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, BoxError>> + Send + 'static,
    R: 'static,
    C: Completion<R>,
{
    fn run(&self, Assignment { token, job }: Assignment<T>, effects: &mut Changes) -> Option<Report> {
        let index = job.index;
        let report = |outcome| Report { token, index, outcome };
        let failed = |error| Some(report(Err(Caught::boxed(error))));
        let mut future = match guarded(|| Ok(Box::pin((self.start)(job)))) {
            Ok(future) => future,
            Err(panic) => return failed(panic),
        };
        let outcome = match guarded(|| Ok(future.as_mut().poll(&mut Context::from_waker(Waker::noop())))) {
            Ok(Poll::Pending) => {
                let (port, tasks) = (self.port.clone(), self.tasks.clone());
                let asked = Some(StopFlags::new(port.stopping(), Overdue::here()));
                let completion = Arc::downgrade(&self.completion);
                let future = Some(future);
                let running = RunningTask { future, port, tasks, completion, token, index, listed: false };
                drop(self.runtime.spawn(PendingTask { running, asked }));
                return None;
            }
            Ok(Poll::Ready(outcome)) => outcome,
            Err(panic) => Err(panic),
        };
        drop_guarded(future);
        match outcome {
            Ok(output) => {
                self.completion.keep(index, output, effects);
                Some(self.completion.end(report(Ok(()))))
            }
            Err(error) => failed(error),
        }
    }

    fn deliver(&self, turn: Delivery) -> Option<Report> {
        self.completion.deliver(turn)
    }

    fn attend(&self, work: &mut dyn FnMut()) {
        let _context = self.runtime.enter();
        work();
    }

    fn forget(&self, index: Index) {
        self.completion.forget(index);
    }

    fn is_plain(&self) -> bool {
        C::PLAIN
    }

    fn overdue(&self, index: Index) {
        self.tasks.wake(index);
    }

    fn abandon(&self) {
        self.tasks.abandon();
    }
}

/// True if the runtime takes no more tasks.
pub(crate) fn has_shut_down(runtime: &Handle) -> bool {
    // A runtime that has shut down cancels a task within the call that spawns it.
    let mut task = runtime.spawn(async {});
    task.is_finished()
        && matches!(Pin::new(&mut task).poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Err(_)))
}

/// True in the context of a runtime, whose tasks would stand still if this thread waited.
pub(crate) fn is_in_runtime() -> bool {
    Handle::try_current().is_ok()
}

/// A job whose future was not ready at its first poll.
struct PendingTask<Fut, R, C>
where
    Fut: Future<Output = Result<R, BoxError>>,
    C: Completion<R>,
{
    running: RunningTask<Fut, R, C>,
    /// The flags that the job can read, while it is not polled.
    asked: Option<StopFlags>,
}

struct RunningTask<Fut, R, C>
where
    Fut: Future<Output = Result<R, BoxError>>,
    C: Completion<R>,
{
    /// `None` once the job is reported.
    future: Option<Pin<Box<Fut>>>,
    port: Arc<dyn TaskPort>,
    tasks: Arc<RunningTasks>,
    completion: Weak<C>,
    token: usize,
    index: Index,
    /// True once the job is on the list of running tasks.
    listed: bool,
}

impl<Fut, R, C> Future for PendingTask<Fut, R, C>
where
    Fut: Future<Output = Result<R, BoxError>>,
    C: Completion<R>,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self { running, asked } = self.get_mut();
        running.enlist(context);
        let overdue = asked.as_ref().is_some_and(StopFlags::is_overdue);
        let _own = running.port.enter();
        let _asks = StopFlags::lend_here(asked);
        running.poll(context, overdue)
    }
}

impl<Fut, R, C> RunningTask<Fut, R, C>
where
    Fut: Future<Output = Result<R, BoxError>>,
    C: Completion<R>,
{
    /// Adds the job to the list of running tasks. The task reads its flags after that.
    fn enlist(&mut self, context: &Context<'_>) {
        if self.future.is_some() && !std::mem::replace(&mut self.listed, true) {
            self.tasks.add(self.index, context.waker().clone());
        }
    }

    /// Polls the future, or drops it if it is overdue or abandoned.
    fn poll(&mut self, context: &mut Context<'_>, overdue: bool) -> Poll<()> {
        let Some(future) = &mut self.future else { return Poll::Ready(()) };
        let outcome = if self.tasks.are_abandoned() {
            Err("it was dropped before it was done".into())
        } else if overdue {
            Err(self.port.timed_out(self.token, self.index).into())
        } else {
            match guarded(|| Ok(future.as_mut().poll(context))) {
                Ok(Poll::Pending) => return Poll::Pending,
                Ok(Poll::Ready(outcome)) => outcome,
                Err(panic) => Err(panic),
            }
        };
        self.end(outcome);
        Poll::Ready(())
    }

    /// Drops the future and reports the job. The name of the progress may be free after that, so
    /// nothing of the job is left by then.
    fn end(&mut self, outcome: Result<R, BoxError>) {
        let Some(future) = self.future.take() else { return };
        drop_guarded(future);
        if self.listed {
            self.tasks.remove(self.index);
        }
        let mut effects = Changes::default();
        // The consumer owns the completion until this job is reported or given up.
        let outcome = outcome.and_then(|output| {
            let completion = self.completion.upgrade().ok_or(Error::Stopped)?;
            completion.keep(self.index, output, &mut effects);
            Ok(())
        });
        if C::ORDERED && outcome.is_ok() {
            return self.port.leave_turn(self.token);
        }
        let outcome = outcome.map_err(Caught::boxed);
        self.port.report_with(Report { token: self.token, index: self.index, outcome }, &mut effects);
    }
}

impl<Fut, R, C> Drop for RunningTask<Fut, R, C>
where
    Fut: Future<Output = Result<R, BoxError>>,
    C: Completion<R>,
{
    /// The task was cancelled before the job was done, which only a runtime that shuts down does.
    fn drop(&mut self) {
        if self.future.is_some() {
            let _own = self.port.enter();
            self.end(Err(Box::new(Error::Runtime)));
        }
    }
}

/// The running tasks, so that they can be dropped before they are done.
#[derive(Default)]
struct RunningTasks {
    /// True once the tasks have to be dropped: the time to stop is over, or the consumer has lost
    /// its name. A task reads this after it is on the list.
    abandoned: AtomicBool,
    /// By index, since jobs of the tray have no token of their own.
    wakers: Mutex<HashMap<Index, Waker, RandomState>>,
}

impl RunningTasks {
    fn add(&self, index: Index, waker: Waker) {
        let before = self.wakers.lock().insert(index, waker);
        drop(before);
    }

    fn remove(&self, index: Index) {
        // Dropping the last waker of a task may drop the task, so that happens without the lock.
        let waker = self.wakers.lock().remove(&index);
        drop(waker);
    }

    /// Makes an overdue task drop its future at its next poll, which comes now.
    fn wake(&self, index: Index) {
        let waker = self.wakers.lock().get(&index).cloned();
        waker.into_iter().for_each(Waker::wake);
    }

    fn are_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// Makes each task drop its future at its next poll, which comes now.
    fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
        let wakers = std::mem::take(&mut *self.wakers.lock());
        wakers.into_values().for_each(Waker::wake);
    }
}
