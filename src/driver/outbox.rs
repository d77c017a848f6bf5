//! What the parts of the core leave to be done: lines and notices, effects to be saved, and the end
//! of the consumer. [`Core`](super::Core) does it, so that no part has to know another one.

use super::effects::Unwritten;
use crate::base::{BoxError, Error, Index, sync::Arc, time::Now};
use crate::commit::changes::Changes;
use crate::observe::observers::{Notice, Observers};
use crate::observe::{Event, EventKind, Telling};
use crate::threads::{stopping::Stopping, workers::Wake};
use crate::window::Window;

#[derive(Default)]
pub(crate) struct Outbox {
    pub(super) telling: Telling,
    /// The observers and stall alarms, if the user has any.
    pub(crate) observers: Option<Arc<Observers>>,
    /// The effects of finished jobs and the records of failed ones, for the next save.
    pub(crate) effects: Unwritten,
    /// True if the reader has to wake: its deadline has changed, or it has to end.
    pub(super) reader: bool,
    /// True if the index of a waiter may have become unreachable.
    pub(super) waiters: bool,
    /// True if a job was passed, so the next turn at the sink may belong to a waiting result.
    pub(super) turn: bool,
    /// Jobs that are over, so that their keys are free, if jobs of one key run in order.
    pub(super) passed: Option<Vec<Index>>,
}

impl Outbox {
    /// Reports an event other than a success. Reads the clock only if a subscriber wants the line.
    #[cold]
    pub(super) fn tell(&mut self, event: &Event<'_>, now: &Now) {
        if event.kind.is_heard() {
            self.telling.push(now.get(), event);
        }
    }

    /// Notes that a job is over: done for good, parked, or gone.
    pub(super) fn pass(&mut self, index: Index) {
        self.passed.iter_mut().for_each(|passed| passed.push(index));
    }

    pub(super) fn is_observed(&self) -> bool {
        self.observers.as_ref().is_some_and(|observers| observers.hear())
    }

    /// Keeps a notice for the observers. It is made only if there are any.
    pub(super) fn notice(&mut self, make: impl FnOnce() -> Notice) {
        if self.is_observed() {
            self.telling.notice(make());
        }
    }

    /// Reports that the operating system refused a thread. Its error is not user code, so the text
    /// may be made under the lock.
    pub(super) fn tell_of_refusal(&mut self, index: Index, error: &Error, now: &Now) {
        self.tell(&Event::new(EventKind::ThreadRefused, index).error(&error.report()), now);
    }

    /// Reports that an observer panicked.
    pub(super) fn tell_of_panic(&mut self, index: Option<Index>, panic: &str, now: &Now) {
        let event = Event::new(EventKind::ObserverPanicked, 0).error(panic);
        self.tell(&Event { index, ..event }, now);
    }
}

/// What a critical section leaves to be done once the lock is free.
#[derive(Default)]
#[must_use]
pub(crate) struct Wakes {
    pub(crate) reader: bool,
    pub(crate) worker: Wake,
    pub(crate) save: bool,
    pub(crate) hurry: bool,
    pub(crate) news: bool,
    /// True if threads that wait for an index were called.
    pub(crate) called: bool,
    pub(crate) ended: bool,
    /// True if there are lines to write.
    pub(crate) tell: bool,
}

impl Wakes {
    pub(crate) fn is_empty(&self) -> bool {
        let Self { reader, worker, save, hurry, news, called, ended, tell } = self;
        !(*reader || *worker != Wake::None || *save || *hurry || *news || *called || *ended || *tell)
    }
}

/// The end of the consumer, before and after it has come.
#[derive(Default)]
pub(crate) struct Ending {
    /// Set once nothing starts any more.
    pub(super) stopping: Stopping,
    /// True once every thread was told that nothing starts any more.
    pub(super) told: bool,
    /// The error that `stop` and `join` return.
    pub(super) error: Option<Box<Error>>,
    /// The text of that error, which stays when the error is handed out.
    pub(super) report: Option<String>,
    /// The index and the cause of a halt.
    pub(super) halted: Option<Box<(Index, String)>>,
    /// True if the life record does not have the halt yet.
    pub(super) unrecorded: bool,
    /// True if results no longer count.
    pub(super) abandoned: bool,
    /// The lowest index that the watermark can never reach, if there is one.
    unreachable_from: Option<Index>,
}

impl Ending {
    pub(super) fn never_reaches(&mut self, index: Index) {
        self.unreachable_from = Some(self.unreachable_from.map_or(index, |from| from.min(index)));
    }

    /// One past the highest index that the watermark may still reach.
    pub(super) fn reachable_below(&self) -> Index {
        self.unreachable_from.unwrap_or(Index::MAX)
    }
}

/// What a part of the core sees beside its own state.
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

    /// Notes that the watermark can never reach this index or a higher one.
    pub(super) fn never_reaches(&mut self, index: Index) {
        self.ending.never_reaches(index);
        self.out.waiters = true;
    }

    /// Writes changes with the next save, as effects of this attempt.
    pub(super) fn write(&mut self, changes: &mut Changes, index: Index, attempt: u32) {
        self.out.effects.take(changes, index, attempt);
        self.window.set_full(self.out.effects.is_full());
        self.window.handle_changed();
    }

    /// Halts at the first error, and returns later ones to be dropped, since they are not the
    /// cause. `cause` is the text of the error's source, if it has one.
    pub(super) fn halt(&mut self, index: Index, text: String, error: Error, cause: &str) -> Option<BoxError> {
        self.window.handle_stop();
        if self.ending.error.is_some() {
            return Some(Box::new(error));
        }
        self.halt_for(index, text, error, cause);
        None
    }

    /// Halts for the first time. `cause` is the text of the error's source, if it has one. User
    /// code makes that text, so the caller has made it without the lock.
    pub(super) fn halt_for(&mut self, index: Index, text: String, error: Error, cause: &str) {
        let event = Event { error: Some(&text), ..Event::new(EventKind::Halted, index) };
        let attempt = if let Error::Job { attempt, .. } = &error { Some(*attempt) } else { None };
        self.tell(&Event { attempt, ..event });
        self.out.notice(|| Notice::Halted { index, attempt, error: text.clone() });
        self.ending.unrecorded = true;
        self.ending.report = Some(if cause.is_empty() { error.to_string() } else { format!("{error}: {cause}") });
        self.ending.halted = Some(Box::new((index, text)));
        self.ending.error = Some(Box::new(error));
    }
}
