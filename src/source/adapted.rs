//! Sources that wrap another one, or are a handle to it. Each forwards the calls that it does not
//! change.

use crate::base::sync::{Arc, Ordering};
use crate::base::{BoxError, Index};
#[cfg(feature = "tokio")]
use crate::source::futures::Futures;
use crate::source::{
    Jobs, Sparse, confirmed::Confirmed, forward, gate::Gate, gated::Gated, sparse::dense_run, wakeup::Wakeup,
};
use std::ops::RangeInclusive;

impl<J: Jobs + ?Sized> Jobs for Arc<J> {
    type Job = J::Job;

    forward!(self: (**self) => first, head, at_index, read, read_sparse, weight, subscribe, gate, waits_for, call_timeout, futures);
}

impl<J: Jobs> Confirmed<J> {
    /// Returns the confirmed part of a run, or `None` if its start is not confirmed.
    fn within(&self, run: RangeInclusive<Index>) -> Result<Option<RangeInclusive<Index>>, BoxError> {
        if *run.end() < self.shown.load(Ordering::Relaxed) {
            return Ok(Some(run));
        }
        let head = self.head()?.filter(|head| run.start() <= head);
        Ok(head.map(|head| *run.start()..=head.min(*run.end())))
    }
}

impl<J: Jobs> Jobs for Confirmed<J> {
    type Job = J::Job;

    forward!(self: self.jobs => first, weight, subscribe, gate, waits_for, call_timeout);

    fn head(&self) -> Result<Option<Index>, BoxError> {
        let confirmed = self.jobs.head()?.and_then(|head| head.checked_sub(self.behind));
        if let Some(head) = confirmed {
            self.shown.store(head.saturating_add(1), Ordering::Relaxed);
        }
        Ok(confirmed)
    }

    fn at_index(&self, index: Index) -> Result<Option<J::Job>, BoxError> {
        if self.within(index..=index)?.is_some() { self.jobs.at_index(index) } else { Ok(None) }
    }

    fn read(&self, run: RangeInclusive<Index>, into: &mut Vec<J::Job>) -> Result<(), BoxError> {
        self.within(run)?.map_or(Ok(()), |run| self.jobs.read(run, into))
    }

    fn read_sparse(&self, run: RangeInclusive<Index>, most: usize, into: &mut Sparse<J::Job>) -> Result<(), BoxError> {
        dense_run(&run, most, into)?;
        self.within(run)?.map_or(Ok(()), |run| self.jobs.read_sparse(run, most, into))
    }

    /// Shows nothing above the last head, which the consumer asked for.
    #[cfg(feature = "tokio")]
    fn futures(&self) -> Option<Futures<'_, J::Job>> {
        Some(self.jobs.futures()?.below(self.shown.load(Ordering::Relaxed)))
    }
}

impl<J: Jobs> Jobs for Gated<J> {
    type Job = J::Job;

    forward!(self: self.jobs => first, head, at_index, read, read_sparse, weight, waits_for, call_timeout, futures);

    fn subscribe(&self, wakeup: Wakeup) -> bool {
        let subscribed = self.jobs.subscribe(wakeup.clone());
        // After those of the jobs themselves.
        self.keepers.iter().for_each(|keeper| keeper.subscribe(&wakeup));
        subscribed
    }

    fn gate(&self) -> Gate {
        self.keepers.iter().map(|keeper| keeper.gate()).fold(self.jobs.gate(), Gate::and)
    }
}
