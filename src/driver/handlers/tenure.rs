//! The side of the progress: it may hold the consumer, or tell it that its name is lost.

use crate::base::error::Error;
use crate::base::guard::drop_guarded;
use crate::base::index::BoxError;
use crate::base::time::Now;
use crate::driver::Driver;
use crate::driver::core::Core;
use crate::driver::tenure::fenced;
use crate::progress::{LiveParking, Tenant, Tenure, Wish};
use std::sync::Weak;

impl Core {
    /// Notes that another consumer has the name, so no save begins any more. A save under way comes
    /// to its own end; `save_over` says that it just has. The answer is to be dropped without the
    /// lock.
    fn lose_name(&mut self, error: Error, save_over: bool, now: &Now) -> Option<BoxError> {
        let text = error.to_string();
        self.save_no_more(error, (text, ""), save_over, now)
    }

    /// The same for any error after which no save begins any more. The text and the cause are as in
    /// every halt.
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
    /// Notes that there is nobody to make a save.
    pub(crate) fn saves_nothing(&self) {
        let mut core = self.core.lock();
        core.abandon_save();
        self.settle_saving(core, &self.clock.when_asked());
    }

    /// Lets the progress steer this consumer from now on. Its earlier calls count as made now.
    pub(crate) fn heed(&self, tenure: &Tenure) {
        self.core.lock().tenancy.tenure = Some(tenure.clone());
        let me: Weak<dyn Tenant> = self.crew.host().clone();
        tenure.attach(me);
        self.tenure_changed();
    }

    /// Halts the consumer, since a save has found that another consumer has the name.
    pub(super) fn lose_name(&self, error: BoxError) {
        let error = fenced(self.watermark.name(), error);
        let text = error.to_string();
        self.forsake(error, text, "");
        self.drop_futures();
    }

    /// Drops the futures that run, at their next await points: the other consumer runs those jobs,
    /// and this one would wait for their ends.
    fn drop_futures(&self) {
        let pool = self.core.lock().running.pool.clone();
        self.end_jobs(pool);
    }

    /// Halts the consumer after a save that was the last one.
    pub(super) fn forsake(&self, error: Error, text: String, cause: &str) {
        let mut core = self.core.lock();
        let now = self.clock.when_asked();
        let surplus = core.save_no_more(error, (text, cause), true, &now);
        self.settle_saving(core, &now);
        drop_guarded(surplus);
    }
}

impl Tenant for Driver {
    fn tenure_changed(&self) {
        let Some(tenure) = self.core.lock().tenancy.tenure.clone() else { return };
        // Its text is made by the user's code, so before the lock is taken.
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
        let surplus = lost.and_then(|error| core.lose_name(error, false, &now));
        let Core { tenancy, window, .. } = &mut *core;
        let watch = tenancy.heed(window) && {
            core.watching.stalls.moved(&now);
            core.stir(now.get())
        };
        // Any thread may call this, and it may hold locks that a subscriber needs.
        self.settle_saving(core, &now);
        if watch {
            self.spawn_watch();
        }
        drop_guarded(surplus);
        if is_lost {
            self.drop_futures();
        }
        for wish in tenure.take_wishes() {
            // One that has no effect any more is no error: the operator may have been late.
            _ = match wish {
                Wish::Redrive(index) => self.redrive_parked(index).is_ok(),
                Wish::Discard(index) => self.discard(index),
            };
        }
    }
}
