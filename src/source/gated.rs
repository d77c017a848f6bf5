//! A source whose jobs wait for another consumer, or for room in a log.

use crate::base::Index;
use crate::base::sync::{Arc, Mutex};
use crate::source::watermark::{Listener, Watermark};
use crate::source::{gate::Gate, wakeup::Wakeup};
use std::fmt;

/// Jobs behind a gate: none starts before its upstream has processed it, or while a log is full.
///
/// Created by [`Jobs::gated_by`](crate::Jobs::gated_by) and
/// [`JobLog::hold_back`](crate::JobLog::hold_back).
#[derive(Debug)]
pub struct Gated<J> {
    pub(super) jobs: J,
    /// In the order in which the gates were added.
    pub(super) keepers: Vec<Arc<dyn Keeper>>,
}

/// A gate: lets jobs start up to some index.
pub(crate) trait Keeper: fmt::Debug + Send + Sync {
    /// Rings the wake-up from now on whenever the gate may have moved.
    fn subscribe(&self, wakeup: &Wakeup);

    fn gate(&self) -> Gate;
}

/// Rings a gated source's consumers whenever its gate may have moved: the source may never ring.
#[derive(Debug, Default)]
pub(crate) struct Rings(Mutex<Vec<Wakeup>>);

impl Rings {
    pub(crate) fn add(&self, wakeup: Wakeup) {
        let mut wakeups = self.0.lock();
        // This removes those that could not be started, too, whose watermarks never end.
        wakeups.retain(|wakeup| !wakeup.is_stale());
        wakeups.push(wakeup);
    }

    /// Returns the lowest index that one of the consumers has not processed.
    pub(crate) fn lowest_next(&self) -> Option<Index> {
        let wakeups = self.0.lock();
        wakeups.iter().filter(|wakeup| !wakeup.is_stale()).filter_map(|wakeup| wakeup.watermark().next()).min()
    }
}

impl Listener for Rings {
    fn changed(&self) {
        self.0.lock().retain(Wakeup::ring_gate);
    }
}

#[derive(Debug)]
struct Upstream {
    watermark: Watermark,
    /// Kept alive here, since the watermark holds only a weak reference to it.
    rings: Arc<Rings>,
}

impl Upstream {
    fn new(watermark: Watermark) -> Arc<Self> {
        let rings = Arc::<Rings>::default();
        let listener: Arc<dyn Listener> = rings.clone();
        watermark.listen(Arc::downgrade(&listener));
        Arc::new(Self { watermark, rings })
    }
}

impl Keeper for Upstream {
    fn subscribe(&self, wakeup: &Wakeup) {
        self.rings.add(wakeup.clone());
        wakeup.follow(&self.watermark);
    }

    fn gate(&self) -> Gate {
        self.watermark.last_processed().map_or(Gate::Closed, Gate::UpTo)
    }
}

impl<J> Gated<J> {
    pub(crate) fn new(jobs: J, keeper: Arc<dyn Keeper>) -> Self {
        Self { jobs, keepers: vec![keeper] }
    }

    pub(super) fn behind(jobs: J, upstream: Watermark) -> Self {
        Self::new(jobs, Upstream::new(upstream))
    }

    /// Adds a gate, as [`Jobs::gated_by`](crate::Jobs::gated_by) does.
    ///
    /// The type stays the same, so this can be called in a loop: the cost of a thousand gates is a
    /// thousand times that of one.
    #[must_use]
    pub fn gated_by(mut self, upstream: impl AsRef<Watermark>) -> Self {
        self.keepers.push(Upstream::new(upstream.as_ref().clone()));
        self
    }
}
