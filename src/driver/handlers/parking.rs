//! Calls about parked jobs.

use crate::base::{Error, Index, sync::Arc};
use crate::driver::{Driver, failed_jobs::FailedJobs, outbox::Ctx, whole::CoreGuard};
use crate::progress::LiveParking;
use std::sync::Weak;

impl Driver {
    /// Returns this consumer as the target of calls about its parked jobs.
    pub(crate) fn live_parking(self: &Arc<Self>) -> Weak<dyn LiveParking> {
        let me: Weak<Self> = Arc::downgrade(self);
        me
    }

    /// Makes a parked job run once more.
    pub(crate) fn redrive(&self, index: Index) -> Result<(), Error> {
        let is_parked = self.step_parked(self.core_that_redrives()?, |jobs, at| jobs.redrive(index, at));
        if is_parked { Ok(()) } else { Err(Error::NotParked { name: self.watermark.name(), index }) }
    }

    /// Makes all parked jobs run once more, and returns their number.
    pub(crate) fn redrive_all(&self) -> Result<u64, Error> {
        Ok(self.step_parked(self.core_that_redrives()?, FailedJobs::redrive_all))
    }

    fn core_that_redrives(&self) -> Result<CoreGuard<'_>, Error> {
        let core = self.core.lock();
        if core.window.has_ended() || core.window.is_stopping() {
            return Err(Error::Stopped);
        }
        // A consumer without its name has no jobs.
        if core.tenancy.awaited.is_some() {
            return Err(Error::InUse { name: self.watermark.name() });
        }
        Ok(core)
    }

    /// Makes a redrive or discard, and carries out the actions after it. A consumer that caught up
    /// long ago measures nothing by itself, so this starts a measurement.
    fn step_parked<R>(&self, mut core: CoreGuard<'_>, step: impl FnOnce(&mut FailedJobs, &mut Ctx<'_>) -> R) -> R {
        let now = self.clock.when_asked();
        let (failed_jobs, mut at) = core.failed_jobs(&now);
        let result = step(failed_jobs, &mut at);
        let watch = core.note_steered(&now);
        self.settle(core, &now);
        if watch {
            self.spawn_watch();
        } else {
            // The stall watcher may sleep for seconds.
            self.stall.notify_all();
        }
        result
    }
}

impl LiveParking for Driver {
    fn discard(&self, index: Index) -> bool {
        self.step_parked(self.core.lock(), |jobs, at| jobs.discard(index, at))
    }

    fn discard_within(&self, range: &dyn Fn(Index) -> bool) -> Vec<Index> {
        self.step_parked(self.core.lock(), |jobs, at| {
            let parked: Vec<_> = jobs.records.parked_jobs().filter(|index| range(*index)).collect();
            parked.into_iter().filter(|index| jobs.discard(*index, at)).collect()
        })
    }
}
