//! The clock of a consumer or of a queue: the system's, or one that a test sets.

use crate::base::sync::{Arc, Condvar, Mutex, MutexGuard, wait_until};
use crate::base::time::{self, Coarse, Now, Set};
use std::fmt;
use std::sync::Weak;
use std::time::Instant;
#[cfg(any(test, feature = "testing"))]
use std::time::{Duration, SystemTime};

/// Hears that a clock was set, so that waits are evaluated again.
///
/// A thread that sleeps until a moment reads the clock under the lock that it sleeps with. This
/// call takes the same lock before it wakes the thread, which therefore either sleeps already or
/// reads the clock after it was set.
pub trait Waits: Send + Sync {
    #[cfg_attr(
        not(any(test, feature = "seam", feature = "testing")),
        expect(dead_code, reason = "only a test sets a clock")
    )]
    fn clock_was_set(&self);
}

/// The clock of a consumer or of a queue: the system's, unless a test passes another.
///
/// Set it with [`Builder::clock`](crate::Builder::clock) or `QueueOptions::clock`. A clone is the
/// same clock.
#[derive(Clone, Default)]
pub struct Clock(Option<Arc<Mutex<ManualState>>>);

struct ManualState {
    wall: u64,
    now: Instant,
    coarse: Coarse,
    waits: Vec<Weak<dyn Waits>>,
}

impl Clock {
    /// Creates a clock that stands still, for tests.
    ///
    /// Only [`advance`](Self::advance) and [`set_wall`](Self::set_wall) move it: no wait ends by
    /// itself, and jitter makes every back-off as long as it can be. A consumer's threads take a
    /// moment to reach their wait, so a test advances the clock until it sees what it waits for:
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use waterline::{Clock, Consumer, MemoryJobs, MemoryProgress, Retry};
    ///
    /// let clock = Clock::manual(SystemTime::now());
    /// let jobs: MemoryJobs<_> = ["not ready at first"].into_iter().collect();
    /// let consumer = Consumer::builder(jobs, MemoryProgress::new())
    ///     .clock(clock.clone())
    ///     .retry(Retry::fixed(Duration::from_secs(3600)))
    ///     .start(|job| if job.attempt > 1 { Ok(()) } else { Err("not yet".into()) })?;
    /// while !consumer.handle().wait_for(0, Duration::from_millis(1)) {
    ///     clock.advance(Duration::from_secs(3600));
    /// }
    /// assert_eq!(consumer.handle().status().retries, 1);
    /// consumer.stop()?;
    /// # Ok::<(), waterline::Error>(())
    /// ```
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn manual(wall: SystemTime) -> Self {
        let wall = time::millis(wall).unwrap_or(0);
        let state = ManualState { wall, now: time::now(), coarse: time::coarse(), waits: Vec::new() };
        Self(Some(Arc::new(Mutex::new(state))))
    }

    /// Advances both the wall clock and the monotonic clock of pauses, timeouts and leases.
    ///
    /// A wait that is over by then ends soon after the call, on its own thread. Does nothing to the
    /// system's clock.
    #[cfg(any(test, feature = "testing"))]
    pub fn advance(&self, by: Duration) {
        self.change(|state| {
            state.wall = state.wall.saturating_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX));
            if let Some(now) = state.now.checked_add(by) {
                (state.now, state.coarse) = (now, time::later(state.coarse, by));
            }
        });
    }

    /// Sets the wall clock, forward or back, as an operator or a time server does.
    ///
    /// The monotonic clock stays. Does nothing to the system's clock.
    #[cfg(any(test, feature = "testing"))]
    pub fn set_wall(&self, wall: SystemTime) {
        self.change(|state| state.wall = time::millis(wall).unwrap_or(state.wall));
    }

    /// Returns the time of the wall clock, for a test that computes with it.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn wall_time(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(self.wall())
    }

    #[cfg(any(test, feature = "testing"))]
    fn change(&self, change: impl FnOnce(&mut ManualState)) {
        let Some(manual) = &self.0 else { return };
        let waits = {
            let mut state = manual.lock();
            change(&mut state);
            state.waits.retain(|waits| waits.strong_count() > 0);
            state.waits.clone()
        };
        waits.iter().filter_map(Weak::upgrade).for_each(|waits| waits.clock_was_set());
    }

    /// Returns the moment of an event. The system's clock is read only when the event asks for it.
    #[inline]
    pub(crate) fn when_asked(&self) -> Now {
        match &self.0 {
            None => Now::of_system(),
            Some(manual) => ManualState::when_asked(manual),
        }
    }

    pub(crate) fn now(&self) -> Instant {
        self.at(time::now)
    }

    /// Like [`now`](Self::now), for a caller that may have just read the system's clock.
    pub(crate) fn at(&self, system: impl FnOnce() -> Instant) -> Instant {
        self.0.as_ref().map_or_else(system, |manual| manual.lock().now)
    }

    pub(crate) fn coarse(&self) -> Coarse {
        self.0.as_ref().map_or_else(time::coarse, |manual| manual.lock().coarse)
    }

    /// Reads the wall clock: milliseconds since 1970.
    pub(crate) fn wall(&self) -> u64 {
        self.0.as_ref().map_or_else(time::wall, |manual| manual.lock().wall)
    }

    /// True if only a test moves it. A pause that nothing cuts short would then last for ever.
    pub(crate) fn is_manual(&self) -> bool {
        self.0.is_some()
    }

    /// Registers waits that are told when the clock is set.
    pub(crate) fn tell(&self, waits: Weak<dyn Waits>) {
        if let Some(manual) = &self.0 {
            manual.lock().waits.push(waits);
        }
    }

    /// Returns the deadline for a condition variable. A manual clock has none, but tells its waits.
    pub(crate) fn deadline(&self, until: Option<Instant>) -> Option<Instant> {
        until.filter(|_| self.0.is_none())
    }

    /// Sleeps until woken or until this moment of the clock. Returns true if the moment came.
    pub(crate) fn wait<T>(&self, condvar: &Condvar, guard: &mut MutexGuard<'_, T>, until: Option<Instant>) -> bool {
        if self.0.is_none() {
            return wait_until(condvar, guard, until);
        }
        let is_over = || until.is_some_and(|until| until <= self.now());
        if !is_over() {
            condvar.wait(guard);
        }
        is_over()
    }
}

impl ManualState {
    #[cold]
    fn when_asked(manual: &Mutex<Self>) -> Now {
        let state = manual.lock();
        Now::of_set(state.now, Set { wall: state.wall, coarse: state.coarse, system: time::now() })
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

#[cfg(all(test, not(waterline_loom)))]
mod tests {
    use super::*;

    /// A thread sleeps here.
    #[derive(Default)]
    struct Bed {
        /// How often the thread has begun to sleep.
        sleeps: Mutex<u32>,
        woken: Condvar,
    }

    impl Waits for Bed {
        fn clock_was_set(&self) {
            drop(self.sleeps.lock());
            self.woken.notify_all();
        }
    }

    #[test]
    fn a_manual_wait_ends_exactly_at_its_moment() {
        const STEPS: u32 = 10;
        let (clock, bed, step) =
            (Clock::manual(SystemTime::UNIX_EPOCH), Arc::new(Bed::default()), Duration::from_secs(6));
        let waits: Weak<dyn Waits> = Arc::downgrade(&(bed.clone() as Arc<dyn Waits>));
        clock.tell(waits);
        let until = Some(clock.now() + step * STEPS);
        let sleeper = std::thread::spawn({
            let (clock, bed) = (clock.clone(), bed.clone());
            move || {
                let mut sleeps = bed.sleeps.lock();
                *sleeps += 1;
                while !clock.wait(&bed.woken, &mut sleeps, until) {
                    *sleeps += 1;
                }
                *sleeps
            }
        });
        for sleep in 1..=STEPS {
            while *bed.sleeps.lock() < sleep {
                std::thread::yield_now();
            }
            clock.advance(step);
        }
        assert_eq!(sleeper.join().unwrap(), STEPS);
        assert!(clock.wait(&bed.woken, &mut bed.sleeps.lock(), until), "what is over needs no sleep");
    }

    #[test]
    fn an_advanced_coarse_clock_ends_the_pause() {
        let clock = Clock::manual(SystemTime::UNIX_EPOCH);
        for nanos in (1..64).map(|bits| 1_u64 << bits >> 3).chain([3, 7, 999_999_999, 20_000_000, 1_000_000_001]) {
            let (begun, by) = (clock.coarse(), Duration::from_nanos(nanos));
            clock.advance(by);
            let passed: Duration = clock.coarse().duration_since(begun).into();
            assert!(passed >= by && passed <= by + Duration::from_nanos(1), "{passed:?} after {by:?}");
        }
    }

    #[test]
    fn a_manual_clock_stands_still_between_advances() {
        let clock = Clock::manual(SystemTime::UNIX_EPOCH + Duration::from_secs(5));
        let (before, system) = (clock.when_asked(), time::now());
        clock.advance(Duration::from_millis(2500));
        let after = clock.when_asked();
        assert_eq!(after.get() - before.get(), Duration::from_millis(2500));
        assert_eq!((before.wall(), after.wall(), after.chance()), (5000, 7500, 1.0));
        assert!(before.of_machine() <= system && system <= after.of_machine());
        clock.advance(Duration::MAX);
        assert_eq!(clock.now(), after.get(), "it does not go beyond its end");
    }
}
