//! What the thread that looks at the jobs of those who wait shares with those who start it.

use parking_lot::{Condvar, Mutex};

/// The thread that looks, while somebody waits.
#[derive(Default)]
pub(super) struct Watching {
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) runs: bool,
    /// Somebody has begun to wait since the last look.
    pub(super) is_new: bool,
}
