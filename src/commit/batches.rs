//! The pending intents, and how a batch of them is made. Time is passed in.

use crate::base::guard::{Panic, guarded};
use crate::base::sync::{Arc, RwLock};
use crate::base::{BoxError, error::StoreError};
use crate::commit::statements::{BeginCarefully, Manner};
use crate::commit::{SAVE_PACE, counter_cache::CounterCache, draft::Draft, intent::Intent, participant::Cleanup};
use crate::kv::{Kv, statement::NotCommitted};
use std::time::{Duration, Instant};

/// The pending intents. The thread that writes holds the lock.
pub(super) struct Batches {
    kv: Arc<dyn Kv>,
    rows: Arc<RwLock<CounterCache>>,
    pub(super) pending: Vec<Pending>,
    /// The end of the pace, or of the pause after a failed write. Only urgent intents ignore it.
    pub(super) rests_until: Instant,
    /// True if the last write failed and is to be retried.
    pub(super) failing: bool,
    /// The work left by the writes so far. It runs after all intents have been notified.
    chores: Vec<Cleanup>,
}

pub(super) struct Pending {
    intent: Box<dyn Intent>,
    /// True if it waits neither for the pace nor for the pause after a failed write.
    pub(super) hurry: bool,
    /// The end of its own back-off, if it could not be resolved.
    pub(super) due: Option<Instant>,
    /// True if it is in the batch that is being written.
    resolved: bool,
}

/// The batch is to restart in the careful manner.
struct Careful;

/// What the writer thread does next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Write,
    /// Sleep until this time, or without limit, unless a message comes.
    Sleep(Option<Instant>),
}

impl Batches {
    pub(super) fn new(kv: Arc<dyn Kv>, rows: Arc<RwLock<CounterCache>>, now: Instant) -> Self {
        Self { kv, rows, pending: Vec::new(), rests_until: now, failing: false, chores: Vec::new() }
    }

    /// Returns the next step. The first intent that may start a write does so, and others join.
    pub(super) fn next(&self, now: Instant) -> Next {
        let due = self.pending.iter().map(|pending| pending.writable_from(now, self.rests_until)).min();
        if due.is_some_and(|due| due <= now) { Next::Write } else { Next::Sleep(due) }
    }

    /// Takes the chores. The caller runs them after it has released the lock.
    pub(super) fn take_chores(&mut self) -> Vec<Cleanup> {
        std::mem::take(&mut self.chores)
    }

    /// Writes everything that is due. If the store fails, it returns the pause before the next
    /// attempt, which begins when this returns.
    #[must_use]
    pub(super) fn write(&mut self, now: Instant) -> Option<Duration> {
        match self.try_write(now, false) {
            Ok(pause) => pause,
            Err(Careful) => self.try_write(now, true).unwrap_or_default(),
        }
    }

    /// Writes everything that is due. Returns `Careful`, and notifies no intent, if a statement is
    /// at fault.
    fn try_write(&mut self, now: Instant, careful: bool) -> Result<Option<Duration>, Careful> {
        // Statements need to know it when they begin, even if the intent that wants it fails later.
        let wanted = self.pending.iter().any(|pending| pending.is_due(now) && pending.is_synced());
        let mut draft = Draft::new(&*self.kv, &self.rows, Manner { synced: wanted, careful });
        let mut synced = false;
        let chores = &mut self.chores;
        let mut again = false;
        self.pending.retain_mut(|pending| again || pending.resolve(&mut draft, now, chores, &mut again));
        if again && !careful {
            return Err(Careful);
        }
        for pending in self.pending.iter().filter(|pending| pending.resolved) {
            synced |= pending.is_synced();
        }
        if !self.pending.iter().any(|pending| pending.resolved) {
            return Ok(None);
        }
        // The pace counts from the start of a write: a longer write is pause enough.
        self.rests_until = now + SAVE_PACE;
        self.failing = false;
        let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| draft.write(synced)));
        let panicked = |source| NotCommitted::Store(StoreError::new("write".to_owned(), source));
        let written = written.unwrap_or_else(|payload| Err(panicked(Panic::caught(payload))));
        let tails = draft.into_tails();
        if self.kv.is_untidy() {
            chores.push(Box::new(|kv| kv.tidy()));
        }
        if !careful && matches!(written, Err(NotCommitted::Refused(_))) {
            return Err(Careful);
        }
        let Err(error) = written else {
            chores.append(&mut tails.publish());
            for pending in self.pending.extract_if(.., |pending| pending.resolved) {
                kept(|| pending.intent.written());
            }
            return Ok(None);
        };
        let error = Arc::new(StoreError::from(error));
        let mut pause = None;
        self.pending.retain_mut(|pending| {
            let again = pending.resolved.then(|| pending.failed(Box::new(error.clone()), chores)).flatten();
            pause = pause.into_iter().chain(again).min();
            pending.hurry &= !pending.resolved;
            again.is_some() || !pending.resolved
        });
        Ok(pause)
    }
}

impl Pending {
    pub(super) fn new(intent: Box<dyn Intent>, hurry: bool) -> Self {
        Self { intent, hurry, due: None, resolved: false }
    }

    /// Returns the time from which it may start a write: now or after its own back-off, and, unless
    /// it is urgent, after the common pause.
    fn writable_from(&self, now: Instant, rests_until: Instant) -> Instant {
        let due = self.due.unwrap_or(now);
        if self.hurry { due } else { due.max(rests_until) }
    }

    pub(super) fn is_synced(&self) -> bool {
        kept(|| self.intent.synced()).unwrap_or(true)
    }

    fn is_due(&self, now: Instant) -> bool {
        self.due.is_none_or(|due| due <= now)
    }

    /// Adds its changes to the batch, if it is due. Returns false if the intent is finished. Sets
    /// `again` if the whole batch is to restart.
    fn resolve(&mut self, draft: &mut Draft<'_>, now: Instant, chores: &mut Vec<Cleanup>, again: &mut bool) -> bool {
        self.resolved = false;
        if !self.is_due(now) {
            return true;
        }
        let before = draft.mark();
        match guarded(|| self.intent.resolve(draft)) {
            Ok(true) => {
                self.resolved = true;
                true
            }
            Ok(false) => {
                draft.go_back(before);
                false
            }
            Err(error) if error.is::<BeginCarefully>() => {
                *again = true;
                true
            }
            Err(error) => {
                draft.go_back(before);
                let again = self.failed(error, chores);
                self.due = again.map(|pause| now + pause);
                self.hurry = false;
                again.is_some()
            }
        }
    }

    fn failed(&self, error: BoxError, chores: &mut Vec<Cleanup>) -> Option<Duration> {
        let again = kept(|| self.intent.failed(error)).flatten();
        chores.extend(kept(|| self.intent.aftermath()).flatten());
        again
    }
}

/// Calls an intent or a chore, and catches a panic, so that the thread survives.
pub(super) fn kept<R>(call: impl FnOnce() -> R) -> Option<R> {
    guarded(|| Ok(call())).map_err(|panic| tracing::error!(%panic, "an intent of the store's writer panicked")).ok()
}
