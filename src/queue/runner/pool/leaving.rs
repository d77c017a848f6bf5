//! The end of a runner, for those who wait for it without a thread.

use crate::queue::runner::handler::Handler;
use crate::queue::runner::pool::Pool;
use std::task::{Poll, Waker};

impl Pool {
    pub(in crate::queue::runner) fn is_own_thread(&self) -> bool {
        self.crew.is_own_thread()
    }

    /// True within a runtime, if jobs are futures: to wait might hold up those very jobs.
    pub(in crate::queue::runner) fn must_not_wait(&self) -> bool {
        let mut handlers = self.settings.handlers.values();
        handlers.any(|handler| matches!(handler, Handler::Async(_))) && tokio::runtime::Handle::try_current().is_ok()
    }

    /// Asks for the stop, and waits for nothing. The owner has left when this returns.
    pub(in crate::queue::runner) fn let_go(&self) {
        self.request_stop();
        self.crew.leave_as_owner();
    }

    /// Puts a task on the list of those that wait until everybody is gone.
    pub(in crate::queue::runner) fn poll_gone(&self, place: &mut Option<u64>, waker: &Waker) -> Poll<()> {
        self.crew.awaited().enter(place, waker.clone());
        if self.state.lock().roster.is_gone() { Poll::Ready(()) } else { Poll::Pending }
    }

    pub(in crate::queue::runner) fn wait_gone_no_more(&self, place: Option<u64>) {
        self.crew.awaited().leave(place);
    }
}
