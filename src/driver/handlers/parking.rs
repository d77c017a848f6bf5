//! Calls about parked jobs.

use crate::base::{Error, Index, sync::Arc, time::Now};
use crate::driver::{Driver, whole::CoreGuard};
use crate::progress::{LiveParking, Within};
use std::sync::Weak;

impl Driver {
    /// Returns this consumer as the target of calls about its parked jobs.
    pub(crate) fn live_parking(self: &Arc<Self>) -> Weak<dyn LiveParking> {
        let me: Weak<Self> = Arc::downgrade(self);
        me
    }

    pub(super) fn redrive_parked(&self, index: Index) -> Result<(), Error> {
        let mut core = self.core_that_redrives()?;
        let now = self.clock.when_asked();
        let (failed_jobs, mut at) = core.failed_jobs(&now);
        let is_parked = failed_jobs.redrive(index, &mut at);
        self.settle_parked(core, &now);
        if is_parked { Ok(()) } else { Err(Error::NotParked { name: self.watermark.name(), index }) }
    }

    pub(super) fn redrive_all_parked(&self) -> Result<u64, Error> {
        let mut core = self.core_that_redrives()?;
        let now = self.clock.when_asked();
        let (failed_jobs, mut at) = core.failed_jobs(&now);
        let count = failed_jobs.redrive_all(&mut at);
        self.settle_parked(core, &now);
        Ok(count)
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

    /// Carries out the actions after a redrive or discard. A consumer that caught up long ago
    /// measures nothing by itself, so this starts a measurement.
    pub(super) fn settle_parked(&self, mut core: CoreGuard<'_>, now: &Now) {
        let watch = core.note_steered(now);
        self.settle(core, now);
        if watch {
            self.spawn_watch();
        } else {
            // The stall watcher may sleep for seconds.
            self.stall.notify_all();
        }
    }
}

impl LiveParking for Driver {
    fn discard(&self, index: Index) -> bool {
        let mut core = self.core.lock();
        let now = self.clock.when_asked();
        let (failed_jobs, mut at) = core.failed_jobs(&now);
        let was_parked = failed_jobs.discard(index, &mut at);
        self.settle_parked(core, &now);
        was_parked
    }

    fn discard_within(&self, range: &dyn Within) -> Vec<Index> {
        let mut core = self.core.lock();
        let now = self.clock.when_asked();
        let (failed_jobs, mut at) = core.failed_jobs(&now);
        let parked: Vec<_> = failed_jobs.records.parked_jobs().filter(|index| range.has(*index)).collect();
        let given_up = parked.into_iter().filter(|index| failed_jobs.discard(*index, &mut at)).collect();
        self.settle_parked(core, &now);
        given_up
    }
}
