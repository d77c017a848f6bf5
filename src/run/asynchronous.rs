//! Mode *asynchronous*: a job is a future, and is done when the future is.
//!
//! A worker polls each future once, in the context of the runtime. A future that is ready then
//! costs no task. Any other becomes a task, which polls it at once and from then on; so the waker
//! of the first poll may do nothing, since a future only has to wake the waker of its last poll.
//!
//! Each poll runs as on a thread of the consumer: a job can ask whether the consumer stops, and
//! does not wait for its own end.

use super::worker::{Job, Report, Reported};
use super::{Assignment, Runner};
use crate::base::guard::{drop_guarded, guarded};
use crate::base::sync::{Arc, AtomicBool, Mutex, Ordering};
use crate::base::{BoxError, Error, Index, caught::Caught};
use crate::commit::changes::Changes;
use crate::threads::Own;
use crate::threads::stopping::{Overdue, StopFlags, Stopping};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use tokio::runtime::Handle;

/// Takes the reports of tasks, and makes threads that poll them count as the consumer's own.
pub(crate) trait TaskPort: Reported {
    /// Makes the calling thread one of the consumer's own until the returned guard is dropped.
    fn enter(&self) -> Own;
    /// Returns the flag of a stopping consumer.
    fn stopping(&self) -> Stopping;
    fn timed_out(&self, token: usize, index: Index) -> Error;
}

/// Jobs that are done when their futures are.
pub(crate) struct Asynchronous<F> {
    start: F,
    runtime: Handle,
    port: Arc<dyn TaskPort>,
    tasks: Arc<RunningTasks>,
}

impl<F> Asynchronous<F> {
    pub(crate) fn new(start: F, runtime: Handle, port: Arc<dyn TaskPort>) -> Self {
        Self { start, runtime, port, tasks: Arc::default() }
    }
}

impl<T, F, Fut> Runner<T> for Asynchronous<F>
where
    T: Send + 'static,
    F: Fn(Job<T>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), BoxError>> + Send + 'static,
{
    fn run(&self, Assignment { token, job }: Assignment<T>, _: &mut Changes) -> Option<Report> {
        let index = job.index;
        let failed = |error| Some(Report { token, index, outcome: Err(Caught::boxed(error)) });
        let mut future = match guarded(|| Ok(Box::pin((self.start)(job)))) {
            Ok(future) => future,
            Err(panic) => return failed(panic),
        };
        let outcome = match guarded(|| Ok(future.as_mut().poll(&mut Context::from_waker(Waker::noop())))) {
            Ok(Poll::Pending) => {
                let (port, tasks) = (self.port.clone(), self.tasks.clone());
                let asked = Some(StopFlags::new(port.stopping(), Overdue::here()));
                let running = RunningTask { future: Some(future), port, tasks, token, index, listed: false };
                drop(self.runtime.spawn(PendingTask { running, asked }));
                return None;
            }
            Ok(Poll::Ready(outcome)) => outcome,
            Err(panic) => Err(panic),
        };
        drop_guarded(future);
        match outcome {
            Ok(()) => Some(Report { token, index, outcome: Ok(()) }),
            Err(error) => failed(error),
        }
    }

    fn attend(&self, work: &mut dyn FnMut()) {
        let _context = self.runtime.enter();
        work();
    }

    fn overdue(&self, token: usize) {
        self.tasks.wake(token);
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
struct PendingTask<Fut> {
    running: RunningTask<Fut>,
    /// The flags that the job can read, while it is not polled.
    asked: Option<StopFlags>,
}

struct RunningTask<Fut> {
    /// `None` once the job is reported.
    future: Option<Pin<Box<Fut>>>,
    port: Arc<dyn TaskPort>,
    tasks: Arc<RunningTasks>,
    token: usize,
    index: Index,
    /// True once the job is on the list of running tasks.
    listed: bool,
}

impl<Fut: Future<Output = Result<(), BoxError>>> Future for PendingTask<Fut> {
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

impl<Fut: Future<Output = Result<(), BoxError>>> RunningTask<Fut> {
    /// Adds the job to the list of running tasks. The task reads its flags after that.
    fn enlist(&mut self, context: &Context<'_>) {
        if self.future.is_some() && !std::mem::replace(&mut self.listed, true) {
            self.tasks.add(self.token, context.waker().clone());
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
}

impl<Fut> RunningTask<Fut> {
    /// Drops the future and reports the job. The name of the progress may be free after that, so
    /// nothing of the job is left by then.
    fn end(&mut self, outcome: Result<(), BoxError>) {
        let Some(future) = self.future.take() else { return };
        drop_guarded(future);
        if self.listed {
            self.tasks.remove(self.token);
        }
        let outcome = outcome.map_err(Caught::boxed);
        self.port.report(Report { token: self.token, index: self.index, outcome });
    }
}

impl<Fut> Drop for RunningTask<Fut> {
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
    /// By token.
    wakers: Mutex<Vec<Option<Waker>>>,
}

impl RunningTasks {
    fn add(&self, token: usize, waker: Waker) {
        let mut wakers = self.wakers.lock();
        if wakers.len() <= token {
            wakers.resize(token + 1, None);
        }
        wakers[token] = Some(waker);
    }

    fn remove(&self, token: usize) {
        // Dropping the last waker of a task may drop the task, so that happens without the lock.
        let waker = self.wakers.lock().get_mut(token).and_then(Option::take);
        drop(waker);
    }

    /// Makes an overdue task drop its future at its next poll, which comes now.
    fn wake(&self, token: usize) {
        let waker = self.wakers.lock().get(token).cloned().flatten();
        waker.into_iter().for_each(Waker::wake);
    }

    fn are_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// Makes each task drop its future at its next poll, which comes now.
    fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
        let wakers = std::mem::take(&mut *self.wakers.lock());
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}
