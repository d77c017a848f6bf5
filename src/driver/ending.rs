//! The end as others than the owner wait for it: when everything is over, threads included, and how.

use super::Driver;
use super::alive::{Alive, Mourns};
use super::core::Core;
use super::own::Own;
use crate::base::error::Error;
use crate::base::index::Index;
use crate::observe::ended::Ended;
use crate::observe::{Event, Kind};
use std::time::{Duration, Instant};

impl<T: Send + 'static> Core<T> {
    /// The consumer halts, for the first time. The cause is the text of the error's source, if it has one: it is the user's, so
    /// it was made without the lock.
    pub(super) fn halt_for(&mut self, index: Index, text: String, error: Error, cause: &str) {
        let event = Event { error: Some(&text), ..Event::new(Kind::Halted, index) };
        self.tell(&if let Error::Job { attempt, .. } = &error { event.attempt(*attempt) } else { event });
        self.ending.report = Some(if cause.is_empty() { error.to_string() } else { format!("{error}: {cause}") });
        self.halted = Some((index, text));
        self.error = Some(error);
    }

    /// Whether everything is over, so that the owner need not wait.
    fn is_gone(&self) -> bool {
        self.window.has_ended() && self.ending.alive == 0 && self.present <= usize::from(self.ending.owned)
    }

    fn ended(&self, now: Instant) -> Ended {
        Ended { state: self.status(now).state, error: self.ending.report.clone() }
    }
}

impl<T: Send + 'static> Driver<T> {
    pub(super) fn wait_everybody_gone(&self, timeout: Duration) -> Option<Ended> {
        // That it waits for itself to end would never come true.
        if Own::is(self.owner) {
            return None;
        }
        // Beyond the clock's end is for ever.
        let deadline = Instant::now().checked_add(timeout);
        let mut core = self.core.lock();
        while !core.is_gone() {
            match deadline {
                Some(deadline) if Instant::now() >= deadline => return None,
                Some(deadline) => {
                    self.gone.wait_until(&mut core, deadline);
                }
                None => self.gone.wait(&mut core),
            }
        }
        Some(core.ended(Instant::now()))
    }

    /// The consumer itself leaves.
    pub(super) fn leave_it(&self) {
        self.core.lock().ending.owned = false;
        self.leave();
    }

    /// Tells those who wait for everybody to be gone, if that is so, and the thread that watches, which leaves as the last one.
    pub(super) fn someone_left(&self, core: &Core<T>) {
        if core.is_gone() {
            self.gone.notify_all();
        }
        if core.window.has_ended() {
            self.stall.notify_all();
        }
    }

    /// A thread is about to be started.
    pub(super) fn expect_thread(&self) -> Alive {
        self.core.lock().ending.alive += 1;
        Alive(self.me.clone())
    }
}

impl<T: Send + 'static> Mourns for Driver<T> {
    fn thread_is_gone(&self) {
        let mut core = self.core.lock();
        core.ending.alive -= 1;
        self.someone_left(&core);
    }
}
