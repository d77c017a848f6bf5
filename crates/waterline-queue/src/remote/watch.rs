//! The state of the thread that polls the jobs that are waited for, and the queues that are
//! watched.

use parking_lot::{Condvar, Mutex};
use std::any::Any;

#[derive(Default)]
pub(super) struct Watching {
    pub(super) state: Mutex<WatchState>,
    pub(super) changed: Condvar,
}

#[derive(Default)]
pub(super) struct WatchState {
    pub(super) runs: bool,
    /// True if a waiter has come since the last look.
    pub(super) is_new: bool,
    /// True if the server has rung since the last look, since there are changes.
    pub(super) is_rung: bool,
}

/// How far a queue was heard that a caller of this process watches.
#[derive(Default)]
pub(super) struct Heard {
    pub(super) listens: Option<Box<dyn Any + Send + Sync>>,
    /// The number of the last change; `None`: none was read.
    pub(super) last: Option<i64>,
    /// True if the first read has failed, so that it is not known what has happened since.
    pub(super) is_late: bool,
}

impl Watching {
    /// Lets the thread look at once.
    pub(super) fn ring(&self) {
        self.state.lock().is_rung = true;
        self.changed.notify_all();
    }
}
