//! Schedules of periodic jobs, and what happens to their ticks.

use crate::types::config::ConfigError;
use crate::types::job::LATEST;
#[cfg(feature = "cron")]
use crate::types::schedule::cron::Cron;
use crate::types::schedule::every::Every;
use std::fmt;

#[cfg(feature = "cron")]
pub(crate) mod cron;
pub(crate) mod every;

/// When a periodic job runs: an [`Every`], or, with the feature `cron`, a `Cron`.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule(Kind);

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Every(Every),
    #[cfg(feature = "cron")]
    Cron(Box<Cron>),
}

impl From<Every> for Schedule {
    fn from(every: Every) -> Self {
        Self(Kind::Every(every))
    }
}

#[cfg(feature = "cron")]
impl From<Cron> for Schedule {
    fn from(cron: Cron) -> Self {
        Self(Kind::Cron(Box::new(cron)))
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Every(every) => every.fmt(f),
            #[cfg(feature = "cron")]
            Kind::Cron(cron) => cron.fmt(f),
        }
    }
}

impl Schedule {
    /// Refuses a schedule that has no ticks.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        match &self.0 {
            Kind::Every(every) => every.check(),
            #[cfg(feature = "cron")]
            Kind::Cron(_) => Ok(()),
        }
    }

    /// True if the first tick is the next one of the schedule, and not at once. A cron expression
    /// names times, and work that is meant for the night must not begin at noon.
    pub(crate) fn begins_at_next(&self) -> bool {
        match &self.0 {
            Kind::Every(_) => false,
            #[cfg(feature = "cron")]
            Kind::Cron(_) => true,
        }
    }

    /// True if it names the times of its ticks, whenever the last one was.
    pub(crate) fn names_times(&self) -> bool {
        match &self.0 {
            Kind::Every(every) => every.is_anchored(),
            #[cfg(feature = "cron")]
            Kind::Cron(_) => true,
        }
    }

    /// Returns the ticks after a last tick at this time.
    pub(crate) fn ticks(&self, last: u64) -> Ticks<'_> {
        Ticks { schedule: self, last }
    }

    /// Returns the first tick after this one, in milliseconds since 1970.
    pub(crate) fn next(&self, last: u64) -> Option<u64> {
        self.ticks(last).next(last)
    }
}

/// The ticks of a schedule, in milliseconds since 1970.
pub(crate) struct Ticks<'a> {
    schedule: &'a Schedule,
    /// The last tick. An interval is counted from here, unless it has an anchor.
    last: u64,
}

impl Ticks<'_> {
    /// Returns the first tick after this time; `None`: there is none before the year 10,000.
    pub(crate) fn next(&self, after: u64) -> Option<u64> {
        let next = match &self.schedule.0 {
            Kind::Every(every) => every.ticks(self.last).next(after),
            #[cfg(feature = "cron")]
            Kind::Cron(cron) => cron.next(after),
        };
        next.filter(|next| *next <= LATEST)
    }

    /// Returns the last tick up to the time `until`, which is not before `tick`.
    pub(crate) fn newest(&self, tick: u64, until: u64) -> u64 {
        // The later a search begins, the later is the tick that it finds. So bisect for the last
        // moment from which it finds one in time: that leads to the newest tick.
        let is_in_time = |after| self.next(after).is_some_and(|next| next <= until);
        let (mut low, mut high) = (tick, until);
        if !is_in_time(low) {
            return tick;
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if is_in_time(middle) { low = middle } else { high = middle }
        }
        self.next(low).unwrap_or(tick)
    }
}

/// What happens to a tick while the last run has not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overlap {
    /// The tick makes no job. It is counted ([`PeriodicInfo::skipped`]) and logged by `tracing`.
    ///
    /// [`PeriodicInfo::skipped`]: crate::PeriodicInfo::skipped
    #[default]
    Skip,
    /// The tick makes a job, which may run beside the last one.
    Allow,
}

/// What happens to missed ticks, for which no process was running to make their jobs. A tick counts
/// as missed if it is late by more than a minute, or if a later one is due as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CatchUp {
    /// They make no job.
    None,
    /// They make one job for all of them, the newest one. So today's digest comes a little late.
    #[default]
    One,
    /// Each of them makes a job. This requires [`Overlap::Allow`], since they all come at once.
    All,
}
