//! Saves that a thread of the pool makes, since the thread that saves gets no core.

use super::Driver;
use super::core::Core;
use crate::base::guard::drop_guarded;
use crate::base::sync::MutexGuard;
use crate::base::time::Now;

impl Driver {
    /// Makes a save that is late. The calling thread has no job now, so none waits for it.
    pub(super) fn help_saving<'a>(&'a self, core: MutexGuard<'a, Core>, now: &Now) -> MutexGuard<'a, Core> {
        self.settle(core, now);
        // The lock is free during the save: this same driver is told of its result, and may ask for
        // the next save. The clone keeps the store open until the write is over.
        let saves = self.saves.lock().clone();
        if let Some(saves) = &saves {
            saves.help();
        }
        drop_guarded(saves);
        self.core.lock()
    }
}
