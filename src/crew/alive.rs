//! The count of threads that are alive: a thread is alive until nothing of it is left to run.

use super::Host;
use crate::base::guard::drop_guarded;
use crate::base::sync::Arc;
use std::cell::Cell;
use std::sync::Weak;

/// The one that counts a thread out when nothing of it is left to run.
trait Mourns: Send + Sync {
    fn thread_is_gone(&self);
}

impl<H: Host> Mourns for H {
    fn thread_is_gone(&self) {
        if self.with_roster(|roster, _| roster.thread_is_gone()) {
            self.crew().tell_gone();
        }
    }
}

/// A thread that is alive, or about to be, until this is dropped.
pub(super) struct Alive(Weak<dyn Mourns>);

thread_local! {
    static THIS_THREAD: Cell<Option<Alive>> = const { Cell::new(None) };
}

impl Alive {
    /// Counts a thread that is about to be started.
    pub(super) fn expect<H: Host>(host: &Arc<H>) -> Self {
        host.with_roster(|roster, _| roster.thread_begins());
        let host: Weak<H> = Arc::downgrade(host);
        Self(host)
    }

    /// Keeps the calling thread alive until the destructors of its thread-locals have run. The
    /// value that was there first is destroyed last, so a thread calls this before all else.
    pub(super) fn stay(self) {
        let _gone_at_its_end = THIS_THREAD.try_with(|alive| alive.set(Some(self)));
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        if let Some(host) = self.0.upgrade() {
            host.thread_is_gone();
            // This may be the last reference to the host.
            drop_guarded(host);
        }
    }
}
