//! The side of the progress: it may hold the consumer back, or take its name away.

use crate::base::{BoxError, Error, guard::drop_guarded, time::Now};
use crate::driver::{Driver, core::Core, tenure::fenced};
use crate::progress::{LiveParking, Tenant, Tenure, Wish};
use std::sync::Weak;

impl Core {
    /// Ends all saving because of this error: no save begins any more. `save_over`: none is under
    /// way any more. Text and cause are as in every halt. Returns a value to be dropped without the
    /// lock.
    fn save_no_more(
        &mut self,
        error: Error,
        (text, cause): (String, &str),
        save_over: bool,
        now: &Now,
    ) -> Option<BoxError> {
        if self.window.has_ended() {
            return Some(error.into());
        }
        self.tenancy.lost = true;
        if save_over || self.saving.under_way.since.is_none() {
            self.abandon_save();
        }
        let index = self.window.lowest_unprocessed();
        self.ctx(now).halt(index, text, error, cause)
    }
}

impl Driver {
    /// Notes that this consumer has no saver.
    pub(crate) fn saves_nothing(&self) {
        self.step_saving(|core, _| core.abandon_save());
    }

    /// Lets the progress steer this consumer. Earlier calls of the progress take effect now.
    pub(crate) fn heed(&self, tenure: &Tenure) {
        self.core.lock().tenancy.tenure = Some(tenure.clone());
        let me: Weak<dyn Tenant> = self.threads.host().clone();
        tenure.attach(me);
        self.tenure_changed();
    }

    /// Halts the consumer, since a save found that another consumer has the name.
    pub(super) fn lose_name(&self, error: BoxError) {
        let error = fenced(self.watermark.name(), error);
        let text = error.to_string();
        self.halt_after_last_save(error, text, "");
        self.drop_futures();
    }

    /// Drops running futures at their next await points: the other consumer runs these jobs, and
    /// this one would wait for their ends.
    fn drop_futures(&self) {
        let pool = self.core.lock().running.pool.clone();
        self.end_jobs(pool);
    }

    /// Halts the consumer after its last save.
    pub(super) fn halt_after_last_save(&self, error: Error, text: String, cause: &str) {
        drop_guarded(self.step_saving(|core, now| core.save_no_more(error, (text, cause), true, now)));
    }
}

impl Tenant for Driver {
    fn tenure_changed(&self) {
        let Some(tenure) = self.core.lock().tenancy.tenure.clone() else { return };
        // User code makes the text, so it runs before the lock is taken.
        let lost = tenure.take_lost().map(|error| fenced(self.watermark.name(), error));
        let is_lost = lost.is_some();
        let mut core = self.core.lock();
        if tenure.take_try()
            && let Some(awaited) = &mut core.tenancy.awaited
        {
            awaited.called = true;
            self.news.notify_all();
        }
        let now = self.clock.when_asked();
        let lose = |error: Error| {
            let text = error.to_string();
            core.save_no_more(error, (text, ""), false, &now)
        };
        let surplus = lost.and_then(lose);
        let Core { tenancy, window, .. } = &mut *core;
        let watch = tenancy.heed(window) && {
            core.watching.stalls.moved(&now);
            core.stir(now.get())
        };
        // The calling thread may hold locks that a subscriber needs.
        self.settle_saving(core, &now);
        if watch {
            self.spawn_watch();
        }
        drop_guarded(surplus);
        if is_lost {
            self.drop_futures();
        }
        for wish in tenure.take_wishes() {
            // A wish that no longer has an effect is no error: the operator may have been late.
            _ = match wish {
                Wish::Redrive(index) => self.redrive(index).is_ok(),
                Wish::Discard(index) => self.discard(index),
            };
        }
    }
}
