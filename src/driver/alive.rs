//! The state of the end before it has come: the threads that live, the owner, and the stop.

use crate::base::guard::drop_guarded;
use crate::crew::stopping::Stopping;
use std::cell::Cell;
use std::sync::Weak;

/// The state of the end before it has come.
pub(crate) struct Ending {
    /// Set from the moment on in which nothing starts any more.
    pub(super) stopping: Stopping,
    /// The consumer itself is there: nobody has stopped, joined or dropped it.
    pub(super) owned: bool,
    /// Threads that were started, and whose thread-locals are not all destroyed.
    pub(super) alive: usize,
    /// The report of the error, which is there when the error itself was handed out.
    pub(super) report: Option<String>,
}

impl Default for Ending {
    fn default() -> Self {
        Self { stopping: Stopping::default(), owned: true, alive: 0, report: None }
    }
}

/// Where a thread is counted out when nothing of it is left to run.
pub(super) trait Mourns: Send + Sync {
    fn thread_is_gone(&self);
}

/// A thread that is alive, or about to be: until this is dropped.
pub(super) struct Alive(pub(super) Weak<dyn Mourns>);

thread_local! {
    static THIS_THREAD: Cell<Option<Alive>> = const { Cell::new(None) };
}

impl Alive {
    /// This thread is alive until the destructors of its thread-locals have run. What was there first is destroyed last, so this
    /// comes before all that the thread does.
    pub(super) fn stay(self) {
        let _gone_at_its_end = THIS_THREAD.try_with(|alive| alive.set(Some(self)));
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        if let Some(driver) = self.0.upgrade() {
            driver.thread_is_gone();
            // It may be the last to have it.
            drop_guarded(driver);
        }
    }
}
