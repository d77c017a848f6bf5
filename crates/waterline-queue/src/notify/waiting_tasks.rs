//! The tasks that wait in a queue, and their keeper.

use parking_lot::Mutex;
use std::sync::Arc;
use waterline::seam::{Called, Tasks, wait_at};

/// The tasks that wait in a queue. While there is one, a *keeper* runs what falls due, for all of
/// them: so a thousand waiting tasks look at the clock no more often than one does.
#[derive(Default)]
pub(crate) struct WaitingTasks(Mutex<TaskState>);

#[derive(Default)]
struct TaskState {
    waiting: usize,
    is_kept: bool,
    /// Counts the calls of the keeper.
    rings: u64,
    /// The keeper, while it sleeps.
    keeper: Tasks,
}

impl TaskState {
    fn ring(&mut self, called: &mut Called) {
        self.rings += 1;
        self.keeper.call(usize::MAX, called);
    }
}

impl WaitingTasks {
    /// Makes the keeper look again, since something falls due sooner.
    pub(crate) fn ring(&self, called: &mut Called) {
        self.0.lock().ring(called);
    }

    /// Takes the duty of the keeper if it is free. Returns whether the caller has it now.
    pub(crate) fn take(&self) -> bool {
        !std::mem::replace(&mut self.0.lock().is_kept, true)
    }

    /// Gives up the duty of the keeper. Returns true if tasks wait, which need another one.
    pub(crate) fn give_up(&self) -> bool {
        let mut state = self.0.lock();
        state.is_kept = false;
        state.waiting > 0
    }

    /// Returns the number of calls so far, for the keeper. `None`: no task waits any more.
    pub(crate) fn rings(&self) -> Option<u64> {
        let mut state = self.0.lock();
        state.is_kept = state.waiting > 0;
        state.is_kept.then_some(state.rings)
    }

    /// Sleeps, as the keeper, until it was called after this call.
    pub(crate) async fn rung(&self, after: u64) {
        wait_at(&self.0, |state| &mut state.keeper, |state| (state.rings != after).then_some(())).await;
    }
}

/// Counts as a waiting task until it is dropped.
pub(crate) struct Attendance(Arc<WaitingTasks>);

impl Attendance {
    pub(crate) fn new(kept: &Arc<WaitingTasks>) -> Self {
        kept.0.lock().waiting += 1;
        Self(kept.clone())
    }
}

impl Drop for Attendance {
    fn drop(&mut self) {
        let mut called = Called::default();
        {
            let mut state = self.0.0.lock();
            state.waiting -= 1;
            if state.waiting == 0 {
                state.ring(&mut called);
            }
        }
        called.wake();
    }
}
