//! The name of a consumer: the progress may hold the consumer, or tell it that the name is lost.

use super::Driver;
use super::core::Core;
use super::standby::Awaited;
use crate::base::caught::Failure;
use crate::base::error::Error;
use crate::base::guard::drop_guarded;
use crate::base::index::BoxError;
use crate::base::time::Now;
use crate::observe::status::Blocked;
use crate::progress::{Tenant, Tenure};
use std::sync::Weak;

/// The state of the consumer's hold on its name.
#[derive(Default)]
pub(crate) struct Tenancy {
    /// The handle by which the progress steers this consumer; `None` in tests without a progress.
    pub(crate) tenure: Option<Tenure>,
    /// The token of this life, which each job is given.
    pub(crate) fence: u64,
    /// True if the user has paused the consumer.
    paused: bool,
    /// The reason of the progress why nothing may start.
    held: Option<String>,
    /// True if another consumer has the name, so no save begins any more.
    lost: bool,
    /// The name that this consumer waits for; `None` if it has its name.
    pub(super) awaited: Option<Box<Awaited>>,
}

impl Tenancy {
    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost
    }

    /// Returns the reason why nothing starts while the window is paused. A pause of the user is
    /// named first, since only the user can end it.
    pub(super) fn blocked(&self) -> Blocked {
        match &self.held {
            Some(why) if !self.paused => Blocked::Held { why: why.clone() },
            _ => Blocked::Paused,
        }
    }
}

impl Core {
    pub(super) fn set_paused(&mut self, paused: bool) {
        self.tenancy.paused = paused;
        self.fit_pause();
    }

    /// Pauses or resumes the window, which knows one pause only, for the user and the progress.
    pub(super) fn fit_pause(&mut self) {
        self.window.set_paused(self.tenancy.paused || self.tenancy.held.is_some());
    }

    /// Takes over the state of the tenure. Returns true if that ends a time in which nothing
    /// started.
    fn heed_tenure(&mut self) -> bool {
        let Some(tenure) = &self.tenancy.tenure else { return false };
        let held_before = std::mem::replace(&mut self.tenancy.held, tenure.held()).is_some();
        self.fit_pause();
        held_before && self.tenancy.held.is_none()
    }

    /// Notes that another consumer has the name, so no save begins any more. A save under way comes
    /// to its own end; `save_over` says that it just has. The answer is to be dropped without the
    /// lock.
    fn lose_name(&mut self, error: Error, save_over: bool, now: &Now) -> Option<BoxError> {
        let text = error.to_string();
        self.save_no_more(error, (text, ""), save_over, now)
    }

    /// The same for any error after which no save begins any more. The text and the cause are as in
    /// every [halt](Self::halt).
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
        self.halt(index, text, error, cause, now)
    }

    /// Abandons the save under way and all later ones, so the watermark never moves again.
    pub(super) fn abandon_save(&mut self) {
        self.window.handle_save_abandoned();
        (self.saving.under_way.since, self.saving.under_way.error) = (None, None);
        self.ending.unreachable_from = self.ending.unreachable_from.min(self.window.lowest_unprocessed());
        self.waiting.rouse = true;
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
        let tenure = self.core.lock().tenancy.tenure.clone();
        // Its text is made by the user's code, so before the lock is taken.
        let lost = tenure.and_then(|tenure| tenure.take_lost()).map(|error| fenced(self.watermark.name(), error));
        let mut core = self.core.lock();
        let now = self.clock.when_asked();
        let surplus = lost.and_then(|error| core.lose_name(error, false, &now));
        let watch = core.heed_tenure() && {
            core.watching.stalls.moved(&now);
            core.stir(now.get())
        };
        // Any thread may call this, and it may hold locks that a subscriber needs.
        self.settle_saving(core, &now);
        if watch {
            self.spawn_watch();
        }
        drop_guarded(surplus);
    }
}

/// The error for a name that another consumer has; the one of the progress, if it has made it.
pub(crate) fn fenced(name: String, error: BoxError) -> Error {
    match error.downcast() {
        Ok(fenced) if matches!(*fenced, Error::Fenced { .. }) => *fenced,
        Ok(other) => Error::Fenced { name, holder: Failure::from(other as BoxError).text },
        Err(other) => Error::Fenced { name, holder: Failure::from(other).text },
    }
}
