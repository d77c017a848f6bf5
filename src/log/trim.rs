//! Removes items of a log: on request, and when the retained consumers have moved on.

use super::state::{Deleted, LogState};
use crate::base::sync::{Arc, AtomicU64, Mutex, Ordering};
use crate::base::{BoxError, Error, Index, retry::Retry};
use crate::commit::intent::{Intent, Ticket, failed};
use crate::commit::{draft::Draft, participant::Cleanup, writer::WeakWriter};
use crate::source::watermark::Listener;
use crate::store::Store;
use std::sync::Weak;
use std::time::Duration;

/// The back-off of a log that could not trim itself. Closing the store waits no longer than this.
const TRIM_BACK_OFF: Retry = Retry::exponential(Duration::from_millis(20), Duration::from_secs(1));

pub(super) struct TrimIntent {
    state: Arc<LogState>,
    synced: bool,
    wanted: TrimTo,
    /// The jobs that are no longer parked, until their items are freed.
    released: Mutex<Vec<Index>>,
}

pub(super) enum TrimTo {
    /// A caller has requested it, and waits.
    Asked { first: Index, told: Arc<Ticket<()>> },
    /// The retained consumers have come this far. It is retried until it is done or the store is
    /// closed: no watermark may move again, and a source that is held back waits for it.
    Retained { writer: WeakWriter, failures: AtomicU64, unsaid: Mutex<Option<Error>> },
}

impl TrimIntent {
    pub(super) fn new(state: &Arc<LogState>, synced: bool, wanted: TrimTo) -> Self {
        Self { state: state.clone(), synced, wanted, released: Mutex::default() }
    }

    fn done(&self) {
        if let TrimTo::Asked { told, .. } = &self.wanted {
            told.tell(Ok(()));
        }
    }
}

impl Intent for TrimIntent {
    fn resolve(&self, draft: &mut Draft<'_>) -> Result<bool, BoxError> {
        if self.state.is_replaced() {
            self.done();
            return Ok(false);
        }
        let first = match self.wanted {
            TrimTo::Asked { first, .. } => first,
            TrimTo::Retained { .. } => self.state.begin_trim(),
        };
        let mut released = self.released.lock();
        let trims = first > self.state.first();
        if !trims && released.is_empty() && !self.state.has_items_to_free() {
            self.done();
            return Ok(false);
        }
        let (staged, batch) = draft.part(&self.state)?;
        // Another trim of this batch may go as far: both are done when it is written.
        if first > staged.first {
            staged.trim(&self.state, first, Deleted::Later, batch)?;
        }
        // This may be a retry, after a batch that was undone.
        released.append(&mut self.state.kept.released.lock());
        released.extend(self.state.check(batch)?);
        let frees = staged.free(&self.state, &released, batch)?;
        if !trims && !frees {
            self.done();
        }
        Ok(trims || frees)
    }

    fn synced(&self) -> bool {
        self.synced
    }

    fn written(&self) {
        self.done();
    }

    fn failed(&self, error: BoxError) -> Option<Duration> {
        let unfreed = std::mem::take(&mut *self.released.lock());
        self.state.kept.released.lock().extend(unfreed);
        self.state.kept.check_all();
        let error: Error = failed("trim a log", error).into();
        match &self.wanted {
            TrimTo::Asked { told, .. } => {
                told.tell(Err(error));
                None
            }
            TrimTo::Retained { writer, failures, unsaid } => {
                *unsaid.lock() = Some(error);
                let failures = failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
                let again = writer.is_open() && self.state.plan_trim();
                again.then(|| TRIM_BACK_OFF.delay(failures.try_into().unwrap_or(u32::MAX), 0.0)).flatten()
            }
        }
    }

    fn aftermath(&self) -> Option<Cleanup> {
        let TrimTo::Retained { unsaid, .. } = &self.wanted else { return None };
        let (log, error) = (self.state.name.clone(), unsaid.lock().take()?);
        Some(Box::new(move |_| {
            tracing::warn!(log, %error, "a log could not be trimmed; it is tried again");
        }))
    }
}

/// Trims a log when a retained watermark moves. It keeps neither the store nor the log alive.
pub(super) struct Trimmer {
    writer: WeakWriter,
    state: Weak<LogState>,
    synced: bool,
}

impl Trimmer {
    pub(super) fn new(store: &Store, state: &Arc<LogState>) -> Arc<Self> {
        let (writer, state) = (store.writer().downgrade(), Arc::downgrade(state));
        Arc::new(Self { writer, state, synced: store.is_synced() })
    }
}

impl Listener for Trimmer {
    fn changed(&self) {
        let Some(state) = self.state.upgrade() else { return };
        state.tell_listeners();
        if (state.trims_to() > state.first() || state.has_items_to_free()) && state.plan_trim() {
            let wanted =
                TrimTo::Retained { writer: self.writer.clone(), failures: AtomicU64::new(0), unsaid: Mutex::default() };
            self.writer.submit(Box::new(TrimIntent::new(&state, self.synced, wanted)), false);
        }
    }
}
