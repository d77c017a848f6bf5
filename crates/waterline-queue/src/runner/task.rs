//! Jobs that are futures: each is a task of the runtime.

use crate::runner::attempt::{Attempt, Report};
use crate::runner::handler::{Boxed, Completion, Finisher};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use waterline::BoxError;
use waterline::seam::{drop_guarded, guarded};

/// A job as a task. It reports its end even if it panics, or if the runtime drops it.
struct Task {
    future: Option<Boxed>,
    attempt: Option<Attempt>,
}

pub(super) fn spawn(runtime: &Handle, attempt: Attempt, future: Boxed) -> AbortHandle {
    runtime.spawn(Task { future: Some(future), attempt: Some(attempt) }).abort_handle()
}

impl Future for Task {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let me = self.get_mut();
        let Some(future) = &mut me.future else { return Poll::Ready(()) };
        let own = me.attempt.as_ref().map(Attempt::enter);
        let polled = guarded(|| match future.as_mut().poll(context) {
            Poll::Ready(completed) => completed.map(Some),
            Poll::Pending => Ok(None),
        });
        let Some(completed) = polled.transpose() else { return Poll::Pending };
        me.end(completed);
        drop(own);
        Poll::Ready(())
    }
}

impl Task {
    fn end(&mut self, completed: Result<Completion, BoxError>) {
        {
            let _own = self.attempt.as_ref().map(Attempt::enter);
            drop_guarded(self.future.take());
        }
        let Some(attempt) = self.attempt.take() else { return };
        match completed {
            Ok(Completion::Answer(answer)) => attempt.report(|attempt| Report::of_answer(attempt, Ok(answer))),
            Ok(Completion::Elsewhere(end)) => end(Finisher::new(attempt)),
            Err(error) => attempt.report(|attempt| Report::of(attempt, Err(error))),
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.end(Err("its task was dropped before it was done".into()));
    }
}
