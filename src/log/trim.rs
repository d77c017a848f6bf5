//! Removing items of a log: when somebody asks, and when those have come further for whom they are kept.

use super::state::{LogState, Ticket};
use crate::base::error::{Error, StoreError};
use crate::base::index::{BoxError, Index};
use crate::base::retry::Retry;
use crate::base::sync::{Arc, AtomicU64, Ordering};
use crate::commit::draft::Draft;
use crate::commit::writer::{Intent, WeakWriter};
use crate::kv::batch::FamilyId;
use crate::source::watermark::Listener;
use crate::store::Store;
use std::sync::Weak;
use std::time::Duration;

/// How soon a log that trims itself is trimmed again after that failed. Whoever closes the store waits no longer.
const TRIM_BACK_OFF: Retry = Retry::exponential(Duration::from_millis(20), Duration::from_secs(1));

/// Items to be removed.
pub(super) struct Trim {
    state: Arc<LogState>,
    place: Place,
    wanted: Wanted,
}

/// Where they are in the store, and how durable it is.
#[derive(Clone, Copy)]
struct Place {
    logs: FamilyId,
    system: FamilyId,
    synced: bool,
}

impl Place {
    fn of(store: &Store) -> Self {
        Self { logs: store.logs().id, system: store.system().id, synced: store.is_synced() }
    }
}

/// How far a log is to be trimmed, and who wants to know.
pub(super) enum Wanted {
    Asked {
        first: Index,
        told: Arc<Ticket<()>>,
    },
    /// As far as those have come for whom items are retained. It is tried until it is done, or nobody has the store: no watermark
    /// may move again, and whoever is held back waits for it.
    Retained {
        writer: WeakWriter,
        failures: AtomicU64,
    },
}

impl Trim {
    pub(super) fn new(store: &Store, state: &Arc<LogState>, wanted: Wanted) -> Self {
        Self { state: state.clone(), place: Place::of(store), wanted }
    }

    fn done(&self) {
        if let Wanted::Asked { told, .. } = &self.wanted {
            told.tell(Ok(()));
        }
    }
}

impl Intent for Trim {
    fn resolve(&self, draft: &mut Draft<'_>) -> Result<bool, BoxError> {
        let first = match self.wanted {
            Wanted::Asked { first, .. } => first,
            Wanted::Retained { .. } => self.state.begin_trim(),
        };
        if first <= self.state.first() {
            self.done();
            return Ok(false);
        }
        // One that goes as far may be in this write already, and both are done when it is.
        if first > draft.first_of(&self.state) {
            draft.trim(&self.state, first, self.place.logs, self.place.system)?;
        }
        Ok(true)
    }

    fn synced(&self) -> bool {
        self.place.synced
    }

    fn written(&self) {
        self.done();
    }

    fn failed(&self, error: BoxError) -> Option<Duration> {
        let error: Error = StoreError { doing: "trim a log".to_owned(), source: error }.into();
        match &self.wanted {
            Wanted::Asked { told, .. } => {
                told.tell(Err(error));
                None
            }
            Wanted::Retained { writer, failures } => {
                tracing::warn!(log = self.state.name, %error, "a log could not be trimmed; it is tried again");
                let failures = failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
                let again = writer.is_open() && self.state.plan_trim();
                again.then(|| TRIM_BACK_OFF.delay(failures.try_into().unwrap_or(u32::MAX), 0.0)).flatten()
            }
        }
    }
}

/// Trims a log when a watermark moves on which it depends. It keeps neither the store nor the log.
pub(super) struct Trimmer {
    writer: WeakWriter,
    state: Weak<LogState>,
    place: Place,
}

impl Trimmer {
    pub(super) fn new(store: &Store, state: &Arc<LogState>) -> Arc<Self> {
        let (writer, state) = (store.writer().downgrade(), Arc::downgrade(state));
        Arc::new(Self { writer, state, place: Place::of(store) })
    }
}

impl Listener for Trimmer {
    fn changed(&self) {
        let Some(state) = self.state.upgrade() else { return };
        if state.trims_to() > state.first() && state.plan_trim() {
            let wanted = Wanted::Retained { writer: self.writer.clone(), failures: AtomicU64::new(0) };
            self.writer.submit(Box::new(Trim { state, place: self.place, wanted }), false);
        }
    }
}
