//! Ends out of reach: if an upstream has ended below the end of its follower, no job above the
//! upstream's watermark ever starts.

use crate::base::{Error, Index, sync::Arc};
use crate::source::{bound::Bound, wakeup::Met, watermark::Watermark};
use crate::window::Window;

/// What to do when the end can no longer be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OutOfReach {
    /// Nothing. The status names the upstream that the next job waits for; a stop returns no error.
    #[default]
    Wait,
    /// End where the upstream has ended.
    End,
    /// End there with an error, since a caller counts on the jobs beyond.
    Fail,
}

/// The gate of the source, as far as others decide it.
#[derive(Default)]
pub(crate) struct Gates {
    /// The watermarks that the gate of the source depends on.
    pub(crate) upstreams: Vec<Watermark>,
    pub(super) bounds: Vec<Arc<dyn Bound>>,
    pub(super) reach: Reach,
}

impl Gates {
    /// Takes what the wake-up has met on its way to the source.
    pub(crate) fn meet(&mut self, met: Met) {
        (self.upstreams, self.bounds) = (met.upstreams, met.bounds);
    }
}

/// The end that a consumer has to reach, if it can.
#[derive(Default)]
pub(super) struct Reach {
    pub(super) then: OutOfReach,
    short: Option<Short>,
}

/// An end below the index that the consumer had to reach.
struct Short {
    index: Index,
    /// The ended upstream with the lowest watermark.
    upstream: Watermark,
}

impl Reach {
    /// Lowers the end of the window to the last job that ended upstreams let through. Returns true
    /// if the end has changed.
    pub(super) fn shorten(&mut self, window: &mut Window, upstreams: &[Watermark]) -> bool {
        if self.then == OutOfReach::Wait || window.is_stopping() {
            return false;
        }
        let Some(index) = window.ends_at() else { return false };
        let short = upstreams.iter().filter(|upstream| kept_below(window, index, upstream));
        let Some(upstream) = short.min_by_key(|upstream| upstream.last_processed()) else { return false };
        match upstream.last_processed() {
            Some(last) => window.stop_at(last),
            None => window.handle_stop(),
        }
        if self.then == OutOfReach::Fail {
            let index = self.short.take().map_or(index, |earlier| earlier.index);
            self.short = Some(Short { index, upstream: upstream.clone() });
        }
        true
    }

    /// Returns the error to end with; none if the consumer was stopped before the end of the
    /// upstream.
    pub(super) fn error(&mut self, window: &Window) -> Option<Error> {
        let Short { index, upstream } = self.short.take()?;
        let last_processed = upstream.last_processed();
        let there = last_processed.is_none_or(|last| last < window.lowest_undone());
        there.then(|| Error::UpstreamEnded { upstream: upstream.name(), last_processed, index })
    }
}

/// True if this upstream has ended and blocks a job on the watermark's way to this index.
pub(super) fn kept_below(window: &Window, index: Index, upstream: &Watermark) -> bool {
    let closed_from = || upstream.last_processed().map_or(0, |last| last + 1);
    upstream.ended_below(index) && window.unstarted_from(closed_from()) <= index
}
