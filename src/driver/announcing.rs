//! Announcing as the driver sees it: the run that was processed, and the thread that tells the
//! user.

use super::Driver;
use super::core::Core;
use super::wakes::Wakes;
use crate::base::caught::Failure;
use crate::base::error::Error;
use crate::base::guard::drop_guarded;
use crate::base::index::Index;
use crate::notifier::NewsDesk;
use std::ops::RangeInclusive;

/// The news of processed jobs.
#[derive(Default)]
pub(crate) struct Announcing {
    /// True if somebody wants to hear of processed jobs.
    pub(crate) wanted: bool,
    /// The jobs that were processed and are not announced yet.
    news: Option<RangeInclusive<Index>>,
    /// True while `on_processed` is being called.
    calling: bool,
}

impl Core {
    /// Takes in the jobs that the saved watermark has passed.
    pub(super) fn announce(&mut self, run: RangeInclusive<Index>, wakes: &mut Wakes) {
        wakes.called |= self.waiting.waiters.call_up_to(*run.end());
        if self.announcing.wanted {
            wakes.news = true;
            let start = self.announcing.news.take().map_or(*run.start(), |earlier| *earlier.start());
            self.announcing.news = Some(start..=*run.end());
        }
    }

    /// Takes the jobs that were processed since the last time, for the notifier.
    pub(crate) fn take_news(&mut self) -> Option<RangeInclusive<Index>> {
        let news = self.announcing.news.take();
        self.announcing.calling = news.is_some();
        news
    }

    /// True if somebody is being told of something that was saved, or is about to be told.
    pub(crate) fn is_announcing(&self) -> bool {
        self.announcing.calling || self.announcing.news.is_some()
    }

    /// Ends the calls of `on_processed`.
    pub(crate) fn silence(&mut self) {
        self.announcing.wanted = false;
        self.announcing.news = None;
        self.announcing.calling = false;
    }
}

impl NewsDesk for Driver {
    fn news(&self) -> Option<RangeInclusive<Index>> {
        let mut core = self.core.lock();
        loop {
            if let Some(run) = core.take_news() {
                return Some(run);
            }
            // A stop may wait for the last call, which is over now.
            self.changed.notify_all();
            if core.window.has_ended() {
                return None;
            }
            self.news.wait(&mut core);
        }
    }

    fn panicked(&self, run: RangeInclusive<Index>, failure: Failure) {
        let index = *run.end();
        let text = format!("on_processed {}", failure.text);
        let mut core = self.core.lock();
        let now = self.clock.when_asked();
        core.silence();
        let surplus = core.halt(index, text, Error::Callback { index, source: failure.error }, &failure.text, &now);
        self.settle(core, &now);
        drop_guarded(surplus);
    }
}
