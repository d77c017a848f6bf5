//! Periodic jobs: schedules, the decision which ticks are due, and what is registered.
//!
//! Schedules and the decision are pure. `step/ticking.rs` makes the jobs of ticks.

#[cfg(feature = "cron")]
mod cron;
mod due;
mod every;
mod record;
mod registered;

#[cfg(feature = "cron")]
pub use cron::Cron;
pub use due::{CatchUp, Overlap};
pub use every::Every;
pub use registered::{PeriodicBuilder, PeriodicInfo};

pub(super) use self::due::{Passed, due};
pub(super) use self::record::Last;
#[cfg(any(test, feature = "testing"))]
pub(super) use self::record::SEAL;
pub(super) use self::registered::{Periodic, Periodics};
use crate::base::config::ConfigError;
use crate::queue::job::LATEST;
use std::fmt;

/// The times at which a periodic job runs: an [`Every`], or, with the feature `cron`, a `Cron`.
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
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        match &self.0 {
            Kind::Every(every) => every.check(),
            #[cfg(feature = "cron")]
            Kind::Cron(_) => Ok(()),
        }
    }

    /// True if the first tick is one of the schedule, and not at once. A cron expression names
    /// times, and work that is meant for the night must not begin at noon.
    pub(super) fn begins_at_next(&self) -> bool {
        match &self.0 {
            Kind::Every(_) => false,
            #[cfg(feature = "cron")]
            Kind::Cron(_) => true,
        }
    }

    /// Returns the ticks, if the last one was at this time.
    fn ticks(&self, last: u64) -> Ticks<'_> {
        Ticks { schedule: self, last }
    }

    /// Returns the first tick after this one, in milliseconds since 1970.
    pub(super) fn next(&self, last: u64) -> Option<u64> {
        self.ticks(last).next(last)
    }
}

/// The ticks of a schedule, in milliseconds since 1970.
struct Ticks<'a> {
    schedule: &'a Schedule,
    /// A tick. An interval is counted from here, unless it has an anchor.
    last: u64,
}

impl Ticks<'_> {
    /// Returns the first tick after this time; `None`: there is none before the year 10,000.
    fn next(&self, after: u64) -> Option<u64> {
        let next = match &self.schedule.0 {
            Kind::Every(every) => every.ticks(self.last).next(after),
            #[cfg(feature = "cron")]
            Kind::Cron(cron) => cron.next(after),
        };
        next.filter(|next| *next <= LATEST)
    }

    /// Returns the last tick up to a time, which is not before this tick.
    fn newest(&self, tick: u64, until: u64) -> u64 {
        // The later a search begins, the later is the tick that it finds. So the last moment from
        // which it finds one in time leads to the newest one.
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
