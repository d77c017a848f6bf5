//! The state of the thread that polls the jobs that are waited for.

use parking_lot::{Condvar, Mutex};

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

impl Watching {
    /// Lets the thread look at once.
    pub(super) fn ring(&self) {
        self.state.lock().is_rung = true;
        self.changed.notify_all();
    }
}
