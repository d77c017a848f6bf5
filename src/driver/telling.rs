//! The lines and the notices that a critical section leaves. They are told outside of the lock, by
//! one thread at a time.

use super::Driver;
use super::core::Core;
use crate::base::error::Error;
use crate::base::guard::{drop_guarded, guarded};
use crate::base::index::Index;
use crate::base::time::Now;
use crate::observe::observers::{Notice, Observers};
use crate::observe::{Event, Kind, Told};
use crate::reader::Then;

impl Core {
    /// Tells of an event; the success of a job is none. The clock is read only if a subscriber
    /// wants the line.
    #[cold]
    pub(super) fn tell(&mut self, event: &Event<'_>, now: &Now) {
        if event.kind.is_heard() {
            self.watching.telling.push(now.get(), event);
        }
    }

    /// True if there is an observer.
    pub(super) fn is_observed(&self) -> bool {
        self.watching.observers.as_ref().is_some_and(|observers| observers.hear())
    }

    /// Keeps an event for the observers, if there are any. It is made only then.
    pub(super) fn notice(&mut self, make: impl FnOnce(&mut Self) -> Notice) {
        if self.is_observed() {
            let notice = make(self);
            self.watching.telling.notice(notice);
        }
    }

    /// Tells of the job behind those that were read, if it could not be read.
    pub(super) fn tell_unread(&mut self, next: Index, then: &Then, now: &Now) {
        let kind = match then {
            Then::Unasked | Then::Truncated { .. } => return,
            Then::Missing => Kind::Missing,
            Then::Failed(_) => Kind::SourceFailed,
        };
        let event = Event::new(kind, next);
        self.tell(&if let Then::Failed(failure) = then { event.error(&failure.text) } else { event }, now);
    }

    /// Tells that the operating system gave no thread. Its error is no user code, so the text can
    /// be made here, under the lock.
    pub(super) fn tell_of_refusal(&mut self, error: &Error, now: &Now) {
        let (index, text) = (self.window.lowest_undone(), error.report());
        self.tell(&Event::new(Kind::ThreadRefused, index).error(&text), now);
    }

    /// Tells that an observer panicked.
    pub(super) fn tell_of_panic(&mut self, index: Option<Index>, panic: &str, now: &Now) {
        let event = Event::new(Kind::ObserverPanicked, 0).error(panic);
        self.tell(&Event { index, ..event }, now);
    }

    /// The last line, behind all that is not said yet.
    pub(super) fn tell_end(&mut self, now: &Now) {
        self.watching.telling.end();
        let error = self.ending.halted.as_deref().map(|(_, text)| text.clone());
        let index = self.window.last_processed();
        self.tell(&Event { kind: Kind::Ended, index, attempt: None, error: error.as_deref(), elapsed: None }, now);
        if self.is_observed() {
            self.measure(now);
        }
        self.notice(|core| core.end_notice());
    }

    /// True if the caller is to [write lines](Driver::tell). It is counted as present meanwhile, so
    /// that `stop` awaits it.
    #[inline]
    pub(super) fn begin_telling(&mut self) -> bool {
        let begins = self.watching.telling.begin();
        if begins {
            self.roster.count_in();
        }
        begins
    }
}

impl Driver {
    /// Writes lines and gives notices until there are none, after [`Core::begin_telling`] said so.
    pub(super) fn tell(&self) {
        // A subscriber is user code: a stop in it would wait for this same line.
        let own = self.crew.enter();
        let name = self.watermark.name();
        loop {
            let mut core = self.core.lock();
            let Some(all) = core.watching.telling.take() else { break };
            let observers = core.watching.observers.clone();
            drop(core);
            for told in all {
                self.tell_one(&told, &name, observers.as_deref());
            }
            drop_guarded(observers);
        }
        self.crew.leave();
        drop(own);
    }

    fn tell_one(&self, told: &Told, name: &str, observers: Option<&Observers>) {
        match told {
            Told::Line(line) => {
                // If a subscriber panics, no line can say so.
                let _ = guarded(|| {
                    line.write(name);
                    Ok(())
                });
            }
            Told::Notice(notice) => {
                if let Some(Err(panic)) = observers.map(|observers| observers.notice(notice)) {
                    // The loop of the caller finds the line.
                    self.core.lock().tell_of_panic(None, &panic, &self.clock.when_asked());
                }
            }
        }
    }
}
