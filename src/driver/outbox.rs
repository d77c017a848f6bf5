//! The things that the parts of the core leave: lines and notices, effects that wait for a save,
//! and the end of the consumer. [`Core`](super::Core) carries them out, so no part has to know
//! another one for that.

use super::effects::Unwritten;
use crate::base::error::Error;
use crate::base::index::{BoxError, Index};
use crate::base::sync::Arc;
use crate::base::time::Now;
use crate::commit::changes::Changes;
use crate::crew::stopping::Stopping;
use crate::crew::workers::Wake;
use crate::observe::observers::{Notice, Observers};
use crate::observe::{Event, Kind, Telling};
use crate::window::Window;

/// The things that the parts leave for each other and for the threads.
#[derive(Default)]
pub(crate) struct Outbox {
    pub(super) telling: Telling,
    /// The observers and the calls for a stall, if the user has any.
    pub(crate) observers: Option<Arc<Observers>>,
    /// The effects of finished jobs and the records of single jobs, which go with the next save.
    pub(crate) effects: Unwritten,
    /// True if the reader sleeps until a deadline that has changed, or does not know yet that it
    /// has to end.
    pub(super) reader: bool,
    /// True if the index that some of the waiters wait for may never come.
    pub(super) waiters: bool,
    /// True if a job was passed, so the turn at the sink may be at a result that waits.
    pub(super) turn: bool,
}

impl Outbox {
    /// Tells of an event; the success of a job is none. The clock is read only if a subscriber
    /// wants the line.
    #[cold]
    pub(super) fn tell(&mut self, event: &Event<'_>, now: &Now) {
        if event.kind.is_heard() {
            self.telling.push(now.get(), event);
        }
    }

    /// True if there is an observer.
    pub(super) fn is_observed(&self) -> bool {
        self.observers.as_ref().is_some_and(|observers| observers.hear())
    }

    /// Keeps an event for the observers, if there are any. It is made only then.
    pub(super) fn notice(&mut self, make: impl FnOnce() -> Notice) {
        if self.is_observed() {
            self.telling.notice(make());
        }
    }

    /// Tells that the operating system gave no thread. Its error is no user code, so the text can
    /// be made here, under the lock.
    pub(super) fn tell_of_refusal(&mut self, index: Index, error: &Error, now: &Now) {
        self.tell(&Event::new(Kind::ThreadRefused, index).error(&error.report()), now);
    }

    /// Tells that an observer panicked.
    pub(super) fn tell_of_panic(&mut self, index: Option<Index>, panic: &str, now: &Now) {
        let event = Event::new(Kind::ObserverPanicked, 0).error(panic);
        self.tell(&Event { index, ..event }, now);
    }
}

/// The duties that a critical section leaves for after the lock is free.
#[derive(Default)]
#[must_use]
pub(crate) struct Wakes {
    pub(crate) reader: bool,
    pub(crate) worker: Wake,
    pub(crate) save: bool,
    pub(crate) hurry: bool,
    pub(crate) news: bool,
    /// True if some threads that wait for an index were called.
    pub(crate) called: bool,
    pub(crate) ended: bool,
    /// True if there are lines to write.
    pub(crate) tell: bool,
}

impl Wakes {
    pub(crate) fn is_empty(&self) -> bool {
        let Self { reader, worker, save, hurry, news, called, ended, tell } = self;
        !(*reader || *worker != Wake::Nobody || *save || *hurry || *news || *called || *ended || *tell)
    }
}

/// The state of the end, before and after it has come.
pub(crate) struct Ending {
    /// The flag that is set once nothing starts any more.
    pub(super) stopping: Stopping,
    /// True once everybody was told that nothing starts any more.
    pub(super) told: bool,
    /// The error that `stop` and `join` return.
    pub(super) error: Option<Box<Error>>,
    /// The report of the error. It stays when the error itself was handed out.
    pub(super) report: Option<String>,
    /// The index at which the consumer halted, and the cause as a text.
    pub(super) halted: Option<Box<(Index, String)>>,
    /// True if the record of the life is still to hear of the halt.
    pub(super) unrecorded: bool,
    /// True if results are no longer counted.
    pub(super) abandoned: bool,
    /// The index that the watermark can never reach, whatever happens.
    pub(super) unreachable_from: Index,
}

impl Default for Ending {
    fn default() -> Self {
        Self {
            stopping: Stopping::default(),
            told: false,
            error: None,
            report: None,
            halted: None,
            unrecorded: false,
            abandoned: false,
            unreachable_from: Index::MAX,
        }
    }
}

/// Everything that a part of the core sees beside its own state: the window, the end, the things
/// that it leaves, and the moment.
pub(super) struct Ctx<'a> {
    pub(super) window: &'a mut Window,
    pub(super) ending: &'a mut Ending,
    pub(super) out: &'a mut Outbox,
    pub(super) now: &'a Now,
}

impl Ctx<'_> {
    pub(super) fn tell(&mut self, event: &Event<'_>) {
        self.out.tell(event, self.now);
    }

    /// The watermark can reach neither this index nor any above.
    pub(super) fn never_reaches(&mut self, index: Index) {
        self.ending.unreachable_from = self.ending.unreachable_from.min(index);
        self.out.waiters = true;
    }

    /// Writes changes with the next save, as effects of this attempt.
    pub(super) fn write(&mut self, changes: &mut Changes, index: Index, attempt: u32) {
        self.out.effects.take(changes, index, attempt);
        self.window.set_full(self.out.effects.is_full());
        self.window.handle_changed();
    }

    /// Stops at the first failure. Later ones are not the cause, and are given back to be dropped.
    /// The cause is the text of the error's source, if it has one.
    pub(super) fn halt(&mut self, index: Index, text: String, error: Error, cause: &str) -> Option<BoxError> {
        self.window.handle_stop();
        if self.ending.error.is_some() {
            return Some(Box::new(error));
        }
        self.halt_for(index, text, error, cause);
        None
    }

    /// The consumer halts, for the first time. The cause is the text of the error's source, if it
    /// has one: that is the user's code, so the text was made without the lock.
    pub(super) fn halt_for(&mut self, index: Index, text: String, error: Error, cause: &str) {
        let event = Event { error: Some(&text), ..Event::new(Kind::Halted, index) };
        let attempt = if let Error::Job { attempt, .. } = &error { Some(*attempt) } else { None };
        self.tell(&Event { attempt, ..event });
        self.out.notice(|| Notice::Halted { index, attempt, error: text.clone() });
        self.ending.unrecorded = true;
        self.ending.report = Some(if cause.is_empty() { error.to_string() } else { format!("{error}: {cause}") });
        self.ending.halted = Some(Box::new((index, text)));
        self.ending.error = Some(Box::new(error));
    }
}
