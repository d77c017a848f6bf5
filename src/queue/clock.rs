//! The time of a queue: the system's, or one that a test sets.

use crate::base::sync::{Arc, Mutex};
use crate::base::time::{self, Now};
use std::fmt;
use std::sync::Weak;
#[cfg(any(test, feature = "testing"))]
use std::time::SystemTime;
use std::time::{Duration, Instant};

/// The moment of one call: both clocks, and its chance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// Milliseconds since 1970. It may jump, and decides when jobs are due.
    pub(super) wall: u64,
    /// The monotonic clock, by which leases run out.
    pub(super) now: Instant,
    /// A random number in 0..=1.
    pub(super) chance: f64,
}

/// Hears that a clock was set, so that a wait is looked at again.
pub(super) trait Waits: Send + Sync {
    #[cfg_attr(not(any(test, feature = "testing")), expect(dead_code, reason = "only a test sets a clock"))]
    fn clock_was_set(&self);
}

/// The clock of a queue: that of the system, unless a test hands in another one
/// ([`QueueOptions::clock`](crate::queue::QueueOptions::clock)). A clone is the same clock.
#[derive(Clone, Default)]
pub struct Clock(Option<Arc<Manual>>);

struct Manual {
    state: Mutex<ManualState>,
}

struct ManualState {
    wall: u64,
    now: Instant,
    waits: Vec<Weak<dyn Waits>>,
}

impl Clock {
    /// Makes a clock that stands still, for tests: only [`advance`](Self::advance) and
    /// [`set_wall`](Self::set_wall) move it. Then no wait ends by itself, and jitter makes every
    /// back-off as long as it can be.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use waterline::Store;
    /// use waterline::queue::{Accept, Clock, NewJob, Queue, QueueOptions};
    ///
    /// let clock = Clock::manual(SystemTime::now());
    /// let queue = Queue::open(&Store::in_memory(), "q", QueueOptions::default().clock(clock.clone()))?;
    /// queue.push(NewJob::new("remind", "ann")?.delay(Duration::from_secs(3600)))?;
    /// assert!(queue.accept(Accept::new())?.is_none());
    /// clock.advance(Duration::from_secs(3600));
    /// assert!(queue.accept(Accept::new())?.is_some());
    /// # Ok::<(), waterline::queue::QueueError>(())
    /// ```
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn manual(wall: SystemTime) -> Self {
        let wall = super::job::millis(wall).unwrap_or(0);
        let state = ManualState { wall, now: time::now(), waits: Vec::new() };
        Self(Some(Arc::new(Manual { state: Mutex::new(state) })))
    }

    /// Lets time pass on both clocks: the one on the wall, and the monotonic one of leases. Does
    /// nothing to the clock of the system.
    #[cfg(any(test, feature = "testing"))]
    pub fn advance(&self, by: Duration) {
        self.change(|state| {
            state.wall = state.wall.saturating_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX));
            state.now = state.now.checked_add(by).unwrap_or(state.now);
        });
    }

    /// Sets the clock on the wall, forward or back, as an operator or a time server does. The
    /// monotonic one stays. Does nothing to the clock of the system.
    #[cfg(any(test, feature = "testing"))]
    pub fn set_wall(&self, wall: SystemTime) {
        self.change(|state| state.wall = super::job::millis(wall).unwrap_or(state.wall));
    }

    #[cfg(any(test, feature = "testing"))]
    fn change(&self, change: impl FnOnce(&mut ManualState)) {
        let Some(manual) = &self.0 else { return };
        let waits = {
            let mut state = manual.state.lock();
            change(&mut state);
            state.waits.retain(|waits| waits.strong_count() > 0);
            state.waits.clone()
        };
        waits.iter().filter_map(Weak::upgrade).for_each(|waits| waits.clock_was_set());
    }

    pub(super) fn moment(&self) -> Moment {
        match &self.0 {
            Some(manual) => {
                let state = manual.state.lock();
                Moment { wall: state.wall, now: state.now, chance: 1.0 }
            }
            None => Moment { wall: time::wall(), now: time::now(), chance: Now::when_asked().chance() },
        }
    }

    /// Reads the monotonic clock alone.
    pub(super) fn now(&self) -> Instant {
        self.0.as_ref().map_or_else(time::now, |manual| manual.state.lock().now)
    }

    /// Tells these waits when the clock is set.
    pub(super) fn tell(&self, waits: Weak<dyn Waits>) {
        if let Some(manual) = &self.0 {
            manual.state.lock().waits.push(waits);
        }
    }

    /// Returns the end of a wait on the clock that condition variables know; `None`: it has none.
    pub(super) fn deadline(&self, moment: &Moment, pause: Option<Duration>) -> Option<Instant> {
        if self.0.is_some() {
            return None;
        }
        pause.and_then(|pause| moment.now.checked_add(pause))
    }
}

impl PartialEq for Clock {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Clock::manual" } else { "Clock::system" })
    }
}
