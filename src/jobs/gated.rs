//! A source that goes no further than another consumer has come.

use super::{Gate, Jobs};
use crate::index::{BoxError, Index};
use crate::sync::{Arc, Mutex};
use crate::wakeup::Wakeup;
use crate::watermark::{Listener, Watermark};
use std::fmt;
use std::ops::RangeInclusive;

/// Jobs of which none starts before an upstream consumer has processed its index; made by [`Jobs::gated_by`].
pub struct Gated<J> {
    jobs: J,
    upstream: Watermark,
    /// The upstream's watermark does not keep it.
    rings: Arc<Rings>,
}

/// Rings the consumers of a gated source whenever its gate may have moved, also where the source itself rings nobody.
#[derive(Debug, Default)]
pub(crate) struct Rings(Mutex<Vec<Wakeup>>);

impl Rings {
    pub(crate) fn add(&self, wakeup: Wakeup) {
        let mut wakeups = self.0.lock();
        wakeups.retain(|wakeup| !wakeup.is_stale());
        wakeups.push(wakeup);
    }
}

impl Listener for Rings {
    fn moved(&self) {
        self.0.lock().retain(Wakeup::ring_gate);
    }
}

impl<J: Jobs> Gated<J> {
    pub(super) fn new(jobs: J, upstream: Watermark) -> Self {
        let rings = Arc::<Rings>::default();
        let listener: Arc<dyn Listener> = rings.clone();
        upstream.listen(Arc::downgrade(&listener));
        Self { jobs, upstream, rings }
    }
}

impl<J: Jobs> Jobs for Gated<J> {
    type Job = J::Job;

    fn first(&self) -> Result<Index, BoxError> {
        self.jobs.first()
    }

    fn head(&self) -> Result<Option<Index>, BoxError> {
        self.jobs.head()
    }

    fn at_index(&self, index: Index) -> Result<Option<Self::Job>, BoxError> {
        self.jobs.at_index(index)
    }

    fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<Self::Job>) -> Result<(), BoxError> {
        self.jobs.read(run, into)
    }

    fn weight(&self, job: &Self::Job) -> usize {
        self.jobs.weight(job)
    }

    fn subscribe(&self, wakeup: Wakeup) -> bool {
        self.rings.add(wakeup.clone());
        self.jobs.subscribe(wakeup)
    }

    fn gate(&self) -> Gate {
        let own = self.upstream.last_processed().map_or(Gate::Closed, Gate::UpTo);
        self.jobs.gate().and(own)
    }

    fn upstreams(&self) -> Vec<Watermark> {
        let mut upstreams = self.jobs.upstreams();
        upstreams.push(self.upstream.clone());
        upstreams
    }
}

impl<J> fmt::Debug for Gated<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gated").field("upstream", &self.upstream).finish_non_exhaustive()
    }
}
