//! How long locks are held and waited for: for the benchmark of many cores alone, which the hidden
//! feature `_counted` is for. Without it nothing of this is left.

/// A lock that each job, or each save, needs.
#[cfg_attr(not(feature = "_counted"), allow(unreachable_pub, reason = "only that feature shows it"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// That of the consumer's state.
    Core,
    /// That of the jobs that workers take without the core.
    Tray,
    /// That of the batch that a store writes.
    Writer,
}

/// How often a lock was taken, and what some of these times took.
#[cfg(feature = "_counted")]
#[derive(Clone, Copy, Debug, Default)]
pub struct LockTimes {
    /// How often it was taken.
    pub taken: u64,
    /// How many of these were measured.
    pub measured: u64,
    /// The nanoseconds until these had the lock, with one reading of the clock for each.
    pub waited: u64,
    /// The nanoseconds for which they held it, with one reading of the clock for each.
    pub held: u64,
}

#[cfg(not(feature = "_counted"))]
mod off {
    use super::Counted;

    #[derive(Debug)]
    pub(crate) struct Waits {}

    #[derive(Debug, Default)]
    pub(crate) struct Holds {}

    #[inline]
    pub(crate) fn waits(_lock: Counted) -> Waits {
        Waits {}
    }

    impl Waits {
        #[inline]
        pub(crate) fn over(self) -> Holds {
            Holds {}
        }
    }
}

#[cfg(feature = "_counted")]
mod on {
    use super::{Counted, LockTimes};
    use crate::base::time::now;
    use parking_lot::Mutex;
    use std::cell::{Cell, RefCell};
    use std::time::Instant;

    /// One of so many is measured, and each write, since that takes longer than most of what it
    /// measures. (A prime, so that it does not always meet the same step of a loop.)
    const EACH: u32 = 61;

    /// The most that a visit to the core or the tray counts.
    const MOST: u64 = 5_000;

    static ALL: Mutex<[LockTimes; 3]> =
        parking_lot::const_mutex([LockTimes { taken: 0, measured: 0, waited: 0, held: 0 }; 3]);

    /// What a thread has counted. It adds that to all at its end.
    #[derive(Default)]
    struct OfThread {
        calls: Cell<u32>,
        times: RefCell<[LockTimes; 3]>,
    }

    thread_local!(static OWN: OfThread = OfThread::default());

    impl Drop for OfThread {
        fn drop(&mut self) {
            let mut all = ALL.lock();
            for (all, own) in all.iter_mut().zip(self.times.take()) {
                all.taken += own.taken;
                all.measured += own.measured;
                all.waited += own.waited;
                all.held += own.held;
            }
        }
    }

    #[derive(Debug)]
    pub(crate) struct Waits(Option<(Counted, Instant)>);

    #[derive(Debug, Default)]
    pub(crate) struct Holds(Option<(Counted, Instant)>);

    fn count(lock: Counted, count: impl FnOnce(&mut LockTimes)) {
        // (A thread that ends has given its counts away.)
        _ = OWN.try_with(|own| count(&mut own.times.borrow_mut()[lock as usize]));
    }

    pub(crate) fn waits(lock: Counted) -> Waits {
        count(lock, |times| times.taken += 1);
        let is_measured = OWN.try_with(|own| {
            own.calls.set(own.calls.get().wrapping_add(1));
            lock == Counted::Writer || own.calls.get() % EACH == 0
        });
        Waits(is_measured.unwrap_or_default().then(|| (lock, now())))
    }

    fn nanos(since: Instant, until: Instant) -> u64 {
        u64::try_from((until - since).as_nanos()).unwrap_or(u64::MAX)
    }

    impl Waits {
        pub(crate) fn over(self) -> Holds {
            Holds(self.0.map(|(lock, since)| {
                let at = now();
                count(lock, |times| {
                    times.measured += 1;
                    times.waited += nanos(since, at);
                });
                (lock, at)
            }))
        }
    }

    impl Drop for Holds {
        fn drop(&mut self) {
            let Some((lock, since)) = self.0.take() else { return };
            let held = nanos(since, now());
            // A thread that is interrupted holds a short lock for long, once in a thousand times.
            let held = if lock == Counted::Writer { held } else { held.min(MOST) };
            count(lock, |times| times.held += held);
        }
    }

    /// Takes what the threads that have ended have counted, in the order of [`Counted`].
    pub fn take_counted() -> [LockTimes; 3] {
        std::mem::take(&mut ALL.lock())
    }
}

#[cfg(not(feature = "_counted"))]
pub(crate) use self::off::{Holds, waits};
#[cfg(feature = "_counted")]
pub use self::on::take_counted;
#[cfg(feature = "_counted")]
pub(crate) use self::on::{Holds, waits};
