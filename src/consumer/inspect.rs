//! Second phase of a start: the source is asked for its first index.
//!
//! A consumer that can never begin is refused here.

use super::acquire::Acquired;
use crate::base::{Error, Index, config::ConfigError, guard::guarded, sync::Arc};
use crate::progress::Tenure;
use crate::source::wakeup::{Bell, Met, Wakeup};
use crate::source::{Jobs, bound::MetLog, watermark::Watermark};

/// A source with which the consumer can begin.
pub(super) struct Inspected {
    /// The watermark to publish into, reserved for this consumer.
    pub(super) watermark: Watermark,
    /// The gates and the bounds of the source.
    pub(super) met: Met,
    /// The log that the source reads, if the source has that log's own indices.
    pub(super) log: Option<MetLog>,
    /// True if the source rings when it has new jobs.
    pub(super) subscribed: bool,
    pub(super) next: Index,
}

/// Cleans up if the start fails.
///
/// It closes the bell, so that the source can forget its wake-up, ends the tenure, and releases the
/// watermark unless a driver already owns it.
pub(super) struct Unstarted {
    pub(super) bell: Arc<Bell>,
    pub(super) tenure: Tenure,
    /// The watermark, until a driver owns it.
    pub(super) watermark: Option<Watermark>,
    /// True if the driver of a standby has the watermark already.
    reserved: bool,
    pub(super) started: bool,
}

impl Unstarted {
    pub(super) fn new() -> Self {
        Self { bell: Arc::default(), tenure: Tenure::new(), watermark: None, reserved: false, started: false }
    }

    /// Passes the watermark to the driver, which ends it.
    pub(super) fn hand_watermark_on(&mut self) {
        (self.watermark, self.reserved) = (None, true);
    }

    /// Reserves the watermark for this consumer, whose name and upstreams are now known.
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

/// Subscribes to the source, reserves the watermark, and asks for the first index. The user may
/// have set where to begin and to end.
pub(super) fn inspect(
    jobs: &impl Jobs,
    (start_at, stop_at): (Option<Index>, Option<Index>),
    watermark: Watermark,
    acquired: &Acquired,
    unstarted: &mut Unstarted,
) -> Result<Inspected, Error> {
    // If anything is saved the stream has begun, even if there is no watermark yet.
    let begun = acquired.next().or(start_at);
    let failed = |source| Error::Source { index: begun.unwrap_or(0), source };
    let wakeup = Wakeup::new(unstarted.bell.clone(), watermark.clone());
    let subscribed = guarded(|| Ok(jobs.subscribe(wakeup.clone()))).map_err(failed)?;
    let met = wakeup.take_met();
    unstarted.reserve(&watermark, acquired.name.clone(), met.upstreams.clone())?;
    let first = guarded(|| jobs.first()).map_err(failed)?;
    // A source around a log may number its jobs differently, and a source may combine several logs.
    let log = match &met.logs[..] {
        [log] if (log.first..=log.log.first()).contains(&first) => Some(log.clone()),
        _ => None,
    };
    let next = begun.unwrap_or(first);
    // A consumer that has reached its end needs no further job from the source.
    if stop_at.is_none_or(|last| last >= next) {
        if first > next {
            return Err(Error::Truncated { next, first });
        }
        // An upstream may end while a standby waits for its name; that is no mistake of the start.
        if !unstarted.reserved {
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
