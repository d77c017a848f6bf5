//! Time and chance: the one file that reads a clock or draws a random number.
//!
//! A lint of clippy bans such calls everywhere else in the library, so code that decides by time
//! takes the time as an argument. Only the outer shells of the loops and public calls ask here. A
//! test, a model or a simulator can then run the same code on its own time.

use std::cell::OnceCell;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A time to within a tick of the system's timer: 1 to 16 ms. Reading an exact clock costs as much
/// as all the rest of a short job.
pub(crate) type Coarse = coarsetime::Instant;

/// The moment of one event, and its chance. The clock is read once, when the event first asks for
/// the time: an event that needs no time costs none.
#[derive(Debug)]
pub(crate) struct Now {
    moment: OnceCell<Instant>,
    /// `None`: the event reads the system's clocks.
    set: Option<Set>,
}

/// The other clocks at a moment that a test has set. Chance is then 1, so each pause is as long as
/// it can be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Set {
    pub(super) wall: u64,
    pub(super) coarse: Coarse,
    pub(super) system: Instant,
}

impl Now {
    /// A moment that reads the system's clock when asked.
    #[inline]
    pub(super) fn of_system() -> Self {
        Self { moment: OnceCell::new(), set: None }
    }

    /// A moment that a test has set.
    pub(super) fn of_set(moment: Instant, set: Set) -> Self {
        Self { moment: OnceCell::from(moment), set: Some(set) }
    }

    #[cfg(test)]
    pub(crate) fn when_asked() -> Self {
        Self::of_system()
    }

    /// This moment on each clock.
    #[cfg(test)]
    pub(crate) fn at(moment: Instant) -> Self {
        Self::of_set(moment, Set { wall: wall(), coarse: coarse(), system: moment })
    }

    #[inline]
    pub(crate) fn get(&self) -> Instant {
        *self.moment.get_or_init(now)
    }

    /// Returns the moment on the system's clock, even where a test sets another one. The use of
    /// threads is measured with it, since they take the machine's time.
    #[inline]
    pub(crate) fn of_machine(&self) -> Instant {
        self.set.map_or_else(|| self.get(), |set| set.system)
    }

    /// Reads the coarse clock. The system's is read each time anew.
    #[inline]
    pub(crate) fn coarse(&self) -> Coarse {
        self.set.map_or_else(coarse, |set| set.coarse)
    }

    /// Reads the wall clock: milliseconds since 1970.
    pub(crate) fn wall(&self) -> u64 {
        self.set.map_or_else(wall, |set| set.wall)
    }

    /// Draws a random number in 0..=1.
    pub(crate) fn chance(&self) -> f64 {
        self.set.map_or_else(chance, |_| 1.0)
    }
}

/// How long a loop sleeps between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sleep {
    /// Not at all: the next step follows at once.
    No,
    /// Some microseconds, spinning, since an event is about to come.
    Spin,
    /// Until the loop is woken, or until this time on its clock.
    Until(Option<Instant>),
    /// Until the loop is woken, or for this time of the machine.
    Awhile(Duration),
    /// For ever: that was the last step.
    End,
}

/// Returns the milliseconds since 1970, 0 before that, or `None` if they do not fit.
pub fn millis(time: SystemTime) -> Option<u64> {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).ok()
}

/// Advances a coarse time, rounded up, so that a pause of this length is over by then.
#[cfg(any(test, feature = "testing"))]
pub(super) fn later(coarse: Coarse, by: Duration) -> Coarse {
    let ticks = (by.as_nanos() << 32).div_ceil(1_000_000_000);
    coarse.saturating_add(coarsetime::Duration::from_ticks(u64::try_from(ticks).unwrap_or(u64::MAX)))
}

/// Reads the monotonic clock.
#[cfg(not(waterline_loom))]
#[allow(clippy::disallowed_methods)]
pub fn now() -> Instant {
    Instant::now()
}

#[cfg(not(waterline_loom))]
#[allow(clippy::disallowed_methods)]
#[inline]
pub(crate) fn coarse() -> Coarse {
    Coarse::now()
}

/// Reads the coarse clock on a user's thread, and leaves the user's own cached time of that crate
/// alone.
#[cfg(not(waterline_loom))]
#[allow(clippy::disallowed_methods)]
#[inline]
pub(crate) fn coarse_uncached() -> Coarse {
    Coarse::now_without_cache_update()
}

/// Reads the wall clock: milliseconds since 1970, and 0 before. It may go back, so it is stored and
/// shown, but never measures a duration.
#[cfg(not(waterline_loom))]
#[allow(clippy::disallowed_methods)]
pub(crate) fn wall() -> u64 {
    millis(SystemTime::now()).unwrap_or(u64::MAX)
}

#[cfg(not(waterline_loom))]
#[allow(clippy::disallowed_methods)]
fn chance() -> f64 {
    fastrand::f64()
}

#[cfg(waterline_loom)]
pub(crate) use self::model::{chance, coarse, coarse as coarse_uncached, now, wall};

/// The time of a model, which stands still until the model advances it, so that all runs are alike.
#[cfg(waterline_loom)]
pub(crate) mod model {
    use super::Coarse;
    use std::cell::Cell;
    use std::sync::OnceLock;
    use std::time::{Duration, Instant};

    thread_local! {
        /// All threads of one model run on one thread of the test.
        static PASSED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    #[allow(clippy::disallowed_methods)]
    pub fn now() -> Instant {
        static BEGIN: OnceLock<Instant> = OnceLock::new();
        *BEGIN.get_or_init(Instant::now) + PASSED.get()
    }

    pub(crate) fn coarse() -> Coarse {
        Coarse::from_ticks(0)
    }

    pub(crate) fn wall() -> u64 {
        PASSED.get().as_millis() as u64
    }

    pub(crate) fn chance() -> f64 {
        1.0
    }

    /// Resets the time for a run of the model.
    #[cfg(test)]
    pub(crate) fn begin() {
        PASSED.set(Duration::ZERO);
    }

    #[cfg(test)]
    pub(crate) fn pass(time: Duration) {
        PASSED.set(PASSED.get() + time);
    }

    #[cfg(test)]
    pub(crate) fn reach(until: Instant) {
        pass(until.saturating_duration_since(now()));
    }
}

#[cfg(all(test, not(waterline_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_wall_clock_counts_milliseconds_since_1970() {
        const IN_2020: u64 = 1_577_836_800_000;
        assert!((IN_2020..100 * IN_2020).contains(&wall()));
    }
}
