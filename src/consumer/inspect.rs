//! The second phase of a start: the source is asked for its first index, and a consumer that can
//! never begin is refused.

use super::acquire::Acquired;
use crate::base::config::ConfigError;
use crate::base::error::Error;
use crate::base::guard::guarded;
use crate::base::index::Index;
use crate::base::sync::Arc;
use crate::progress::Tenure;
use crate::source::Jobs;
use crate::source::bound::MetLog;
use crate::source::wakeup::{Bell, Met, Wakeup};
use crate::source::watermark::Watermark;

/// The place in the stream where a consumer begins and ends, as its user wants it.
pub(super) struct Wanted {
    pub(super) start_at: Option<Index>,
    pub(super) stop_at: Option<Index>,
    pub(super) watermark: Watermark,
}

/// A source that lets the consumer begin.
pub(super) struct Inspected {
    /// The watermark to publish into, which is reserved for this consumer.
    pub(super) watermark: Watermark,
    /// The watermarks that the source's gate follows.
    /// The gates and the bounds of the source.
    pub(super) met: Met,
    /// The log that the source is, by its own indices.
    pub(super) log: Option<MetLog>,
    /// True if the source rings when it has more.
    pub(super) subscribed: bool,
    /// The lowest index that is not done.
    pub(super) next: Index,
}

/// Cleans up if the start fails: it closes the bell, so that the source can forget its wake-up,
/// ends the tenure, which steers nothing then, and gives the watermark back as long as no driver
/// ends it.
pub(super) struct Unstarted {
    pub(super) bell: Arc<Bell>,
    pub(super) tenure: Tenure,
    /// The watermark, until there is a driver that ends it.
    pub(super) watermark: Option<Watermark>,
    /// True if the driver of a consumer that waited for its name has the watermark already.
    reserved: bool,
    pub(super) started: bool,
}

impl Unstarted {
    pub(super) fn new() -> Self {
        Self { bell: Arc::default(), tenure: Tenure::new(), watermark: None, reserved: false, started: false }
    }

    /// Leaves the watermark to the driver, which ends it.
    pub(super) fn hand_watermark_on(&mut self) {
        (self.watermark, self.reserved) = (None, true);
    }

    /// True if the consumer has waited for its name.
    pub(super) fn has_waited(&self) -> bool {
        self.reserved
    }

    /// Reserves the watermark for this consumer, whose name and upstreams are known now.
    pub(super) fn reserve(
        &mut self,
        watermark: &Watermark,
        name: Option<String>,
        upstreams: Vec<Watermark>,
    ) -> Result<(), ConfigError> {
        if self.reserved {
            return watermark.engage(name, upstreams);
        }
        watermark.reserve(name, upstreams)?;
        self.watermark = Some(watermark.clone());
        Ok(())
    }
}

impl Drop for Unstarted {
    fn drop(&mut self) {
        if !self.started {
            self.bell.close();
            self.tenure.end();
            self.watermark.iter().for_each(Watermark::release);
        }
    }
}

/// Subscribes to the source, reserves the watermark, and asks for the first index.
pub(super) fn inspect(
    jobs: &impl Jobs,
    wanted: Wanted,
    acquired: &Acquired,
    unstarted: &mut Unstarted,
) -> Result<Inspected, Error> {
    let Wanted { start_at, stop_at, watermark } = wanted;
    // If anything is saved the stream has its beginning, even if there is no watermark yet.
    let begun = acquired.next().or(start_at);
    let failed = |source| Error::Source { index: begun.unwrap_or(0), source };
    let wakeup = Wakeup::new(unstarted.bell.clone(), watermark.clone());
    let subscribed = guarded(|| Ok(jobs.subscribe(wakeup.clone()))).map_err(failed)?;
    let met = wakeup.take_met();
    unstarted.reserve(&watermark, acquired.name.clone(), met.upstreams.clone())?;
    let first = guarded(|| jobs.first()).map_err(failed)?;
    // A source around a log may have other indices than the log, and a source may be several.
    let log = match &met.logs[..] {
        [log] if (log.first..=log.log.first()).contains(&first) => Some(log.clone()),
        _ => None,
    };
    let next = begun.unwrap_or(first);
    // A consumer that has reached its end needs nothing from the source any more.
    if stop_at.is_none_or(|last| last >= next) {
        if first > next {
            return Err(Error::Truncated { next, first });
        }
        // An upstream that ended while the consumer waited for its name is no mistake of the start.
        if !unstarted.has_waited() {
            check_upstreams(&watermark, &met.upstreams, next)?;
        }
    }
    Ok(Inspected { watermark, met, log, subscribed, next })
}

/// Refuses a gate that can never let the first job through.
fn check_upstreams(watermark: &Watermark, upstreams: &[Watermark], next: Index) -> Result<(), ConfigError> {
    match upstreams.iter().find(|upstream| upstream.ended_below(next)) {
        None => Ok(()),
        Some(upstream) => Err(ConfigError::UpstreamEnded {
            consumer: watermark.name(),
            upstream: upstream.name(),
            next,
            last_processed: upstream.last_processed(),
        }),
    }
}
