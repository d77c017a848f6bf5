//! A source whose jobs wait for another consumer.

use crate::base::index::{BoxError, Index};
use crate::base::sync::{Arc, Mutex};
use crate::source::wakeup::Wakeup;
use crate::source::watermark::{Listener, Watermark};
use crate::source::{Gate, Jobs, Sparse};
use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeInclusive;

/// Jobs behind a gate: none starts before an upstream consumer has processed its index. Made by
/// [`Jobs::gated_by`].
///
/// Several gates of one source are kept in a list, not as sources around sources. So a thousand
/// gates cost no more than a thousand times one gate.
pub struct Gated<J: Jobs> {
    jobs: Arc<dyn Jobs<Job = J::Job>>,
    gates: Arc<Gates>,
    made_of: PhantomData<fn() -> J>,
}

/// A gate, and the gates that the jobs had before it.
struct Gates {
    upstream: Watermark,
    /// Kept here, since the upstream's watermark holds only a weak reference to it.
    rings: Arc<Rings>,
    before: Option<Arc<Gates>>,
}

/// The jobs of a gated source, and its gates.
pub struct Ungated<T> {
    jobs: Arc<dyn Jobs<Job = T>>,
    gates: Arc<Gates>,
}

impl Gates {
    /// All gates, the last one first.
    fn each(&self) -> impl Iterator<Item = &Gates> {
        std::iter::successors(Some(self), |gates| gates.before.as_deref())
    }
}

impl Drop for Gates {
    fn drop(&mut self) {
        // A loop instead of the recursion of nested drops, which could overflow the stack.
        let mut before = self.before.take();
        while let Some(gates) = before {
            before = Arc::into_inner(gates).and_then(|mut gates| gates.before.take());
        }
    }
}

/// Rings the consumers of a gated source whenever its gate may have moved. It is needed because the
/// source itself may ring nobody.
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
    fn changed(&self) {
        self.0.lock().retain(Wakeup::ring_gate);
    }
}

impl<J: Jobs> Gated<J> {
    pub(super) fn new(jobs: J, upstream: Watermark) -> Self {
        let (jobs, before): (Arc<dyn Jobs<Job = J::Job>>, _) = match jobs.ungated() {
            Some(Ungated { jobs, gates }) => (jobs, Some(gates)),
            None => (Arc::new(jobs), None),
        };
        let rings = Arc::<Rings>::default();
        let listener: Arc<dyn Listener> = rings.clone();
        upstream.listen(Arc::downgrade(&listener));
        Self { jobs, gates: Arc::new(Gates { upstream, rings, before }), made_of: PhantomData }
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

    fn read_sparse(&self, run: RangeInclusive<Index>, most: usize, into: &mut Sparse<J::Job>) -> Result<(), BoxError> {
        self.jobs.read_sparse(run, most, into)
    }

    fn weight(&self, job: &Self::Job) -> usize {
        self.jobs.weight(job)
    }

    fn subscribe(&self, wakeup: Wakeup) -> bool {
        self.gates.each().for_each(|gates| gates.rings.add(wakeup.clone()));
        let subscribed = self.jobs.subscribe(wakeup.clone());
        // Behind those of the jobs themselves, the first gate first.
        let mut upstreams: Vec<&Watermark> = self.gates.each().map(|gates| &gates.upstream).collect();
        upstreams.reverse();
        wakeup.follow(upstreams);
        subscribed
    }

    fn gate(&self) -> Gate {
        let open_to = |gates: &Gates| gates.upstream.last_processed().map_or(Gate::Closed, Gate::UpTo);
        self.gates.each().map(open_to).fold(self.jobs.gate(), Gate::and)
    }

    fn ungated(&self) -> Option<Ungated<J::Job>> {
        Some(Ungated { jobs: self.jobs.clone(), gates: self.gates.clone() })
    }
}

impl<J: Jobs> fmt::Debug for Gated<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gated").field("upstream", &self.gates.upstream).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Ungated<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ungated").field("upstream", &self.gates.upstream).finish_non_exhaustive()
    }
}
